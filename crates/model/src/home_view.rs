//! The home directory of a confined run: absent, except for the parts that are exposed.
//!
//! A list of secrets can never be complete, so this is a list of exposed paths. `sandbox` adds the toolchains that `PATH` leads to.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The parts of the home directory that a confined run sees, all of them read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeView {
    /// The home directory of the caller.
    pub directory: PathBuf,
    /// Paths that the operator exposes (`sandbox.expose`) or that the agent itself needs.
    pub exposed: Vec<PathBuf>,
    /// Programs and scripts that run in the sandbox besides the agent; each is exposed with its installation.
    pub programs: Vec<PathBuf>,
    /// Files of the home directory that another file stands in for: each with its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<(PathBuf, PathBuf)>,
}
