//! Counts the commits of a run that differ from the user's own: made without hooks, or unsigned.
//!
//! Reads the reflog of `HEAD` before and after the run. Does not run git, and trusts the agent's entries: the counts inform the user and
//! decide nothing. Commits that the user makes during the run count, too.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::beneath::read_regular_file;
use crate::git_commands::{GLOBAL, hooks_directory};
use crate::git_includes::{ConfigEntry, read_entries};
use crate::worktree::Repository;

/// The hooks that `git commit` runs.
const COMMIT_HOOKS: [&str; 4] = ["pre-commit", "prepare-commit-msg", "commit-msg", "post-commit"];

/// The maximum size of a reflog.
const MAX_LOG_BYTES: u64 = 64 << 20;

/// A watch over a repository whose commits differ in a run.
#[derive(Debug)]
pub struct CommitWatch {
    log: PathBuf,
    bytes_before: usize,
    has_hooks: bool,
    is_signed: bool,
}

/// The number of commits of a run that differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CountedCommits {
    /// Commits without hooks in a repository that has some.
    pub without_hooks: u32,
    /// Commits without a signature of a user who signs.
    pub unsigned: u32,
}

impl CommitWatch {
    /// Starts to watch the repository around a working directory. Returns `None` if its commits do not differ.
    pub fn start(cwd: &Path, env: &BTreeMap<String, String>) -> Option<Self> {
        let repository = Repository::find(cwd).ok()??;
        let home = env.get("HOME").map(Path::new);
        let global: Vec<PathBuf> = home.iter().flat_map(|home| GLOBAL.map(|name| home.join(name))).collect();
        let own = ["config", "config.worktree"].map(|name| repository.common.join(name));
        let disables_hooks = |(name, value): (&String, &String)| {
            name.starts_with("GIT_CONFIG_KEY_") && value.eq_ignore_ascii_case("core.hookspath")
        };
        let has_hooks = env.iter().any(disables_hooks) && {
            let path = last_value(&own, "core", "hookspath");
            let path = path.or_else(|| last_value(&global, "core", "hookspath"));
            has_commit_hooks(&repository, path.as_deref(), home)
        };
        // If the repository itself requires signatures, commits are signed or fail.
        let is_signed = last_value(&own, "commit", "gpgsign").is_none()
            && last_value(&global, "commit", "gpgsign").is_some_and(|value| is_true(&value));
        if !has_hooks && !is_signed {
            return None;
        }
        let log = repository.own.join("logs/HEAD");
        let bytes_before = read_regular_file(&log, MAX_LOG_BYTES).map_or(0, |log| log.len());
        Some(Self { log, bytes_before, has_hooks, is_signed })
    }

    /// Counts the commits since the start.
    pub fn count(&self) -> CountedCommits {
        let log = read_regular_file(&self.log, MAX_LOG_BYTES).unwrap_or_default();
        let new = String::from_utf8_lossy(log.get(self.bytes_before..).unwrap_or_default());
        let is_commit =
            |line: &&str| line.split_once('\t').is_some_and(|(_, message)| message.starts_with("commit"));
        let commits = u32::try_from(new.lines().filter(is_commit).count()).unwrap_or(u32::MAX);
        CountedCommits {
            without_hooks: if self.has_hooks { commits } else { 0 },
            unsigned: if self.is_signed { commits } else { 0 },
        }
    }
}

/// Returns whether git runs hooks for a commit. Hooks of husky need not be executable: its wrappers run them.
fn has_commit_hooks(repository: &Repository, path: Option<&str>, home: Option<&Path>) -> bool {
    let is_husky = path.is_some_and(|path| path.trim_end_matches('/').ends_with("/_"));
    let hooks = path.and_then(|path| hooks_directory(path, &repository.worktree, home));
    let hooks = hooks.unwrap_or_else(|| repository.common.join("hooks"));
    let runs = |path: PathBuf| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && (is_husky || found.permissions().mode() & 0o111 != 0))
    };
    COMMIT_HOOKS.iter().any(|name| runs(hooks.join(name)))
}

/// Returns the last value of a setting in configuration files. Includes are not followed: their conditions are unknown here.
fn last_value(files: &[PathBuf], section: &str, key: &str) -> Option<String> {
    let entries = files.iter().flat_map(|file| read_entries(file));
    let values = entries.filter(|entry| entry.section == section && entry.key == key);
    values.map(|ConfigEntry { value, .. }| value).next_back()
}

fn is_true(value: &str) -> bool {
    ["true", "yes", "on", "1"].iter().any(|word| value.eq_ignore_ascii_case(word))
}
