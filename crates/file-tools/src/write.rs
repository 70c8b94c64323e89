//! `write` and `create`: writes a whole file atomically.
//!
//! The content is written to a new file in the same directory, fsynced and renamed: readers see the old file or the new one,
//! and a hard link elsewhere keeps the old content. One writer at a time in a workspace.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde::Serialize;

use crate::beneath::{self, FinalLink, LookupPurpose, ResolvedPath, explain, kind};
use crate::contents::{self, FILE_LIMIT};
use crate::name::WorkPath;
use crate::rejection::{FileRejection, RejectionCode};
use crate::request::WriteRequest;
use crate::workspace::Workspace;

/// The time a writer waits for the lock.
const PATIENCE: Duration = Duration::from_secs(30);

/// The reply to `write` and `create`.
#[derive(Debug, Serialize)]
pub struct WriteReply {
    /// The file, without links.
    pub path: String,
    /// True if the file did not exist before.
    pub created: bool,
    /// The size in bytes.
    pub size: u64,
}

pub(crate) fn write(workspace: &Workspace, request: &WriteRequest) -> Result<WriteReply, FileRejection> {
    check_size(&request.content)?;
    let path = workspace.root.parse(&request.path)?;
    let _turn = turn(workspace, &path)?;
    let place = workspace.root.find(&path, FinalLink::Follow, LookupPurpose::Make)?;
    if let Some(stat) = &place.found {
        contents::check_kind(stat, path.said())?;
    }
    replace_file(&place, &path, &request.content, place.found.as_ref(), Rule::Replace)?;
    Ok(WriteReply { path: place.shown(), created: place.found.is_none(), size: request.content.len() as u64 })
}

pub(crate) fn create(workspace: &Workspace, request: &WriteRequest) -> Result<WriteReply, FileRejection> {
    check_size(&request.content)?;
    let path = workspace.root.parse(&request.path)?;
    let _turn = turn(workspace, &path)?;
    let place = workspace.root.find(&path, FinalLink::Keep, LookupPurpose::Make)?;
    if place.found.is_some() {
        return Err(FileRejection::exists(path.said()));
    }
    replace_file(&place, &path, &request.content, None, Rule::OnlyNew)?;
    Ok(WriteReply { path: place.shown(), created: true, size: request.content.len() as u64 })
}

fn check_size(content: &[u8]) -> Result<(), FileRejection> {
    if content.len() as u64 > FILE_LIMIT {
        return Err(FileRejection::too_large("the content", FILE_LIMIT));
    }
    Ok(())
}

/// The handling of an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Replaces it.
    Replace,
    /// Replaces it only if it is the file that was read.
    ReplaceSame,
    /// Rejects the request.
    OnlyNew,
}

/// Renames the content to its final name atomically. Mode and owner of an existing file are preserved.
pub(crate) fn replace_file(
    place: &ResolvedPath,
    path: &WorkPath,
    content: &[u8],
    before: Option<&Stat>,
    rule: Rule,
) -> Result<(), FileRejection> {
    let failed = |refused| explain_write(path, refused);
    let draft = Draft::new(place, before).map_err(failed)?;
    draft.fill(content, before).map_err(|refused| FileRejection::unwritable(path.said(), refused))?;
    if rule == Rule::ReplaceSame
        && !place.stat_again().is_ok_and(|now| before.is_some_and(|before| same(before, &now)))
    {
        return Err(FileRejection::new(
            RejectionCode::WriteFailed,
            format!("`{}` was changed by another program meanwhile", path.said()),
            "read it again, then patch the new content",
        ));
    }
    draft.take_name(rule).map_err(|refused| match refused {
        Errno::EXIST if rule == Rule::OnlyNew => FileRejection::exists(path.said()),
        other => failed(other),
    })?;
    settle(place);
    Ok(())
}

fn explain_write(path: &WorkPath, refused: Errno) -> FileRejection {
    match refused {
        // The directory existed a moment ago.
        Errno::NOENT => FileRejection::unwritable(path.said(), refused),
        other => explain(path.said(), other, RejectionCode::WriteFailed),
    }
}

/// Returns whether a file is unchanged.
fn same(before: &Stat, now: &Stat) -> bool {
    let state = |stat: &Stat| {
        (
            beneath::identity(stat),
            stat.st_size,
            stat.st_mtime,
            stat.st_mtime_nsec,
            stat.st_ctime,
            stat.st_ctime_nsec,
        )
    };
    state(before) == state(now)
}

