//! Removes finished jobs past their retention.

use model::{JobId, Timestamp};
use surrealdb::types::{SurrealValue, Value};

use crate::error::StoreError;
use crate::requests::RetentionLimits;
use crate::surreal::client::{SurrealClient, Vars};
use crate::surreal::records::{job_record_id, to_i64};

/// The maximum number of jobs per transaction.
const BATCH_SIZE: i64 = 200;

/// Owners whose leases expired this long ago are removed. Their jobs were rescued by then.
const OWNER_RETENTION_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// A batch of jobs and the result of their removal.
pub struct SweepBatch {
    pub jobs: Vec<JobId>,
    pub result: Result<(), StoreError>,
}

/// Removes the oldest jobs past their retention; the batch is empty if there are none.
pub async fn sweep_batch(
    client: &SurrealClient,
    retention: RetentionLimits,
    now: Timestamp,
) -> Result<SweepBatch, StoreError> {
    let mut jobs = match retention.max_age {
        Some(age) => expired_jobs(client, now.minus(age)).await?,
        None => Vec::new(),
    };
    if jobs.is_empty()
        && let Some(count) = retention.max_count
    {
        jobs = excess_jobs(client, count).await?;
    }
    if jobs.is_empty() {
        return Ok(SweepBatch { jobs, result: Ok(()) });
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
    let result = client.run_write(query, vars).await.map(|_| ()).map_err(|error| match error.lost {
        Some(source) => StoreError::Unconfirmed { location: client.location(), job: None, source },
        None => error.last,
    });
    Ok(SweepBatch { jobs, result })
}

/// Removes owners whose leases expired long ago.
pub async fn remove_expired_owners(client: &SurrealClient, now: Timestamp) -> Result<(), StoreError> {
    let vars = Vars::new().with("long_ago", to_i64(now.as_millis().saturating_sub(OWNER_RETENTION_MS)));
    client.run("DELETE agent_workers WHERE expires_at < $long_ago;", vars).await.map(|_| ())
}

async fn expired_jobs(client: &SurrealClient, cutoff: Timestamp) -> Result<Vec<JobId>, StoreError> {
    // Only by its end time: its id may come from a clock that was ahead.
    let vars = Vars::new().with("cutoff", to_i64(cutoff.as_millis())).with("part", BATCH_SIZE);
    let query = "SELECT id, completed_at FROM agent_jobs
        WHERE completed_at > 0 AND completed_at <= $cutoff ORDER BY completed_at LIMIT $part;";
    client.run(query, vars).await?.jobs(0)
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct EndedAt {
    placed: Value,
    completed_at: i64,
}

/// Returns the oldest jobs beyond the limit, by end time: an id may come from a clock that was ahead, or from a long
/// job.
async fn excess_jobs(client: &SurrealClient, count: u64) -> Result<Vec<JobId>, StoreError> {
    let query = "SELECT placed, completed_at FROM agent_jobs WHERE completed_at > 0
        ORDER BY completed_at DESC, placed DESC LIMIT 1 START $count;";
    let vars = Vars::new().with("count", to_i64(count));
    let Some(newest) = client.run(query, vars).await?.rows::<EndedAt>(0)?.pop() else {
        return Ok(Vec::new());
    };
    let vars = Vars::new()
        .with("newest", newest.placed)
        .with("newest_end", newest.completed_at)
        .with("part", BATCH_SIZE);
    let query = "SELECT id, placed, completed_at FROM agent_jobs
        WHERE completed_at > 0 AND completed_at <= $newest_end AND (completed_at < $newest_end OR placed <= $newest)
        ORDER BY completed_at, placed LIMIT $part;";
    client.run(query, vars).await?.jobs(0)
}
