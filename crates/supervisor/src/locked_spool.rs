//! Exclusive write access to a spool.
//!
//! Every access goes through the open directory instead of its path: a directory that was moved is still the same, and
//! one that was deleted and recreated is not. The flock belongs to the open directory, too. The starter locks it,
//! prepares the run and passes the descriptor to the supervisor as its stdin, so a run that is being started never
//! looks like one whose supervisor has died.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use model::{InputMode, RunId, RunLifetime, RunPlan, RunStatus, StatusDurability};
use regular_file::{create_private_directory, open_regular_at};
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, fchmod, flock, fstatvfs, mkdir,
    mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use sandbox::Quarantine;

use crate::error::SpoolError;
use crate::manifest::RunManifest;
use crate::os::this_process;
use crate::spool_files::{
    CONTROL, DRIVER, ERROR, INPUT, OUTPUT, PLAN, PRIVATE, QUARANTINE, QUARANTINE_NEXT, STATUS, STATUS_FIRST,
    STATUS_NEXT, TEMPORARY, Versioned, open_directory, parse,
};

/// Space for a status that lists the paths of its policy twice, at their maximum length. Once freed, it leaves room for
/// the daemon to record the outcome on the same disk.
const RESERVED_BYTES: u64 = 64 * 1024;
/// The free space from which nobody depends on the reservation.
const AMPLE_BYTES: u64 = 64 * 1024 * 1024;
const CREATE_EMPTY: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::TRUNC);
/// The total time to wait for readers, each of which holds the shared lock for microseconds.
const READER_TIMEOUT: Duration = Duration::from_secs(5);
const DIRECTORY_MODE: Mode = Mode::RWXU;

/// A spool and the exclusive lock on it. The lock is released when this value and its copies in other processes are
/// dropped.
#[derive(Debug)]
pub struct LockedSpool {
    directory: OwnedFd,
}

impl LockedSpool {
    /// Creates the directory and its parents if they are missing. Returns whether the directory itself was created, and thus is to
    /// be removed if the run does not start.
    pub fn create_directory(path: &Path) -> io::Result<bool> {
        let created = match (mkdir(path, DIRECTORY_MODE), path.parent()) {
            (Err(Errno::NOENT), Some(parent)) => {
                create_private_directory(parent)?;
                mkdir(path, DIRECTORY_MODE)
            }
            (created, _) => created,
        };
        match created {
            Ok(()) => Ok(true),
            // It exists, or a file of another type is in the way.
            Err(_) => create_private_directory(path).map(|()| false),
        }
    }

    /// Locks a directory for writing, or returns `None` if another process has locked it.
    pub fn try_lock(path: &Path) -> io::Result<Option<Self>> {
        let directory = open_directory(path)?;
        let give_up_at = Instant::now() + READER_TIMEOUT;
        // A reader (`Spool::is_locked`) briefly holds the shared lock and must not be mistaken for a writer.
        while !flock_nonblocking(&directory, FlockOperation::NonBlockingLockExclusive)? {
            if !flock_nonblocking(&directory, FlockOperation::NonBlockingLockShared)?
                || Instant::now() > give_up_at
            {
                return Ok(None);
            }
            flock(&directory, FlockOperation::Unlock)?;
            std::thread::yield_now();
        }
        Ok(Some(Self { directory }))
    }

    /// Takes over the directory that the starter passed as stdin, or returns `None` if another process has locked it.
    pub fn from_stdin() -> io::Result<Option<Self>> {
        let directory = fcntl_dupfd_cloexec(io::stdin(), 3)?;
        // Locking again is a no-op: the starter locked the same open file description.
        let is_ours = flock_nonblocking(&directory, FlockOperation::NonBlockingLockExclusive)?;
        Ok(is_ours.then_some(Self { directory }))
    }

