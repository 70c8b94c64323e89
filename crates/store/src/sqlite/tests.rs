//! Tests of the engine's internals: flushes, group commit and lost files.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};

use model::{CallSpec, NewJob};

use super::*;

const NOW: Timestamp = Timestamp::MAX;

/// Signals that a flush has started, and blocks it until the other end replies.
type Hold = (Sender<()>, Receiver<()>);

/// A log that counts its flushes and can be made to fail or block.
#[derive(Clone)]
struct FaultyLog {
    flushes: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
    held: Arc<Mutex<Option<Hold>>>,
}

impl FaultyLog {
    fn new() -> Self {
        Self { flushes: Arc::default(), fails: Arc::default(), held: Arc::default() }
    }

    fn open_in_memory(&self) -> Result<Sqlite, StoreError> {
        Sqlite::start(file::in_memory()?, Arc::new(self.clone()), StoreLocation::memory(), None)
    }

    fn open_file(&self, path: &Path) -> Result<Sqlite, StoreError> {
        let readers = Some(Arc::new(ReaderPool::new(path.to_owned())));
        Sqlite::start(file::open(path)?, Arc::new(self.clone()), StoreLocation::file(path), readers)
    }

    /// Creates a store with one job whose log cannot be truncated because of a reader.
    async fn open_with_reader(
        &self,
        path: &Path,
    ) -> Result<(Sqlite, rusqlite::Connection), Box<dyn std::error::Error>> {
        let store = self.open_file(path)?;
        store.submit(job(1), None).await?.flushed().await?;
        let reader = rusqlite::Connection::open(path)?;
        reader.execute_batch("BEGIN; SELECT count(*) FROM agent_jobs;")?;
        Ok((store, reader))
    }

    /// Blocks the next flush. Returns a sender that resumes it and a receiver that reports its start.
    fn hold(&self) -> (Sender<()>, Receiver<()>) {
        let ((resume, resumed), (started, start)) = (channel(), channel());
        *self.held.lock().unwrap() = Some((started, resumed));
        (resume, start)
    }

    /// Returns the number of flushes since the last call.
    fn flushes(&self) -> usize {
        self.flushes.swap(0, Relaxed)
    }
}

impl WriteAheadLog for FaultyLog {
    fn sync(&self) -> std::io::Result<()> {
        self.flushes.fetch_add(1, Relaxed);
        if let Some((started, resumed)) = self.held.lock().unwrap().take() {
            started.send(()).and(resumed.recv().map_err(|_| std::sync::mpsc::SendError(()))).unwrap();
        }
        if self.fails.load(Relaxed) { Err(std::io::Error::other("the disk is broken")) } else { Ok(()) }
    }
}

fn job(number: u64) -> Job {
    let new_job =
        NewJob::new(CallSpec::new(AgentKind::Claude, "x", "/w"), "call", Placement::Host("here".into()));
    Job::new(JobId::first_of(Timestamp::from_millis(number)), new_job, NOW)
}

#[tokio::test]
async fn durable_writes_are_flushed() -> Result<(), Box<dyn std::error::Error>> {
    let log = FaultyLog::new();
    let store = log.open_in_memory()?;
    let id = job(1).id;
    store.submit(job(1), None).await?.flushed().await?;
    assert_eq!(log.flushes(), 1, "submit");
    let request = ClaimRequest {
        owner: Owner::new("a"),
        homes: vec![Placement::Host("here".into())],
        agents: vec![crate::Capacity { agent: AgentKind::Claude, at_once: 1 }],
        lease: std::time::Duration::from_secs(1),
    };
    let claim = store.claim(request, NOW).await?.and_then(|job| job.claim()).ok_or("nothing to claim")?;
    assert_eq!(log.flushes(), 0, "claim");
    store.step(id, Transition::Cancel, None, NOW).await?;
    assert_eq!(log.flushes(), 1, "cancel");
    store.step(id, Transition::Finish { claim, how: model::TerminalState::Completed }, None, NOW).await?;
    assert_eq!(log.flushes(), 1, "finish");
    Ok(())
}

