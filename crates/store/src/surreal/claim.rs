//! Claims jobs, renews leases and rescues jobs.

use model::{Attempt, Claim, Job, JobId, Owner, StateName, Timestamp, Transition};
use surrealdb::types::SurrealValue;

use crate::error::StoreError;
use crate::requests::{ClaimRequest, HeldClaim, RescueRequest};
use crate::row::FieldReader;
use crate::surreal::client::{Backoff, MAX_ATTEMPTS, SurrealClient, Vars, random_index};
use crate::surreal::records::{SUMMARY_FIELDS, SummaryRecord, queue_name, to_i64, worker_id};
use crate::surreal::{jobs, reads};

/// The number of jobs to read from the head of each queue: if another daemon claims one, no further query is
/// necessary.
const QUEUE_HEAD: i64 = 16;
/// The number of claims to try before the queues are read again: the remaining candidates are stale by then.
const MAX_CANDIDATES: usize = 4;

/// The result of one query for claimable jobs.
struct Candidates {
    /// Jobs whose pause has ended.
    due: Vec<JobId>,
    /// The number of jobs of each agent that the owner holds.
    held: Vec<HeldCount>,
    /// The heads of the queues; an unreadable job is replaced by its id.
    ready: Vec<Result<SummaryRecord, JobId>>,
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct HeldCount {
    agent: String,
    jobs: i64,
}

/// Claims the oldest job of the owner's homes and agents, if there is one. The caller serializes the claims of a
/// process: the number of held jobs must not change between the query and the step.
pub async fn claim_oldest(
    client: &SurrealClient,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Option<Job>, StoreError> {
    let mut backoff = Backoff::default();
    let mut is_contended = false;
    for _ in 0..MAX_ATTEMPTS {
        let Candidates { due, held, ready } = find_candidates(client, request, now).await?;
        if !due.is_empty() {
            queue_due(client, &due, now).await?;
            continue;
        }
        let (mut claimable, mut unreadable) = (Vec::new(), Vec::new());
        for summary in ready {
            match summary {
                Ok(summary) if has_capacity(request, &held, &summary.agent) => claimable.push(summary),
                Ok(_) => {}
                Err(job) => unreadable.push(job),
            }
        }
        for job in &unreadable {
            jobs::fail_unreadable(client, *job, now).await?;
        }
        if claimable.is_empty() && unreadable.is_empty() {
            return Ok(None);
        }
        claimable.sort_by(|a, b| a.placed.cmp(&b.placed));
        for _ in 0..MAX_CANDIDATES {
            // Oldest first. After a conflict a random one, or all daemons would compete for the same job again.
            if claimable.is_empty() {
                break;
            }
            let next = if is_contended { random_index(claimable.len()) } else { 0 };
            match try_claim(client, claimable.remove(next), request, now).await? {
                ClaimAttempt::Claimed(job) => return Ok(Some(*job)),
                ClaimAttempt::Lost => is_contended = true,
                ClaimAttempt::Unreadable => {}
            }
        }
        // All candidates were claimed by others or unreadable.
        backoff.wait().await;
    }
    Err(client.too_many_conflicts())
}

/// Renews the lease and reads everything that a claim needs, in one query.
async fn find_candidates(
    client: &SurrealClient,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Candidates, StoreError> {
    let ClaimRequest { owner, homes, agents, lease } = request;
    let mut vars = Vars::new()
        .with("worker", worker_id(owner.as_str()))
        .with("owner", owner.as_str())
        .with("expires_at", to_i64(now.plus(*lease).as_millis()))
        .with("now", to_i64(now.as_millis()))
        .with("look_at", QUEUE_HEAD);
    let queues: Vec<String> = agents
        .iter()
        .flat_map(|capacity| homes.iter().map(|home| queue_name(&home.to_string(), capacity.agent.name())))
        .collect();
    // Each queue is a parameter; only its number becomes part of the text.
    let selects = (0..queues.len()).map(|number| {
        format!("SELECT {SUMMARY_FIELDS} FROM agent_jobs WHERE queue = $queue_{number} ORDER BY placed LIMIT $look_at;")
    });
    let query = format!(
        "UPSERT $worker SET expires_at = $expires_at RETURN NONE;
        SELECT id FROM agent_jobs WHERE paused_until > 0 AND paused_until <= $now;
        SELECT agent, count() AS jobs FROM agent_jobs WHERE owner = $owner GROUP BY agent;
        {}",
        selects.collect::<String>()
    );
    let count = queues.len();
    for (number, queue) in queues.into_iter().enumerate() {
        vars = vars.with(format!("queue_{number}"), queue);
    }
    let mut reply = client.run(&query, vars).await?;
    let (due, held) = (reply.jobs(1)?, reply.readable(2)?);
    let mut ready = Vec::new();
    for number in 0..count {
        ready.extend(reply.rows_or_ids(3 + number)?);
    }
    Ok(Candidates { due, held, ready })
}

fn has_capacity(request: &ClaimRequest, held: &[HeldCount], agent: &str) -> bool {
    let running = held.iter().find(|count| count.agent == agent).map_or(0, |count| count.jobs);
    let capacity = request.agents.iter().find(|capacity| capacity.agent.name() == agent);
    capacity.is_some_and(|capacity| running < i64::from(capacity.at_once))
}

/// The result of trying to claim a job.
enum ClaimAttempt {
    Claimed(Box<Job>),
    Lost,
    /// The record is unreadable: the job was failed instead.
    Unreadable,
}

/// Claims a job, unless another daemon was faster.
async fn try_claim(
    client: &SurrealClient,
    head: SummaryRecord,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<ClaimAttempt, StoreError> {
    let Ok(job) = head.job_id() else { return Ok(ClaimAttempt::Unreadable) };
    let step = Transition::Claim { owner: request.owner.clone() };
    let claimed = jobs::apply_transition_from(client, head, &step, now).await;
    read_claimed(client, job, claimed.map(|_| ()), now).await
}

/// Reads a job that was just claimed.
async fn read_claimed(
    client: &SurrealClient,
    job: JobId,
    claimed: Result<(), StoreError>,
    now: Timestamp,
) -> Result<ClaimAttempt, StoreError> {
    let read = match claimed {
        Ok(()) => reads::job(client, job).await,
        Err(StoreError::Refused { .. } | StoreError::NoSuchJob { .. }) => return Ok(ClaimAttempt::Lost),
        Err(error @ StoreError::Unreadable { .. }) => Err(error),
        Err(error) => return Err(error),
    };
    match read {
        Ok(job) => Ok(job.map_or(ClaimAttempt::Lost, |job| ClaimAttempt::Claimed(Box::new(job)))),
        Err(StoreError::Unreadable { .. }) => {
            jobs::fail_unreadable(client, job, now).await.map(|()| ClaimAttempt::Unreadable)
        }
        // The claim is committed, so a failed read must not report that nothing was written.
        Err(error) => Err(jobs::unconfirmed(client, job, error.into())),
    }
}

async fn queue_due(client: &SurrealClient, due: &[JobId], now: Timestamp) -> Result<(), StoreError> {
    for job in due {
        match jobs::apply_transition(client, *job, &Transition::Wake, None, now).await {
            // Another daemon queued it, or it was cancelled.
            Ok(_) | Err(StoreError::Refused { .. } | StoreError::NoSuchJob { .. }) => {}
            Err(StoreError::Unreadable { .. }) => jobs::fail_unreadable(client, *job, now).await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Renews the lease of an owner and returns its claims.
pub async fn renew(
    client: &SurrealClient,
    owner: &Owner,
    expires_at: Timestamp,
) -> Result<Vec<HeldClaim>, StoreError> {
    let vars = Vars::new()
        .with("worker", worker_id(owner.as_str()))
        .with("owner", owner.as_str())
        .with("expires_at", to_i64(expires_at.as_millis()));
    let query = format!(
        "UPSERT $worker SET expires_at = $expires_at RETURN NONE;
        SELECT {SUMMARY_FIELDS} FROM agent_jobs WHERE owner = $owner ORDER BY placed;"
    );
    let mut reply = client.run(&query, vars).await?;
    // An unreadable record must not fail the heartbeat of the others.
    let held = reply.readable::<SummaryRecord>(1)?.into_iter().filter_map(|summary| {
        let job = summary.job_id().ok()?;
        let state: StateName = FieldReader(job).parse("state", &summary.state).ok()?;
        let claim = Claim { job, attempt: Attempt::new(summary.progress().attempt), owner: owner.clone() };
        Some(HeldClaim { claim, state, cancel_requested: summary.cancel_requested_at.is_some() })
    });
    Ok(held.collect())
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct LiveOwner {
    owner: String,
}

/// Returns the owners whose leases expire after a time and whose names start with a prefix.
pub async fn live_owners(
    client: &SurrealClient,
    prefix: &str,
    after: Timestamp,
) -> Result<Vec<Owner>, StoreError> {
    let vars = Vars::new().with("after", to_i64(after.as_millis()));
    let query = "SELECT record::id(id) AS owner FROM agent_workers WHERE expires_at > $after;";
    let mut reply = client.run(query, vars).await?;
    let names = reply.readable::<LiveOwner>(0)?.into_iter().map(|live| live.owner);
    Ok(names.filter(|name| name.starts_with(prefix)).map(Owner::new).collect())
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct HeldJob {
    placed: String,
    owner: Option<String>,
    home: String,
    expires_at: Option<i64>,
}

impl HeldJob {
    /// Returns whether this rescuer may take over the job.
    fn is_orphan(&self, request: &RescueRequest, now: Timestamp) -> bool {
        let owner = self.owner();
        let latest = to_i64(request.latest_lease(now).as_millis());
        let is_expired =
            self.expires_at.is_none_or(|expires| expires <= to_i64(now.as_millis()) || expires > latest);
        let is_served = request.homes.iter().any(|served| served.to_string() == self.home);
        owner != request.rescuer && is_served && (is_expired || request.dead.contains(&owner))
    }

    fn owner(&self) -> Owner {
        Owner::new(self.owner.clone().unwrap_or_default())
    }
}

/// Takes over the jobs of owners that are dead or have an expired lease.
pub async fn rescue_jobs(
    client: &SurrealClient,
    request: &RescueRequest,
    now: Timestamp,
) -> Result<Vec<Job>, StoreError> {
    let RescueRequest { rescuer, lease, .. } = request;
    let vars = Vars::new()
        .with("worker", worker_id(rescuer.as_str()))
        .with("expires_at", to_i64(now.plus(*lease).as_millis()));
    let query = "UPSERT $worker SET expires_at = $expires_at RETURN NONE;
        SELECT id, placed, owner, home, worker.expires_at AS expires_at FROM agent_jobs
        WHERE state IN ['running', 'interrupted'] ORDER BY placed;";
    let mut reply = client.run(query, vars).await?;
    let mut rescued = Vec::new();
    for held in reply.rows_or_ids::<HeldJob>(1)? {
        match rescue_job(client, held, request, now).await {
            Ok(job) => rescued.extend(job),
            Err(error) if rescued.is_empty() => return Err(error),
            // The rescuer must learn about the jobs that it already holds. The next rescue finds the rest or returns
            // the error.
            Err(_) => break,
        }
    }
    Ok(rescued)
}

async fn rescue_job(
    client: &SurrealClient,
    held: Result<HeldJob, JobId>,
    request: &RescueRequest,
    now: Timestamp,
) -> Result<Option<Job>, StoreError> {
    let held = match held {
        Ok(held) if held.is_orphan(request, now) => held,
        Ok(_) => return Ok(None),
        Err(job) => return jobs::fail_unreadable(client, job, now).await.map(|()| None),
    };
    let Ok(job) = held.placed.parse::<JobId>() else { return Ok(None) };
    let step = Transition::Rescue { from: held.owner(), rescuer: request.rescuer.clone() };
    // Rejected if the owner finished the job, or another rescuer was faster.
    let rescued = jobs::apply_transition(client, job, &step, None, now).await;
    Ok(match read_claimed(client, job, rescued.map(|_| ()), now).await? {
        ClaimAttempt::Claimed(job) => Some(*job),
        ClaimAttempt::Lost | ClaimAttempt::Unreadable => None,
    })
}
