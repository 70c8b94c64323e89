//! The durable record of a call: request, progress and result.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{
    CallSpec, Claim, ExchangeId, Failure, FailureKind, JobId, Lease, Outcome, Progress, SessionId,
    TerminalState, Timestamp, Verdict,
};

/// The hosts that may run a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// The host that has the working directory.
    Host(String),
    /// Every host with this label.
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

/// A text that is neither a host nor a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is neither a host nor a label", .0.escape_debug())]
pub struct BadPlacement(String);

impl BadPlacement {
    /// Returns the remedy.
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

/// A job to submit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewJob {
    /// The call.
    pub call: CallSpec,
    /// The MCP tool that was used (`call_cc`).
    pub tool: String,
    /// The caller's name of the task, the key of `continue_latest`.
    pub task: String,
    /// The hosts that may run it.
    pub home: Placement,
    /// The caller's key of this call: submitting it twice creates one job.
    pub idempotency_key: Option<String>,
    /// The job that submitted this one.
    pub parent: Option<JobId>,
    /// The caller does not wait.
    pub fire_and_forget: bool,
    /// The caller wants the agent's events with the result.
    pub expose_stream: bool,
    /// The maximum number of attempts after lost runs.
    pub max_attempts: u32,
}

impl NewJob {
    /// The default of [`NewJob::max_attempts`].
    pub const MAX_ATTEMPTS: u32 = 3;

    /// Returns a job with defaults. The task is named after the tool.
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

/// The record of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The id.
    pub id: JobId,
    /// The request.
    pub order: NewJob,
    /// The state and the attempt counters.
    pub progress: Progress,
    /// The lease of the owner. `None` if the job has no owner, or the owner never renewed a lease.
    pub lease: Option<Lease>,
    /// The time of submission.
    pub created_at: Timestamp,
    /// The time of the first claim.
    pub started_at: Option<Timestamp>,
    /// The time of the terminal state.
    pub completed_at: Option<Timestamp>,
    /// The total duration of the runs in milliseconds, in a terminal state.
    #[serde(default)]
    pub duration_ms: Option<u64>,
    /// The vendor's session, once known.
    pub session: Option<SessionId>,
    /// The failure, if any.
    pub failure: Option<Failure>,
    /// The outcome of the last run.
    pub outcome: Option<Outcome>,
    /// The record with the prompt and the answer.
    pub exchange: Option<ExchangeId>,
    /// Further data of the result, as JSON: the agent's events, if the caller requested them.
    pub metadata: Option<String>,
    /// Incremented with each change of the record.
    pub revision: u64,
}

impl Job {
    /// Returns a queued job.
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

    /// Returns the claim of the current owner.
    pub fn claim(&self) -> Option<Claim> {
        let (attempt, owner) = self.progress.state.holder()?;
        Some(Claim { job: self.id, attempt, owner: owner.clone() })
    }
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobEnd {
    /// The terminal state.
    pub how: TerminalState,
    /// The failure, if any.
    pub failure: Option<Failure>,
    /// The outcome of the last run, with session, tokens and cost. `None` if there was no run.
    pub outcome: Option<Outcome>,
    /// The prompt and the answer, if there is one.
    pub exchange: Option<NewExchange>,
    /// Further data, as JSON.
    pub metadata: Option<String>,
    /// The exit time of the last run. `None` if the job ends without a run.
    pub ended_at: Option<Timestamp>,
    /// The model answered, at least in part. Only such a session is resumed by `continue_latest`.
    pub has_answer: bool,
}

impl JobEnd {
    /// Returns the result of a job that failed without a run.
    pub fn failed(failure: Failure) -> Self {
        Self::new(TerminalState::Failed, Some(failure), None)
    }

    /// Returns the result of a job that was canceled while it had no run.
    pub fn cancelled() -> Self {
        Self::new(TerminalState::Cancelled, None, None)
    }

    fn new(how: TerminalState, failure: Option<Failure>, outcome: Option<Outcome>) -> Self {
        let has_answer = outcome.as_ref().is_some_and(Outcome::has_answer);
        Self { how, failure, outcome, exchange: None, metadata: None, ended_at: None, has_answer }
    }

    /// Adds the prompt and the answer.
    #[must_use]
    pub fn with_exchange(self, prompt: impl Into<String>, response: impl Into<String>) -> Self {
        let exchange = NewExchange { prompt: prompt.into(), response: response.into() };
        Self { exchange: Some(exchange), ..self }
    }
}

/// The result of a job whose last run has this outcome.
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

/// The prompt and the answer of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewExchange {
    /// The prompt.
    pub prompt: String,
    /// The answer.
    pub response: String,
}

/// The stored prompt and answer of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The id.
    pub id: ExchangeId,
    /// The job.
    pub job: JobId,
    /// The time of the write.
    pub created_at: Timestamp,
    /// The prompt and the answer.
    pub said: NewExchange,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Deadline;

    #[test]
    fn placement_round_trips_through_text() {
        for home in [Placement::Host("ana:2".into()), Placement::Label("gpu".into())] {
            assert_eq!(home.to_string().parse(), Ok(home));
        }
        for bad in ["", "host:", "gpu", "Host:x"] {
            assert!(bad.parse::<Placement>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn failure_kind_determines_terminal_state() {
        assert_eq!(ended_by(&FailureKind::Deadline { which: Deadline::Idle }), TerminalState::Timeout);
        assert_eq!(ended_by(&FailureKind::Stopped), TerminalState::Cancelled);
        assert_eq!(ended_by(&FailureKind::Auth), TerminalState::Failed);
    }
}
