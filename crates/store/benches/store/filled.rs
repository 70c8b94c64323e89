//! A file with so many jobs in it, and the way back to it.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::ours::Ours;

/// A file that was filled by the store. What is measured adds to it, and is taken away again before the next sample: a store of
/// 100 jobs would soon be one of thousands.
pub struct Filled {
    pub path: PathBuf,
    connection: Connection,
    /// The last of the jobs that belong to it.
    newest: Vec<u8>,
}

impl Filled {
    pub async fn with(jobs: usize, path: &Path) -> Self {
        let store = Ours::open(path).await;
        store.fill(jobs).await;
        drop(store);
        let connection = Connection::open(path).unwrap();
        let newest = connection.query_row("SELECT max(id) FROM agent_jobs", [], |row| row.get(0)).unwrap();
        Self { path: path.to_owned(), connection, newest }
    }

    /// Takes away what came later, and empties the log: every sample begins alike.
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
