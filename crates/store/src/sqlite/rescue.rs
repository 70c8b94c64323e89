//! Leases, and the rescue of jobs from owners without one.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::{Attempt, Claim, Job, JobId, Owner, Timestamp, Transition};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::error::StoreError;
use crate::loss::StoreLoss;
use crate::requests::{HeldClaim, RescueRequest};
use crate::row::FieldReader;
use crate::sqlite::jobs::to_i64;
use crate::sqlite::writer::WriteTransaction;
use crate::sqlite::{QueryError, jobs, reads};

/// The owners whose heartbeats this process has committed. Their rows must exist: a missing one means that somebody deleted records.
#[derive(Debug, Default)]
pub struct KnownOwners {
    owners: Mutex<HashSet<Owner>>,
    /// The loss to report; `None` for a database in memory, which nobody else can reach.
    loss: Option<StoreLoss>,
}

impl KnownOwners {
    pub fn new(loss: StoreLoss) -> Self {
        Self { owners: Mutex::default(), loss: Some(loss) }
    }

    /// Remembers an owner whose heartbeat was committed.
    pub fn insert(&self, owner: &Owner) {
        let mut owners = self.owners();
        if !owners.contains(owner) {
            owners.insert(owner.clone());
        }
    }

    pub fn contains(&self, owner: &str) -> bool {
        self.owners().iter().any(|known| known.as_str() == owner)
    }

    /// Renews the lease of an owner: one row for all its claims.
    pub fn heartbeat(
        &self,
        connection: &Connection,
        owner: &Owner,
        expires_at: Timestamp,
    ) -> Result<(), QueryError> {
        let expected_loss = self.loss.as_ref().filter(|_| self.owners().contains(owner));
        let statement = match expected_loss {
            Some(_) => "UPDATE agent_workers SET expires_at = ?2 WHERE owner = ?1",
            None => {
                "INSERT INTO agent_workers (owner, expires_at) VALUES (?1, ?2)
                ON CONFLICT DO UPDATE SET expires_at = excluded.expires_at"
            }
        };
        let values = params![owner.as_str(), to_i64(expires_at.as_millis())];
        let written = connection.prepare_cached(statement)?.execute(values)?;
        match expected_loss {
            Some(loss) if written == 0 => Err(StoreError::Lost(loss.clone()).into()),
            _ => Ok(()),
        }
    }

    fn owners(&self) -> MutexGuard<'_, HashSet<Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the owners whose leases expire after a time and whose names start with a prefix.
pub fn live_owners(
    connection: &Connection,
    prefix: &str,
    after: Timestamp,
) -> Result<Vec<Owner>, QueryError> {
    let mut statement = connection.prepare_cached("SELECT owner FROM agent_workers WHERE expires_at > ?1")?;
    let names = statement.query_map([to_i64(after.as_millis())], |row| row.get::<_, String>(0))?;
    let names: Vec<String> = names.collect::<Result<_, _>>()?;
    Ok(names.into_iter().filter(|name| name.starts_with(prefix)).map(Owner::new).collect())
}

/// The lease of an owner that has closed the store.
pub const RELEASED: i64 = 0;

/// Records that the owner has closed the store. This is its last write.
pub fn release(connection: &Connection, owner: &Owner) -> Result<(), QueryError> {
    connection
        .prepare_cached("UPDATE agent_workers SET expires_at = ?2 WHERE owner = ?1")?
        .execute(params![owner.as_str(), RELEASED])?;
    Ok(())
}

/// Returns the expiry of an owner's lease, or `None` if it has no row.
pub fn lease_expiry(connection: &Connection, owner: &Owner) -> Result<Option<i64>, QueryError> {
    let mut statement = connection.prepare_cached("SELECT expires_at FROM agent_workers WHERE owner = ?1")?;
    Ok(statement.query_row([owner.as_str()], |row| row.get(0)).optional()?)
}

/// Returns whether an owner has a row.
pub fn has_heartbeat(connection: &Connection, owner: &Owner) -> Result<bool, QueryError> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM agent_workers WHERE owner = ?1")?;
    Ok(statement.exists([owner.as_str()])?)
}

/// Returns the claims of an owner.
pub fn held_claims(connection: &Connection, owner: &Owner) -> Result<Vec<HeldClaim>, QueryError> {
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
        held.push(HeldClaim { claim, state: FieldReader(job).parse("state", &state)?, cancel_requested });
    }
    Ok(held)
}

/// Takes over the jobs of owners that are dead or have an expired lease.
pub fn rescue_jobs(
    tx: &mut WriteTransaction<'_>,
    request: &RescueRequest,
    known: &KnownOwners,
    now: Timestamp,
) -> Result<Vec<Job>, QueryError> {
    let RescueRequest { rescuer, homes, lease, .. } = request;
    known.heartbeat(tx.connection, rescuer, now.plus(*lease))?;
    let mut jobs = Vec::new();
    for (job, owner, home) in orphaned_jobs(tx.connection, now, request)? {
        if owner == *rescuer || !homes.iter().any(|served| served.to_string() == home) {
            continue;
        }
        match rescue_job(tx, job, &Transition::Rescue { from: owner, rescuer: rescuer.clone() }, now) {
            Err(failed) if failed.is_unreadable_record() => jobs::fail_unreadable(tx, job, now)?,
            rescued => jobs.extend(rescued?),
        }
    }
    Ok(jobs)
}

fn rescue_job(
    tx: &mut WriteTransaction<'_>,
    job: JobId,
    step: &Transition,
    now: Timestamp,
) -> Result<Option<Job>, QueryError> {
    jobs::apply_transition(tx, job, step, None, now)?;
    reads::job(tx.connection, job)
}

/// Returns the jobs whose owners are dead or have no valid lease.
fn orphaned_jobs(
    connection: &Connection,
    now: Timestamp,
    request: &RescueRequest,
) -> Result<Vec<(JobId, Owner, String)>, QueryError> {
    let mut statement = connection.prepare_cached(
        "SELECT job.id, ifnull(job.owner, ''), job.home, ifnull(worker.expires_at NOT BETWEEN ?1 + 1 AND ?2, 1)
        FROM agent_jobs AS job LEFT JOIN agent_workers AS worker ON worker.owner = job.owner
        WHERE job.state IN ('running', 'interrupted') ORDER BY job.id",
    )?;
    let rows = statement
        .query_map([now, request.latest_lease(now)].map(|at| to_i64(at.as_millis())), |row| {
            Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get::<_, bool>(3)?))
        })?;
    let mut orphaned = Vec::new();
    for row in rows {
        let (id, owner, home, is_expired) = row?;
        let owner = Owner::new(owner);
        if is_expired || request.dead.contains(&owner) {
            orphaned.push((JobId::from_uuid(Uuid::from_bytes(id)), owner, home));
        }
    }
    Ok(orphaned)
}
