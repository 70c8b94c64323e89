//! The two processes between a supervisor and an agent that is confined in namespaces.
//!
//! The outer process (bubblewrap) creates the namespaces. The init process inside waits for the agent and for every
//! orphan. Neither receives SIGTERM: both exit with the last process inside, and killing either kills the namespace.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::{Exit, ProcessIdentity};
use rustix::io::{Errno, ioctl_fionbio, read};
use rustix::process::Signal;
use sandbox::LauncherEvent;

use super::identity::identity_of;
use super::process_table::{ProcessEntry, ProcessTable};

#[derive(Debug)]
pub struct SandboxWrapper {
    outer: ProcessIdentity,
    init: ProcessIdentity,
    agent: ProcessIdentity,
    status_pipe: Option<OwnedFd>,
    received: Vec<u8>,
    /// Set once SIGKILL has been sent to all processes inside.
    killed: bool,
    /// Set once the agent has exited as the last process inside.
    is_empty: bool,
}

impl SandboxWrapper {
    /// Finds the processes of a started sandbox by its outer process.
    pub fn new(outer: ProcessIdentity, status_pipe: OwnedFd, received: Vec<u8>) -> io::Result<Self> {
        ioctl_fionbio(&status_pipe, true)?;
        let first_child = |of: ProcessIdentity| children(of.pid).into_iter().find_map(identity_of);
        // A short-lived agent may have exited already, and the sandbox with it. Its exit status is in the pipe.
        let init = first_child(outer).unwrap_or(outer);
        let agent = first_child(init).unwrap_or(init);
        let status_pipe = Some(status_pipe);
        Ok(Self { outer, init, agent, status_pipe, received, killed: false, is_empty: false })
    }

    pub fn agent(&self) -> ProcessIdentity {
        self.agent
    }

    pub fn status_fd(&self) -> Option<BorrowedFd<'_>> {
        self.status_pipe.as_ref().map(AsFd::as_fd)
    }

    /// Returns the exit status of the agent, once it has been reported.
    pub fn read_exit(&mut self) -> Option<Exit> {
        let mut buffer = [0; 1024];
        while let Some(status_pipe) = &self.status_pipe {
            match read(status_pipe, &mut buffer) {
                Ok(0) => self.status_pipe = None,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.status_pipe = None,
            }
        }
        let (exit, is_last) =
            LauncherEvent::parse(&self.received).into_iter().find_map(|word| match word {
                LauncherEvent::AgentExited { exit, is_last } => Some((exit, is_last)),
                _ => None,
            })?;
        self.is_empty = is_last;
        Some(exit)
    }

    /// Returns whether the agent was reported to have exited as the last process inside.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Removes the wrapper processes from the processes to be signaled: SIGTERM would end the whole sandbox at once.
    /// They are killed only if a previous SIGKILL did not empty the sandbox, because something in it forks faster than
    /// it can be listed.
    pub fn exclude_from(&mut self, signal: Signal, alive: &mut Vec<ProcessEntry>) {
        let is_excluded = signal != Signal::KILL || !self.killed;
        self.killed |= signal == Signal::KILL;
        if is_excluded {
            alive.retain(|entry| ![self.outer, self.init].contains(&entry.identity));
        }
    }

    /// Returns whether a process is one of the two.
    pub fn contains(&self, identity: ProcessIdentity) -> bool {
        [self.outer, self.init].contains(&identity)
    }
}

/// Lists the children of a process, from the kernel's own list if it is compiled in.
fn children(pid: i32) -> Vec<i32> {
    if let Ok(list) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        return list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    let entries = ProcessTable::read().map(|table| table.entries).unwrap_or_default();
    entries.iter().filter(|entry| entry.parent == pid).map(|entry| entry.identity.pid).collect()
}
