//! Where a path leads, found without ever leaving the workspace.
//!
//! Every step is one `openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV)` of one name below a folder that is held
//! open, and no step follows a link by itself: a link's text is read and walked like the rest of the path. So the names that
//! were really gone through are known (for `protected`), whoever swaps folders for links meanwhile; `..` is answered from those
//! names and never by the disk, where a folder that was moved has another parent. A path may be longer than `PATH_MAX`.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::name::{self, WorkPath};
use crate::pinned::Pins;
use crate::protected;
use crate::refusal::{Code, Refusal};

/// As many links as the kernel follows.
const MOST_LINKS: u32 = 40;
/// The kernel asks for another try when something was renamed while it looked.
const TRIES: u32 = 64;

const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

/// Opens one name below a folder, links not followed. The one place where anything in a workspace is opened.
pub(crate) fn open(folder: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The kernel refuses what makes no sense together.
    let flags = if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NOCTTY };
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(folder, name, flags, Mode::from_raw_mode(mode), CONFINED) {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => tries += 1,
            other => return other,
        }
    }
}

/// An identity of a file that no name can hide.
pub(crate) type Identity = (u64, u64);

pub(crate) fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The workspace, held open.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: PathBuf,
}

/// What is done with a link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    /// What it points to is meant.
    Follow,
    /// The link itself is meant.
    Keep,
}

/// What the way is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To look.
    Look,
    /// To change what is there: no protected name on the way.
    Change,
    /// To put something there: also makes the folders on the way.
    Make,
}

/// Where a path led.
#[derive(Debug)]
pub(crate) struct Place {
    /// The folder it is in.
    pub(crate) folder: OwnedFd,
    /// Its name there; `.` for the workspace itself.
    pub(crate) name: Vec<u8>,
    /// The way to it from the workspace, without links.
    pub(crate) real: Vec<u8>,
    /// What is there, if anything.
    pub(crate) found: Option<Stat>,
}

impl Place {
    /// What is there, or that nothing is.
    pub(crate) fn found(&self, path: &WorkPath) -> Result<&Stat, Refusal> {
        self.found.as_ref().ok_or_else(|| Refusal::not_found(path.said()))
    }

    /// The real path as text.
    pub(crate) fn shown(&self) -> String {
        if self.real.is_empty() { ".".to_owned() } else { name::show(&self.real).into_owned() }
    }

    /// Opens what is there.
    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        open(self.folder.as_fd(), &self.name, flags, 0)
    }

    /// What has the name now.
    pub(crate) fn look_again(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.folder, self.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens the folder at this place for reading its names.
    pub(crate) fn open_folder(&self, path: &WorkPath) -> Result<OwnedFd, Refusal> {
        self.open(OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|refused| explain(path.said(), refused, Code::ReadFailed))
    }
}

impl Root {
    /// Opens a workspace. Its own path may go through links: the operator chose it.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let said = name::show(path.as_os_str().as_bytes());
        let absolute = std::path::absolute(path).map_err(|refused| {
            Refusal::invalid(format!("workspace `{said}` is no path"), "name a folder").because(refused)
        })?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|refused| explain(&said, refused, Code::ReadFailed))?;
        open(fd.as_fd(), b".", OFlags::PATH | OFlags::DIRECTORY, 0).map_err(|refused| match refused {
            // Also what a container's filter answers that does not know the call.
            Errno::NOSYS | Errno::PERM => Refusal::new(
                Code::ReadFailed,
                "this system has no `openat2`, so nothing here can be confined",
                "use Linux 5.6 or newer, and a container that allows `openat2`",
            ),
            other => explain(&said, other, Code::ReadFailed),
        })?;
        Ok(Self { fd, path: absolute })
    }

    /// The workspace's own path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads a path as a caller writes it.
    pub fn parse(&self, said: &str) -> Result<WorkPath, Refusal> {
        WorkPath::parse(said, self.path.as_os_str().as_bytes())
    }

    /// Where a path leads, step by step: each link gone through, and in the end what was found or missed.
    pub(crate) fn trace(&self, path: &WorkPath) -> (Option<Stat>, Vec<Vec<u8>>) {
        let mut walk = Walk::new(self, path.said(), Purpose::Look);
        let place = walk.go(path.parts(), Last::Follow);
        (place.ok().and_then(|place| place.found), walk.crossed)
    }

    /// Walks a path.
    pub(crate) fn find(&self, path: &WorkPath, last: Last, purpose: Purpose) -> Result<Place, Refusal> {
        let mut walk = Walk::new(self, path.said(), purpose);
        if purpose != Purpose::Look {
            walk.pins = Pins::of(self);
            walk.check_repository(self.fd())?;
        }
        // What is written in the path is judged as a whole, before any folder is made or missed.
        path.parts().iter().try_for_each(|part| walk.check_name(part))?;
        let place = walk.go(path.parts(), last)?;
        if path.is_folder() {
            match place.found.as_ref().map(kind) {
                Some(FileType::Directory) => {}
                None if purpose == Purpose::Make => return Err(Refusal::is_directory(path.said())),
                None => return Err(Refusal::not_found(path.said())),
                Some(_) => return Err(Refusal::not_a_directory(path.said())),
            }
        }
        Ok(place)
    }
}

