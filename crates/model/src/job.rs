//! The durable record of a call: what was asked, where it stands, and what came of it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{
    CallSpec, Claim, ExchangeId, Failure, FailureKind, JobId, Lease, Outcome, Progress, SessionId,
    TerminalState, Timestamp, Verdict,
};

/// Where a job can be run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// On that machine, where its folder is.
    Host(String),
    /// On every machine that answers to that label.
    Label(String),
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => write!(f, "host:{name}"),
            Self::Label(name) => write!(f, "label:{name}"),
        }
    }
}

/// A text that names no home.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is neither a host nor a label", .0.escape_debug())]
pub struct BadPlacement(String);

impl BadPlacement {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        "write host:NAME or label:NAME"
    }
}

impl FromStr for Placement {
    type Err = BadPlacement;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("host", name)) if !name.is_empty() => Ok(Self::Host(name.to_owned())),
            Some(("label", name)) if !name.is_empty() => Ok(Self::Label(name.to_owned())),
            _ => Err(BadPlacement(text.chars().take(64).collect())),
        }
    }
}

/// A call that is to become a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewJob {
    /// What is asked.
    pub call: CallSpec,
    /// The tool through which it was asked (`call_cc`).
    pub tool: String,
    /// What the caller calls the task; the last session is remembered by it.
    pub task: String,
    /// Where it can be run.
    pub home: Placement,
    /// The caller's own name for this call: asked twice with the same key, it is one job.
    pub idempotency_key: Option<String>,
    /// The job on whose behalf it is asked.
    pub parent: Option<JobId>,
    /// Whether the caller goes away instead of waiting.
    pub fire_and_forget: bool,
    /// Whether the caller wants the agent's events with the answer.
    pub expose_stream: bool,
    /// How often it may be begun, when its runs are lost.
    pub max_attempts: u32,
}

impl NewJob {
    /// How often a job may be begun when nobody says otherwise.
    pub const MAX_ATTEMPTS: u32 = 3;

    /// A job with nothing but a call, a tool and a home. The task is called like the tool.
    pub fn new(call: CallSpec, tool: impl Into<String>, home: Placement) -> Self {
        let tool = tool.into();
        Self {
            call,
            task: tool.clone(),
            tool,
            home,
            idempotency_key: None,
            parent: None,
            fire_and_forget: false,
            expose_stream: false,
            max_attempts: Self::MAX_ATTEMPTS,
        }
    }
}

/// A job, with all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its name.
    pub id: JobId,
    /// What was asked, and how.
    pub order: NewJob,
    /// Where it stands.
    pub progress: Progress,
    /// Who holds it, and for how long that counts; none when nobody does, or when the owner never said a word.
    pub lease: Option<Lease>,
    /// When it was placed.
    pub created_at: Timestamp,
    /// When it was first claimed.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// How long its runs took in milliseconds, once it has ended.
    #[serde(default)]
    pub duration_ms: Option<u64>,
    /// The vendor's conversation, as soon as it is known.
    pub session: Option<SessionId>,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
    /// What its last run came to.
    pub outcome: Option<Outcome>,
    /// Its prompt and answer, kept as a record of their own.
    pub exchange: Option<ExchangeId>,
    /// What else was kept with the end, as JSON text: the agent's events, when the caller asked for them.
    pub metadata: Option<String>,
    /// Grows by one with every change of the record.
    pub revision: u64,
}

impl Job {
    /// A job that has just been placed.
    pub fn new(id: JobId, order: NewJob, at: Timestamp) -> Self {
        Self {
            id,
            progress: Progress::queued(order.max_attempts),
            order,
            lease: None,
            created_at: at,
            started_at: None,
            completed_at: None,
            duration_ms: None,
            session: None,
            failure: None,
            outcome: None,
            exchange: None,
            metadata: None,
            revision: 1,
        }
    }

    /// The right to speak for it, of whoever holds it now.
    pub fn claim(&self) -> Option<Claim> {
        let (attempt, owner) = self.progress.state.holder()?;
        Some(Claim { job: self.id, attempt, owner: owner.clone() })
    }
}

/// What is kept when a job ends.
#[derive(Debug, Clone, PartialEq)]
pub struct JobEnd {
    /// How it ended.
    pub how: TerminalState,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
    /// What the last run came to; none when there was no run. Session, tokens and cost are read from it.
    pub outcome: Option<Outcome>,
    /// What was said, when something was.
    pub exchange: Option<NewExchange>,
    /// What else is to be kept, as JSON text.
    pub metadata: Option<String>,
    /// When the run was over that ended it; none when it ends by being told so.
    pub ended_at: Option<Timestamp>,
    /// Whether the model answered, if only in part. Only then is the session the one that `continue_latest` resumes.
    pub has_answer: bool,
}

impl JobEnd {
    /// The end of a job that no run has brought about.
    pub fn failed(failure: Failure) -> Self {
        Self::new(TerminalState::Failed, Some(failure), None)
    }

    /// The end of a job that was cancelled while nothing of it ran any more.
    pub fn cancelled() -> Self {
        Self::new(TerminalState::Cancelled, None, None)
    }

    fn new(how: TerminalState, failure: Option<Failure>, outcome: Option<Outcome>) -> Self {
        let has_answer = outcome.as_ref().is_some_and(Outcome::has_answer);
        Self { how, failure, outcome, exchange: None, metadata: None, ended_at: None, has_answer }
    }

    /// The same end, with what was said.
    #[must_use]
    pub fn with_exchange(self, prompt: impl Into<String>, response: impl Into<String>) -> Self {
        let exchange = NewExchange { prompt: prompt.into(), response: response.into() };
        Self { exchange: Some(exchange), ..self }
    }
}

/// The end that a run has brought about.
impl From<Outcome> for JobEnd {
    fn from(outcome: Outcome) -> Self {
        let (how, failure) = match &outcome.verdict {
            Verdict::Success => (TerminalState::Completed, None),
            Verdict::Failed(failure) => (ended_by(&failure.kind), Some(failure.clone())),
        };
        Self::new(how, failure, Some(outcome))
    }
}

fn ended_by(kind: &FailureKind) -> TerminalState {
    match kind {
        FailureKind::Deadline { .. } => TerminalState::Timeout,
        FailureKind::Stopped => TerminalState::Cancelled,
        _ => TerminalState::Failed,
    }
}

/// What was said in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewExchange {
    /// What the agent was asked.
    pub prompt: String,
    /// What it answered.
    pub response: String,
}

/// What was said in a run, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Its name.
    pub id: ExchangeId,
    /// The job it belongs to.
    pub job: JobId,
    /// When it was kept.
    pub created_at: Timestamp,
    /// What was said.
    pub said: NewExchange,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Deadline;

    #[test]
    fn a_home_reads_back_from_its_text() {
        for home in [Placement::Host("ana:2".into()), Placement::Label("gpu".into())] {
            assert_eq!(home.to_string().parse(), Ok(home));
        }
        for bad in ["", "host:", "gpu", "Host:x"] {
            assert!(bad.parse::<Placement>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn each_kind_of_failure_ends_a_job_in_its_own_way() {
        assert_eq!(ended_by(&FailureKind::Deadline { which: Deadline::Idle }), TerminalState::Timeout);
        assert_eq!(ended_by(&FailureKind::Stopped), TerminalState::Cancelled);
        assert_eq!(ended_by(&FailureKind::Auth), TerminalState::Failed);
    }
}
