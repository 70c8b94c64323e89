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
struct Disk {
    synced: Arc<AtomicUsize>,
    refuses: Arc<AtomicBool>,
    held: Arc<Mutex<Option<Hold>>>,
}

impl Disk {
    fn new() -> Self {
        Self { synced: Arc::default(), refuses: Arc::default(), held: Arc::default() }
    }

    fn in_memory(&self) -> Result<Sqlite, StoreError> {
        Sqlite::start(file::in_memory()?, Arc::new(self.clone()), Place::memory(), None)
    }

    fn file(&self, path: &Path) -> Result<Sqlite, StoreError> {
        let readers = Some(Arc::new(Readers::of(path.to_owned())));
        Sqlite::start(file::open(path)?, Arc::new(self.clone()), Place::file(path), readers)
    }

    /// Creates a store with one job whose log cannot be truncated because of a reader.
    async fn file_that_somebody_reads(
        &self,
        path: &Path,
    ) -> Result<(Sqlite, rusqlite::Connection), Box<dyn std::error::Error>> {
        let store = self.file(path)?;
        store.submit(job(1), None).await?.flushed().await?;
        let reader = rusqlite::Connection::open(path)?;
        reader.execute_batch("BEGIN; SELECT count(*) FROM agent_jobs;")?;
        Ok((store, reader))
    }

    /// Blocks the next flush. Returns a sender that resumes it and a receiver that reports its start.
    fn hold(&self) -> (Sender<()>, Receiver<()>) {
        let ((go_on, told), (begun, beginning)) = (channel(), channel());
        *self.held.lock().unwrap() = Some((begun, told));
        (go_on, beginning)
    }

    /// Returns the number of flushes since the last call.
    fn synced(&self) -> usize {
        self.synced.swap(0, Relaxed)
    }
}

impl Log for Disk {
    fn sync(&self) -> std::io::Result<()> {
        self.synced.fetch_add(1, Relaxed);
        if let Some((begun, told)) = self.held.lock().unwrap().take() {
            begun.send(()).and(told.recv().map_err(|_| std::sync::mpsc::SendError(()))).unwrap();
        }
        if self.refuses.load(Relaxed) { Err(std::io::Error::other("the disk is broken")) } else { Ok(()) }
    }
}

fn job(number: u64) -> Job {
    let order =
        NewJob::new(CallSpec::new(AgentKind::Claude, "x", "/w"), "call", Placement::Host("here".into()));
    Job::new(JobId::first_of(Timestamp::from_millis(number)), order, NOW)
}

#[tokio::test]
async fn what_is_to_last_is_brought_to_the_disk() -> Result<(), Box<dyn std::error::Error>> {
    let disk = Disk::new();
    let store = disk.in_memory()?;
    let id = job(1).id;
    store.submit(job(1), None).await?.flushed().await?;
    assert_eq!(disk.synced(), 1, "place");
    let request = ClaimRequest {
        owner: Owner::new("a"),
        homes: vec![Placement::Host("here".into())],
        agents: vec![crate::Capacity { agent: AgentKind::Claude, at_once: 1 }],
        lease: std::time::Duration::from_secs(1),
    };
    let claim = store.claim(request, NOW).await?.and_then(|job| job.claim()).ok_or("nothing to claim")?;
    assert_eq!(disk.synced(), 0, "claim");
    store.step(id, Transition::Cancel, None, NOW).await?;
    assert_eq!(disk.synced(), 1, "cancel");
    store.step(id, Transition::Finish { claim, how: model::TerminalState::Completed }, None, NOW).await?;
    assert_eq!(disk.synced(), 1, "finish");
    Ok(())
}

#[tokio::test]
async fn a_log_that_the_disk_did_not_take_is_left() -> Result<(), Box<dyn std::error::Error>> {
    let (folder, disk) = (tempfile::tempdir()?, Disk::new());
    let path = folder.path().join("jobs.db");
    let store = disk.file(&path)?;
    store.submit(job(1), None).await?.flushed().await?;
    let log = || std::fs::metadata(folder.path().join("jobs.db-wal")).map(|log| log.len());
    assert!(log()? > 0);
    disk.refuses.store(true, Relaxed);
    // The checkpoint into the file succeeds, which is equally durable.
    store.submit(job(2), None).await?.flushed().await?;
    assert_eq!(log()?, 0);
    Ok(())
}

#[tokio::test]
async fn what_the_disk_does_not_confirm_is_not_answered_as_kept() -> Result<(), Box<dyn std::error::Error>> {
    let (folder, disk) = (tempfile::tempdir()?, Disk::new());
    let (store, reader) = disk.file_that_somebody_reads(&folder.path().join("jobs.db")).await?;
    disk.refuses.store(true, Relaxed);
    let written = store.submit(job(2), None).await?;
    let doubt = written.flushed().await.err().ok_or("it was confirmed")?;
    assert!(matches!(&doubt, StoreError::Unconfirmed { job: Some(id), .. } if *id == job(2).id), "{doubt}");
    let refused = store.step(job(1).id, Transition::Cancel, None, NOW).await.err().ok_or("it was written")?;
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
    // No write follows a suspect part of the log until the file has all of it.
    disk.refuses.store(false, Relaxed);
    assert!(store.submit(job(3), None).await.is_err());
    reader.execute_batch("ROLLBACK")?;
    store.submit(job(3), None).await?.flushed().await?;
    assert!(store.get(job(2).id).await?.is_some(), "what was in doubt is there after all");
    Ok(())
}

