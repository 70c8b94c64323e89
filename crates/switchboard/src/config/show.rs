//! Formats the effective settings with their sources, and the reference of all keys.

use std::fmt::Write;

use agents::{AgentProfiles, DefaultVariables};
use model::RunId;
use protocol::{HOME_VARIABLE, ProcessEnvironment, SwitchboardHome};
use serde_json::json;

use super::keys::{ConfigKey, KEYS, KeyDefault};
use super::settings::EffectiveSettings;

/// Formats the effective settings as TOML, each line with its source. The text is a valid configuration file.
pub fn as_toml(home: &SwitchboardHome, settings: &EffectiveSettings) -> String {
    let no_file = if settings.has_file { "" } else { " (does not exist)" };
    let mut text = format!(
        "# file: {}{no_file}\n# state: {}\n# log: {}\n\n",
        home.config_file().display(),
        home.state().display(),
        home.log_file().display()
    );
    let mut section = String::new();
    for (name, setting) in &settings.all {
        let (its_section, own) = name.parts();
        if its_section != section {
            section = its_section;
            let _ = write!(text, "\n[{section}]\n");
        }
        let line = format!("{own} = {}", setting.value);
        let _ = writeln!(text, "{line:<44} # {}", setting.source);
    }
    text
}

/// Formats the effective settings as JSON.
pub fn as_json(home: &SwitchboardHome, settings: &EffectiveSettings) -> serde_json::Value {
    let all = settings.all.iter().map(|(name, setting)| {
        let (section, own) = name.parts();
        let key = if section.is_empty() { own } else { format!("{section}.{own}") };
        json!({"key": key, "value": setting.value, "source": setting.source})
    });
    json!({
        "file": home.config_file().to_string_lossy(),
        "file_exists": settings.has_file,
        "state": home.state().to_string_lossy(),
        "socket_directories": home.socket_directories().iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
        "log": home.log_file().to_string_lossy(),
        "settings": all.collect::<Vec<_>>(),
    })
}

/// Returns unknown variables that resemble a known one, each with the known one.
pub fn misspelled_variables(environment: &ProcessEnvironment) -> Vec<(String, String)> {
    let known: Vec<String> = KEYS.iter().filter_map(ConfigKey::variable).collect();
    let near = |name: &str| {
        let distance = |known: &&String| strsim::damerau_levenshtein(name, known);
        known.iter().find(|known| (1..=2).contains(&distance(known))).cloned()
    };
    let not_settings = [HOME_VARIABLE, RunId::VARIABLE];
    let ours =
        environment.names().filter(|name| name.starts_with("SWITCHBOARD_") && !not_settings.contains(name));
    ours.filter_map(|name| Some((name.to_owned(), near(name)?))).collect()
}

const INTRODUCTION: &str = "\
# Configuration

Printed by `switchboard config --reference`; a test compares this page with it.

The file is `config.toml` in `$SWITCHBOARD_HOME`, else in `$XDG_CONFIG_HOME/switchboard`, else in `~/.config/switchboard`. It is
optional. An unknown key is an error that names its line and the closest known key. The file must belong to you or to root and must
not be writable by other users, because it decides which programs are started.

A value comes from the first of these sources that sets it: a command-line option, an environment variable, the file, the default. A
list in a variable is separated by commas. `switchboard config` prints each effective value with its source (`--json` for programs).
The daemon reads its configuration at startup. After a later change, `switchboard status`, `config` and `doctor` name the keys that
differ; run `switchboard stop --now`, and the next call starts a daemon with the new values. Running jobs continue.

Agents are found and started with the environment of the caller, not with that of the daemon: `switchboard call` sends its `PATH`,
proxies, locale, the agents' own variables (`ANTHROPIC_*`, `CODEX_HOME` …) and those of `pass_env`. An agent that you installed or a key
that you exported after the daemon started is therefore used. `programs.*` takes precedence over `PATH`. Calls over HTTP, from the web
page and from inside another call use the environment of the daemon.

```toml
store = \"sqlite:\"
idle_stop = \"8h\"

[limits]
at_once = 4
per_agent.claude = 2

[models.claude]
default = \"sonnet\"

[cwd_aliases]
shop = \"~/shop\"

[repositories.\"~/shop\"]
worktree = true
worktree_setup = \"npm ci\"
```
";