    /// Borrows the open directory, to pass it to another process.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Duplicates the open directory for a child process, which then shares the lock.
    pub fn to_stdio(&self) -> io::Result<Stdio> {
        Ok(self.directory.try_clone()?.into())
    }

    /// Returns whether the directory already contains a run, or the remains of one.
    pub fn has_run(&self) -> bool {
        [STATUS, PLAN, INPUT, OUTPUT]
            .iter()
            .any(|name| statat(&self.directory, *name, AtFlags::empty()).is_ok())
    }

    /// Restricts a directory that existed before to its owner.
    pub fn restrict_permissions(&self) -> io::Result<()> {
        Ok(fchmod(&self.directory, DIRECTORY_MODE)?)
    }

    /// Writes the manifest and the files of a plan for a supervisor.
    pub fn prepare(&self, run_id: RunId, plan: &RunPlan) -> io::Result<()> {
        if !plan.private_files.is_empty() {
            mkdirat(&self.directory, PRIVATE, DIRECTORY_MODE)?;
        }
        for (name, bytes) in &plan.private_files {
            self.create(&format!("{PRIVATE}/{name}"))?.write_all(bytes)?;
        }
        self.create(INPUT)?.write_all(&plan.input)?;
        if plan.input_mode == InputMode::Open {
            self.create(CONTROL)?;
        }
        if !plan.driver.is_empty() {
            self.create(DRIVER)?.write_all(&plan.driver)?;
        }
        // Created here rather than at the launch of the agent, where it would add to the startup latency.
        for name in [OUTPUT, ERROR] {
            self.create(name)?;
        }
        self.reserve_status_file()?;
        let starter = match plan.lifetime {
            RunLifetime::Detached => None,
            RunLifetime::BoundToStarter => Some(this_process()?),
        };
        let manifest = RunManifest::new(run_id, plan.clone(), starter);
        self.create(PLAN)?.write_all(&serde_json::to_vec(&manifest)?)
    }

    /// Removes the files of a run that was never started, or that ended with no more information than its status.
    pub fn discard(&self) -> io::Result<()> {
        // Secrets first: a failure below must not leave them.
        self.remove(PLAN)?;
        self.remove_private_files()?;
        self.remove_quarantine_list()?;
        [INPUT, CONTROL, DRIVER].into_iter().try_for_each(|name| self.remove(name))?;
        if statat(&self.directory, STATUS, AtFlags::empty()).is_err() {
            [OUTPUT, ERROR, STATUS_NEXT].into_iter().try_for_each(|name| self.remove(name))?;
        }
        Ok(())
    }

    /// Returns the manifest, or `None` if the agent has already started.
    pub fn manifest(&self) -> Result<Option<RunManifest>, SpoolError> {
        self.read_json(PLAN)
    }

    /// Returns the current status.
    pub fn status(&self) -> Result<Option<RunStatus>, SpoolError> {
        self.read_json(STATUS)
    }

    /// Opens the input for reading.
    pub fn input(&self) -> io::Result<File> {
        self.open(INPUT, OFlags::RDONLY)
    }

    /// Opens the commands to the supervisor for reading. Only an open input has this file.
    pub fn control(&self) -> io::Result<File> {
        self.open(CONTROL, OFlags::RDONLY)
    }

    /// Opens the empty file for one of the agent's streams.
    pub fn stream(&self, name: &str) -> io::Result<File> {
        // O_CREAT: starters of earlier versions leave the creation to the supervisor.
        self.open(name, OFlags::WRONLY | OFlags::CREATE)
    }

