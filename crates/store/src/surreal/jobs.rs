//! Writes jobs and their steps.
//!
//! A step is a compare-and-swap: reads the record, computes the transition, and writes it only if the revision is
//! unchanged. Each write has a random name (`op`): after a lost connection, the record itself shows whether the write
//! was the last one.

use model::{Claim, Job, JobId, Progress, SessionId, StateName, TerminalState, Timestamp, Transition};
use surrealdb::types::{Object, RecordId, SurrealValue, Value};

use crate::engine::Taken;
use crate::error::{Cause, StoreError};
use crate::row::{EndRow, JobRow, Standing};
use crate::surreal::records::{
    ExchangeRecord, JobRecord, LineRecord, SessionRecord, StepPatch, end_patch, int, job_record_id,
    queue_name, scoped_key, session_id, worker_id,
};
use crate::surreal::wire::{Fault, GaveUp, Pause, TRIES, Vars, Wire};
use crate::surreal::{op_name, reads};

/// Inserts a new job, or finds the earlier one with its key. Idempotent for the same id.
pub async fn place(wire: &Wire, job: Job) -> Result<(Job, bool), StoreError> {
    let record = JobRecord::new(JobRow::new(&job)?, op_name()?);
    let home = job.order.home.to_string();
    let key = job.order.idempotency_key.as_deref().map(|key| scoped_key(&home, key));
    let vars = Vars::new()
        .with("job", job_record_id(job.id))
        .with("key", key)
        .with("content", Value::Object(record.content(job.id)));
    // One statement is one transaction: an error that nothing was written applies to all of it.
    let query = "{
        INSERT IGNORE INTO agent_jobs $content RETURN NONE;
        RETURN IF $key = NONE { SELECT VALUE placed FROM $job } ELSE { SELECT VALUE placed FROM agent_jobs WHERE scoped_key = $key };
    };";
    let mut answer = wire.insist(query, vars).await.map_err(|gave_up| in_doubt(wire, gave_up, job.id))?;
    // The write is committed at this point.
    let found = answer.rows::<String>(0).map_err(|error| unsure(wire, job.id, error.into()))?;
    let earlier = found.first().and_then(|placed| placed.parse::<JobId>().ok());
    match earlier {
        Some(id) if id == job.id => Ok((job, true)),
        Some(id) => Ok((reads::job(wire, id).await?.ok_or(StoreError::NoSuchJob { job: id })?, false)),
        // Removed in between, or the record is corrupt: it was written but does not exist.
        None => Err(unsure(wire, job.id, "the server took the job and does not have it".into())),
    }
}

/// Returns the error of a write. If one attempt remained without a reply, that one may have been applied.
fn in_doubt(wire: &Wire, gave_up: GaveUp, job: JobId) -> StoreError {
    match gave_up.lost {
        Some(cause) => unsure(wire, job, cause),
        None => gave_up.error,
    }
}

/// Returns the error for a write whose outcome is unknown.
pub fn unsure(wire: &Wire, job: JobId, source: Cause) -> StoreError {
    StoreError::Unconfirmed { place: wire.place(), job: Some(job), source }
}

/// Applies a step to a job, if its state allows the step.
pub async fn take_step(
    wire: &Wire,
    job: JobId,
    step: &Transition,
    end: Option<&EndRow>,
    now: Timestamp,
) -> Result<Taken, StoreError> {
    settle(wire, job, |head| Change::of(head, step, end, now)).await
}

/// Applies a step like [`apply_step`] to a job that was just read.
pub async fn take_step_from(
    wire: &Wire,
    head: LineRecord,
    step: &Transition,
    now: Timestamp,
) -> Result<Taken, StoreError> {
    settle_from(wire, head.job_id()?, head, |head| Change::of(head, step, None, now)).await
}

/// Releases a claim whose run was never started. Consumes the attempt number but no requeue.
pub async fn put_back(wire: &Wire, claim: &Claim, now: Timestamp) -> Result<(), StoreError> {
    settle(wire, claim.job, |head| Change::of_return(head, claim, now)).await.map(|_| ())
}

/// Fails a job with an unreadable record, so that it does not block the others. Does not change a terminal state.
pub async fn give_up(wire: &Wire, job: JobId, now: Timestamp) -> Result<(), StoreError> {
    let query =
        "UPDATE $job SET state = 'failed', owner = NONE, worker = NONE, queue = NONE, paused_until = NONE,
            completed_at = $now, op = $op, revision = IF type::is_int(revision) { revision + 1 } ELSE { 1 }
        WHERE state NOT IN ['completed', 'failed', 'timeout', 'cancelled'] OR queue != NONE OR owner != NONE
        RETURN NONE;";
    let vars =
        Vars::new().with("job", job_record_id(job)).with("now", int(now.as_millis())).with("op", op_name()?);
    wire.insist(query, vars).await.map(|_| ()).map_err(|gave_up| in_doubt(wire, gave_up, job))
}

