//! The processes of a run as somebody outside sees them, to be shown to a person. Nothing is decided by this.

use std::collections::HashSet;
use std::fs;
use std::io;

use model::ProcessIdentity;

use super::identity::{is_alive, table};
use super::tree::below;

/// How much of a command line is read.
const LONGEST: usize = 512;

/// A process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenProcess {
    /// Its number.
    pub pid: i32,
    /// That of its parent.
    pub parent: i32,
    /// Its command line, or its name in brackets when it shows none. What a program shows is up to the program.
    pub command: String,
    /// The memory it has at hand, in bytes.
    pub resident_bytes: u64,
}

/// Everything below that process, while it lives: parents before their children.
pub fn processes_below(root: ProcessIdentity) -> io::Result<Vec<SeenProcess>> {
    let table = table()?;
    // Looked at after the table: were the number given out again, nothing of the other's is shown.
    if !is_alive(root)? {
        return Ok(Vec::new());
    }
    let mut left = below(HashSet::from([root.pid]), &table.entries);
    left.sort_by_key(|entry| (entry.identity.start_ticks, entry.identity.pid));
    let (mut seen, mut parents) = (Vec::new(), vec![root.pid]);
    while let Some(parent) = parents.pop() {
        let (children, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|entry| entry.parent == parent);
        left = others;
        seen.extend(children.iter().map(|entry| look_at(entry.identity.pid, entry.parent)));
        parents.extend(children.iter().rev().map(|entry| entry.identity.pid));
    }
    Ok(seen)
}

fn look_at(pid: i32, parent: i32) -> SeenProcess {
    let resident_bytes = resident(pid).unwrap_or_default();
    SeenProcess { pid, parent, command: command(pid), resident_bytes }
}

fn command(pid: i32) -> String {
    let mut line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.truncate(LONGEST);
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    if words.is_empty() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        return format!("[{}]", name.trim());
    }
    words.join(" ")
}

fn resident(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