    fn create(&self, name: &str) -> io::Result<File> {
        self.open(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// Returns the length of a file, or 0 if it is missing.
    pub fn size(&self, name: &str) -> u64 {
        statat(&self.directory, name, AtFlags::empty())
            .map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or_default())
    }

    /// Returns the time of the agent's last output in milliseconds since 1970, rounded up to the next full second, or
    /// `None` if its files are missing.
    pub fn last_output_ms(&self) -> Option<u64> {
        let written =
            |name| u64::try_from(statat(&self.directory, name, AtFlags::empty()).ok()?.st_mtime).ok();
        let last = [OUTPUT, ERROR].into_iter().filter_map(written).max()?;
        Some((last + 1) * 1_000)
    }

    /// Removes the plan. Its environment may contain secrets, and the status now identifies the run.
    pub fn remove_plan(&self) -> io::Result<()> {
        self.remove(PLAN)
    }

    /// Writes the list of paths that a recovery must move to quarantine.
    pub fn write_quarantine(&self, quarantine: &Quarantine) -> io::Result<()> {
        let json = serde_json::to_vec(quarantine)?;
        self.open(QUARANTINE_NEXT, CREATE_EMPTY)?.write_all(&json)?;
        Ok(renameat(&self.directory, QUARANTINE_NEXT, &self.directory, QUARANTINE)?)
    }

    /// Reads the list of paths that a killed supervisor had to move to quarantine.
    pub fn quarantine(&self) -> Option<Quarantine> {
        let mut json = Vec::new();
        self.open(QUARANTINE, OFlags::RDONLY).ok()?.read_to_end(&mut json).ok()?;
        serde_json::from_slice(&json).ok()
    }

    /// Removes the quarantine list once its paths have been moved.
    pub fn remove_quarantine_list(&self) -> io::Result<()> {
        self.remove(QUARANTINE_NEXT)?;
        self.remove(QUARANTINE)
    }

    /// Removes the private files and the agent's temporary files.
    pub fn remove_private_files(&self) -> io::Result<()> {
        let temporary = format!("/proc/self/fd/{}/{TEMPORARY}", self.directory.as_raw_fd());
        sandbox::remove_tree(Path::new(&temporary))?;
        let private = match self.open(PRIVATE, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            directory => directory?,
        };
        for entry in Dir::read_from(&private)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                unlinkat(&private, entry.file_name(), AtFlags::empty())?;
            }
        }
        Ok(unlinkat(&self.directory, PRIVATE, AtFlags::REMOVEDIR)?)
    }

    /// Writes the first status. On a full disk this fails, and the run must not continue.
    pub fn publish_first_status(
        &self,
        status: &RunStatus,
        durability: StatusDurability,
    ) -> io::Result<Vec<u8>> {
        let file = self.open(STATUS_FIRST, CREATE_EMPTY)?;
        StatusSlot { spool: self, file, name: STATUS_FIRST, durability }.publish(status)
    }

    /// Reserves the space of the final status, so that a full disk cannot prevent it.
    fn reserve_status_file(&self) -> io::Result<File> {
        let file = self.open(STATUS_NEXT, CREATE_EMPTY)?;
        // KEEP_SIZE: the file is only as long as the data written later.
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVED_BYTES) {
            // Best effort on file systems without fallocate.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(file),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the slot of the final status, which the starter has reserved.
    pub fn final_status_slot(&self, durability: StatusDurability) -> io::Result<StatusSlot<'_>> {
        let file = match self.open(STATUS_NEXT, OFlags::WRONLY) {
            // As with the streams, an earlier version of the starter has not created it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.reserve_status_file()?,
            file => file?,
        };
        Ok(StatusSlot { spool: self, file, name: STATUS_NEXT, durability })
    }

    /// Reserves a slot for a status that is not written by the supervisor.
    pub fn new_status_slot(&self, durability: StatusDurability) -> io::Result<StatusSlot<'_>> {
        Ok(StatusSlot { spool: self, file: self.reserve_status_file()?, name: STATUS_NEXT, durability })
    }

    /// Removes the status file that a killed supervisor had not published yet.
    pub fn remove_first_status(&self) -> io::Result<()> {
        self.remove(STATUS_FIRST)
    }

    fn open(&self, name: &str, flags: OFlags) -> io::Result<File> {
        open_at(&self.directory, name, flags)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read_json<T: Versioned>(&self, name: &str) -> Result<Option<T>, SpoolError> {
        let mut bytes = Vec::new();
        match self.open(name, OFlags::RDONLY).and_then(|mut file| file.read_to_end(&mut bytes)) {
            Ok(_) if bytes.iter().all(|byte| *byte == 0) => Ok(None),
            Ok(_) => parse(name.into(), &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SpoolError::Unreadable { path: name.into(), source }),
        }
    }
}

