//! Embedded `SurrealDB`: one owner per directory, and the same crash safety as a file.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use store::{Certainty, JobFilter, Opening, Setting, Store, StoreError};

use crate::bed::{Bed, Engine, block_on};
use crate::calls::{order, request, success};
use crate::{crash, files};

crate::tests![
    a_second_process_is_refused_until_the_first_has_let_go,
    what_was_answered_survives_a_kill_of_the_embedded_engine,
    the_folder_is_for_its_user_alone,
    a_folder_with_something_else_in_it_is_refused,
    a_full_disk_is_survived_by_the_embedded_engine,
];

const HOLD: &str = "STORE_TEST_HOLD";

/// Runs the process that owns the directory: opens it, submits a job, prints its id, and exits at the end of its
/// stdin.
pub fn hold_if_asked() -> Option<ExitCode> {
    let setting: Setting = env::var(HOLD).ok()?.parse().unwrap();
    block_on(async {
        let store = Store::open(Opening::new(setting, "unused")).await.unwrap();
        let id = store.submit(order("held")).await.unwrap().job.id;
        stdout().lock().write_all(format!("{id}\n").as_bytes()).unwrap();
        let ended = tokio::task::spawn_blocking(|| stdin().lines().count()).await;
        assert_eq!(ended.unwrap(), 0);
    });
    Some(ExitCode::SUCCESS)
}

fn holder(bed: &Bed) -> (Child, String) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(HOLD, bed.setting()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

fn a_second_process_is_refused_until_the_first_has_let_go() {
    let bed = Bed::new(Engine::Embedded);
    let (mut child, held) = holder(&bed);
    let error = block_on(Store::open(bed.opening())).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    assert_eq!(error.to_string(), format!("the store `{}` is locked by another process", bed.setting()));
    assert_eq!(error.certainty(), Certainty::NotDone);
    assert!(error.hint().contains("end the other program"));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    block_on(async {
        let store = bed.open().await;
        let job = store.claim(request("a")).await.unwrap().unwrap();
        assert_eq!(job.id.to_string(), held);
        store.finish(&job.claim().unwrap(), success("x")).await.unwrap();
        // This process is rejected, too, while it has the directory open.
        let again = Store::open(bed.opening()).await.unwrap_err();
        assert!(matches!(again, StoreError::Locked { .. }), "{again:?}");
        assert_eq!(store.count(&JobFilter::default()).await.unwrap(), 1, "and the one that has it goes on");
    });
}

fn what_was_answered_survives_a_kill_of_the_embedded_engine() {
    crash::kill_writers_of(Engine::Embedded, 5);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn the_folder_is_for_its_user_alone() {
    let bed = Bed::new(Engine::Embedded);
    let Setting::SurrealEmbedded { path } = bed.opening().setting else { panic!() };
    let look = || {
        assert_eq!(mode(&path), 0o700);
        for file in bed.files() {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    };
    block_on(async {
        let store = bed.open().await;
        for _ in 0..10 {
            store.submit(order(&"x".repeat(10_000))).await.unwrap();
        }
        let mut attribute = [0; 64];
        if rustix::fs::getxattr(&path, "system.posix_acl_default", &mut attribute).is_ok() {
            look();
        } else {
            assert_eq!(mode(&path), 0o700);
            eprintln!(
                "SKIPPED the modes of files of a running engine: no default rights on this file system"
            );
        }
    });
    // Simulates a directory of an older program or a copy.
    for file in bed.files() {
        fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    block_on(async { drop(bed.open().await) });
    look();
}

fn a_folder_with_something_else_in_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("diary.txt"), "dear diary").unwrap();
    let setting = Setting::SurrealEmbedded { path: folder.path().to_owned() };
    let error = block_on(Store::open(Opening::new(setting, "unused"))).unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error:?}");
    assert_eq!(mode(folder.path()), 0o755, "nothing was touched");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn a_full_disk_is_survived_by_the_embedded_engine() {
    files::fill("surrealkv");
}
