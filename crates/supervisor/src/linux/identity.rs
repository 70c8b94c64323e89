//! Identifies processes by pid and start time, so that a reused pid is never mistaken for its predecessor.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use model::ProcessIdentity;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};

use super::process_table::read_entry;

/// Returns the boot id of the machine; pids and start times are meaningless across boots.
pub fn boot_id() -> io::Result<&'static str> {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    if let Some(known) = BOOT_ID.get() {
        return Ok(known);
    }
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(BOOT_ID.get_or_init(|| text.trim().to_owned()))
}

/// Returns the identity of an existing process, if it can be read.
pub fn identity_of(pid: i32) -> Option<ProcessIdentity> {
    read_entry(pid).ok().flatten().map(|entry| entry.identity)
}

/// Returns the identity of the running process.
pub fn this_process() -> io::Result<ProcessIdentity> {
    i32::try_from(std::process::id())
        .ok()
        .and_then(identity_of)
        .ok_or_else(|| io::Error::other("this process is not in /proc"))
}

/// Returns whether this very process is still running.
pub fn is_alive(identity: ProcessIdentity) -> io::Result<bool> {
    Ok(read_entry(identity.pid)?.is_some_and(|entry| entry.identity == identity && !entry.dead))
}

/// Returns whether the process with this pid is suspended.
pub fn is_suspended(pid: i32) -> io::Result<bool> {
    Ok(read_entry(pid)?.is_some_and(|entry| entry.suspended))
}

/// Returns the time of `CLOCK_MONOTONIC`, which all processes of a boot share.
pub fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or_default();
    part(now.tv_sec) * 1_000 + part(now.tv_nsec) / 1_000_000
}

/// A pidfd: a signal sent through it reaches this process or none.
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// Opens a process, or returns `None` if it has exited.
    pub fn open(identity: ProcessIdentity) -> io::Result<Option<Self>> {
        let Some(pid) = Pid::from_raw(identity.pid) else { return Ok(None) };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Self(fd),
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Checked after the open: from then on the pidfd is bound to this process, even if the pid is reused.
        Ok(is_alive(identity)?.then_some(handle))
    }

    /// Sends SIGTERM, and SIGCONT in case the process is suspended. Returns `false` if it has already exited.
    pub fn terminate(&self) -> io::Result<bool> {
        Ok(self.signal(Signal::TERM)? && self.signal(Signal::CONT)?)
    }

    /// Sends SIGCONT.
    pub fn resume(&self) -> io::Result<bool> {
        self.signal(Signal::CONT)
    }

    /// Sends SIGSTOP.
    pub fn suspend(&self) -> io::Result<bool> {
        self.signal(Signal::STOP)
    }

    /// Sends SIGKILL.
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

/// Becomes readable when the process exits.
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
    use std::fs::File;

    use super::super::process_table::ProcessTable;
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    #[test]
    fn reused_pid_is_another_process() {
        let me = identity_of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(is_alive(me).unwrap());
        let former = ProcessIdentity { start_ticks: me.start_ticks - 1, ..me };
        assert!(!is_alive(former).unwrap());
        assert!(ProcessHandle::open(former).unwrap().is_none());
    }

    /// Uses up the descriptors of this process. nextest runs each test in its own process.
    fn without_descriptors() -> Vec<File> {
        let limit = Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
    }

    #[test]
    fn process_lookup_error_is_not_reported_as_dead() {
        let me = identity_of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let mut files = without_descriptors();
        assert!(is_alive(me).is_err());
        // Enough for the pidfd, but not for reading the process table.
        files.pop();
        assert!(ProcessHandle::open(me).is_err());
        assert!(ProcessTable::read().is_err());
        drop(files);
        assert!(is_alive(me).unwrap());
    }
}