/// Stores the session of a job, also as the last session of its task.
pub async fn note_session(
    wire: &Wire,
    claim: &Claim,
    session: &SessionId,
    now: Timestamp,
) -> Result<(), StoreError> {
    settle(wire, claim.job, |head| Change::of_session(head, claim, session, now)).await.map(|_| ())
}

/// A write without a reply.
struct Doubt {
    op: String,
    /// The revision that it was to replace.
    seen: i64,
    taken: Taken,
    cause: Cause,
}

/// Reads a job, computes its change and writes it; repeats this after a conflict.
async fn settle(
    wire: &Wire,
    job: JobId,
    change: impl Fn(&LineRecord) -> Result<Change, StoreError>,
) -> Result<Taken, StoreError> {
    let head = reads::line(wire, job).await?;
    settle_from(wire, job, head, change).await
}

/// Writes a change like [`write_change`] to a job that was just read.
async fn settle_from(
    wire: &Wire,
    job: JobId,
    head: LineRecord,
    change: impl Fn(&LineRecord) -> Result<Change, StoreError>,
) -> Result<Taken, StoreError> {
    let mut pause = Pause::default();
    // A write without a reply can still arrive during a later attempt, so none is forgotten.
    let mut doubts: Vec<Doubt> = Vec::new();
    let mut head = head;
    for _ in 0..TRIES {
        if let Some(done) = doubts.iter().position(|doubt| doubt.op == head.op) {
            return Ok(doubts.swap_remove(done).taken);
        }
        // Another write came after it, and ours may have preceded that one.
        if let Some(below) = doubts.iter().position(|doubt| doubt.seen != head.revision) {
            return Err(unsure(wire, job, doubts.swap_remove(below).cause));
        }
        let change = match change(&head) {
            Ok(change) => change,
            Err(error) => return Err(still_in_doubt(wire, job, doubts, error)),
        };
        match change.write(wire).await {
            Ok(true) => return Ok(change.taken),
            Ok(false) | Err(Fault::Conflict) => {}
            Err(Fault::Lost(cause)) => {
                doubts.push(Doubt { op: change.op, seen: head.revision, taken: change.taken, cause });
            }
            Err(Fault::Failed(error)) => return Err(still_in_doubt(wire, job, doubts, error)),
        }
        pause.wait().await;
        head = match reads::line(wire, job).await {
            Ok(head) => head,
            Err(error) => return Err(still_in_doubt(wire, job, doubts, error)),
        };
    }
    // The last attempt may have been applied without a reply.
    match doubts.iter().position(|doubt| doubt.op == head.op) {
        Some(done) => Ok(doubts.swap_remove(done).taken),
        None => Err(still_in_doubt(wire, job, doubts, wire.too_many_conflicts())),
    }
}

/// Returns the error of a change. An error that nothing was written is only true without earlier unconfirmed writes.
fn still_in_doubt(wire: &Wire, job: JobId, mut doubts: Vec<Doubt>, error: StoreError) -> StoreError {
    doubts.pop().map_or(error, |doubt| unsure(wire, job, doubt.cause))
}

/// A change of one job, ready to be written.
struct Change {
    taken: Taken,
    op: String,
    vars: Vars,
}

impl Change {
    /// Computes the change of a step.
    fn of(
        head: &LineRecord,
        step: &Transition,
        end: Option<&EndRow>,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let job = head.job_id()?;
        let before = head.standing().progress(job)?;
        let after = before.apply(step, now).map_err(|refusal| StoreError::Refused { job, refusal })?;
        let op = op_name()?;
        // The duration of the end takes precedence: a job may have waited longer than its runs took.
        let mut patch = step_patch(head, &after, &op, now);
        patch.extend(end.map(end_patch).unwrap_or_default());
        let vars = Self::vars(head, job, patch);
        let vars = match end {
            Some(end) => with_end(vars, head, job, end, now),
            None => vars,
        };
        Ok(Self { taken: Taken { before, after }, op, vars })
    }

