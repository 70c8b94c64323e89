//! Removes ended jobs that are kept no longer.

use model::{JobId, Timestamp};

use crate::error::StoreError;
use crate::requests::Retention;
use crate::surreal::records::{int, job_record_id};
use crate::surreal::wire::{Vars, Wire};

/// How many go in one transaction.
const PART: i64 = 200;

/// Owners that were last heard of this long ago are forgotten. What they hold, if anything, has been rescued by then.
const FORGET_OWNERS_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// Removes some, the oldest first, and answers which. Nothing is left to remove when it answers none.
pub async fn part(wire: &Wire, retention: Retention, now: Timestamp) -> Result<Vec<JobId>, StoreError> {
    let mut placed = match retention.max_age {
        Some(age) => too_old(wire, now.minus(age)).await?,
        None => Vec::new(),
    };
    if placed.is_empty()
        && let Some(count) = retention.max_count
    {
        placed = too_many(wire, count).await?;
    }
    let ids: Vec<JobId> = placed.iter().filter_map(|placed| placed.parse().ok()).collect();
    let records: Vec<_> = ids.iter().map(|id| job_record_id(*id)).collect();
    let vars = Vars::new()
        .with("jobs", records)
        .with("placed", placed)
        .with("long_ago", int(now.as_millis().saturating_sub(FORGET_OWNERS_MS)));
    let query = "{
            DELETE agent_exchanges WHERE job IN $placed;
            DELETE $jobs;
        };
        DELETE agent_workers WHERE expires_at < $long_ago;";
    wire.read(query, vars).await?;
    Ok(ids)
}

async fn too_old(wire: &Wire, cutoff: Timestamp) -> Result<Vec<String>, StoreError> {
    // By its end alone: its id may be of a clock that was ahead.
    let vars = Vars::new().with("cutoff", int(cutoff.as_millis())).with("part", PART);
    let query = "SELECT VALUE placed FROM agent_jobs
        WHERE completed_at > 0 AND completed_at <= $cutoff LIMIT $part;";
    wire.read(query, vars).await?.rows(0)
}

async fn too_many(wire: &Wire, count: u64) -> Result<Vec<String>, StoreError> {
    let query = "SELECT VALUE placed FROM agent_jobs WHERE completed_at > 0 ORDER BY placed DESC LIMIT 1 START $count;";
    let vars = Vars::new().with("count", int(count));
    let Some(newest) = wire.read(query, vars).await?.rows::<String>(0)?.pop() else { return Ok(Vec::new()) };
    let vars = Vars::new().with("newest", newest).with("part", PART);
    let query = "SELECT VALUE placed FROM agent_jobs WHERE completed_at > 0 AND placed <= $newest
        ORDER BY placed LIMIT $part;";
    wire.read(query, vars).await?.rows(0)
}
