//! Removes finished jobs past their retention.

use model::{JobId, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

use crate::requests::RetentionLimits;
use crate::sqlite::QueryError;
use crate::sqlite::jobs::to_i64;
use crate::sqlite::rescue::KnownOwners;

/// The maximum number of jobs per transaction.
const BATCH_SIZE: i64 = 500;

/// Owners whose leases expired this long ago are removed if they hold nothing.
const OWNER_RETENTION_MS: u64 = 24 * 60 * 60 * 1000;

/// Removes the oldest jobs past their retention and returns their ids; empty if there are none.
pub fn sweep_batch(
    connection: &Connection,
    retention: RetentionLimits,
    known: &KnownOwners,
    now: Timestamp,
) -> Result<Vec<JobId>, QueryError> {
    let mut ids = match retention.max_age {
        Some(age) => expired_jobs(connection, now.minus(age))?,
        None => Vec::new(),
    };
    if ids.is_empty()
        && let Some(count) = retention.max_count
    {
        ids = excess_jobs(connection, count)?;
    }
    for id in &ids {
        connection.prepare_cached("DELETE FROM agent_exchanges WHERE job = ?1")?.execute([id])?;
        // The last session of a task is removed with its job.
        connection.prepare_cached("DELETE FROM tool_sessions WHERE job = ?1")?.execute([id])?;
        connection.prepare_cached("DELETE FROM agent_jobs WHERE id = ?1")?.execute([id])?;
    }
    remove_expired_owners(connection, known, now)?;
    Ok(ids.into_iter().map(|id| JobId::from_uuid(Uuid::from_bytes(id))).collect())
}

fn expired_jobs(connection: &Connection, cutoff: Timestamp) -> Result<Vec<[u8; 16]>, QueryError> {
    // Only by its end time: its id may come from a clock that was ahead.
    let mut statement = connection.prepare_cached(
        "SELECT id FROM agent_jobs WHERE completed_at <= ?1 ORDER BY completed_at LIMIT ?2",
    )?;
    let ids = statement
        .query_map((to_i64(cutoff.as_millis()), BATCH_SIZE), |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    Ok(ids)
}

/// Returns the oldest jobs beyond the limit, by end time: an id may come from a clock that was ahead, or from a long
/// job.
fn excess_jobs(connection: &Connection, count: u64) -> Result<Vec<[u8; 16]>, QueryError> {
    let newest_excess: Option<(i64, [u8; 16])> = connection
        .prepare_cached(
            "SELECT completed_at, id FROM agent_jobs WHERE completed_at IS NOT NULL
            ORDER BY completed_at DESC, id DESC LIMIT 1 OFFSET ?1",
        )?
        .query_row([to_i64(count)], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((end, id)) = newest_excess else { return Ok(Vec::new()) };
    let mut statement = connection.prepare_cached(
        "SELECT id FROM agent_jobs WHERE completed_at <= ?1 AND (completed_at < ?1 OR id <= ?2)
        ORDER BY completed_at, id LIMIT ?3",
    )?;
    let ids = statement.query_map((end, id, BATCH_SIZE), |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(ids)
}

/// Removes the rows of earlier owners. The owner of this process has an expired lease when the machine was suspended.
fn remove_expired_owners(
    connection: &Connection,
    known: &KnownOwners,
    now: Timestamp,
) -> Result<(), QueryError> {
    let cutoff = to_i64(now.as_millis().saturating_sub(OWNER_RETENTION_MS));
    let mut statement = connection.prepare_cached(
        "SELECT owner FROM agent_workers WHERE expires_at < ?1 AND NOT EXISTS (
            SELECT 1 FROM agent_jobs AS job
            WHERE job.state IN ('running', 'interrupted') AND job.owner = agent_workers.owner)",
    )?;
    let expired = statement.query_map([cutoff], |row| row.get(0))?;
    let expired: Vec<String> = expired.collect::<Result<_, _>>()?;
    for owner in expired.iter().filter(|owner| !known.contains(owner)) {
        connection.prepare_cached("DELETE FROM agent_workers WHERE owner = ?1")?.execute([owner])?;
    }
    Ok(())
}
