//! Reads the files of a workspace and of the user that a launch depends on.
//!
//! Owns the list of files and their size limits; [`crate::launch`] decides how to use them. A workspace is untrusted: its files
//! are opened beneath the repository (`RESOLVE_BENEATH`), so that a symbolic link cannot show the agent a file that its sandbox
//! hides.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use model::{AgentKind, CallSpec, CheckoutSource};
use regular_file::open_linked;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::settings_programs::settings_programs;
use crate::user_configuration::read_configuration;
use crate::{FileReferences, GitSettings};

/// The limit of passed instructions, the same as codex's own.
const MAX_INSTRUCTIONS: u64 = 32 * 1024;
/// The size limit of an agent definition.
const MAX_DEFINITION: u64 = 64 * 1024;
/// The size limit of the user's `.claude.json`, which contains the history of every project.
const MAX_USER_FILE: u64 = 256 * 1024 * 1024;

/// The relevant contents of a workspace and of the user's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkspaceFiles {
    /// The directories from the repository's root to the working directory, or only the latter outside of a repository.
    pub directories: Vec<PathBuf>,
    /// The working directory or a directory above it contains `.git`.
    pub has_repository: bool,
    /// The working directory contains settings that no flag disables (gemini).
    pub has_settings: bool,
    /// The directories with instructions that claude reads if they are added to the call.
    pub instruction_dirs: Vec<PathBuf>,
    /// Instructions that the agent does not read in an untrusted workspace: `AGENTS.md` (codex), `CLAUDE.local.md` (claude).
    pub instructions: String,
    /// The named agent of the call, if the workspace defines it.
    pub agent: Option<AgentDefinition>,
    /// The user's MCP servers in claude's configuration, global and of this project.
    pub user_servers: Map<String, Value>,
    /// Absolute paths of programs and scripts of the user's MCP servers.
    pub user_programs: Vec<PathBuf>,
    /// Files in the workspaces that commands in the user's agent settings refer to.
    pub settings_programs: Vec<PathBuf>,
    /// The user's git settings.
    pub git: GitSettings,
    /// References in the prompt that gemini would replace by files.
    pub references: FileReferences,
}

/// A named agent without hooks and servers, in the format of `claude --agents`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentDefinition {
    /// The purpose.
    pub description: String,
    /// The system prompt.
    pub prompt: String,
    /// The tools. `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// The disabled tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disallowed_tools: Option<Vec<String>>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Reads the files of a call's workspace, and of the user with this environment.
pub fn inspect_workspace(spec: &CallSpec, inherited: &BTreeMap<String, String>) -> WorkspaceFiles {
    let root = repository_root(&spec.cwd);
    let directories = from_the_root_down(root.unwrap_or(&spec.cwd), &spec.cwd);
    let workspaces: Vec<_> = [&spec.cwd].into_iter().chain(&spec.add_dirs).map(PathBuf::as_path).collect();
    let mut found = WorkspaceFiles::default();
    if !spec.policy.is_off() && spec.agent != AgentKind::Rehearsal {
        found.settings_programs = settings_programs(&workspaces, inherited);
    }
    match spec.agent {
        AgentKind::Claude => {
            let has_instructions = |dir: &&PathBuf| {
                ["CLAUDE.md", ".claude/CLAUDE.md", ".claude/rules"].iter().any(|name| dir.join(name).exists())
            };
            found.instruction_dirs = directories.iter().filter(has_instructions).cloned().collect();
            found.instructions = instructions(&directories, &["CLAUDE.local.md"]);
            let name = spec.agent_name.as_ref().map(|name| format!(".claude/agents/{name}.md"));
            found.agent = name.and_then(|name| nearest_definition(&directories, &name));
            found.user_servers = user_servers(&directories, inherited);
            found.user_programs = server_programs(found.user_servers.values());
        }
        AgentKind::Codex => {
            found.instructions = instructions(&directories, &["AGENTS.override.md", "AGENTS.md"]);
            found.user_programs = codex_programs(inherited);
        }
        AgentKind::Gemini => {
            // A dangling link counts: its target may exist when the agent reads it.
            found.has_settings = spec.cwd.join(".gemini").symlink_metadata().is_ok();
            found.user_programs = gemini_programs(inherited);
            found.references = FileReferences::find(&spec.prompt, &workspaces);
        }
        AgentKind::Rehearsal | AgentKind::Profiled(_) => {}
    }
    let git = GitSettings::read(inherited);
    WorkspaceFiles { directories, has_repository: root.is_some(), git, ..found }
}