/// Returns the reference of all keys, in Markdown.
pub fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
    let mut section = None;
    for key in KEYS {
        if section != Some(key.section()) {
            section = Some(key.section());
            let title = if key.section().is_empty() {
                "Top level".to_owned()
            } else {
                format!("`[{}]`", key.section())
            };
            let _ = write!(
                text,
                "\n## {title}\n\n| key | takes | default | variable | meaning |\n| --- | --- | --- | --- | --- |\n"
            );
        }
        let own = key.name.rsplit('.').next().unwrap_or_default();
        let variable = key.variable().map_or_else(|| "none".to_owned(), |name| format!("`{name}`"));
        let _ = writeln!(
            text,
            "| `{own}` | {} | {} | {variable} | {} |",
            key.kind,
            describe_default(&key.default),
            key.meaning
        );
    }
    append_agent_variables(&mut text);
    text
}

/// Appends the section about the environment of agents.
fn append_agent_variables(text: &mut String) {
    text.push_str(
        "\n## Variables of agents\n\n\
         An agent gets these variables of its caller, those that `pass_env` names, and no others. `XDG_RUNTIME_DIR` is not among them. These \
         are never passed: `LD_*`, `DYLD_*`, `BASH_ENV`, `ENV` and `NODE_OPTIONS`, which run code in the agent; `CLAUDECODE`, \
         `CLAUDE_CODE_ENTRYPOINT` and `CLAUDE_CODE_SSE_PORT`, which make it believe that it is nested in another agent; and `GIT_CONFIG_*`, \
         `FILE_TOOLS_ROOT` and `SWITCHBOARD_RUN_ID`, which Switchboard sets.\n\n\
         | agent | variables |\n| --- | --- |\n",
    );
    let mut row = |agent: &str, own: DefaultVariables| {
        let names = own.names.iter().map(|name| format!("`{name}`"));
        let all: Vec<String> = names.chain(own.prefixes.iter().map(|start| format!("`{start}*`"))).collect();
        let _ = writeln!(text, "| {agent} | {} |", all.join(", "));
    };
    row("all", DefaultVariables::common());
    for profile in AgentProfiles::default().iter() {
        if profile.variables != DefaultVariables::default() {
            row(profile.agent.name(), profile.variables.clone());
        }
    }
}

fn describe_default(default: &KeyDefault) -> String {
    match default {
        KeyDefault::NotSet => "not set".to_owned(),
        KeyDefault::Dynamic(words) => (*words).to_owned(),
        other => other.value().map(|value| format!("`{value}`")).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reference_matches_docs_page() {
        let page =
            fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md")).unwrap();
        assert!(page == reference(), "run `switchboard config --reference > docs/configuration.md`");
    }

    #[test]
    fn misspelled_variable_is_reported() {
        let environment: ProcessEnvironment = [("SWITCHBOARD_STROE", "x"), ("SWITCHBOARD_HOME", "/x")].into();
        let expected = [("SWITCHBOARD_STROE".to_owned(), "SWITCHBOARD_STORE".to_owned())];
        assert_eq!(misspelled_variables(&environment), expected);
    }

    #[test]
    fn printed_settings_round_trip() {
        let root = tempfile::tempdir().unwrap();
        let home =
            SwitchboardHome::from_environment(&[("SWITCHBOARD_HOME", root.path().to_str().unwrap())].into())
                .unwrap();
        let read = || EffectiveSettings::read(Some(&home), &ProcessEnvironment::default(), &[]).unwrap();
        let text = "store = \"sqlite:/x # y\"\nlabels = [\"a, \\\"b\"]\n[models.claude]\n\"a.b \\\" c\" = \"x-1\"\n\
             [repositories.\"/srv/a.b\"]\nworktree_setup = \"x\"\nworktree = true\n[repositories.\"/srv/\\\"c\"]\nworktree = true\n\
             [repositories.\"/srv/d\"]\nworktree_setup = \"y\"\n";
        fs::write(home.config_file(), text).unwrap();
        let first = read();
        let printed = as_toml(&home, &first);
        fs::write(home.config_file(), &printed).unwrap();
        let values = |settings: &EffectiveSettings| {
            settings
                .all
                .iter()
                .map(|(name, setting)| (name.clone(), setting.value.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(values(&read()), values(&first), "{printed}");
        assert!(printed.contains("config.toml line 4"), "{printed}");
    }
}
