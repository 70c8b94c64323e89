//! Lists the processes of a run for display. No decision depends on it.

use std::collections::HashSet;
use std::fs;
use std::io;

use model::ProcessIdentity;

use super::identity::is_alive;
use super::process_table::ProcessTable;

/// The maximum length of a command line.
const MAX_COMMAND_BYTES: usize = 512;

/// A process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its pid.
    pub pid: i32,
    /// The pid of its parent.
    pub parent: i32,
    /// Its command line, or its name in brackets if it has none. A program can set both.
    pub command: String,
    /// Its resident memory in bytes.
    pub resident_bytes: u64,
}

/// Lists all descendants of a living process, parents before children.
pub fn processes_below(root: ProcessIdentity) -> io::Result<Vec<ProcessInfo>> {
    let table = ProcessTable::read()?;
    // Checked after reading the table: if the pid was reused meanwhile, its new owner's processes are not shown.
    if !is_alive(root)? {
        return Ok(Vec::new());
    }
    let mut remaining = table.descendants_of(HashSet::from([root.pid]));
    remaining.sort_by_key(|entry| (entry.identity.start_ticks, entry.identity.pid));
    let (mut processes, mut parents) = (Vec::new(), vec![root.pid]);
    while let Some(parent) = parents.pop() {
        let (children, others): (Vec<_>, Vec<_>) =
            remaining.into_iter().partition(|entry| entry.parent == parent);
        remaining = others;
        processes.extend(children.iter().map(|entry| read_process(entry.identity.pid, entry.parent)));
        parents.extend(children.iter().rev().map(|entry| entry.identity.pid));
    }
    Ok(processes)
}

fn read_process(pid: i32, parent: i32) -> ProcessInfo {
    let resident_bytes = resident_bytes(pid).unwrap_or_default();
    ProcessInfo { pid, parent, command: command(pid), resident_bytes }
}

fn command(pid: i32) -> String {
    let mut line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.truncate(MAX_COMMAND_BYTES);
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    if words.is_empty() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        return format!("[{}]", name.trim());
    }
    words.join(" ")
}

fn resident_bytes(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
