//! The tables, and how a database of an earlier version becomes one of ours.
//!
//! A step, once released, is never changed. What is new comes as a further step.

use surrealdb::types::SurrealValue;

use crate::error::StoreError;
use crate::surreal::wire::{Vars, Wire};

/// What leads from each version to the next; a new database begins at 0.
///
/// - `placed` is the id as text: an index that ends with it has the jobs in the order of time, and is read in that order.
/// - `queue` stands for home and agent and is there only while a job waits; `owner` only while somebody holds it.
/// - `changed_at` is the server's time, the same for all who ask for changes.
const STEPS: [&str; 2] = [
    // 1: jobs, what was said in them, the last conversations, and who is alive.
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
    // 2: a key names one job of its home, and a conversation goes with the job that had it.
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

/// Takes the steps that the database lacks. Refuses one that is newer than this program.
///
/// Each step can be taken twice, and the version is written last: two programs that come at once, or one that is killed in
/// between, do no harm.
pub async fn bring_up_to_date(wire: &Wire) -> Result<(), StoreError> {
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    let mut answer = wire
        .read(
            "DEFINE TABLE IF NOT EXISTS switchboard SCHEMALESS; SELECT version FROM switchboard:schema;",
            Vars::new(),
        )
        .await?;
    let found = answer.rows::<Version>(1)?.first().map_or(0, |row| row.version);
    let Some(missing) = usize::try_from(found).ok().and_then(|version| STEPS.get(version..)) else {
        return Err(StoreError::NewerVersion { place: wire.place(), found, known });
    };
    if missing.is_empty() {
        return Ok(());
    }
    for step in missing {
        wire.read(step, Vars::new()).await?;
    }
    let vars = Vars::new().with("version", known);
    // A newer program may have been faster: its version stays.
    let query = "UPSERT switchboard:schema SET version = math::max([version ?? 0, $version]);";
    wire.read(query, vars).await?;
    Ok(())
}
