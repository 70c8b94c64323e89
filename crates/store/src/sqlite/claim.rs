//! Claims the oldest job that an owner can serve.

use std::time::Duration;

use model::{AgentKind, Job, JobId, Owner, Placement, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::requests::{Capacity, ClaimRequest};
use crate::sqlite::writer::Ledger;
use crate::sqlite::{Failed, jobs, rescue};

/// Claims the oldest job of the owner's homes and agents, if there is one.
pub fn oldest(
    ledger: &mut Ledger<'_>,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Option<Job>, Failed> {
    let ClaimRequest { owner, lease, .. } = request;
    let lease = look_alive(ledger, owner, *lease, now)?;
    jobs::wake_due(ledger, now)?;
    while let Some(job) = first_for(ledger.connection, request)? {
        match jobs::claim(ledger, job, owner, lease, now) {
            Err(failed) if failed.is_of_record() => jobs::give_up(ledger, job, now)?,
            taken => return taken,
        }
    }
    Ok(None)
}

/// Returns a new job as claimed, if it is the owner's next one: the owner has capacity and nothing is queued. Returns
/// `None` if the queue must be searched instead.
pub fn at_once(
    ledger: &mut Ledger<'_>,
    job: &Job,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Option<Job>, Failed> {
    let ClaimRequest { owner, homes, agents, lease } = request;
    let agent = job.order.call.agent;
    let Some(capacity) = agents.iter().find(|capacity| capacity.agent == agent) else { return Ok(None) };
    if !homes.contains(&job.order.home) {
        return Ok(None);
    }
    jobs::wake_due(ledger, now)?;
    if something_waits(ledger.connection)?
        || held(ledger.connection, owner.as_str(), agent)? >= i64::from(capacity.at_once)
    {
        return Ok(None);
    }
    let lease = look_alive(ledger, owner, *lease, now)?;
    Ok(Some(jobs::given_to(job.clone(), owner, lease, now)?))
}

/// Renews the owner's lease, which must be valid before the owner holds a job. Returns its expiry.
fn look_alive(
    ledger: &Ledger<'_>,
    owner: &Owner,
    lease: Duration,
    now: Timestamp,
) -> Result<Timestamp, Failed> {
    let until = now.plus(lease);
    rescue::heartbeat(ledger.connection, owner, until)?;
    Ok(until)
}

fn something_waits(connection: &Connection) -> Result<bool, Failed> {
    let waits = "SELECT EXISTS (SELECT 1 FROM agent_jobs WHERE state = 'queued')";
    Ok(connection.prepare_cached(waits)?.query_row([], |row| row.get(0))?)
}

fn first_for(connection: &Connection, request: &ClaimRequest) -> Result<Option<JobId>, Failed> {
    let ClaimRequest { owner, homes, agents, .. } = request;
    let mut oldest: Option<JobId> = None;
    for Capacity { agent, at_once } in agents {
        if held(connection, owner.as_str(), *agent)? >= i64::from(*at_once) {
            continue;
        }
        for home in homes {
            let found = first_ready(connection, home, *agent)?;
            oldest = [oldest, found].into_iter().flatten().min();
        }
    }
    Ok(oldest)
}

fn held(connection: &Connection, owner: &str, agent: AgentKind) -> Result<i64, Failed> {
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
fn first_ready(connection: &Connection, home: &Placement, agent: AgentKind) -> Result<Option<JobId>, Failed> {
    let id: Option<[u8; 16]> = connection
        .prepare_cached(
            "SELECT id FROM agent_jobs WHERE state = 'queued' AND home = ?1 AND agent = ?2 ORDER BY id LIMIT 1",
        )?
        .query_row(params![home.to_string(), agent.name()], |row| row.get(0))
        .optional()?;
    Ok(id.map(|id| JobId::from_uuid(Uuid::from_bytes(id))))
}
