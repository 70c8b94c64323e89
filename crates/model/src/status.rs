//! What stands in a run's `status.json`, at its start and at its end.

use serde::{Deserialize, Serialize};

use crate::{Limits, RunId, RunReport, SandboxReport};

/// The version of the format that this crate writes; a reader refuses any other.
pub const STATUS_VERSION: u32 = 1;

/// The state of one run, as its supervisor last wrote it down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// Which run.
    pub run_id: RunId,
    /// The boot of the machine in which every pid here was given out.
    pub boot_id: String,
    /// The process that owns the run.
    pub supervisor: ProcessIdentity,
    /// When the agent was started, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// What confines it; none when nothing was started, or when an older version wrote this down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
    /// What lets another process enforce the limits; none when an older version wrote this down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitClock>,
    /// Where the run is.
    pub state: RunState,
}

/// The limits of a run and the moment they count from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitClock {
    /// The limits.
    pub limits: Limits,
    /// When the run started, in milliseconds of `CLOCK_MONOTONIC`; means something within one boot.
    pub started_monotonic_ms: u64,
}

/// Where a run is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// The agent is alive, as far as its supervisor has written.
    Running {
        /// The agent's own process, which leads its process group.
        agent: ProcessIdentity,
    },
    /// It is over.
    Ended(RunReport),
}

/// A process that cannot be mistaken for a later one with the same pid, within one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: i32,
    /// When it started, in clock ticks since boot, as the kernel tells it.
    pub start_ticks: u64,
}
