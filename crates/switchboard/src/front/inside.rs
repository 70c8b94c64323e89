//! Whether this program runs inside a call.
//!
//! An agent may itself be an MCP host that starts `switchboard mcp`. That front-end is a descendant of the call's supervisor, which
//! ends every descendant when the call is over; so would be a daemon that it started, and with it every other user's work. There
//! is no honest way out of a subreaper. So inside a call the daemon that placed it is used, and none is ever started.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use model::RunId;

use crate::environment::Environment;

/// No family is deeper.
const MOST_ANCESTORS: usize = 256;

/// The process by which it is known that this program runs inside a call.
///
/// The variable alone would not do: MCP hosts hand hardly any on. The agent itself has it, and its supervisor has its name.
pub fn a_call(environment: &Environment) -> Option<u32> {
    if environment.get(RunId::VARIABLE).is_some() {
        return Some(std::process::id());
    }
    ancestor_of_a_run(std::process::id())
}

/// Returns whether this program runs in a sandbox, where it can place no call. Every sandbox forbids new privileges.
pub fn a_confined_call(environment: &Environment) -> bool {
    a_call(environment).is_some() && !may_gain_privileges(std::process::id()).unwrap_or(true)
}

/// Returns whether a process is without the bit that every sandbox sets and that no descendant gets rid of.
pub fn may_gain_privileges(pid: u32) -> io::Result<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(status.lines().any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|bit| bit.trim() == "0")))
}

fn ancestor_of_a_run(pid: u32) -> Option<u32> {
    let mut ancestor = pid;
    for _ in 0..MOST_ANCESTORS {
        ancestor = parent(ancestor).ok().filter(|&pid| pid > 1)?;
        if belongs_to_a_run(ancestor) {
            return Some(ancestor);
        }
    }
    None
}

/// Returns the parent of a process; 0 for one that cannot be seen from here.
pub fn parent(pid: u32) -> io::Result<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    parent.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether a process is a supervisor.
pub fn is_supervisor(pid: u32) -> bool {
    let program: PathBuf = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().as_bytes();
    name.starts_with(supervisor::Supervisor::EXECUTABLE.as_bytes())
}

/// Whether a process is a supervisor, or has the variable of a run. Another user's process cannot be read, and is none of ours.
pub fn belongs_to_a_run(pid: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let marker = format!("{}=", RunId::VARIABLE);
    is_supervisor(pid)
        || environment.split(|&byte| byte == 0).any(|variable| variable.starts_with(marker.as_bytes()))
}
