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
const HEAD_CHARS: usize = 120;

/// The maximum number of tokens of one job: sums of implausible numbers would be inexact as integers and floats.
const MAX_TOKENS: u64 = 1 << 53;

/// The columns that a step reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub state: String,
    pub owner: Option<String>,
    pub attempt: u32,
    pub requeues: u32,
    pub max_attempts: u32,
    pub paused_until: Option<u64>,
    pub cancel_requested_at: Option<u64>,
}

impl From<&Progress> for Standing {
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

impl Standing {
    pub fn progress(self, record: JobId) -> Result<Progress, StoreError> {
        let reader = Reader(record);
        let name: StateName = reader.parse("state", &self.state)?;
        let attempt = Attempt::new(self.attempt);
        let owner = || reader.present("owner", self.owner.clone()).map(Owner::new);
        let state = match name {
            StateName::Queued => JobState::Queued,
            StateName::Running => JobState::Running { attempt, owner: owner()? },
            StateName::Interrupted => JobState::Interrupted { attempt, owner: owner()? },
            StateName::Paused => {
                let until = reader.present("paused_until", self.paused_until)?;
                JobState::Paused { until: Timestamp::from_millis(until) }
            }
            StateName::Completed | StateName::Failed | StateName::Timeout | StateName::Cancelled => {
                JobState::Ended { how: reader.present("state", name.ended())? }
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
pub struct LineRow {
    pub id: Uuid,
    pub standing: Standing,
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
    pub line: LineRow,
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
        let JobEnd { failure, outcome, exchange: said, metadata, has_answer, .. } = end;
        let of_outcome = outcome.as_ref();
        Ok(Self {
            model: of_outcome.and_then(|outcome| outcome.model.clone()),
            session: of_outcome.and_then(|outcome| outcome.session.clone()),
            duration_ms: of_outcome.map_or(0, |outcome| outcome.duration_ms),
            is_last_session: has_answer,
            usage: of_outcome.and_then(|outcome| outcome.usage).map(addable),
            cost_usd: of_outcome.and_then(|outcome| outcome.cost_usd),
            failure: failure.map(|failure| json("failure", &failure)).transpose()?,
            outcome: outcome.map(|outcome| json("outcome", &outcome)).transpose()?,
            metadata,
            exchange: said.map(|said| ExchangeRow {
                id: exchange,
                prompt: said.prompt,
                response: said.response,
            }),
        })
    }
}

impl JobRow {
    /// Returns the columns of a job.
    pub fn new(job: &Job) -> Result<Self, StoreError> {
        let (order, outcome) = (&job.order, job.outcome.as_ref());
        let call = CallSpec { prompt: String::new(), ..order.call.clone() };
        let line = LineRow {
            id: job.id.as_uuid(),
            standing: Standing::from(&job.progress),
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
            usage: outcome.and_then(|outcome| outcome.usage).map(addable),
            cost_usd: outcome.and_then(|outcome| outcome.cost_usd),
            failure: job.failure.as_ref().map(|failure| json("failure", failure)).transpose()?,
            prompt_head: head(&order.call.prompt),
        };
        Ok(Self {
            line,
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

    pub fn job(self) -> Result<Job, StoreError> {
        let id = JobId::from_uuid(self.line.id);
        let reader = Reader(id);
        let line = self.line;
        let call: CallSpec = reader.json("call", &self.call)?;
        let progress = line.standing.progress(id)?;
        let lease = progress.state.holder().zip(self.lease_expires_at).map(|((_, owner), millis)| Lease {
            owner: owner.clone(),
            expires_at: Timestamp::from_millis(millis),
        });
        let order = NewJob {
            call: CallSpec { prompt: self.prompt, ..without_former_default(call) },
            tool: line.tool,
            task: line.task,
            home: reader.parse("home", &line.home)?,
            idempotency_key: self.idempotency_key,
            parent: line.parent.map(JobId::from_uuid),
            fire_and_forget: self.fire_and_forget,
            expose_stream: self.expose_stream,
            max_attempts: progress.max_attempts,
        };
        Ok(Job {
            id,
            order,
            progress,
            lease,
            created_at: Timestamp::from_millis(line.created_at),
            started_at: line.started_at.map(Timestamp::from_millis),
            completed_at: line.completed_at.map(Timestamp::from_millis),
            duration_ms: line.duration_ms,
            session: reader.maybe("session", line.session.as_deref())?,
            failure: line.failure.map(|text| reader.json("failure", &text)).transpose()?,
            outcome: self.outcome.map(|text| reader.json("outcome", &text)).transpose()?,
            exchange: self.exchange.map(ExchangeId::from_uuid),
            metadata: self.metadata,
            revision: self.revision,
        })
    }
}

impl LineRow {
    /// Returns the id of the job.
    pub fn job(&self) -> JobId {
        JobId::from_uuid(self.id)
    }

    pub fn summary(self) -> Result<JobSummary, StoreError> {
        let id = JobId::from_uuid(self.id);
        let reader = Reader(id);
        let failure: Option<Failure> = self.failure.map(|text| reader.json("failure", &text)).transpose()?;
        Ok(JobSummary {
            id,
            state: reader.parse("state", &self.standing.state)?,
            attempt: self.standing.attempt,
            agent: reader.parse::<AgentKind>("agent", &self.agent)?,
            model: self.model,
            tool: self.tool,
            task: self.task,
            home: reader.parse::<Placement>("home", &self.home)?,
            cwd: self.cwd,
            session: reader.maybe("session", self.session.as_deref())?,
            parent: self.parent.map(JobId::from_uuid),
            created_at: Timestamp::from_millis(self.created_at),
            started_at: self.started_at.map(Timestamp::from_millis),
            completed_at: self.completed_at.map(Timestamp::from_millis),
            duration: self.duration_ms.map(Duration::from_millis),
            paused_until: self.standing.paused_until.map(Timestamp::from_millis),
            cancel_requested: self.standing.cancel_requested_at.is_some(),
            failure,
            usage: self.usage,
            cost_usd: self.cost_usd,
            prompt_head: self.prompt_head,
        })
    }
}

/// Builds a page from a list that was read with one row more than the page, to detect whether more follow. A row that could
/// not be read at all is replaced by its id.
pub fn page_from_rows(mut lines: Vec<Result<LineRow, JobId>>, rows: u32) -> Page {
    let rows = rows as usize;
    let id = |line: &Result<LineRow, JobId>| line.as_ref().map_or_else(|job| *job, LineRow::job);
    let more = lines.len() > rows;
    lines.truncate(rows);
    let next = lines.last().filter(|_| more).map(id);
    let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
    for line in lines {
        let job = id(&line);
        match line.ok().and_then(|line| line.summary().ok()) {
            Some(line) => jobs.push(line),
            None => unreadable.push(job),
        }
    }
    Page { jobs, unreadable, next }
}

/// Parses the fields of one record. Errors name the field and the record.
pub struct Reader(pub JobId);

impl Reader {
    pub fn parse<T>(&self, field: &'static str, text: &str) -> Result<T, StoreError>
    where
        T: FromStr,
        T::Err: Into<Cause>,
    {
        text.parse().map_err(|error: T::Err| self.unreadable(field, error.into()))
    }

    fn maybe<T>(&self, field: &'static str, text: Option<&str>) -> Result<Option<T>, StoreError>
    where
        T: FromStr,
        T::Err: Into<Cause>,
    {
        text.map(|text| self.parse(field, text)).transpose()
    }

    fn json<T: DeserializeOwned>(&self, field: &'static str, text: &str) -> Result<T, StoreError> {
        serde_json::from_str(text).map_err(|error| self.unreadable(field, error.into()))
    }

    fn present<T>(&self, field: &'static str, value: Option<T>) -> Result<T, StoreError> {
        value.ok_or_else(|| self.unreadable(field, "it is missing".into()))
    }

    fn unreadable(&self, field: &'static str, source: Cause) -> StoreError {
        StoreError::Unreadable { record: self.0.to_string(), field, source }
    }
}

/// Clamps the token counts, so that their sums do not overflow. The outcome keeps the numbers that the agent
/// reported.
fn addable(usage: Usage) -> Usage {
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
    let is_refused = matches!(call.agent, AgentKind::Codex | AgentKind::Gemini);
    let asked_for = |timeout: &Duration| !is_refused || *timeout != FORMER_TOOL_TIMEOUT;
    CallSpec { tool_timeout: call.tool_timeout.filter(asked_for), ..call }
}

/// Returns the start of a prompt, on one line.
fn head(prompt: &str) -> String {
    prompt.chars().take(HEAD_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
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
    fn a_job_reads_back_from_its_columns() {
        assert_eq!(JobRow::new(&job()).unwrap().job().unwrap(), job());
    }

    #[test]
    fn former_default_of_the_tool_timeout_is_no_wish() {
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
            assert_eq!(JobRow::new(&job).unwrap().job().unwrap().order.call.tool_timeout, read, "{agent}");
        }
    }

    #[test]
    fn a_column_that_makes_no_sense_is_named() {
        let mut row = JobRow::new(&job()).unwrap();
        row.line.standing.state = "running".into();
        let error = row.job().unwrap_err();
        assert!(error.to_string().starts_with("the owner of record "), "{error}");
    }

    #[test]
    fn the_head_of_a_prompt_is_one_line() {
        assert_eq!(JobRow::new(&job()).unwrap().line.prompt_head, "one two three");
    }
}
