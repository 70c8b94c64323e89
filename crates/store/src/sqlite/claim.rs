//! Claims the oldest job that an owner can serve.

use model::{AgentKind, Job, JobId, Placement, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::requests::{Capacity, ClaimRequest};
use crate::sqlite::rescue::KnownOwners;
use crate::sqlite::writer::WriteTransaction;
use crate::sqlite::{QueryError, jobs};

/// Claims the oldest job of the owner's homes and agents, if there is one.
pub fn claim_oldest(
    tx: &mut WriteTransaction<'_>,
    request: &ClaimRequest,
    known: &KnownOwners,
    now: Timestamp,
) -> Result<Option<Job>, QueryError> {
    let ClaimRequest { owner, lease, .. } = request;
    let expires_at = now.plus(*lease);
    known.heartbeat(tx.connection, owner, expires_at)?;
    jobs::queue_due(tx, now)?;
    while let Some(job) = oldest_claimable(tx.connection, request)? {
        match jobs::claim(tx, job, owner, expires_at, now) {
            Err(failed) if failed.is_unreadable_record() => jobs::fail_unreadable(tx, job, now)?,
            claimed => return claimed,
        }
    }
    Ok(None)
}

/// Returns a new job as claimed, if it is the owner's next one: the owner has capacity and nothing is queued. Returns
/// `None` if the queue must be searched instead.
pub fn claim_if_next(
    tx: &mut WriteTransaction<'_>,
    job: &Job,
    request: &ClaimRequest,
    known: &KnownOwners,
    now: Timestamp,
) -> Result<Option<Job>, QueryError> {
    let ClaimRequest { owner, homes, agents, lease } = request;
    let agent = job.order.call.agent;
    let Some(capacity) = agents.iter().find(|capacity| capacity.agent == agent) else { return Ok(None) };
    if !homes.contains(&job.order.home) {
        return Ok(None);
    }
    jobs::queue_due(tx, now)?;
    if has_queued(tx.connection)?
        || count_held(tx.connection, owner.as_str(), agent)? >= i64::from(capacity.at_once)
    {
        return Ok(None);
    }
    // The lease must be valid before the owner holds a job.
    let expires_at = now.plus(*lease);
    known.heartbeat(tx.connection, owner, expires_at)?;
    Ok(Some(jobs::claimed_by(job.clone(), owner, expires_at, now)?))
}

fn has_queued(connection: &Connection) -> Result<bool, QueryError> {
    let query = "SELECT EXISTS (SELECT 1 FROM agent_jobs WHERE state = 'queued')";
    Ok(connection.prepare_cached(query)?.query_row([], |row| row.get(0))?)
}

fn oldest_claimable(connection: &Connection, request: &ClaimRequest) -> Result<Option<JobId>, QueryError> {
    let ClaimRequest { owner, homes, agents, .. } = request;
    let mut oldest: Option<JobId> = None;
    for Capacity { agent, at_once } in agents {
        if count_held(connection, owner.as_str(), *agent)? >= i64::from(*at_once) {
            continue;
        }
        for home in homes {
            let found = oldest_queued(connection, home, *agent)?;
            oldest = [oldest, found].into_iter().flatten().min();
        }
    }
    Ok(oldest)
}

fn count_held(connection: &Connection, owner: &str, agent: AgentKind) -> Result<i64, QueryError> {
    let held = connection
        .prepare_cached(
            "SELECT count(*) FROM agent_jobs
            WHERE state IN ('running', 'interrupted') AND owner = ?1 AND agent = ?2",
        )?
        .query_row(params![owner, agent.name()], |row| row.get(0))?;
    Ok(held)
}

/// Returns the oldest queued job of one home and one agent, which is the first entry in the index, however long the
/// queue.
fn oldest_queued(
    connection: &Connection,
    home: &Placement,
    agent: AgentKind,
) -> Result<Option<JobId>, QueryError> {
    let id: Option<[u8; 16]> = connection
        .prepare_cached(
            "SELECT id FROM agent_jobs WHERE state = 'queued' AND home = ?1 AND agent = ?2 ORDER BY id LIMIT 1",
        )?
        .query_row(params![home.to_string(), agent.name()], |row| row.get(0))
        .optional()?;
    Ok(id.map(|id| JobId::from_uuid(Uuid::from_bytes(id))))
}
