//! Writes jobs and their steps.

use model::{Claim, Job, JobId, Lease, Owner, Progress, SessionId, StateName, Timestamp, Transition, Usage};
use rusqlite::{Connection, named_params, params};

use crate::engine::Taken;
use crate::error::StoreError;
use crate::row::{EndRow, ExchangeRow, JobRow, LineRow, Standing};
use crate::sqlite::writer::Ledger;
use crate::sqlite::{Failed, reads};

/// Converts a number for `SQLite`. Saturates at the maximum.
pub fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Inserts a job. Returns the earlier job if one has the same key.
pub fn insert(connection: &Connection, row: &JobRow) -> Result<Option<JobRow>, Failed> {
    let JobRow { line, revision, idempotency_key, fire_and_forget, expose_stream, prompt, call, .. } = row;
    let LineRow { standing, .. } = line;
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
            ":id": line.id.as_bytes(),
            ":revision": int(*revision),
            ":state": standing.state,
            ":owner": standing.owner,
            ":attempt": standing.attempt,
            ":requeues": standing.requeues,
            ":max_attempts": standing.max_attempts,
            ":created_at": int(line.created_at),
            ":started_at": line.started_at.map(int),
            ":agent": line.agent,
            ":model": line.model,
            ":tool": line.tool,
            ":task": line.task,
            ":home": line.home,
            ":cwd": line.cwd,
            ":parent": line.parent.as_ref().map(uuid::Uuid::as_bytes),
            ":key": idempotency_key,
            ":fire_and_forget": fire_and_forget,
            ":expose_stream": expose_stream,
            ":prompt_head": line.prompt_head,
            ":call": call,
            ":prompt": prompt,
        })?;
    if inserted == 1 {
        return Ok(None);
    }
    let earlier = reads::row_of_key(connection, &line.home, idempotency_key.as_deref())?;
    Ok(Some(earlier.ok_or_else(|| taken_id(row))?))
}

/// Two random ids collided, which practically never happens.
fn taken_id(row: &JobRow) -> StoreError {
    let record = JobId::from_uuid(row.line.id).to_string();
    StoreError::Unreadable { record, field: "id", source: "another job has it".into() }
}

/// Applies a step to a job, if its state allows the step.
pub fn take_step(
    ledger: &mut Ledger<'_>,
    job: JobId,
    step: &Transition,
    end: Option<&EndRow>,
    now: Timestamp,
) -> Result<Taken, Failed> {
    let head = reads::head(ledger.connection, job)?;
    let before = head.standing.progress(job)?;
    let after = before.apply(step, now).map_err(|refusal| StoreError::Refused { job, refusal })?;
    let moved = Moved::to(&after, head.started_at, head.revision, now);
    match end {
        Some(end) => keep_end(ledger.connection, job, &moved, end, now)?,
        None => keep_step(ledger.connection, job, &moved)?,
    }
    ledger.changed(job, after.state.name(), moved.revision);
    Ok(Taken { before, after })
}

/// The columns that a step changes.
pub struct Moved {
    standing: Standing,
    started_at: Option<u64>,
    completed_at: Option<u64>,
    duration_ms: Option<u64>,
    revision: u64,
}

impl Moved {
    /// Returns the columns of a restored job.
    pub fn restored(row: &JobRow) -> Self {
        let LineRow { standing, started_at, completed_at, duration_ms, .. } = &row.line;
        Self {
            standing: standing.clone(),
            started_at: *started_at,
            completed_at: *completed_at,
            duration_ms: *duration_ms,
            revision: row.revision,
        }
    }

    fn to(after: &Progress, started_at: Option<u64>, revision: u64, now: Timestamp) -> Self {
        let state = after.state.name();
        // Set by the first claim.
        let started_at = started_at.or((state == StateName::Running).then(|| now.as_millis()));
        // After the clock was set back, a job must not end before its start.
        let completed_at = state.ended().map(|_| now.as_millis().max(started_at.unwrap_or_default()));
        let duration_ms = completed_at.zip(started_at).map(|(end, start)| end.saturating_sub(start));
        Self {
            standing: Standing::from(after),
            started_at,
            completed_at,
            duration_ms,
            revision: revision + 1,
        }
    }
}

pub fn keep_step(connection: &Connection, job: JobId, moved: &Moved) -> Result<(), Failed> {
    let Standing { state, owner, attempt, requeues, paused_until, cancel_requested_at, .. } = &moved.standing;
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
            paused_until.map(int),
            cancel_requested_at.map(int),
            moved.started_at.map(int),
            moved.completed_at.map(int),
            moved.duration_ms.map(int),
            int(moved.revision),
        ])?;
    Ok(())
}

/// Claims a job for an owner and returns it. Reads the job before the write: an unreadable job is never claimed.
pub fn claim(
    ledger: &mut Ledger<'_>,
    job: JobId,
    owner: &Owner,
    lease: Timestamp,
    now: Timestamp,
) -> Result<Option<Job>, Failed> {
    let Some(found) = reads::job(ledger.connection, job)? else { return Ok(None) };
    let given = given_to(found, owner, lease, now)?;
    let moved = Moved {
        standing: Standing::from(&given.progress),
        started_at: given.started_at.map(Timestamp::as_millis),
        completed_at: None,
        duration_ms: None,
        revision: given.revision,
    };
    keep_step(ledger.connection, job, &moved)?;
    ledger.changed(job, given.progress.state.name(), given.revision);
    Ok(Some(given))
}

