//! Where Switchboard keeps its files. The one place that reads the user's environment.

use std::env;
use std::path::PathBuf;

use crate::failure::Failure;

/// The folder for a new job's files, named so that a listing is in the order of time.
pub fn new_job() -> Result<PathBuf, Failure> {
    Ok(state()?.join("jobs").join(uuid::Uuid::now_v7().to_string()))
}

/// `SWITCHBOARD_HOME/state`, else `XDG_STATE_HOME/switchboard`, else `~/.local/state/switchboard`.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the user's environment")]
fn state() -> Result<PathBuf, Failure> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("SWITCHBOARD_HOME")
        .map(|home| home.join("state"))
        .or_else(|| Some(folder("XDG_STATE_HOME")?.join("switchboard")))
        .or_else(|| Some(folder("HOME")?.join(".local/state/switchboard")))
        .ok_or(Failure::NoHome)
}
