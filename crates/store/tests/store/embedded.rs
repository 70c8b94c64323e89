//! Embedded `SurrealDB`: one owner per directory, and the same crash safety as a file.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use store::{Certainty, JobFilter, Store, StoreError, StoreOptions, StoreSetting};

use crate::fixtures::{new_job, request, success};
use crate::harness::{EngineKind, Harness, block_on};
use crate::{crash, sqlite_file};

testkit::tests![
    embedded_directory_is_locked_for_other_processes,
    embedded_confirmed_writes_survive_sigkill,
    embedded_directory_is_private,
    embedded_rejects_foreign_directory,
    embedded_full_disk_loses_no_confirmed_job,
];

const HOLD: &str = "STORE_TEST_HOLD";

/// Runs the process that owns the directory: opens it, submits a job, prints its id, and exits at the end of its
/// stdin.
pub fn hold_if_requested() -> Option<ExitCode> {
    let setting: StoreSetting = env::var(HOLD).ok()?.parse().unwrap();
    block_on(async {
        let store = Store::open(StoreOptions::new(setting, "unused")).await.unwrap();
        let id = store.submit(new_job("held")).await.unwrap().job.id;
        stdout().lock().write_all(format!("{id}\n").as_bytes()).unwrap();
        let ended = tokio::task::spawn_blocking(|| stdin().lines().count()).await;
        assert_eq!(ended.unwrap(), 0);
    });
    Some(ExitCode::SUCCESS)
}

fn holder(harness: &Harness) -> (Child, String) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(HOLD, harness.setting()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

fn embedded_directory_is_locked_for_other_processes() {
    let harness = Harness::new(EngineKind::Embedded);
    let (mut child, held) = holder(&harness);
    let error = block_on(Store::open(harness.options())).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    assert_eq!(error.to_string(), format!("the store `{}` is locked by another process", harness.setting()));
    assert_eq!(error.certainty(), Certainty::NotDone);
    assert!(error.hint().contains("stop the other program"));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    block_on(async {
        let store = harness.open().await;
        let job = store.claim(request("a")).await.unwrap().unwrap();
        assert_eq!(job.id.to_string(), held);
        store.finish(&job.claim().unwrap(), success("x")).await.unwrap();
        // This process is rejected, too, while it has the directory open.
        let again = Store::open(harness.options()).await.unwrap_err();
        assert!(matches!(again, StoreError::Locked { .. }), "{again:?}");
        assert_eq!(store.count(&JobFilter::default()).await.unwrap(), 1, "the owner is unaffected");
    });
}

fn embedded_confirmed_writes_survive_sigkill() {
    crash::kill_writers_of(EngineKind::Embedded, 5);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn embedded_directory_is_private() {
    let harness = Harness::new(EngineKind::Embedded);
    let StoreSetting::SurrealEmbedded { path } = harness.options().setting else { panic!() };
    let check_modes = || {
        assert_eq!(mode(&path), 0o700);
        for file in harness.files() {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    };
    block_on(async {
        let store = harness.open().await;
        for _ in 0..10 {
            store.submit(new_job(&"x".repeat(10_000))).await.unwrap();
        }
        let mut attribute = [0; 64];
        if rustix::fs::getxattr(&path, "system.posix_acl_default", &mut attribute).is_ok() {
            check_modes();
        } else {
            assert_eq!(mode(&path), 0o700);
            eprintln!(
                "SKIPPED the modes of files of a running engine: no default rights on this file system"
            );
        }
    });
    // Simulates a directory of an older program or a copy.
    for file in harness.files() {
        fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    block_on(async { drop(harness.open().await) });
    check_modes();
}

fn embedded_rejects_foreign_directory() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(directory.path().join("diary.txt"), "dear diary").unwrap();
    let setting = StoreSetting::SurrealEmbedded { path: directory.path().to_owned() };
    let error = block_on(Store::open(StoreOptions::new(setting, "unused"))).unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error:?}");
    assert_eq!(mode(directory.path()), 0o755, "nothing was touched");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

fn embedded_full_disk_loses_no_confirmed_job() {
    sqlite_file::fill("surrealkv");
}
