//! The embedded engine: `SQLite` in one file, for one owner.
//!
//! All writes go through one thread ([`writer`]), which puts what is waiting into one transaction; reads have connections of
//! their own and never wait for a write (WAL).

mod claim;
mod faults;
mod file;
mod jobs;
mod reads;
mod rescue;
mod schema;
mod sweep;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use model::{
    AgentKind, Claim, Exchange, Home, Job, JobId, JobIdPrefix, Owner, SessionId, StateName, Step, Timestamp,
};
use tokio::sync::broadcast;

use crate::engine::{Engine, Taken};
use crate::error::StoreError;
use crate::requests::{
    ClaimRequest, Found, Held, JobFilter, LastSession, Page, PageRequest, RescueRequest, Retention,
};
use crate::row::{EndRow, JobRow};
use crate::stats::{Stats, StatsRange};
use crate::watch::{Change, Watch};
use faults::Place;
use file::Readers;
use writer::{Durability, Ledger, Writer};

/// How many changes a slow watcher may be behind before it misses some.
const CHANGES_KEPT: usize = 4_096;

/// A store in a `SQLite` file.
#[derive(Debug)]
pub struct Sqlite {
    // Dropped before the writer, so that the last connection, which tidies up the file, is one that may write.
    readers: Option<Arc<Readers>>,
    writer: Writer,
    changes: broadcast::Sender<Change>,
}

impl Sqlite {
    pub async fn open(path: PathBuf) -> Result<Self, StoreError> {
        let place = Place::file(&path);
        let readers = Readers::of(path.clone());
        let opened = tokio::task::spawn_blocking(move || file::open(&path));
        let connection = opened.await.map_err(|_| StoreError::Closed)??;
        Self::start(connection, place, Some(Arc::new(readers)))
    }

    /// A database in memory has one connection, so reads go through the writer.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let opened = tokio::task::spawn_blocking(file::in_memory);
        let connection = opened.await.map_err(|_| StoreError::Closed)??;
        Self::start(connection, Place::memory(), None)
    }

    fn start(
        connection: rusqlite::Connection,
        place: Place,
        readers: Option<Arc<Readers>>,
    ) -> Result<Self, StoreError> {
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        let writer = Writer::start(connection, place, changes.clone())?;
        Ok(Self { readers, writer, changes })
    }

    async fn read<T, F>(&self, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Connection) -> Result<T, Failed> + Send + 'static,
    {
        match &self.readers {
            Some(readers) => readers.clone().read(read).await,
            None => {
                self.writer
                    .write(Durability::Relaxed, |ledger: &mut Ledger<'_>| read(ledger.connection))
                    .await
            }
        }
    }
}

/// What went wrong within a statement: `SQLite` itself, or what the store has to say.
#[derive(Debug)]
pub enum Failed {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

#[async_trait]
impl Engine for Sqlite {
    async fn place(&self, job: Job) -> Result<(Job, bool), StoreError> {
        let row = JobRow::placed(&job)?;
        let id = job.id;
        let earlier = self
            .writer
            .write(Durability::Full, move |ledger: &mut Ledger<'_>| {
                let earlier = jobs::insert(ledger.connection, &row)?;
                if earlier.is_none() {
                    ledger.changed(id, StateName::Queued, row.revision);
                }
                Ok(earlier)
            })
            .await
            .map_err(|error| naming(error, id))?;
        match earlier {
            Some(row) => Ok((row.job()?, false)),
            None => Ok((job, true)),
        }
    }

    async fn claim(&self, request: ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError> {
        self.writer
            .write(Durability::Full, move |ledger: &mut Ledger<'_>| claim::oldest(ledger, &request, now))
            .await
    }

    async fn renew(&self, owner: Owner, expires_at: Timestamp) -> Result<Vec<Held>, StoreError> {
        // A heartbeat that a power cut takes with it is no loss: the owner is gone, too.
        self.writer
            .write(Durability::Relaxed, move |ledger: &mut Ledger<'_>| {
                rescue::heartbeat(ledger.connection, &owner, expires_at)?;
                rescue::held_by(ledger.connection, &owner)
            })
            .await
    }

    async fn step(
        &self,
        job: JobId,
        step: Step,
        end: Option<EndRow>,
        now: Timestamp,
    ) -> Result<Taken, StoreError> {
        self.writer
            .write(Durability::Full, move |ledger: &mut Ledger<'_>| {
                jobs::take_step(ledger, job, &step, end.as_ref(), now)
            })
            .await
            .map_err(|error| naming(error, job))
    }

    async fn note_session(&self, claim: Claim, session: SessionId, now: Timestamp) -> Result<(), StoreError> {
        self.writer
            .write(Durability::Full, move |ledger: &mut Ledger<'_>| {
                jobs::note_session(ledger, &claim, &session, now)
            })
            .await
    }

    async fn rescue(&self, request: RescueRequest, now: Timestamp) -> Result<Vec<Job>, StoreError> {
        self.writer
            .write(Durability::Full, move |ledger: &mut Ledger<'_>| rescue::take_over(ledger, &request, now))
            .await
    }

    async fn get(&self, job: JobId) -> Result<Option<Job>, StoreError> {
        self.read(move |connection| reads::job(connection, job)).await
    }

    async fn find(&self, prefix: JobIdPrefix) -> Result<Found, StoreError> {
        self.read(move |connection| reads::find(connection, prefix)).await
    }

    async fn list(&self, filter: JobFilter, page: PageRequest) -> Result<Page, StoreError> {
        self.read(move |connection| reads::list(connection, &filter, page)).await
    }

    async fn count(&self, filter: JobFilter) -> Result<u64, StoreError> {
        self.read(move |connection| reads::count(connection, &filter)).await
    }

    async fn exchange(&self, job: JobId) -> Result<Option<Exchange>, StoreError> {
        self.read(move |connection| reads::exchange(connection, job)).await
    }

    async fn last_session(
        &self,
        agent: AgentKind,
        task: String,
        home: Home,
    ) -> Result<Option<LastSession>, StoreError> {
        self.read(move |connection| reads::last_session(connection, agent, &task, &home)).await
    }

    async fn stats(&self, range: StatsRange) -> Result<Stats, StoreError> {
        self.read(move |connection| reads::stats(connection, range)).await
    }

    async fn watch(&self) -> Result<Watch, StoreError> {
        Ok(Watch::here(self.changes.subscribe()))
    }

    async fn sweep(&self, retention: Retention, now: Timestamp) -> Result<Vec<JobId>, StoreError> {
        let mut removed = Vec::new();
        loop {
            // In parts, so that nobody waits long for the writer.
            let part = self
                .writer
                .write(Durability::Full, move |ledger: &mut Ledger<'_>| {
                    sweep::part(ledger.connection, retention, now)
                })
                .await?;
            if part.is_empty() {
                return Ok(removed);
            }
            removed.extend(part);
        }
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.read(reads::check).await
    }
}

/// Names the job in an error that leaves it open whether it was written.
fn naming(error: StoreError, id: JobId) -> StoreError {
    match error {
        StoreError::Unconfirmed { place, source, .. } => {
            StoreError::Unconfirmed { place, job: Some(id), source }
        }
        other => other,
    }
}
