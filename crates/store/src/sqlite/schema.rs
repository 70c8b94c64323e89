//! The tables, and the migrations from earlier versions.
//!
//! A released migration never changes: existing files were created by it. Changes are further migrations.

use std::collections::BTreeSet;

use rusqlite::{Connection, TransactionBehavior};

use crate::error::StoreError;
use crate::sqlite::location::StoreLocation;

/// Identifies our files ("SWBD").
const APPLICATION_ID: i64 = 0x5357_4244;

/// The migrations from each version to the next; a new file has version 0.
const MIGRATIONS: [&str; 3] = [
    // 1: jobs, exchanges, last sessions, and owners with their leases.
    "CREATE TABLE agent_jobs (
        id BLOB NOT NULL PRIMARY KEY,
        revision INTEGER NOT NULL,
        state TEXT NOT NULL,
        owner TEXT,
        attempt INTEGER NOT NULL,
        requeues INTEGER NOT NULL,
        max_attempts INTEGER NOT NULL,
        paused_until INTEGER,
        cancel_requested_at INTEGER,
        created_at INTEGER NOT NULL,
        started_at INTEGER,
        completed_at INTEGER,
        duration_ms INTEGER,
        agent TEXT NOT NULL,
        model TEXT,
        tool TEXT NOT NULL,
        task TEXT NOT NULL,
        home TEXT NOT NULL,
        cwd TEXT NOT NULL,
        session TEXT,
        exchange BLOB,
        parent BLOB,
        idempotency_key TEXT,
        fire_and_forget INTEGER NOT NULL,
        expose_stream INTEGER NOT NULL,
        input_tokens INTEGER,
        output_tokens INTEGER,
        cached_tokens INTEGER,
        reasoning_tokens INTEGER,
        cost_usd REAL,
        prompt_head TEXT NOT NULL,
        failure TEXT,
        call TEXT NOT NULL,
        prompt TEXT NOT NULL,
        outcome TEXT
    ) STRICT;
    CREATE INDEX jobs_ready ON agent_jobs (home, agent, id) WHERE state = 'queued';
    CREATE INDEX jobs_held ON agent_jobs (owner, agent) WHERE state IN ('running', 'interrupted');
    CREATE INDEX jobs_paused ON agent_jobs (paused_until) WHERE state = 'paused';
    CREATE INDEX jobs_by_state ON agent_jobs (state, id);
    CREATE INDEX jobs_by_tool ON agent_jobs (tool, id);
    CREATE UNIQUE INDEX jobs_by_key ON agent_jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;
    CREATE TABLE agent_exchanges (
        id BLOB NOT NULL PRIMARY KEY,
        job BLOB NOT NULL,
        created_at INTEGER NOT NULL,
        prompt TEXT NOT NULL,
        response TEXT NOT NULL
    ) STRICT;
    CREATE INDEX exchanges_by_job ON agent_exchanges (job);
    CREATE TABLE tool_sessions (
        agent TEXT NOT NULL,
        task TEXT NOT NULL,
        home TEXT NOT NULL,
        session TEXT NOT NULL,
        cwd TEXT NOT NULL,
        job BLOB NOT NULL,
        updated_at INTEGER NOT NULL,
        PRIMARY KEY (agent, task, home)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE agent_workers (
        owner TEXT NOT NULL PRIMARY KEY,
        expires_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;",
    // 2: metadata of an outcome, child jobs, and finished jobs by end time.
    "ALTER TABLE agent_jobs ADD COLUMN metadata TEXT;
    CREATE INDEX jobs_by_parent ON agent_jobs (parent, id) WHERE parent IS NOT NULL;
    CREATE INDEX jobs_by_end ON agent_jobs (completed_at) WHERE completed_at IS NOT NULL;",
    // 3: an idempotency key is unique within its home, and a session is removed with its job.
    "DROP INDEX jobs_by_key;
    CREATE UNIQUE INDEX jobs_by_key ON agent_jobs (home, idempotency_key) WHERE idempotency_key IS NOT NULL;
    CREATE INDEX sessions_by_job ON tool_sessions (job);
    DELETE FROM tool_sessions WHERE job NOT IN (SELECT id FROM agent_jobs);",
];

/// Applies the missing migrations. Rejects a file that is newer than this program or belongs to another one.
pub fn migrate(connection: &mut Connection, location: &StoreLocation) -> Result<(), StoreError> {
    let failed = |error| location.query_error(error);
    let known = MIGRATIONS.len();
    if version(connection).map_err(failed)? == Some(known) && is_ours(connection).map_err(failed)? {
        return Ok(());
    }
    // Two processes may get here concurrently: the second waits for the lock and finds nothing to do.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    if !is_ours(&transaction).map_err(failed)? {
        return Err(StoreError::Foreign { location: location.name() });
    }
    let Some(missing) = version(&transaction).map_err(failed)?.and_then(|version| MIGRATIONS.get(version..))
    else {
        let found = user_version(&transaction).map_err(failed)?;
        return Err(StoreError::NewerVersion {
            location: location.name(),
            found,
            known: known.cast_signed() as i64,
        });
    };
    for migration in missing {
        transaction.execute_batch(migration).map_err(failed)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    transaction.pragma_update(None, "user_version", known.cast_signed() as i64).map_err(failed)?;
    transaction.commit().map_err(|error| location.commit_error(error))
}

fn user_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn version(connection: &Connection) -> rusqlite::Result<Option<usize>> {
    Ok(usize::try_from(user_version(connection)?).ok())
}

/// Returns whether the file has our tables: a new one has none.
pub fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(user_version(connection)? > 0)
}

/// Returns the first missing column of a file of this version or an older one: a table was dropped or replaced.
pub fn find_problem(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let Some(applied) = version(connection)?.and_then(|version| MIGRATIONS.get(..version)) else {
        return Ok(None);
    };
    let intact = Connection::open_in_memory()?;
    for migration in applied {
        intact.execute_batch(migration)?;
    }
    let found = columns(connection)?;
    let missing = columns(&intact)?.into_iter().find(|column| !found.contains(column));
    Ok(missing.map(|(table, column)| format!("the column `{column}` of the table `{table}` is missing")))
}

/// Returns the tables with their columns. A view is not a table.
fn columns(connection: &Connection) -> rusqlite::Result<BTreeSet<(String, String)>> {
    let mut statement = connection.prepare(
        "SELECT entry.name, col.name FROM sqlite_schema AS entry, pragma_table_info(entry.name) AS col
        WHERE entry.type = 'table'",
    )?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Returns whether the file is ours or empty.
pub fn is_ours(connection: &Connection) -> rusqlite::Result<bool> {
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if application == APPLICATION_ID {
        return Ok(true);
    }
    let entries: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(application == 0 && entries == 0 && user_version(connection)? == 0)
}
