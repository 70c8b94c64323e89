//! Resolves paths without ever leaving the workspace.
//!
//! Every step is one `openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV)` of one name below an open directory,
//! and no step follows a symlink by itself: the link's target is read and walked like the rest of the path. So the traversed
//! names are known (for `protected`) even if directories are swapped for links at the same time. `..` is resolved from those
//! names and never by the file system, where a moved directory has another parent. A path may be longer than `PATH_MAX`.

mod pinned;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use self::pinned::Pins;
use crate::name::{self, WorkPath};
use crate::protected;
use crate::rejection::{FileRejection, RejectionCode};

/// The kernel's own limit on symlinks in one path.
const MAX_LINKS: u32 = 40;
/// `openat2` returns `EAGAIN` when a rename races with the lookup.
const TRIES: u32 = 64;

const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

/// Opens one name below a directory without following links. The only place where files in a workspace are opened.
pub(crate) fn open(
    directory: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: u32,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // `O_PATH` and `O_NOCTTY` together are rejected by `openat2`.
    let flags = if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NOCTTY };
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(directory, name, flags, Mode::from_raw_mode(mode), CONFINED) {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => tries += 1,
            other => return other,
        }
    }
}

/// Identifies a file by device and inode, whatever its name.
pub(crate) type FileIdentity = (u64, u64);

pub(crate) fn identity(stat: &Stat) -> FileIdentity {
    (stat.st_dev, stat.st_ino)
}

pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The remedy for a workspace that cannot be opened.
const PASS_DIRECTORY: &str = "pass an existing directory as the workspace";

/// The root directory of the workspace, held open.
#[derive(Debug)]
pub struct WorkspaceRoot {
    fd: OwnedFd,
    path: PathBuf,
}

/// Handling of a symlink at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinalLink {
    /// Resolves to its target.
    Follow,
    /// Resolves to the link itself.
    Keep,
}

/// The purpose of a path lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupPurpose {
    /// Reads only.
    Look,
    /// Changes the file: no protected name is allowed on the path.
    Change,
    /// Creates the file, and missing directories on the path.
    Make,
}

/// A resolved path.
#[derive(Debug)]
pub(crate) struct ResolvedPath {
    /// The parent directory.
    pub(crate) directory: OwnedFd,
    /// The name in that directory; `.` for the workspace itself.
    pub(crate) name: Vec<u8>,
    /// The path from the workspace, without links.
    pub(crate) real: Vec<u8>,
    /// The metadata of the file, if it exists.
    pub(crate) found: Option<Stat>,
}

impl ResolvedPath {
    /// Returns the metadata, or a `file_not_found` error.
    pub(crate) fn found(&self, path: &WorkPath) -> Result<&Stat, FileRejection> {
        self.found.as_ref().ok_or_else(|| FileRejection::not_found(path.said()))
    }

    /// Returns the real path as text.
    pub(crate) fn shown(&self) -> String {
        if self.real.is_empty() { ".".to_owned() } else { name::show(&self.real).into_owned() }
    }

    /// Opens the resolved file.
    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        open(self.directory.as_fd(), &self.name, flags, 0)
    }

    /// Reads the metadata again.
    pub(crate) fn stat_again(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.directory, self.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens the resolved directory to list its names.
    pub(crate) fn open_directory(&self, path: &WorkPath) -> Result<OwnedFd, FileRejection> {
        self.open(OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|refused| explain(path.said(), refused, RejectionCode::ReadFailed))
    }
}

