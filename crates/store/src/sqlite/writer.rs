//! The one thread that writes.
//!
//! Callers hand their work over and wait. What has gathered while the disk was busy goes into one transaction, so that many
//! callers share one sync of the disk; each piece of work has a savepoint of its own, so that one that fails takes nothing
//! with it. Nobody gets an answer before the commit.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use model::{JobId, StateName};
use rusqlite::Connection;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, oneshot};

use crate::error::StoreError;
use crate::sqlite::Failed;
use crate::sqlite::faults::Place;
use crate::watch::Change;

/// How much goes into one transaction. More would make the first of them wait for too long.
const MOST_AT_ONCE: usize = 256;

/// How much may wait. Whoever comes then waits outside, before anything is handed over.
const MOST_WAITING: usize = 1_024;

/// What has to be true when the caller has its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// It survives the end of this process, but a power cut may take it back.
    Relaxed,
    /// It is on the disk.
    Full,
}

/// What a piece of work writes to.
pub struct Ledger<'a> {
    pub connection: &'a Connection,
    changes: Vec<Change>,
}

impl Ledger<'_> {
    /// To be told to the watchers once it is written.
    pub fn changed(&mut self, job: JobId, state: StateName, revision: u64) {
        self.changes.push(Change { job, state, revision, home: None });
    }
}

/// How long the drop of a store keeps a worker of a runtime. A file that nobody else has is closed long before.
const LONGEST_CLOSE: Duration = Duration::from_secs(1);

/// A handle on the thread. Dropping it lets the thread finish what it was given, and waits for that; within a runtime not for
/// long.
#[derive(Debug)]
pub struct Writer {
    work: Option<Sender<Box<dyn Work>>>,
    room: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended.
    ended: Mutex<Receiver<()>>,
    place: Place,
}

impl Writer {
    pub fn start(
        connection: Connection,
        place: Place,
        changes: broadcast::Sender<Change>,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        let (at_end, ended) = channel();
        let desk = Desk { connection, place: place.clone(), changes, durability: Durability::Full };
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                desk.serve(&receiver);
                drop(at_end);
            })
            .map_err(|source| StoreError::CannotOpen { place: place.name(), source: source.into() })?;
        let room = Arc::new(Semaphore::new(MOST_WAITING));
        Ok(Self { work: Some(sender), room, thread: Some(thread), ended: Mutex::new(ended), place })
    }

    /// How many more may wait.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.room.available_permits()
    }

    pub fn afterwards(&self) -> Result<Afterwards, StoreError> {
        self.work.clone().map(Afterwards).ok_or(StoreError::Closed)
    }

    /// Has the work done in a transaction, and answers after the commit.
    ///
    /// Work that was handed over is done even when the caller goes away.
    pub async fn write<T, F>(&self, durability: Durability, run: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Ledger<'_>) -> Result<T, Failed> + Send + 'static,
    {
        self.write_then(durability, run, |value| value).await
    }

    /// Like [`Self::write`]; `wrap` makes the answer of what was committed, and is not called before.
    pub async fn write_then<T, R, F, W>(
        &self,
        durability: Durability,
        run: F,
        wrap: W,
    ) -> Result<R, StoreError>
    where
        T: Send + 'static,
        R: Send + 'static,
        F: FnOnce(&mut Ledger<'_>) -> Result<T, Failed> + Send + 'static,
        W: FnOnce(T) -> R + Send + 'static,
    {
        let room = self.room.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let order = Order { durability, run: Some(run), result: None, wrap, reply, _room: Some(room) };
        let work = self.work.as_ref().ok_or(StoreError::Closed)?;
        work.send(Box::new(order)).map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|gone| StoreError::Unconfirmed {
            place: self.place.name(),
            job: None,
            source: gone.into(),
        })?
    }
}

/// A way to hand over work for which nobody waits.
pub struct Afterwards(Sender<Box<dyn Work>>);

impl Afterwards {
    pub fn write<F>(&self, run: F)
    where
        F: FnOnce(&mut Ledger<'_>) -> Result<(), Failed> + Send + 'static,
    {
        let (reply, _) = oneshot::channel();
        let (durability, run) = (Durability::Full, Some(run));
        // A writer that is gone has closed the store; what is held is rescued when it is opened again.
        // It takes no room, since it cannot wait for any.
        let order = Order { durability, run, result: None, wrap: |()| (), reply, _room: None };
        let _ = self.0.send(Box::new(order));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.work.take());
        let Some(thread) = self.thread.take() else { return };
        // A worker of a runtime has other things to do than to wait for a file that another process has locked.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if Handle::try_current().is_ok()
            && ended.recv_timeout(LONGEST_CLOSE) == Err(RecvTimeoutError::Timeout)
        {
            return;
        }
        // A writer that panicked has already left its callers without an answer.
        let _ = thread.join();
    }
}

