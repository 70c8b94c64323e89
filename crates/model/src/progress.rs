//! The progress of a job, and its transitions.
//!
//! Owns the state diagram as one pure function, [`Progress::apply`]. A store only persists its results, so all engines have the
//! same diagram.
//!
//! ```text
//! queued ─► running ─► completed | failed | timeout | cancelled
//!   ▲         │  ├───► paused (until) ─► queued
//!   │         │  └───► interrupted ─┬─► queued, while attempts are left
//!   │         ◄─ adopted ───────────┤
//!   └───────────────────────────────┴─► completed | failed | timeout | cancelled
//! queued, paused ─► cancelled
//! ```

mod record;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{JobId, JobState, StateName, TerminalState, Timestamp};

/// The owner of a claim: one daemon process. A restarted daemon is another owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(String);

impl Owner {
    /// Returns the owner with this name, which must be globally unique.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The number of a claim, incremented with each claim of a job: the fencing token against writes of an earlier owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(u32);

impl Attempt {
    /// Returns the attempt with this number. The first is 1; 0 means no claim yet.
    pub fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub fn number(self) -> u32 {
        self.0
    }

    fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The lease of an owner, for all its jobs. An owner counts as dead when it has not renewed the lease in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The owner.
    pub owner: Owner,
    /// The expiry.
    pub expires_at: Timestamp,
}

/// The claim of an owner on a job. Every write for the job must present it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: Attempt,
    /// The owner.
    pub owner: Owner,
}

/// A requested transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// An owner claims a queued job.
    Claim {
        /// The owner.
        owner: Owner,
    },
    /// A pause may have expired.
    Wake,
    /// The owner pauses the job.
    Pause {
        /// The owner's claim.
        claim: Claim,
        /// The end of the pause.
        until: Timestamp,
    },
    /// The owner lost the run.
    Interrupt {
        /// The owner's claim.
        claim: Claim,
    },
    /// Another owner takes a job from a dead owner.
    Rescue {
        /// The dead owner.
        from: Owner,
        /// The owner that cleans up.
        rescuer: Owner,
    },
    /// A new owner re-attaches to the live run of a dead owner.
    Adopt {
        /// The claim of the dead owner, or of the rescuer.
        claim: Claim,
        /// The new owner.
        owner: Owner,
    },
    /// The process tree of a lost run is gone: the job is queued again.
    Requeue {
        /// The claim of the owner that cleaned up.
        claim: Claim,
    },
    /// The owner finishes the job.
    Finish {
        /// The owner's claim.
        claim: Claim,
        /// The terminal state.
        how: TerminalState,
    },
    /// A client requests cancellation.
    Cancel,
}

impl Transition {
    /// Returns the name of the transition.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Claim { .. } => "claim",
            Self::Wake => "wake",
            Self::Pause { .. } => "pause",
            Self::Interrupt { .. } => "interrupt",
            Self::Rescue { .. } => "rescue",
            Self::Adopt { .. } => "adopt",
            Self::Requeue { .. } => "requeue",
            Self::Finish { .. } => "finish",
            Self::Cancel => "cancel",
        }
    }
}

/// The reason why a transition is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// The job is already in a terminal state. The first terminal state wins.
    #[error("the job is already {}", .0.name())]
    Ended(TerminalState),
    /// The claim is stale: the job has another owner, or none.
    #[error("the claim (attempt {attempt} of `{owner}`) no longer holds the job, which is {now}")]
    Stale {
        /// The attempt of the claim.
        attempt: Attempt,
        /// The owner of the claim.
        owner: Owner,
        /// The current state.
        now: StateName,
    },
    /// The state diagram has no such transition.
    #[error("cannot {step} a job that is {from}")]
    NoSuchTransition {
        /// The current state.
        from: StateName,
        /// The name of the transition.
        step: &'static str,
    },
    /// No attempts are left.
    #[error("the job was interrupted and all {max_attempts} attempts are used")]
    NoAttemptLeft {
        /// The maximum number of attempts.
        max_attempts: u32,
    },
}

/// The state of a job with its attempt counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "record::ProgressRecord", into = "record::ProgressRecord")]
pub struct Progress {
    /// The state.
    pub state: JobState,
    /// The last attempt.
    pub attempt: Attempt,
    /// The number of requeues after interruptions. Pauses do not count.
    pub requeues: u32,
    /// The maximum number of attempts, interruptions included.
    pub max_attempts: u32,
    /// The time of the first cancellation request.
    pub cancel_requested_at: Option<Timestamp>,
}

