//! The serialized form of [`Progress`]: one flat object in which the attempt occurs once.

use serde::{Deserialize, Serialize};

use super::{Attempt, Owner, Progress};
use crate::{JobState, TerminalState, Timestamp};

#[derive(Serialize, Deserialize)]
pub struct ProgressRecord {
    #[serde(flatten)]
    state: StateRecord,
    attempt: Attempt,
    requeues: u32,
    max_attempts: u32,
    cancel_requested_at: Option<Timestamp>,
}

/// A [`JobState`] without its attempt.
#[derive(Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum StateRecord {
    Queued,
    Running { owner: Owner },
    Paused { until: Timestamp },
    Interrupted { owner: Owner },
    Ended { how: TerminalState },
}

impl From<Progress> for ProgressRecord {
    fn from(progress: Progress) -> Self {
        let Progress { state, attempt, requeues, max_attempts, cancel_requested_at } = progress;
        let state = match state {
            JobState::Queued => StateRecord::Queued,
            JobState::Running { owner, .. } => StateRecord::Running { owner },
            JobState::Paused { until } => StateRecord::Paused { until },
            JobState::Interrupted { owner, .. } => StateRecord::Interrupted { owner },
            JobState::Ended { how } => StateRecord::Ended { how },
        };
        Self { state, attempt, requeues, max_attempts, cancel_requested_at }
    }
}

impl From<ProgressRecord> for Progress {
    fn from(record: ProgressRecord) -> Self {
        let ProgressRecord { state, attempt, requeues, max_attempts, cancel_requested_at } = record;
        let state = match state {
            StateRecord::Queued => JobState::Queued,
            StateRecord::Running { owner } => JobState::Running { attempt, owner },
            StateRecord::Paused { until } => JobState::Paused { until },
            StateRecord::Interrupted { owner } => JobState::Interrupted { attempt, owner },
            StateRecord::Ended { how } => JobState::Ended { how },
        };
        Self { state, attempt, requeues, max_attempts, cancel_requested_at }
    }
}
