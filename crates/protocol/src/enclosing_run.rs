//! Detects whether a process runs inside a call.
//!
//! An agent may itself be an MCP host that spawns `switchboard mcp`. Such a client is a descendant of the call's supervisor, a
//! subreaper that kills every descendant when the call ends. A daemon spawned there would be killed, too, together with the jobs of
//! other clients. Inside a call, clients therefore use the running daemon and never start one.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use model::RunId;

use crate::environment::ProcessEnvironment;

/// The file name of the supervisor's executable.
pub const SUPERVISOR_EXECUTABLE: &str = "switchboard-supervisor";

/// The maximum number of ancestors that are checked.
const MAX_ANCESTORS: usize = 256;

/// Returns the process that shows that this program runs inside a call: itself, or an ancestor.
///
/// The variable alone is not sufficient: MCP hosts pass hardly any on. The agent has it, and the supervisor has its file name.
pub fn find_enclosing_run(environment: &ProcessEnvironment) -> Option<u32> {
    if environment.get(RunId::VARIABLE).is_some() {
        return Some(std::process::id());
    }
    find_run_ancestor(std::process::id())
}

/// Returns whether this program runs in a sandboxed call, where it cannot submit calls. Every sandbox sets `no_new_privs`.
pub fn is_in_sandboxed_call(environment: &ProcessEnvironment) -> bool {
    find_enclosing_run(environment).is_some() && !can_gain_privileges(std::process::id()).unwrap_or(true)
}

/// Returns whether a process lacks `no_new_privs`, which every sandbox sets and no descendant can clear.
pub fn can_gain_privileges(pid: u32) -> io::Result<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(status.lines().any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|bit| bit.trim() == "0")))
}

fn find_run_ancestor(pid: u32) -> Option<u32> {
    let mut ancestor = pid;
    for _ in 0..MAX_ANCESTORS {
        ancestor = parent_pid(ancestor).ok().filter(|&pid| pid > 1)?;
        if belongs_to_run(ancestor) {
            return Some(ancestor);
        }
    }
    None
}

/// Returns the parent of a process; 0 if the parent is outside of the PID namespace.
pub fn parent_pid(pid: u32) -> io::Result<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    parent.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns whether a process is a supervisor.
pub fn is_supervisor(pid: u32) -> bool {
    let program: PathBuf = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().as_bytes();
    name.starts_with(SUPERVISOR_EXECUTABLE.as_bytes())
}

/// Returns whether a process is a supervisor or has the variable of a run. Processes of other users are unreadable and never match.
pub fn belongs_to_run(pid: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let marker = format!("{}=", RunId::VARIABLE);
    is_supervisor(pid)
        || environment.split(|&byte| byte == 0).any(|variable| variable.starts_with(marker.as_bytes()))
}
