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
    Certainty, JobFilter, PageRequest, RetentionLimits, StatsRange, Store, StoreError, StoreOptions,
    StoreSetting, WatchEvent,
};

use crate::fixtures::{new_job, request, success};
use crate::harness::{EngineKind, Harness, block_on};

testkit::tests![
    database_file_is_private,
    older_file_is_migrated,
    newer_file_is_rejected_untouched,
    foreign_database_is_rejected_untouched,
    leftover_wal_and_shm_are_made_private,
    job_changing_state_is_listed_once,
    failed_sweep_reports_removed_jobs,
    sweep_with_failed_commit_reports_unconfirmed_jobs,
    dropping_store_does_not_block_runtime,
    unreadable_record_does_not_block_others,
    dropped_claim_is_released,
    non_database_file_is_rejected,
    check_detects_corruption,
    locked_file_is_reported,
    unwritable_directory_is_named_in_error,
    full_disk_loses_no_confirmed_job,
];

fn open(path: &Path) -> Result<Store, StoreError> {
    block_on(Store::open(StoreOptions::new(StoreSetting::Sqlite { path: Some(path.to_owned()) }, "unused")))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn database_file_is_private() {
    let harness = Harness::new(EngineKind::SqliteFile);
    block_on(async {
        let store = harness.open().await;
        store.submit(new_job("x")).await.unwrap();
        let directory = harness.file().parent().unwrap().to_owned();
        assert_eq!(mode(&directory), 0o700);
        let files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 3, "the file, its log and its index: {files:?}");
        for file in files {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    });
    fs::set_permissions(harness.file(), PermissionsExt::from_mode(0o644)).unwrap();
    block_on(harness.open());
    assert_eq!(mode(&harness.file()), 0o600);
}

fn older_file_is_migrated() {
    let harness = Harness::new(EngineKind::SqliteFile);
    fs::create_dir_all(harness.file().parent().unwrap()).unwrap();
    Connection::open(harness.file()).unwrap().execute_batch(include_str!("version-1.sql")).unwrap();
    block_on(async {
        let store = harness.open().await;
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
    let version: i64 = Connection::open(harness.file())
        .unwrap()
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    assert_eq!(version, 3);
}

fn newer_file_is_rejected_untouched() {
    let harness = Harness::new(EngineKind::SqliteFile);
    block_on(async { harness.open().await.submit(new_job("x")).await.unwrap() });
    let connection = Connection::open(harness.file()).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(harness.file()).unwrap();
    let error = open(&harness.file()).unwrap_err();
    let expected = format!(
        "the store `{}` has version 99, but this program supports versions up to 3",
        harness.file().display()
    );
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().contains("newer Switchboard"));
    assert_eq!(fs::read(harness.file()).unwrap(), before, "nothing was touched");
}

fn foreign_database_is_rejected_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bookmarks.db");
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
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no file was created beside it");
    }
}

