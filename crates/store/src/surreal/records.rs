//! The records of the database and their conversion to the columns of `row`.

use model::{JobId, Usage};
use surrealdb::types::{Array, Object, RecordId, SurrealValue, Value};
use uuid::Uuid;

use crate::error::StoreError;
use crate::row::{EndRow, JobRow, ProgressRow, SummaryRow};

/// The fields of a job for lists and steps.
#[derive(Debug, Clone, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub struct SummaryRecord {
    pub placed: String,
    pub revision: i64,
    pub op: String,
    pub state: String,
    pub owner: Option<String>,
    pub attempt: i64,
    pub requeues: i64,
    pub max_attempts: i64,
    pub paused_until: Option<i64>,
    pub cancel_requested_at: Option<i64>,
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub completed_at: Option<i64>,
    pub duration_ms: Option<i64>,
    pub agent: String,
    pub model: Option<String>,
    pub tool: String,
    pub task: String,
    pub home: String,
    pub cwd: String,
    pub session: Option<String>,
    pub parent: Option<String>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    pub cached_tokens: Option<i64>,
    pub reasoning_tokens: Option<i64>,
    pub cost_usd: Option<f64>,
    pub failure: Option<String>,
    pub prompt_head: String,
}

/// The other fields of a job.
#[derive(Debug, Clone, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub struct DetailRecord {
    pub lease_expires_at: Option<i64>,
    pub exchange: Option<String>,
    pub idempotency_key: Option<String>,
    pub fire_and_forget: bool,
    pub expose_stream: bool,
    pub prompt: String,
    pub call: String,
    pub outcome: Option<String>,
    pub metadata: Option<String>,
}

/// The fields of [`SummaryRecord`] in a query, with the id of the record.
pub const SUMMARY_FIELDS: &str = "id, placed, revision, op, state, owner, attempt, requeues, max_attempts, paused_until,
    cancel_requested_at, created_at, started_at, completed_at, duration_ms, agent, model, tool, task, home, cwd, session, parent,
    input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost_usd, failure, prompt_head";

/// All fields of a job.
#[derive(Debug, Clone)]
pub struct JobRecord {
    pub summary: SummaryRecord,
    pub detail: DetailRecord,
}

impl SurrealValue for JobRecord {
    fn kind_of() -> surrealdb::types::Kind {
        surrealdb::types::Kind::Object
    }

    fn into_value(self) -> Value {
        Value::Object(merge(self.summary.into_value(), self.detail.into_value()))
    }

    fn from_value(value: Value) -> Result<Self, surrealdb::Error> {
        Ok(Self {
            summary: SummaryRecord::from_value(value.clone())?,
            detail: DetailRecord::from_value(value)?,
        })
    }
}