/// Adds the programs in a private checkout that the user's settings name in the worktree behind it.
pub fn protect_programs_of_checkout(
    found: &mut WorkspaceFiles,
    source: &CheckoutSource,
    inherited: &BTreeMap<String, String>,
) {
    let programs = settings_programs(&[&source.worktree], inherited);
    found.settings_programs.extend(programs.iter().map(|path| source.relocate(path)));
}

/// File extensions of scripts in the arguments of MCP servers.
const SCRIPTS: &[&str] = &["cjs", "js", "mjs", "py", "rb", "sh", "ts"];

/// Returns the programs of servers: their commands, and the scripts in their arguments.
fn server_programs<'a>(servers: impl Iterator<Item = &'a Value>) -> Vec<PathBuf> {
    let texts = servers.flat_map(|server| {
        let args = server["args"].as_array().into_iter().flatten();
        server["command"].as_str().into_iter().chain(args.filter_map(Value::as_str))
    });
    texts.map(PathBuf::from).filter(|path| is_program(path)).collect()
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let is_script = path.extension().is_some_and(|end| SCRIPTS.iter().any(|script| end == *script));
    let Some(found) = path.metadata().ok().filter(|_| path.is_absolute()) else { return false };
    found.is_file() && (is_script || found.permissions().mode() & 0o111 != 0)
}

/// Returns the programs of gemini's servers.
fn gemini_programs(inherited: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let base = inherited.get("GEMINI_CLI_HOME").or_else(|| inherited.get("HOME"));
    let settings = base.and_then(|base| read_configuration(&Path::new(base).join(".gemini/settings.json")));
    let settings: Value = settings.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    server_programs(settings["mcpServers"].as_object().into_iter().flat_map(Map::values))
}

/// Returns the programs of codex's servers. Reads only quoted strings in the TOML tables of servers.
fn codex_programs(inherited: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let own = inherited.get("CODEX_HOME").map(PathBuf::from);
    let own = own.or_else(|| Some(Path::new(inherited.get("HOME")?).join(".codex")));
    let text = own.and_then(|own| read_configuration(&own.join("config.toml"))).unwrap_or_default();
    let mut programs = Vec::new();
    let mut is_server = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') && !line.starts_with("[\"") {
            is_server = line.starts_with("[mcp_servers.");
        }
        if is_server {
            let quoted = line.split(['"', '\'']).skip(1).step_by(2).map(PathBuf::from);
            programs.extend(quoted.filter(|path| is_program(path)));
        }
    }
    programs
}

fn repository_root(cwd: &Path) -> Option<&Path> {
    cwd.ancestors().find(|dir| dir.join(".git").exists())
}

fn from_the_root_down(root: &Path, cwd: &Path) -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> =
        cwd.ancestors().take_while(|dir| dir.starts_with(root)).map(Path::to_owned).collect();
    directories.reverse();
    directories
}

/// Returns the first existing file of `names` in each directory, with its path as a heading.
fn instructions(directories: &[PathBuf], names: &[&str]) -> String {
    let Some(root) = directories.first() else { return String::new() };
    let mut text = String::new();
    for dir in directories {
        let left = MAX_INSTRUCTIONS.saturating_sub(text.len() as u64);
        let first = names
            .iter()
            .map(|name| dir.join(name))
            .find_map(|path| Some((read_beneath(root, &path, left)?, path)));
        if let Some((content, path)) = first.filter(|(content, _)| !content.trim().is_empty()) {
            let (path, content) = (path.display(), content.trim());
            // Writing to a `String` cannot fail.
            let _ = write!(text, "Contents of {path} (project instructions):\n\n{content}\n\n");
        }
    }
    text
}

