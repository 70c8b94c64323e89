//! Removes finished jobs past their retention.

use model::{JobId, Timestamp};
use surrealdb::types::{SurrealValue, Value};

use crate::error::StoreError;
use crate::requests::Retention;
use crate::surreal::records::{int, job_record_id};
use crate::surreal::wire::{Vars, Wire};

/// The maximum number of jobs per transaction.
const PART: i64 = 200;

/// Owners whose leases expired this long ago are removed. Their jobs were rescued by then.
const FORGET_OWNERS_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// A batch of jobs and the result of their removal.
pub struct Part {
    pub jobs: Vec<JobId>,
    pub removed: Result<(), StoreError>,
}

/// Removes the oldest jobs past their retention; the batch is empty if there are none.
pub async fn part(wire: &Wire, retention: Retention, now: Timestamp) -> Result<Part, StoreError> {
    let mut jobs = match retention.max_age {
        Some(age) => too_old(wire, now.minus(age)).await?,
        None => Vec::new(),
    };
    if jobs.is_empty()
        && let Some(count) = retention.max_count
    {
        jobs = too_many(wire, count).await?;
    }
    if jobs.is_empty() {
        return Ok(Part { jobs, removed: Ok(()) });
    }
    let records: Vec<_> = jobs.iter().map(|id| job_record_id(*id)).collect();
    let names: Vec<_> = jobs.iter().map(JobId::to_string).collect();
    // Removes exchanges and last sessions with their jobs. One statement: all or nothing.
    let query = "{
            DELETE agent_exchanges WHERE job IN $names;
            DELETE tool_sessions WHERE job IN $names;
            DELETE $jobs;
        };";
    let vars = Vars::new().with("jobs", records).with("names", names);
    let removed = wire.insist(query, vars).await.map(|_| ()).map_err(|gave_up| match gave_up.lost {
        Some(source) => StoreError::Unconfirmed { place: wire.place(), job: None, source },
        None => gave_up.error,
    });
    Ok(Part { jobs, removed })
}

/// Removes owners whose leases expired long ago.
pub async fn forget_owners(wire: &Wire, now: Timestamp) -> Result<(), StoreError> {
    let vars = Vars::new().with("long_ago", int(now.as_millis().saturating_sub(FORGET_OWNERS_MS)));
    wire.read("DELETE agent_workers WHERE expires_at < $long_ago;", vars).await.map(|_| ())
}

async fn too_old(wire: &Wire, cutoff: Timestamp) -> Result<Vec<JobId>, StoreError> {
    // Only by its end time: its id may come from a clock that was ahead.
    let vars = Vars::new().with("cutoff", int(cutoff.as_millis())).with("part", PART);
    let query = "SELECT id, completed_at FROM agent_jobs
        WHERE completed_at > 0 AND completed_at <= $cutoff ORDER BY completed_at LIMIT $part;";
    wire.read(query, vars).await?.jobs(0)
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct EndedAt {
    placed: Value,
    completed_at: i64,
}

/// Returns the oldest jobs beyond the limit, by end time: an id may come from a clock that was ahead, or from a long
/// job.
async fn too_many(wire: &Wire, count: u64) -> Result<Vec<JobId>, StoreError> {
    let query = "SELECT placed, completed_at FROM agent_jobs WHERE completed_at > 0
        ORDER BY completed_at DESC, placed DESC LIMIT 1 START $count;";
    let vars = Vars::new().with("count", int(count));
    let Some(newest) = wire.read(query, vars).await?.rows::<EndedAt>(0)?.pop() else {
        return Ok(Vec::new());
    };
    let vars =
        Vars::new().with("newest", newest.placed).with("newest_end", newest.completed_at).with("part", PART);
    let query = "SELECT id, placed, completed_at FROM agent_jobs
        WHERE completed_at > 0 AND completed_at <= $newest_end AND (completed_at < $newest_end OR placed <= $newest)
        ORDER BY completed_at, placed LIMIT $part;";
    wire.read(query, vars).await?.jobs(0)
}
