//! What a killed supervisor has left running, found by identity.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use model::{ProcessIdentity, RunId};
use rustix::io::Errno;
use rustix::process::Signal;

use super::identity::{Entry, ProcessHandle, Table, is_alive, is_suspended, table};
use super::tree::below;
use crate::error::is_resource_exhaustion;

/// The processes of one run whose supervisor is gone.
#[derive(Debug)]
pub struct Survivors {
    marker: Vec<u8>,
    supervisor: Option<Former>,
}

/// The supervisor that was.
#[derive(Debug, Clone, Copy)]
pub struct Former {
    /// Who it was, in this boot.
    pub identity: ProcessIdentity,
    /// Whether the caller saw it die just now. If not, its pid may have been given out again in the meantime, and so may the
    /// id of the session that it led.
    pub seen_to_die: bool,
}

/// What one look found.
#[derive(Debug)]
pub struct Found {
    /// The processes, which have been sent SIGKILL.
    pub killed: Vec<ProcessIdentity>,
    /// Whether a process ended while it was looked, so that one it had just started may have been missed.
    pub torn: bool,
}

impl Survivors {
    /// Looks for the processes of a run.
    pub fn of(run_id: RunId, supervisor: Option<Former>) -> Self {
        Self { marker: format!("{}={run_id}", RunId::VARIABLE).into_bytes(), supervisor }
    }

    /// Kills every process that is found now.
    pub fn kill(&self) -> io::Result<Found> {
        let mut table = table()?;
        let killed = self.find(&mut table)?;
        kill_all(&killed)?;
        Ok(Found { killed, torn: table.torn })
    }

    fn find(&self, table: &mut Table) -> io::Result<Vec<ProcessIdentity>> {
        let mut marked = HashSet::new();
        for entry in table.entries.iter().filter(|entry| !entry.dead) {
            match fs::read(format!("/proc/{}/environ", entry.identity.pid)) {
                Ok(environment) if self.is_in(&environment) => drop(marked.insert(entry.identity.pid)),
                Ok(_) => {}
                // Who cannot look must not say that nothing is there.
                Err(error) if is_resource_exhaustion(&error) => return Err(error),
                // Unreadable is another user's; missing has just ended, and so has one that went while it was read.
                Err(error) => {
                    let gone = Errno::from_io_error(&error) == Some(Errno::SRCH);
                    table.torn |= gone || error.kind() == io::ErrorKind::NotFound;
                }
            }
        }
        let session: Vec<i32> =
            self.session(&marked, &table.entries).map(|entry| entry.identity.pid).collect();
        marked.extend(session);
        let family = below(marked.clone(), &table.entries).into_iter();
        let themselves =
            table.entries.iter().filter(|entry| !entry.dead && marked.contains(&entry.identity.pid)).copied();
        let found: HashSet<ProcessIdentity> = family.chain(themselves).map(|entry| entry.identity).collect();
        Ok(found.into_iter().collect())
    }

    fn is_in(&self, environment: &[u8]) -> bool {
        environment.split(|&byte| byte == 0).any(|variable| variable == self.marker)
    }

    /// The members of the session that the supervisor led, as far as it is sure to be that session still: its id is free for
    /// another once it has no member.
    fn session<'a>(&self, marked: &HashSet<i32>, entries: &'a [Entry]) -> impl Iterator<Item = &'a Entry> {
        let former = self.supervisor.filter(|former| {
            let ours = |entry: &Entry| entry.session == former.identity.pid;
            let pid_is_taken = entries
                .iter()
                .any(|entry| entry.identity.pid == former.identity.pid && entry.identity != former.identity);
            let has_a_carrier =
                entries.iter().any(|entry| ours(entry) && marked.contains(&entry.identity.pid));
            !pid_is_taken && (former.seen_to_die || has_a_carrier)
        });
        entries.iter().filter(move |entry| {
            former.is_some_and(|former| {
                !entry.dead
                    && entry.session == former.identity.pid
                    && entry.identity != former.identity
                    && entry.identity.start_ticks >= former.identity.start_ticks
            })
        })
    }
}

/// Kills every process below a suspended supervisor. It is their subreaper, so none of them can leave it.
pub fn kill_below(supervisor: ProcessIdentity) -> io::Result<Found> {
    let table = table()?;
    if !is_alive(supervisor)? {
        return Ok(Found { killed: Vec::new(), torn: false });
    }
    let family = below(HashSet::from([supervisor.pid]), &table.entries);
    let killed: Vec<_> = family.into_iter().map(|entry| entry.identity).collect();
    kill_all(&killed)?;
    Ok(Found { killed, torn: table.torn })
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

/// Continues the supervisor of a folder if it is suspended. Returns whether it was.
pub fn resume_supervisor(folder: &Path) -> bool {
    let mut was_suspended = false;
    for (supervisor, identity) in find_whose_stdin_is(folder).unwrap_or_default() {
        if is_suspended(identity.pid).unwrap_or(false) {
            was_suspended = true;
            // One that has ended since needs no signal.
            let _ = supervisor.resume();
        }
    }
    was_suspended
}

/// Finds the supervisor of a folder, which has it as its stdin.
pub fn find_whose_stdin_is(folder: &Path) -> io::Result<Vec<(ProcessHandle, ProcessIdentity)>> {
    let mut found = Vec::new();
    for entry in table()?.entries {
        let stdin = format!("/proc/{}/fd/0", entry.identity.pid);
        if fs::read_link(stdin).is_ok_and(|stdin| stdin == folder)
            // Looked at again, by its start time, so that nobody else is hit who was given its pid.
            && let Some(process) = ProcessHandle::open(entry.identity)?
        {
            found.push((process, entry.identity));
        }
    }
    Ok(found)
}
