//! A store filled with a number of jobs, which can be restored after each sample.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::subject::Subject;

/// A file filled by the store. Jobs added by a sample are removed before the next one: a store of 100 jobs would soon have
/// thousands.
pub struct FilledStore {
    pub path: PathBuf,
    connection: Connection,
    /// The id of the last job of the initial contents.
    newest: Vec<u8>,
}

impl FilledStore {
    pub async fn create(jobs: usize, path: &Path) -> Self {
        let store = Subject::open(path).await;
        store.fill(jobs).await;
        drop(store);
        let connection = Connection::open(path).unwrap();
        let newest = connection.query_row("SELECT max(id) FROM agent_jobs", [], |row| row.get(0)).unwrap();
        Self { path: path.to_owned(), connection, newest }
    }

    /// Removes later jobs and truncates the log, so that every sample starts equally.
    pub fn restore(&self) {
        for statement in [
            "DELETE FROM agent_exchanges WHERE job > ?1",
            "DELETE FROM tool_sessions WHERE job > ?1",
            "DELETE FROM agent_jobs WHERE id > ?1",
        ] {
            self.connection.prepare_cached(statement).unwrap().execute([&self.newest]).unwrap();
        }
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    }
}
