//! The directory of a run's files, in the hands of its one writer.
//!
//! Everything is reached through the open directory and not by its path: a directory that was moved is still the same, and one that
//! was removed and made again by somebody is not. The lock belongs to the open directory too. The starter takes it, lays the plan
//! down and hands the open directory to the supervisor as its stdin, so there is no moment in which a run that is being started
//! looks like one whose supervisor has died.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use model::{RunId, RunLifetime, RunPlan, RunStatus, StatusDurability};
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, fchmod, flock, mkdir, mkdirat,
    openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use sandbox::Quarantine;

use crate::error::SpoolError;
use crate::manifest::RunManifest;
use crate::os::this_process;
use crate::regular::{open_directory, open_regular_at};
use crate::spool_files::{
    ERROR, OUTPUT, PLAN, PRIVATE, QUARANTINE, QUARANTINE_NEXT, STATUS, STATUS_FIRST, STATUS_NEXT, STDIN,
    TEMPORARY, Versioned, parse,
};

/// Room for a status with the paths of its policy in it, twice, and the longest of each; and, when it is given back, for whoever
/// keeps a record of the end on the same disk.
const RESERVED_BYTES: u64 = 64 * 1024;
const CREATE_EMPTY: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::TRUNC);
/// How long those who only ask are waited for, all in all: each of them takes microseconds.
const READER_TIMEOUT: Duration = Duration::from_secs(5);
const DIRECTORY_MODE: Mode = Mode::RWXU;

/// A run's directory and the right to write to it, which ends with this value and its copies in other processes.
#[derive(Debug)]
pub struct LockedSpool {
    directory: OwnedFd,
}

impl LockedSpool {
    /// Makes the directory when it is missing. Whether it was.
    pub fn create_directory(path: &Path) -> io::Result<bool> {
        match mkdir(path, DIRECTORY_MODE) {
            Ok(()) => Ok(true),
            // Its parent may be missing, too; or something else than a directory is in its place.
            Err(_) => {
                DirBuilder::new().recursive(true).mode(DIRECTORY_MODE.bits()).create(path).map(|()| false)
            }
        }
    }

