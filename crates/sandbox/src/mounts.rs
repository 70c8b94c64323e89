//! Makes the mounts of a sandbox from inside, by descriptor.
//!
//! Other runs may write to the directories that are mounted, and swap them for links while a sandbox is being made. So no path is
//! given to the kernel by name: each is opened once, without following a link, and the open directory itself is cloned, made
//! read-only and attached. Bubblewrap makes the namespaces and nothing of this.
//!
//! At the end the kernel's own list of mounts is compared with the plan. A directory that was moved in the meantime took its mount
//! along, and shows there.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, StatxFlags, fstat, mkdirat, mknodat, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::beneath::{open_beneath, open_without_links};
use crate::layout::Mount;
use crate::mount_plan::PlannedMount;
use crate::mountinfo::{
    ExpectedMount, ExpectedSource, MountDifference, MountEntry, compare_mounts, read_mounts,
};
use crate::quarantine::WritableRoot;

/// A mount that cannot be made, or that is not as planned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountFailure {
    #[error("cannot make a mount namespace: {0}")]
    Namespace(io::Error),
    #[error("cannot mount `{}`: {error}", path.display())]
    Mount { path: PathBuf, error: io::Error },
    #[error("`{}` was exchanged while the sandbox was made", path.display())]
    Exchanged { path: PathBuf },
    #[error("the mounts differ from the plan at `{}`: {}", .0.path.display(), .0.found)]
    Different(MountDifference),
}

impl From<MountFailure> for io::Error {
    fn from(failure: MountFailure) -> Self {
        Self::other(failure.to_string())
    }
}

/// A tree of mounts that is ready to be attached.
struct Tree {
    mount: OwnedFd,
    /// What it was cloned from, where that is the machine's.
    source: Option<Source>,
}

/// An open file that was cloned.
struct Source {
    /// Its mount.
    mount_id: u64,
    /// Its device and inode.
    identity: (u64, u64),
    is_directory: bool,
}

/// Carries out a plan in a mount namespace of this process's own, and checks the result. Needs the capability to mount.
pub(crate) fn make_mounts(plan: &[PlannedMount], roots: &[WritableRoot]) -> Result<(), MountFailure> {
    enter_own_namespace()?;
    let root = open_without_links(Path::new("/")).map_err(namespace)?;
    // What is mounted outside from now on does not appear here.
    set_attributes(root.as_fd(), PRIVATE).map_err(namespace)?;
    let before = read_mounts().map_err(namespace)?;
    // While nothing is covered and everything has the rights that it has outside.
    let trees = clone_trees(plan, roots)?;
    set_attributes(root.as_fd(), READ_ONLY).map_err(namespace)?;
    for (planned, tree) in plan.iter().zip(&trees) {
        let around = planned.around.map(|around| (&plan[around], trees[around].mount.as_fd()));
        attach(planned, tree, around, root.as_fd())?;
    }
    // Only now: mount points were made in them.
    let is_filled = |planned: &PlannedMount| matches!(planned.mount, Mount::HideFolder | Mount::Home);
    for (planned, tree) in plan.iter().zip(&trees).filter(|(planned, _)| is_filled(planned)) {
        set_attributes(tree.mount.as_fd(), Attributes { is_recursive: false, ..READ_ONLY })
            .map_err(failed(planned))?;
    }
    check_mounts(plan, &trees, &before)
}

#[expect(unsafe_code, reason = "there is no safe wrapper for unshare")]
fn enter_own_namespace() -> Result<(), MountFailure> {
    // SAFETY: no descriptor table is shared or separated by this flag.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(namespace)
}

fn namespace(error: impl Into<io::Error>) -> MountFailure {
    MountFailure::Namespace(error.into())
}

fn failed<E: Into<io::Error>>(planned: &PlannedMount) -> impl FnOnce(E) -> MountFailure {
    move |error| MountFailure::Mount { path: planned.at.clone(), error: error.into() }
}

fn clone_trees(plan: &[PlannedMount], roots: &[WritableRoot]) -> Result<Vec<Tree>, MountFailure> {
    let holding: HashSet<usize> = plan.iter().filter_map(|planned| planned.around).collect();
    let empty = new_directory("0555").map_err(namespace)?;
    let null = open_without_links(Path::new("/dev/null")).map_err(namespace)?;
    let clone = |(index, planned): (usize, &PlannedMount)| {
        let own = |mount: io::Result<OwnedFd>| Ok(Tree { mount: mount?, source: None });
        let tree = match planned.mount {
            Mount::Write | Mount::WriteFrom(_) => clone_path(&planned.source),
            Mount::Read | Mount::ReadFrom(_) => clone_path(&planned.source).and_then(|tree| {
                set_attributes(tree.mount.as_fd(), READ_ONLY)?;
                Ok(tree)
            }),
            Mount::HideFile => own(clone_tree(&null).and_then(|tree| {
                set_attributes(tree.as_fd(), Attributes { set: READ_ONLY.set | NO_DEVICES, ..READ_ONLY })?;
                Ok(tree)
            })),
            Mount::Private | Mount::Home => own(new_directory("0755")),
            Mount::HideFolder if holding.contains(&index) => own(new_directory("0755")),
            // One file system is enough for all of them, and a clone is cheaper.
            Mount::HideFolder => own(clone_tree(&empty)),
        };
        let tree = tree.map_err(failed(planned))?;
        // Or the sweep at the end would look at another directory than the agent wrote to.
        if tree.source.is_some()
            && !WritableRoot::allows(roots, &planned.source, &tree.mount).map_err(failed(planned))?
        {
            return Err(MountFailure::Exchanged { path: planned.at.clone() });
        }
        Ok(tree)
    };
    plan.iter().enumerate().map(clone).collect()
}

