//! The `SQLite` file: permissions, versions, faults and recovery.

use std::env;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use model::StateName;
use rusqlite::Connection;
use store::{
    Certainty, JobFilter, Opening, PageRequest, Retention, Setting, StatsRange, Store, StoreError, WatchEvent,
};

use crate::bed::{Bed, Engine, block_on};
use crate::calls::{order, request, success};

crate::tests![
    the_file_is_for_its_user_alone,
    a_file_of_an_older_version_is_brought_up_to_date,
    a_file_of_a_newer_version_is_refused,
    a_database_of_another_program_is_refused,
    what_a_crash_left_beside_the_file_is_shut_to_others,
    a_job_that_moves_is_in_a_list_exactly_once,
    a_sweep_that_fails_halfway_says_what_it_removed,
    a_sweep_whose_commit_fails_names_what_may_be_gone,
    a_store_that_is_dropped_keeps_no_worker_waiting,
    a_record_that_makes_no_sense_stops_no_other,
    a_claim_that_nobody_waits_for_is_put_back,
    what_is_no_database_is_refused,
    a_damaged_file_is_found_out,
    a_locked_file_is_said_to_be,
    a_folder_that_cannot_be_written_is_named,
    a_full_disk_loses_nothing_and_is_survived,
];

fn open(path: &Path) -> Result<Store, StoreError> {
    block_on(Store::open(Opening::new(Setting::Sqlite { path: Some(path.to_owned()) }, "unused")))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn the_file_is_for_its_user_alone() {
    let bed = Bed::new(Engine::SqliteFile);
    block_on(async {
        let store = bed.open().await;
        store.submit(order("x")).await.unwrap();
        let folder = bed.file().parent().unwrap().to_owned();
        assert_eq!(mode(&folder), 0o700);
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 3, "the file, its log and its index: {files:?}");
        for file in files {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    });
    fs::set_permissions(bed.file(), PermissionsExt::from_mode(0o644)).unwrap();
    block_on(bed.open());
    assert_eq!(mode(&bed.file()), 0o600);
}

fn a_file_of_an_older_version_is_brought_up_to_date() {
    let bed = Bed::new(Engine::SqliteFile);
    fs::create_dir_all(bed.file().parent().unwrap()).unwrap();
    Connection::open(bed.file()).unwrap().execute_batch(include_str!("version-1.sql")).unwrap();
    block_on(async {
        let store = bed.open().await;
        let jobs = store.list(&JobFilter::default(), PageRequest::default()).await.unwrap().jobs;
        assert_eq!(
            jobs.iter().map(|job| job.state).collect::<Vec<_>>(),
            [StateName::Queued, StateName::Completed]
        );
        let old = store.get(jobs[1].id).await.unwrap().unwrap();
        assert_eq!(old.order.call.prompt, "What is 2 + 2?");
        assert_eq!(old.outcome.unwrap().text, "4");
        assert_eq!(old.metadata, None, "the column came later");
        assert_eq!(store.exchange(old.id).await.unwrap().unwrap().said.response, "4");
        // The migrated file is writable.
        let job = store.claim(request("a")).await.unwrap().unwrap();
        let end = model::JobEnd { metadata: Some("[]".into()), ..success("5") };
        store.finish(&job.claim().unwrap(), end).await.unwrap();
        assert_eq!(store.get(job.id).await.unwrap().unwrap().metadata.as_deref(), Some("[]"));
        store.check().await.unwrap();
    });
    let version: i64 = Connection::open(bed.file())
        .unwrap()
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    assert_eq!(version, 3);
}

fn a_file_of_a_newer_version_is_refused() {
    let bed = Bed::new(Engine::SqliteFile);
    block_on(async { bed.open().await.submit(order("x")).await.unwrap() });
    let connection = Connection::open(bed.file()).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(bed.file()).unwrap();
    let error = open(&bed.file()).unwrap_err();
    let expected = format!(
        "the store `{}` has version 99, and this program knows versions up to 3",
        bed.file().display()
    );
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().contains("newer Switchboard"));
    assert_eq!(fs::read(bed.file()).unwrap(), before, "nothing was touched");
}

fn a_database_of_another_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bookmarks.db");
    for journal in ["delete", "wal"] {
        let other = Connection::open(&path).unwrap();
        other.pragma_update(None, "journal_mode", journal).unwrap();
        other.execute_batch("CREATE TABLE IF NOT EXISTS bookmarks (url TEXT)").unwrap();
        drop(other);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let before = fs::read(&path).unwrap();
        assert!(matches!(open(&path), Err(StoreError::Foreign { .. })));
        assert_eq!(fs::read(&path).unwrap(), before, "not even its header was touched");
        assert_eq!(mode(&path), 0o644);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was put beside it");
    }
}