#[tokio::test]
async fn wal_is_abandoned_after_failed_fsync() -> Result<(), Box<dyn std::error::Error>> {
    let (directory, log) = (tempfile::tempdir()?, FaultyLog::new());
    let path = directory.path().join("jobs.db");
    let store = log.open_file(&path)?;
    store.submit(job(1), None).await?.flushed().await?;
    let wal_size = || std::fs::metadata(directory.path().join("jobs.db-wal")).map(|log| log.len());
    assert!(wal_size()? > 0);
    log.fails.store(true, Relaxed);
    // The checkpoint into the file succeeds, which is equally durable.
    store.submit(job(2), None).await?.flushed().await?;
    assert_eq!(wal_size()?, 0);
    Ok(())
}

#[tokio::test]
async fn failed_flush_is_reported_as_unconfirmed() -> Result<(), Box<dyn std::error::Error>> {
    let (directory, log) = (tempfile::tempdir()?, FaultyLog::new());
    let (store, reader) = log.open_with_reader(&directory.path().join("jobs.db")).await?;
    log.fails.store(true, Relaxed);
    let committed = store.submit(job(2), None).await?;
    let error = committed.flushed().await.err().ok_or("it was confirmed")?;
    assert!(matches!(&error, StoreError::Unconfirmed { job: Some(id), .. } if *id == job(2).id), "{error}");
    let refused = store.step(job(1).id, Transition::Cancel, None, NOW).await.err().ok_or("it was written")?;
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
    // No write follows a suspect part of the log until the file has all of it.
    log.fails.store(false, Relaxed);
    assert!(store.submit(job(3), None).await.is_err());
    reader.execute_batch("ROLLBACK")?;
    store.submit(job(3), None).await?.flushed().await?;
    assert!(store.get(job(2).id).await?.is_some(), "the unconfirmed write exists");
    Ok(())
}

/// Blocks the writer thread until it is resumed; all writes in between form one batch.
async fn block_writer(store: &Arc<Sqlite>) -> (Sender<()>, tokio::task::JoinSet<()>) {
    let (resume, resumed) = channel();
    let (started, start) = oneshot::channel();
    let wait = move |_: &mut WriteTransaction<'_>| {
        let _ = started.send(());
        let _ = resumed.recv();
        Ok(())
    };
    let blocked = store.clone();
    let mut busy = tokio::task::JoinSet::new();
    busy.spawn(async move { drop(blocked.writer.write(Durability::Relaxed, wait).await) });
    drop(start.await);
    (resume, busy)
}

#[tokio::test]
async fn writes_after_failed_flush_are_unconfirmed() -> Result<(), Box<dyn std::error::Error>> {
    let (directory, log) = (tempfile::tempdir()?, FaultyLog::new());
    let (store, reader) = log.open_with_reader(&directory.path().join("jobs.db")).await?;
    // Two commits precede the flush of the first, which fails; the flush of the second would succeed.
    let (resume, busy) = log.hold();
    let first = store.submit(job(2), None).await?;
    busy.recv()?;
    let second = store.submit(job(3), None).await?;
    log.fails.store(true, Relaxed);
    resume.send(())?;
    assert!(first.flushed().await.is_err());
    log.fails.store(false, Relaxed);
    assert!(second.flushed().await.is_err(), "the log is suspect, and nothing in it is confirmed");
    reader.execute_batch("ROLLBACK")?;
    store.sync().await?;
    Ok(())
}

#[tokio::test]
async fn wal_is_preallocated_with_zeros() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("jobs.db");
    let wal_size = || std::fs::metadata(directory.path().join("jobs.db-wal")).map(|log| log.len());
    let store = Sqlite::open(path.clone()).await?;
    let mut lengths = std::collections::BTreeSet::new();
    for number in 1..=20 {
        store.submit(job(number), None).await?.flushed().await?;
        lengths.insert(wal_size()?);
    }
    assert!((2..8).contains(&lengths.len()), "{lengths:?}");
    // Simulates a crash: opening the copy recovers the log, with the zeros at its end.
    let copy = directory.path().join("copy.db");
    std::fs::copy(&path, &copy)?;
    std::fs::copy(directory.path().join("jobs.db-wal"), directory.path().join("copy.db-wal"))?;
    let copied = Sqlite::open(copy).await?;
    copied.check().await?;
    for number in 1..=20 {
        assert!(copied.get(job(number).id).await?.is_some(), "{number}");
    }
    copied.submit(job(21), None).await?.flushed().await?;
    assert!(copied.get(job(21).id).await?.is_some());
    Ok(())
}