fn merge(first: Value, second: Value) -> Object {
    let mut all = Object::new();
    for part in [first, second] {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    all
}

pub fn job_record_id(job: JobId) -> RecordId {
    RecordId::new("agent_jobs", surrealdb::types::Uuid::from(job.as_uuid()))
}

pub fn worker_id(owner: &str) -> RecordId {
    RecordId::new("agent_workers", owner.to_owned())
}

/// Returns the id of the last session of an agent, task and home.
pub fn session_id(agent: &str, task: &str, home: &str) -> RecordId {
    let parts = [agent, task, home].map(|part| Value::String(part.into()));
    RecordId::new("tool_sessions", Array::from(parts.to_vec()))
}

/// Returns the queue of jobs with this home and agent.
pub fn queue_name(home: &str, agent: &str) -> String {
    format!("{agent} {home}")
}

/// Returns an idempotency key qualified by its home. The length separates the two.
pub fn scoped_key(home: &str, key: &str) -> String {
    format!("{} {home}{key}", home.chars().count())
}

pub fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn to_u64(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn to_u32(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl SummaryRecord {
    pub fn progress(&self) -> ProgressRow {
        ProgressRow {
            state: self.state.clone(),
            owner: self.owner.clone(),
            attempt: to_u32(self.attempt),
            requeues: to_u32(self.requeues),
            max_attempts: to_u32(self.max_attempts),
            paused_until: self.paused_until.map(to_u64),
            cancel_requested_at: self.cancel_requested_at.map(to_u64),
        }
    }

    pub fn job_id(&self) -> Result<JobId, StoreError> {
        self.placed.parse().map_err(|error: model::BadJobId| StoreError::Unreadable {
            record: self.placed.clone(),
            field: "id",
            source: error.into(),
        })
    }

    pub fn into_row(self) -> Result<SummaryRow, StoreError> {
        let usage = self.input_tokens.map(|input| Usage {
            input: to_u64(input),
            output: to_u64(self.output_tokens.unwrap_or(0)),
            cached: to_u64(self.cached_tokens.unwrap_or(0)),
            reasoning: to_u64(self.reasoning_tokens.unwrap_or(0)),
        });
        Ok(SummaryRow {
            id: self.job_id()?.as_uuid(),
            progress: self.progress(),
            created_at: to_u64(self.created_at),
            started_at: self.started_at.map(to_u64),
            completed_at: self.completed_at.map(to_u64),
            duration_ms: self.duration_ms.map(to_u64),
            parent: self.parent.as_deref().and_then(|text| Uuid::parse_str(text).ok()),
            usage,
            agent: self.agent,
            model: self.model,
            tool: self.tool,
            task: self.task,
            home: self.home,
            cwd: self.cwd,
            session: self.session,
            cost_usd: self.cost_usd,
            failure: self.failure,
            prompt_head: self.prompt_head,
        })
    }
}

impl JobRecord {
    /// Returns the record of a new job.
    pub fn new(row: JobRow, op: String) -> Self {
        let JobRow { summary, .. } = row;
        let progress = summary.progress;
        Self {
            summary: SummaryRecord {
                placed: summary.id.to_string(),
                revision: to_i64(row.revision),
                op,
                state: progress.state,
                owner: progress.owner,
                attempt: progress.attempt.into(),
                requeues: progress.requeues.into(),
                max_attempts: progress.max_attempts.into(),
                paused_until: progress.paused_until.map(to_i64),
                cancel_requested_at: progress.cancel_requested_at.map(to_i64),
                created_at: to_i64(summary.created_at),
                started_at: None,
                completed_at: None,
                duration_ms: None,
                agent: summary.agent,
                model: summary.model,
                tool: summary.tool,
                task: summary.task,
                home: summary.home,
                cwd: summary.cwd,
                session: summary.session,
                parent: summary.parent.map(|parent| parent.to_string()),
                input_tokens: None,
                output_tokens: None,
                cached_tokens: None,
                reasoning_tokens: None,
                cost_usd: None,
                failure: None,
                prompt_head: summary.prompt_head,
            },
            detail: DetailRecord {
                lease_expires_at: None,
                exchange: None,
                idempotency_key: row.idempotency_key,
                fire_and_forget: row.fire_and_forget,
                expose_stream: row.expose_stream,
                prompt: row.prompt,
                call: row.call,
                outcome: row.outcome,
                metadata: row.metadata,
            },
        }
    }

    /// Returns the object to insert: the record with its id, its queue and its unique key.
    pub fn into_content(self, job: JobId) -> Object {
        let queue = queue_name(&self.summary.home, &self.summary.agent);
        let key = self.detail.idempotency_key.as_deref().map(|key| scoped_key(&self.summary.home, key));
        let mut content = merge(self.into_value(), Value::None);
        content.insert("id".to_owned(), job_record_id(job).into_value());
        content.insert("queue".to_owned(), queue.into_value());
        content.insert("scoped_key".to_owned(), key.into_value());
        content
    }

    pub fn into_row(self) -> Result<JobRow, StoreError> {
        let DetailRecord {
            lease_expires_at,
            exchange,
            idempotency_key,
            fire_and_forget,
            expose_stream,
            prompt,
            call,
            outcome,
            metadata,
        } = self.detail;
        Ok(JobRow {
            revision: to_u64(self.summary.revision),
            summary: self.summary.into_row()?,
            lease_expires_at: lease_expires_at.map(to_u64),
            exchange: exchange.as_deref().and_then(|text| Uuid::parse_str(text).ok()),
            idempotency_key,
            fire_and_forget,
            expose_stream,
            prompt,
            call,
            outcome,
            metadata,
        })
    }
}

/// The fields that a step changes. A field that is `None` is removed.
#[derive(Debug, Clone, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub struct StepPatch {
    pub revision: i64,
    pub op: String,
    pub state: String,
    pub owner: Option<String>,
    pub worker: Option<RecordId>,
    pub queue: Option<String>,
    pub attempt: i64,
    pub requeues: i64,
    pub paused_until: Option<i64>,
    pub cancel_requested_at: Option<i64>,
    pub started_at: Option<i64>,
    pub completed_at: Option<i64>,
    pub duration_ms: Option<i64>,
}

/// Returns the fields that the end of a job adds to its step.
pub fn end_patch(end: &EndRow) -> Object {
    let mut patch = Object::new();
    let mut put = |name: &str, value: Value| {
        if !matches!(value, Value::None) {
            patch.insert(name.to_owned(), value);
        }
    };
    let EndRow { model, session, duration_ms, usage, cost_usd, failure, outcome, metadata, exchange, .. } =
        end;
    put("duration_ms", to_i64(*duration_ms).into_value());
    put("model", model.clone().into_value());
    put("session", session.as_ref().map(|session| session.as_str().to_owned()).into_value());
    put("exchange", exchange.as_ref().map(|exchange| exchange.id.to_string()).into_value());
    put("input_tokens", usage.map(|usage| to_i64(usage.input)).into_value());
    put("output_tokens", usage.map(|usage| to_i64(usage.output)).into_value());
    put("cached_tokens", usage.map(|usage| to_i64(usage.cached)).into_value());
    put("reasoning_tokens", usage.map(|usage| to_i64(usage.reasoning)).into_value());
    put("cost_usd", cost_usd.into_value());
    put("failure", failure.clone().into_value());
    put("outcome", outcome.clone().into_value());
    put("metadata", metadata.clone().into_value());
    patch
}

/// The exchange of a job.
#[derive(Debug, Clone, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub struct ExchangeRecord {
    pub name: String,
    pub job: String,
    pub created_at: i64,
    pub prompt: String,
    pub response: String,
}

/// The last session of a task.
#[derive(Debug, Clone, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub struct SessionRecord {
    pub session: String,
    pub cwd: String,
    pub job: String,
    pub updated_at: i64,
}