/// Reads a regular file beneath `root`, following links, up to a limit. Replaces control characters by spaces, because the text
/// becomes an argument.
fn read_beneath(root: &Path, path: &Path, limit: u64) -> Option<String> {
    let relative = path.strip_prefix(root).ok()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd = openat2(CWD, root, flags, Mode::empty(), ResolveFlags::empty()).ok()?;
    // Do not block on a FIFO without a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(openat2(root, relative, flags, Mode::empty(), beneath).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).ok()?;
    let plain = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { ' ' } else { c };
    Some(String::from_utf8_lossy(&bytes).chars().map(plain).collect())
}

fn nearest_definition(directories: &[PathBuf], name: &str) -> Option<AgentDefinition> {
    let root = directories.first()?;
    let texts =
        directories.iter().rev().filter_map(|dir| read_beneath(root, &dir.join(name), MAX_DEFINITION));
    texts.map(|text| AgentDefinition::parse(&text)).next()
}

impl AgentDefinition {
    /// Parses the Markdown of a definition. Ignores all other keys of the front matter: hooks and servers would run code.
    fn parse(text: &str) -> Self {
        let body = |rest: &str| rest.trim_start_matches('-').trim().to_owned();
        let Some((front, rest)) = text.strip_prefix("---\n").and_then(|text| text.split_once("\n---")) else {
            return Self { prompt: text.trim().to_owned(), ..Self::default() };
        };
        let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut key = "";
        for line in front.lines() {
            match line.split_once(':') {
                Some((name, value)) if !line.starts_with([' ', '\t', '-', '#']) => {
                    key = name.trim();
                    values.insert(key, vec![value]);
                }
                _ => values.entry(key).or_default().push(line),
            }
        }
        let list = |key: &str| {
            let words = values.get(key)?.iter().flat_map(|line| line.split(['[', ']', ',']));
            let words = words.map(|word| unquoted(word.trim().trim_start_matches("- ")));
            Some(words.filter(|word| !word.is_empty()).map(str::to_owned).collect())
        };
        let text = |key: &str| {
            let lines = values.get(key)?.iter().map(|line| line.trim());
            let lines: Vec<&str> = lines.filter(|line| !matches!(*line, "" | "|" | ">")).collect();
            Some(unquoted(&lines.join(" ")).to_owned()).filter(|text| !text.is_empty())
        };
        Self {
            description: text("description").unwrap_or_default(),
            prompt: body(rest),
            tools: list("tools"),
            disallowed_tools: list("disallowedTools"),
            model: text("model"),
        }
    }
}