/// Returns the job as claimed by an owner.
pub fn given_to(job: Job, owner: &Owner, lease: Timestamp, now: Timestamp) -> Result<Job, StoreError> {
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
fn keep_end(
    connection: &Connection,
    job: JobId,
    moved: &Moved,
    end: &EndRow,
    now: Timestamp,
) -> Result<(), Failed> {
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
    let Standing { state, owner, attempt, requeues, paused_until, cancel_requested_at, .. } = &moved.standing;
    let tokens = |part: fn(&Usage) -> u64| usage.as_ref().map(part).map(int);
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
            paused_until.map(int),
            cancel_requested_at.map(int),
            moved.started_at.map(int),
            moved.completed_at.map(int),
            int(*duration_ms),
            int(moved.revision),
            model,
            session.as_ref().map(SessionId::as_str),
            exchange.as_ref().map(|said| *said.id.as_uuid().as_bytes()),
            tokens(|usage| usage.input),
            tokens(|usage| usage.output),
            tokens(|usage| usage.cached),
            tokens(|usage| usage.reasoning),
            cost_usd,
            failure,
            outcome,
            metadata,
        ])?;
    if let Some(said) = exchange {
        keep_exchange(connection, job, said, now)?;
    }
    if let Some(session) = session.as_ref().filter(|_| *is_last_session) {
        keep_last_session(connection, job, session, now)?;
    }
    Ok(())
}

pub fn keep_exchange(
    connection: &Connection,
    job: JobId,
    said: &ExchangeRow,
    now: Timestamp,
) -> Result<(), Failed> {
    connection
        .prepare_cached(
            "INSERT INTO agent_exchanges (id, job, created_at, prompt, response) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            said.id.as_uuid().as_bytes(),
            job.as_uuid().as_bytes(),
            int(now.as_millis()),
            said.prompt,
            said.response,
        ])?;
    Ok(())
}

/// Stores the session of a job, also as the last session of its task.
pub fn note_session(
    ledger: &mut Ledger<'_>,
    claim: &Claim,
    session: &SessionId,
    now: Timestamp,
) -> Result<(), Failed> {
    let job = claim.job;
    let head = reads::head(ledger.connection, job)?;
    let progress = head.standing.progress(job)?;
    // A claim that permits finishing the job also permits this.
    let probe = Transition::Finish { claim: claim.clone(), how: model::TerminalState::Completed };
    progress.apply(&probe, now).map_err(|refusal| StoreError::Refused { job, refusal })?;
    ledger
        .connection
        .prepare_cached("UPDATE agent_jobs SET session = ?2, revision = ?3 WHERE id = ?1")?
        .execute(params![job.as_uuid().as_bytes(), session.as_str(), int(head.revision + 1)])?;
    keep_last_session(ledger.connection, job, session, now)?;
    ledger.changed(job, progress.state.name(), head.revision + 1);
    Ok(())
}

pub fn keep_last_session(
    connection: &Connection,
    job: JobId,
    session: &SessionId,
    now: Timestamp,
) -> Result<(), Failed> {
    connection
        .prepare_cached(
            "INSERT INTO tool_sessions (agent, task, home, session, cwd, job, updated_at)
            SELECT agent, task, home, ?2, cwd, id, ?3 FROM agent_jobs WHERE id = ?1
            ON CONFLICT DO UPDATE SET session = excluded.session, cwd = excluded.cwd, job = excluded.job,
                updated_at = excluded.updated_at",
        )?
        .execute(params![job.as_uuid().as_bytes(), session.as_str(), int(now.as_millis())])?;
    Ok(())
}

/// Releases a claim whose run was never started. Consumes the attempt number but no requeue.
pub fn put_back(ledger: &mut Ledger<'_>, claim: &Claim, now: Timestamp) -> Result<(), Failed> {
    let job = claim.job;
    let paused = take_step(ledger, job, &Transition::Pause { claim: claim.clone(), until: now }, None, now)?;
    if paused.after.state.name() == StateName::Paused {
        take_step(ledger, job, &Transition::Wake, None, now)?;
    }
    if claim.attempt.number() == 1 {
        ledger
            .connection
            .prepare_cached("UPDATE agent_jobs SET started_at = NULL, duration_ms = NULL WHERE id = ?1")?
            .execute([job.as_uuid().as_bytes()])?;
    }
    Ok(())
}

/// Queues the jobs whose pause has ended.
pub fn wake_due(ledger: &mut Ledger<'_>, now: Timestamp) -> Result<(), Failed> {
    let due: Vec<[u8; 16]> = ledger
        .connection
        // Uses the index on the time: with the one on the state, every claim would read all paused jobs.
        .prepare_cached(
            "SELECT id FROM agent_jobs INDEXED BY jobs_paused WHERE state = 'paused' AND paused_until <= ?1",
        )?
        .query_map([int(now.as_millis())], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for id in due {
        let job = JobId::from_uuid(uuid::Uuid::from_bytes(id));
        match take_step(ledger, job, &Transition::Wake, None, now) {
            Err(failed) if failed.is_of_record() => give_up(ledger, job, now)?,
            other => drop(other?),
        }
    }
    Ok(())
}

/// Fails a job with an unreadable record, so that it does not block the others.
pub fn give_up(ledger: &mut Ledger<'_>, job: JobId, now: Timestamp) -> Result<(), Failed> {
    let revision: i64 = ledger
        .connection
        .prepare_cached(
            "UPDATE agent_jobs SET state = 'failed', owner = NULL, paused_until = NULL, completed_at = ?2,
                revision = revision + 1
            WHERE id = ?1 RETURNING revision",
        )?
        .query_row(params![job.as_uuid().as_bytes(), int(now.as_millis())], |row| row.get(0))?;
    ledger.changed(job, StateName::Failed, u64::try_from(revision).unwrap_or(0));
    Ok(())
}
