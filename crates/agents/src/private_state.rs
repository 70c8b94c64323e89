//! A state folder for one policy, with nothing in it but the login.
//!
//! Touches the disk: called by whoever places a call, before it is launched. A login that the vendor renews (`OAuth`) is
//! renewed in the copy; where the vendor then gives up the old one, the user's own must log in again. A key in the
//! environment has no such trouble.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::{AgentKind, CallSpec};
use serde_json::{Value, json};

use crate::LaunchSetup;
use crate::launch::policy_folder;

/// The files of a login, in the state folder of each agent.
fn login_files(agent: AgentKind) -> &'static [&'static str] {
    match agent {
        AgentKind::Claude => &[".credentials.json"],
        AgentKind::Codex => &["auth.json"],
        AgentKind::Gemini => &[".gemini/oauth_creds.json", ".gemini/google_accounts.json"],
        AgentKind::Rehearsal => &[],
    }
}

/// Makes the private state folder of a call that wants one, and brings the user's login to it. Does nothing otherwise.
pub fn seed_private_state(spec: &CallSpec, setup: &LaunchSetup) -> io::Result<()> {
    let Some(folder) = policy_folder(spec, setup) else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let Some(users) = users_folder(spec.agent, setup) else { return Ok(()) };
    for name in login_files(spec.agent) {
        bring(&users.join(name), &folder.join(name))?;
    }
    if spec.agent == AgentKind::Gemini {
        choose_login(&users.join(GEMINI_SETTINGS), &folder.join(GEMINI_SETTINGS))?;
    }
    Ok(())
}

const GEMINI_SETTINGS: &str = ".gemini/settings.json";

/// Gemini keeps in its settings which login it uses, and without that has none. Nothing else of them is taken.
fn choose_login(from: &Path, to: &Path) -> io::Result<()> {
    let settings: Option<Value> = fs::read(from).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let Some(login) = settings.as_ref().and_then(|settings| settings.pointer("/security/auth")) else {
        return Ok(());
    };
    let chosen = json!({ "security": { "auth": login } }).to_string();
    if fs::read(to).is_ok_and(|there| there == chosen.as_bytes()) {
        return Ok(());
    }
    write(to, chosen.as_bytes())
}

fn users_folder(agent: AgentKind, setup: &LaunchSetup) -> Option<PathBuf> {
    let given = |name: &str| setup.inherited.get(name).map(PathBuf::from);
    let home = given("HOME");
    match agent {
        AgentKind::Claude => given("CLAUDE_CONFIG_DIR").or(home.map(|home| home.join(".claude"))),
        AgentKind::Codex => given("CODEX_HOME").or(home.map(|home| home.join(".codex"))),
        AgentKind::Gemini => given("GEMINI_CLI_HOME").or(home),
        AgentKind::Rehearsal => None,
    }
}

/// Copies a login that is newer than the one that is there.
fn bring(from: &Path, to: &Path) -> io::Result<()> {
    let newer = |from: &Path, to: &Path| {
        Some(from.metadata().ok()?.modified().ok()? > to.metadata().ok()?.modified().ok()?)
    };
    if !from.is_file() || newer(from, to) == Some(false) {
        return Ok(());
    }
    write(to, &fs::read(from)?)
}

/// Whole or not at all: a run that has the same folder may read it now.
fn write(to: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = to.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let next = to.with_extension("next");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    file.write_all(bytes)?;
    fs::rename(next, to)
}