/// Blocks the writer thread until it is resumed; all writes in between form one batch.
async fn occupied(store: &Arc<Sqlite>) -> (Sender<()>, tokio::task::JoinSet<()>) {
    let (go_on, told) = channel();
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
async fn what_was_written_behind_something_doubtful_is_doubtful_too() -> Result<(), Box<dyn std::error::Error>>
{
    let (folder, disk) = (tempfile::tempdir()?, Disk::new());
    let (store, reader) = disk.file_that_somebody_reads(&folder.path().join("jobs.db")).await?;
    // Two commits precede the flush of the first, which fails; the flush of the second would succeed.
    let (go_on, busy) = disk.hold();
    let first = store.submit(job(2), None).await?;
    busy.recv()?;
    let second = store.submit(job(3), None).await?;
    disk.refuses.store(true, Relaxed);
    go_on.send(())?;
    assert!(first.flushed().await.is_err());
    disk.refuses.store(false, Relaxed);
    assert!(second.flushed().await.is_err(), "the log is in doubt, and nothing in it is sure");
    reader.execute_batch("ROLLBACK")?;
    store.sync().await?;
    Ok(())
}

#[tokio::test]
async fn the_log_grows_in_steps_and_what_is_added_is_nothing() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("jobs.db");
    let log = || std::fs::metadata(folder.path().join("jobs.db-wal")).map(|log| log.len());
    let store = Sqlite::open(path.clone()).await?;
    let mut lengths = std::collections::BTreeSet::new();
    for number in 1..=20 {
        store.submit(job(number), None).await?.flushed().await?;
        lengths.insert(log()?);
    }
    assert!((2..8).contains(&lengths.len()), "{lengths:?}");
    // Simulates a crash: opening the copy recovers the log, with the zeros at its end.
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy)?;
    std::fs::copy(folder.path().join("jobs.db-wal"), folder.path().join("copy.db-wal"))?;
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
async fn those_who_wait_together_share_one_sync() -> Result<(), Box<dyn std::error::Error>> {
    let disk = Disk::new();
    let store = Arc::new(disk.in_memory()?);
    let nothing = |_: &mut Ledger<'_>| Ok(());
    store.writer.write(Durability::Relaxed, nothing).await?;
    assert_eq!(disk.synced(), 0);
    let (go_on, busy) = occupied(&store).await;
    let (first, second) =
        (store.writer.write(Durability::Full, nothing), store.writer.write(Durability::Full, nothing));
    let third = store.writer.write_soon(nothing);
    let releasing = async { go_on.send(()).map_err(|_| StoreError::Closed) };
    // Each write is queued when it is first polled: all are pending when the writer resumes.
    let (first, second, third, released) = tokio::join!(first, second, third, releasing);
    released?;
    busy.join_all().await;
    first?;
    second?;
    third?.flushed().await?;
    assert_eq!(disk.synced(), 1);
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
        waiting
            .spawn(async move { own.writer.write(Durability::Relaxed, |_: &mut Ledger<'_>| Ok(())).await });
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
    // A permit is released just after the reply. The write that blocked the writer is done, too.
    while store.writer.room() < room + 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.writer.room(), room + 1);
    Ok(())
}

/// Opens a store in a file, writes a heartbeat, changes the file, and returns the detected loss.
async fn loss_after(harm: impl FnOnce(&Path)) -> Result<Result<(), StoreError>, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("switchboard.db");
    let store = Sqlite::open(path.clone()).await?;
    let owner = Owner::new("daemon-1");
    store.renew(owner.clone(), NOW).await?;
    let verify = async || {
        store.verify_files()?;
        store.verify_heartbeat(owner.clone()).await
    };
    verify().await?;
    harm(&path);
    Ok(verify().await)
}

#[tokio::test]
async fn lost_database_is_noticed_while_it_is_open() -> Result<(), Box<dyn std::error::Error>> {
    type Harm = fn(&Path);
    let harms: [(Harm, Loss); 6] = [
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
            Loss::HeartbeatLost,
        ),
    ];
    for (harm, expected) in harms {
        let found = loss_after(harm).await?;
        assert!(matches!(&found, Err(StoreError::Lost(lost)) if lost.loss == expected), "{found:?}");
    }
    Ok(())
}

#[tokio::test]
async fn checkpoint_and_vacuum_are_no_loss() -> Result<(), Box<dyn std::error::Error>> {
    let tidy = |path: &Path| {
        let other = rusqlite::Connection::open(path).unwrap();
        other.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); VACUUM;").unwrap();
    };
    loss_after(tidy).await??;
    Ok(())
}
