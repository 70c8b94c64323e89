//! Converts jobs to and from the columns that every engine stores.
//!
//! Searched, sorted and summed values have their own columns; everything else is JSON text. The prompt has its own
//! column, so that it is stored byte for byte and not read for lists.

use std::str::FromStr;
use std::time::Duration;

use model::{
    AgentKind, Attempt, CallSpec, ExchangeId, Failure, Job, JobEnd, JobId, JobState, Lease, NewJob, Owner,
    Placement, Progress, SessionId, StateName, Timestamp, Usage,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::error::{Cause, StoreError};
use crate::requests::{JobSummary, Page};

/// The tool timeout that earlier versions put into every call.
const FORMER_TOOL_TIMEOUT: Duration = Duration::from_mins(5);
/// The length of the prompt in a list.
const PROMPT_HEAD_CHARS: usize = 120;

/// The maximum number of tokens of one job: sums of implausible numbers would be inexact as integers and floats.
const MAX_TOKENS: u64 = 1 << 53;

/// The columns that a step reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressRow {
    pub state: String,
    pub owner: Option<String>,
    pub attempt: u32,
    pub requeues: u32,
    pub max_attempts: u32,
    pub paused_until: Option<u64>,
    pub cancel_requested_at: Option<u64>,
}

impl From<&Progress> for ProgressRow {
    fn from(progress: &Progress) -> Self {
        let paused_until = match progress.state {
            JobState::Paused { until } => Some(until.as_millis()),
            _ => None,
        };
        Self {
            state: progress.state.name().as_str().to_owned(),
            owner: progress.state.holder().map(|(_, owner)| owner.as_str().to_owned()),
            attempt: progress.attempt.number(),
            requeues: progress.requeues,
            max_attempts: progress.max_attempts,
            paused_until,
            cancel_requested_at: progress.cancel_requested_at.map(Timestamp::as_millis),
        }
    }
}

impl ProgressRow {
    pub fn into_progress(self, record: JobId) -> Result<Progress, StoreError> {
        let reader = FieldReader(record);
        let name: StateName = reader.parse("state", &self.state)?;
        let attempt = Attempt::new(self.attempt);
        let owner = || reader.require("owner", self.owner.clone()).map(Owner::new);
        let state = match name {
            StateName::Queued => JobState::Queued,
            StateName::Running => JobState::Running { attempt, owner: owner()? },
            StateName::Interrupted => JobState::Interrupted { attempt, owner: owner()? },
            StateName::Paused => {
                let until = reader.require("paused_until", self.paused_until)?;
                JobState::Paused { until: Timestamp::from_millis(until) }
            }
            StateName::Completed | StateName::Failed | StateName::Timeout | StateName::Cancelled => {
                JobState::Ended { how: reader.require("state", name.ended())? }
            }
        };
        Ok(Progress {
            state,
            attempt,
            requeues: self.requeues,
            max_attempts: self.max_attempts,
            cancel_requested_at: self.cancel_requested_at.map(Timestamp::from_millis),
        })
    }
}

/// The columns of a job in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryRow {
    pub id: Uuid,
    pub progress: ProgressRow,
    pub created_at: u64,
    pub started_at: Option<u64>,
    pub completed_at: Option<u64>,
    pub duration_ms: Option<u64>,
    pub agent: String,
    pub model: Option<String>,
    pub tool: String,
    pub task: String,
    pub home: String,
    pub cwd: String,
    pub session: Option<String>,
    pub parent: Option<Uuid>,
    pub usage: Option<Usage>,
    pub cost_usd: Option<f64>,
    pub failure: Option<String>,
    pub prompt_head: String,
}

/// All columns of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    pub summary: SummaryRow,
    pub revision: u64,
    pub lease_expires_at: Option<u64>,
    pub exchange: Option<Uuid>,
    pub idempotency_key: Option<String>,
    pub fire_and_forget: bool,
    pub expose_stream: bool,
    pub prompt: String,
    pub call: String,
    pub outcome: Option<String>,
    pub metadata: Option<String>,
}

