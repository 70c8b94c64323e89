//! The embedded engine: `SQLite` in one file, owned by one process.
//!
//! One connection writes: on the caller's thread if no other write is pending, else on the writer thread, which
//! commits all queued writes in one transaction and flushes the log ([`writer`]). Reads have their own connections
//! and never wait for a write (WAL).

mod claim;
mod file;
mod jobs;
mod location;
mod offline;
mod reads;
mod rescue;
mod schema;
mod sweep;
mod transactions;
mod wal;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use model::{
    AgentKind, Claim, Exchange, Job, JobId, JobIdPrefix, Owner, Placement, SessionId, Timestamp, Transition,
};
use tokio::sync::{broadcast, oneshot};

use crate::committed::{Committed, FlushTicket};
use crate::engine::{Engine, InsertedJob, StateChange};
use crate::error::{StoreError, SweepError};
use crate::loss::{Loss, StoreLoss};
use crate::requests::{
    ClaimRequest, HeldClaim, JobFilter, LastSession, Page, PageRequest, PrefixMatch, RescueRequest,
    RetentionLimits,
};
use crate::row::{EndRow, JobRow};
use crate::stats::{Stats, StatsRange};
use crate::watch::{ChangeStream, JobChange};
pub use file::find_irregular_file;
use file::{OpenFiles, ReaderPool};
use location::StoreLocation;
pub use offline::{DatabaseFile, RejectedJob, RestoredJob};
use rescue::KnownOwners;
use wal::{NoWal, WriteAheadLog};
use writer::{DetachedWriter, Durability, WriteTransaction, Writer};

/// The number of changes that a slow watcher can lag behind before it misses some.
const CHANGE_CAPACITY: usize = 4_096;

/// A store in a `SQLite` file.
#[derive(Debug)]
pub struct Sqlite {
    // Dropped before the writer, so that the last connection, which checkpoints the file, is one that may write.
    readers: Option<Arc<ReaderPool>>,
    writer: Writer,
    changes: broadcast::Sender<JobChange>,
    /// `None` for a database in memory.
    files: Option<OpenFiles>,
    known: Arc<KnownOwners>,
}

impl Sqlite {
    pub async fn open(path: PathBuf) -> Result<Self, StoreError> {
        let location = StoreLocation::file(&path);
        let readers = ReaderPool::new(path.clone());
        let opened = tokio::task::spawn_blocking(move || {
            let connection = file::open(&path)?;
            let (wal, has_wal) = file::open_wal(&connection, &path)?;
            let files = OpenFiles::record(&path, has_wal);
            let files = files.map_err(|source| StoreError::CannotOpen {
                location: StoreLocation::file(&path).name(),
                source: source.into(),
            })?;
            Ok::<_, StoreError>((connection, wal, files))
        });
        let (connection, wal, files) = opened.await.map_err(|_| StoreError::Closed)??;
        let store = Self::start(connection, wal, location, Some(Arc::new(readers)))?;
        let known = Arc::new(KnownOwners::new(files.loss(Loss::RecordsDeleted)));
        Ok(Self { files: Some(files), known, ..store })
    }

    /// Opens a database in memory. It has one connection, so reads go through the writer.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let opened = tokio::task::spawn_blocking(file::in_memory);
        let connection = opened.await.map_err(|_| StoreError::Closed)??;
        Self::start(connection, Arc::new(NoWal), StoreLocation::memory(), None)
    }

    fn start(
        connection: rusqlite::Connection,
        wal: Arc<dyn WriteAheadLog>,
        location: StoreLocation,
        readers: Option<Arc<ReaderPool>>,
    ) -> Result<Self, StoreError> {
        let (changes, _) = broadcast::channel(CHANGE_CAPACITY);
        let writer = Writer::start(connection, wal, location, changes.clone())?;
        Ok(Self { readers, writer, changes, files: None, known: Arc::default() })
    }

    async fn read<T, F>(&self, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Connection) -> Result<T, QueryError> + Send + 'static,
    {
        match &self.readers {
            Some(readers) => readers.clone().read(read).await,
            None => {
                self.writer
                    .write(Durability::Relaxed, |tx: &mut WriteTransaction<'_>| read(tx.connection))
                    .await
            }
        }
    }
}

/// A claimed job before its delivery to the caller. If the caller is gone, the claim is released: its owner is alive
/// and does not know the job, so its lease would never expire.
struct UndeliveredClaim {
    job: Option<Box<Job>>,
    detached_writer: DetachedWriter,
    now: Timestamp,
}

impl UndeliveredClaim {
    fn new(job: Job, detached_writer: DetachedWriter, now: Timestamp) -> Self {
        Self { job: Some(Box::new(job)), detached_writer, now }
    }

