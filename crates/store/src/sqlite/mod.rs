//! The embedded engine: `SQLite` in one file, owned by one process.
//!
//! One connection writes: on the caller's thread if no other write is pending, else on the writer thread, which
//! commits all queued writes in one transaction and flushes the log ([`writer`]). Reads have their own connections
//! and never wait for a write (WAL).

mod claim;
mod faults;
mod file;
mod jobs;
mod log;
mod offline;
mod reads;
mod rescue;
mod schema;
mod sweep;
mod transactions;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use model::{
    AgentKind, Claim, Exchange, Job, JobId, JobIdPrefix, Owner, Placement, SessionId, Timestamp, Transition,
};
use tokio::sync::{broadcast, oneshot};

use crate::committed::{Committed, FlushTicket};
use crate::engine::{Begun, Engine, Taken};
use crate::error::{StoreError, SweepError};
use crate::loss::{Loss, StoreLoss};
use crate::requests::{
    ClaimRequest, Found, Held, JobFilter, LastSession, Page, PageRequest, RescueRequest, Retention,
};
use crate::row::{EndRow, JobRow};
use crate::stats::{Stats, StatsRange};
use crate::watch::{Change, Watch};
use faults::Place;
use file::{OpenFiles, Readers};
use log::{Log, NoLog};
pub use offline::{DatabaseFile, RejectedJob, RestoredJob};
use writer::{Afterwards, Durability, Ledger, Writer};

/// The number of changes that a slow watcher can lag behind before it misses some.
const CHANGES_KEPT: usize = 4_096;

/// A store in a `SQLite` file.
#[derive(Debug)]
pub struct Sqlite {
    // Dropped before the writer, so that the last connection, which checkpoints the file, is one that may write.
    readers: Option<Arc<Readers>>,
    writer: Writer,
    changes: broadcast::Sender<Change>,
    /// `None` for a database in memory.
    files: Option<OpenFiles>,
}

impl Sqlite {
    pub async fn open(path: PathBuf) -> Result<Self, StoreError> {
        let place = Place::file(&path);
        let readers = Readers::of(path.clone());
        let opened = tokio::task::spawn_blocking(move || {
            let connection = file::open(&path)?;
            let (log, has_log) = file::log_of(&connection, &path)?;
            let files = OpenFiles::note(&path, has_log);
            let files = files.map_err(|source| StoreError::CannotOpen {
                place: Place::file(&path).name(),
                source: source.into(),
            })?;
            Ok::<_, StoreError>((connection, log, files))
        });
        let (connection, log, files) = opened.await.map_err(|_| StoreError::Closed)??;
        let store = Self::start(connection, log, place, Some(Arc::new(readers)))?;
        Ok(Self { files: Some(files), ..store })
    }