/// Returns whether the lock was acquired.
fn flock_nonblocking(directory: &OwnedFd, operation: FlockOperation) -> io::Result<bool> {
    match flock(directory, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn open_at(directory: impl AsFd, name: &str, flags: OFlags) -> io::Result<File> {
    if flags.contains(OFlags::DIRECTORY) {
        return Ok(openat(directory, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?.into());
    }
    open_regular_at(directory, Path::new(name), flags)
}

/// A reserved file for one status.
#[derive(Debug)]
pub struct StatusSlot<'a> {
    spool: &'a LockedSpool,
    file: File,
    name: &'static str,
    durability: StatusDurability,
}

impl StatusSlot<'_> {
    /// Replaces the status atomically, also across a power loss if `durability` requires it.
    ///
    /// The data is fsynced before the rename; the rename itself is left to the journal of the file system. After a
    /// power loss, a missing status counts as none, and an old one names a supervisor of another boot. In both cases
    /// the run counts as lost and never as something else.
    ///
    /// Returns the written bytes.
    pub fn publish(&self, status: &RunStatus) -> io::Result<Vec<u8>> {
        let json = serde_json::to_vec(status)?;
        self.file.write_all_at(&json, 0)?;
        if self.durability == StatusDurability::PowerLoss {
            self.file.sync_data()?;
        }
        renameat(&self.spool.directory, self.name, &self.spool.directory, STATUS)?;
        Ok(json)
    }

    /// Returns whether the disk is so full that the reservation is the only room in which the daemon can record the
    /// outcome.
    pub fn is_space_scarce(&self) -> bool {
        fstatvfs(&self.file).map_or(true, |disk| disk.f_bavail.saturating_mul(disk.f_frsize) < AMPLE_BYTES)
    }

    /// Frees the unused part of the reservation, given the length of the published status. Otherwise every retained run
    /// would keep it allocated.
    ///
    /// Apart from [`Self::publish`], since a disk that discards freed blocks takes longer for this than for all other
    /// writes of a short run.
    pub fn free_reservation(&self, written: usize) -> io::Result<()> {
        self.file.set_len(written as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::spool::Spool;

    #[test]
    fn is_locked_does_not_block_lock() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::at(directory.path());
        let (queries, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        spool.is_locked().unwrap();
                        queries.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let mut refused = 0;
            while queries.load(Ordering::Relaxed) < 50_000 {
                refused += usize::from(LockedSpool::try_lock(directory.path()).unwrap().is_none());
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(refused, 0);
        });
    }

    #[test]
    fn directory_below_a_missing_one_counts_as_created() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("jobs/one/runs/1");
        assert!(LockedSpool::create_directory(&run).unwrap());
        assert!(!LockedSpool::create_directory(&run).unwrap());
        std::fs::write(run.join("file"), "").unwrap();
        assert!(LockedSpool::create_directory(&run.join("file")).is_err());
    }

    #[test]
    fn spool_has_one_writer() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::at(directory.path());
        let writer = LockedSpool::try_lock(directory.path()).unwrap();
        assert!(writer.is_some() && spool.is_locked().unwrap());
        assert!(LockedSpool::try_lock(directory.path()).unwrap().is_none());
        drop(writer);
        assert!(!spool.is_locked().unwrap());
        assert!(LockedSpool::try_lock(directory.path()).unwrap().is_some());
    }
}
