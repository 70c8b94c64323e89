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
use crate::sqlite::QueryError;
use crate::sqlite::location::StoreLocation;
use crate::sqlite::transactions::{Transactions, copy_error};
use crate::sqlite::wal::WriteAheadLog;
use crate::watch::JobChange;

/// The maximum number of writes in one transaction. A larger batch would delay the reply to its first write.
const MAX_BATCH: usize = 256;

/// The maximum number of queued writes. Further callers wait for a permit before they queue anything.
const MAX_PENDING: usize = 1_024;

/// The state of a write at the time of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Committed: it survives a crash of this process, but not a power failure.
    Relaxed,
    /// Committed, with a flush in progress.
    Deferred,
    /// Flushed to disk.
    Full,
}

/// The idle time after which a log with enough transactions is checkpointed. A checkpoint has its own fsyncs, which
/// delay no caller at that time.
const IDLE_CHECKPOINT_DELAY: Duration = Duration::from_secs(1);
const IDLE_CHECKPOINT_MIN: u32 = 32;
/// The number of transactions after which the log is checkpointed even when busy.
const BUSY_CHECKPOINT_MIN: u32 = 300;

/// The transaction of a write, and the changes to publish after it.
pub struct WriteTransaction<'a> {
    pub connection: &'a Connection,
    pub(super) changes: Vec<JobChange>,
}

impl WriteTransaction<'_> {
    /// Queues a change notification, to be published after the commit.
    pub fn record_change(&mut self, job: JobId, state: StateName, revision: u64) {
        self.changes.push(JobChange { job, state, revision, home: None });
    }
}

/// The time that dropping a store may block a worker thread of a runtime. A file that no other process uses closes much
/// faster.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A handle to the writer thread. Dropping it makes the thread finish its queue and waits for its exit; inside a
/// runtime, only for a limited time.
#[derive(Debug)]
pub struct Writer {
    requests: Option<Sender<Message>>,
    /// Owned by the thread, which closes the last connection: that may take long.
    transactions: Weak<Mutex<Transactions>>,
    permits: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has exited.
    exited: Mutex<Receiver<()>>,
    location: StoreLocation,
}