/// The columns that the end of a job adds.
#[derive(Debug, Clone, PartialEq)]
pub struct EndRow {
    pub model: Option<String>,
    pub session: Option<SessionId>,
    /// The duration of the runs; 0 if none was started.
    pub duration_ms: u64,
    /// Is true if the session becomes the last one of its task.
    pub is_last_session: bool,
    pub usage: Option<Usage>,
    pub cost_usd: Option<f64>,
    pub failure: Option<String>,
    pub outcome: Option<String>,
    pub metadata: Option<String>,
    pub exchange: Option<ExchangeRow>,
}

/// The columns of an exchange.
#[derive(Debug, Clone, PartialEq)]
pub struct ExchangeRow {
    pub id: ExchangeId,
    pub prompt: String,
    pub response: String,
}

impl EndRow {
    pub fn new(end: JobEnd, exchange: ExchangeId) -> Result<Self, StoreError> {
        let JobEnd { failure, outcome, exchange: new_exchange, metadata, has_answer, .. } = end;
        let ended = outcome.as_ref();
        Ok(Self {
            model: ended.and_then(|outcome| outcome.model.clone()),
            session: ended.and_then(|outcome| outcome.session.clone()),
            duration_ms: ended.map_or(0, |outcome| outcome.duration_ms),
            is_last_session: has_answer,
            usage: ended.and_then(|outcome| outcome.usage).map(clamp_tokens),
            cost_usd: ended.and_then(|outcome| outcome.cost_usd),
            failure: failure.map(|failure| json("failure", &failure)).transpose()?,
            outcome: outcome.map(|outcome| json("outcome", &outcome)).transpose()?,
            metadata,
            exchange: new_exchange.map(|texts| ExchangeRow {
                id: exchange,
                prompt: texts.prompt,
                response: texts.response,
            }),
        })
    }
}

impl JobRow {
    /// Returns the columns of a job.
    pub fn new(job: &Job) -> Result<Self, StoreError> {
        let (order, outcome) = (&job.order, job.outcome.as_ref());
        let call = CallSpec { prompt: String::new(), ..order.call.clone() };
        let summary = SummaryRow {
            id: job.id.as_uuid(),
            progress: ProgressRow::from(&job.progress),
            created_at: job.created_at.as_millis(),
            started_at: job.started_at.map(Timestamp::as_millis),
            completed_at: job.completed_at.map(Timestamp::as_millis),
            duration_ms: job.duration_ms,
            agent: order.call.agent.name().to_owned(),
            model: outcome.and_then(|outcome| outcome.model.clone()).or_else(|| order.call.model.clone()),
            tool: order.tool.clone(),
            task: order.task.clone(),
            home: order.home.to_string(),
            cwd: order.call.cwd.to_string_lossy().into_owned(),
            session: job.session.as_ref().map(|session| session.as_str().to_owned()),
            parent: order.parent.map(JobId::as_uuid),
            usage: outcome.and_then(|outcome| outcome.usage).map(clamp_tokens),
            cost_usd: outcome.and_then(|outcome| outcome.cost_usd),
            failure: job.failure.as_ref().map(|failure| json("failure", failure)).transpose()?,
            prompt_head: prompt_head(&order.call.prompt),
        };
        Ok(Self {
            summary,
            revision: job.revision,
            lease_expires_at: None,
            exchange: job.exchange.map(ExchangeId::as_uuid),
            idempotency_key: order.idempotency_key.clone(),
            fire_and_forget: order.fire_and_forget,
            expose_stream: order.expose_stream,
            prompt: order.call.prompt.clone(),
            call: json("call", &call)?,
            outcome: outcome.map(|outcome| json("outcome", outcome)).transpose()?,
            metadata: job.metadata.clone(),
        })
    }

