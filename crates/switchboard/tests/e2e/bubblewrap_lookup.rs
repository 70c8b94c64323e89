//! Calls on a machine without bubblewrap.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Harness, stderr, stdout};

/// Creates a command that sees no system bubblewrap, in its own mount namespace.
fn without_bubblewrap(harness: &Harness, args: &[&str]) -> Command {
    let places = ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/run/current-system/sw/bin/bwrap"];
    let there = places.into_iter().filter(|place| Path::new(place).exists()).collect::<Vec<_>>().join(" ");
    let mut command = Command::new("unshare");
    command
        .env_clear()
        .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs(harness).display()))
        .env("SWITCHBOARD_HOME", &harness.home);
    command.args(["--map-current-user", "--user", "--mount", "--keep-caps", "sh", "-c"]);
    command
        .arg(format!("for place in {there}; do mount --bind /dev/null $place; done; exec \"$@\""))
        .arg("sh")
        .arg(env!("CARGO_BIN_EXE_switchboard"))
        .args(args);
    command
}

/// Creates a `PATH` directory that only this user can write to.
fn programs(harness: &Harness) -> PathBuf {
    harness.scratch().join("bin")
}

#[test]
fn doctor_and_calls_find_same_bubblewrap() {
    let harness = Harness::new();
    let work = harness.work();
    let call = |direct: &[&str]| {
        let call = ["call", "rehearsal", "--require", "--cwd", work.to_str().unwrap(), "hello"];
        without_bubblewrap(&harness, &[&call, direct].concat()).output().unwrap()
    };
    let doctor = || stdout(&without_bubblewrap(&harness, &["doctor"]).output().unwrap());
    let found = doctor();
    assert!(found.contains("bubblewrap is not installed"), "{found}");
    for direct in [&[][..], &["--direct"]] {
        let refused = call(direct);
        assert_eq!(refused.status.code(), Some(8), "{refused:?}");
        assert!(stderr(&refused).contains("bubblewrap"), "{refused:?}");
    }
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0);

    // One that this user can replace is not used: a confined agent may have left it.
    fs::create_dir(programs(&harness)).unwrap();
    fs::write(programs(&harness).join("bwrap"), format!("#!/bin/sh\ntouch {}\n", work.join("ran").display()))
        .unwrap();
    fs::set_permissions(programs(&harness).join("bwrap"), PermissionsExt::from_mode(0o755)).unwrap();
    assert!(doctor().contains("bubblewrap is not installed"));
    for direct in [&[][..], &["--direct"]] {
        assert_eq!(call(direct).status.code(), Some(8));
    }
    assert!(!work.join("ran").exists());
}