    fn deliver(mut self) -> Option<Job> {
        self.job.take().map(|job| *job)
    }
}

impl Drop for UndeliveredClaim {
    fn drop(&mut self) {
        if let Some(claim) = self.job.take().and_then(|job| job.claim()) {
            let now = self.now;
            self.detached_writer.write(move |tx| jobs::release_claim(tx, &claim, now));
        }
    }
}

/// An error within a query: of `SQLite`, or of the store itself.
#[derive(Debug)]
pub enum QueryError {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl QueryError {
    /// Returns whether only the record that was read is at fault, and the others are intact.
    fn is_unreadable_record(&self) -> bool {
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

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StoreError> for QueryError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

#[async_trait]
impl Engine for Sqlite {
    async fn submit(
        &self,
        job: Job,
        request: Option<ClaimRequest>,
    ) -> Result<Committed<InsertedJob>, StoreError> {
        let (id, now) = (job.id, job.created_at);
        let (detached_writer, new_job) = (self.writer.detached_writer()?, job.clone());
        let known = Arc::clone(&self.known);
        let run = move |tx: &mut WriteTransaction<'_>| {
            // An error in another job must not prevent the submit of this one.
            let ignore_others = |claimed| match claimed {
                Err(QueryError::Store(error)) if !matches!(error, StoreError::Lost(_)) => Ok(None),
                claimed => claimed,
            };
            let claimed = request
                .as_ref()
                .map_or(Ok(None), |request| claim::claim_if_next(tx, &new_job, request, &known, now));
            let claimed = ignore_others(claimed)?;
            let job = claimed.as_ref().unwrap_or(&new_job);
            let (row, state) = (JobRow::new(job)?, job.progress.state.name());
            let earlier = jobs::insert(tx.connection, &row)?;
            if earlier.is_some() {
                return Ok((earlier, None));
            }
            tx.record_change(id, state, row.revision);
            let claimed = match (claimed, request) {
                (None, Some(request)) => ignore_others(claim::claim_oldest(tx, &request, &known, now))?,
                (claimed, _) => claimed,
            };
            Ok((None, claimed))
        };
        let wrap = move |(earlier, claimed): (Option<JobRow>, Option<Job>), flush: FlushTicket| {
            (earlier, claimed.map(|job| UndeliveredClaim::new(job, detached_writer, now)), flush)
        };
        let committed = self.writer.write_and_wrap(Durability::Deferred, run, wrap).await;
        let (earlier, claimed, flush) = committed.map_err(|error| with_job(error, id))?;
        let claimed = claimed.and_then(UndeliveredClaim::deliver);
        let inserted = match earlier {
            Some(row) => InsertedJob { job: row.into_job()?, is_new: false, claimed },
            None => InsertedJob { job, is_new: true, claimed },
        };
        let flush = flush.for_job(inserted.job.id);
        Ok(Committed { value: inserted, flush })
    }

    async fn claim(&self, request: ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError> {
        let detached_writer = self.writer.detached_writer()?;
        let (known, owner) = (Arc::clone(&self.known), request.owner.clone());
        let run = move |tx: &mut WriteTransaction<'_>| claim::claim_oldest(tx, &request, &known, now);
        let wrap = move |job: Option<Job>, _| job.map(|job| UndeliveredClaim::new(job, detached_writer, now));
        // A power failure may undo a claim: the run is lost with the power, too, and the job is requeued.
        let claimed = self.writer.write_and_wrap(Durability::Relaxed, run, wrap).await?;
        self.known.insert(&owner);
        Ok(claimed.and_then(UndeliveredClaim::deliver))
    }

    async fn renew(&self, owner: Owner, expires_at: Timestamp) -> Result<Vec<HeldClaim>, StoreError> {
        let (known, renewing) = (Arc::clone(&self.known), owner.clone());
        // A power failure may undo a heartbeat: its owner is gone then, too.
        let held = self
            .writer
            .write(Durability::Relaxed, move |tx: &mut WriteTransaction<'_>| {
                known.heartbeat(tx.connection, &renewing, expires_at)?;
                rescue::held_claims(tx.connection, &renewing)
            })
            .await?;
        self.known.insert(&owner);
        Ok(held)
    }

    async fn release(&self, owner: Owner) -> Result<(), StoreError> {
        // The close that follows flushes it with the rest of the log.
        let run = move |tx: &mut WriteTransaction<'_>| rescue::release(tx.connection, &owner);
        self.writer.write(Durability::Relaxed, run).await
    }

    async fn live_owners(&self, prefix: String, after: Timestamp) -> Result<Vec<Owner>, StoreError> {
        self.read(move |connection| rescue::live_owners(connection, &prefix, after)).await
    }

    async fn step(
        &self,
        job: JobId,
        step: Transition,
        end: Option<EndRow>,
        now: Timestamp,
    ) -> Result<StateChange, StoreError> {
        self.writer
            .write(Durability::Full, move |tx: &mut WriteTransaction<'_>| {
                jobs::apply_transition(tx, job, &step, end.as_ref(), now)
            })
            .await
            .map_err(|error| with_job(error, job))
    }