impl WorkspaceRoot {
    /// Opens a workspace. Its own path may contain links: the operator chose it.
    pub fn open(path: &Path) -> Result<Self, FileRejection> {
        let said = name::show(path.as_os_str().as_bytes());
        let absolute = std::path::absolute(path).map_err(|refused| {
            FileRejection::invalid(format!("workspace `{said}` is not a valid path"), PASS_DIRECTORY)
                .because(refused)
        })?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|refused| match refused {
            Errno::NOENT => FileRejection::new(
                RejectionCode::FileNotFound,
                format!("workspace `{said}` does not exist"),
                PASS_DIRECTORY,
            ),
            other => explain(&said, other, RejectionCode::ReadFailed),
        })?;
        open(fd.as_fd(), b".", OFlags::PATH | OFlags::DIRECTORY, 0).map_err(|refused| match refused {
            // A container's seccomp filter returns the same error for an unknown system call.
            Errno::NOSYS | Errno::PERM => FileRejection::new(
                RejectionCode::ReadFailed,
                "this system has no `openat2`, so access cannot be confined",
                "use Linux 5.6 or newer, and a container that allows `openat2`",
            ),
            other => explain(&said, other, RejectionCode::ReadFailed),
        })?;
        Ok(Self { fd, path: absolute })
    }

    /// Returns the absolute path of the workspace.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Parses a path as a caller writes it.
    pub fn parse(&self, said: &str) -> Result<WorkPath, FileRejection> {
        WorkPath::parse(said, self.path.as_os_str().as_bytes())
    }

    /// Returns each traversed link, and finally the resolved or missing path.
    pub(crate) fn trace(&self, path: &WorkPath) -> (Option<Stat>, Vec<Vec<u8>>) {
        let mut walk = Walk::new(self, path.said(), LookupPurpose::Look);
        let place = walk.go(path.parts(), FinalLink::Follow);
        (place.ok().and_then(|place| place.found), walk.crossed)
    }

    /// Resolves a path.
    pub(crate) fn find(
        &self,
        path: &WorkPath,
        last: FinalLink,
        purpose: LookupPurpose,
    ) -> Result<ResolvedPath, FileRejection> {
        let mut walk = Walk::new(self, path.said(), purpose);
        if purpose != LookupPurpose::Look {
            walk.pins = Pins::of(self);
            walk.check_repository(self.fd())?;
        }
        // Checks all names of the path before any directory is created.
        path.parts().iter().try_for_each(|part| walk.check_name(part))?;
        let place = walk.go(path.parts(), last)?;
        if path.is_directory() {
            match place.found.as_ref().map(kind) {
                Some(FileType::Directory) => {}
                None if purpose == LookupPurpose::Make => {
                    return Err(FileRejection::is_directory(path.said()));
                }
                None => return Err(FileRejection::not_found(path.said())),
                Some(_) => return Err(FileRejection::not_a_directory(path.said())),
            }
        }
        Ok(place)
    }
}

/// The state of one lookup.
struct Walk<'a> {
    root: &'a WorkspaceRoot,
    said: &'a str,
    purpose: LookupPurpose,
    /// The names of the traversed directories.
    trail: Vec<Vec<u8>>,
    /// The current directory, unless it is the workspace.
    at: Option<OwnedFd>,
    /// The traversed links, then the resolved or missing path.
    crossed: Vec<Vec<u8>>,
    /// Files that must not be changed.
    pins: Pins,
}

/// The kind of entry under a name.
enum Step {
    Nothing,
    Found(OwnedFd, Stat),
}

impl<'a> Walk<'a> {
    fn new(root: &'a WorkspaceRoot, said: &'a str, purpose: LookupPurpose) -> Self {
        Self { root, said, purpose, trail: Vec::new(), at: None, crossed: Vec::new(), pins: Pins::default() }
    }

