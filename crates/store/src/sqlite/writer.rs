//! The single writer thread and group commit.
//!
//! Callers queue their writes and wait for a reply. The thread commits all queued writes in one transaction, so that
//! they share one fsync. No caller gets a reply before the commit; a caller that asks for a durable write gets it
//! after the flush.
//!
//! With `synchronous=full`, `SQLite` would fsync within the commit while every caller waits. Here `SQLite` only
//! writes its log, and the writer thread flushes the log afterwards, so that a caller can do other work in between.
//! (`SQLite` still does the fsyncs of a checkpoint and of a restarted log.) A caller with a deferred flush commits on
//! its own thread if no other write is pending and leaves only the flush to the writer thread: two thread switches
//! take as long as the transaction.

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

/// The maximum number of writes in one transaction. A larger batch would delay the reply to its first write.
const MOST_AT_ONCE: usize = 256;

/// The maximum number of queued writes. Further callers wait for a permit before they queue anything.
const MOST_WAITING: usize = 1_024;

/// The state of a write at the time of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Committed: it survives a crash of this process, but not a power failure.
    Relaxed,
    /// Committed, with a flush in progress.
    Soon,
    /// Flushed to disk.
    Full,
}

/// The idle time after which a log with enough transactions is checkpointed. A checkpoint has its own fsyncs, which
/// delay no caller at that time.
const AT_REST: Duration = Duration::from_secs(1);
const WORTH_TIDYING: u32 = 32;
/// The number of transactions after which the log is checkpointed even when busy.
const TIDIED_AFTER: u32 = 300;

/// The transaction of a write, and the changes to publish after it.
pub struct Ledger<'a> {
    pub connection: &'a Connection,
    pub(super) changes: Vec<Change>,
}

impl Ledger<'_> {
    /// Queues a change notification, to be published after the commit.
    pub fn changed(&mut self, job: JobId, state: StateName, revision: u64) {
        self.changes.push(Change { job, state, revision, home: None });
    }
}

/// How long dropping a store may block a worker thread of a runtime. A file that no other process uses closes much
/// faster.
const LONGEST_CLOSE: Duration = Duration::from_secs(1);

/// A handle to the writer thread. Dropping it makes the thread finish its queue and waits for its exit; inside a
/// runtime, only for a limited time.
#[derive(Debug)]
pub struct Writer {
    work: Option<Sender<Message>>,
    /// Owned by the thread, which closes the last connection: that may take long.
    transactions: Weak<Mutex<Transactions>>,
    room: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has exited.
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

    /// Returns the number of free permits.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.room.available_permits()
    }

    pub fn afterwards(&self) -> Result<Afterwards, StoreError> {
        self.work.clone().map(Afterwards).ok_or(StoreError::Closed)
    }

    /// Runs a write in a transaction and returns its result.
    ///
    /// A queued write runs even if the caller is dropped.
    pub async fn write<T, F>(&self, durability: Durability, run: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Ledger<'_>) -> Result<T, Failed> + Send + 'static,
    {
        self.write_then(durability, run, |value, _| value).await
    }

    /// Runs a write in a transaction and returns after the commit, with a ticket for the flush in progress.
    pub async fn write_soon<T, F>(&self, run: F) -> Result<Committed<T>, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Ledger<'_>) -> Result<T, Failed> + Send + 'static,
    {
        self.write_then(Durability::Soon, run, |value, flush| Committed { value, flush }).await
    }

    /// Runs a write like [`Self::write`]. `wrap` converts the result; it is only called after the commit.
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
        // A failed send of a flush request is reported by the `FlushTicket`: the write itself is committed.
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
    /// Commits a write on the calling thread if no other write is pending. Returns the rest of the work for the
    /// writer thread: the flush, the whole write, or nothing.
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

/// A request to the writer thread.
enum Message {
    /// Commit and flush this write.
    Work(Box<dyn Work>),
    /// Flush committed writes, then publish their changes.
    Sync(FlushNotifier, Vec<Change>),
}

/// Queues writes without waiting for their results.
pub struct Afterwards(Sender<Message>);

impl Afterwards {
    pub fn write<F>(&self, run: F)
    where
        F: FnOnce(&mut Ledger<'_>) -> Result<(), Failed> + Send + 'static,
    {
        let (reply, _) = oneshot::channel();
        let (durability, run, changes) = (Durability::Full, Some(run), Vec::new());
        // If the thread has exited, the store is closed, and the claim is rescued after the next start. Needs no
        // permit: this is called from `Drop`, which cannot wait for one.
        let order = Order { durability, run, result: None, changes, wrap: |(), _| (), reply, _room: None };
        let _ = self.0.send(Message::Work(Box::new(order)));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.work.take());
        let Some(thread) = self.thread.take() else { return };
        // A worker thread of a runtime must not wait for a file that another process has locked.
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if Handle::try_current().is_ok()
            && ended.recv_timeout(LONGEST_CLOSE) == Err(RecvTimeoutError::Timeout)
        {
            return;
        }
        // If the thread panicked, its callers already have an error.
        let _ = thread.join();
    }
}

/// A queued write, independent of the type of its result.
pub trait Work: Send {
    fn durability(&self) -> Durability;
    /// Runs the write. Returns the error of `SQLite`, if that is why it failed.
    fn run(&mut self, connection: &Connection) -> Result<(), Option<rusqlite::Error>>;
    /// Removes and returns the changes to publish.
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
    /// Released with the reply.
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

    /// The caller may be gone; its reply is dropped then.
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

/// The state of the writer thread.
struct WriterThread {
    transactions: Arc<Mutex<Transactions>>,
    log: Arc<dyn Log>,
    place: Place,
    changes: broadcast::Sender<Change>,
}

/// Requests that share one commit and one flush.
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

    /// Waits for a request. Checkpoints the log if it is long, or while idle. Returns `None` after the last handle
    /// was dropped.
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

    /// Replies to writes that need no flush, flushes the log, then replies to the others. Publishes changes before
    /// the last reply: the caller may check whether watchers have received them.
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
            // There may be no watchers.
            let _ = self.changes.send(change);
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        let synced = self.log.sync();
        let mut transactions = self.transactions();
        if synced.is_err() {
            transactions.doubt_the_log();
        }
        // In a suspect log, later writes are suspect, too, even if their own fsync succeeds.
        let left = transactions.leave_the_log();
        left.map_err(|error| synced.err().unwrap_or_else(|| std::io::Error::other(error.to_string())))
    }

    fn transactions(&self) -> MutexGuard<'_, Transactions> {
        // A panic leaves at most an open transaction, which the next write rolls back.
        self.transactions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
