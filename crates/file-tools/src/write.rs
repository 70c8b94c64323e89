//! `write` and `create`: a whole file, in one step.
//!
//! The content goes to a new file in the same folder, onto the disk, and then gets the name: whoever reads sees the old file
//! or the new one, and a file that had a second name elsewhere is left as it was there. One writer at a time in a workspace.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde::Serialize;

use crate::beneath::{self, Last, Place, Purpose, explain, kind};
use crate::contents::{self, FILE_LIMIT};
use crate::name::WorkPath;
use crate::refusal::{Code, Refusal};
use crate::request::Write;
use crate::workspace::Workspace;

/// How long a writer waits for another.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a write came to.
#[derive(Debug, Serialize)]
pub struct Written {
    /// The file, without links.
    pub path: String,
    /// Whether it was not there before.
    pub created: bool,
    /// How many bytes it has.
    pub size: u64,
}

pub(crate) fn write(workspace: &Workspace, request: &Write) -> Result<Written, Refusal> {
    check_size(&request.content)?;
    let path = workspace.root.parse(&request.path)?;
    let _turn = turn(workspace, &path)?;
    let place = workspace.root.find(&path, Last::Follow, Purpose::Make)?;
    if let Some(stat) = &place.found {
        contents::check_kind(stat, path.said())?;
    }
    lay_down(&place, &path, &request.content, place.found.as_ref(), Rule::Replace)?;
    Ok(Written { path: place.shown(), created: place.found.is_none(), size: request.content.len() as u64 })
}

pub(crate) fn create(workspace: &Workspace, request: &Write) -> Result<Written, Refusal> {
    check_size(&request.content)?;
    let path = workspace.root.parse(&request.path)?;
    let _turn = turn(workspace, &path)?;
    let place = workspace.root.find(&path, Last::Keep, Purpose::Make)?;
    if place.found.is_some() {
        return Err(Refusal::exists(path.said()));
    }
    lay_down(&place, &path, &request.content, None, Rule::OnlyNew)?;
    Ok(Written { path: place.shown(), created: true, size: request.content.len() as u64 })
}

fn check_size(content: &[u8]) -> Result<(), Refusal> {
    if content.len() as u64 > FILE_LIMIT {
        return Err(Refusal::too_large("the content", FILE_LIMIT));
    }
    Ok(())
}

/// What happens to a file of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// It is replaced.
    Replace,
    /// It is replaced unless it is another one than was read.
    ReplaceSame,
    /// There must be none.
    OnlyNew,
}

/// Gives the content the name, in one step. A file that was there hands on its mode and owner.
pub(crate) fn lay_down(
    place: &Place,
    path: &WorkPath,
    content: &[u8],
    before: Option<&Stat>,
    rule: Rule,
) -> Result<(), Refusal> {
    let failed = |refused| explain_write(path, refused);
    let draft = Draft::new(place, before).map_err(failed)?;
    draft.fill(content, before).map_err(|refused| Refusal::unwritable(path.said(), refused))?;
    if rule == Rule::ReplaceSame
        && !place.look_again().is_ok_and(|now| before.is_some_and(|before| same(before, &now)))
    {
        return Err(Refusal::new(
            Code::WriteFailed,
            format!("`{}` was changed by somebody else just now", path.said()),
            "read it again and patch what is there then",
        ));
    }
    draft.take_name(rule).map_err(|refused| match refused {
        Errno::EXIST if rule == Rule::OnlyNew => Refusal::exists(path.said()),
        other => failed(other),
    })?;
    settle(place);
    Ok(())
}

fn explain_write(path: &WorkPath, refused: Errno) -> Refusal {
    match refused {
        // The folder was there a moment ago.
        Errno::NOENT => Refusal::unwritable(path.said(), refused),
        other => explain(path.said(), other, Code::WriteFailed),
    }
}

/// Whether a file is as it was.
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

/// A file on its way to its name. Dropped before it got there, it is removed.
struct Draft<'a> {
    place: &'a Place,
    name: Vec<u8>,
    file: File,
    placed: bool,
}