/// A walk under way.
struct Walk<'a> {
    root: &'a Root,
    said: &'a str,
    purpose: Purpose,
    /// The folders gone into, by name.
    trail: Vec<Vec<u8>>,
    /// The one it stands in, unless that is the workspace.
    at: Option<OwnedFd>,
    /// The links gone through, and in the end what was found or missed.
    crossed: Vec<Vec<u8>>,
    /// What must not be changed.
    pins: Pins,
}

/// What a walk found under a name.
enum Step {
    Nothing,
    Found(OwnedFd, Stat),
}

impl<'a> Walk<'a> {
    fn new(root: &'a Root, said: &'a str, purpose: Purpose) -> Self {
        Self { root, said, purpose, trail: Vec::new(), at: None, crossed: Vec::new(), pins: Pins::default() }
    }

    fn go(&mut self, mut parts: VecDeque<Vec<u8>>, last: Last) -> Result<Place, Refusal> {
        let mut links = 0;
        while let Some(part) = parts.pop_front() {
            match part.as_slice() {
                b".." => {
                    self.up()?;
                    continue;
                }
                // Only from a link that ends with a slash: what came before it must be a folder, and was.
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
                FileType::Symlink if is_last && last == Last::Keep => return self.place(part, Some(stat)),
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
                _ => return Err(Refusal::not_a_directory(self.said)),
            }
        }
        self.stand()
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.at.as_ref().map_or(self.root.fd(), AsFd::as_fd)
    }

    fn step(&self, part: &[u8]) -> Result<Step, Refusal> {
        let fd = match open(self.here(), part, OFlags::PATH, 0) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(Step::Nothing),
            Err(refused) => return Err(self.explain(refused)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|refused| self.explain(refused))?;
        Ok(Step::Found(fd, stat))
    }

    /// Makes a folder on the way, where the purpose allows it.
    fn make(&self, part: &[u8], rest: &VecDeque<Vec<u8>>) -> Result<(OwnedFd, Stat), Refusal> {
        // Nothing is made for a path that only passes through it.
        if self.purpose != Purpose::Make || rest.iter().any(|part| part == b"..") {
            return Err(Refusal::not_found(self.said));
        }
        // What a link has added is judged before anything is made for it.
        rest.iter().try_for_each(|part| self.check_name(part))?;
        self.check_path(&self.path_to(part, rest))?;
        match rustix::fs::mkdirat(self.here(), part, Mode::from_raw_mode(0o777)) {
            // Somebody else made it: as good.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(refused) => return Err(self.explain(refused)),
        }
        match self.step(part)? {
            Step::Found(fd, stat) => Ok((fd, stat)),
            Step::Nothing => Err(Refusal::not_found(self.said)),
        }
    }

    fn follow(&self, link: &OwnedFd, links: u32, parts: &mut VecDeque<Vec<u8>>) -> Result<(), Refusal> {
        if links > MOST_LINKS {
            return Err(self.explain(Errno::LOOP));
        }
        let target = rustix::fs::readlinkat(link, "", Vec::new()).map_err(|refused| self.explain(refused))?;
        let target = target.to_bytes();
        if target.starts_with(b"/") {
            return Err(Refusal::outside(self.said));
        }
        if target.ends_with(b"/") && parts.is_empty() {
            // It must be a folder; `.` as a further part says so.
            parts.push_front(b".".to_vec());
        }
        name::split(target).rev().for_each(|part| parts.push_front(part.to_vec()));
        Ok(())
    }

    /// To the folder above, by the names that were gone through.
    fn up(&mut self) -> Result<(), Refusal> {
        if self.trail.pop().is_none() {
            return Err(Refusal::outside(self.said));
        }
        self.at = self.reopen(self.trail.len())?;
        Ok(())
    }