    /// Becomes the one writer of a directory; none when somebody else is.
    pub fn try_lock(path: &Path) -> io::Result<Option<Self>> {
        let directory = open_directory(path)?;
        let give_up_at = Instant::now() + READER_TIMEOUT;
        // Who asks whether a directory has a writer shares its lock for the moment of the question, and must not be taken for one.
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

    /// The directory that the starter has handed to this process as its stdin; none when somebody else writes to it.
    pub fn from_stdin() -> io::Result<Option<Self>> {
        let directory = fcntl_dupfd_cloexec(io::stdin(), 3)?;
        // A lock that the same open directory holds already is simply held on.
        let is_ours = flock_nonblocking(&directory, FlockOperation::NonBlockingLockExclusive)?;
        Ok(is_ours.then_some(Self { directory }))
    }

    /// The open directory itself, to be handed to another process.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The open directory for another process, which then holds it too.
    pub fn to_stdio(&self) -> io::Result<Stdio> {
        Ok(self.directory.try_clone()?.into())
    }

    /// Whether there is a run in it already, or what is left of one.
    pub fn has_run(&self) -> bool {
        [STATUS, PLAN, STDIN, OUTPUT]
            .iter()
            .any(|name| statat(&self.directory, *name, AtFlags::empty()).is_ok())
    }

    /// Keeps others out of a directory that was there before.
    pub fn restrict_permissions(&self) -> io::Result<()> {
        Ok(fchmod(&self.directory, DIRECTORY_MODE)?)
    }

    /// Lays a plan and its files down for a supervisor.
    pub fn prepare(&self, run_id: RunId, plan: &RunPlan) -> io::Result<()> {
        if !plan.private_files.is_empty() {
            mkdirat(&self.directory, PRIVATE, DIRECTORY_MODE)?;
        }
        for (name, bytes) in &plan.private_files {
            self.create(&format!("{PRIVATE}/{name}"))?.write_all(bytes)?;
        }
        self.create(STDIN)?.write_all(&plan.stdin)?;
        // Made here, where nobody waits yet for an agent that is about to start.
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

    /// Takes back what was laid down for a run that never came to be, or of which nobody knows more than its status says.
    pub fn discard(&self) -> io::Result<()> {
        // The secrets first.
        self.remove(PLAN)?;
        self.remove_private_files()?;
        self.remove_quarantine_list()?;
        self.remove(STDIN)?;
        if statat(&self.directory, STATUS, AtFlags::empty()).is_err() {
            [OUTPUT, ERROR, STATUS_NEXT].into_iter().try_for_each(|name| self.remove(name))?;
        }
        Ok(())
    }

    /// What is to be run; none when it has been started already.
    pub fn manifest(&self) -> Result<Option<RunManifest>, SpoolError> {
        self.read_json(PLAN)
    }

    /// The last status.
    pub fn status(&self) -> Result<Option<RunStatus>, SpoolError> {
        self.read_json(STATUS)
    }

    /// The prompt, to be read.
    pub fn stdin(&self) -> io::Result<File> {
        self.open(STDIN, OFlags::RDONLY)
    }

    /// The empty file for one of the agent's streams.
    pub fn stream(&self, name: &str) -> io::Result<File> {
        // A starter of an earlier version has left it to the supervisor to make it.
        self.open(name, OFlags::WRONLY | OFlags::CREATE)
    }

    fn create(&self, name: &str) -> io::Result<File> {
        self.open(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// How long a file is; nothing when it is missing.
    pub fn size(&self, name: &str) -> u64 {
        statat(&self.directory, name, AtFlags::empty())
            .map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or_default())
    }

    /// Until when the agent had last printed something, in milliseconds since 1970 and to the next full second; none when its files
    /// are gone.
    pub fn last_output_ms(&self) -> Option<u64> {
        let written =
            |name| u64::try_from(statat(&self.directory, name, AtFlags::empty()).ok()?.st_mtime).ok();
        let last = [OUTPUT, ERROR].into_iter().filter_map(written).max()?;
        Some((last + 1) * 1_000)
    }

    /// Forgets the plan: it may hold secrets in its environment, and the status now says all that is needed.
    pub fn remove_plan(&self) -> io::Result<()> {
        self.remove(PLAN)
    }

    /// Writes down which paths a recovery has to move to quarantine.
    pub fn write_quarantine(&self, quarantine: &Quarantine) -> io::Result<()> {
        let json = serde_json::to_vec(quarantine)?;
        self.open(QUARANTINE_NEXT, CREATE_EMPTY)?.write_all(&json)?;
        Ok(renameat(&self.directory, QUARANTINE_NEXT, &self.directory, QUARANTINE)?)
    }

    /// Reads what a killed supervisor had to move to quarantine; none when there was nothing.
    pub fn quarantine(&self) -> Option<Quarantine> {
        let mut json = Vec::new();
        self.open(QUARANTINE, OFlags::RDONLY).ok()?.read_to_end(&mut json).ok()?;
        serde_json::from_slice(&json).ok()
    }

    /// Removes the list, when everything on it has been moved.
    pub fn remove_quarantine_list(&self) -> io::Result<()> {
        self.remove(QUARANTINE_NEXT)?;
        self.remove(QUARANTINE)
    }

    /// Removes the private files, and the agent's temporary ones.
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

    /// Writes the first status. A disk that is full refuses it, and the run is not to be.
    pub fn publish_first_status(
        &self,
        status: &RunStatus,
        durability: StatusDurability,
    ) -> io::Result<Vec<u8>> {
        StatusSlot {
            spool: self,
            file: self.open(STATUS_FIRST, CREATE_EMPTY)?,
            name: STATUS_FIRST,
            durability,
        }
        .publish(status)
    }

    /// Takes the room for the last status, so that a disk that fills up cannot keep it from being written.
    fn reserve_status_file(&self) -> io::Result<File> {
        let file = self.open(STATUS_NEXT, CREATE_EMPTY)?;
        // Without a size: the file is as long as what will be written to it.
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVED_BYTES) {
            // A file system that cannot reserve leaves us with hope, as before.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(file),
            Err(error) => Err(error.into()),
        }
    }

    /// The room that was taken for the last status when the run was laid down.
    pub fn final_status_slot(&self, durability: StatusDurability) -> io::Result<StatusSlot<'_>> {
        let file = match self.open(STATUS_NEXT, OFlags::WRONLY) {
            // As with the streams.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.reserve_status_file()?,
            file => file?,
        };
        Ok(StatusSlot { spool: self, file, name: STATUS_NEXT, durability })
    }

    /// Takes the room for a status that somebody else than the supervisor has to write.
    pub fn new_status_slot(&self, durability: StatusDurability) -> io::Result<StatusSlot<'_>> {
        Ok(StatusSlot { spool: self, file: self.reserve_status_file()?, name: STATUS_NEXT, durability })
    }

    /// Removes what a dead supervisor had begun to write.
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

/// Whether the lock was to be had.
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

/// A place for one status.
#[derive(Debug)]
pub struct StatusSlot<'a> {
    spool: &'a LockedSpool,
    file: File,
    name: &'static str,
    durability: StatusDurability,
}

impl StatusSlot<'_> {
    /// Replaces the status as a whole: a reader sees the old one or the new one, also after a loss of power if it is to.
    ///
    /// Then the bytes are on the disk before the name is. The name itself is left to the file system's journal. A status that
    /// the power took counts as none, an old one names a supervisor of another boot: in both cases the run counts as lost,
    /// not as something it was not.
    ///
    /// Answers what was written.
    pub fn publish(self, status: &RunStatus) -> io::Result<Vec<u8>> {
        let json = serde_json::to_vec(status)?;
        self.file.write_all_at(&json, 0)?;
        if self.name == STATUS_NEXT {
            // What was reserved and not needed: on a disk that the agent has filled it is all the room there is for the end to be
            // kept elsewhere, and otherwise every run would hold it for as long as it is kept.
            self.file.set_len(json.len() as u64)?;
        }
        if self.durability == StatusDurability::PowerLoss {
            self.file.sync_data()?;
        }
        renameat(&self.spool.directory, self.name, &self.spool.directory, STATUS)?;
        Ok(json)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::spool::Spool;

    #[test]
    fn who_asks_whether_a_folder_is_held_keeps_nobody_from_holding_it() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::at(directory.path());
        let (asked, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        spool.is_locked().unwrap();
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let mut refused = 0;
            while asked.load(Ordering::Relaxed) < 50_000 {
                refused += usize::from(LockedSpool::try_lock(directory.path()).unwrap().is_none());
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(refused, 0);
        });
    }

    #[test]
    fn a_folder_has_one_writer_and_it_shows() {
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
