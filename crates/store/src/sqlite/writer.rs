//! The one thread that writes.
//!
//! Callers hand their work over and wait. What has gathered while the disk was busy goes into one transaction, so that many
//! callers share one sync of the disk; each piece of work has a savepoint of its own, so that one that fails takes nothing
//! with it. Nobody gets an answer before the commit, and nobody who wants to wait for the disk before the disk has it.
//!
//! `SQLite` itself would sync within its commit, while everybody waits. Here it writes its log, and the log is synced after
//! that, so that there is a moment in which a caller can get ready. Its own syncs, those of a checkpoint, stay what they are.

use std::io;
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
use crate::written::{OnDisk, OnTheWay, Written};

/// How much goes into one transaction. More would make the first of them wait for too long.
const MOST_AT_ONCE: usize = 256;

/// How much may wait. Whoever comes then waits outside, before anything is handed over.
const MOST_WAITING: usize = 1_024;

/// What has to be true when the caller has its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// It survives the end of this process, but a power cut may take it back.
    Relaxed,
    /// The same, and it is on its way to the disk.
    Soon,
    /// It is on the disk.
    Full,
}

/// The log that `SQLite` writes ahead to, as far as it is not its own affair.
pub trait Log: Send {
    /// Makes room for what will be written to it. Asked within a transaction, so that nobody writes to it meanwhile.
    fn make_room(&mut self) {}
    /// Brings what was written to it to the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// After how long without work the log is brought into the file, and of how many transactions it has to be for that. It costs
/// syncs of its own, which nobody waits for then.
const AT_REST: Duration = Duration::from_secs(1);
const WORTH_TIDYING: u32 = 32;

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
        log: Box<dyn Log>,
        place: Place,
        changes: broadcast::Sender<Change>,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        let (at_end, ended) = channel();
        let desk = Desk { connection, log, place: place.clone(), changes, log_in_doubt: false, in_log: 0 };
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
        self.write_then(durability, run, |value, _| value).await
    }

    /// Has the work done in a transaction, and answers after the commit, while it is on its way to the disk.
    pub async fn write_soon<T, F>(&self, run: F) -> Result<Written<T>, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Ledger<'_>) -> Result<T, Failed> + Send + 'static,
    {
        self.write_then(Durability::Soon, run, |value, on_disk| Written { value, on_disk }).await
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
        W: FnOnce(T, OnDisk) -> R + Send + 'static,
    {
        let room = self.room.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let (run, changes) = (Some(run), Vec::new());
        let order = Order { durability, run, result: None, changes, wrap, reply, _room: Some(room) };
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
        let (durability, run, changes) = (Durability::Full, Some(run), Vec::new());
        // A writer that is gone has closed the store; what is held is rescued when it is opened again.
        // It takes no room, since it cannot wait for any.
        let order = Order { durability, run, result: None, changes, wrap: |(), _| (), reply, _room: None };
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
    fn run(&mut self, connection: &Connection) -> Result<(), Option<rusqlite::Error>>;
    /// What it has changed, to be told once.
    fn changes(&mut self) -> Vec<Change>;
    fn settle(self: Box<Self>, place: &Place, on_disk: OnDisk);
    fn refuse(self: Box<Self>, error: StoreError);
}

struct Order<T, R, F, W> {
    durability: Durability,
    run: Option<F>,
    result: Option<Result<T, Failed>>,
    changes: Vec<Change>,
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
    W: FnOnce(T, OnDisk) -> R + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn run(&mut self, connection: &Connection) -> Result<(), Option<rusqlite::Error>> {
        let mut ledger = Ledger { connection, changes: Vec::new() };
        self.result = self.run.take().map(|run| run(&mut ledger));
        match &self.result {
            Some(Ok(_)) => {
                self.changes = ledger.changes;
                Ok(())
            }
            Some(Err(Failed::Sqlite(error))) => Err(Some(again(error))),
            Some(Err(Failed::Store(_))) | None => Err(None),
        }
    }

    fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// A caller that has gone away no longer needs its answer.
    fn settle(self: Box<Self>, place: &Place, on_disk: OnDisk) {
        let answer = match self.result {
            Some(Ok(value)) => Ok((self.wrap)(value, on_disk)),
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
    log: Box<dyn Log>,
    place: Place,
    changes: broadcast::Sender<Change>,
    /// Whether a sync has failed. The kernel then takes for written what the disk may not have, and a later sync that succeeds
    /// says nothing about it.
    log_in_doubt: bool,
    /// How many transactions are in the log since it was last brought into the file.
    in_log: u32,
}

impl Desk {
    fn serve(mut self, work: &Receiver<Box<dyn Work>>) {
        let mut batch = Vec::new();
        while let Some(first) = self.next(work) {
            batch.push(first);
            batch.extend(work.try_iter().take(MOST_AT_ONCE - 1));
            self.carry_out(&mut batch);
        }
    }

    /// Waits for work, and tidies up when there is none for a while. None at the end.
    fn next(&mut self, work: &Receiver<Box<dyn Work>>) -> Option<Box<dyn Work>> {
        if self.in_log >= WORTH_TIDYING {
            match work.recv_timeout(AT_REST) {
                Err(RecvTimeoutError::Timeout) => {
                    self.in_log = 0;
                    // What cannot be done now, because somebody reads, is done by a later write.
                    let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
                }
                first => return first.ok(),
            }
        }
        work.recv().ok()
    }

    /// Leaves the batch empty: each piece of work has its answer.
    fn carry_out(&mut self, batch: &mut Vec<Box<dyn Work>>) {
        match self.write_all(batch) {
            Ok(()) => {
                self.in_log = self.in_log.saturating_add(1);
                self.settle(batch);
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

    /// Answers those who need not wait for the disk, then brings all of it there, then answers the others. The watchers hear of
    /// it before who has the last word: he may look whether they know.
    fn settle(&mut self, batch: &mut Vec<Box<dyn Work>>) {
        let on_the_way = OnTheWay::new();
        let (mut waiting, mut untold, mut to_disk) = (Vec::new(), Vec::new(), false);
        for mut work in batch.drain(..) {
            to_disk |= work.durability() > Durability::Relaxed;
            match work.durability() {
                Durability::Full => {
                    waiting.push(work);
                    continue;
                }
                Durability::Soon => untold.extend(work.changes()),
                Durability::Relaxed => self.tell(work.changes()),
            }
            work.settle(&self.place, on_the_way.on_disk());
        }
        if !to_disk {
            return;
        }
        let doubt = self.bring_to_disk().err();
        self.tell(untold);
        for work in &mut waiting {
            self.tell(work.changes());
        }
        let Some(doubt) = doubt else {
            for work in waiting {
                work.settle(&self.place, on_the_way.on_disk());
            }
            return on_the_way.arrived();
        };
        for work in waiting {
            work.refuse(self.place.not_on_disk(&doubt));
        }
        on_the_way.was_not_confirmed(self.place.name(), doubt.to_string());
    }

    fn tell(&self, changes: Vec<Change>) {
        for change in changes {
            // Nobody may be watching.
            let _ = self.changes.send(change);
        }
    }

    fn bring_to_disk(&mut self) -> io::Result<()> {
        let failed = match self.log.sync() {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        self.log_in_doubt = true;
        self.leave_the_log().map_err(|_| failed)
    }

    /// Brings all that the log holds into the file itself, which is then synced, and begins the log anew: what comes after a part
    /// that may be missing on the disk would be lost with it.
    fn leave_the_log(&mut self) -> rusqlite::Result<()> {
        if !self.log_in_doubt {
            return Ok(());
        }
        let busy: bool =
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if busy {
            let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
            return Err(rusqlite::Error::SqliteFailure(busy, None));
        }
        (self.log_in_doubt, self.in_log) = (false, 0);
        Ok(())
    }

    fn write_all(&mut self, batch: &mut [Box<dyn Work>]) -> Result<(), Halt> {
        self.leave_the_log().map_err(Halt::Before)?;
        self.execute("BEGIN IMMEDIATE").map_err(Halt::Before)?;
        self.log.make_room();
        if let [alone] = batch {
            return self.write_alone(alone.as_mut());
        }
        for work in batch {
            self.run(work.as_mut()).map_err(Halt::Before)?;
        }
        self.execute("COMMIT").map_err(Halt::AtCommit)
    }

    /// With nobody else in the transaction, it is the savepoint. One of its own would cost a copy of every page.
    fn write_alone(&self, work: &mut dyn Work) -> Result<(), Halt> {
        match work.run(&self.connection) {
            Ok(()) => self.execute("COMMIT").map_err(Halt::AtCommit),
            Err(Some(error)) if self.connection.is_autocommit() => Err(Halt::Before(error)),
            Err(_) => self.execute("ROLLBACK").map_err(Halt::Before),
        }
    }

    fn run(&self, work: &mut dyn Work) -> rusqlite::Result<()> {
        self.execute("SAVEPOINT work")?;
        match work.run(&self.connection) {
            Ok(()) => {}
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