    /// Computes the release of an undelivered claim: a pause that ends immediately, without a start time.
    fn of_return(head: &LineRecord, claim: &Claim, now: Timestamp) -> Result<Self, StoreError> {
        let job = claim.job;
        let refused = |refusal| StoreError::Refused { job, refusal };
        let before = head.standing().progress(job)?;
        let pause = Transition::Pause { claim: claim.clone(), until: now };
        let mut after = before.apply(&pause, now).map_err(refused)?;
        // If the cancellation was requested, the job is cancelled instead.
        if after.state.name() == StateName::Paused {
            after = after.apply(&Transition::Wake, now).map_err(refused)?;
        }
        let op = op_name()?;
        let mut patch = step_patch(head, &after, &op, now);
        if claim.attempt.number() == 1 {
            patch.insert("started_at".to_owned(), Value::None);
            patch.insert("duration_ms".to_owned(), Value::None);
        }
        Ok(Self { taken: Taken { before, after }, op, vars: Self::vars(head, job, patch) })
    }

    /// Computes the change of a job's session, reported by its owner.
    fn of_session(
        head: &LineRecord,
        claim: &Claim,
        session: &SessionId,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let job = claim.job;
        let progress = head.standing().progress(job)?;
        // A claim that permits finishing the job also permits this.
        let probe = Transition::Finish { claim: claim.clone(), how: TerminalState::Completed };
        progress.apply(&probe, now).map_err(|refusal| StoreError::Refused { job, refusal })?;
        let op = op_name()?;
        let mut patch = Object::new();
        patch.insert("session".to_owned(), session.as_str().to_owned().into_value());
        patch.insert("revision".to_owned(), (head.revision + 1).into_value());
        patch.insert("op".to_owned(), op.clone().into_value());
        let vars = with_last_session(Self::vars(head, job, patch), head, job, session, now);
        Ok(Self { taken: Taken { before: progress.clone(), after: progress }, op, vars })
    }

    fn vars(head: &LineRecord, job: JobId, patch: Object) -> Vars {
        Vars::new()
            .with("job", job_record_id(job))
            .with("seen", head.revision)
            .with("patch", Value::Object(patch))
    }

    /// Writes the change, unless another write came first. One statement is one transaction, so that no error is
    /// missed.
    async fn write(&self, wire: &Wire) -> Result<bool, Fault> {
        let query = "{
            LET $done = (UPDATE $job MERGE $patch WHERE revision = $seen RETURN VALUE revision);
            IF array::len($done) = 1 {
                IF $said != NONE { CREATE $said_id CONTENT $said RETURN NONE };
                IF $last != NONE { UPSERT $last_id CONTENT $last RETURN NONE };
            };
            RETURN $done;
        };";
        let mut answer = wire.once(query, self.vars.clone()).await?;
        Ok(!answer.rows::<i64>(0).map_err(Fault::Failed)?.is_empty())
    }
}

fn step_patch(head: &LineRecord, after: &Progress, op: &str, now: Timestamp) -> Object {
    let (state, after) = (after.state.name(), Standing::from(after));
    let now = int(now.as_millis());
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
        paused_until: after.paused_until.map(int),
        cancel_requested_at: after.cancel_requested_at.map(int),
        started_at,
        completed_at,
        duration_ms: completed_at.zip(started_at).map(|(end, start)| (end - start).max(0)),
    };
    match patch.into_value() {
        Value::Object(patch) => patch,
        _ => Object::new(),
    }
}

fn with_end(vars: Vars, head: &LineRecord, job: JobId, end: &EndRow, now: Timestamp) -> Vars {
    let mut vars = vars;
    if let Some(said) = &end.exchange {
        let record = ExchangeRecord {
            name: said.id.to_string(),
            job: job.to_string(),
            created_at: int(now.as_millis()),
            prompt: said.prompt.clone(),
            response: said.response.clone(),
        };
        let id = RecordId::new("agent_exchanges", surrealdb::types::Uuid::from(said.id.as_uuid()));
        vars = vars.with("said_id", id).with("said", record);
    }
    match &end.session {
        Some(session) if end.is_last_session => with_last_session(vars, head, job, session, now),
        _ => vars,
    }
}

fn with_last_session(vars: Vars, head: &LineRecord, job: JobId, session: &SessionId, now: Timestamp) -> Vars {
    let last = SessionRecord {
        session: session.as_str().to_owned(),
        cwd: head.cwd.clone(),
        job: job.to_string(),
        updated_at: int(now.as_millis()),
    };
    vars.with("last_id", session_id(&head.agent, &head.task, &head.home)).with("last", last)
}
