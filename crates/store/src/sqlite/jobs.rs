//! Writes jobs and their steps.

use model::{Claim, Job, JobId, Lease, Owner, Progress, SessionId, StateName, Timestamp, Transition, Usage};
use rusqlite::{Connection, named_params, params};

use crate::engine::StateChange;
use crate::error::StoreError;
use crate::row::{EndRow, ExchangeRow, JobRow, ProgressRow, SummaryRow};
use crate::sqlite::writer::WriteTransaction;
use crate::sqlite::{QueryError, reads};

/// Converts a number for `SQLite`. Saturates at the maximum.
pub fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Inserts a job. Returns the earlier job if one has the same key.
pub fn insert(connection: &Connection, row: &JobRow) -> Result<Option<JobRow>, QueryError> {
    let JobRow { summary, revision, idempotency_key, fire_and_forget, expose_stream, prompt, call, .. } = row;
    let SummaryRow { progress, .. } = summary;
    let inserted = connection
        .prepare_cached(
            "INSERT INTO agent_jobs (id, revision, state, owner, attempt, requeues, max_attempts, created_at, started_at,
                agent, model, tool, task, home, cwd, parent, idempotency_key, fire_and_forget, expose_stream, prompt_head,
                call, prompt)
            VALUES (:id, :revision, :state, :owner, :attempt, :requeues, :max_attempts, :created_at, :started_at,
                :agent, :model, :tool, :task, :home, :cwd, :parent, :key, :fire_and_forget, :expose_stream, :prompt_head,
                :call, :prompt)
            ON CONFLICT DO NOTHING",
        )?
        .execute(named_params! {
            ":id": summary.id.as_bytes(),
            ":revision": to_i64(*revision),
            ":state": progress.state,
            ":owner": progress.owner,
            ":attempt": progress.attempt,
            ":requeues": progress.requeues,
            ":max_attempts": progress.max_attempts,
            ":created_at": to_i64(summary.created_at),
            ":started_at": summary.started_at.map(to_i64),
            ":agent": summary.agent,
            ":model": summary.model,
            ":tool": summary.tool,
            ":task": summary.task,
            ":home": summary.home,
            ":cwd": summary.cwd,
            ":parent": summary.parent.as_ref().map(uuid::Uuid::as_bytes),
            ":key": idempotency_key,
            ":fire_and_forget": fire_and_forget,
            ":expose_stream": expose_stream,
            ":prompt_head": summary.prompt_head,
            ":call": call,
            ":prompt": prompt,
        })?;
    if inserted == 1 {
        return Ok(None);
    }
    let earlier = reads::row_by_key(connection, &summary.home, idempotency_key.as_deref())?;
    Ok(Some(earlier.ok_or_else(|| duplicate_id(row))?))
}

/// Two random ids collided, which practically never happens.
fn duplicate_id(row: &JobRow) -> StoreError {
    let record = JobId::from_uuid(row.summary.id).to_string();
    StoreError::Unreadable { record, field: "id", source: "another job has the same id".into() }
}

/// Applies a step to a job, if its state allows the step.
pub fn apply_transition(
    tx: &mut WriteTransaction<'_>,
    job: JobId,
    step: &Transition,
    end: Option<&EndRow>,
    now: Timestamp,
) -> Result<StateChange, QueryError> {
    let head = reads::job_head(tx.connection, job)?;
    let before = head.progress.into_progress(job)?;
    let after = before.apply(step, now).map_err(|refusal| StoreError::Refused { job, refusal })?;
    let update = JobUpdate::after_transition(&after, head.started_at, head.revision, now);
    match end {
        Some(end) => update_ended_job(tx.connection, job, &update, end, now)?,
        None => update_job(tx.connection, job, &update)?,
    }
    tx.record_change(job, after.state.name(), update.revision);
    Ok(StateChange { before, after })
}

/// The columns that a step changes.
pub struct JobUpdate {
    progress: ProgressRow,
    started_at: Option<u64>,
    completed_at: Option<u64>,
    duration_ms: Option<u64>,
    revision: u64,
}

impl JobUpdate {
    /// Returns the columns of a restored job.
    pub fn from_row(row: &JobRow) -> Self {
        let SummaryRow { progress, started_at, completed_at, duration_ms, .. } = &row.summary;
        Self {
            progress: progress.clone(),
            started_at: *started_at,
            completed_at: *completed_at,
            duration_ms: *duration_ms,
            revision: row.revision,
        }
    }

    fn after_transition(after: &Progress, started_at: Option<u64>, revision: u64, now: Timestamp) -> Self {
        let state = after.state.name();
        // Set by the first claim.
        let started_at = started_at.or((state == StateName::Running).then(|| now.as_millis()));
        // After the clock was set back, a job must not end before its start.
        let completed_at = state.ended().map(|_| now.as_millis().max(started_at.unwrap_or_default()));
        let duration_ms = completed_at.zip(started_at).map(|(end, start)| end.saturating_sub(start));
        Self {
            progress: ProgressRow::from(after),
            started_at,
            completed_at,
            duration_ms,
            revision: revision + 1,
        }
    }
}

