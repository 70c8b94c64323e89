//! Writes jobs and their steps.
//!
//! A step is a compare-and-swap: reads the record, computes the transition, and writes it only if the revision is
//! unchanged. Each write has a random name (`op`): after a lost connection, the record itself shows whether the write
//! was the last one.

use model::{Claim, Job, JobId, Progress, SessionId, StateName, TerminalState, Timestamp, Transition};
use surrealdb::types::{Object, RecordId, SurrealValue, Value};

use crate::engine::StateChange;
use crate::error::{Cause, StoreError};
use crate::row::{EndRow, JobRow, ProgressRow};
use crate::surreal::client::{AttemptError, Backoff, MAX_ATTEMPTS, RetryError, SurrealClient, Vars};
use crate::surreal::records::{
    ExchangeRecord, JobRecord, SessionRecord, StepPatch, SummaryRecord, end_patch, job_record_id, queue_name,
    scoped_key, session_id, to_i64, worker_id,
};
use crate::surreal::{new_write_name, reads};

/// Inserts a new job, or finds the earlier one with its key. Idempotent for the same id.
pub async fn submit(client: &SurrealClient, job: Job) -> Result<(Job, bool), StoreError> {
    let record = JobRecord::new(JobRow::new(&job)?, new_write_name()?);
    let home = job.order.home.to_string();
    let key = job.order.idempotency_key.as_deref().map(|key| scoped_key(&home, key));
    let vars = Vars::new()
        .with("job", job_record_id(job.id))
        .with("key", key)
        .with("content", Value::Object(record.into_content(job.id)));
    // One statement is one transaction: an error that nothing was written applies to all of it.
    let query = "{
        INSERT IGNORE INTO agent_jobs $content RETURN NONE;
        RETURN IF $key = NONE { SELECT VALUE placed FROM $job } ELSE { SELECT VALUE placed FROM agent_jobs WHERE scoped_key = $key };
    };";
    let mut reply =
        client.run_write(query, vars).await.map_err(|error| write_error(client, error, job.id))?;
    // The write is committed at this point.
    let found = reply.rows::<String>(0).map_err(|error| unconfirmed(client, job.id, error.into()))?;
    let earlier = found.first().and_then(|placed| placed.parse::<JobId>().ok());
    match earlier {
        Some(id) if id == job.id => Ok((job, true)),
        Some(id) => Ok((reads::job(client, id).await?.ok_or(StoreError::NoSuchJob { job: id })?, false)),
        // Removed in between, or the record is corrupt: it was written but does not exist.
        None => Err(unconfirmed(client, job.id, "the server accepted the job but does not have it".into())),
    }
}

/// Returns the error of a write. If one attempt remained without a reply, that one may have been applied.
fn write_error(client: &SurrealClient, error: RetryError, job: JobId) -> StoreError {
    match error.lost {
        Some(cause) => unconfirmed(client, job, cause),
        None => error.last,
    }
}

/// Returns the error for a write whose outcome is unknown.
pub fn unconfirmed(client: &SurrealClient, job: JobId, source: Cause) -> StoreError {
    StoreError::Unconfirmed { location: client.location(), job: Some(job), source }
}

/// Applies a step to a job, if its state allows the step.
pub async fn apply_transition(
    client: &SurrealClient,
    job: JobId,
    step: &Transition,
    end: Option<&EndRow>,
    now: Timestamp,
) -> Result<StateChange, StoreError> {
    write_change(client, job, |head| PreparedChange::from_transition(head, step, end, now)).await
}

/// Applies a step like [`apply_transition`] to a job that was just read.
pub async fn apply_transition_from(
    client: &SurrealClient,
    head: SummaryRecord,
    step: &Transition,
    now: Timestamp,
) -> Result<StateChange, StoreError> {
    write_change_from(client, head.job_id()?, head, |head| {
        PreparedChange::from_transition(head, step, None, now)
    })
    .await
}

/// Releases a claim whose run was never started. Consumes the attempt number but no requeue.
pub async fn release_claim(client: &SurrealClient, claim: &Claim, now: Timestamp) -> Result<(), StoreError> {
    write_change(client, claim.job, |head| PreparedChange::from_release(head, claim, now)).await.map(|_| ())
}

/// Fails a job with an unreadable record, so that it does not block the others. Does not change a terminal state.
pub async fn fail_unreadable(client: &SurrealClient, job: JobId, now: Timestamp) -> Result<(), StoreError> {
    let query =
        "UPDATE $job SET state = 'failed', owner = NONE, worker = NONE, queue = NONE, paused_until = NONE,
            completed_at = $now, op = $op, revision = IF type::is_int(revision) { revision + 1 } ELSE { 1 }
        WHERE state NOT IN ['completed', 'failed', 'timeout', 'cancelled'] OR queue != NONE OR owner != NONE
        RETURN NONE;";
    let vars = Vars::new()
        .with("job", job_record_id(job))
        .with("now", to_i64(now.as_millis()))
        .with("op", new_write_name()?);
    client.run_write(query, vars).await.map(|_| ()).map_err(|error| write_error(client, error, job))
}