fn what_a_crash_left_beside_the_file_is_shut_to_others() {
    let bed = Bed::new(Engine::SqliteFile);
    block_on(async { bed.open().await.submit(order("x")).await.unwrap() });
    // An open connection keeps the log and its index, like a crash does.
    let other = Connection::open(bed.file()).unwrap();
    other.execute_batch("UPDATE agent_jobs SET task = 'y'").unwrap();
    let beside = ["-wal", "-shm"].map(|end| PathBuf::from(format!("{}{end}", bed.file().display())));
    for file in &beside {
        fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    }
    let _store = block_on(bed.open());
    for file in &beside {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
}

fn a_job_that_moves_is_in_a_list_exactly_once() {
    let bed = Bed::new(Engine::SqliteFile);
    block_on(async {
        let store = bed.open().await;
        store.submit(order("x")).await.unwrap();
        let mover = store.clone();
        let moving = tokio::spawn(async move {
            for _ in 0..300 {
                let claim = mover.claim(request("a")).await.unwrap().unwrap().claim().unwrap();
                mover.pause_until(&claim, mover.now()).await.unwrap();
            }
        });
        let states = vec![StateName::Queued, StateName::Running, StateName::Paused];
        let filter = JobFilter { states, ..JobFilter::default() };
        while !moving.is_finished() {
            let page = store.list(&filter, PageRequest::default()).await.unwrap();
            assert_eq!(page.jobs.len(), 1);
        }
        moving.await.unwrap();
    });
}

fn a_sweep_that_fails_halfway_says_what_it_removed() {
    let bed = Bed::new(Engine::SqliteFile);
    block_on(async {
        let store = bed.open().await;
        let mut jobs = Vec::new();
        for _ in 0..501 {
            let job = store.submit(order("x")).await.unwrap().job.id;
            store.request_cancel(job).await.unwrap();
            bed.clock.advance(std::time::Duration::from_millis(1));
            jobs.push(job);
        }
        Connection::open(bed.file())
            .unwrap()
            .execute_batch(
                "CREATE TRIGGER stop BEFORE DELETE ON agent_jobs WHEN OLD.id = (SELECT max(id) FROM agent_jobs)
                BEGIN SELECT RAISE(ABORT, 'no further'); END",
            )
            .unwrap();
        let all = Retention { max_age: Some(std::time::Duration::ZERO), max_count: None };
        let error = store.sweep(all).await.unwrap_err();
        assert_eq!(error.removed, jobs[..500]);
        assert_eq!(error.source.certainty(), Certainty::NotDone);
        assert!(store.get(jobs[499]).await.unwrap().is_none());
        assert!(store.get(jobs[500]).await.unwrap().is_some());
    });
}

fn a_sweep_whose_commit_fails_names_what_may_be_gone() {
    let bed = Bed::new(Engine::SqliteFile);
    block_on(async {
        let store = bed.open().await;
        let job = store.submit(order("x")).await.unwrap().job.id;
        store.request_cancel(job).await.unwrap();
        let other = Connection::open(bed.file()).unwrap();
        // A deferred constraint is checked at the commit.
        other
            .execute_batch(
                "CREATE TABLE notes (job BLOB REFERENCES agent_jobs (id) DEFERRABLE INITIALLY DEFERRED);
                INSERT INTO notes SELECT id FROM agent_jobs;",
            )
            .unwrap();
        let all = Retention { max_age: None, max_count: Some(0) };
        let error = store.sweep(all).await.unwrap_err();
        assert_eq!(error.source.certainty(), Certainty::Unknown, "{error:?}");
        assert_eq!((error.removed, error.perhaps), (vec![], vec![job]));
        other.execute_batch("DROP TABLE notes").unwrap();
        assert_eq!(store.sweep(all).await.unwrap(), [job]);
    });
}

fn a_store_that_is_dropped_keeps_no_worker_waiting() {
    let bed = Bed::new(Engine::SqliteFile);
    // One thread: if the drop waited for the writer, nothing could release the lock.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = bed.open().await;
        let other = Connection::open(bed.file()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        {
            let mut placing = std::pin::pin!(store.submit(order("handed over")));
            let waited = tokio::time::timeout(std::time::Duration::from_millis(50), &mut placing).await;
            assert!(waited.is_err(), "{waited:?}");
        }
        drop(store);
        other.execute_batch("ROLLBACK").unwrap();
    });
    // The writer thread continues and commits its queue.
    block_on(async {
        let store = bed.open().await;
        while store.count(&JobFilter::default()).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    });
}

