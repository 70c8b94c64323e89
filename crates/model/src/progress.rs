//! Where a job stands, and which steps lead on from there.
//!
//! Owns the state diagram as one pure function, [`Progress::apply`]. A store keeps what the function answers and decides
//! nothing itself, so every engine has the same diagram.
//!
//! ```text
//! queued ─► running ─► completed | failed | timeout | cancelled
//!   ▲         │  ├───► paused (until) ─► queued
//!   │         │  └───► interrupted ─┬─► queued, while attempts are left
//!   │         ◄─ adopted ───────────┤
//!   └───────────────────────────────┴─► completed | failed | timeout | cancelled
//! queued, paused ─► cancelled
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{JobId, JobState, StateName, TerminalState, Timestamp};

/// Who works on a job: one daemon, from its start to its end. A daemon that starts again is another owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(String);

impl Owner {
    /// The owner of that name, which nobody else may ever have had.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The number of a claim of a job, growing with every one: what fences off the late word of an earlier owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(u32);

impl Attempt {
    /// The attempt of that number; the first is 1, and 0 is none yet.
    pub fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
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

/// How long an owner counts as alive without a further word. It holds for every job that the owner has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Who.
    pub owner: Owner,
    /// Until when.
    pub expires_at: Timestamp,
}

/// The right to speak for a job: a job, who holds it, and since which claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// Which job.
    pub job: JobId,
    /// Which claim of it.
    pub attempt: Attempt,
    /// Who holds it.
    pub owner: Owner,
}

/// A step that somebody wants a job to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// An owner takes a queued job.
    Claim {
        /// Who.
        owner: Owner,
    },
    /// A pause may be over.
    Wake,
    /// The holder has to wait.
    Pause {
        /// The holder's right.
        claim: Claim,
        /// Until when.
        until: Timestamp,
    },
    /// The holder has lost its run.
    Interrupt {
        /// The holder's right.
        claim: Claim,
    },
    /// Somebody takes a job from an owner that is dead or silent for too long.
    Rescue {
        /// From whom.
        from: Owner,
        /// Who clears up.
        rescuer: Owner,
    },
    /// Somebody goes on with a run that is alive though its owner is not.
    Adopt {
        /// The right of the old owner, or of the rescuer.
        claim: Claim,
        /// Who goes on.
        owner: Owner,
    },
    /// Nothing is left of a lost run: the job may be claimed again.
    Requeue {
        /// The right of who cleared up.
        claim: Claim,
    },
    /// The holder has brought the job to its end.
    Finish {
        /// The holder's right.
        claim: Claim,
        /// How it ended.
        how: TerminalState,
    },
    /// Somebody wants the job to end.
    Cancel,
}

impl Transition {
    /// The step's name.
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

/// Why a step does not exist from where the job stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// The job has ended. Whatever ended it first stays.
    #[error("the job has already ended as {}", .0.name())]
    Ended(TerminalState),
    /// Somebody else holds the job by now, or nobody.
    #[error("the claim (attempt {attempt} of `{owner}`) no longer holds the job, which is {now}")]
    Stale {
        /// The attempt that spoke.
        attempt: Attempt,
        /// The owner that spoke.
        owner: Owner,
        /// The state of the job.
        now: StateName,
    },
    /// The diagram has no such arrow.
    #[error("a job that is {from} cannot take the step `{step}`")]
    NoSuchTransition {
        /// The state of the job.
        from: StateName,
        /// The step's name.
        step: &'static str,
    },
    /// It was begun as often as it may be.
    #[error("the job was interrupted and has no attempt left of {max_attempts}")]
    NoAttemptLeft {
        /// How often it may be begun.
        max_attempts: u32,
    },
}

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Its state.
    #[serde(flatten)]
    pub state: JobState,
    /// The last claim.
    pub attempt: Attempt,
    /// How often it was queued again after an interruption. A pause does not count: nothing went wrong.
    pub requeues: u32,
    /// How often it may be begun, interruptions included.
    pub max_attempts: u32,
    /// When somebody first wanted it to end.
    pub cancel_requested_at: Option<Timestamp>,
}

impl Progress {
    /// Where every job begins.
    pub fn queued(max_attempts: u32) -> Self {
        Self {
            state: JobState::Queued,
            attempt: Attempt::default(),
            requeues: 0,
            max_attempts,
            cancel_requested_at: None,
        }
    }

