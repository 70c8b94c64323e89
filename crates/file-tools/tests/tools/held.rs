//! The confinement of the process, attacked from inside.

use std::ffi::OsString;
use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use file_tools::{OperatorSetting, Reach, Workspace};
use serde_json::{Value, json};

use crate::harness::Harness;

crate::tests![
    landlock_blocks_every_escape_attempt,
    read_only_landlock_blocks_every_write,
    landlock_applies_to_every_thread
];

/// The first argument of a process that confines itself and then tries to escape.
pub const CUE: &str = "--try-everything";

/// `CUE <workspace> <outside> read|write`: prints the operations that succeeded although they must fail.
pub fn try_everything(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut next = || PathBuf::from(args.next().unwrap());
    let (workspace, outside) = (next(), next());
    let reach = if next() == Path::new("write") { Reach::Write } else { Reach::Read };
    // Bound before the confinement, so that there is a target to connect to.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let entered = Workspace::enter(&workspace, reach, OperatorSetting::default()).unwrap();
    let (inside, secret) = (workspace.join("a.txt"), outside.join("secret.txt"));
    let outcomes = json!({
        "read outside": fs::read(&secret).is_ok(),
        "list outside": fs::read_dir(&outside).is_ok(),
        "write outside": fs::write(outside.join("new"), "x").is_ok(),
        "truncate outside": fs::OpenOptions::new().write(true).truncate(true).open(&secret).is_ok(),
        "delete outside": fs::remove_file(outside.join("other")).is_ok(),
        "link to outside": fs::hard_link(&secret, workspace.join("hard")).is_ok(),
        "symlink": std::os::unix::fs::symlink(&secret, workspace.join("soft")).is_ok(),
        "rename out": fs::rename(&inside, outside.join("taken")).is_ok(),
        "run": Command::new("/bin/true").status().is_ok(),
        "tcp": TcpStream::connect(address).is_ok(),
        "udp": UdpSocket::bind("127.0.0.1:0").is_ok(),
        "unix socket": UnixStream::connect(outside.join("socket")).is_ok_and(|_| true),
        "thread": std::thread::scope(|scope| scope.spawn(|| fs::read(&secret).is_ok()).join().unwrap()),
        "write inside": fs::write(&inside, "changed").is_ok(),
        "make inside": fs::write(workspace.join("made"), "x").is_ok(),
        "read inside": fs::read(&inside).is_ok(),
        "held": entered.held(),
    });
    let _ = std::io::Write::write_all(&mut std::io::stdout(), outcomes.to_string().as_bytes());
    ExitCode::SUCCESS
}

fn tried(harness: &Harness, reach: &str) -> Value {
    fs::write(harness.outside().join("other"), "x").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.arg(CUE).args([harness.workspace(), harness.outside()]).arg(reach).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

const NEVER: [&str; 13] = [
    "read outside",
    "list outside",
    "write outside",
    "truncate outside",
    "delete outside",
    "link to outside",
    "symlink",
    "rename out",
    "run",
    "tcp",
    "udp",
    "unix socket",
    "thread",
];

fn check(harness: &Harness, outcomes: &Value) {
    if outcomes["held"]["landlock_abi"].is_null() || outcomes["held"]["seccomp"] != true {
        eprintln!("SKIPPED: this kernel holds only {}", outcomes["held"]);
        return;
    }
    for attempt in NEVER {
        assert_eq!(outcomes[attempt], false, "{attempt}: {outcomes}");
    }
    assert_eq!(fs::read_to_string(harness.secret()).unwrap(), crate::harness::SECRET);
}

fn landlock_blocks_every_escape_attempt() {
    let harness = Harness::new();
    let outcomes = tried(&harness, "write");
    check(&harness, &outcomes);
    assert_eq!(
        (&outcomes["read inside"], &outcomes["write inside"], &outcomes["make inside"]),
        (&json!(true), &json!(true), &json!(true))
    );
}

fn read_only_landlock_blocks_every_write() {
    let harness = Harness::new();
    let outcomes = tried(&harness, "read");
    check(&harness, &outcomes);
    assert_eq!(outcomes["read inside"], true);
    if !outcomes["held"]["landlock_abi"].is_null() {
        assert_eq!((&outcomes["write inside"], &outcomes["make inside"]), (&json!(false), &json!(false)));
    }
}

/// The threads of a search are started after the confinement.
fn landlock_applies_to_every_thread() {
    let harness = Harness::new();
    let outcomes = tried(&harness, "read");
    assert!(outcomes["held"]["landlock_abi"].is_null() || outcomes["thread"] == false, "{outcomes}");
}