/// A piece of work, whatever its answer.
trait Work: Send {
    fn durability(&self) -> Durability;
    /// Does it; answers what `SQLite` said when it could not be done.
    fn run(&mut self, ledger: &mut Ledger<'_>) -> Result<(), Option<rusqlite::Error>>;
    fn settle(self: Box<Self>, place: &Place);
    fn refuse(self: Box<Self>, error: StoreError);
}

struct Order<T, R, F, W> {
    durability: Durability,
    run: Option<F>,
    result: Option<Result<T, Failed>>,
    wrap: W,
    reply: oneshot::Sender<Result<R, StoreError>>,
    /// Its place among those that wait, which the next gets when this one has its answer.
    _room: Option<OwnedSemaphorePermit>,
}

impl<T, R, F, W> Work for Order<T, R, F, W>
where
    T: Send,
    R: Send,
    F: FnOnce(&mut Ledger<'_>) -> Result<T, Failed> + Send,
    W: FnOnce(T) -> R + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn run(&mut self, ledger: &mut Ledger<'_>) -> Result<(), Option<rusqlite::Error>> {
        self.result = self.run.take().map(|run| run(ledger));
        match &self.result {
            Some(Ok(_)) => Ok(()),
            Some(Err(Failed::Sqlite(error))) => Err(Some(again(error))),
            Some(Err(Failed::Store(_))) | None => Err(None),
        }
    }

    /// A caller that has gone away no longer needs its answer.
    fn settle(self: Box<Self>, place: &Place) {
        let answer = match self.result {
            Some(Ok(value)) => Ok((self.wrap)(value)),
            Some(Err(Failed::Store(error))) => Err(error),
            Some(Err(Failed::Sqlite(error))) => Err(place.failed(error)),
            None => Err(StoreError::Closed),
        };
        let _ = self.reply.send(answer);
    }

    fn refuse(self: Box<Self>, error: StoreError) {
        let _ = self.reply.send(Err(error));
    }
}

/// The thread's side.
struct Desk {
    connection: Connection,
    place: Place,
    changes: broadcast::Sender<Change>,
    /// How the connection is set now.
    durability: Durability,
}

impl Desk {
    fn serve(mut self, work: &Receiver<Box<dyn Work>>) {
        let mut batch = Vec::new();
        while let Ok(first) = work.recv() {
            batch.push(first);
            batch.extend(work.try_iter().take(MOST_AT_ONCE - 1));
            self.carry_out(&mut batch);
        }
    }

    /// Leaves the batch empty: each piece of work has its answer.
    fn carry_out(&mut self, batch: &mut Vec<Box<dyn Work>>) {
        let mut changes = Vec::new();
        match self.write_all(batch, &mut changes) {
            Ok(()) => {
                // The watchers first: who has its answer may look whether they know.
                for change in changes {
                    // Nobody may be watching.
                    let _ = self.changes.send(change);
                }
                batch.drain(..).for_each(|work| work.settle(&self.place));
            }
            Err(halt) => {
                if !self.connection.is_autocommit() {
                    // When even this fails, the next BEGIN says so.
                    let _ = self.execute("ROLLBACK");
                }
                batch.drain(..).for_each(|work| work.refuse(halt.told(&self.place)));
            }
        }
    }

    fn write_all(&mut self, batch: &mut [Box<dyn Work>], changes: &mut Vec<Change>) -> Result<(), Halt> {
        self.begin(batch.iter().map(|work| work.durability()).max()).map_err(Halt::Before)?;
        if let [alone] = batch {
            return self.write_alone(alone.as_mut(), changes);
        }
        for work in batch {
            self.run(work.as_mut(), changes).map_err(Halt::Before)?;
        }
        self.execute("COMMIT").map_err(Halt::AtCommit)
    }

    /// With nobody else in the transaction, it is the savepoint. One of its own would cost a copy of every page.
    fn write_alone(&self, work: &mut dyn Work, changes: &mut Vec<Change>) -> Result<(), Halt> {
        let mut ledger = Ledger { connection: &self.connection, changes: Vec::new() };
        match work.run(&mut ledger) {
            Ok(()) => {
                self.execute("COMMIT").map_err(Halt::AtCommit)?;
                changes.append(&mut ledger.changes);
                Ok(())
            }
            Err(Some(error)) if self.connection.is_autocommit() => Err(Halt::Before(error)),
            Err(_) => self.execute("ROLLBACK").map_err(Halt::Before),
        }
    }

    fn begin(&mut self, durability: Option<Durability>) -> rusqlite::Result<()> {
        let durability = durability.unwrap_or(Durability::Full);
        if durability != self.durability {
            let level = if durability == Durability::Full { "full" } else { "normal" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.durability = durability;
        }
        self.execute("BEGIN IMMEDIATE")
    }

    fn run(&self, work: &mut dyn Work, changes: &mut Vec<Change>) -> rusqlite::Result<()> {
        self.execute("SAVEPOINT work")?;
        let mut ledger = Ledger { connection: &self.connection, changes: Vec::new() };
        match work.run(&mut ledger) {
            Ok(()) => changes.append(&mut ledger.changes),
            // A full disk makes SQLite take back the whole transaction, and all who share it have to know.
            Err(Some(error)) if self.connection.is_autocommit() => return Err(error),
            Err(_) => self.execute("ROLLBACK TO work")?,
        }
        self.execute("RELEASE work")
    }

    fn execute(&self, statement: &'static str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(|_| ())
    }
}

/// What kept a whole batch from being written.
enum Halt {
    Before(rusqlite::Error),
    AtCommit(rusqlite::Error),
}

impl Halt {
    /// For each of the callers who shared the transaction.
    fn told(&self, place: &Place) -> StoreError {
        match self {
            Self::Before(error) => place.failed(again(error)),
            Self::AtCommit(error) => place.commit_failed(again(error)),
        }
    }
}

/// The same error once more.
fn again(error: &rusqlite::Error) -> rusqlite::Error {
    match error {
        rusqlite::Error::SqliteFailure(code, message) => {
            rusqlite::Error::SqliteFailure(*code, message.clone())
        }
        other => rusqlite::Error::ToSqlConversionFailure(other.to_string().into()),
    }
}
