//! Who writes, and when they are answered.
//!
//! One thread waits for the disk. Callers hand their work over to it and wait; what has gathered while the disk was busy goes into
//! one transaction, so that many share one sync. Nobody gets an answer before the commit, and nobody who wants to wait for the disk
//! before the disk has it.
//!
//! `SQLite` itself would sync within its commit, while everybody waits. Here it writes its log, and the log is synced after
//! that, so that there is a moment in which a caller can get ready. (The syncs of a checkpoint, and of a log that begins anew, stay
//! where `SQLite` makes them.) A caller that uses this moment makes the transaction itself
//! when nobody else is there, and leaves only the sync to the thread: to wake another thread up and to be woken up by it takes as
//! long as the transaction.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use model::{JobId, StateName};
use rusqlite::Connection;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, oneshot};

use crate::committed::{Committed, FlushNotifier, FlushTicket};
use crate::error::StoreError;
use crate::sqlite::Failed;
use crate::sqlite::faults::Place;
use crate::sqlite::log::Log;
use crate::sqlite::transactions::{Transactions, again};
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
    /// The same, and it is on its way to the disk.
    Soon,
    /// It is on the disk.
    Full,
}

/// After how long without work the log is brought into the file, and of how many transactions it has to be for that. It costs
/// syncs of its own, which nobody waits for then.
const AT_REST: Duration = Duration::from_secs(1);
const WORTH_TIDYING: u32 = 32;
/// After how many it is done at the latest.
const TIDIED_AFTER: u32 = 300;

/// What a piece of work writes to.
pub struct Ledger<'a> {
    pub connection: &'a Connection,
    pub(super) changes: Vec<Change>,
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
    work: Option<Sender<Message>>,
    /// The thread's: the last connection is closed there, which may take long.
    transactions: Weak<Mutex<Transactions>>,
    room: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended.
    ended: Mutex<Receiver<()>>,
    place: Place,
}

impl Writer {
    pub fn start(
        connection: Connection,
        log: Arc<dyn Log>,
        place: Place,
        changes: broadcast::Sender<Change>,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        let (at_end, ended) = channel();
        let transactions = Transactions::new(connection, Arc::clone(&log), place.clone());
        let owned = Arc::new(Mutex::new(transactions));
        let transactions = Arc::downgrade(&owned);
        let desk = WriterThread { transactions: owned, log, place: place.clone(), changes };
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                desk.serve(&receiver);
                drop((desk, at_end));
            })
            .map_err(|source| StoreError::CannotOpen { place: place.name(), source: source.into() })?;
        let (room, ended) = (Arc::new(Semaphore::new(MOST_WAITING)), Mutex::new(ended));
        Ok(Self { work: Some(sender), transactions, room, thread: Some(thread), ended, place })
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
    pub async fn write_soon<T, F>(&self, run: F) -> Result<Committed<T>, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Ledger<'_>) -> Result<T, Failed> + Send + 'static,
    {
        self.write_then(Durability::Soon, run, |value, flush| Committed { value, flush }).await
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
        W: FnOnce(T, FlushTicket) -> R + Send + 'static,
    {
        let room = self.room.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let (run, changes) = (Some(run), Vec::new());
        let order = Order { durability, run, result: None, changes, wrap, reply, _room: Some(room) };
        let work = self.work.as_ref().ok_or(StoreError::Closed)?;
        let order = Box::new(order);
        let is_for_now = durability == Durability::Soon;
        let left = if is_for_now { self.at_once(order) } else { Some(Message::Work(order)) };
        // What was written already and is not brought to the disk any more is told by its `FlushTicket`.
        if let Some(Err(SendError(Message::Work(_)))) = left.map(|left| work.send(left)) {
            return Err(StoreError::Closed);
        }
        answer.await.map_err(|gone| StoreError::Unconfirmed {
            place: self.place.name(),
            job: None,
            source: gone.into(),
        })?
    }
}

impl Writer {
    /// Does the work here and now when nobody else writes or waits. Answers what is left for the thread to do: the sync, all of it,
    /// or nothing.
    fn at_once(&self, work: Box<dyn Work>) -> Option<Message> {
        let alone = self.room.available_permits() + 1 == MOST_WAITING;
        let Some(transactions) = self.transactions.upgrade() else { return Some(Message::Work(work)) };
        let transactions = match transactions.try_lock() {
            Ok(transactions) => Some(transactions),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut transactions) = transactions.filter(|_| alone) else { return Some(Message::Work(work)) };
        match transactions.carry_out_at_once(work) {
            Err(work) => Some(Message::Work(work)),
            Ok(done) => {
                drop(transactions);
                let mut done = done?;
                let (on_the_way, changes) = (FlushNotifier::new(self.place.name()), done.changes());
                done.settle(&self.place, on_the_way.flush());
                Some(Message::Sync(on_the_way, changes))
            }
        }
    }
}