pub fn update_job(connection: &Connection, job: JobId, update: &JobUpdate) -> Result<(), QueryError> {
    let ProgressRow { state, owner, attempt, requeues, paused_until, cancel_requested_at, .. } =
        &update.progress;
    connection
        .prepare_cached(
            "UPDATE agent_jobs SET state = ?2, owner = ?3, attempt = ?4, requeues = ?5, paused_until = ?6,
                cancel_requested_at = ?7, started_at = ?8, completed_at = ?9, duration_ms = ?10, revision = ?11
            WHERE id = ?1",
        )?
        .execute(params![
            job.as_uuid().as_bytes(),
            state,
            owner,
            attempt,
            requeues,
            paused_until.map(to_i64),
            cancel_requested_at.map(to_i64),
            update.started_at.map(to_i64),
            update.completed_at.map(to_i64),
            update.duration_ms.map(to_i64),
            to_i64(update.revision),
        ])?;
    Ok(())
}

/// Claims a job for an owner and returns it. Reads the job before the write: an unreadable job is never claimed.
pub fn claim(
    tx: &mut WriteTransaction<'_>,
    job: JobId,
    owner: &Owner,
    lease: Timestamp,
    now: Timestamp,
) -> Result<Option<Job>, QueryError> {
    let Some(queued) = reads::job(tx.connection, job)? else { return Ok(None) };
    let claimed = claimed_by(queued, owner, lease, now)?;
    let update = JobUpdate {
        progress: ProgressRow::from(&claimed.progress),
        started_at: claimed.started_at.map(Timestamp::as_millis),
        completed_at: None,
        duration_ms: None,
        revision: claimed.revision,
    };
    update_job(tx.connection, job, &update)?;
    tx.record_change(job, claimed.progress.state.name(), claimed.revision);
    Ok(Some(claimed))
}

/// Returns the job as claimed by an owner.
pub fn claimed_by(job: Job, owner: &Owner, lease: Timestamp, now: Timestamp) -> Result<Job, StoreError> {
    let step = Transition::Claim { owner: owner.clone() };
    let after = job.progress.apply(&step, now);
    Ok(Job {
        progress: after.map_err(|refusal| StoreError::Refused { job: job.id, refusal })?,
        lease: Some(Lease { owner: owner.clone(), expires_at: lease }),
        started_at: job.started_at.or(Some(now)),
        revision: job.revision + 1,
        ..job
    })
}

/// Writes the final step and its result in one statement: the row may be long and is rewritten once.
fn update_ended_job(
    connection: &Connection,
    job: JobId,
    update: &JobUpdate,
    end: &EndRow,
    now: Timestamp,
) -> Result<(), QueryError> {
    let EndRow {
        model,
        session,
        duration_ms,
        is_last_session,
        usage,
        cost_usd,
        failure,
        outcome,
        metadata,
        exchange,
    } = end;
    let ProgressRow { state, owner, attempt, requeues, paused_until, cancel_requested_at, .. } =
        &update.progress;
    let tokens = |part: fn(&Usage) -> u64| usage.as_ref().map(part).map(to_i64);
    connection
        .prepare_cached(
            "UPDATE agent_jobs SET state = ?2, owner = ?3, attempt = ?4, requeues = ?5, paused_until = ?6,
                cancel_requested_at = ?7, started_at = ?8, completed_at = ?9, duration_ms = ?10, revision = ?11,
                model = coalesce(?12, model), session = coalesce(?13, session), exchange = ?14,
                input_tokens = ?15, output_tokens = ?16, cached_tokens = ?17, reasoning_tokens = ?18,
                cost_usd = ?19, failure = ?20, outcome = ?21, metadata = ?22
            WHERE id = ?1",
        )?
        .execute(params![
            job.as_uuid().as_bytes(),
            state,
            owner,
            attempt,
            requeues,
            paused_until.map(to_i64),
            cancel_requested_at.map(to_i64),
            update.started_at.map(to_i64),
            update.completed_at.map(to_i64),
            to_i64(*duration_ms),
            to_i64(update.revision),
            model,
            session.as_ref().map(SessionId::as_str),
            exchange.as_ref().map(|exchange| *exchange.id.as_uuid().as_bytes()),
            tokens(|usage| usage.input),
            tokens(|usage| usage.output),
            tokens(|usage| usage.cached),
            tokens(|usage| usage.reasoning),
            cost_usd,
            failure,
            outcome,
            metadata,
        ])?;
    if let Some(exchange) = exchange {
        insert_exchange(connection, job, exchange, now)?;
    }
    if let Some(session) = session.as_ref().filter(|_| *is_last_session) {
        upsert_last_session(connection, job, session, now)?;
    }
    Ok(())
}