impl Writer {
    pub fn start(
        connection: Connection,
        wal: Arc<dyn WriteAheadLog>,
        location: StoreLocation,
        changes: broadcast::Sender<JobChange>,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        let (exit_guard, exited) = channel();
        let transactions = Transactions::new(connection, Arc::clone(&wal), location.clone());
        let owned = Arc::new(Mutex::new(transactions));
        let transactions = Arc::downgrade(&owned);
        let writer_thread = WriterThread { transactions: owned, wal, location: location.clone(), changes };
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                writer_thread.run(&receiver);
                drop((writer_thread, exit_guard));
            })
            .map_err(|source| StoreError::CannotOpen { location: location.name(), source: source.into() })?;
        let (permits, exited) = (Arc::new(Semaphore::new(MAX_PENDING)), Mutex::new(exited));
        Ok(Self { requests: Some(sender), transactions, permits, thread: Some(thread), exited, location })
    }

    /// Returns the number of free permits.
    #[cfg(test)]
    pub fn available_permits(&self) -> usize {
        self.permits.available_permits()
    }

    pub fn detached_writer(&self) -> Result<DetachedWriter, StoreError> {
        self.requests.clone().map(DetachedWriter).ok_or(StoreError::Closed)
    }

    /// Runs a write in a transaction and returns its result.
    ///
    /// A queued write runs even if the caller is dropped.
    pub async fn write<T, F>(&self, durability: Durability, run: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTransaction<'_>) -> Result<T, QueryError> + Send + 'static,
    {
        self.write_and_wrap(durability, run, |value, _| value).await
    }

    /// Runs a write in a transaction and returns after the commit, with a ticket for the flush in progress.
    pub async fn commit<T, F>(&self, run: F) -> Result<Committed<T>, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTransaction<'_>) -> Result<T, QueryError> + Send + 'static,
    {
        self.write_and_wrap(Durability::Deferred, run, |value, flush| Committed { value, flush }).await
    }

    /// Runs a write like [`Self::write`]. `wrap` converts the result; it is only called after the commit.
    pub async fn write_and_wrap<T, R, F, W>(
        &self,
        durability: Durability,
        run: F,
        wrap: W,
    ) -> Result<R, StoreError>
    where
        T: Send + 'static,
        R: Send + 'static,
        F: FnOnce(&mut WriteTransaction<'_>) -> Result<T, QueryError> + Send + 'static,
        W: FnOnce(T, FlushTicket) -> R + Send + 'static,
    {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (reply, result) = oneshot::channel();
        let (run, changes) = (Some(run), Vec::new());
        let write =
            WriteRequest { durability, run, result: None, changes, wrap, reply, _permit: Some(permit) };
        let requests = self.requests.as_ref().ok_or(StoreError::Closed)?;
        let write = Box::new(write);
        let rest = match durability {
            Durability::Deferred => self.try_commit_inline(write),
            Durability::Relaxed | Durability::Full => Some(Message::Write(write)),
        };
        // A failed send of a flush request is reported by the `FlushTicket`: the write itself is committed.
        if let Some(Err(SendError(Message::Write(_)))) = rest.map(|rest| requests.send(rest)) {
            return Err(StoreError::Closed);
        }
        result.await.map_err(|error| StoreError::Unconfirmed {
            location: self.location.name(),
            job: None,
            source: error.into(),
        })?
    }
}

impl Writer {
    /// Commits a write on the calling thread if no other write is pending. Returns the rest of the work for the
    /// writer thread: the flush, the whole write, or nothing.
    fn try_commit_inline(&self, write: Box<dyn PendingWrite>) -> Option<Message> {
        let is_alone = self.permits.available_permits() + 1 == MAX_PENDING;
        let Some(transactions) = self.transactions.upgrade() else { return Some(Message::Write(write)) };
        let transactions = match transactions.try_lock() {
            Ok(transactions) => Some(transactions),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let Some(mut transactions) = transactions.filter(|_| is_alone) else {
            return Some(Message::Write(write));
        };
        match transactions.try_commit(write) {
            Err(write) => Some(Message::Write(write)),
            Ok(committed) => {
                drop(transactions);
                let mut write = committed?;
                let (notifier, changes) = (FlushNotifier::new(self.location.name()), write.take_changes());
                write.send_result(&self.location, notifier.ticket());
                Some(Message::Flush(notifier, changes))
            }
        }
    }
}

/// A request to the writer thread.
enum Message {
    /// Commit and flush this write.
    Write(Box<dyn PendingWrite>),
    /// Flush committed writes, then publish their changes.
    Flush(FlushNotifier, Vec<JobChange>),
}

/// Queues writes without waiting for their results.
pub struct DetachedWriter(Sender<Message>);

impl DetachedWriter {
    pub fn write<F>(&self, run: F)
    where
        F: FnOnce(&mut WriteTransaction<'_>) -> Result<(), QueryError> + Send + 'static,
    {
        let (reply, _) = oneshot::channel();
        let (durability, run, changes) = (Durability::Full, Some(run), Vec::new());
        // If the thread has exited, the store is closed, and the claim is rescued after the next start. Needs no
        // permit: this is called from `Drop`, which cannot wait for one.
        let write =
            WriteRequest { durability, run, result: None, changes, wrap: |(), _| (), reply, _permit: None };
        let _ = self.0.send(Message::Write(Box::new(write)));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.requests.take());
        let Some(thread) = self.thread.take() else { return };
        // A worker thread of a runtime must not wait for a file that another process has locked.
        let exited = self.exited.get_mut().unwrap_or_else(PoisonError::into_inner);
        if Handle::try_current().is_ok()
            && exited.recv_timeout(CLOSE_TIMEOUT) == Err(RecvTimeoutError::Timeout)
        {
            return;
        }
        // If the thread panicked, its callers already have an error.
        let _ = thread.join();
    }
}

/// A queued write, independent of the type of its result.
pub trait PendingWrite: Send {
    fn durability(&self) -> Durability;
    /// Runs the write. Returns the error of `SQLite`, if that is why it failed.
    fn run(&mut self, connection: &Connection) -> Result<(), Option<rusqlite::Error>>;
    /// Removes and returns the changes to publish.
    fn take_changes(&mut self) -> Vec<JobChange>;
    /// Replies to the caller with the result of the write.
    fn send_result(self: Box<Self>, location: &StoreLocation, flush: FlushTicket);
    fn send_error(self: Box<Self>, error: StoreError);
}

struct WriteRequest<T, R, F, W> {
    durability: Durability,
    run: Option<F>,
    result: Option<Result<T, QueryError>>,
    changes: Vec<JobChange>,
    wrap: W,
    reply: oneshot::Sender<Result<R, StoreError>>,
    /// Released with the reply.
    _permit: Option<OwnedSemaphorePermit>,
}

impl<T, R, F, W> PendingWrite for WriteRequest<T, R, F, W>
where
    T: Send,
    R: Send,
    F: FnOnce(&mut WriteTransaction<'_>) -> Result<T, QueryError> + Send,
    W: FnOnce(T, FlushTicket) -> R + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn run(&mut self, connection: &Connection) -> Result<(), Option<rusqlite::Error>> {
        let mut tx = WriteTransaction { connection, changes: Vec::new() };
        self.result = self.run.take().map(|run| run(&mut tx));
        match &self.result {
            Some(Ok(_)) => {
                self.changes = tx.changes;
                Ok(())
            }
            Some(Err(QueryError::Sqlite(error))) => Err(Some(copy_error(error))),
            Some(Err(QueryError::Store(_))) | None => Err(None),
        }
    }

    fn take_changes(&mut self) -> Vec<JobChange> {
        std::mem::take(&mut self.changes)
    }

    /// The caller may be gone; its reply is dropped then.
    fn send_result(self: Box<Self>, location: &StoreLocation, flush: FlushTicket) {
        let reply = match self.result {
            Some(Ok(value)) => Ok((self.wrap)(value, flush)),
            Some(Err(QueryError::Store(error))) => Err(error),
            Some(Err(QueryError::Sqlite(error))) => Err(location.query_error(error)),
            None => Err(StoreError::Closed),
        };
        let _ = self.reply.send(reply);
    }

    fn send_error(self: Box<Self>, error: StoreError) {
        let _ = self.reply.send(Err(error));
    }
}

/// The state of the writer thread.
struct WriterThread {
    transactions: Arc<Mutex<Transactions>>,
    wal: Arc<dyn WriteAheadLog>,
    location: StoreLocation,
    changes: broadcast::Sender<JobChange>,
}

/// Requests that share one commit and one flush.
#[derive(Default)]
struct Batch {
    writes: Vec<Box<dyn PendingWrite>>,
    notifiers: Vec<FlushNotifier>,
    changes: Vec<JobChange>,
}

impl Batch {
    fn push(&mut self, message: Message) {
        match message {
            Message::Write(write) => self.writes.push(write),
            Message::Flush(notifier, changes) => {
                self.notifiers.push(notifier);
                self.changes.extend(changes);
            }
        }
    }
}

impl WriterThread {
    fn run(&self, messages: &Receiver<Message>) {
        while let Some(first) = self.next_message(messages) {
            let mut batch = Batch::default();
            batch.push(first);
            messages.try_iter().take(MAX_BATCH - 1).for_each(|message| batch.push(message));
            if !batch.writes.is_empty() {
                self.transactions().commit_batch(&mut batch.writes);
            }
            self.flush(batch);
        }
    }

    /// Waits for a request. Checkpoints the log if it is long, or while idle. Returns `None` after the last handle
    /// was dropped.
    fn next_message(&self, messages: &Receiver<Message>) -> Option<Message> {
        let log_length = self.transactions().log_length();
        if log_length >= BUSY_CHECKPOINT_MIN {
            self.transactions().checkpoint();
        } else if log_length >= IDLE_CHECKPOINT_MIN {
            match messages.recv_timeout(IDLE_CHECKPOINT_DELAY) {
                Err(RecvTimeoutError::Timeout) => self.transactions().checkpoint(),
                first => return first.ok(),
            }
        }
        messages.recv().ok()
    }

    /// Replies to writes that need no flush, flushes the log, then replies to the others. Publishes changes before
    /// the last reply: the caller may check whether watchers have received them.
    fn flush(&self, batch: Batch) {
        let Batch { writes, mut notifiers, mut changes } = batch;
        let mut waiting = Vec::new();
        for mut write in writes {
            let notifier = FlushNotifier::new(self.location.name());
            let ticket = notifier.ticket();
            match write.durability() {
                Durability::Full => {
                    waiting.push(write);
                    continue;
                }
                Durability::Deferred => {
                    changes.extend(write.take_changes());
                    notifiers.push(notifier);
                }
                Durability::Relaxed => self.publish(write.take_changes()),
            }
            write.send_result(&self.location, ticket);
        }
        if waiting.is_empty() && notifiers.is_empty() {
            return;
        }
        let failed = self.sync().err();
        self.publish(changes);
        for mut write in waiting {
            self.publish(write.take_changes());
            match &failed {
                None => write.send_result(&self.location, FlushTicket::already_flushed()),
                Some(error) => write.send_error(self.location.flush_error(error)),
            }
        }
        for notifier in notifiers {
            match &failed {
                None => notifier.notify_flushed(),
                Some(error) => notifier.notify_unconfirmed(error.to_string()),
            }
        }
    }

    fn publish(&self, changes: Vec<JobChange>) {
        for change in changes {
            // There may be no watchers.
            let _ = self.changes.send(change);
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        let synced = self.wal.sync();
        let mut transactions = self.transactions();
        if synced.is_err() {
            transactions.mark_log_suspect();
        }
        // In a suspect log, later writes are suspect, too, even if their own fsync succeeds.
        let abandoned = transactions.abandon_suspect_log();
        abandoned.map_err(|error| synced.err().unwrap_or_else(|| std::io::Error::other(error.to_string())))
    }

    fn transactions(&self) -> MutexGuard<'_, Transactions> {
        // A panic leaves at most an open transaction, which the next write rolls back.
        self.transactions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