fn clone_path(path: &Path) -> io::Result<Tree> {
    let opened = open_without_links(path)?;
    let found = fstat(&opened)?;
    let source = Source {
        mount_id: mount_id(&opened)?,
        identity: (found.st_dev, found.st_ino),
        is_directory: FileType::from_raw_mode(found.st_mode).is_dir(),
    };
    Ok(Tree { mount: clone_tree(&opened)?, source: Some(source) })
}

/// Clones an open directory with every mount below it.
fn clone_tree(opened: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(opened, "", flags)?)
}

/// Makes an empty file system in memory.
fn new_directory(mode: &str) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "mode", mode)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Attaches a tree to its mount point. `around` is the mount of the plan that the mount point lies on.
fn attach(
    planned: &PlannedMount,
    tree: &Tree,
    around: Option<(&PlannedMount, BorrowedFd<'_>)>,
    root: BorrowedFd<'_>,
) -> Result<(), MountFailure> {
    let (above, directory) = around.map_or((Path::new("/"), root), |(above, mount)| (&above.at, mount));
    let below = planned.at.strip_prefix(above).unwrap_or(&planned.at);
    let is_made = around.is_some_and(|(above, _)| above.is_own());
    let mount_point = match &tree.source {
        Some(source) if is_made => make_mount_point(directory, below, source.is_directory),
        None if is_made && planned.mount == Mount::Home => make_mount_point(directory, below, true),
        _ => open_beneath(directory, below),
    };
    let mount_point = mount_point.map_err(failed(planned))?;
    if let Some(source) = tree.source.as_ref().filter(|_| !is_made && planned.source == planned.at) {
        let found = fstat(&mount_point).map_err(failed(planned))?;
        if (found.st_dev, found.st_ino) != source.identity {
            return Err(MountFailure::Exchanged { path: planned.at.clone() });
        }
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&tree.mount, "", &mount_point, "", flags).map_err(failed(planned))
}

/// Makes a mount point in a directory of the run's own, unless it is there.
fn make_mount_point(directory: BorrowedFd<'_>, below: &Path, is_directory: bool) -> io::Result<OwnedFd> {
    let (parents, name) = (below.parent().unwrap_or(Path::new("")), below.file_name().unwrap_or_default());
    let mut directory = directory.try_clone_to_owned()?;
    for part in parents.components() {
        make_directory(&directory, part.as_os_str())?;
        directory = open_beneath(&directory, Path::new(part.as_os_str()))?;
    }
    if is_directory {
        make_directory(&directory, name)?;
    } else {
        unless_there(mknodat(&directory, name, FileType::RegularFile, Mode::RUSR, 0))?;
    }
    open_beneath(&directory, Path::new(name))
}

fn make_directory(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    unless_there(mkdirat(directory, name, Mode::from_raw_mode(0o755)))
}

fn unless_there(made: rustix::io::Result<()>) -> io::Result<()> {
    match made {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Compares the finished namespace with the plan: by the kernel's list of mounts, and by what each path leads to.
fn check_mounts(plan: &[PlannedMount], trees: &[Tree], before: &[MountEntry]) -> Result<(), MountFailure> {
    let mut expected = Vec::with_capacity(plan.len());
    for (planned, tree) in plan.iter().zip(trees) {
        let id = mount_id(&tree.mount).map_err(failed(planned))?;
        let source = match &tree.source {
            Some(source) => ExpectedSource::Bind {
                path: &planned.source,
                base: source.mount_id,
                is_read_only: planned.is_read_only(),
            },
            None => ExpectedSource::Own { is_read_only: planned.is_read_only() },
        };
        expected.push(ExpectedMount { id, at: &planned.at, source });
    }
    let after = read_mounts().map_err(namespace)?;
    compare_mounts(&expected, before, &after).map_err(MountFailure::Different)?;
    for (planned, mount) in plan.iter().zip(&expected) {
        let found = open_without_links(&planned.at).and_then(|opened| mount_id(&opened));
        if found.map_err(failed(planned))? != mount.id {
            return Err(MountFailure::Exchanged { path: planned.at.clone() });
        }
    }
    Ok(())
}

fn mount_id(opened: &OwnedFd) -> io::Result<u64> {
    let found = statx(opened, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    // Linux 5.8 has it, and the calls above need a later one.
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(found.stx_mnt_id)
}

/// Attributes to be set on a mount.
#[derive(Clone, Copy)]
struct Attributes {
    set: u64,
    propagation: u64,
    /// Whether they are set on all mounts below it, too.
    is_recursive: bool,
}

const PRIVATE: Attributes = Attributes { set: 0, propagation: libc::MS_PRIVATE, is_recursive: true };
const READ_ONLY: Attributes = Attributes { set: libc::MOUNT_ATTR_RDONLY, propagation: 0, is_recursive: true };
const NO_DEVICES: u64 = libc::MOUNT_ATTR_NODEV;

#[expect(unsafe_code, reason = "there is no safe wrapper for mount_setattr")]
fn set_attributes(tree: BorrowedFd<'_>, attributes: Attributes) -> io::Result<()> {
    let Attributes { set, propagation, is_recursive } = attributes;
    let attributes = libc::mount_attr { attr_set: set, attr_clr: 0, propagation, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if is_recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: an empty path with its NUL, and a structure of the size that is given; the kernel only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
