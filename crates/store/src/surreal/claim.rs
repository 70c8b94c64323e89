//! Claims jobs, renews leases and rescues jobs.

use model::{Attempt, Claim, Job, JobId, Owner, StateName, Timestamp, Transition};
use surrealdb::types::SurrealValue;

use crate::error::StoreError;
use crate::requests::{ClaimRequest, Held, RescueRequest};
use crate::row::Reader;
use crate::surreal::records::{LINE, LineRecord, int, queue_name, worker_id};
use crate::surreal::wire::{Pause, TRIES, Vars, Wire, at_random};
use crate::surreal::{jobs, reads};

/// The number of jobs to read from the head of each queue: if another daemon claims one, no further query is
/// necessary.
const LOOK_AT: i64 = 16;
/// The number of claims to try before the queues are read again: the remaining candidates are stale by then.
const TRY: usize = 4;

/// The result of one query for claimable jobs.
struct Look {
    /// Jobs whose pause has ended.
    due: Vec<JobId>,
    /// The number of jobs of each agent that the owner holds.
    held: Vec<HeldCount>,
    /// The heads of the queues; an unreadable job is replaced by its id.
    ready: Vec<Result<LineRecord, JobId>>,
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct HeldCount {
    agent: String,
    jobs: i64,
}

/// Claims the oldest job of the owner's homes and agents, if there is one. The caller serializes the claims of a
/// process: the number of held jobs must not change between the query and the step.
pub async fn oldest(wire: &Wire, request: &ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError> {
    let mut pause = Pause::default();
    let mut contended = false;
    for _ in 0..TRIES {
        let Look { due, held, ready } = look(wire, request, now).await?;
        if !due.is_empty() {
            wake(wire, &due, now).await?;
            continue;
        }
        let (mut fitting, mut spoilt) = (Vec::new(), Vec::new());
        for line in ready {
            match line {
                Ok(line) if has_room(request, &held, &line.agent) => fitting.push(line),
                Ok(_) => {}
                Err(job) => spoilt.push(job),
            }
        }
        for job in &spoilt {
            jobs::give_up(wire, *job, now).await?;
        }
        if fitting.is_empty() && spoilt.is_empty() {
            return Ok(None);
        }
        fitting.sort_by(|a, b| a.placed.cmp(&b.placed));
        for _ in 0..TRY {
            // Oldest first. After a conflict a random one, or all daemons would compete for the same job again.
            if fitting.is_empty() {
                break;
            }
            let next = if contended { at_random(fitting.len()) } else { 0 };
            match take(wire, fitting.remove(next), request, now).await? {
                Taken::Job(job) => return Ok(Some(*job)),
                Taken::ByOthers => contended = true,
                Taken::MadeNoSense => {}
            }
        }
        // All candidates were claimed by others or unreadable.
        pause.wait().await;
    }
    Err(wire.too_many_conflicts())
}

/// Renews the lease and reads everything that a claim needs, in one query.
async fn look(wire: &Wire, request: &ClaimRequest, now: Timestamp) -> Result<Look, StoreError> {
    let ClaimRequest { owner, homes, agents, lease } = request;
    let mut vars = Vars::new()
        .with("worker", worker_id(owner.as_str()))
        .with("owner", owner.as_str())
        .with("expires_at", int(now.plus(*lease).as_millis()))
        .with("now", int(now.as_millis()))
        .with("look_at", LOOK_AT);
    let queues: Vec<String> = agents
        .iter()
        .flat_map(|capacity| homes.iter().map(|home| queue_name(&home.to_string(), capacity.agent.name())))
        .collect();
    // Each queue is a parameter; only its number becomes part of the text.
    let firsts = (0..queues.len()).map(|number| {
        format!("SELECT {LINE} FROM agent_jobs WHERE queue = $queue_{number} ORDER BY placed LIMIT $look_at;")
    });
    let query = format!(
        "UPSERT $worker SET expires_at = $expires_at RETURN NONE;
        SELECT id FROM agent_jobs WHERE paused_until > 0 AND paused_until <= $now;
        SELECT agent, count() AS jobs FROM agent_jobs WHERE owner = $owner GROUP BY agent;
        {}",
        firsts.collect::<String>()
    );
    let count = queues.len();
    for (number, queue) in queues.into_iter().enumerate() {
        vars = vars.with(format!("queue_{number}"), queue);
    }
    let mut answer = wire.read(&query, vars).await?;
    let (due, held) = (answer.jobs(1)?, answer.readable(2)?);
    let mut ready = Vec::new();
    for number in 0..count {
        ready.extend(answer.each(3 + number)?);
    }
    Ok(Look { due, held, ready })
}

fn has_room(request: &ClaimRequest, held: &[HeldCount], agent: &str) -> bool {
    let has = held.iter().find(|count| count.agent == agent).map_or(0, |count| count.jobs);
    let room = request.agents.iter().find(|capacity| capacity.agent.name() == agent);
    room.is_some_and(|capacity| has < i64::from(capacity.at_once))
}

/// The result of trying to claim a job.
enum Taken {
    Job(Box<Job>),
    ByOthers,
    /// The record is unreadable: the job was failed instead.
    MadeNoSense,
}

/// Claims a job, unless another daemon was faster.
async fn take(
    wire: &Wire,
    head: LineRecord,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Taken, StoreError> {
    let Ok(job) = head.job_id() else { return Ok(Taken::MadeNoSense) };
    let step = Transition::Claim { owner: request.owner.clone() };
    let claimed = jobs::take_step_from(wire, head, &step, now).await;
    read_taken(wire, job, claimed.map(|_| ()), now).await
}

/// Reads a job that was just claimed.
async fn read_taken(
    wire: &Wire,
    job: JobId,
    taken: Result<(), StoreError>,
    now: Timestamp,
) -> Result<Taken, StoreError> {
    let read = match taken {
        Ok(()) => reads::job(wire, job).await,
        Err(StoreError::Refused { .. } | StoreError::NoSuchJob { .. }) => return Ok(Taken::ByOthers),
        Err(error @ StoreError::Unreadable { .. }) => Err(error),
        Err(error) => return Err(error),
    };
    match read {
        Ok(job) => Ok(job.map_or(Taken::ByOthers, |job| Taken::Job(Box::new(job)))),
        Err(StoreError::Unreadable { .. }) => {
            jobs::give_up(wire, job, now).await.map(|()| Taken::MadeNoSense)
        }
        // The claim is committed, so a failed read must not report that nothing was written.
        Err(error) => Err(jobs::unsure(wire, job, error.into())),
    }
}

async fn wake(wire: &Wire, due: &[JobId], now: Timestamp) -> Result<(), StoreError> {
    for job in due {
        match jobs::take_step(wire, *job, &Transition::Wake, None, now).await {
            // Another daemon queued it, or it was cancelled.
            Ok(_) | Err(StoreError::Refused { .. } | StoreError::NoSuchJob { .. }) => {}
            Err(StoreError::Unreadable { .. }) => jobs::give_up(wire, *job, now).await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Renews the lease of an owner and returns its claims.
pub async fn renew(wire: &Wire, owner: &Owner, expires_at: Timestamp) -> Result<Vec<Held>, StoreError> {
    let vars = Vars::new()
        .with("worker", worker_id(owner.as_str()))
        .with("owner", owner.as_str())
        .with("expires_at", int(expires_at.as_millis()));
    let query = format!(
        "UPSERT $worker SET expires_at = $expires_at RETURN NONE;
        SELECT {LINE} FROM agent_jobs WHERE owner = $owner ORDER BY placed;"
    );
    let mut answer = wire.read(&query, vars).await?;
    // An unreadable record must not fail the heartbeat of the others.
    let held = answer.readable::<LineRecord>(1)?.into_iter().filter_map(|line| {
        let job = line.job_id().ok()?;
        let state: StateName = Reader(job).parse("state", &line.state).ok()?;
        let claim = Claim { job, attempt: Attempt::new(line.standing().attempt), owner: owner.clone() };
        Some(Held { claim, state, cancel_requested: line.cancel_requested_at.is_some() })
    });
    Ok(held.collect())
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Living {
    owner: String,
}

/// Returns the owners whose leases expire after a time and whose names start with a prefix.
pub async fn owners(wire: &Wire, prefix: &str, after: Timestamp) -> Result<Vec<Owner>, StoreError> {
    let vars = Vars::new().with("after", int(after.as_millis()));
    let query = "SELECT record::id(id) AS owner FROM agent_workers WHERE expires_at > $after;";
    let mut answer = wire.read(query, vars).await?;
    let names = answer.readable::<Living>(0)?.into_iter().map(|living| living.owner);
    Ok(names.filter(|name| name.starts_with(prefix)).map(Owner::new).collect())
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Abandoned {
    placed: String,
    owner: Option<String>,
    home: String,
    expires_at: Option<i64>,
}

impl Abandoned {
    /// Returns whether this rescuer may take over the job.
    fn is_for(&self, request: &RescueRequest, now: Timestamp) -> bool {
        let owner = self.owner();
        let latest = int(request.latest_lease(now).as_millis());
        let silent =
            self.expires_at.is_none_or(|expires| expires <= int(now.as_millis()) || expires > latest);
        let served = request.homes.iter().any(|served| served.to_string() == self.home);
        owner != request.rescuer && served && (silent || request.dead.contains(&owner))
    }

    fn owner(&self) -> Owner {
        Owner::new(self.owner.clone().unwrap_or_default())
    }
}

/// Takes over the jobs of owners that are dead or have an expired lease.
pub async fn take_over(wire: &Wire, request: &RescueRequest, now: Timestamp) -> Result<Vec<Job>, StoreError> {
    let RescueRequest { rescuer, lease, .. } = request;
    let vars = Vars::new()
        .with("worker", worker_id(rescuer.as_str()))
        .with("expires_at", int(now.plus(*lease).as_millis()));
    let query = "UPSERT $worker SET expires_at = $expires_at RETURN NONE;
        SELECT id, placed, owner, home, worker.expires_at AS expires_at FROM agent_jobs
        WHERE state IN ['running', 'interrupted'] ORDER BY placed;";
    let mut answer = wire.read(query, vars).await?;
    let mut rescued = Vec::new();
    for line in answer.each::<Abandoned>(1)? {
        match take_from(wire, line, request, now).await {
            Ok(job) => rescued.extend(job),
            Err(error) if rescued.is_empty() => return Err(error),
            // The rescuer must learn about the jobs that it already holds. The next rescue finds the rest or returns
            // the error.
            Err(_) => break,
        }
    }
    Ok(rescued)
}

async fn take_from(
    wire: &Wire,
    line: Result<Abandoned, JobId>,
    request: &RescueRequest,
    now: Timestamp,
) -> Result<Option<Job>, StoreError> {
    let abandoned = match line {
        Ok(abandoned) if abandoned.is_for(request, now) => abandoned,
        Ok(_) => return Ok(None),
        Err(job) => return jobs::give_up(wire, job, now).await.map(|()| None),
    };
    let Ok(job) = abandoned.placed.parse::<JobId>() else { return Ok(None) };
    let step = Transition::Rescue { from: abandoned.owner(), rescuer: request.rescuer.clone() };
    // Rejected if the owner finished the job, or another rescuer was faster.
    let taken = jobs::take_step(wire, job, &step, None, now).await;
    Ok(match read_taken(wire, job, taken.map(|_| ()), now).await? {
        Taken::Job(job) => Some(*job),
        Taken::ByOthers | Taken::MadeNoSense => None,
    })
}