/// A temporary file. Removed on drop unless it was renamed.
struct Draft<'a> {
    place: &'a ResolvedPath,
    name: Vec<u8>,
    file: File,
    placed: bool,
}

impl<'a> Draft<'a> {
    fn new(place: &'a ResolvedPath, before: Option<&Stat>) -> Result<Self, Errno> {
        // A replaced file may be private; a new file gets the mode of the umask.
        let mode = if before.is_some() { 0o600 } else { 0o666 };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut tries = 0;
        loop {
            let name = draft_name()?;
            match beneath::open(place.directory.as_fd(), &name, flags, mode) {
                Ok(fd) => return Ok(Self { place, name, file: File::from(fd), placed: false }),
                Err(Errno::EXIST) if tries < 8 => tries += 1,
                Err(refused) => return Err(refused),
            }
        }
    }

    fn fill(&self, content: &[u8], before: Option<&Stat>) -> std::io::Result<()> {
        (&self.file).write_all(content)?;
        if let Some(before) = before {
            // Only root can change the owner, and only as root would a new file have another owner.
            let (user, group) =
                (rustix::fs::Uid::from_raw(before.st_uid), rustix::fs::Gid::from_raw(before.st_gid));
            let _ = rustix::fs::fchown(&self.file, Some(user), Some(group));
            // Never the setuid and setgid bits.
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(before.st_mode & 0o777))?;
        }
        self.file.sync_all()
    }

    fn take_name(mut self, rule: Rule) -> Result<(), Errno> {
        let directory = &self.place.directory;
        let (from, to) = (self.name.as_slice(), self.place.name.as_slice());
        match rule {
            Rule::OnlyNew => {
                match rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
                    // The file system does not support `RENAME_NOREPLACE`: a hard link fails on an existing name just as
                    // atomically.
                    Err(Errno::INVAL | Errno::NOSYS) => {
                        return rustix::fs::linkat(directory, from, directory, to, AtFlags::empty());
                    }
                    other => other?,
                }
            }
            Rule::Replace | Rule::ReplaceSame => rustix::fs::renameat(directory, from, directory, to)?,
        }
        self.placed = true;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.placed {
            let _ = rustix::fs::unlinkat(&self.place.directory, self.name.as_slice(), AtFlags::empty());
        }
    }
}

/// Returns an unpredictable name.
fn draft_name() -> Result<Vec<u8>, Errno> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".file-tools-{:016x}.tmp", u64::from_ne_bytes(random)).into_bytes())
}

/// Fsyncs the directory. Best effort: the file has its name, and some file systems do not support it.
pub(crate) fn settle(place: &ResolvedPath) {
    if let Ok(directory) = beneath::open(place.directory.as_fd(), b".", OFlags::RDONLY | OFlags::DIRECTORY, 0)
    {
        let _ = rustix::fs::fsync(directory);
    }
}

/// Locks the workspace for one writer, so that a file does not change between its read and its write. Unlocks on drop.
pub(crate) fn turn(workspace: &Workspace, path: &WorkPath) -> Result<OwnedFd, FileRejection> {
    let refuse = |refused| FileRejection::unwritable(path.said(), refused);
    let directory =
        beneath::open(workspace.root.fd(), b".", OFlags::RDONLY | OFlags::DIRECTORY, 0).map_err(refuse)?;
    let since = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            // The file system has no locks: the check before the rename must suffice.
            Ok(()) | Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS) => return Ok(directory),
            Err(Errno::WOULDBLOCK | Errno::INTR) if since.elapsed() < PATIENCE => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(FileRejection::new(
                    RejectionCode::WriteFailed,
                    "another program has locked the workspace for half a minute",
                    "try again when it has finished",
                ));
            }
            Err(refused) => return Err(refuse(refused)),
        }
    }
}

/// Returns whether `delete` and `move` may change a file.
pub(crate) fn check_movable(place: &ResolvedPath, path: &WorkPath) -> Result<FileType, FileRejection> {
    if place.real.is_empty() {
        return Err(FileRejection::is_directory(path.said()));
    }
    Ok(kind(place.found(path)?))
}