    pub fn into_job(self) -> Result<Job, StoreError> {
        let id = JobId::from_uuid(self.summary.id);
        let reader = FieldReader(id);
        let summary = self.summary;
        let call: CallSpec = reader.json("call", &self.call)?;
        let progress = summary.progress.into_progress(id)?;
        let lease = progress.state.holder().zip(self.lease_expires_at).map(|((_, owner), millis)| Lease {
            owner: owner.clone(),
            expires_at: Timestamp::from_millis(millis),
        });
        let order = NewJob {
            call: CallSpec { prompt: self.prompt, ..without_former_default(call) },
            tool: summary.tool,
            task: summary.task,
            home: reader.parse("home", &summary.home)?,
            idempotency_key: self.idempotency_key,
            parent: summary.parent.map(JobId::from_uuid),
            fire_and_forget: self.fire_and_forget,
            expose_stream: self.expose_stream,
            max_attempts: progress.max_attempts,
        };
        Ok(Job {
            id,
            order,
            progress,
            lease,
            created_at: Timestamp::from_millis(summary.created_at),
            started_at: summary.started_at.map(Timestamp::from_millis),
            completed_at: summary.completed_at.map(Timestamp::from_millis),
            duration_ms: summary.duration_ms,
            session: reader.parse_optional("session", summary.session.as_deref())?,
            failure: summary.failure.map(|text| reader.json("failure", &text)).transpose()?,
            outcome: self.outcome.map(|text| reader.json("outcome", &text)).transpose()?,
            exchange: self.exchange.map(ExchangeId::from_uuid),
            metadata: self.metadata,
            revision: self.revision,
        })
    }
}

impl SummaryRow {
    /// Returns the id of the job.
    pub fn job_id(&self) -> JobId {
        JobId::from_uuid(self.id)
    }

    pub fn into_summary(self) -> Result<JobSummary, StoreError> {
        let id = JobId::from_uuid(self.id);
        let reader = FieldReader(id);
        let failure: Option<Failure> = self.failure.map(|text| reader.json("failure", &text)).transpose()?;
        Ok(JobSummary {
            id,
            state: reader.parse("state", &self.progress.state)?,
            attempt: self.progress.attempt,
            agent: reader.parse::<AgentKind>("agent", &self.agent)?,
            model: self.model,
            tool: self.tool,
            task: self.task,
            home: reader.parse::<Placement>("home", &self.home)?,
            cwd: self.cwd,
            session: reader.parse_optional("session", self.session.as_deref())?,
            parent: self.parent.map(JobId::from_uuid),
            created_at: Timestamp::from_millis(self.created_at),
            started_at: self.started_at.map(Timestamp::from_millis),
            completed_at: self.completed_at.map(Timestamp::from_millis),
            duration: self.duration_ms.map(Duration::from_millis),
            paused_until: self.progress.paused_until.map(Timestamp::from_millis),
            cancel_requested: self.progress.cancel_requested_at.is_some(),
            failure,
            usage: self.usage,
            cost_usd: self.cost_usd,
            prompt_head: self.prompt_head,
        })
    }
}

/// Builds a page from a list that was read with one row more than the page, to detect whether more follow. A row that could
/// not be read at all is replaced by its id.
pub fn page_from_rows(mut rows: Vec<Result<SummaryRow, JobId>>, limit: u32) -> Page {
    let limit = limit as usize;
    let id = |row: &Result<SummaryRow, JobId>| row.as_ref().map_or_else(|job| *job, SummaryRow::job_id);
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| has_more).map(id);
    let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
    for row in rows {
        let job = id(&row);
        match row.ok().and_then(|row| row.into_summary().ok()) {
            Some(summary) => jobs.push(summary),
            None => unreadable.push(job),
        }
    }
    Page { jobs, unreadable, next }
}

/// Parses the fields of one record. Errors name the field and the record.
pub struct FieldReader(pub JobId);

