//! What stands between a supervisor and an agent that is confined in namespaces.
//!
//! Two processes: the outermost, which made the namespaces, and the first one inside, which waits for the agent and for
//! every orphan. Neither is asked to end: both go when the last process inside has gone, and take all of it along when they
//! are killed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::{Exit, ProcessIdentity};
use rustix::io::{Errno, ioctl_fionbio, read};
use rustix::process::Signal;
use sandbox::LauncherEvent;

use super::identity::{Entry, identity_of, table};

#[derive(Debug)]
pub struct Scaffold {
    outermost: ProcessIdentity,
    first_inside: ProcessIdentity,
    agent: ProcessIdentity,
    words: Option<OwnedFd>,
    heard: Vec<u8>,
    /// Whether everything inside has been killed once.
    killed: bool,
}

impl Scaffold {
    /// The scaffold whose outermost process this is, with an agent inside that has been started.
    pub fn around(outermost: ProcessIdentity, words: OwnedFd, heard: Vec<u8>) -> io::Result<Self> {
        ioctl_fionbio(&words, true)?;
        let first_child = |of: ProcessIdentity| children(of.pid).into_iter().find_map(identity_of);
        // A short agent may have ended already, and the sandbox with it. Its exit status is in the words.
        let first_inside = first_child(outermost).unwrap_or(outermost);
        let agent = first_child(first_inside).unwrap_or(first_inside);
        Ok(Self { outermost, first_inside, agent, words: Some(words), heard, killed: false })
    }

    pub fn agent(&self) -> ProcessIdentity {
        self.agent
    }

    pub fn words(&self) -> Option<BorrowedFd<'_>> {
        self.words.as_ref().map(AsFd::as_fd)
    }

    /// How the agent has ended, once that was said.
    pub fn hear(&mut self) -> Option<Exit> {
        let mut piece = [0; 1024];
        while let Some(words) = &self.words {
            match read(words, &mut piece) {
                Ok(0) => self.words = None,
                Ok(count) => self.heard.extend_from_slice(&piece[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.words = None,
            }
        }
        LauncherEvent::parse(&self.heard).into_iter().find_map(|word| match word {
            LauncherEvent::AgentExited(exit) => Some(exit),
            _ => None,
        })
    }

    /// Leaves the scaffold out of those who are signalled: asked to end, it would end everything at once. It is killed only
    /// when what is inside was killed before and is not gone, for then something forks faster than it can be counted.
    pub fn spare(&mut self, signal: Signal, alive: &mut Vec<Entry>) {
        let spared = signal != Signal::KILL || !self.killed;
        self.killed |= signal == Signal::KILL;
        if spared {
            alive.retain(|entry| ![self.outermost, self.first_inside].contains(&entry.identity));
        }
    }

    /// Whether a process is part of it.
    pub fn has(&self, identity: ProcessIdentity) -> bool {
        [self.outermost, self.first_inside].contains(&identity)
    }
}

/// The children of a process, by the kernel's own list where it keeps one.
fn children(pid: i32) -> Vec<i32> {
    if let Ok(list) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        return list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    let entries = table().map(|table| table.entries).unwrap_or_default();
    entries.iter().filter(|entry| entry.parent == pid).map(|entry| entry.identity.pid).collect()
}