    /// Opens a database in memory. It has one connection, so reads go through the writer.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let opened = tokio::task::spawn_blocking(file::in_memory);
        let connection = opened.await.map_err(|_| StoreError::Closed)??;
        Self::start(connection, Arc::new(NoLog), Place::memory(), None)
    }

    fn start(
        connection: rusqlite::Connection,
        log: Arc<dyn Log>,
        place: Place,
        readers: Option<Arc<Readers>>,
    ) -> Result<Self, StoreError> {
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        let writer = Writer::start(connection, log, place, changes.clone())?;
        Ok(Self { readers, writer, changes, files: None })
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

/// A claimed job before its delivery to the caller. If the caller is gone, the claim is released: its owner is alive
/// and does not know the job, so its lease would never expire.
struct Undelivered {
    job: Option<Box<Job>>,
    afterwards: Afterwards,
    now: Timestamp,
}

impl Undelivered {
    fn new(job: Job, afterwards: Afterwards, now: Timestamp) -> Self {
        Self { job: Some(Box::new(job)), afterwards, now }
    }

    fn deliver(mut self) -> Option<Job> {
        self.job.take().map(|job| *job)
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(claim) = self.job.take().and_then(|job| job.claim()) {
            let now = self.now;
            self.afterwards.write(move |ledger| jobs::put_back(ledger, &claim, now));
        }
    }
}

/// An error within a query: of `SQLite`, or of the store itself.
#[derive(Debug)]
pub enum Failed {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl Failed {
    /// Returns whether only the record that was read is at fault, and the others are intact.
    fn is_of_record(&self) -> bool {
        match self {
            Self::Store(error) => matches!(error, StoreError::Unreadable { .. }),
            Self::Sqlite(error) => matches!(
                error,
                rusqlite::Error::FromSqlConversionFailure(..)
                    | rusqlite::Error::IntegralValueOutOfRange(..)
                    | rusqlite::Error::InvalidColumnType(..)
            ),
        }
    }
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
    async fn submit(&self, job: Job, request: Option<ClaimRequest>) -> Result<Committed<Begun>, StoreError> {
        let (id, now) = (job.id, job.created_at);
        let (afterwards, placed) = (self.writer.afterwards()?, job.clone());
        let run = move |ledger: &mut Ledger<'_>| {
            // An error in another job must not prevent the submit of this one.
            let despite_others = |claimed| match claimed {
                Err(Failed::Store(_)) => Ok(None),
                claimed => claimed,
            };
            let at_once =
                request.as_ref().map_or(Ok(None), |request| claim::at_once(ledger, &placed, request, now));
            let at_once = despite_others(at_once)?;
            let job = at_once.as_ref().unwrap_or(&placed);
            let (row, state) = (JobRow::new(job)?, job.progress.state.name());
            let earlier = jobs::insert(ledger.connection, &row)?;
            if earlier.is_some() {
                return Ok((earlier, None));
            }
            ledger.changed(id, state, row.revision);
            let claimed = match (at_once, request) {
                (None, Some(request)) => despite_others(claim::oldest(ledger, &request, now))?,
                (at_once, _) => at_once,
            };
            Ok((None, claimed))
        };
        let wrap = move |(earlier, claimed): (Option<JobRow>, Option<Job>), flush: FlushTicket| {
            (earlier, claimed.map(|job| Undelivered::new(job, afterwards, now)), flush)
        };
        let written = self.writer.write_then(Durability::Soon, run, wrap).await;
        let (earlier, claimed, flush) = written.map_err(|error| naming(error, id))?;
        let claimed = claimed.and_then(Undelivered::deliver);
        let begun = match earlier {
            Some(row) => Begun { job: row.job()?, is_new: false, claimed },
            None => Begun { job, is_new: true, claimed },
        };
        let flush = flush.of(begun.job.id);
        Ok(Committed { value: begun, flush })
    }

    async fn claim(&self, request: ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError> {
        let afterwards = self.writer.afterwards()?;
        let run = move |ledger: &mut Ledger<'_>| claim::oldest(ledger, &request, now);
        let wrap = move |job: Option<Job>, _| job.map(|job| Undelivered::new(job, afterwards, now));
        // A power failure may undo a claim: the run is lost with the power, too, and the job is requeued.
        let taken = self.writer.write_then(Durability::Relaxed, run, wrap).await?;
        Ok(taken.and_then(Undelivered::deliver))
    }

    async fn renew(&self, owner: Owner, expires_at: Timestamp) -> Result<Vec<Held>, StoreError> {
        // A power failure may undo a heartbeat: its owner is gone then, too.
        self.writer
            .write(Durability::Relaxed, move |ledger: &mut Ledger<'_>| {
                rescue::heartbeat(ledger.connection, &owner, expires_at)?;
                rescue::held_by(ledger.connection, &owner)
            })
            .await
    }

    async fn release(&self, owner: Owner) -> Result<(), StoreError> {
        // The close that follows flushes it with the rest of the log.
        let run = move |ledger: &mut Ledger<'_>| rescue::release(ledger.connection, &owner);
        self.writer.write(Durability::Relaxed, run).await
    }

    async fn owners(&self, prefix: String, after: Timestamp) -> Result<Vec<Owner>, StoreError> {
        self.read(move |connection| rescue::owners(connection, &prefix, after)).await
    }

    async fn step(
        &self,
        job: JobId,
        step: Transition,
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

    async fn finish(
        &self,
        job: JobId,
        step: Transition,
        end: EndRow,
        now: Timestamp,
    ) -> Result<Committed<Job>, StoreError> {
        let written = self.writer.write_soon(move |ledger: &mut Ledger<'_>| {
            jobs::take_step(ledger, job, &step, Some(&end), now)?;
            Ok(reads::job(ledger.connection, job)?.ok_or(StoreError::NoSuchJob { job })?)
        });
        let Committed { value, flush } = written.await.map_err(|error| naming(error, job))?;
        Ok(Committed { value, flush: flush.of(job) })
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

    async fn keyed(&self, home: Placement, key: String) -> Result<Option<Job>, StoreError> {
        let read = move |connection: &rusqlite::Connection| {
            let row = reads::row_of_key(connection, &home.to_string(), Some(&key))?;
            Ok(row.map(JobRow::job).transpose()?)
        };
        self.read(read).await
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
        home: Placement,
    ) -> Result<Option<LastSession>, StoreError> {
        self.read(move |connection| reads::last_session(connection, agent, &task, &home)).await
    }

    async fn stats(&self, range: StatsRange) -> Result<Stats, StoreError> {
        self.read(move |connection| reads::stats(connection, range)).await
    }

    async fn watch(&self) -> Result<Watch, StoreError> {
        Ok(Watch::here(self.changes.subscribe()))
    }

    async fn sweep(&self, retention: Retention, now: Timestamp) -> Result<Vec<JobId>, SweepError> {
        let mut removed = Vec::new();
        loop {
            // Also sent through a channel: without the reply of the commit, the ids would be lost.
            let (tell, chosen) = oneshot::channel();
            // In batches, so that other writes do not wait for long.
            let part = self
                .writer
                .write(Durability::Full, move |ledger: &mut Ledger<'_>| {
                    let part = sweep::part(ledger.connection, retention, now)?;
                    // The receiver is gone if the sweep was dropped.
                    let _ = tell.send(part.clone());
                    Ok(part)
                })
                .await;
            match part {
                Ok(part) if part.is_empty() => return Ok(removed),
                Ok(part) => removed.extend(part),
                Err(source) => {
                    return Err(SweepError::after(removed, chosen.await.unwrap_or_default(), source));
                }
            }
        }
    }

    async fn sync(&self) -> Result<(), StoreError> {
        self.writer.write(Durability::Full, |_: &mut Ledger<'_>| Ok(())).await
    }

    fn verify_files(&self) -> Result<(), StoreLoss> {
        self.files.as_ref().map_or(Ok(()), OpenFiles::verify)
    }

    async fn verify_heartbeat(&self, owner: Owner) -> Result<(), StoreError> {
        let is_there = self.read(move |connection| rescue::has_heartbeat(connection, &owner)).await?;
        match &self.files {
            Some(files) if !is_there => Err(files.lost(Loss::HeartbeatLost).into()),
            _ => Ok(()),
        }
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.read(reads::check).await
    }
}

/// Adds the job to an error about an unconfirmed write.
fn naming(error: StoreError, id: JobId) -> StoreError {
    match error {
        StoreError::Unconfirmed { place, source, .. } => {
            StoreError::Unconfirmed { place, job: Some(id), source }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