#[tokio::test]
async fn concurrent_writes_share_one_flush() -> Result<(), Box<dyn std::error::Error>> {
    let log = FaultyLog::new();
    let store = Arc::new(log.open_in_memory()?);
    let nothing = |_: &mut WriteTransaction<'_>| Ok(());
    store.writer.write(Durability::Relaxed, nothing).await?;
    assert_eq!(log.flushes(), 0);
    let (resume, busy) = block_writer(&store).await;
    let (first, second) =
        (store.writer.write(Durability::Full, nothing), store.writer.write(Durability::Full, nothing));
    let third = store.writer.commit(nothing);
    let resuming = async { resume.send(()).map_err(|_| StoreError::Closed) };
    // Each write is queued when it is first polled: all are pending when the writer resumes.
    let (first, second, third, resumed) = tokio::join!(first, second, third, resuming);
    resumed?;
    busy.join_all().await;
    first?;
    second?;
    third?.flushed().await?;
    assert_eq!(log.flushes(), 1);
    Ok(())
}

#[tokio::test]
async fn writes_beyond_queue_limit_wait_for_permit() -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(Sqlite::in_memory().await?);
    let (resume, busy) = block_writer(&store).await;
    let permits = store.writer.available_permits();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..permits + 10 {
        let store = store.clone();
        waiting.spawn(async move {
            store.writer.write(Durability::Relaxed, |_: &mut WriteTransaction<'_>| Ok(())).await
        });
    }
    while store.writer.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(waiting.try_join_next().is_none(), "no write has a result yet");
    resume.send(())?;
    busy.join_all().await;
    for result in waiting.join_all().await {
        result?;
    }
    // A permit is released just after the reply. The write that blocked the writer is done, too.
    while store.writer.available_permits() < permits + 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.writer.available_permits(), permits + 1);
    Ok(())
}

/// Opens a store in a file, writes a heartbeat, changes the file, and returns the detected loss.
async fn loss_after(
    damage: impl FnOnce(&Path),
) -> Result<Result<(), StoreError>, Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("switchboard.db");
    let store = Sqlite::open(path.clone()).await?;
    let owner = Owner::new("daemon-1");
    store.renew(owner.clone(), NOW).await?;
    let verify = async || {
        store.verify_files()?;
        store.verify_heartbeat(owner.clone()).await
    };
    verify().await?;
    damage(&path);
    Ok(verify().await)
}

#[tokio::test]
async fn loss_of_open_database_is_detected() -> Result<(), Box<dyn std::error::Error>> {
    type Damage = fn(&Path);
    let damages: [(Damage, Loss); 7] = [
        (|path| std::fs::remove_file(path).unwrap(), Loss::Removed),
        (|path| std::fs::rename(path, path.with_extension("moved")).unwrap(), Loss::Removed),
        (
            |path| {
                std::fs::copy(path, path.with_extension("copy")).unwrap();
                std::fs::rename(path.with_extension("copy"), path).unwrap();
            },
            Loss::Replaced,
        ),
        (|path| std::fs::write(path, "").unwrap(), Loss::Truncated),
        (|path| std::fs::remove_file(path.with_extension("db-wal")).unwrap(), Loss::LogLost),
        (
            |path| {
                let other = rusqlite::Connection::open(path).unwrap();
                other.execute_batch("DELETE FROM agent_jobs; DELETE FROM agent_workers;").unwrap();
            },
            Loss::RecordsDeleted,
        ),
        (
            |path| {
                let other = rusqlite::Connection::open(path).unwrap();
                other.execute_batch("DROP TABLE agent_workers;").unwrap();
            },
            Loss::TablesDropped,
        ),
    ];
    for (damage, expected) in damages {
        let found = loss_after(damage).await?;
        assert!(matches!(&found, Err(StoreError::Lost(lost)) if lost.loss == expected), "{found:?}");
    }
    Ok(())
}

#[tokio::test]
async fn checkpoint_and_vacuum_are_no_loss() -> Result<(), Box<dyn std::error::Error>> {
    let checkpoint = |path: &Path| {
        let other = rusqlite::Connection::open(path).unwrap();
        other.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); VACUUM;").unwrap();
    };
    loss_after(checkpoint).await??;
    Ok(())
}
