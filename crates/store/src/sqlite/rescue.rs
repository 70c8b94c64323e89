//! Leases, and the rescue of jobs from owners without one.

use model::{Attempt, Claim, Job, JobId, Owner, Timestamp, Transition};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::requests::{Held, RescueRequest};
use crate::row::Reader;
use crate::sqlite::jobs::int;
use crate::sqlite::writer::Ledger;
use crate::sqlite::{Failed, jobs, reads};

/// Renews the lease of an owner: one row for all its claims.
pub fn heartbeat(connection: &Connection, owner: &Owner, expires_at: Timestamp) -> Result<(), Failed> {
    connection
        .prepare_cached(
            "INSERT INTO agent_workers (owner, expires_at) VALUES (?1, ?2)
            ON CONFLICT DO UPDATE SET expires_at = excluded.expires_at",
        )?
        .execute(params![owner.as_str(), int(expires_at.as_millis())])?;
    Ok(())
}

/// Returns the owners whose leases expire after a time and whose names start with a prefix.
pub fn owners(connection: &Connection, prefix: &str, after: Timestamp) -> Result<Vec<Owner>, Failed> {
    let mut statement = connection.prepare_cached("SELECT owner FROM agent_workers WHERE expires_at > ?1")?;
    let names = statement.query_map([int(after.as_millis())], |row| row.get::<_, String>(0))?;
    let names: Vec<String> = names.collect::<Result<_, _>>()?;
    Ok(names.into_iter().filter(|name| name.starts_with(prefix)).map(Owner::new).collect())
}

/// The lease of an owner that has closed the store.
pub const RELEASED: i64 = 0;

/// Records that the owner has closed the store. This is its last write.
pub fn release(connection: &Connection, owner: &Owner) -> Result<(), Failed> {
    connection
        .prepare_cached("UPDATE agent_workers SET expires_at = ?2 WHERE owner = ?1")?
        .execute(params![owner.as_str(), RELEASED])?;
    Ok(())
}

/// Returns the expiry of an owner's lease, or `None` if it has no row.
pub fn lease_of(connection: &Connection, owner: &Owner) -> Result<Option<i64>, Failed> {
    let mut statement = connection.prepare_cached("SELECT expires_at FROM agent_workers WHERE owner = ?1")?;
    Ok(statement.query_row([owner.as_str()], |row| row.get(0)).optional()?)
}

/// Returns whether an owner has a row.
pub fn has_heartbeat(connection: &Connection, owner: &Owner) -> Result<bool, Failed> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM agent_workers WHERE owner = ?1")?;
    Ok(statement.exists([owner.as_str()])?)
}

/// Returns the claims of an owner.
pub fn held_by(connection: &Connection, owner: &Owner) -> Result<Vec<Held>, Failed> {
    let mut statement = connection.prepare_cached(
        "SELECT id, attempt, state, cancel_requested_at IS NOT NULL FROM agent_jobs
        WHERE state IN ('running', 'interrupted') AND owner = ?1 ORDER BY id",
    )?;
    let rows = statement.query_map([owner.as_str()], |row| {
        Ok((row.get::<_, [u8; 16]>(0)?, row.get(1)?, row.get::<_, String>(2)?, row.get(3)?))
    })?;
    let mut held = Vec::new();
    for row in rows {
        let (id, attempt, state, cancel_requested): (_, i64, _, _) = row?;
        // An unreadable record must not fail the heartbeat of the others.
        let Ok(attempt) = u32::try_from(attempt) else { continue };
        let job = JobId::from_uuid(Uuid::from_bytes(id));
        let claim = Claim { job, attempt: Attempt::new(attempt), owner: owner.clone() };
        held.push(Held { claim, state: Reader(job).parse("state", &state)?, cancel_requested });
    }
    Ok(held)
}

/// Takes over the jobs of owners that are dead or have an expired lease.
pub fn take_over(
    ledger: &mut Ledger<'_>,
    request: &RescueRequest,
    now: Timestamp,
) -> Result<Vec<Job>, Failed> {
    let RescueRequest { rescuer, homes, lease, .. } = request;
    heartbeat(ledger.connection, rescuer, now.plus(*lease))?;
    let mut jobs = Vec::new();
    for (job, owner, home) in abandoned(ledger.connection, now, request)? {
        if owner == *rescuer || !homes.iter().any(|served| served.to_string() == home) {
            continue;
        }
        match take(ledger, job, &Transition::Rescue { from: owner, rescuer: rescuer.clone() }, now) {
            Err(failed) if failed.is_of_record() => jobs::give_up(ledger, job, now)?,
            taken => jobs.extend(taken?),
        }
    }
    Ok(jobs)
}

fn take(
    ledger: &mut Ledger<'_>,
    job: JobId,
    step: &Transition,
    now: Timestamp,
) -> Result<Option<Job>, Failed> {
    jobs::take_step(ledger, job, step, None, now)?;
    reads::job(ledger.connection, job)
}

/// Returns the jobs whose owners are dead or have no valid lease.
fn abandoned(
    connection: &Connection,
    now: Timestamp,
    request: &RescueRequest,
) -> Result<Vec<(JobId, Owner, String)>, Failed> {
    let mut statement = connection.prepare_cached(
        "SELECT job.id, ifnull(job.owner, ''), job.home, ifnull(worker.expires_at NOT BETWEEN ?1 + 1 AND ?2, 1)
        FROM agent_jobs AS job LEFT JOIN agent_workers AS worker ON worker.owner = job.owner
        WHERE job.state IN ('running', 'interrupted') ORDER BY job.id",
    )?;
    let rows = statement
        .query_map([now, request.latest_lease(now)].map(|at| int(at.as_millis())), |row| {
            Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get::<_, bool>(3)?))
        })?;
    let mut abandoned = Vec::new();
    for row in rows {
        let (id, owner, home, silent) = row?;
        let owner = Owner::new(owner);
        if silent || request.dead.contains(&owner) {
            abandoned.push((JobId::from_uuid(Uuid::from_bytes(id)), owner, home));
        }
    }
    Ok(abandoned)
}
