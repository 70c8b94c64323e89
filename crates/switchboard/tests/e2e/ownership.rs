//! Directories and sockets of other users, and all operations as an ordinary user.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;
use tempfile::TempDir;

use crate::harness::{Harness, TestHost, stderr, stdout};

const NOBODY: u32 = 65534;

/// Runs the program as another user from a world-readable directory; `None` without the permission to change users.
struct Other {
    scratch: TempDir,
    program: PathBuf,
}

impl Other {
    fn new() -> Option<Self> {
        if !geteuid().is_root() {
            println!("SKIPPED: only root can become another user");
            return None;
        }
        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
        let program = scratch.path().join("switchboard");
        // The executables find each other by standing in the same directory.
        for (name, file) in [
            ("switchboard", env!("CARGO_BIN_EXE_switchboard")),
            ("switchboard-supervisor", env!("CARGO_BIN_EXE_switchboard-supervisor")),
        ] {
            fs::copy(file, scratch.path().join(name)).unwrap();
        }
        let runs = Self::command_of(&program, Path::new("/"), &["--version"]).output();
        if !runs.is_ok_and(|output| output.status.success()) {
            println!("SKIPPED: setpriv cannot make another user here");
            return None;
        }
        Some(Self { scratch, program })
    }

    fn command_of(program: &Path, home: &Path, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(program)
            .args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SWITCHBOARD_HOME", home)
            .stdin(Stdio::null());
        command
    }

    fn command(&self, home: &Path, args: &[&str]) -> Command {
        Self::command_of(&self.program, home, args)
    }

    fn home(&self) -> PathBuf {
        let home = self.scratch.path().join("home");
        fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
        home
    }
}

#[test]
fn home_writable_by_others_is_rejected() {
    let harness = Harness::new();
    fs::create_dir(&harness.home).unwrap();
    fs::set_permissions(&harness.home, Permissions::from_mode(0o777)).unwrap();
    let output = harness.run(&["serve"]);
    let text = stderr(&output);
    assert!(text.contains("is writable by other users") && text.contains("chmod go-w"), "{text}");
    let message = harness.bridge().ping(1)["error"]["message"].to_string();
    assert!(message.contains("is writable by other users"), "{message}");
    assert!(!harness.state().exists());
}

#[test]
fn home_of_another_user_is_rejected() {
    let Some(other) = Other::new() else { return };
    let theirs = other.home();
    let harness = Harness::new();
    let output = harness.command(&["serve"]).env("SWITCHBOARD_HOME", &theirs).output().unwrap();
    assert!(stderr(&output).contains("belongs to user 65534, but you are user 0"), "{output:?}");
    let output = other.command(other.scratch.path(), &["serve"]).output().unwrap();
    assert!(stderr(&output).contains("belongs to user 0, but you are user 65534"), "{output:?}");
}

#[test]
fn daemon_serves_only_its_own_user() {
    let Some(other) = Other::new() else { return };
    let home = other.home();
    let mut host = TestHost::start(other.command(&home, &["mcp"]));
    host.initialize();
    let harness = Harness::new();
    // Root can go through any directory; the daemon turns it away, and so does the front-end.
    let output = harness.command(&["status"]).env("SWITCHBOARD_HOME", &home).output().unwrap();
    assert!(stderr(&output).contains("belongs to user 65534"), "{output:?}");
    let holder: serde_json::Value =
        serde_json::from_slice(&fs::read(home.join("state/daemon.lock")).unwrap()).unwrap();
    let socket = std::os::unix::net::UnixStream::connect(holder["socket"].as_str().unwrap()).unwrap();
    assert_eq!(std::io::Read::read(&mut &socket, &mut [0]).unwrap(), 0, "turned away without a word");
    let stopped = other.command(&home, &["stop"]).output().unwrap();
    assert!(stdout(&stopped).contains("stopped the daemon"), "{stopped:?}");
}
