//! The state directory of each agent, and its persistent paths in a sandboxed run.
//!
//! Owns the lists, derived from the profiles in `profiles/`, which record the files that each tested version reads and writes in
//! the home directory. An agent obeys nearly everything else in its state: settings, instructions, skills, shell snapshots,
//! installed programs. A sandboxed agent that could write those would run commands in the next call, sandboxed or not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{AgentKind, AgentState, CallSpec, ExpectedSession, KeptPath};

use crate::LaunchError;

/// Directories of a project that later sessions read as instructions.
const MEMORY: &[&str] = &["memory"];

/// The longest name of a claude project directory that does not end in a hash.
const CLAUDE_MAX_PROJECT: usize = 200;

/// Entries of claude's state that are hidden from a run.
const CLAUDE_DISCARDED: &[&str] = &[
    // Sourced by the shell of every tool call.
    "session-env",
    "shell-snapshots",
    // Tokens for running editors.
    "ide",
    // Processes of this machine, which a sandboxed run cannot see.
    "daemon",
    "jobs",
    "sessions",
    "backups",
    "cache",
    "debug",
    "file-history",
    "image-cache",
    "paste-cache",
    "projects",
    "statsig",
    "tasks",
    "telemetry",
    "todos",
];

/// Entries of codex's state that are hidden from a run. Its databases are rebuilt from the sessions and cannot be copied: a
/// write-ahead log would not match the copy.
const CODEX_DISCARDED: &[&str] = &[
    // Helper programs, first in the `PATH` of a running codex.
    "tmp",
    ".tmp",
    // Sourced by the shell of every tool call.
    "shell_snapshots",
    "cache",
    "log",
    "*.sqlite",
    "*.sqlite-journal",
    "*.sqlite-shm",
    "*.sqlite-wal",
];

/// Entries of gemini's state that are hidden from a run.
const GEMINI_DISCARDED: &[&str] = &[
    // Git repositories, whose configuration git obeys.
    "history", // Contains the downloaded search program besides the sessions.
    "tmp",
];

/// The state directory of an agent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StateDirectory {
    kind: AgentKind,
    path: PathBuf,
    /// The variable that points to it.
    pub variable: &'static str,
    /// The value of the variable: the directory, or for gemini its parent.
    pub variable_value: PathBuf,
}

impl StateDirectory {
    /// Returns the state directory: a private one, the configured one, or the one in the home directory.
    pub fn find(
        kind: AgentKind,
        private: Option<PathBuf>,
        inherited: &BTreeMap<String, String>,
    ) -> Option<Self> {
        let given = |name: &str| inherited.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let in_home = |name: &str| Some(given("HOME")?.join(name));
        let (variable, variable_value) = match kind {
            AgentKind::Claude => {
                // Set even to the default, or claude would write `~/.claude.json`, which is outside of it.
                let variable = "CLAUDE_CONFIG_DIR";
                (variable, private.or_else(|| given(variable)).or_else(|| in_home(".claude"))?)
            }
            AgentKind::Codex => {
                let variable = "CODEX_HOME";
                (variable, private.or_else(|| given(variable)).or_else(|| in_home(".codex"))?)
            }
            AgentKind::Gemini => {
                let variable = "GEMINI_CLI_HOME";
                (variable, private.or_else(|| given(variable)).or_else(|| given("HOME"))?)
            }
            AgentKind::Rehearsal => return None,
        };
        let path = match kind {
            AgentKind::Gemini => variable_value.join(".gemini"),
            _ => variable_value.clone(),
        };
        Some(Self { kind, path, variable, variable_value })
    }

    /// Returns the state of the agent with the persistent paths of a call.
    pub fn profile(&self, spec: &CallSpec, session: &ExpectedSession) -> Result<AgentState, LaunchError> {
        let (kept, discarded) = match self.kind {
            AgentKind::Claude => (keep_claude(spec, session)?, CLAUDE_DISCARDED),
            AgentKind::Codex => (keep_codex(), CODEX_DISCARDED),
            AgentKind::Gemini => (keep_gemini(spec)?, GEMINI_DISCARDED),
            AgentKind::Rehearsal => (Vec::new(), &[] as &[&str]),
        };
        Ok(AgentState {
            directory: self.path.clone(),
            variable: Some(self.variable.to_owned()),
            kept,
            discarded: discarded.iter().map(|name| (*name).to_owned()).collect(),
        })
    }
}

