//! Processes told apart by pid and start time, so that a pid that was given out again is never taken for its predecessor.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use model::ProcessIdentity;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};

use crate::error::is_resource_exhaustion;

/// One line of the process table.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub identity: ProcessIdentity,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// A zombie holds its pid but runs nothing; one whose first thread alone has ended still does.
    pub dead: bool,
    /// By a signal or a debugger.
    pub suspended: bool,
}

/// The id of this boot of the machine; pids and start times mean nothing across boots.
pub fn boot_id() -> io::Result<&'static str> {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    if let Some(known) = BOOT_ID.get() {
        return Ok(known);
    }
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(BOOT_ID.get_or_init(|| text.trim().to_owned()))
}

/// The identity of a process that exists now and can be looked at.
pub fn identity_of(pid: i32) -> Option<ProcessIdentity> {
    entry(pid).ok().flatten().map(|entry| entry.identity)
}

/// The identity of the running process.
pub fn this_process() -> io::Result<ProcessIdentity> {
    i32::try_from(std::process::id())
        .ok()
        .and_then(identity_of)
        .ok_or_else(|| io::Error::other("this process is not in /proc"))
}

/// Whether that very process is still running.
pub fn is_alive(identity: ProcessIdentity) -> io::Result<bool> {
    Ok(entry(identity.pid)?.is_some_and(|entry| entry.identity == identity && !entry.dead))
}

/// Returns whether the process with that pid is suspended.
pub fn is_suspended(pid: i32) -> io::Result<bool> {
    Ok(entry(pid)?.is_some_and(|entry| entry.suspended))
}

/// Returns the time of `CLOCK_MONOTONIC`, which all processes of a boot share.
pub fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or_default();
    part(now.tv_sec) * 1_000 + part(now.tv_nsec) / 1_000_000
}

/// The line of one process, if it exists. Who has no descriptor left to look with learns nothing about it.
pub fn entry(pid: i32) -> io::Result<Option<Entry>> {
    // In one piece: a line has some 300 bytes, and reading it with a growing buffer would be six calls.
    let mut line = [0; 1024];
    match File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut line)) {
        Ok(length) => Ok(parse(pid, &line[..length])),
        Err(error) if is_resource_exhaustion(&error) => Err(error),
        Err(_gone) => Ok(None),
    }
}

/// Every process that can be seen, and whether one ended while the table was read: what it started meanwhile may be missing.
pub fn table() -> io::Result<Table> {
    let mut table = Table { entries: Vec::new(), torn: false };
    for folder in fs::read_dir("/proc")? {
        if let Some(pid) = folder?.file_name().to_str().and_then(|name| name.parse().ok()) {
            match entry(pid)? {
                Some(entry) => table.entries.push(entry),
                None => table.torn = true,
            }
        }
    }
    Ok(table)
}

/// The processes of a moment.
#[derive(Debug)]
pub struct Table {
    pub entries: Vec<Entry>,
    /// Whether a process ended in that moment.
    pub torn: bool,
}

/// Reads `pid (name) state ppid pgrp session …`. The name may hold spaces and parentheses, so fields count from the last `)`.
fn parse(pid: i32, stat: &[u8]) -> Option<Entry> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let text = str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
    let state = *fields.first()?;
    Some(Entry {
        identity: ProcessIdentity { pid, start_ticks: fields.get(19)?.parse().ok()? },
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        dead: matches!(state, "Z" | "X") && number(17)? <= 1,
        suspended: matches!(state, "T" | "t"),
    })
}

/// A hold on one process: a signal through it reaches that process or nobody.
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// Takes hold of a process, unless it has ended.
    pub fn open(identity: ProcessIdentity) -> io::Result<Option<Self>> {
        let Some(pid) = Pid::from_raw(identity.pid) else { return Ok(None) };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Self(fd),
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The pid may have been given out again before the open; it cannot be any more after it.
        Ok(is_alive(identity)?.then_some(handle))
    }

    /// Asks it to end, also when somebody has suspended it. False: it has already ended.
    pub fn terminate(&self) -> io::Result<bool> {
        Ok(self.signal(Signal::TERM)? && self.signal(Signal::CONT)?)
    }

    /// Lets it run again after it was suspended.
    pub fn resume(&self) -> io::Result<bool> {
        self.signal(Signal::CONT)
    }

    /// Suspends it.
    pub fn suspend(&self) -> io::Result<bool> {
        self.signal(Signal::STOP)
    }

    /// Kills it.
    pub fn kill(&self) -> io::Result<bool> {
        self.signal(Signal::KILL)
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<bool> {
        match pidfd_send_signal(&self.0, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Readable once the process has ended.
impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for ProcessHandle {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
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
    fn a_process_lives_as_long_as_one_of_its_threads() {
        assert!(parse(42, &line("Z", 1)).unwrap().dead);
        assert!(!parse(42, &line("Z", 2)).unwrap().dead);
    }

    #[test]
    fn a_process_with_another_start_time_is_somebody_else() {
        let me = identity_of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(is_alive(me).unwrap());
        let former = ProcessIdentity { start_ticks: me.start_ticks - 1, ..me };
        assert!(!is_alive(former).unwrap());
        assert!(ProcessHandle::open(former).unwrap().is_none());
    }

    /// Leaves this process without a free descriptor. Each test is a process of its own.
    fn without_descriptors() -> Vec<File> {
        let limit = Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
    }

    #[test]
    fn who_cannot_look_does_not_say_that_nobody_is_there() {
        let me = identity_of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mut taken = without_descriptors();
        assert!(is_alive(me).is_err());
        // Enough for the hold itself, and not for the look at whom it holds.
        taken.pop();
        assert!(ProcessHandle::open(me).is_err());
        assert!(table().is_err());
        drop(taken);
        assert!(is_alive(me).unwrap());
    }
}
