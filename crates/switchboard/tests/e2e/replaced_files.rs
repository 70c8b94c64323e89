//! FIFOs, directories and sockets in place of Switchboard's own files: each is named with a remedy, and no command blocks.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::harness::{Daemon, Harness, hold_lock, stderr, stdout};

fn replace_by_fifo(path: &Path) {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

fn call(harness: &Harness, prompt: &str) -> Output {
    let work = harness.work();
    harness.run(&["call", "rehearsal", "--cwd", work.to_str().unwrap(), prompt])
}

/// Creates the state directory and everything in it, without a running daemon.
fn stopped() -> Harness {
    let harness = Harness::new();
    assert_eq!(stdout(&call(&harness, "@rehearse answer done")), "done\n");
    assert!(harness.run(&["stop", "--now"]).status.success());
    harness
}

/// Starts a daemon that cannot bind its socket in the other directory, so that it does not recover by itself.
fn daemon_without_fallback(harness: &Harness) -> Daemon {
    let daemon = harness.daemon();
    replace_by_fifo(&harness.state().join("run"));
    daemon
}

fn assert_named(output: &Output, path: &Path) {
    let text = stderr(output);
    assert!(!output.status.success() && text.contains(path.to_str().unwrap()), "{}: {text}", path.display());
    assert!(text.contains("hint: ") && text.contains("remove it"), "{}: {text}", path.display());
}

#[test]
fn fifo_in_place_of_a_file_fails_the_start_and_is_named() {
    let harness = stopped();
    for name in ["identity.json", "daemon.lock", "start.lock", "jobs", "environments", "run"] {
        let path = if name == "run" { harness.home.join(name) } else { harness.state().join(name) };
        let backup = harness.scratch().join("backup");
        let existed = fs::rename(&path, &backup).is_ok();
        replace_by_fifo(&path);
        if name == "run" {
            replace_by_fifo(&harness.state().join("run"));
            assert_named(&harness.run(&["jobs"]), &harness.state().join("run"));
            fs::remove_file(harness.state().join("run")).unwrap();
        } else {
            assert_named(&harness.run(&["jobs"]), &path);
        }
        fs::remove_file(&path).unwrap();
        if existed {
            fs::rename(&backup, &path).unwrap();
        }
    }
    assert!(harness.run(&["jobs"]).status.success());
}

#[test]
fn dangling_link_for_a_directory_is_named() {
    let harness = stopped();
    for name in ["jobs", "environments", "logs", "caches", "caches/workspace"] {
        let path = harness.state().join(name);
        let backup = harness.scratch().join("backup");
        fs::rename(&path, &backup).unwrap();
        symlink("/does/not/exist", &path).unwrap();
        let output = call(&harness, "@rehearse answer done");
        let text = stderr(&output);
        assert!(!output.status.success(), "{name}: {text}");
        assert!(text.contains(&format!("`{}` is not a directory", path.display())), "{name}: {text}");
        harness.run(&["stop", "--now"]);
        fs::remove_file(&path).unwrap();
        fs::rename(&backup, &path).unwrap();
    }
}

#[test]
fn fifo_in_place_of_the_configuration_is_named() {
    let harness = stopped();
    let path = harness.home.join("config.toml");
    replace_by_fifo(&path);
    let output = harness.run(&["jobs"]);
    assert!(stderr(&output).contains(&format!("`{}` is not a regular file", path.display())), "{output:?}");
}

#[test]
fn fifo_in_place_of_the_state_directory_is_named() {
    let harness = Harness::new();
    fs::create_dir_all(&harness.home).unwrap();
    replace_by_fifo(&harness.state());
    for args in [&["jobs"][..], &["status"], &["stop"]] {
        let output = harness.run(args);
        assert!(!output.status.success() || args == ["stop"], "{args:?}: {output:?}");
    }
    assert_named(&harness.run(&["jobs"]), &harness.state());
}

#[test]
fn fifo_in_place_of_the_http_token_is_named() {
    let harness = stopped();
    harness.configure("[http]\naddress = \"127.0.0.1:0\"\n");
    let path = harness.state().join("http-token");
    replace_by_fifo(&path);
    assert_named(&harness.run(&["jobs"]), &path);
    fs::remove_file(&path).unwrap();
    assert!(harness.run(&["jobs"]).status.success());
    assert!(path.is_file());
}

#[test]
fn fifo_in_place_of_the_log_is_moved_aside() {
    let harness = stopped();
    let path = harness.state().join("logs/daemon.log");
    replace_by_fifo(&path);
    assert!(harness.run(&["jobs"]).status.success());
    assert!(
        harness.log().contains("the log was not a regular file and was moved aside"),
        "{}",
        harness.log()
    );
    let aside = harness.state().join("logs/daemon.log.not-a-file");
    assert!(fs::symlink_metadata(aside).unwrap().file_type().is_fifo());
}

/// Without the list, a planted program could pass for an agent.
#[test]
fn fifo_in_place_of_the_workspaces_rejects_calls() {
    let harness = stopped();
    let path = harness.state().join("workspaces");
    replace_by_fifo(&path);
    assert_named(&call(&harness, "@rehearse answer done"), &path);
    let work = harness.work();
    let direct = ["call", "--direct", "rehearsal", "--cwd", work.to_str().unwrap(), "@rehearse answer done"];
    assert_named(&harness.run(&direct), &path);
    assert!(stdout(&harness.run(&["doctor"])).contains(path.to_str().unwrap()));
    assert!(harness.run(&["jobs"]).status.success(), "the daemon runs");
    fs::remove_file(&path).unwrap();
    assert_eq!(stdout(&call(&harness, "@rehearse answer done")), "done\n");
}

#[test]
fn fifo_in_place_of_the_socket_directory_is_named() {
    let harness = Harness::new();
    let daemon = daemon_without_fallback(&harness);
    let directory = daemon.socket.as_ref().unwrap().parent().unwrap().to_owned();
    replace_by_fifo(&directory);
    for args in [&["jobs"][..], &["stop"], &["status"]] {
        assert_named(&harness.run(args), &directory);
    }
    fs::remove_file(&directory).unwrap();
    assert!(harness.run(&["jobs"]).status.success(), "the daemon recreates its socket");
    assert_eq!(harness.running_daemon().unwrap().pid, daemon.pid);
}

#[test]
fn dangling_link_for_the_socket_directory_is_named() {
    let harness = Harness::new();
    let daemon = daemon_without_fallback(&harness);
    let directory = daemon.socket.as_ref().unwrap().parent().unwrap().to_owned();
    fs::remove_dir_all(&directory).unwrap();
    symlink("/does/not/exist", &directory).unwrap();
    for args in [&["jobs"][..], &["stop"], &["status"]] {
        assert_named(&harness.run(args), &directory);
    }
    fs::remove_file(&directory).unwrap();
    assert!(harness.run(&["jobs"]).status.success(), "the daemon recreates its socket");
}

/// Root ignores the mode, but the daemon restores it for root, too.
#[test]
fn locked_socket_is_recreated() {
    let harness = Harness::new();
    let daemon = harness.daemon();
    let socket = daemon.socket.as_ref().unwrap();
    let mode = || fs::metadata(socket).is_ok_and(|found| found.mode() & 0o777 == 0o600);
    fs::set_permissions(socket, fs::Permissions::from_mode(0o000)).unwrap();
    testkit::eventually("the socket has its mode again", mode);
    assert!(harness.run(&["jobs"]).status.success());
    assert_eq!(harness.running_daemon().unwrap().pid, daemon.pid);
}

#[test]
fn directory_in_place_of_the_socket_is_named() {
    let harness = Harness::new();
    let socket = daemon_without_fallback(&harness).socket.unwrap();
    fs::remove_file(&socket).unwrap();
    fs::create_dir(&socket).unwrap();
    for args in [&["jobs"][..], &["stop"], &["status"]] {
        assert_named(&harness.run(args), &socket);
    }
    fs::remove_dir(&socket).unwrap();
    assert!(harness.run(&["jobs"]).status.success(), "the daemon recreates its socket");
}

#[test]
fn fifo_in_place_of_a_cache_lock_fails_the_job() {
    let harness = stopped();
    let caches = harness.state().join("caches");
    let locks = fs::read_dir(&caches).unwrap().map(|entry| entry.unwrap().path());
    let locks: Vec<_> = locks.filter(|path| path.extension().is_some_and(|end| end == "lock")).collect();
    assert_eq!(locks.len(), 1);
    replace_by_fifo(&locks[0]);
    let output = call(&harness, "@rehearse answer done");
    assert!(!output.status.success(), "{output:?}");
    assert!(stderr(&output).contains(locks[0].to_str().unwrap()), "{output:?}");
    assert!(harness.run(&["stop"]).status.success());
}

/// A daemon that starts has not announced its socket yet: no directory is to blame.
#[test]
fn starting_daemon_is_not_blamed_for_its_directory() {
    let harness = Harness::new();
    let _lock = hold_lock(&harness);
    fs::create_dir_all(&harness.home).unwrap();
    replace_by_fifo(&harness.home.join("run"));
    let output = harness.run(&["status"]);
    assert!(stdout(&output).contains("no daemon is running"), "{output:?}");
}

#[test]
fn empty_identity_is_named_with_a_remedy() {
    let harness = stopped();
    let path = harness.state().join("identity.json");
    fs::write(&path, "").unwrap();
    let output = harness.run(&["jobs"]);
    let hint = format!("hint: restore `{}` from a backup, or remove it", path.display());
    assert!(!output.status.success() && stderr(&output).contains(&hint), "{output:?}");
    fs::remove_file(&path).unwrap();
    assert!(stdout(&harness.run(&["jobs", "--json"])).contains("\"completed\""), "the job is kept");
}

#[test]
fn directory_in_place_of_the_database_is_recovered() {
    let harness = stopped();
    for file in ["switchboard.db", "switchboard.db-wal", "switchboard.db-shm", "store.json"] {
        let _ = fs::remove_file(harness.state().join(file));
    }
    fs::create_dir(harness.state().join("switchboard.db")).unwrap();
    let output = harness.run(&["jobs"]);
    let text = stderr(&output);
    assert!(text.contains("switchboard.db` is not a regular file"), "{text}");
    assert!(text.contains("hint: run `switchboard recover`"), "{text}");
    let recovered = harness.run(&["recover"]);
    assert!(stdout(&recovered).starts_with("recovered 1 job"), "{recovered:?}");
    assert!(stdout(&harness.run(&["jobs", "--json"])).contains("\"completed\""));
}

#[test]
fn directory_in_place_of_the_log_is_recovered() {
    let harness = stopped();
    let path = harness.state().join("switchboard.db-wal");
    let _ = fs::remove_file(&path);
    fs::create_dir(&path).unwrap();
    let text = stderr(&harness.run(&["jobs"]));
    assert!(text.contains(&format!("`{}` is not a regular file", path.display())), "{text}");
    assert!(text.contains("hint: run `switchboard recover`"), "{text}");
    let recovered = harness.run(&["recover"]);
    assert!(recovered.status.success(), "{recovered:?}");
    assert!(stdout(&harness.run(&["jobs", "--json"])).contains("\"completed\""));
}

#[test]
fn fifo_in_place_of_the_database_does_not_block() {
    let harness = stopped();
    replace_by_fifo(&harness.state().join("switchboard.db"));
    let output = harness.run(&["jobs"]);
    assert!(!output.status.success() && stderr(&output).contains("switchboard recover"), "{output:?}");
    assert!(harness.run(&["recover"]).status.success());
    assert!(harness.run(&["jobs"]).status.success());
}

#[test]
fn client_in_another_pid_namespace_gets_a_clear_error() {
    let harness = Harness::new();
    harness.daemon();
    let unshare = ["--user", "--map-current-user", "--pid", "--fork", "--mount-proc"];
    let mut command = Command::new("unshare");
    command.env_clear().env("PATH", "/usr/bin:/bin").args(unshare);
    if !command.arg("true").status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: no PID namespaces here");
        return;
    }
    let mut command = Command::new("unshare");
    command.env_clear().env("PATH", "/usr/bin:/bin").env("SWITCHBOARD_HOME", &harness.home).args(unshare);
    let output = command.args([env!("CARGO_BIN_EXE_switchboard"), "jobs"]).output().unwrap();
    let text = stderr(&output);
    assert!(
        text.contains("the daemon runs outside of the PID namespace (container) of this process"),
        "{text}"
    );
    assert!(text.contains("hint: run the command outside"), "{text}");
}