fn files<'a>(names: &'a [&'a str]) -> impl Iterator<Item = KeptPath> + 'a {
    names.iter().map(|name| KeptPath::File(name.into()))
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn text(path: &Path) -> Result<&str, LaunchError> {
    path.to_str().ok_or_else(|| LaunchError::NotUnicode { directory: path.to_owned() })
}

/// Returns the transcripts of the directory's sessions and of a session resumed from elsewhere, the task list and the login.
fn keep_claude(spec: &CallSpec, session: &ExpectedSession) -> Result<Vec<KeptPath>, LaunchError> {
    let mut kept: Vec<KeptPath> = files(&[".credentials.json"]).collect();
    let projects = PathBuf::from("projects");
    match claude_project(text(&spec.cwd)?) {
        Some(name) => kept.push(KeptPath::Project { path: projects.join(name), read_only: owned(MEMORY) }),
        None => kept.push(KeptPath::Directory(projects.clone())),
    }
    let (old, new) = match session {
        ExpectedSession::Assigned(id) => (None, Some(id)),
        ExpectedSession::Resumed(id) => (Some(id), Some(id)),
        ExpectedSession::Forked { from, into } => (Some(from), into.as_ref()),
        ExpectedSession::Latest | ExpectedSession::Any => (None, None),
    };
    if let Some(id) = old {
        let entry = format!("{id}.jsonl");
        kept.push(KeptPath::Containing { parent: projects, entry, read_only: owned(MEMORY) });
    }
    kept.extend(new.map(|id| KeptPath::Directory(Path::new("tasks").join(id.as_str()))));
    Ok(kept)
}

/// Returns the name of claude's directory for the sessions of a working directory. `None` if claude shortens it.
fn claude_project(cwd: &str) -> Option<String> {
    // Claude replaces UTF-16 code units.
    let plain = |c: char| {
        let is_kept = c.is_ascii_alphanumeric();
        std::iter::repeat_n(if is_kept { c } else { '-' }, if is_kept { 1 } else { c.len_utf16() })
    };
    Some(cwd.chars().flat_map(plain).collect::<String>()).filter(|name| name.len() <= CLAUDE_MAX_PROJECT)
}

/// Returns the sessions, their locks, which other codex processes check, and the logins.
fn keep_codex() -> Vec<KeptPath> {
    let directories = ["sessions", "thread-writer-locks"].map(|name| KeptPath::Directory(name.into()));
    directories.into_iter().chain(files(&["auth.json", ".credentials.json"])).collect()
}

/// Returns the directory of the project's sessions, which gemini finds by the path in its marker file, and the logins.
fn keep_gemini(spec: &CallSpec) -> Result<Vec<KeptPath>, LaunchError> {
    let owner = text(&spec.cwd)?.to_owned();
    let base = spec.cwd.file_name().and_then(|name| name.to_str()).unwrap_or("project");
    let mut name = String::new();
    for c in base.to_lowercase().chars() {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            name.push(c);
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = match name.trim_end_matches('-') {
        // The directory of its search program.
        "" | "bin" => "project".to_owned(),
        name => name.to_owned(),
    };
    let project = KeptPath::Owned {
        parent: "tmp".into(),
        marker: ".project_root".to_owned(),
        owner,
        name,
        read_only: owned(MEMORY),
    };
    let logins = [
        "oauth_creds.json",
        "google_accounts.json",
        "gemini-credentials.json",
        "mcp-oauth-tokens.json",
        "mcp-oauth-tokens-v2.json",
    ];
    Ok(files(&logins).chain([project]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_directory_names_match_claude() {
        let name = |cwd: &str| claude_project(cwd);
        assert_eq!(name("/var/tmp/my-2.1_x").as_deref(), Some("-var-tmp-my-2-1-x"));
        assert_eq!(name("/ö/𝄞").as_deref(), Some("-----"));
        assert_eq!(name(&format!("/{}", "x".repeat(200))), None);
    }

    #[test]
    fn programs_and_shell_snapshots_do_not_persist() {
        for kind in [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini] {
            let inherited = BTreeMap::from([("HOME".to_owned(), "/home/ana".to_owned())]);
            let state = StateDirectory::find(kind, None, &inherited).unwrap();
            let spec = CallSpec::new(kind, "x", "/home/ana/shop");
            let profile = state.profile(&spec, &ExpectedSession::Any).unwrap();
            assert!(profile.directory.starts_with("/home/ana"), "{profile:?}");
            let forbidden =
                ["local", "packages", "shell-snapshots", "shell_snapshots", "session-env", "bin", ".env"];
            for kept in &profile.kept {
                let path = match kept {
                    KeptPath::Directory(path) | KeptPath::File(path) | KeptPath::Project { path, .. } => path,
                    KeptPath::Containing { parent, .. } | KeptPath::Owned { parent, .. } => parent,
                };
                assert!(!forbidden.iter().any(|name| path.starts_with(name)), "{kept:?}");
            }
        }
    }
}