    fn go(&mut self, mut parts: VecDeque<Vec<u8>>, last: FinalLink) -> Result<ResolvedPath, FileRejection> {
        let mut links = 0;
        while let Some(part) = parts.pop_front() {
            match part.as_slice() {
                b".." => {
                    self.up()?;
                    continue;
                }
                // Only from a link with a trailing slash: the part before it was a directory.
                b"." => continue,
                _ => {}
            }
            self.check_name(&part)?;
            let is_last = parts.is_empty();
            let (fd, stat) = match self.step(&part)? {
                Step::Found(fd, stat) => (fd, stat),
                Step::Nothing if is_last => return self.place(part, None),
                Step::Nothing => {
                    self.crossed.push(self.path_to(&part, &parts));
                    self.make(&part, &parts)?
                }
            };
            match kind(&stat) {
                FileType::Symlink if is_last && last == FinalLink::Keep => {
                    return self.place(part, Some(stat));
                }
                FileType::Symlink => {
                    links += 1;
                    self.crossed.push(self.path_to(&part, &VecDeque::new()));
                    self.follow(&fd, links, &mut parts)?;
                }
                FileType::Directory => {
                    self.check_identity(&stat)?;
                    self.check_repository(fd.as_fd())?;
                    self.trail.push(part);
                    self.at = Some(fd);
                }
                _ if is_last => {
                    self.check_identity(&stat)?;
                    return self.place(part, Some(stat));
                }
                _ => return Err(FileRejection::not_a_directory(self.said)),
            }
        }
        self.stand()
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.at.as_ref().map_or(self.root.fd(), AsFd::as_fd)
    }

    fn step(&self, part: &[u8]) -> Result<Step, FileRejection> {
        let fd = match open(self.here(), part, OFlags::PATH, 0) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(Step::Nothing),
            Err(refused) => return Err(self.explain(refused)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|refused| self.explain(refused))?;
        Ok(Step::Found(fd, stat))
    }

    /// Creates a directory on the path if the purpose allows it.
    fn make(&self, part: &[u8], rest: &VecDeque<Vec<u8>>) -> Result<(OwnedFd, Stat), FileRejection> {
        // No directory is created for a path that leaves it again through `..`.
        if self.purpose != LookupPurpose::Make || rest.iter().any(|part| part == b"..") {
            return Err(FileRejection::not_found(self.said));
        }
        // Checks the names that a link contributed before any directory is created for them.
        rest.iter().try_for_each(|part| self.check_name(part))?;
        self.check_path(&self.path_to(part, rest))?;
        match rustix::fs::mkdirat(self.here(), part, Mode::from_raw_mode(0o777)) {
            // Another process created it first.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(refused) => return Err(self.explain(refused)),
        }
        match self.step(part)? {
            Step::Found(fd, stat) => Ok((fd, stat)),
            Step::Nothing => Err(FileRejection::not_found(self.said)),
        }
    }

    fn follow(&self, link: &OwnedFd, links: u32, parts: &mut VecDeque<Vec<u8>>) -> Result<(), FileRejection> {
        if links > MAX_LINKS {
            return Err(self.explain(Errno::LOOP));
        }
        let target = rustix::fs::readlinkat(link, "", Vec::new()).map_err(|refused| self.explain(refused))?;
        let target = target.to_bytes();
        if target.starts_with(b"/") {
            return Err(FileRejection::outside(self.said));
        }
        if target.ends_with(b"/") && parts.is_empty() {
            // The target must be a directory; `.` as a further part enforces that.
            parts.push_front(b".".to_vec());
        }
        name::split(target).rev().for_each(|part| parts.push_front(part.to_vec()));
        Ok(())
    }

    /// Moves to the parent directory by the traversed names.
    fn up(&mut self) -> Result<(), FileRejection> {
        if self.trail.pop().is_none() {
            return Err(FileRejection::outside(self.said));
        }
        self.at = self.reopen(self.trail.len())?;
        Ok(())
    }

    /// Reopens the directory at a depth of the trail. A link that appeared there in the meantime is rejected.
    fn reopen(&self, depth: usize) -> Result<Option<OwnedFd>, FileRejection> {
        let mut at: Option<OwnedFd> = None;
        for part in &self.trail[..depth] {
            let here = at.as_ref().map_or(self.root.fd(), AsFd::as_fd);
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            at = Some(open(here, part, flags, 0).map_err(|refused| self.explain(refused))?);
        }
        Ok(at)
    }

    /// Resolves to a name in the current directory.
    fn place(&mut self, part: Vec<u8>, found: Option<Stat>) -> Result<ResolvedPath, FileRejection> {
        let directory = match self.at.take() {
            Some(directory) => directory,
            None => self.root_again()?,
        };
        let real = self.path_to(&part, &VecDeque::new());
        self.crossed.push(real.clone());
        self.check_path(&real)?;
        Ok(ResolvedPath { directory, name: part, real, found })
    }

