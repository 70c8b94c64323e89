//! The tables, and the migrations from earlier versions.
//!
//! A released migration never changes. Changes are further migrations.

use surrealdb::types::SurrealValue;

use crate::error::StoreError;
use crate::surreal::client::{SurrealClient, Vars};

/// The migrations from each version to the next; a new database has version 0.
///
/// - `placed` is the id as text: an index that ends with it returns the jobs in the order of their submission.
/// - `queue` combines home and agent and exists only while a job is queued; `owner` exists only while a job is
///   claimed.
/// - `changed_at` is the time of the server, the same for all watchers.
const MIGRATIONS: [&str; 2] = [
    // 1: jobs, exchanges, last sessions, and owners with their leases.
    "
    DEFINE TABLE IF NOT EXISTS agent_jobs SCHEMALESS;
    DEFINE FIELD IF NOT EXISTS changed_at ON agent_jobs VALUE time::now();
    DEFINE INDEX IF NOT EXISTS jobs_ready ON agent_jobs FIELDS queue, placed;
    DEFINE INDEX IF NOT EXISTS jobs_held ON agent_jobs FIELDS owner, placed;
    DEFINE INDEX IF NOT EXISTS jobs_paused ON agent_jobs FIELDS paused_until;
    DEFINE INDEX IF NOT EXISTS jobs_by_placed ON agent_jobs FIELDS placed;
    DEFINE INDEX IF NOT EXISTS jobs_by_state ON agent_jobs FIELDS state, placed;
    DEFINE INDEX IF NOT EXISTS jobs_by_tool ON agent_jobs FIELDS tool, placed;
    DEFINE INDEX IF NOT EXISTS jobs_by_change ON agent_jobs FIELDS changed_at;
    DEFINE INDEX IF NOT EXISTS jobs_by_end ON agent_jobs FIELDS completed_at;
    DEFINE INDEX IF NOT EXISTS jobs_by_key ON agent_jobs FIELDS idempotency_key UNIQUE;
    DEFINE TABLE IF NOT EXISTS agent_exchanges SCHEMALESS;
    DEFINE INDEX IF NOT EXISTS exchanges_by_job ON agent_exchanges FIELDS job;
    DEFINE TABLE IF NOT EXISTS tool_sessions SCHEMALESS;
    DEFINE TABLE IF NOT EXISTS agent_workers SCHEMALESS;
    ",
    // 2: an idempotency key is unique within its home, and a session is removed with its job.
    "
    REMOVE INDEX IF EXISTS jobs_by_key ON agent_jobs;
    UPDATE agent_jobs SET scoped_key = <string> string::len(home) + ' ' + home + idempotency_key
        WHERE idempotency_key != NONE AND scoped_key = NONE RETURN NONE;
    DEFINE INDEX IF NOT EXISTS jobs_by_scoped_key ON agent_jobs FIELDS scoped_key UNIQUE;
    DEFINE INDEX IF NOT EXISTS sessions_by_job ON tool_sessions FIELDS job;
    ",
];

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Version {
    version: i64,
}

/// Applies the missing migrations. Rejects a database that is newer than this program.
///
/// Each migration is idempotent and the version is written last: two concurrent processes, or one that is killed
/// halfway, do no harm.
pub async fn migrate(client: &SurrealClient) -> Result<(), StoreError> {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    let mut reply = client
        .run(
            "DEFINE TABLE IF NOT EXISTS switchboard SCHEMALESS; SELECT version FROM switchboard:schema;",
            Vars::new(),
        )
        .await?;
    let found = reply.rows::<Version>(1)?.first().map_or(0, |row| row.version);
    let Some(missing) = usize::try_from(found).ok().and_then(|version| MIGRATIONS.get(version..)) else {
        return Err(StoreError::NewerVersion { location: client.location(), found, known });
    };
    if missing.is_empty() {
        return Ok(());
    }
    for migration in missing {
        client.run(migration, Vars::new()).await?;
    }
    let vars = Vars::new().with("version", known);
    // A newer program may have been faster: keep its version.
    let query = "UPSERT switchboard:schema SET version = math::max([version ?? 0, $version]);";
    client.run(query, vars).await?;
    Ok(())
}
