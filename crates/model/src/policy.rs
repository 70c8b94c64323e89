//! What an agent may touch.

use serde::{Deserialize, Serialize};

/// The confinement a run asks for.
///
/// A plan that names a policy which the reading program does not know cannot be parsed, so it is never run with less
/// confinement than it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// No confinement: the agent has all the rights of the user.
    #[default]
    Off,
}