fn a_claim_that_nobody_waits_for_is_put_back() {
    for polls in [0, 1] {
        let bed = Bed::new(Engine::SqliteFile);
        block_on(async {
            let store = bed.open().await;
            let job = store.submit(order("x")).await.unwrap().job.id;
            let mut watch = store.watch().await.unwrap();
            let other = Connection::open(bed.file()).unwrap();
            // The claim cannot be committed while the file is locked.
            other.execute_batch("BEGIN IMMEDIATE").unwrap();
            let mut claiming = Box::pin(store.claim(request("gone")));
            let waited = tokio::time::timeout(std::time::Duration::from_millis(50), &mut claiming).await;
            assert!(waited.is_err(), "{waited:?}");
            if polls == 0 {
                drop(claiming);
                other.execute_batch("ROLLBACK").unwrap();
            } else {
                // Committed, but dropped before the result was received.
                other.execute_batch("ROLLBACK").unwrap();
                while !matches!(watch.next().await, Some(WatchEvent::Changed(change)) if change.state == StateName::Running)
                {
                }
                store.renew(&model::Owner::new("other"), crate::calls::LEASE).await.unwrap();
                drop(claiming);
            }
            while !matches!(watch.next().await, Some(WatchEvent::Changed(change)) if change.state == StateName::Queued)
            {
            }
            let back = store.get(job).await.unwrap().unwrap();
            assert_eq!((back.progress.state.name(), back.started_at), (StateName::Queued, None));
            assert_eq!(back.progress.requeues, 0);
            assert_eq!(store.claim(request("b")).await.unwrap().unwrap().id, job);
        });
    }
}

fn a_record_that_makes_no_sense_stops_no_other() {
    let bed = Bed::new(Engine::SqliteFile);
    block_on(async {
        let store = bed.open().await;
        let mut jobs = Vec::new();
        for _ in 0..4 {
            jobs.push(store.submit(order("x")).await.unwrap().job.id);
        }
        let other = Connection::open(bed.file()).unwrap();
        let spoil = |what: &str, job: model::JobId| {
            let changed = other
                .execute(&format!("UPDATE agent_jobs SET {what} WHERE id = ?1"), [job.as_uuid().as_bytes()]);
            assert_eq!(changed, Ok(1));
        };
        spoil("call = 'no JSON'", jobs[0]);
        let held = store.claim(request("a")).await.unwrap().unwrap();
        assert_eq!(held.id, jobs[1], "the next after the bad one");
        assert_eq!(store.claim(request("a")).await.unwrap().unwrap().id, jobs[2]);
        spoil("call = '{'", jobs[1]);
        bed.clock.advance(crate::calls::LEASE * 2);
        let rescued = store.rescue(crate::calls::rescue_by("b")).await.unwrap();
        assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[2]]);
        spoil("session = ''", jobs[0]);
        let page = store.list(&JobFilter::default(), PageRequest::default()).await.unwrap();
        let listed: Vec<_> = page.jobs.iter().map(|job| (job.id, job.state)).collect();
        let expected = [StateName::Queued, StateName::Interrupted, StateName::Failed];
        assert_eq!(listed, [(jobs[3], expected[0]), (jobs[2], expected[1]), (jobs[1], expected[2])]);
        assert_eq!(page.unreadable, [jobs[0]]);

        // It is excluded from the sums, and retention removes it like any other.
        spoil("state = 'confused', completed_at = 1", jobs[0]);
        let stats = store.stats(StatsRange::default()).await.unwrap();
        assert_eq!(stats.states.iter().map(|(_, jobs)| jobs).sum::<u64>(), 3);
        assert_eq!(stats.ended.iter().map(|row| row.jobs).sum::<u64>(), 1);
        let all = Retention { max_age: None, max_count: Some(0) };
        assert_eq!(store.sweep(all).await.unwrap(), [jobs[0], jobs[1]]);
    });
}

fn what_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "dear diary, ".repeat(1_000)).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    assert!(fs::read_to_string(&path).unwrap().starts_with("dear diary"), "nothing was touched");
}