    /// Resolves to the current directory itself.
    fn stand(&mut self) -> Result<ResolvedPath, FileRejection> {
        let Some(name) = self.trail.last().cloned() else {
            let stat = rustix::fs::fstat(&self.root.fd).map_err(|refused| self.explain(refused))?;
            return Ok(ResolvedPath {
                directory: self.root_again()?,
                name: b".".to_vec(),
                real: Vec::new(),
                found: Some(stat),
            });
        };
        let stat = rustix::fs::fstat(self.here()).map_err(|refused| self.explain(refused))?;
        let directory = match self.reopen(self.trail.len() - 1)? {
            Some(directory) => directory,
            None => self.root_again()?,
        };
        let real = self.trail.join(&b'/');
        self.crossed.push(real.clone());
        self.check_path(&real)?;
        Ok(ResolvedPath { directory, name, real, found: Some(stat) })
    }

    /// Returns the path of a name in the current directory, with the remaining parts below it.
    fn path_to(&self, part: &[u8], rest: &VecDeque<Vec<u8>>) -> Vec<u8> {
        let parts = self.trail.iter().map(Vec::as_slice).chain([part]).chain(rest.iter().map(Vec::as_slice));
        parts.collect::<Vec<_>>().join(&b'/')
    }

    fn root_again(&self) -> Result<OwnedFd, FileRejection> {
        self.root.fd.try_clone().map_err(|refused| FileRejection::unreadable(self.said, refused))
    }

    fn check_name(&self, part: &[u8]) -> Result<(), FileRejection> {
        if self.purpose != LookupPurpose::Look && protected::is_protected(part) {
            return Err(FileRejection::protected(self.said));
        }
        Ok(())
    }

    fn check_identity(&self, stat: &Stat) -> Result<(), FileRejection> {
        if self.pins.has(stat) { Err(FileRejection::protected(self.said)) } else { Ok(()) }
    }

    fn check_path(&self, path: &[u8]) -> Result<(), FileRejection> {
        if self.pins.concern(path) { Err(FileRejection::protected(self.said)) } else { Ok(()) }
    }

    /// Rejects a directory that looks like a git repository under any name: git reads its `config` and runs its hooks.
    fn check_repository(&self, directory: BorrowedFd<'_>) -> Result<(), FileRejection> {
        let has = |name: &str| rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if self.purpose != LookupPurpose::Look && has("HEAD") && has("objects") && has("refs") {
            return Err(FileRejection::protected(self.said));
        }
        Ok(())
    }

    fn explain(&self, refused: Errno) -> FileRejection {
        let code = if self.purpose == LookupPurpose::Look {
            RejectionCode::ReadFailed
        } else {
            RejectionCode::WriteFailed
        };
        explain(self.said, refused, code)
    }
}

/// Maps an errno to a rejection that names the path.
pub(crate) fn explain(said: &str, refused: Errno, otherwise: RejectionCode) -> FileRejection {
    match refused {
        Errno::NOENT => FileRejection::not_found(said),
        Errno::XDEV => FileRejection::outside(said).because(refused),
        Errno::NOTDIR => FileRejection::not_a_directory(said),
        Errno::ISDIR => FileRejection::is_directory(said),
        // A link appeared in the meantime, or the links form a cycle.
        Errno::LOOP => FileRejection::irregular(said, "a link that leads nowhere, or became one just now")
            .because(refused),
        // A socket, or a device without a driver.
        Errno::NXIO | Errno::NODEV => FileRejection::irregular(said, "no ordinary file").because(refused),
        Errno::NAMETOOLONG => FileRejection::invalid(
            format!("`{said}` has a component that is too long"),
            "a file name can have at most 255 bytes",
        ),
        _ if otherwise == RejectionCode::WriteFailed => FileRejection::unwritable(said, refused),
        _ => FileRejection::unreadable(said, refused),
    }
}

/// Converts bytes to an `OsStr`.
pub(crate) fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}