    async fn finish(
        &self,
        job: JobId,
        step: Transition,
        end: EndRow,
        now: Timestamp,
    ) -> Result<Committed<Job>, StoreError> {
        let committed = self.writer.commit(move |tx: &mut WriteTransaction<'_>| {
            jobs::apply_transition(tx, job, &step, Some(&end), now)?;
            Ok(reads::job(tx.connection, job)?.ok_or(StoreError::NoSuchJob { job })?)
        });
        let Committed { value, flush } = committed.await.map_err(|error| with_job(error, job))?;
        Ok(Committed { value, flush: flush.for_job(job) })
    }

    async fn note_session(&self, claim: Claim, session: SessionId, now: Timestamp) -> Result<(), StoreError> {
        self.writer
            .write(Durability::Full, move |tx: &mut WriteTransaction<'_>| {
                jobs::note_session(tx, &claim, &session, now)
            })
            .await
    }

    async fn rescue(&self, request: RescueRequest, now: Timestamp) -> Result<Vec<Job>, StoreError> {
        let (known, owner) = (Arc::clone(&self.known), request.rescuer.clone());
        let jobs = self
            .writer
            .write(Durability::Full, move |tx: &mut WriteTransaction<'_>| {
                rescue::rescue_jobs(tx, &request, &known, now)
            })
            .await?;
        self.known.insert(&owner);
        Ok(jobs)
    }

    async fn get(&self, job: JobId) -> Result<Option<Job>, StoreError> {
        self.read(move |connection| reads::job(connection, job)).await
    }

    async fn find_by_key(&self, home: Placement, key: String) -> Result<Option<Job>, StoreError> {
        let read = move |connection: &rusqlite::Connection| {
            let row = reads::row_by_key(connection, &home.to_string(), Some(&key))?;
            Ok(row.map(JobRow::into_job).transpose()?)
        };
        self.read(read).await
    }

    async fn find(&self, prefix: JobIdPrefix) -> Result<PrefixMatch, StoreError> {
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

    async fn watch(&self) -> Result<ChangeStream, StoreError> {
        Ok(ChangeStream::local(self.changes.subscribe()))
    }

    async fn sweep(&self, retention: RetentionLimits, now: Timestamp) -> Result<Vec<JobId>, SweepError> {
        let mut removed = Vec::new();
        loop {
            // Also sent through a channel: without the reply of the commit, the ids would be lost.
            let (sender, chosen) = oneshot::channel();
            let known = Arc::clone(&self.known);
            // In batches, so that other writes do not wait for long.
            let batch = self
                .writer
                .write(Durability::Full, move |tx: &mut WriteTransaction<'_>| {
                    let batch = sweep::sweep_batch(tx.connection, retention, &known, now)?;
                    // The receiver is gone if the sweep was dropped.
                    let _ = sender.send(batch.clone());
                    Ok(batch)
                })
                .await;
            match batch {
                Ok(batch) if batch.is_empty() => return Ok(removed),
                Ok(batch) => removed.extend(batch),
                Err(source) => {
                    return Err(SweepError::new(removed, chosen.await.unwrap_or_default(), source));
                }
            }
        }
    }

    async fn sync(&self) -> Result<(), StoreError> {
        self.writer.write(Durability::Full, |_: &mut WriteTransaction<'_>| Ok(())).await
    }

    fn verify_files(&self) -> Result<(), StoreLoss> {
        self.files.as_ref().map_or(Ok(()), OpenFiles::verify)
    }

    async fn verify_heartbeat(&self, owner: Owner) -> Result<(), StoreError> {
        let exists = self.read(move |connection| rescue::has_heartbeat(connection, &owner)).await?;
        match self.deleted_records() {
            Some(loss) if !exists => Err(loss.into()),
            _ => Ok(()),
        }
    }

    fn deleted_records(&self) -> Option<StoreLoss> {
        self.files.as_ref().map(|files| files.loss(Loss::RecordsDeleted))
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.read(reads::check).await
    }
}

/// Adds the job to an error about an unconfirmed write.
fn with_job(error: StoreError, id: JobId) -> StoreError {
    match error {
        StoreError::Unconfirmed { location, source, .. } => {
            StoreError::Unconfirmed { location, job: Some(id), source }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