    /// Whether it may be queued again after an interruption.
    pub fn has_attempt_left(&self) -> bool {
        self.requeues.saturating_add(1) < self.max_attempts
    }

    /// Where the job stands after the step, or why it cannot take it.
    pub fn apply(&self, step: &Transition, now: Timestamp) -> Result<Self, TransitionError> {
        if let JobState::Ended { how } = self.state {
            return Err(TransitionError::Ended(how));
        }
        match step {
            Transition::Claim { owner } => self.claimed(owner).ok_or_else(|| self.no_such(step)),
            Transition::Wake => match self.state {
                JobState::Paused { until } if until <= now => Ok(self.with(JobState::Queued)),
                _ => Err(self.no_such(step)),
            },
            Transition::Rescue { from, rescuer } => match self.state.holder() {
                Some((attempt, owner)) if owner == from => {
                    Ok(self.with(JobState::Interrupted { attempt, owner: rescuer.clone() }))
                }
                _ => Err(self.no_such(step)),
            },
            Transition::Cancel => Ok(self.cancelled(now)),
            Transition::Pause { claim, until } => {
                self.running(claim, step)?;
                Ok(self.with(JobState::Paused { until: *until }).unless_cancelled())
            }
            Transition::Interrupt { claim } => {
                self.running(claim, step)?;
                let Claim { attempt, owner, .. } = claim.clone();
                Ok(self.with(JobState::Interrupted { attempt, owner }))
            }
            Transition::Adopt { claim, owner } => {
                self.held_by(claim)?;
                Ok(self.with(JobState::Running { attempt: claim.attempt, owner: owner.clone() }))
            }
            Transition::Requeue { claim } => self.requeued(claim, step),
            Transition::Finish { claim, how } => {
                self.held_by(claim)?;
                Ok(self.with(JobState::Ended { how: *how }))
            }
        }
    }

    fn claimed(&self, owner: &Owner) -> Option<Self> {
        let attempt = self.attempt.next();
        let state = JobState::Running { attempt, owner: owner.clone() };
        (self.state == JobState::Queued).then(|| Self { attempt, ..self.with(state) })
    }

    fn requeued(&self, claim: &Claim, step: &Transition) -> Result<Self, TransitionError> {
        self.held_by(claim)?;
        if self.state.name() != StateName::Interrupted {
            return Err(self.no_such(step));
        }
        if self.cancel_requested_at.is_none() && !self.has_attempt_left() {
            return Err(TransitionError::NoAttemptLeft { max_attempts: self.max_attempts });
        }
        Ok(Self { requeues: self.requeues + 1, ..self.with(JobState::Queued) }.unless_cancelled())
    }

    /// A job that nobody holds is over at once; one that somebody holds goes on until its holder has ended it.
    fn cancelled(&self, now: Timestamp) -> Self {
        let requested =
            Self { cancel_requested_at: Some(self.cancel_requested_at.unwrap_or(now)), ..self.clone() };
        if self.state.holder().is_some() { requested } else { requested.unless_cancelled() }
    }

    /// A job that is to end does not wait for anything any more.
    fn unless_cancelled(self) -> Self {
        match self.cancel_requested_at {
            Some(_) => Self { state: JobState::Ended { how: TerminalState::Cancelled }, ..self },
            None => self,
        }
    }

    fn with(&self, state: JobState) -> Self {
        Self { state, ..self.clone() }
    }

    fn held_by(&self, claim: &Claim) -> Result<(), TransitionError> {
        if self.state.holder() == Some((claim.attempt, &claim.owner)) {
            return Ok(());
        }
        let Claim { attempt, owner, .. } = claim.clone();
        Err(TransitionError::Stale { attempt, owner, now: self.state.name() })
    }

    fn running(&self, claim: &Claim, step: &Transition) -> Result<(), TransitionError> {
        self.held_by(claim)?;
        if self.state.name() == StateName::Running { Ok(()) } else { Err(self.no_such(step)) }
    }

    fn no_such(&self, step: &Transition) -> TransitionError {
        TransitionError::NoSuchTransition { from: self.state.name(), step: step.name() }
    }
}

#[cfg(test)]
mod tests;
