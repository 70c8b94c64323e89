//! What a killed supervisor has left running, found by identity.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use model::{ProcessIdentity, RunId};
use rustix::io::Errno;
use rustix::process::Signal;

use super::identity::{ProcessHandle, is_alive, is_suspended};
use super::process_table::{ProcessEntry, ProcessTable};
use crate::error::is_resource_exhaustion;

/// The processes of one run whose supervisor is gone.
#[derive(Debug)]
pub struct Survivors {
    marker: Vec<u8>,
    supervisor: Option<DeadSupervisor>,
}

/// The supervisor that was.
#[derive(Debug, Clone, Copy)]
pub struct DeadSupervisor {
    /// Who it was, in this boot.
    pub identity: ProcessIdentity,
    /// Whether the caller saw it die just now. If not, its pid may have been given out again in the meantime, and so may the
    /// id of the session that it led.
    pub observed_exit: bool,
}

/// What one look found.
#[derive(Debug)]
pub struct KillPass {
    /// The processes, which have been sent SIGKILL.
    pub killed: Vec<ProcessIdentity>,
    /// Whether a process ended while it was looked, so that one it had just started may have been missed.
    pub raced: bool,
}

impl Survivors {
    /// Looks for the processes of a run.
    pub fn new(run_id: RunId, supervisor: Option<DeadSupervisor>) -> Self {
        Self { marker: format!("{}={run_id}", RunId::VARIABLE).into_bytes(), supervisor }
    }

    /// Kills every process that is found now.
    pub fn kill(&self) -> io::Result<KillPass> {
        let mut table = ProcessTable::read()?;
        let killed = self.find(&mut table)?;
        kill_all(&killed)?;
        Ok(KillPass { killed, raced: table.raced })
    }

    fn find(&self, table: &mut ProcessTable) -> io::Result<Vec<ProcessIdentity>> {
        let mut marked = HashSet::new();
        for entry in table.entries.iter().filter(|entry| !entry.dead) {
            match fs::read(format!("/proc/{}/environ", entry.identity.pid)) {
                Ok(environment) if self.is_marked(&environment) => drop(marked.insert(entry.identity.pid)),
                Ok(_) => {}
                // Who cannot look must not say that nothing is there.
                Err(error) if is_resource_exhaustion(&error) => return Err(error),
                // Unreadable is another user's; missing has just ended, and so has one that went while it was read.
                Err(error) => {
                    let gone = Errno::from_io_error(&error) == Some(Errno::SRCH);
                    table.raced |= gone || error.kind() == io::ErrorKind::NotFound;
                }
            }
        }
        let session: Vec<i32> =
            self.session(&marked, &table.entries).map(|entry| entry.identity.pid).collect();
        marked.extend(session);
        let family = table.descendants_of(marked.clone()).into_iter();
        let roots =
            table.entries.iter().filter(|entry| !entry.dead && marked.contains(&entry.identity.pid)).copied();
        let found: HashSet<ProcessIdentity> = family.chain(roots).map(|entry| entry.identity).collect();
        Ok(found.into_iter().collect())
    }

    fn is_marked(&self, environment: &[u8]) -> bool {
        environment.split(|&byte| byte == 0).any(|variable| variable == self.marker)
    }

    /// The members of the session that the supervisor led, as far as it is sure to be that session still: its id is free for
    /// another once it has no member.
    fn session<'a>(
        &self,
        marked: &HashSet<i32>,
        entries: &'a [ProcessEntry],
    ) -> impl Iterator<Item = &'a ProcessEntry> {
        let dead = self.supervisor.filter(|dead| {
            let ours = |entry: &ProcessEntry| entry.session == dead.identity.pid;
            let pid_was_reused = entries
                .iter()
                .any(|entry| entry.identity.pid == dead.identity.pid && entry.identity != dead.identity);
            let has_marked_member =
                entries.iter().any(|entry| ours(entry) && marked.contains(&entry.identity.pid));
            !pid_was_reused && (dead.observed_exit || has_marked_member)
        });
        entries.iter().filter(move |entry| {
            dead.is_some_and(|dead| {
                !entry.dead
                    && entry.session == dead.identity.pid
                    && entry.identity != dead.identity
                    && entry.identity.start_ticks >= dead.identity.start_ticks
            })
        })
    }
}

/// Kills every process below a suspended supervisor. It is their subreaper, so none of them can leave it.
pub fn kill_below(supervisor: ProcessIdentity) -> io::Result<KillPass> {
    let table = ProcessTable::read()?;
    if !is_alive(supervisor)? {
        return Ok(KillPass { killed: Vec::new(), raced: false });
    }
    let family = table.descendants_of(HashSet::from([supervisor.pid]));
    let killed: Vec<_> = family.into_iter().map(|entry| entry.identity).collect();
    kill_all(&killed)?;
    Ok(KillPass { killed, raced: table.raced })
}

fn kill_all(processes: &[ProcessIdentity]) -> io::Result<()> {
    for identity in processes {
        match ProcessHandle::open(*identity)?.map(|handle| handle.signal(Signal::KILL)) {
            // Another user's: it stays in the list, so that it is reported as left alive.
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Some(Err(error)) => return Err(error),
            Some(Ok(_)) | None => {}
        }
    }
    Ok(())
}

/// Continues the supervisor of a directory if it is suspended. Returns whether it was.
pub fn resume_supervisor(directory: &Path) -> bool {
    let mut was_suspended = false;
    for (supervisor, identity) in find_supervisors(directory).unwrap_or_default() {
        if is_suspended(identity.pid).unwrap_or(false) {
            was_suspended = true;
            // One that has ended since needs no signal.
            let _ = supervisor.resume();
        }
    }
    was_suspended
}

/// Finds the supervisor of a directory, which has it as its stdin.
pub fn find_supervisors(directory: &Path) -> io::Result<Vec<(ProcessHandle, ProcessIdentity)>> {
    let mut found = Vec::new();
    for entry in ProcessTable::read()?.entries {
        let stdin = format!("/proc/{}/fd/0", entry.identity.pid);
        if fs::read_link(stdin).is_ok_and(|stdin| stdin == directory)
            // Looked at again, by its start time, so that nobody else is hit who was given its pid.
            && let Some(process) = ProcessHandle::open(entry.identity)?
        {
            found.push((process, entry.identity));
        }
    }
    Ok(found)
}
