//! The persistent paths of a sandboxed run in the state directories of its agent.
//!
//! Derived from the recordings in `profiles/`, which list the files that each tested version reads and writes in the home directory. An agent obeys nearly everything else in its state: settings, instructions, skills, shell snapshots,
//! installed programs. A sandboxed agent that could write those would run commands in the next call, sandboxed or not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{AgentState, CallSpec, ExpectedSession, KeptPath};

use crate::LaunchError;
use crate::profile::{KeptRule, StateRule};

/// Directories of a project that later sessions read as instructions.
const MEMORY: &[&str] = &["memory"];

/// The longest name of a claude project directory that does not end in a hash.
const CLAUDE_MAX_PROJECT: usize = 200;

/// A state directory of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StateDirectory<'a> {
    rule: &'a StateRule,
    path: PathBuf,
    /// The variable that a sandboxed run gets, and its value: the directory, or for gemini its parent.
    pub variable: Option<(&'a str, PathBuf)>,
}

impl<'a> StateDirectory<'a> {
    /// Returns a state directory: below a private one, the configured one, or the one in the home directory.
    pub fn find(
        rule: &'a StateRule,
        private: Option<&Path>,
        inherited: &BTreeMap<String, String>,
    ) -> Option<Self> {
        let Some(variable) = &rule.variable else {
            return Some(Self { rule, path: rule.directory(inherited)?, variable: None });
        };
        let path = match private {
            Some(private) => variable.directory(private),
            None => rule.directory(inherited)?,
        };
        let is_set = variable.is_set || private.is_some();
        let levels = Path::new(&variable.below).components().count();
        let value = path.ancestors().nth(levels)?.to_owned();
        Some(Self { rule, path, variable: is_set.then_some((variable.name.as_str(), value)) })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the state of the agent with the persistent paths of a call.
    pub fn profile(&self, spec: &CallSpec, session: &ExpectedSession) -> Result<AgentState, LaunchError> {
        let kept = match &self.rule.kept {
            KeptRule::Claude => keep_claude(spec, session)?,
            KeptRule::Codex => keep_codex(),
            KeptRule::Gemini => keep_gemini(spec)?,
            KeptRule::All => vec![KeptPath::Directory(PathBuf::new())],
            KeptRule::Paths { directories, files } => {
                let directories = directories.iter().map(|name| KeptPath::Directory(name.into()));
                directories.chain(files.iter().map(|name| KeptPath::File(name.into()))).collect()
            }
        };
        Ok(AgentState {
            directory: self.path.clone(),
            variable: self.rule.variable.as_ref().map(|variable| variable.name.clone()),
            kept,
            discarded: self.rule.discarded.clone(),
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
    use crate::AgentProfiles;

    #[test]
    fn project_directory_names_match_claude() {
        let name = |cwd: &str| claude_project(cwd);
        assert_eq!(name("/var/tmp/my-2.1_x").as_deref(), Some("-var-tmp-my-2-1-x"));
        assert_eq!(name("/ö/𝄞").as_deref(), Some("-----"));
        assert_eq!(name(&format!("/{}", "x".repeat(200))), None);
    }

    #[test]
    fn programs_and_shell_snapshots_do_not_persist() {
        let profiles = AgentProfiles::default();
        for (agent, rule) in
            profiles.iter().flat_map(|profile| profile.states.iter().map(|rule| (profile.agent, rule)))
        {
            let inherited = BTreeMap::from([("HOME".to_owned(), "/home/ana".to_owned())]);
            let state = StateDirectory::find(rule, None, &inherited).unwrap();
            let spec = CallSpec::new(agent, "x", "/home/ana/shop");
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
