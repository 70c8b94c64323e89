//! What the user's environment says: where Switchboard keeps its files, and what an agent may inherit. The one place that
//! reads it.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use agents::doctor::Lookup;

use crate::failure::Failure;

/// The folder for a new job's files, named so that a listing is in the order of time.
pub fn new_job() -> Result<PathBuf, Failure> {
    Ok(state()?.join("jobs").join(uuid::Uuid::now_v7().to_string()))
}

/// Where and with what agents are looked for.
pub fn lookup() -> Lookup {
    Lookup {
        inherited: inherited(),
        own_folder: env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned())),
        // Without a place for it, the agents are simply asked again.
        cache_file: state().ok().map(|state| state.join("agents.json")),
        ..Lookup::default()
    }
}

/// Every variable that is text. What is not cannot be handed on; of `PATH` only the folders that are not are lost.
fn inherited() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok()?;
        let value =
            if name == "PATH" { value.to_string_lossy().into_owned() } else { value.into_string().ok()? };
        Some((name, value))
    };
    env::vars_os().filter_map(text).collect()
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
