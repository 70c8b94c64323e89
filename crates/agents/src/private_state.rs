//! Creates the state directory of a policy, which contains only the login.
//!
//! Has I/O: called before the launch. An `OAuth` login is refreshed in the copy; if the vendor then revokes the old token, the
//! user has to log in again. A key in the environment has no such problem.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use model::{AgentKind, CallSpec};
use regular_file::{create_private_directory, create_regular, open_linked, read_regular};
use serde_json::{Value, json};

use crate::LaunchSetup;
use crate::launch::policy_directory;
use crate::state::StateDirectory;

/// Creates the private state directory of a call that requests one, and copies the user's login.
pub fn seed_private_state(spec: &CallSpec, setup: &LaunchSetup) -> io::Result<()> {
    let Some(directory) = policy_directory(spec, setup) else { return Ok(()) };
    create_private_directory(&directory)?;
    let profile = &setup.profile;
    let Some(rule) = profile.states.first() else { return Ok(()) };
    let (Some(users), Some(private)) =
        (rule.directory(&setup.inherited), StateDirectory::find(rule, Some(&directory), &setup.inherited))
    else {
        return Ok(());
    };
    for name in profile.login.files.iter().chain(&profile.login.companions) {
        copy_if_newer(&users.join(name), &private.path().join(name))?;
    }
    if spec.agent == AgentKind::Gemini {
        copy_login_choice(&users.join(GEMINI_SETTINGS), &private.path().join(GEMINI_SETTINGS))?;
    }
    Ok(())
}

const GEMINI_SETTINGS: &str = "settings.json";

/// Copies gemini's choice of a login method from its settings, without which it has no login. Copies no other setting.
fn copy_login_choice(from: &Path, to: &Path) -> io::Result<()> {
    let settings: Option<Value> =
        read_users_file(from).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let Some(login) = settings.as_ref().and_then(|settings| settings.pointer("/security/auth")) else {
        return Ok(());
    };
    let chosen = json!({ "security": { "auth": login } }).to_string();
    if read_regular(to).is_ok_and(|there| there == chosen.as_bytes()) {
        return Ok(());
    }
    write(to, chosen.as_bytes())
}

/// Copies a login if it is newer.
fn copy_if_newer(from: &Path, to: &Path) -> io::Result<()> {
    let newer = |from: &Path, to: &Path| {
        Some(from.metadata().ok()?.modified().ok()? > to.metadata().ok()?.modified().ok()?)
    };
    if !from.is_file() || newer(from, to) == Some(false) {
        return Ok(());
    }
    write(to, &read_users_file(from)?)
}

/// Reads a file of the user, which may be a link.
fn read_users_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_linked(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a file atomically: a concurrent run with the same directory may read it.
fn write(to: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(directory) = to.parent() {
        create_private_directory(directory)?;
    }
    let next = to.with_extension("next");
    // An agent has written to this directory: a link or a FIFO is rejected.
    create_regular(&next)?.write_all(bytes)?;
    fs::rename(next, to)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// An agent that ran in the directory may have left either.
    #[test]
    fn link_and_fifo_in_private_state_are_not_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("users"), "secret").unwrap();
        fs::write(at("victim"), "as it was").unwrap();
        symlink(at("victim"), at("login.next")).unwrap();
        assert!(copy_if_newer(&at("users"), &at("login.json")).is_err());
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "as it was");
        fs::remove_file(at("login.next")).unwrap();
        mknodat(CWD, at("login.next"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(copy_if_newer(&at("users"), &at("login.json")).is_err());
    }
}