fn a_damaged_file_is_found_out() {
    let bed = Bed::new(Engine::SqliteFile);
    block_on(async {
        let store = bed.open().await;
        for _ in 0..200 {
            store.submit(order(&"x".repeat(500))).await.unwrap();
        }
    });
    let mut bytes = fs::read(bed.file()).unwrap();
    // Overwrite pages in the second half of the file.
    let middle = bytes.len() / 2;
    for page in bytes[middle..].chunks_mut(4_096) {
        page[..64].fill(0xee);
    }
    fs::File::create(bed.file()).unwrap().write_all(&bytes).unwrap();
    let found = block_on(async { bed.open().await.check().await });
    assert!(matches!(found, Err(StoreError::Damaged { .. })), "{found:?}");
}

fn a_locked_file_is_said_to_be() {
    let bed = Bed::new(Engine::SqliteFile);
    block_on(async {
        let store = bed.open().await;
        let other = Connection::open(bed.file()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = store.submit(order("x")).await.unwrap_err();
        assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
        assert_eq!(error.certainty(), Certainty::NotDone);
        other.execute_batch("ROLLBACK").unwrap();
        store.submit(order("y")).await.unwrap();
        assert_eq!(store.count(&JobFilter::default()).await.unwrap(), 1);
    });
}

fn a_folder_that_cannot_be_written_is_named() {
    let error = open(Path::new("/proc/nothing/jobs.db")).unwrap_err();
    assert_eq!(error.to_string(), "cannot open the store `/proc/nothing/jobs.db`");
    assert!(matches!(error, StoreError::CannotOpen { .. }));
}

const FILL: &str = "STORE_TEST_FILL";
const FILL_SCHEME: &str = "STORE_TEST_FILL_SCHEME";

/// Runs inside a small tmpfs, which soon is full.
pub fn fill_if_asked() -> Option<ExitCode> {
    let folder = PathBuf::from(env::var_os(FILL)?);
    let scheme = env::var(FILL_SCHEME).unwrap();
    let ballast = folder.join("ballast");
    // Larger than the rest: an engine that repairs its log on open copies it.
    fs::write(&ballast, vec![1; 7 << 20]).unwrap();
    block_on(async {
        let setting: Setting = format!("{scheme}:{}", folder.join("jobs").display()).parse().unwrap();
        let opening = Opening::new(setting, "unused");
        let store = Store::open(opening.clone()).await.unwrap();
        let mut placed = Vec::new();
        let error = loop {
            match store.submit(order(&"x".repeat(50_000))).await {
                Ok(new) => placed.push(new.job.id),
                Err(error) => break error,
            }
            assert!(placed.len() < 1_000, "the disk is never full");
        };
        // SQLite rolls back a write that did not fit; the log of the other engine may contain it.
        let perhaps = u64::from(scheme != "sqlite");
        assert_eq!(matches!(error, StoreError::Full { .. }), perhaps == 0, "{error:?}");
        assert_eq!(error.certainty() == Certainty::Unknown, perhaps == 1, "{error:?}");
        let there = store.count(&JobFilter::default()).await.unwrap();
        assert!((placed.len() as u64..=placed.len() as u64 + perhaps).contains(&there), "not half of a job");
        fs::remove_file(&ballast).unwrap();
        let acknowledged = placed.len() as u64 + 1;
        let last = store.submit(order("room again")).await.unwrap().job.id;
        drop(store);
        // Read the file and not the cache of the process.
        let store = Store::open(opening).await.unwrap();
        for id in placed {
            let job = store.get(id).await.unwrap().expect("an acknowledged job");
            assert_eq!(job.order.call.prompt.len(), 50_000);
        }
        assert_eq!(store.get(last).await.unwrap().unwrap().order.call.prompt, "room again");
        let there = store.count(&JobFilter::default()).await.unwrap();
        assert!((acknowledged..=acknowledged + perhaps).contains(&there), "and what failed is not");
        store.check().await.unwrap();
    });
    Some(ExitCode::SUCCESS)
}

fn a_full_disk_loses_nothing_and_is_survived() {
    fill("sqlite");
}

/// Fills a file system with a store of an engine.
pub fn fill(scheme: &str) {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=12m none "$STORE_TEST_FILL" && exec "$0""#;
    let ran = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(env::current_exe().unwrap())
        .env(FILL, folder.path())
        .env(FILL_SCHEME, scheme)
        .output();
    match ran {
        Ok(output) if output.status.success() => {}
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("panicked") => {
            panic!("{}", String::from_utf8_lossy(&output.stderr));
        }
        other => eprintln!("SKIPPED the full disk on {scheme}: no file system of one's own here: {other:?}"),
    }
}