    /// Opens the folder at a depth of the trail anew. A link that stands there now was not there before, and is refused.
    fn reopen(&self, depth: usize) -> Result<Option<OwnedFd>, Refusal> {
        let mut at: Option<OwnedFd> = None;
        for part in &self.trail[..depth] {
            let here = at.as_ref().map_or(self.root.fd(), AsFd::as_fd);
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            at = Some(open(here, part, flags, 0).map_err(|refused| self.explain(refused))?);
        }
        Ok(at)
    }

    /// The place of a name in the folder where the walk stands.
    fn place(&mut self, part: Vec<u8>, found: Option<Stat>) -> Result<Place, Refusal> {
        let folder = match self.at.take() {
            Some(folder) => folder,
            None => self.root_again()?,
        };
        let real = self.path_to(&part, &VecDeque::new());
        self.crossed.push(real.clone());
        self.check_path(&real)?;
        Ok(Place { folder, name: part, real, found })
    }

    /// The place of the folder where the walk stands.
    fn stand(&mut self) -> Result<Place, Refusal> {
        let Some(name) = self.trail.last().cloned() else {
            let stat = rustix::fs::fstat(&self.root.fd).map_err(|refused| self.explain(refused))?;
            return Ok(Place {
                folder: self.root_again()?,
                name: b".".to_vec(),
                real: Vec::new(),
                found: Some(stat),
            });
        };
        let stat = rustix::fs::fstat(self.here()).map_err(|refused| self.explain(refused))?;
        let folder = match self.reopen(self.trail.len() - 1)? {
            Some(folder) => folder,
            None => self.root_again()?,
        };
        let real = self.trail.join(&b'/');
        self.crossed.push(real.clone());
        self.check_path(&real)?;
        Ok(Place { folder, name, real, found: Some(stat) })
    }

    /// The path of a name in the folder where the walk stands, and of what is still to come below it.
    fn path_to(&self, part: &[u8], rest: &VecDeque<Vec<u8>>) -> Vec<u8> {
        let parts = self.trail.iter().map(Vec::as_slice).chain([part]).chain(rest.iter().map(Vec::as_slice));
        parts.collect::<Vec<_>>().join(&b'/')
    }

    fn root_again(&self) -> Result<OwnedFd, Refusal> {
        self.root.fd.try_clone().map_err(|refused| Refusal::unreadable(self.said, refused))
    }

    fn check_name(&self, part: &[u8]) -> Result<(), Refusal> {
        if self.purpose != Purpose::Look && protected::is_protected(part) {
            return Err(Refusal::protected(self.said));
        }
        Ok(())
    }

    fn check_identity(&self, stat: &Stat) -> Result<(), Refusal> {
        if self.pins.has(stat) { Err(Refusal::protected(self.said)) } else { Ok(()) }
    }

    fn check_path(&self, path: &[u8]) -> Result<(), Refusal> {
        if self.pins.concern(path) { Err(Refusal::protected(self.said)) } else { Ok(()) }
    }

    /// Whether a folder is what `.git` usually is, under whichever name: git obeys its `config` and runs its hooks.
    fn check_repository(&self, folder: BorrowedFd<'_>) -> Result<(), Refusal> {
        let has = |name: &str| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if self.purpose != Purpose::Look && has("HEAD") && has("objects") && has("refs") {
            return Err(Refusal::protected(self.said));
        }
        Ok(())
    }

    fn explain(&self, refused: Errno) -> Refusal {
        let code = if self.purpose == Purpose::Look { Code::ReadFailed } else { Code::WriteFailed };
        explain(self.said, refused, code)
    }
}

/// What the system's refusal of a path means.
pub(crate) fn explain(said: &str, refused: Errno, otherwise: Code) -> Refusal {
    match refused {
        Errno::NOENT => Refusal::not_found(said),
        Errno::XDEV => Refusal::outside(said).because(refused),
        Errno::NOTDIR => Refusal::not_a_directory(said),
        Errno::ISDIR => Refusal::is_directory(said),
        // A link where there was none a moment ago, or links that go round in a circle.
        Errno::LOOP => {
            Refusal::irregular(said, "a link that leads nowhere, or became one just now").because(refused)
        }
        // A socket, or a device that nothing stands behind.
        Errno::NXIO | Errno::NODEV => Refusal::irregular(said, "no ordinary file").because(refused),
        Errno::NAMETOOLONG => Refusal::invalid(
            format!("`{said}` has a part that is longer than a name may be"),
            "a name has 255 bytes at most",
        ),
        _ if otherwise == Code::WriteFailed => Refusal::unwritable(said, refused),
        _ => Refusal::unreadable(said, refused),
    }
}

/// An `OsStr` of bytes.
pub(crate) fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}
