//! Reads the process table from `/proc`.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};

use model::ProcessIdentity;

use crate::error::is_resource_exhaustion;

/// A process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessEntry {
    pub identity: ProcessIdentity,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// A zombie keeps its pid but runs nothing, unless only its first thread has exited.
    pub dead: bool,
    /// Suspended by a signal or a debugger.
    pub suspended: bool,
}

/// A snapshot of the process table.
#[derive(Debug)]
pub struct ProcessTable {
    pub entries: Vec<ProcessEntry>,
    /// Set if a process exited during the read, so that its new children may be missing.
    pub raced: bool,
}

impl ProcessTable {
    /// Reads all visible processes.
    pub fn read() -> io::Result<Self> {
        let mut table = Self { entries: Vec::new(), raced: false };
        for directory in fs::read_dir("/proc")? {
            if let Some(pid) = directory?.file_name().to_str().and_then(|name| name.parse().ok()) {
                match read_entry(pid)? {
                    Some(entry) => table.entries.push(entry),
                    None => table.raced = true,
                }
            }
        }
        Ok(table)
    }

    /// Returns all living descendants of the given pids.
    pub fn descendants_of(&self, roots: HashSet<i32>) -> Vec<ProcessEntry> {
        let mut family = roots;
        loop {
            let before = family.len();
            family.extend(
                self.entries
                    .iter()
                    .filter(|entry| family.contains(&entry.parent))
                    .map(|entry| entry.identity.pid)
                    .collect::<Vec<_>>(),
            );
            if family.len() == before {
                break;
            }
        }
        self.entries.iter().filter(|entry| !entry.dead && family.contains(&entry.parent)).copied().collect()
    }
}

/// Reads a process, or returns `None` if it does not exist. EMFILE and ENOMEM are errors: they do not prove that it is
/// gone.
pub fn read_entry(pid: i32) -> io::Result<Option<ProcessEntry>> {
    // One read: a line has some 300 bytes, and a growing buffer would take six system calls.
    let mut line = [0; 1024];
    match File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut line)) {
        Ok(length) => Ok(parse(pid, &line[..length])),
        Err(error) if is_resource_exhaustion(&error) => Err(error),
        Err(_gone) => Ok(None),
    }
}

/// Parses `pid (name) state ppid pgrp session …`. The name may contain spaces and parentheses, so fields count from the
/// last `)`.
fn parse(pid: i32, stat: &[u8]) -> Option<ProcessEntry> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let text = str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
    let state = *fields.first()?;
    Some(ProcessEntry {
        identity: ProcessIdentity { pid, start_ticks: fields.get(19)?.parse().ok()? },
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        dead: matches!(state, "Z" | "X") && number(17)? <= 1,
        suspended: matches!(state, "T" | "t"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_parentheses_does_not_shift_fields() {
        let line =
            b"42 (a) b (c)) S 7 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 777 1000 10 18446744073709551615";
        let entry = parse(42, line).unwrap();
        assert_eq!((entry.parent, entry.group, entry.session, entry.dead), (7, 8, 9, false));
        assert_eq!(entry.identity, ProcessIdentity { pid: 42, start_ticks: 777 });
    }

    fn line(state: &str, threads: u32) -> Vec<u8> {
        format!("42 (a) b (c)) {state} 7 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 {threads} 0 777 1000 10")
            .into_bytes()
    }

    #[test]
    fn process_is_alive_while_one_thread_runs() {
        assert!(parse(42, &line("Z", 1)).unwrap().dead);
        assert!(!parse(42, &line("Z", 2)).unwrap().dead);
    }
}
