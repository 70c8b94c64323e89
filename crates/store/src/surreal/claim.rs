//! Finds the oldest job that an owner can serve, and tells who is alive.

use model::{Attempt, Claim, Job, JobId, Owner, StateName, Step, Timestamp};
use surrealdb::types::SurrealValue;

use crate::error::StoreError;
use crate::requests::{ClaimRequest, Held, RescueRequest};
use crate::row::Reader;
use crate::surreal::records::{LINE, LineRecord, int, queue_name, worker_id};
use crate::surreal::wire::{Fault, Pause, TRIES, Vars, Wire};
use crate::surreal::{jobs, reads};

/// How many of a queue are looked at, so that one that another daemon takes does not cost a further question.
const LOOK_AT: i64 = 4;

/// What one look at the server finds.
struct Look {
    /// Jobs whose pause is over.
    due: Vec<String>,
    /// How many jobs of each agent the owner has.
    held: Vec<HeldCount>,
    /// The first of each queue.
    ready: Vec<LineRecord>,
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct HeldCount {
    agent: String,
    jobs: i64,
}

/// Takes the oldest job of the owner's homes and agents, if there is one. The caller lets one claim of a process in at a time:
/// the number of jobs that the owner has must not change between the look and the step.
pub async fn oldest(wire: &Wire, request: &ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError> {
    let mut pause = Pause::default();
    for _ in 0..TRIES {
        let look = look(wire, request, now).await?;
        if !look.due.is_empty() {
            wake(wire, &look.due, now).await?;
            continue;
        }
        let mut ready: Vec<LineRecord> =
            look.ready.into_iter().filter(|job| has_room(request, &look.held, &job.agent)).collect();
        if ready.is_empty() {
            return Ok(None);
        }
        ready.sort_by(|a, b| a.placed.cmp(&b.placed));
        for head in ready {
            if let Some(job) = take(wire, &head, request, now).await? {
                return Ok(Some(job));
            }
        }
        // All of them went to others.
        pause.wait().await;
    }
    Err(wire.too_many_conflicts())
}

/// The heartbeat and all that has to be known, in one question.
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
    // Each queue is a parameter of its own: only its number goes into the text.
    let firsts = (0..queues.len()).map(|number| {
        format!("SELECT {LINE} FROM agent_jobs WHERE queue = $queue_{number} ORDER BY placed LIMIT $look_at;")
    });
    let query = format!(
        "UPSERT $worker SET expires_at = $expires_at RETURN NONE;
        SELECT VALUE placed FROM agent_jobs WHERE paused_until > 0 AND paused_until <= $now;
        SELECT agent, count() AS jobs FROM agent_jobs WHERE owner = $owner GROUP BY agent;
        {}",
        firsts.collect::<String>()
    );
    let count = queues.len();
    for (number, queue) in queues.into_iter().enumerate() {
        vars = vars.with(format!("queue_{number}"), queue);
    }
    let mut answer = wire.read(&query, vars).await?;
    let (due, held) = (answer.rows(1)?, answer.rows(2)?);
    let mut ready = Vec::new();
    for number in 0..count {
        ready.extend(answer.rows::<LineRecord>(3 + number)?);
    }
    Ok(Look { due, held, ready })
}

fn has_room(request: &ClaimRequest, held: &[HeldCount], agent: &str) -> bool {
    let has = held.iter().find(|count| count.agent == agent).map_or(0, |count| count.jobs);
    let room = request.agents.iter().find(|capacity| capacity.agent.name() == agent);
    room.is_some_and(|capacity| has < i64::from(capacity.at_once))
}

/// Takes that job, unless somebody else was faster.
async fn take(
    wire: &Wire,
    head: &LineRecord,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Option<Job>, StoreError> {
    let step = Step::Claim { owner: request.owner.clone() };
    let change = jobs::Change::of(head, &step, None, now)?;
    let taken = match change.write(wire).await {
        Ok(taken) => taken,
        Err(Fault::Conflict) => false,
        Err(Fault::Failed(error)) => return Err(error),
        // Nobody but this owner can have claimed it with its name: the record tells.
        Err(Fault::Lost(cause)) => {
            let wanted = change.taken.after.state.holder();
            return match reads::job(wire, change.job).await {
                Ok(Some(job)) if job.progress.state.holder() == wanted => Ok(Some(job)),
                // As it was before: the claim may still arrive.
                Ok(Some(job)) if job.progress == change.taken.before => {
                    Err(jobs::unsure(wire, change.job, cause))
                }
                Ok(_) => Ok(None),
                Err(_) => Err(jobs::unsure(wire, change.job, cause)),
            };
        }
    };
    if !taken {
        return Ok(None);
    }
    // It is claimed: that it cannot be read must not look as if it were not.
    reads::job(wire, change.job).await.map_err(|error| jobs::unsure(wire, change.job, error.into()))
}

async fn wake(wire: &Wire, due: &[String], now: Timestamp) -> Result<(), StoreError> {
    for placed in due {
        let Ok(job) = placed.parse::<JobId>() else { continue };
        match jobs::take_step(wire, job, &Step::Wake, None, now).await {
            // Another daemon woke it, or somebody cancelled it.
            Ok(_) | Err(StoreError::Refused { .. } | StoreError::NoSuchJob { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The owner is alive until then; what it holds is answered.
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
    let held = answer.rows::<LineRecord>(1)?.into_iter().map(|line| {
        let job = line.job_id()?;
        let state: StateName = Reader(job).parse("state", &line.state)?;
        let claim = Claim { job, attempt: Attempt::new(line.standing().attempt), owner: owner.clone() };
        Ok(Held { claim, state, cancel_requested: line.cancel_requested_at.is_some() })
    });
    held.collect()
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Abandoned {
    placed: String,
    owner: String,
    home: String,
    expires_at: Option<i64>,
}

/// Takes over what owners hold that are dead, or silent for longer than their leases.
pub async fn take_over(wire: &Wire, request: &RescueRequest, now: Timestamp) -> Result<Vec<Job>, StoreError> {
    let RescueRequest { rescuer, homes, dead, lease } = request;
    let vars = Vars::new()
        .with("worker", worker_id(rescuer.as_str()))
        .with("expires_at", int(now.plus(*lease).as_millis()));
    let query = "UPSERT $worker SET expires_at = $expires_at RETURN NONE;
        SELECT placed, owner, home, worker.expires_at AS expires_at FROM agent_jobs
        WHERE state IN ['running', 'interrupted'] ORDER BY placed;";
    let mut answer = wire.read(query, vars).await?;
    let latest = request.latest_lease(now);
    let mut rescued = Vec::new();
    for Abandoned { placed, owner, home, expires_at } in answer.rows::<Abandoned>(1)? {
        let owner = Owner::new(owner);
        let silent = expires_at
            .is_none_or(|expires| expires <= int(now.as_millis()) || expires > int(latest.as_millis()));
        let served = homes.iter().any(|served| served.to_string() == home);
        if owner == *rescuer || !served || !(silent || dead.contains(&owner)) {
            continue;
        }
        let Ok(job) = placed.parse::<JobId>() else { continue };
        let step = Step::Rescue { from: owner, rescuer: rescuer.clone() };
        let taken = match jobs::take_step(wire, job, &step, None, now).await {
            Ok(_) => reads::job(wire, job).await.map_err(|error| jobs::unsure(wire, job, error.into())),
            // Its owner said a last word, or another rescuer was faster.
            Err(StoreError::Refused { .. } | StoreError::NoSuchJob { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        match taken {
            Ok(job) => rescued.extend(job),
            Err(error) if rescued.is_empty() => return Err(error),
            // The rescuer must hear of those that it holds by now. The next rescue finds the rest, or tells the error.
            Err(_) => break,
        }
    }
    Ok(rescued)
}
