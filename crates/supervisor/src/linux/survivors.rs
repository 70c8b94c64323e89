//! What a killed supervisor has left running, found by identity.

use std::collections::HashSet;
use std::fs;
use std::io;

use model::{ProcessIdentity, RunId};
use rustix::process::Signal;

use super::identity::{Entry, ProcessHandle, table};
use super::tree::below;

/// The processes of one run whose supervisor is gone.
#[derive(Debug)]
pub struct Survivors {
    marker: Vec<u8>,
    supervisor: Option<ProcessIdentity>,
}

impl Survivors {
    /// Looks for the processes of a run. The supervisor's former identity is given only when it is of this boot.
    pub fn of(run_id: RunId, supervisor: Option<ProcessIdentity>) -> Self {
        Self { marker: format!("{}={run_id}", RunId::VARIABLE).into_bytes(), supervisor }
    }

    /// Kills every process that is found now and says which they were. None found means none is left: what starts a process
    /// must itself be one of them.
    pub fn kill(&self) -> io::Result<Vec<ProcessIdentity>> {
        let found = self.find()?;
        for identity in &found {
            match ProcessHandle::open(*identity)?.map(|handle| handle.signal(Signal::KILL)) {
                // Another user's: it stays in the list, so that it is reported as left alive.
                Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) | None => {}
            }
        }
        Ok(found)
    }

    fn find(&self) -> io::Result<Vec<ProcessIdentity>> {
        let table = table()?;
        let marked: HashSet<i32> =
            table.iter().filter(|entry| self.is_marked(entry)).map(|entry| entry.identity.pid).collect();
        let mut found: HashSet<ProcessIdentity> =
            below(marked.clone(), &table).iter().map(|entry| entry.identity).collect();
        found.extend(
            table.iter().filter(|entry| marked.contains(&entry.identity.pid)).map(|entry| entry.identity),
        );
        Ok(found.into_iter().collect())
    }

    fn is_marked(&self, entry: &Entry) -> bool {
        if entry.dead {
            return false;
        }
        // The supervisor led its session. The session's id is not given out again while it has a member.
        let in_session = self.supervisor.is_some_and(|supervisor| {
            entry.session == supervisor.pid && entry.identity.start_ticks >= supervisor.start_ticks
        });
        in_session || self.carries_the_run_id(entry.identity.pid)
    }

    fn carries_the_run_id(&self, pid: i32) -> bool {
        // Unreadable: another user's process, or one that has just ended.
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
            environment.split(|&byte| byte == 0).any(|variable| variable == self.marker)
        })
    }
}
