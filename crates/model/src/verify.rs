//! The verification of an agent's work.

use serde::{Deserialize, Serialize};

/// The maximum length of a command, in bytes.
pub const MAX_COMMAND_BYTES: usize = 16 * 1024;

/// The maximum number of repairs.
pub const MAX_REPAIRS: u32 = 10;

/// A command of the caller that runs after the agent, in its sandbox and directory. The call fails if the command does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifySpec {
    /// The command, for `sh -c`.
    pub command: String,
    /// How many times a failure is sent back into the session.
    #[serde(default)]
    pub repairs: u32,
    /// Globs of files that are restored to their state before the call first, relative to the top of the git worktree.
    #[serde(default)]
    pub protect: Vec<String>,
}

impl VerifySpec {
    /// Returns the verification by a command, without repairs and protected files.
    pub fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), repairs: 0, protect: Vec::new() }
    }
}
