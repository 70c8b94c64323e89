//! Finds files in a workspace that commands in the user's agent settings refer to: hooks, helpers, notifiers.
//!
//! The user's next session, or a call without a policy, runs them outside of any sandbox. So no sandboxed agent may change them,
//! whichever agent's settings refer to them. Programs of MCP servers are excluded: agents often work on a server in the
//! workspace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::is_in_products;
use serde_json::Value;

use crate::user_configuration::read_configuration;

/// The key of MCP servers in JSON settings.
const SERVERS: &str = "mcpServers";

/// The prefix of tables of MCP servers in codex's settings.
const CODEX_SERVERS: &str = "[mcp_servers";

/// Suffixes of keys whose values are commands or arguments.
const COMMAND_KEYS: [&str; 7] = ["command", "args", "Command", "Helper", "Refresh", "Export", "notify"];

/// The project directory in a command.
const PROJECT: [&str; 2] = ["$CLAUDE_PROJECT_DIR/", "${CLAUDE_PROJECT_DIR}/"];

/// The home directory in a command.
const HOME: [&str; 3] = ["~/", "$HOME/", "${HOME}/"];

/// Returns the files in the workspaces that commands in the user's settings refer to.
pub(crate) fn settings_programs(workspaces: &[&Path], inherited: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let home = inherited.get("HOME").map(PathBuf::from);
    let directory = |variable: &str, name: &str| {
        let own = inherited.get(variable).map(PathBuf::from);
        own.or_else(|| Some(home.as_ref()?.join(name)))
    };
    let gemini = inherited.get("GEMINI_CLI_HOME").map(PathBuf::from).or_else(|| home.clone());
    let json = [
        directory("CLAUDE_CONFIG_DIR", ".claude").map(|claude| claude.join("settings.json")),
        gemini.map(|gemini| gemini.join(".gemini/settings.json")),
    ];
    let json = json.into_iter().flatten().filter_map(|file| read_configuration(&file));
    let json = json.filter_map(|text| serde_json::from_str::<Value>(&text).ok());
    let mut commands = Vec::new();
    for settings in json {
        add_commands(&settings, &mut commands);
    }
    let codex = directory("CODEX_HOME", ".codex").map(|codex| codex.join("config.toml"));
    let codex = codex.and_then(|file| read_configuration(&file)).unwrap_or_default();
    commands.extend(quoted_texts(&codex).map(str::to_owned));
    let mut programs: Vec<PathBuf> =
        commands.iter().flat_map(|command| named_files(command, workspaces, home.as_deref())).collect();
    programs.sort();
    programs.dedup();
    programs
}

/// Returns the quoted strings in codex's settings, except for those of servers. Strings that are not files of a workspace are
/// harmless.
fn quoted_texts(settings: &str) -> impl Iterator<Item = &str> {
    let mut is_server = false;
    let lines = settings.lines().map(str::trim).filter(move |line| {
        if line.starts_with('[') && !line.starts_with("[\"") {
            is_server = line.starts_with(CODEX_SERVERS);
        }
        !is_server
    });
    lines.flat_map(|line| line.split(['"', '\'']).skip(1).step_by(2))
}

/// Collects the commands in a JSON value.
fn add_commands(value: &Value, commands: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object.iter().filter(|(key, _)| *key != SERVERS) {
                if COMMAND_KEYS.iter().any(|ending| key.ends_with(ending)) {
                    let texts = value.as_array().into_iter().flatten().chain([value]);
                    commands.extend(texts.filter_map(Value::as_str).map(str::to_owned));
                }
                add_commands(value, commands);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_commands(value, commands)),
        _ => {}
    }
}

/// Returns the files of the workspaces in a command: the whole command or one of its words. Skips packages and build products,
/// which are replaced as a whole.
fn named_files(command: &str, workspaces: &[&Path], home: Option<&Path>) -> Vec<PathBuf> {
    let words = command.split(|c: char| c.is_whitespace() || "'\"`;&|<>()=".contains(c));
    let after = |word: &str, prefixes: &[&str]| {
        prefixes.iter().find_map(|prefix| word.strip_prefix(prefix)).map(str::to_owned)
    };
    let paths = words.chain([command]).filter(|word| word.contains('/')).flat_map(|word| {
        if let Some(rest) = after(word, &HOME) {
            return home.map(|home| home.join(rest)).into_iter().collect();
        }
        let word = after(word, &PROJECT).unwrap_or_else(|| word.to_owned());
        workspaces.iter().map(|workspace| workspace.join(&word)).collect::<Vec<_>>()
    });
    let is_named = |path: &PathBuf| {
        let below = workspaces.iter().find_map(|workspace| path.strip_prefix(workspace).ok());
        below.is_some_and(|below| !is_in_products(below)) && path.is_file()
    };
    // Include the targets of links and of `..`.
    let paths = paths.flat_map(|path| [path.canonicalize().ok(), Some(path)]).flatten();
    let is_plain = |path: &PathBuf| !path.components().any(|part| part == std::path::Component::ParentDir);
    paths.filter(|path| is_plain(path) && is_named(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn settings_commands_in_workspace_are_found() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().canonicalize().unwrap();
        let shop = home.join("shop");
        let files =
            ["hook.sh", "line.py", "server.js", "notify", "gem.sh", "other", "a/rel.sh", "node_modules/x"];
        for name in files {
            let file = shop.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let shown = shop.display();
        let settings = [
            (
                ".claude/settings.json",
                format!(
                    r#"{{"hooks": {{"Stop": [{{"hooks": [{{"type": "command", "command": "sh {shown}/hook.sh; cd x"}}]}}]}},
                        "statusLine": {{"command": "~/shop/line.py --short"}}, "apiKeyHelper": "./a/rel.sh",
                        "permissions": {{"allow": ["Edit({shown}/other)"]}}, "model": "{shown}/other"}}"#
                ),
            ),
            (
                ".codex/config.toml",
                format!(
                    "notify = [\"{shown}/notify\"]\n[projects.\"{shown}\"]\n[mcp_servers.a]\ncommand = \"{shown}/server.js\"\n"
                ),
            ),
            (
                ".gemini/settings.json",
                format!(
                    r#"{{"hooks": {{"AfterTool": [{{"command": "{shown}/a/../gem.sh {shown}/node_modules/x"}}]}},
                        "mcpServers": {{"c": {{"args": ["{shown}/server.js"]}}}}}}"#
                ),
            ),
        ];
        for (name, text) in settings {
            fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
            fs::write(home.join(name), text).unwrap();
        }
        let inherited = BTreeMap::from([("HOME".to_owned(), home.to_str().unwrap().to_owned())]);
        let found = settings_programs(&[&shop], &inherited);
        let expected = ["a/rel.sh", "gem.sh", "hook.sh", "line.py", "notify"];
        assert_eq!(found, expected.map(|name| shop.join(name)));
        assert!(settings_programs(&[Path::new("/elsewhere")], &inherited).is_empty());
    }
}
