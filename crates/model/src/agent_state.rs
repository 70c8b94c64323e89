//! The state directory of a confined agent: which of its paths outlive the run.
//!
//! An agent obeys most of its own state: settings, instructions, shell snapshots, programs that it installs there. So the list says
//! the kept paths, and everything else is read-only or a private copy that is discarded with the run. `sandbox` builds that view.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The state directory of a confined agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentState {
    /// The directory, at the place where the agent expects it. Created when it is missing.
    pub directory: PathBuf,
    /// The variable that leads the agent to the directory, or to the directory above it.
    pub variable: Option<String>,
    /// The paths that the agent writes and that outlive the run.
    pub kept: Vec<KeptPath>,
    /// Names in the directory that the agent starts without; `*` at one end stands for anything.
    pub discarded: Vec<String>,
}

/// A path below a state directory that an agent writes and that outlives the run. All paths are relative.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptPath {
    /// A directory, created when it is missing.
    Directory(PathBuf),
    /// A file, if it exists: a login, which the agent refreshes in place.
    File(PathBuf),
    /// The directory of one project, created when it is missing.
    Project {
        /// The directory.
        path: PathBuf,
        /// Directories in it that stay as they are, since later sessions obey them. Created when they are missing.
        read_only: Vec<String>,
    },
    /// Every directory below `parent` that contains `entry`: the project of a session that started elsewhere.
    Containing {
        /// The directory of all projects.
        parent: PathBuf,
        /// The name of the session's file.
        entry: String,
        /// As in [`KeptPath::Project`].
        read_only: Vec<String>,
    },
    /// The directory below `parent` that names its owner in a file. Created under the first free name when there is none.
    Owned {
        /// The directory of all projects.
        parent: PathBuf,
        /// The file in each project's directory that names the owner.
        marker: String,
        /// The text of that file.
        owner: String,
        /// The name to create it by, followed by a number where that is taken.
        name: String,
        /// As in [`KeptPath::Project`].
        read_only: Vec<String>,
    },
}

impl AgentState {
    /// Returns whether the agent starts without an entry of this name.
    pub fn is_discarded(&self, name: &str) -> bool {
        self.discarded.iter().any(|pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (_, Some(start)) => name.starts_with(start),
            _ => name == pattern,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_names_match_whole_or_by_one_end() {
        let discarded = ["tmp", "*.sqlite", "logs_*"].map(str::to_owned).to_vec();
        let state = AgentState { directory: "/s".into(), variable: None, kept: Vec::new(), discarded };
        assert!(["tmp", "state_5.sqlite", "logs_2.sqlite-wal"].iter().all(|name| state.is_discarded(name)));
        assert!(["tmp2", "state.sqlite3", "my_logs_"].iter().all(|name| !state.is_discarded(name)));
    }
}
