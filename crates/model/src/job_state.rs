//! The states of a job. `progress` defines the transitions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Attempt, Owner, Timestamp};

/// The names of the states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateName {
    /// Waits for a claim.
    Queued,
    /// Claimed by an owner.
    Running,
    /// Waits until a time, for example the reset of a quota.
    Paused,
    /// Its run was lost; an owner is cleaning up.
    Interrupted,
    /// The agent succeeded.
    Completed,
    /// The agent failed.
    Failed,
    /// A deadline has passed.
    Timeout,
    /// Canceled.
    Cancelled,
}

impl StateName {
    /// All states.
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

    /// Returns the serialized name.
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

    /// Returns the terminal state of this name, if it is terminal.
    pub fn ended(self) -> Option<TerminalState> {
        TerminalState::ALL.into_iter().find(|ended| ended.name() == self)
    }

    /// Returns whether the state diagram has a transition from this state to `next`.
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

/// A text that is not the name of a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not the state of a job", .0.escape_debug())]
pub struct BadStateName(String);

impl BadStateName {
    /// Returns the remedy.
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

/// The terminal states of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalState {
    /// The agent succeeded.
    Completed,
    /// The agent failed.
    Failed,
    /// A deadline has passed.
    Timeout,
    /// Canceled.
    Cancelled,
}

impl TerminalState {
    /// All terminal states.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Failed, Self::Timeout, Self::Cancelled];

    /// Returns the name of the state.
    pub fn name(self) -> StateName {
        match self {
            Self::Completed => StateName::Completed,
            Self::Failed => StateName::Failed,
            Self::Timeout => StateName::Timeout,
            Self::Cancelled => StateName::Cancelled,
        }
    }
}

/// The state of a job with its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JobState {
    /// Waits for a claim.
    Queued,
    /// Claimed by an owner.
    Running {
        /// The attempt.
        attempt: Attempt,
        /// The owner.
        owner: Owner,
    },
    /// Waits until a time.
    Paused {
        /// The time.
        until: Timestamp,
    },
    /// Its run was lost. The owner that noticed keeps the claim until the process tree is gone.
    Interrupted {
        /// The lost attempt.
        attempt: Attempt,
        /// The owner that cleans up.
        owner: Owner,
    },
    /// Terminal.
    Ended {
        /// The terminal state.
        how: TerminalState,
    },
}

impl JobState {
    /// Returns the name of the state.
    pub fn name(&self) -> StateName {
        match self {
            Self::Queued => StateName::Queued,
            Self::Running { .. } => StateName::Running,
            Self::Paused { .. } => StateName::Paused,
            Self::Interrupted { .. } => StateName::Interrupted,
            Self::Ended { how } => how.name(),
        }
    }

    /// Returns the attempt and the owner of a claimed job.
    pub fn holder(&self) -> Option<(Attempt, &Owner)> {
        match self {
            Self::Running { attempt, owner } | Self::Interrupted { attempt, owner } => {
                Some((*attempt, owner))
            }
            Self::Queued | Self::Paused { .. } | Self::Ended { .. } => None,
        }
    }
}