pub fn insert_exchange(
    connection: &Connection,
    job: JobId,
    exchange: &ExchangeRow,
    now: Timestamp,
) -> Result<(), QueryError> {
    connection
        .prepare_cached(
            "INSERT INTO agent_exchanges (id, job, created_at, prompt, response) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            exchange.id.as_uuid().as_bytes(),
            job.as_uuid().as_bytes(),
            to_i64(now.as_millis()),
            exchange.prompt,
            exchange.response,
        ])?;
    Ok(())
}

/// Stores the session of a job, also as the last session of its task.
pub fn note_session(
    tx: &mut WriteTransaction<'_>,
    claim: &Claim,
    session: &SessionId,
    now: Timestamp,
) -> Result<(), QueryError> {
    let job = claim.job;
    let head = reads::job_head(tx.connection, job)?;
    let progress = head.progress.into_progress(job)?;
    // A claim that permits finishing the job also permits this.
    let probe = Transition::Finish { claim: claim.clone(), how: model::TerminalState::Completed };
    progress.apply(&probe, now).map_err(|refusal| StoreError::Refused { job, refusal })?;
    tx.connection
        .prepare_cached("UPDATE agent_jobs SET session = ?2, revision = ?3 WHERE id = ?1")?
        .execute(params![job.as_uuid().as_bytes(), session.as_str(), to_i64(head.revision + 1)])?;
    upsert_last_session(tx.connection, job, session, now)?;
    tx.record_change(job, progress.state.name(), head.revision + 1);
    Ok(())
}

pub fn upsert_last_session(
    connection: &Connection,
    job: JobId,
    session: &SessionId,
    now: Timestamp,
) -> Result<(), QueryError> {
    connection
        .prepare_cached(
            "INSERT INTO tool_sessions (agent, task, home, session, cwd, job, updated_at)
            SELECT agent, task, home, ?2, cwd, id, ?3 FROM agent_jobs WHERE id = ?1
            ON CONFLICT DO UPDATE SET session = excluded.session, cwd = excluded.cwd, job = excluded.job,
                updated_at = excluded.updated_at",
        )?
        .execute(params![job.as_uuid().as_bytes(), session.as_str(), to_i64(now.as_millis())])?;
    Ok(())
}

/// Releases a claim whose run was never started. Consumes the attempt number but no requeue.
pub fn release_claim(tx: &mut WriteTransaction<'_>, claim: &Claim, now: Timestamp) -> Result<(), QueryError> {
    let job = claim.job;
    let paused =
        apply_transition(tx, job, &Transition::Pause { claim: claim.clone(), until: now }, None, now)?;
    if paused.after.state.name() == StateName::Paused {
        apply_transition(tx, job, &Transition::Wake, None, now)?;
    }
    if claim.attempt.number() == 1 {
        tx.connection
            .prepare_cached("UPDATE agent_jobs SET started_at = NULL, duration_ms = NULL WHERE id = ?1")?
            .execute([job.as_uuid().as_bytes()])?;
    }
    Ok(())
}

/// Queues the jobs whose pause has ended.
pub fn queue_due(tx: &mut WriteTransaction<'_>, now: Timestamp) -> Result<(), QueryError> {
    let due: Vec<[u8; 16]> = tx
        .connection
        // Uses the index on the time: with the one on the state, every claim would read all paused jobs.
        .prepare_cached(
            "SELECT id FROM agent_jobs INDEXED BY jobs_paused WHERE state = 'paused' AND paused_until <= ?1",
        )?
        .query_map([to_i64(now.as_millis())], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for id in due {
        let job = JobId::from_uuid(uuid::Uuid::from_bytes(id));
        match apply_transition(tx, job, &Transition::Wake, None, now) {
            Err(failed) if failed.is_unreadable_record() => fail_unreadable(tx, job, now)?,
            other => drop(other?),
        }
    }
    Ok(())
}

/// Fails a job with an unreadable record, so that it does not block the others.
pub fn fail_unreadable(tx: &mut WriteTransaction<'_>, job: JobId, now: Timestamp) -> Result<(), QueryError> {
    let revision: i64 = tx
        .connection
        .prepare_cached(
            "UPDATE agent_jobs SET state = 'failed', owner = NULL, paused_until = NULL, completed_at = ?2,
                revision = revision + 1
            WHERE id = ?1 RETURNING revision",
        )?
        .query_row(params![job.as_uuid().as_bytes(), to_i64(now.as_millis())], |row| row.get(0))?;
    tx.record_change(job, StateName::Failed, u64::try_from(revision).unwrap_or(0));
    Ok(())
}