impl FieldReader {
    pub fn parse<T>(&self, field: &'static str, text: &str) -> Result<T, StoreError>
    where
        T: FromStr,
        T::Err: Into<Cause>,
    {
        text.parse().map_err(|error: T::Err| self.unreadable(field, error.into()))
    }

    fn parse_optional<T>(&self, field: &'static str, text: Option<&str>) -> Result<Option<T>, StoreError>
    where
        T: FromStr,
        T::Err: Into<Cause>,
    {
        text.map(|text| self.parse(field, text)).transpose()
    }

    fn json<T: DeserializeOwned>(&self, field: &'static str, text: &str) -> Result<T, StoreError> {
        serde_json::from_str(text).map_err(|error| self.unreadable(field, error.into()))
    }

    fn require<T>(&self, field: &'static str, value: Option<T>) -> Result<T, StoreError> {
        value.ok_or_else(|| self.unreadable(field, "it is missing".into()))
    }

    fn unreadable(&self, field: &'static str, source: Cause) -> StoreError {
        StoreError::Unreadable { record: self.0.to_string(), field, source }
    }
}

/// Clamps the token counts, so that their sums do not overflow. The outcome keeps the numbers that the agent
/// reported.
fn clamp_tokens(usage: Usage) -> Usage {
    let Usage { input, output, cached, reasoning } = usage;
    let [input, output, cached, reasoning] =
        [input, output, cached, reasoning].map(|tokens| tokens.min(MAX_TOKENS));
    Usage { input, output, cached, reasoning }
}

fn json(field: &'static str, value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Unstorable { field, source: error.into() })
}

/// Removes the tool timeout that earlier versions put into every call. The caller did not request it, and codex and
/// gemini now reject calls with one: such a job could be neither run nor retried.
fn without_former_default(call: CallSpec) -> CallSpec {
    let is_rejected = matches!(call.agent, AgentKind::Codex | AgentKind::Gemini);
    let is_requested = |timeout: &Duration| !is_rejected || *timeout != FORMER_TOOL_TIMEOUT;
    CallSpec { tool_timeout: call.tool_timeout.filter(is_requested), ..call }
}

/// Returns the start of a prompt, on one line.
fn prompt_head(prompt: &str) -> String {
    prompt.chars().take(PROMPT_HEAD_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let call = CallSpec::new(AgentKind::Claude, "one\ntwo\0three", "/w");
        let order = NewJob {
            parent: Some(JobId::first_of(Timestamp::MAX)),
            ..NewJob::new(call, "call_cc", Placement::Label("gpu".into()))
        };
        let at = Timestamp::from_millis(1_700_000_000_000);
        Job::new(JobId::new(at, [9; 10]), order, at)
    }

    #[test]
    fn job_reads_back_from_its_columns() {
        assert_eq!(JobRow::new(&job()).unwrap().into_job().unwrap(), job());
    }

    #[test]
    fn former_default_tool_timeout_is_dropped() {
        let minutes = |number| Some(Duration::from_mins(number));
        for (agent, stored, read) in [
            (AgentKind::Codex, minutes(5), None),
            (AgentKind::Gemini, minutes(5), None),
            (AgentKind::Codex, minutes(7), minutes(7)),
            (AgentKind::Claude, minutes(5), minutes(5)),
        ] {
            let mut job = job();
            job.order.call.agent = agent;
            job.order.call.tool_timeout = stored;
            assert_eq!(
                JobRow::new(&job).unwrap().into_job().unwrap().order.call.tool_timeout,
                read,
                "{agent}"
            );
        }
    }

    #[test]
    fn invalid_column_is_named_in_error() {
        let mut row = JobRow::new(&job()).unwrap();
        row.summary.progress.state = "running".into();
        let error = row.into_job().unwrap_err();
        assert!(error.to_string().starts_with("the owner of record "), "{error}");
    }

    #[test]
    fn prompt_head_is_one_line() {
        assert_eq!(JobRow::new(&job()).unwrap().summary.prompt_head, "one two three");
    }
}
