//! The state directory of a sandboxed agent, and its persistent paths.
//!
//! An agent executes or obeys most of its own state: settings, instructions, shell snapshots, installed programs. So this is an
//! allowlist of persistent paths; everything else is read-only, or a private copy that is discarded with the run. `sandbox`
//! builds the view.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

/// The state directory of a sandboxed agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentState {
    /// The directory. Created if missing.
    pub directory: PathBuf,
    /// The variable that points to the directory or to its parent.
    pub variable: Option<String>,
    /// The persistent paths.
    pub kept: Vec<KeptPath>,
    /// Entries that are hidden from the agent. A `*` at the start or the end is a wildcard.
    pub discarded: Vec<String>,
}

/// A persistent path below a state directory. All paths are relative.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptPath {
    /// A directory, created if missing.
    Directory(PathBuf),
    /// A file, if it exists: a login, which the agent refreshes in place.
    File(PathBuf),
    /// The directory of a project, created if missing.
    Project {
        /// The directory.
        path: PathBuf,
        /// Subdirectories that stay read-only, because later sessions obey them. Created if missing.
        read_only: Vec<String>,
    },
    /// Every directory below `parent` that contains `entry`: the project of a session that started in another directory.
    Containing {
        /// The directory of all projects.
        parent: PathBuf,
        /// The name of the session's file.
        entry: String,
        /// As in [`KeptPath::Project`].
        read_only: Vec<String>,
    },
    /// The directory below `parent` with a marker file that names its owner. Created under the first free name if there is none.
    Owned {
        /// The directory of all projects.
        parent: PathBuf,
        /// The marker file in each project directory.
        marker: String,
        /// The contents of the marker file.
        owner: String,
        /// The name of a new directory, with a number appended if it exists.
        name: String,
        /// As in [`KeptPath::Project`].
        read_only: Vec<String>,
    },
}

impl AgentState {
    /// Returns whether an entry is hidden from the agent.
    pub fn is_discarded(&self, name: &str) -> bool {
        self.discarded.iter().any(|pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (_, Some(start)) => name.starts_with(start),
            _ => name == pattern,
        })
    }
}

/// Reads a list of states, or the single state of earlier records.
pub(crate) fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AgentState>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stored {
        More(Vec<AgentState>),
        One(AgentState),
    }
    Ok(match Stored::deserialize(deserializer)? {
        Stored::More(states) => states,
        Stored::One(state) => vec![state],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_names_match_exactly_or_by_wildcard() {
        let discarded = ["tmp", "*.sqlite", "logs_*"].map(str::to_owned).to_vec();
        let state = AgentState { directory: "/s".into(), variable: None, kept: Vec::new(), discarded };
        assert!(["tmp", "state_5.sqlite", "logs_2.sqlite-wal"].iter().all(|name| state.is_discarded(name)));
        assert!(["tmp2", "state.sqlite3", "my_logs_"].iter().all(|name| !state.is_discarded(name)));
    }
}
