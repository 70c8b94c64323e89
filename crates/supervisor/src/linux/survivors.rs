//! Finds and kills the processes that a dead supervisor has left.

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

/// The processes of a run whose supervisor is dead.
#[derive(Debug)]
pub struct Survivors {
    marker: Vec<u8>,
    supervisor: Option<DeadSupervisor>,
}

/// A supervisor that has exited.
#[derive(Debug, Clone, Copy)]
pub struct DeadSupervisor {
    /// Its identity, in this boot.
    pub identity: ProcessIdentity,
    /// Set if the caller has just observed its exit. Otherwise its pid, which is also its session id, may have been
    /// reused.
    pub observed_exit: bool,
}

/// The result of one pass over the process table.
#[derive(Debug)]
pub struct KillPass {
    /// The processes that were sent SIGKILL.
    pub killed: Vec<ProcessIdentity>,
    /// Set if a process exited during the pass, so that its new children may have been missed.
    pub raced: bool,
}

impl Survivors {
    /// Identifies the processes of a run.
    pub fn new(run_id: RunId, supervisor: Option<DeadSupervisor>) -> Self {
        Self { marker: format!("{}={run_id}", RunId::VARIABLE).into_bytes(), supervisor }
    }

    /// Kills all survivors found in one pass.
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
                // EMFILE or ENOMEM does not prove that there is no process.
                Err(error) if is_resource_exhaustion(&error) => return Err(error),
                // EACCES: a process of another user. ENOENT, ESRCH: it has just exited.
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

    /// Returns the members of the supervisor's session, if it is certain that the session is still the same: the id of
    /// an empty session can be reused.
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

/// Kills all descendants of a suspended supervisor. It is their subreaper, so none of them can leave the tree.
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
            // A process of another user: it stays in the list, so that it is reported as left alive.
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
            // It may have exited meanwhile.
            let _ = supervisor.resume();
        }
    }
    was_suspended
}

/// Finds the supervisor of a directory by its stdin.
pub fn find_supervisors(directory: &Path) -> io::Result<Vec<(ProcessHandle, ProcessIdentity)>> {
    let mut found = Vec::new();
    for entry in ProcessTable::read()?.entries {
        let stdin = format!("/proc/{}/fd/0", entry.identity.pid);
        if fs::read_link(stdin).is_ok_and(|stdin| stdin == directory)
            // Verified by start time, so that a reused pid is not hit.
            && let Some(process) = ProcessHandle::open(entry.identity)?
        {
            found.push((process, entry.identity));
        }
    }
    Ok(found)
}