impl Progress {
    /// Returns the progress of a new job.
    pub fn queued(max_attempts: u32) -> Self {
        Self {
            state: JobState::Queued,
            attempt: Attempt::default(),
            requeues: 0,
            max_attempts,
            cancel_requested_at: None,
        }
    }

    /// Returns whether the job may be requeued after an interruption.
    pub fn has_attempt_left(&self) -> bool {
        self.requeues.saturating_add(1) < self.max_attempts
    }

    /// Applies a transition. Returns the new progress, or the reason for the rejection.
    pub fn apply(&self, transition: &Transition, now: Timestamp) -> Result<Self, TransitionError> {
        if let JobState::Ended { how } = self.state {
            return Err(TransitionError::Ended(how));
        }
        match transition {
            Transition::Claim { owner } => self.claimed(owner).ok_or_else(|| self.rejection(transition)),
            Transition::Wake => match self.state {
                JobState::Paused { until } if until <= now => Ok(self.with_state(JobState::Queued)),
                _ => Err(self.rejection(transition)),
            },
            Transition::Rescue { from, rescuer } => match self.state.holder() {
                Some((attempt, owner)) if owner == from => {
                    Ok(self.with_state(JobState::Interrupted { attempt, owner: rescuer.clone() }))
                }
                _ => Err(self.rejection(transition)),
            },
            Transition::Cancel => Ok(self.cancelled(now)),
            Transition::Pause { claim, until } => {
                self.check_running(claim, transition)?;
                Ok(self.with_state(JobState::Paused { until: *until }).cancel_if_requested())
            }
            Transition::Interrupt { claim } => {
                self.check_running(claim, transition)?;
                let Claim { attempt, owner, .. } = claim.clone();
                Ok(self.with_state(JobState::Interrupted { attempt, owner }))
            }
            Transition::Adopt { claim, owner } => {
                self.check_claim(claim)?;
                Ok(self.with_state(JobState::Running { attempt: claim.attempt, owner: owner.clone() }))
            }
            Transition::Requeue { claim } => self.requeued(claim, transition),
            Transition::Finish { claim, how } => {
                self.check_claim(claim)?;
                Ok(self.with_state(JobState::Ended { how: *how }))
            }
        }
    }

    fn claimed(&self, owner: &Owner) -> Option<Self> {
        let attempt = self.attempt.next();
        let state = JobState::Running { attempt, owner: owner.clone() };
        (self.state == JobState::Queued).then(|| Self { attempt, ..self.with_state(state) })
    }

    fn requeued(&self, claim: &Claim, transition: &Transition) -> Result<Self, TransitionError> {
        self.check_claim(claim)?;
        if self.state.name() != StateName::Interrupted {
            return Err(self.rejection(transition));
        }
        if self.cancel_requested_at.is_none() && !self.has_attempt_left() {
            return Err(TransitionError::NoAttemptLeft { max_attempts: self.max_attempts });
        }
        Ok(Self { requeues: self.requeues + 1, ..self.with_state(JobState::Queued) }.cancel_if_requested())
    }

    /// Cancels an unclaimed job immediately. A claimed job stays claimed until its owner has stopped the run.
    fn cancelled(&self, now: Timestamp) -> Self {
        let requested =
            Self { cancel_requested_at: Some(self.cancel_requested_at.unwrap_or(now)), ..self.clone() };
        if self.state.holder().is_some() { requested } else { requested.cancel_if_requested() }
    }

    /// Turns a waiting job with a cancellation request into a canceled one.
    fn cancel_if_requested(self) -> Self {
        match self.cancel_requested_at {
            Some(_) => Self { state: JobState::Ended { how: TerminalState::Cancelled }, ..self },
            None => self,
        }
    }

    fn with_state(&self, state: JobState) -> Self {
        Self { state, ..self.clone() }
    }

    fn check_claim(&self, claim: &Claim) -> Result<(), TransitionError> {
        if self.state.holder() == Some((claim.attempt, &claim.owner)) {
            return Ok(());
        }
        let Claim { attempt, owner, .. } = claim.clone();
        Err(TransitionError::Stale { attempt, owner, now: self.state.name() })
    }

    fn check_running(&self, claim: &Claim, transition: &Transition) -> Result<(), TransitionError> {
        self.check_claim(claim)?;
        if self.state.name() == StateName::Running { Ok(()) } else { Err(self.rejection(transition)) }
    }

    fn rejection(&self, transition: &Transition) -> TransitionError {
        TransitionError::NoSuchTransition { from: self.state.name(), step: transition.name() }
    }
}

#[cfg(test)]
mod tests;
