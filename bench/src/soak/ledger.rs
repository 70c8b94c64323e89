//! The observations so far: every call with its outcome, and all violations.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OpenFlags};

use crate::{Failure, output};

/// One call that has ended.
#[derive(Debug, Clone)]
pub struct LedgerEntry {
    /// Its idempotency key.
    pub key: String,
    /// The job it was.
    pub job: String,
    /// The first reported outcome.
    pub status: String,
}

/// Everything that was seen, by all callers.
#[derive(Debug, Default)]
pub struct SoakLedger {
    entries: Mutex<Vec<LedgerEntry>>,
    violations: Mutex<Vec<String>>,
}

impl SoakLedger {
    /// Notes a call that has ended.
    pub fn enter(&self, entry: LedgerEntry) {
        lock(&self.entries).push(entry);
    }

    /// Records a violation and prints it.
    pub fn violation(&self, what: &str) {
        output::progress(&format!("VIOLATION: {what}"));
        lock(&self.violations).push(what.to_owned());
    }

    /// Returns the violations.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }

    /// Counts the calls by outcome.
    pub fn ends(&self) -> BTreeMap<String, usize> {
        let mut ends = BTreeMap::new();
        for entry in lock(&self.entries).iter() {
            *ends.entry(entry.status.clone()).or_default() += 1;
        }
        ends
    }

    /// Compares with the store: one job for each call, with the reported outcome.
    pub fn compare(&self, database: &Path) -> Result<(), Failure> {
        let kept = kept(database)?;
        let entries = lock(&self.entries).clone();
        for entry in &entries {
            let jobs: Vec<_> = kept.iter().filter(|(key, _)| *key == entry.key).collect();
            match jobs.as_slice() {
                [(_, state)] if *state == entry.status => {}
                [(_, state)] => {
                    self.violation(&format!(
                        "job {}: reported as {}, stored as {state}",
                        entry.job, entry.status
                    ));
                }
                jobs => self.violation(&format!("{}: stored as {} jobs", entry.key, jobs.len())),
            }
        }
        for (key, state) in &kept {
            if !["completed", "failed", "timeout", "cancelled"].contains(&state.as_str()) {
                self.violation(&format!("{key}: it is still {state}"));
            }
        }
        Ok(())
    }
}

/// The key and the state of every job.
fn kept(database: &Path) -> Result<Vec<(String, String)>, Failure> {
    let connection = open(database)?;
    let mut query = connection.prepare("SELECT COALESCE(idempotency_key, hex(id)), state FROM agent_jobs")?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the engine's own integrity check; `ok` if the file is intact.
pub fn integrity(database: &Path) -> Result<String, Failure> {
    Ok(open(database)?.query_row("PRAGMA integrity_check", [], |row| row.get(0))?)
}

fn open(database: &Path) -> Result<Connection, Failure> {
    let connection = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    Ok(connection)
}

/// A panicked caller has recorded its observations until then.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_repeated_or_unfinished_call_is_a_violation() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        Connection::open(&file)
            .unwrap()
            .execute_batch(
                "CREATE TABLE agent_jobs (id BLOB, idempotency_key TEXT, state TEXT);
                 INSERT INTO agent_jobs VALUES (1, 'fine', 'completed'), (2, 'other', 'failed'), (3, 'twice', 'completed'),
                    (4, 'twice', 'completed'), (5, 'unended', 'running');",
            )
            .unwrap();
        let ledger = SoakLedger::default();
        for key in ["fine", "other", "twice", "lost"] {
            ledger.enter(LedgerEntry {
                key: key.to_owned(),
                job: key.to_owned(),
                status: "completed".to_owned(),
            });
        }
        ledger.compare(&file).unwrap();
        assert_eq!(
            ledger.violations(),
            [
                "job other: reported as completed, stored as failed",
                "twice: stored as 2 jobs",
                "lost: stored as 0 jobs",
                "unended: it is still running"
            ]
        );
        assert_eq!(integrity(&file).unwrap(), "ok");
    }
}