/// Stores the session of a job, also as the last session of its task.
pub async fn note_session(
    client: &SurrealClient,
    claim: &Claim,
    session: &SessionId,
    now: Timestamp,
) -> Result<(), StoreError> {
    write_change(client, claim.job, |head| PreparedChange::from_session(head, claim, session, now))
        .await
        .map(|_| ())
}

/// A write without a reply.
struct UnconfirmedWrite {
    op: String,
    /// The revision that it was to replace.
    seen: i64,
    state_change: StateChange,
    cause: Cause,
}

/// Reads a job, computes its change and writes it; repeats this after a conflict.
async fn write_change(
    client: &SurrealClient,
    job: JobId,
    change: impl Fn(&SummaryRecord) -> Result<PreparedChange, StoreError>,
) -> Result<StateChange, StoreError> {
    let head = reads::summary(client, job).await?;
    write_change_from(client, job, head, change).await
}

/// Writes a change like [`write_change`] to a job that was just read.
async fn write_change_from(
    client: &SurrealClient,
    job: JobId,
    head: SummaryRecord,
    change: impl Fn(&SummaryRecord) -> Result<PreparedChange, StoreError>,
) -> Result<StateChange, StoreError> {
    let mut backoff = Backoff::default();
    // A write without a reply can still arrive during a later attempt, so none is forgotten.
    let mut unconfirmed_writes: Vec<UnconfirmedWrite> = Vec::new();
    let mut head = head;
    for _ in 0..MAX_ATTEMPTS {
        if let Some(applied) = unconfirmed_writes.iter().position(|write| write.op == head.op) {
            return Ok(unconfirmed_writes.swap_remove(applied).state_change);
        }
        // Another write came after it, and ours may have preceded that one.
        if let Some(buried) = unconfirmed_writes.iter().position(|write| write.seen != head.revision) {
            return Err(unconfirmed(client, job, unconfirmed_writes.swap_remove(buried).cause));
        }
        let change = match change(&head) {
            Ok(change) => change,
            Err(error) => return Err(change_error(client, job, unconfirmed_writes, error)),
        };
        match change.write(client).await {
            Ok(true) => return Ok(change.state_change),
            Ok(false) | Err(AttemptError::Conflict) => {}
            Err(AttemptError::Lost(cause)) => {
                unconfirmed_writes.push(UnconfirmedWrite {
                    op: change.op,
                    seen: head.revision,
                    state_change: change.state_change,
                    cause,
                });
            }
            Err(AttemptError::Failed(error)) => {
                return Err(change_error(client, job, unconfirmed_writes, error));
            }
        }
        backoff.wait().await;
        head = match reads::summary(client, job).await {
            Ok(head) => head,
            Err(error) => return Err(change_error(client, job, unconfirmed_writes, error)),
        };
    }
    // The last attempt may have been applied without a reply.
    match unconfirmed_writes.iter().position(|write| write.op == head.op) {
        Some(applied) => Ok(unconfirmed_writes.swap_remove(applied).state_change),
        None => Err(change_error(client, job, unconfirmed_writes, client.too_many_conflicts())),
    }
}

/// Returns the error of a change. An error that nothing was written is only true without earlier unconfirmed writes.
fn change_error(
    client: &SurrealClient,
    job: JobId,
    mut unconfirmed_writes: Vec<UnconfirmedWrite>,
    error: StoreError,
) -> StoreError {
    unconfirmed_writes.pop().map_or(error, |write| unconfirmed(client, job, write.cause))
}

/// A change of one job, ready to be written.
struct PreparedChange {
    state_change: StateChange,
    op: String,
    vars: Vars,
}

impl PreparedChange {
    /// Computes the change of a step.
    fn from_transition(
        head: &SummaryRecord,
        step: &Transition,
        end: Option<&EndRow>,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let job = head.job_id()?;
        let before = head.progress().into_progress(job)?;
        let after = before.apply(step, now).map_err(|refusal| StoreError::Refused { job, refusal })?;
        let op = new_write_name()?;
        // The duration of the end takes precedence: a job may have waited longer than its runs took.
        let mut patch = step_patch(head, &after, &op, now);
        patch.extend(end.map(end_patch).unwrap_or_default());
        let vars = Self::vars(head, job, patch);
        let vars = match end {
            Some(end) => with_end(vars, head, job, end, now),
            None => vars,
        };
        Ok(Self { state_change: StateChange { before, after }, op, vars })
    }

