//! Repeats tests as an unprivileged user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};

/// Debian's `nobody`.
const NOBODY: u32 = 65534;

/// Returns the test of that name, run by another user. Skipped if this user cannot switch users, or is already
/// unprivileged.
pub fn trial(name: &'static str) -> Trial {
    let other = format!("{name}::as_an_ordinary_user");
    if rustix::process::geteuid().is_root() {
        Trial::test(other, move || run_as_nobody(name))
    } else {
        Trial::test(format!("{other} (skipped: only root can become another user)"), || Ok(()))
            .with_ignored_flag(true)
    }
}

fn run_as_nobody(name: &str) -> Result<(), Failed> {
    // Not below /tmp, which is private in a sandbox.
    let directory = tempfile::Builder::new().prefix("switchboard-").tempdir_in("/var/lib")?;
    // The build directory is often below root's home, which other users cannot read.
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    let program = directory.path().join("tests");
    copy(&std::env::current_exe()?, &program)?;
    let own = directory.path().join("own");
    fs::create_dir(&own)?;
    chown(&own, Some(NOBODY), Some(NOBODY))?;
    let output = Command::new("setpriv")
        .args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups", "--"])
        .arg(&program)
        .args(["--exact", name, "--nocapture"])
        .env("TMPDIR", &own)
        .env("HOME", &own)
        .current_dir(&own)
        .output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && stdout.contains("1 passed") {
        return Ok(());
    }
    Err(Failed::from(format!("{}\n{stdout}\n{}", output.status, String::from_utf8_lossy(&output.stderr))))
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}
