//! The same tests as an ordinary user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;

use libtest_mimic::{Failed, Trial};

/// Debian's user `nobody`.
const NOBODY: u32 = 65534;

/// Runs a test as another user. Listed as skipped if this process cannot change its user or is not root.
pub fn trial(name: &'static str) -> Trial {
    let other = format!("{name}::as_an_ordinary_user");
    if rustix::process::geteuid().is_root() {
        Trial::test(other, move || run_as_nobody(name))
    } else {
        let skipped = format!("{other} (skipped: only root can become another user)");
        Trial::test(skipped, || Ok(())).with_ignored_flag(true)
    }
}

fn run_as_nobody(name: &str) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    // The build directory is often below root's home, which other users cannot enter.
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    let program = directory.path().join("tools");
    // Copied by another program: a descriptor open for writing here could leak into a child of another test, and the copy could
    // not be executed (ETXTBSY).
    let copied = Command::new("cp").arg(std::env::current_exe()?).arg(&program).status()?;
    if !copied.success() {
        return Err("the program could not be copied".into());
    }
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
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && said.contains("1 passed") {
        return Ok(());
    }
    Err(format!("{said}\n{}", String::from_utf8_lossy(&output.stderr)).into())
}
