//! The contents of a run's `status.json`.

use serde::{Deserialize, Serialize};

use crate::{Limits, RunId, RunReport, SandboxReport};

/// The format version. Readers reject any other.
pub const STATUS_VERSION: u32 = 1;

/// The state of a run, as last written by its supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// The run.
    pub run_id: RunId,
    /// The boot id, which scopes the pids.
    pub boot_id: String,
    /// The supervisor's process.
    pub supervisor: ProcessIdentity,
    /// The start time of the agent, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// The sandbox. `None` if nothing was spawned, or in a status of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
    /// The data that lets another process enforce the limits. `None` in a status of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitClock>,
    /// The state.
    pub state: RunState,
}

/// The limits of a run and their reference time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitClock {
    /// The limits.
    pub limits: Limits,
    /// The start time in milliseconds of `CLOCK_MONOTONIC`, valid within one boot.
    pub started_monotonic_ms: u64,
}

/// The state of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The agent was running at the last write.
    Running {
        /// The agent's process, the leader of its process group.
        agent: ProcessIdentity,
    },
    /// Finished.
    Ended(RunReport),
}

/// A process identity that survives pid reuse, within one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: i32,
    /// The start time in clock ticks since boot, from `/proc/PID/stat`.
    pub start_ticks: u64,
}
