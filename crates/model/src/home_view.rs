//! The home directory of a sandboxed run: empty, except for exposed paths.
//!
//! A list of secrets can never be complete, so this is an allowlist. `sandbox` adds the toolchains on `PATH`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The parts of the home directory that a sandboxed run can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeView {
    /// The home directory of the caller.
    pub directory: PathBuf,
    /// Paths that the operator exposes (`sandbox.expose`) or that the agent needs.
    pub exposed: Vec<PathBuf>,
    /// Programs and scripts that run in the sandbox besides the agent. Each is exposed with its installation.
    pub programs: Vec<PathBuf>,
    /// Replacement files and the paths of the home directory at which they appear.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<(PathBuf, PathBuf)>,
}
