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
use tokio::sync::{broadcast, oneshot};

use crate::engine::{Begun, Engine, Taken};
use crate::error::{StoreError, SweepError};
use crate::requests::{
    ClaimRequest, Found, Held, JobFilter, LastSession, Page, PageRequest, RescueRequest, Retention,
};
use crate::row::{EndRow, JobRow};
use crate::stats::{Stats, StatsRange};
use crate::watch::{Change, Watch};
use faults::Place;
use file::Readers;
use writer::{Afterwards, Durability, Ledger, Writer};

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

/// A claimed job on its way to who asked. Should nobody be there any more, it is put back: its owner lives and does not know
/// of it, so no lease would ever run out.
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

/// What went wrong within a statement: `SQLite` itself, or what the store has to say.
#[derive(Debug)]
pub enum Failed {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl Failed {
    /// Whether it is about the one record that was read, and the others are sound.
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
    async fn place(&self, job: Job, request: Option<ClaimRequest>) -> Result<Begun, StoreError> {
        let row = JobRow::placed(&job)?;
        let (id, now) = (job.id, job.created_at);
        let afterwards = self.writer.afterwards()?;
        let run = move |ledger: &mut Ledger<'_>| {
            let earlier = jobs::insert(ledger.connection, &row)?;
            if earlier.is_some() {
                return Ok((earlier, None));
            }
            ledger.changed(id, StateName::Queued, row.revision);
            let claimed = request.map_or(Ok(None), |request| claim::oldest(ledger, &request, now));
            match claimed {
                // What is wrong with another job is no reason not to keep this one.
                Err(Failed::Store(_)) => Ok((None, None)),
                claimed => Ok((None, claimed?)),
            }
        };
        let wrap = move |(earlier, claimed): (Option<JobRow>, Option<Job>)| {
            (earlier, claimed.map(|job| Undelivered::new(job, afterwards, now)))
        };
        let written = self.writer.write_then(Durability::Full, run, wrap).await;
        let (earlier, claimed) = written.map_err(|error| naming(error, id))?;
        let claimed = claimed.and_then(Undelivered::deliver);
        match earlier {
            Some(row) => Ok(Begun { job: row.job()?, is_new: false, claimed }),
            None => Ok(Begun { job, is_new: true, claimed }),
        }
    }