fn unquoted(text: &str) -> &str {
    let within = |quote| text.strip_prefix(quote).and_then(|text: &str| text.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(text)
}

/// The servers in `.claude.json`.
#[derive(Deserialize, Default)]
struct ClaudeFile {
    #[serde(rename = "mcpServers", default)]
    servers: Map<String, Value>,
    #[serde(default)]
    projects: BTreeMap<PathBuf, ClaudeProject>,
}

#[derive(Deserialize, Default)]
struct ClaudeProject {
    #[serde(rename = "mcpServers", default)]
    servers: Map<String, Value>,
}

/// Reads the user's servers. Claude reads them from the home directory unless its configuration directory is set, as it is in a
/// sandbox.
fn user_servers(directories: &[PathBuf], inherited: &BTreeMap<String, String>) -> Map<String, Value> {
    let place = inherited.get("CLAUDE_CONFIG_DIR").or_else(|| inherited.get("HOME"));
    let Some(path) = place.map(|dir| Path::new(dir).join(".claude.json")) else { return Map::new() };
    let Ok(file) = open_linked(&path) else { return Map::new() };
    let reader = std::io::BufReader::new(file.take(MAX_USER_FILE));
    let file: ClaudeFile = serde_json::from_reader(reader).unwrap_or_default();
    let of_project = directories.iter().filter_map(|dir| file.projects.get(dir));
    let mut servers = file.servers;
    servers.extend(of_project.flat_map(|project| project.servers.clone()));
    servers
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn at(agent: AgentKind, cwd: &Path) -> WorkspaceFiles {
        inspect_workspace(&CallSpec::new(agent, "hi", cwd), &BTreeMap::new())
    }

    #[test]
    fn instructions_are_ordered_from_repository_root() {
        let place = tempfile::tempdir().unwrap();
        let (root, sub) = (place.path().join("repo"), place.path().join("repo/a/b"));
        fs::create_dir_all(&sub).unwrap();
        fs::create_dir(root.join(".git")).unwrap();
        fs::write(place.path().join("AGENTS.md"), "outside").unwrap();
        fs::write(root.join("AGENTS.md"), "first").unwrap();
        fs::write(sub.join("AGENTS.md"), "passed over").unwrap();
        fs::write(sub.join("AGENTS.override.md"), "second\u{1b}[0m").unwrap();
        let found = at(AgentKind::Codex, &sub);
        assert_eq!(found.directories, [root.clone(), root.join("a"), sub.clone()]);
        let expected = format!(
            "Contents of {}/AGENTS.md (project instructions):\n\nfirst\n\n\
             Contents of {}/AGENTS.override.md (project instructions):\n\nsecond [0m\n\n",
            root.display(),
            sub.display()
        );
        assert_eq!(found.instructions, expected);
    }

    #[test]
    fn instructions_linked_from_outside_are_skipped() {
        let place = tempfile::tempdir().unwrap();
        let work = place.path().join("work");
        fs::create_dir(&work).unwrap();
        fs::write(place.path().join("key"), "secret").unwrap();
        symlink(place.path().join("key"), work.join("AGENTS.md")).unwrap();
        assert_eq!(at(AgentKind::Codex, &work).instructions, "");
        fs::remove_file(work.join("AGENTS.md")).unwrap();
        fs::write(work.join("README.md"), "shared").unwrap();
        symlink("README.md", work.join("AGENTS.md")).unwrap();
        assert!(at(AgentKind::Codex, &work).instructions.contains("shared"));
    }

    #[test]
    fn long_instructions_are_truncated() {
        let work = tempfile::tempdir().unwrap();
        fs::write(work.path().join("AGENTS.md"), "x".repeat(100_000)).unwrap();
        assert!(at(AgentKind::Codex, work.path()).instructions.len() < 40_000);
    }

    #[test]
    fn agent_definition_drops_hooks_and_servers() {
        let text = "---\nname: helper\ndescription: \"Helps: a lot\"\ntools: Read, Bash(git *)\nmodel: opus\n\
                    hooks:\n  Stop:\n    - command: evil\nmcpServers:\n  - evil\n---\n\nYou help.\n";
        let expected = AgentDefinition {
            description: "Helps: a lot".to_owned(),
            prompt: "You help.".to_owned(),
            tools: Some(vec!["Read".to_owned(), "Bash(git *)".to_owned()]),
            disallowed_tools: None,
            model: Some("opus".to_owned()),
        };
        assert_eq!(AgentDefinition::parse(text), expected);
        let listed = AgentDefinition::parse("---\ndisallowedTools:\n  - Bash\n  - 'Edit'\n---\nx");
        assert_eq!(listed.disallowed_tools, Some(vec!["Bash".to_owned(), "Edit".to_owned()]));
        assert_eq!(AgentDefinition::parse("Just a prompt.").prompt, "Just a prompt.");
    }

    #[test]
    fn project_servers_override_user_servers() {
        let home = tempfile::tempdir().unwrap();
        let file = r#"{"numStartups":1,"mcpServers":{"a":{"command":"x"},"b":{"command":"y"}},
            "projects":{"/w":{"mcpServers":{"b":{"command":"z"}}},"/other":{"mcpServers":{"c":{}}}}}"#;
        fs::write(home.path().join(".claude.json"), file).unwrap();
        let inherited = BTreeMap::from([("HOME".to_owned(), home.path().to_str().unwrap().to_owned())]);
        let spec = CallSpec::new(AgentKind::Claude, "hi", "/w");
        let servers = inspect_workspace(&spec, &inherited).user_servers;
        assert_eq!(Value::from(servers), serde_json::json!({"a": {"command": "x"}, "b": {"command": "z"}}));
    }
}