/// What the thread is to do.
enum Message {
    /// All of it.
    Work(Box<dyn Work>),
    /// To bring to the disk what was written, and to tell of it then.
    Sync(FlushNotifier, Vec<Change>),
}

/// A way to hand over work for which nobody waits.
pub struct Afterwards(Sender<Message>);

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
        let _ = self.0.send(Message::Work(Box::new(order)));
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
pub trait Work: Send {
    fn durability(&self) -> Durability;
    /// Does it; answers what `SQLite` said when it could not be done.
    fn run(&mut self, connection: &Connection) -> Result<(), Option<rusqlite::Error>>;
    /// What it has changed, to be told once.
    fn changes(&mut self) -> Vec<Change>;
    fn settle(self: Box<Self>, place: &Place, flush: FlushTicket);
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
    W: FnOnce(T, FlushTicket) -> R + Send,
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
    fn settle(self: Box<Self>, place: &Place, flush: FlushTicket) {
        let answer = match self.result {
            Some(Ok(value)) => Ok((self.wrap)(value, flush)),
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
struct WriterThread {
    transactions: Arc<Mutex<Transactions>>,
    log: Arc<dyn Log>,
    place: Place,
    changes: broadcast::Sender<Change>,
}

/// What waits for the disk.
#[derive(Default)]
struct Batch {
    work: Vec<Box<dyn Work>>,
    on_the_way: Vec<FlushNotifier>,
    untold: Vec<Change>,
}

impl Batch {
    fn add(&mut self, message: Message) {
        match message {
            Message::Work(work) => self.work.push(work),
            Message::Sync(on_the_way, changes) => {
                self.on_the_way.push(on_the_way);
                self.untold.extend(changes);
            }
        }
    }
}

impl WriterThread {
    fn serve(&self, messages: &Receiver<Message>) {
        while let Some(first) = self.next(messages) {
            let mut batch = Batch::default();
            batch.add(first);
            messages.try_iter().take(MOST_AT_ONCE - 1).for_each(|message| batch.add(message));
            if !batch.work.is_empty() {
                self.transactions().carry_out(&mut batch.work);
            }
            self.settle(batch);
        }
    }

    /// Waits for work, and tidies up when there is none for a while, or when it is time. None at the end.
    fn next(&self, messages: &Receiver<Message>) -> Option<Message> {
        let in_log = self.transactions().in_log();
        if in_log >= TIDIED_AFTER {
            self.transactions().tidy();
        } else if in_log >= WORTH_TIDYING {
            match messages.recv_timeout(AT_REST) {
                Err(RecvTimeoutError::Timeout) => self.transactions().tidy(),
                first => return first.ok(),
            }
        }
        messages.recv().ok()
    }

    /// Answers those who need not wait for the disk, then brings all of it there, then answers the others. The watchers hear of
    /// it before who has the last word: he may look whether they know.
    fn settle(&self, batch: Batch) {
        let Batch { work, mut on_the_way, mut untold } = batch;
        let mut waiting = Vec::new();
        for mut work in work {
            let own = FlushNotifier::new(self.place.name());
            let flush = own.flush();
            match work.durability() {
                Durability::Full => {
                    waiting.push(work);
                    continue;
                }
                Durability::Soon => {
                    untold.extend(work.changes());
                    on_the_way.push(own);
                }
                Durability::Relaxed => self.tell(work.changes()),
            }
            work.settle(&self.place, flush);
        }
        if waiting.is_empty() && on_the_way.is_empty() {
            return;
        }
        let doubt = self.sync().err();
        self.tell(untold);
        for mut work in waiting {
            self.tell(work.changes());
            match &doubt {
                None => work.settle(&self.place, FlushTicket::there()),
                Some(doubt) => work.refuse(self.place.not_on_disk(doubt)),
            }
        }
        for on_the_way in on_the_way {
            match &doubt {
                None => on_the_way.arrived(),
                Some(doubt) => on_the_way.was_not_confirmed(doubt.to_string()),
            }
        }
    }

    fn tell(&self, changes: Vec<Change>) {
        for change in changes {
            // Nobody may be watching.
            let _ = self.changes.send(change);
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        let synced = self.log.sync();
        let mut transactions = self.transactions();
        if synced.is_err() {
            transactions.doubt_the_log();
        }
        // Of a log that is in doubt, what was written after the doubtful part is no better, whatever the last sync says.
        let left = transactions.leave_the_log();
        left.map_err(|error| synced.err().unwrap_or_else(|| std::io::Error::other(error.to_string())))
    }

    fn transactions(&self) -> MutexGuard<'_, Transactions> {
        // Whoever panicked over them has left a transaction at most, which the next one takes back.
        self.transactions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