    async fn claim(&self, request: ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError> {
        let afterwards = self.writer.afterwards()?;
        let run = move |ledger: &mut Ledger<'_>| claim::oldest(ledger, &request, now);
        let wrap = move |job: Option<Job>| job.map(|job| Undelivered::new(job, afterwards, now));
        // What a power cut takes with it is no loss: the run ends with the power, too, and the job is queued again.
        let taken = self.writer.write_then(Durability::Relaxed, run, wrap).await?;
        Ok(taken.and_then(Undelivered::deliver))
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

    async fn finish(&self, job: JobId, step: Step, end: EndRow, now: Timestamp) -> Result<Job, StoreError> {
        self.writer
            .write(Durability::Full, move |ledger: &mut Ledger<'_>| {
                jobs::take_step(ledger, job, &step, Some(&end), now)?;
                Ok(reads::job(ledger.connection, job)?.ok_or(StoreError::NoSuchJob { job })?)
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

    async fn keyed(&self, home: Home, key: String) -> Result<Option<Job>, StoreError> {
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

    async fn sweep(&self, retention: Retention, now: Timestamp) -> Result<Vec<JobId>, SweepError> {
        let mut removed = Vec::new();
        loop {
            // Also told by the side: an answer that is lost with the commit would lose them.
            let (tell, chosen) = oneshot::channel();
            // In parts, so that nobody waits long for the writer.
            let part = self
                .writer
                .write(Durability::Full, move |ledger: &mut Ledger<'_>| {
                    let part = sweep::part(ledger.connection, retention, now)?;
                    // Nobody listens when the sweep itself was dropped.
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

#[cfg(test)]
mod tests {
    use model::{CallSpec, NewJob};

    use super::*;

    const NOW: Timestamp = Timestamp::MAX;

    /// How the writer's connection is set in the last batch that changed a job.
    async fn last_level(store: &Sqlite) -> Result<i64, StoreError> {
        let read = |ledger: &mut Ledger<'_>| {
            Ok(ledger
                .connection
                .query_row("SELECT level FROM levels ORDER BY rowid DESC", [], |row| row.get(0))?)
        };
        // Relaxed: what comes next has to set it again by itself.
        store.writer.write(Durability::Relaxed, read).await
    }

    #[tokio::test]
    async fn what_is_answered_is_on_the_disk() -> Result<(), Box<dyn std::error::Error>> {
        const NORMAL: i64 = 1;
        const FULL: i64 = 2;
        let store = Sqlite::in_memory().await?;
        let note = "CREATE TEMP TABLE levels (level INTEGER);
            CREATE TEMP TRIGGER placed AFTER INSERT ON main.agent_jobs
                BEGIN INSERT INTO levels SELECT synchronous FROM pragma_synchronous; END;
            CREATE TEMP TRIGGER stepped AFTER UPDATE ON main.agent_jobs
                BEGIN INSERT INTO levels SELECT synchronous FROM pragma_synchronous; END;";
        let set_up = move |ledger: &mut Ledger<'_>| Ok(ledger.connection.execute_batch(note)?);
        store.writer.write(Durability::Relaxed, set_up).await?;
        let home = Home::Host("here".into());
        let order = NewJob::new(CallSpec::new(AgentKind::Claude, "x", "/w"), "call", home.clone());
        let id = JobId::first_of(Timestamp::from_millis(1));

        store.place(Job::placed(id, order, NOW), None).await?;
        assert_eq!(last_level(&store).await?, FULL, "place");
        let request = ClaimRequest {
            owner: Owner::new("a"),
            homes: vec![home],
            agents: vec![crate::Capacity { agent: AgentKind::Claude, at_once: 1 }],
            lease: std::time::Duration::from_secs(1),
        };
        let claim = store.claim(request, NOW).await?.and_then(|job| job.claim()).ok_or("nothing to claim")?;
        assert_eq!(last_level(&store).await?, NORMAL, "claim");
        store.step(id, Step::Cancel, None, NOW).await?;
        assert_eq!(last_level(&store).await?, FULL, "cancel");
        store.step(id, Step::Finish { claim, how: model::Ended::Completed }, None, NOW).await?;
        assert_eq!(last_level(&store).await?, FULL, "finish");
        let relaxed =
            |ledger: &mut Ledger<'_>| Ok(ledger.connection.execute("UPDATE agent_jobs SET task = ''", [])?);
        store.writer.write(Durability::Relaxed, relaxed).await?;
        assert_eq!(last_level(&store).await?, NORMAL, "so that the test can tell");
        Ok(())
    }

    /// Keeps the writer busy until it is told to go on; all that comes meanwhile goes into one batch.
    async fn occupied(store: &Arc<Sqlite>) -> (std::sync::mpsc::Sender<()>, tokio::task::JoinSet<()>) {
        let (go_on, told) = std::sync::mpsc::channel();
        let (begun, beginning) = oneshot::channel();
        let wait = move |_: &mut Ledger<'_>| {
            let _ = begun.send(());
            let _ = told.recv();
            Ok(())
        };
        let own = store.clone();
        let mut busy = tokio::task::JoinSet::new();
        busy.spawn(async move { drop(own.writer.write(Durability::Relaxed, wait).await) });
        drop(beginning.await);
        (go_on, busy)
    }

    #[tokio::test]
    async fn one_that_wants_the_disk_takes_the_whole_batch_there() -> Result<(), Box<dyn std::error::Error>> {
        let store = Arc::new(Sqlite::in_memory().await?);
        let level = |ledger: &mut Ledger<'_>| {
            Ok(ledger.connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0))?)
        };
        let alone = store.writer.write(Durability::Relaxed, level).await?;
        let (go_on, busy) = occupied(&store).await;
        let (relaxed, full) =
            (store.writer.write(Durability::Relaxed, level), store.writer.write(Durability::Full, level));
        let releasing = async { go_on.send(()).map_err(|_| StoreError::Closed) };
        // Each is handed over when it is first asked: both wait when the writer goes on.
        let (relaxed, full, released) = tokio::join!(relaxed, full, releasing);
        released?;
        busy.join_all().await;
        assert_eq!((alone, relaxed?, full?), (1, 2, 2));
        Ok(())
    }

    #[tokio::test]
    async fn more_than_can_wait_is_kept_waiting_outside() -> Result<(), Box<dyn std::error::Error>> {
        let store = Arc::new(Sqlite::in_memory().await?);
        let (go_on, busy) = occupied(&store).await;
        let room = store.writer.room();
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..room + 10 {
            let own = store.clone();
            waiting.spawn(
                async move { own.writer.write(Durability::Relaxed, |_: &mut Ledger<'_>| Ok(())).await },
            );
        }
        while store.writer.room() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(waiting.try_join_next().is_none(), "nobody has an answer yet");
        go_on.send(())?;
        busy.join_all().await;
        for answer in waiting.join_all().await {
            answer?;
        }
        // Its room is given back a moment after its answer. The one that kept the writer busy is done, too.
        while store.writer.room() < room + 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(store.writer.room(), room + 1);
        Ok(())
    }
}