impl<'a> Draft<'a> {
    fn new(place: &'a Place, before: Option<&Stat>) -> Result<Self, Errno> {
        // Nobody else may look into what replaces a private file; a new one is as the user's mask says.
        let mode = if before.is_some() { 0o600 } else { 0o666 };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut tries = 0;
        loop {
            let name = draft_name()?;
            match beneath::open(place.folder.as_fd(), &name, flags, mode) {
                Ok(fd) => return Ok(Self { place, name, file: File::from(fd), placed: false }),
                Err(Errno::EXIST) if tries < 8 => tries += 1,
                Err(refused) => return Err(refused),
            }
        }
    }

    fn fill(&self, content: &[u8], before: Option<&Stat>) -> std::io::Result<()> {
        (&self.file).write_all(content)?;
        if let Some(before) = before {
            // Only root can give a file away, and only root would take it away from its owner by not doing so.
            let (user, group) =
                (rustix::fs::Uid::from_raw(before.st_uid), rustix::fs::Gid::from_raw(before.st_gid));
            let _ = rustix::fs::fchown(&self.file, Some(user), Some(group));
            // Never the bits that lend a program its owner's rights.
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(before.st_mode & 0o777))?;
        }
        self.file.sync_all()
    }

    fn take_name(mut self, rule: Rule) -> Result<(), Errno> {
        let folder = &self.place.folder;
        let (from, to) = (self.name.as_slice(), self.place.name.as_slice());
        match rule {
            Rule::OnlyNew => {
                match rustix::fs::renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
                    // A file system without this kind of renaming: a second name is refused just as atomically, and the draft's own is dropped.
                    Err(Errno::INVAL | Errno::NOSYS) => {
                        return rustix::fs::linkat(folder, from, folder, to, AtFlags::empty());
                    }
                    other => other?,
                }
            }
            Rule::Replace | Rule::ReplaceSame => rustix::fs::renameat(folder, from, folder, to)?,
        }
        self.placed = true;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.placed {
            let _ = rustix::fs::unlinkat(&self.place.folder, self.name.as_slice(), AtFlags::empty());
        }
    }
}

/// A name that nobody can have prepared something under.
fn draft_name() -> Result<Vec<u8>, Errno> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".file-tools-{:016x}.tmp", u64::from_ne_bytes(random)).into_bytes())
}

/// The name is on the disk too. Best effort: the file has it already, and some file systems cannot.
pub(crate) fn settle(place: &Place) {
    if let Ok(folder) = beneath::open(place.folder.as_fd(), b".", OFlags::RDONLY | OFlags::DIRECTORY, 0) {
        let _ = rustix::fs::fsync(folder);
    }
}

/// The turn of one writer: what it has read stays as it is until it has written. Ends when it is dropped.
pub(crate) fn turn(workspace: &Workspace, path: &WorkPath) -> Result<OwnedFd, Refusal> {
    let refuse = |refused| Refusal::unwritable(path.said(), refused);
    let folder =
        beneath::open(workspace.root.fd(), b".", OFlags::RDONLY | OFlags::DIRECTORY, 0).map_err(refuse)?;
    let since = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            // A file system without locks: the check before the renaming has to do.
            Ok(()) | Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS) => return Ok(folder),
            Err(Errno::WOULDBLOCK | Errno::INTR) if since.elapsed() < PATIENCE => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(Refusal::new(
                    Code::WriteFailed,
                    "another program has kept the workspace locked for half a minute",
                    "try again when it is done",
                ));
            }
            Err(refused) => return Err(refuse(refused)),
        }
    }
}

/// Whether a place may be changed by `delete` and `move`.
pub(crate) fn check_movable(place: &Place, path: &WorkPath) -> Result<FileType, Refusal> {
    if place.real.is_empty() {
        return Err(Refusal::is_directory(path.said()));
    }
    Ok(kind(place.found(path)?))
}