    /// Computes the release of an undelivered claim: a pause that ends immediately, without a start time.
    fn from_release(head: &SummaryRecord, claim: &Claim, now: Timestamp) -> Result<Self, StoreError> {
        let job = claim.job;
        let refused = |refusal| StoreError::Refused { job, refusal };
        let before = head.progress().into_progress(job)?;
        let pause = Transition::Pause { claim: claim.clone(), until: now };
        let mut after = before.apply(&pause, now).map_err(refused)?;
        // If the cancellation was requested, the job is cancelled instead.
        if after.state.name() == StateName::Paused {
            after = after.apply(&Transition::Wake, now).map_err(refused)?;
        }
        let op = new_write_name()?;
        let mut patch = step_patch(head, &after, &op, now);
        if claim.attempt.number() == 1 {
            patch.insert("started_at".to_owned(), Value::None);
            patch.insert("duration_ms".to_owned(), Value::None);
        }
        Ok(Self { state_change: StateChange { before, after }, op, vars: Self::vars(head, job, patch) })
    }

    /// Computes the change of a job's session, reported by its owner.
    fn from_session(
        head: &SummaryRecord,
        claim: &Claim,
        session: &SessionId,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let job = claim.job;
        let progress = head.progress().into_progress(job)?;
        // A claim that permits finishing the job also permits this.
        let probe = Transition::Finish { claim: claim.clone(), how: TerminalState::Completed };
        progress.apply(&probe, now).map_err(|refusal| StoreError::Refused { job, refusal })?;
        let op = new_write_name()?;
        let mut patch = Object::new();
        patch.insert("session".to_owned(), session.as_str().to_owned().into_value());
        patch.insert("revision".to_owned(), (head.revision + 1).into_value());
        patch.insert("op".to_owned(), op.clone().into_value());
        let vars = with_last_session(Self::vars(head, job, patch), head, job, session, now);
        Ok(Self { state_change: StateChange { before: progress.clone(), after: progress }, op, vars })
    }

    fn vars(head: &SummaryRecord, job: JobId, patch: Object) -> Vars {
        Vars::new()
            .with("job", job_record_id(job))
            .with("seen", head.revision)
            .with("patch", Value::Object(patch))
    }

    /// Writes the change, unless another write came first. One statement is one transaction, so that no error is
    /// missed.
    async fn write(&self, client: &SurrealClient) -> Result<bool, AttemptError> {
        let query = "{
            LET $done = (UPDATE $job MERGE $patch WHERE revision = $seen RETURN VALUE revision);
            IF array::len($done) = 1 {
                IF $said != NONE { CREATE $said_id CONTENT $said RETURN NONE };
                IF $last != NONE { UPSERT $last_id CONTENT $last RETURN NONE };
            };
            RETURN $done;
        };";
        let mut reply = client.run_once(query, self.vars.clone()).await?;
        Ok(!reply.rows::<i64>(0).map_err(AttemptError::Failed)?.is_empty())
    }
}

fn step_patch(head: &SummaryRecord, after: &Progress, op: &str, now: Timestamp) -> Object {
    let (state, after) = (after.state.name(), ProgressRow::from(after));
    let now = to_i64(now.as_millis());
    // Set by the first claim.
    let started_at = head.started_at.or((state == StateName::Running).then_some(now));
    // After the clock was set back, a job must not end before its start.
    let completed_at = state.ended().map(|_| now.max(started_at.unwrap_or_default()));
    let queue = (state == StateName::Queued).then(|| queue_name(&head.home, &head.agent));
    let patch = StepPatch {
        revision: head.revision + 1,
        op: op.to_owned(),
        state: after.state,
        worker: after.owner.as_deref().map(worker_id),
        owner: after.owner,
        queue,
        attempt: after.attempt.into(),
        requeues: after.requeues.into(),
        paused_until: after.paused_until.map(to_i64),
        cancel_requested_at: after.cancel_requested_at.map(to_i64),
        started_at,
        completed_at,
        duration_ms: completed_at.zip(started_at).map(|(end, start)| (end - start).max(0)),
    };
    match patch.into_value() {
        Value::Object(patch) => patch,
        _ => Object::new(),
    }
}

fn with_end(vars: Vars, head: &SummaryRecord, job: JobId, end: &EndRow, now: Timestamp) -> Vars {
    let mut vars = vars;
    if let Some(exchange) = &end.exchange {
        let record = ExchangeRecord {
            name: exchange.id.to_string(),
            job: job.to_string(),
            created_at: to_i64(now.as_millis()),
            prompt: exchange.prompt.clone(),
            response: exchange.response.clone(),
        };
        let id = RecordId::new("agent_exchanges", surrealdb::types::Uuid::from(exchange.id.as_uuid()));
        vars = vars.with("said_id", id).with("said", record);
    }
    match &end.session {
        Some(session) if end.is_last_session => with_last_session(vars, head, job, session, now),
        _ => vars,
    }
}

fn with_last_session(
    vars: Vars,
    head: &SummaryRecord,
    job: JobId,
    session: &SessionId,
    now: Timestamp,
) -> Vars {
    let last = SessionRecord {
        session: session.as_str().to_owned(),
        cwd: head.cwd.clone(),
        job: job.to_string(),
        updated_at: to_i64(now.as_millis()),
    };
    vars.with("last_id", session_id(&head.agent, &head.task, &head.home)).with("last", last)
}
