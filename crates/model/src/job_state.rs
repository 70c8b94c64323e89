//! The states of a job, by name and with what belongs to them. Which leads to which is `progress`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Attempt, Owner, Timestamp};

/// The states by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateName {
    /// It waits to be claimed.
    Queued,
    /// An owner works on it.
    Running,
    /// It waits for a moment, such as the reset of a quota.
    Paused,
    /// Its run was lost, and somebody is clearing up behind it.
    Interrupted,
    /// The agent did it.
    Completed,
    /// The agent did not.
    Failed,
    /// A deadline ended it.
    Timeout,
    /// Somebody ended it.
    Cancelled,
}

impl StateName {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Running,
        Self::Paused,
        Self::Interrupted,
        Self::Completed,
        Self::Failed,
        Self::Timeout,
        Self::Cancelled,
    ];

    /// The name as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Interrupted => "interrupted",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
        }
    }

    /// How it ended, for the four states that are ends.
    pub fn ended(self) -> Option<TerminalState> {
        TerminalState::ALL.into_iter().find(|ended| ended.name() == self)
    }

    /// Whether the diagram has an arrow from this state to that one.
    pub fn may_become(self, next: Self) -> bool {
        use StateName as S;
        match self {
            S::Queued => matches!(next, S::Running | S::Cancelled),
            S::Running => !matches!(next, S::Queued | S::Running),
            S::Paused => matches!(next, S::Queued | S::Cancelled),
            S::Interrupted => matches!(next, S::Queued | S::Running) || next.ended().is_some(),
            S::Completed | S::Failed | S::Timeout | S::Cancelled => false,
        }
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that names no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not the state of a job", .0.escape_debug())]
pub struct BadStateName(String);

impl BadStateName {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        "use one of: queued, running, paused, interrupted, completed, failed, timeout, cancelled"
    }
}

impl FromStr for StateName {
    type Err = BadStateName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| BadStateName(text.chars().take(64).collect()))
    }
}

/// How a job ended. Nothing follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalState {
    /// The agent did it.
    Completed,
    /// The agent did not.
    Failed,
    /// A deadline ended it.
    Timeout,
    /// Somebody ended it.
    Cancelled,
}

impl TerminalState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Failed, Self::Timeout, Self::Cancelled];

    /// The state of that name.
    pub fn name(self) -> StateName {
        match self {
            Self::Completed => StateName::Completed,
            Self::Failed => StateName::Failed,
            Self::Timeout => StateName::Timeout,
            Self::Cancelled => StateName::Cancelled,
        }
    }
}

/// The state of a job, with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JobState {
    /// It waits to be claimed.
    Queued,
    /// An owner works on it.
    Running {
        /// Since which claim.
        attempt: Attempt,
        /// Who.
        owner: Owner,
    },
    /// It waits for a moment.
    Paused {
        /// Which moment.
        until: Timestamp,
    },
    /// Its run was lost. Who found that out holds it until nothing of the run is left.
    Interrupted {
        /// Which claim was lost.
        attempt: Attempt,
        /// Who clears up.
        owner: Owner,
    },
    /// It is over.
    Ended {
        /// How.
        how: TerminalState,
    },
}

impl JobState {
    /// The state's name.
    pub fn name(&self) -> StateName {
        match self {
            Self::Queued => StateName::Queued,
            Self::Running { .. } => StateName::Running,
            Self::Paused { .. } => StateName::Paused,
            Self::Interrupted { .. } => StateName::Interrupted,
            Self::Ended { how } => how.name(),
        }
    }

    /// Who holds the job, and since which claim.
    pub fn holder(&self) -> Option<(Attempt, &Owner)> {
        match self {
            Self::Running { attempt, owner } | Self::Interrupted { attempt, owner } => {
                Some((*attempt, owner))
            }
            Self::Queued | Self::Paused { .. } | Self::Ended { .. } => None,
        }
    }
}