fn leftover_wal_and_shm_are_made_private() {
    let harness = Harness::new(EngineKind::SqliteFile);
    block_on(async { harness.open().await.submit(new_job("x")).await.unwrap() });
    // An open connection keeps the log and its index, like a crash does.
    let other = Connection::open(harness.file()).unwrap();
    other.execute_batch("UPDATE agent_jobs SET task = 'y'").unwrap();
    let companions = ["-wal", "-shm"].map(|end| PathBuf::from(format!("{}{end}", harness.file().display())));
    for file in &companions {
        fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    }
    let _store = block_on(harness.open());
    for file in &companions {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
}

fn job_changing_state_is_listed_once() {
    let harness = Harness::new(EngineKind::SqliteFile);
    block_on(async {
        let store = harness.open().await;
        store.submit(new_job("x")).await.unwrap();
        let other_store = store.clone();
        let moving = tokio::spawn(async move {
            for _ in 0..300 {
                let claim = other_store.claim(request("a")).await.unwrap().unwrap().claim().unwrap();
                other_store.pause_until(&claim, other_store.now()).await.unwrap();
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

fn failed_sweep_reports_removed_jobs() {
    let harness = Harness::new(EngineKind::SqliteFile);
    block_on(async {
        let store = harness.open().await;
        let mut jobs = Vec::new();
        for _ in 0..501 {
            let job = store.submit(new_job("x")).await.unwrap().job.id;
            store.request_cancel(job).await.unwrap();
            harness.clock.advance(std::time::Duration::from_millis(1));
            jobs.push(job);
        }
        Connection::open(harness.file())
            .unwrap()
            .execute_batch(
                "CREATE TRIGGER stop BEFORE DELETE ON agent_jobs WHEN OLD.id = (SELECT max(id) FROM agent_jobs)
                BEGIN SELECT RAISE(ABORT, 'no further'); END",
            )
            .unwrap();
        let all = RetentionLimits { max_age: Some(std::time::Duration::ZERO), max_count: None };
        let error = store.sweep(all).await.unwrap_err();
        assert_eq!(error.removed, jobs[..500]);
        assert_eq!(error.source.certainty(), Certainty::NotDone);
        assert!(store.get(jobs[499]).await.unwrap().is_none());
        assert!(store.get(jobs[500]).await.unwrap().is_some());
    });
}

fn sweep_with_failed_commit_reports_unconfirmed_jobs() {
    let harness = Harness::new(EngineKind::SqliteFile);
    block_on(async {
        let store = harness.open().await;
        let job = store.submit(new_job("x")).await.unwrap().job.id;
        store.request_cancel(job).await.unwrap();
        let other = Connection::open(harness.file()).unwrap();
        // A deferred constraint is checked at the commit.
        other
            .execute_batch(
                "CREATE TABLE notes (job BLOB REFERENCES agent_jobs (id) DEFERRABLE INITIALLY DEFERRED);
                INSERT INTO notes SELECT id FROM agent_jobs;",
            )
            .unwrap();
        let all = RetentionLimits { max_age: None, max_count: Some(0) };
        let error = store.sweep(all).await.unwrap_err();
        assert_eq!(error.source.certainty(), Certainty::Unknown, "{error:?}");
        assert_eq!((error.removed, error.unconfirmed), (vec![], vec![job]));
        other.execute_batch("DROP TABLE notes").unwrap();
        assert_eq!(store.sweep(all).await.unwrap(), [job]);
    });
}

fn dropping_store_does_not_block_runtime() {
    let harness = Harness::new(EngineKind::SqliteFile);
    // One thread: if the drop waited for the writer, nothing could release the lock.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = harness.open().await;
        let other = Connection::open(harness.file()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        {
            let mut submitting = std::pin::pin!(store.submit(new_job("handed over")));
            let waited = tokio::time::timeout(std::time::Duration::from_millis(50), &mut submitting).await;
            assert!(waited.is_err(), "{waited:?}");
        }
        drop(store);
        other.execute_batch("ROLLBACK").unwrap();
    });
    // The writer thread continues and commits its queue.
    block_on(async {
        let store = harness.open().await;
        while store.count(&JobFilter::default()).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    });
}

fn dropped_claim_is_released() {
    for polls in [0, 1] {
        let harness = Harness::new(EngineKind::SqliteFile);
        block_on(async {
            let store = harness.open().await;
            let job = store.submit(new_job("x")).await.unwrap().job.id;
            let mut watch = store.watch().await.unwrap();
            let other = Connection::open(harness.file()).unwrap();
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
                store.renew(&model::Owner::new("other"), crate::fixtures::LEASE).await.unwrap();
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

fn unreadable_record_does_not_block_others() {
    let harness = Harness::new(EngineKind::SqliteFile);
    block_on(async {
        let store = harness.open().await;
        let mut jobs = Vec::new();
        for _ in 0..4 {
            jobs.push(store.submit(new_job("x")).await.unwrap().job.id);
        }
        let other = Connection::open(harness.file()).unwrap();
        let corrupt = |assignment: &str, job: model::JobId| {
            let changed = other.execute(
                &format!("UPDATE agent_jobs SET {assignment} WHERE id = ?1"),
                [job.as_uuid().as_bytes()],
            );
            assert_eq!(changed, Ok(1));
        };
        corrupt("call = 'no JSON'", jobs[0]);
        let held = store.claim(request("a")).await.unwrap().unwrap();
        assert_eq!(held.id, jobs[1], "the next after the bad one");
        assert_eq!(store.claim(request("a")).await.unwrap().unwrap().id, jobs[2]);
        corrupt("call = '{'", jobs[1]);
        harness.clock.advance(crate::fixtures::LEASE * 2);
        let rescued = store.rescue(crate::fixtures::rescue_by("b")).await.unwrap();
        assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[2]]);
        corrupt("session = ''", jobs[0]);
        let page = store.list(&JobFilter::default(), PageRequest::default()).await.unwrap();
        let listed: Vec<_> = page.jobs.iter().map(|job| (job.id, job.state)).collect();
        let expected = [StateName::Queued, StateName::Interrupted, StateName::Failed];
        assert_eq!(listed, [(jobs[3], expected[0]), (jobs[2], expected[1]), (jobs[1], expected[2])]);
        assert_eq!(page.unreadable, [jobs[0]]);

        // It is excluded from the sums, and retention removes it like any other.
        corrupt("state = 'confused', completed_at = 1", jobs[0]);
        let stats = store.stats(StatsRange::default()).await.unwrap();
        assert_eq!(stats.states.iter().map(|(_, jobs)| jobs).sum::<u64>(), 3);
        assert_eq!(stats.ended.iter().map(|row| row.jobs).sum::<u64>(), 1);
        let all = RetentionLimits { max_age: None, max_count: Some(0) };
        assert_eq!(store.sweep(all).await.unwrap(), [jobs[0], jobs[1]]);
    });
}

fn non_database_file_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    fs::write(&path, "dear diary, ".repeat(1_000)).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    assert!(fs::read_to_string(&path).unwrap().starts_with("dear diary"), "nothing was touched");
}

fn check_detects_corruption() {
    let harness = Harness::new(EngineKind::SqliteFile);
    block_on(async {
        let store = harness.open().await;
        for _ in 0..200 {
            store.submit(new_job(&"x".repeat(500))).await.unwrap();
        }
    });
    let mut bytes = fs::read(harness.file()).unwrap();
    // Overwrite pages in the second half of the file.
    let middle = bytes.len() / 2;
    for page in bytes[middle..].chunks_mut(4_096) {
        page[..64].fill(0xee);
    }
    fs::File::create(harness.file()).unwrap().write_all(&bytes).unwrap();
    let found = block_on(async { harness.open().await.check().await });
    assert!(matches!(found, Err(StoreError::Damaged { .. })), "{found:?}");
}

fn locked_file_is_reported() {
    let harness = Harness::new(EngineKind::SqliteFile);
    block_on(async {
        let store = harness.open().await;
        let other = Connection::open(harness.file()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = store.submit(new_job("x")).await.unwrap_err();
        assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
        assert_eq!(error.certainty(), Certainty::NotDone);
        other.execute_batch("ROLLBACK").unwrap();
        store.submit(new_job("y")).await.unwrap();
        assert_eq!(store.count(&JobFilter::default()).await.unwrap(), 1);
    });
}

fn unwritable_directory_is_named_in_error() {
    let error = open(Path::new("/proc/nothing/jobs.db")).unwrap_err();
    assert_eq!(error.to_string(), "cannot open the store `/proc/nothing/jobs.db`");
    assert!(matches!(error, StoreError::CannotOpen { .. }));
}

const FILL: &str = "STORE_TEST_FILL";
const FILL_SCHEME: &str = "STORE_TEST_FILL_SCHEME";

/// Runs inside a small tmpfs, which soon is full.
pub fn fill_if_requested() -> Option<ExitCode> {
    let directory = PathBuf::from(env::var_os(FILL)?);
    let scheme = env::var(FILL_SCHEME).unwrap();
    let ballast = directory.join("ballast");
    // Larger than the rest: an engine that repairs its log on open copies it.
    fs::write(&ballast, vec![1; 7 << 20]).unwrap();
    block_on(async {
        let setting: StoreSetting = format!("{scheme}:{}", directory.join("jobs").display()).parse().unwrap();
        let options = StoreOptions::new(setting, "unused");
        let store = Store::open(options.clone()).await.unwrap();
        let mut submitted = Vec::new();
        let error = loop {
            match store.submit(new_job(&"x".repeat(50_000))).await {
                Ok(new) => submitted.push(new.job.id),
                Err(error) => break error,
            }
            assert!(submitted.len() < 1_000, "the disk is never full");
        };
        // SQLite rolls back a write that did not fit; the log of the other engine may contain it.
        let unconfirmed = u64::from(scheme != "sqlite");
        assert_eq!(matches!(error, StoreError::Full { .. }), unconfirmed == 0, "{error:?}");
        assert_eq!(error.certainty() == Certainty::Unknown, unconfirmed == 1, "{error:?}");
        let count = store.count(&JobFilter::default()).await.unwrap();
        assert!(
            (submitted.len() as u64..=submitted.len() as u64 + unconfirmed).contains(&count),
            "no partial job"
        );
        fs::remove_file(&ballast).unwrap();
        let acknowledged = submitted.len() as u64 + 1;
        let last = store.submit(new_job("room again")).await.unwrap().job.id;
        drop(store);
        // Read the file and not the cache of the process.
        let store = Store::open(options).await.unwrap();
        for id in submitted {
            let job = store.get(id).await.unwrap().expect("an acknowledged job");
            assert_eq!(job.order.call.prompt.len(), 50_000);
        }
        assert_eq!(store.get(last).await.unwrap().unwrap().order.call.prompt, "room again");
        let count = store.count(&JobFilter::default()).await.unwrap();
        assert!(
            (acknowledged..=acknowledged + unconfirmed).contains(&count),
            "the failed write is not stored"
        );
        store.check().await.unwrap();
    });
    Some(ExitCode::SUCCESS)
}

fn full_disk_loses_no_confirmed_job() {
    fill("sqlite");
}

/// Fills a file system with a store of an engine.
pub fn fill(scheme: &str) {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=12m none "$STORE_TEST_FILL" && exec "$0""#;
    let ran = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(env::current_exe().unwrap())
        .env(FILL, directory.path())
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
