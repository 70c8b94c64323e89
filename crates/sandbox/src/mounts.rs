//! Creates the mounts of a sandbox from inside, by descriptor.
//!
//! Other runs may write to the mounted directories and swap them for links in the meantime. No path is therefore passed to the kernel by
//! name: each is opened once without following a link, and the open directory is cloned, made read-only and attached. Bubblewrap creates
//! the namespaces and none of these mounts.
//!
//! Finally the kernel's own list of mounts is compared with the plan. A directory that was moved in the meantime took its mount along,
//! which the comparison detects.

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
use crate::mount_plan::Mount;
use crate::mount_plan::PlannedMount;
use crate::mountinfo::{
    ExpectedMount, ExpectedSource, MountDifference, MountEntry, compare_mounts, read_mounts,
};
use crate::writable_roots::WritableRoot;

/// A mount that cannot be created or differs from the plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountFailure {
    #[error("cannot create a mount namespace: {0}")]
    Namespace(io::Error),
    #[error("cannot mount `{}`: {error}", path.display())]
    Mount { path: PathBuf, error: io::Error },
    #[error("`{}` was replaced while the sandbox was prepared", path.display())]
    Replaced { path: PathBuf },
    #[error("the mounts differ from the plan at `{}`: {}", .0.path.display(), .0.found)]
    Different(MountDifference),
}

impl MountFailure {
    fn is_not_found(&self) -> bool {
        matches!(self, Self::Mount { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<MountFailure> for io::Error {
    fn from(failure: MountFailure) -> Self {
        Self::other(failure.to_string())
    }
}

/// A detached mount tree.
struct MountTree {
    mount: OwnedFd,
    /// The file of the machine that it was cloned from; `None` for an empty file system.
    source: Option<MountSource>,
}

/// The origin of a cloned mount tree.
struct MountSource {
    /// The mount that it was opened on.
    mount_id: u64,
    /// Its device and inode.
    identity: (u64, u64),
    is_directory: bool,
}

/// Creates the planned mounts in a new mount namespace of this process and verifies the result. Needs `CAP_SYS_ADMIN`.
pub(crate) fn create_mounts(plan: &[PlannedMount], roots: &[WritableRoot]) -> Result<(), MountFailure> {
    enter_new_namespace()?;
    let root = open_without_links(Path::new("/")).map_err(namespace_failure)?;
    // Later mounts outside do not propagate to this namespace.
    set_attributes(root.as_fd(), PRIVATE_PROPAGATION).map_err(namespace_failure)?;
    let before = read_mounts().map_err(namespace_failure)?;
    // Cloned before any path is covered and before the machine becomes read-only.
    let trees = clone_trees(plan, roots)?;
    set_attributes(root.as_fd(), READ_ONLY).map_err(namespace_failure)?;
    let mut mounted = Vec::with_capacity(plan.len());
    for (planned, tree) in plan.iter().zip(&trees) {
        let around = planned.around.map(|around| (&plan[around], trees[around].mount.as_fd()));
        match attach(planned, tree, around, root.as_fd()) {
            // Its program has exited: there is nothing to mask. No mount is below a socket.
            Err(failure) if planned.mount == Mount::HideSocket && failure.is_not_found() => {}
            attached => {
                attached?;
                mounted.push((planned, tree));
            }
        }
    }
    // Only now, since mount points had to be created in them.
    let has_mount_points =
        |planned: &PlannedMount| matches!(planned.mount, Mount::HideDirectory | Mount::Home);
    for (planned, tree) in mounted.iter().filter(|(planned, _)| has_mount_points(planned)) {
        set_attributes(tree.mount.as_fd(), Attributes { is_recursive: false, ..READ_ONLY })
            .map_err(mount_failure(planned))?;
    }
    verify_mounts(&mounted, &before)
}

#[expect(unsafe_code, reason = "there is no safe wrapper for unshare")]
fn enter_new_namespace() -> Result<(), MountFailure> {
    // SAFETY: this flag neither shares nor unshares the descriptor table.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(namespace_failure)
}

fn namespace_failure(error: impl Into<io::Error>) -> MountFailure {
    MountFailure::Namespace(error.into())
}

fn mount_failure<E: Into<io::Error>>(planned: &PlannedMount) -> impl FnOnce(E) -> MountFailure {
    move |error| MountFailure::Mount { path: planned.at.clone(), error: error.into() }
}

fn clone_trees(plan: &[PlannedMount], roots: &[WritableRoot]) -> Result<Vec<MountTree>, MountFailure> {
    let with_children: HashSet<usize> = plan.iter().filter_map(|planned| planned.around).collect();
    let empty = new_tmpfs("0555").map_err(namespace_failure)?;
    let null = open_without_links(Path::new("/dev/null")).map_err(namespace_failure)?;
    let clone = |(index, planned): (usize, &PlannedMount)| {
        let own = |mount: io::Result<OwnedFd>| Ok(MountTree { mount: mount?, source: None });
        let tree = match planned.mount {
            Mount::Write | Mount::WriteFrom(_) => clone_path(&planned.source),
            Mount::Read | Mount::ReadFrom(_) => clone_path(&planned.source).and_then(|tree| {
                set_attributes(tree.mount.as_fd(), READ_ONLY)?;
                Ok(tree)
            }),
            Mount::HideSocket | Mount::HideFile => own(clone_tree(&null).and_then(|tree| {
                set_attributes(tree.as_fd(), Attributes { set: READ_ONLY.set | NO_DEVICES, ..READ_ONLY })?;
                Ok(tree)
            })),
            Mount::Private | Mount::Home => own(new_tmpfs("0755")),
            Mount::HideDirectory if with_children.contains(&index) => own(new_tmpfs("0755")),
            // A clone of one shared empty file system is cheaper than a new one.
            Mount::HideDirectory => own(clone_tree(&empty)),
        };
        let tree = tree.map_err(mount_failure(planned))?;
        // Otherwise the sweep would examine another directory than the one the agent wrote to.
        if tree.source.is_some()
            && !WritableRoot::allows(roots, &planned.source, &tree.mount).map_err(mount_failure(planned))?
        {
            return Err(MountFailure::Replaced { path: planned.at.clone() });
        }
        Ok(tree)
    };
    plan.iter().enumerate().map(clone).collect()
}

fn clone_path(path: &Path) -> io::Result<MountTree> {
    let opened = open_without_links(path)?;
    let found = fstat(&opened)?;
    let source = MountSource {
        mount_id: mount_id(&opened)?,
        identity: (found.st_dev, found.st_ino),
        is_directory: FileType::from_raw_mode(found.st_mode).is_dir(),
    };
    Ok(MountTree { mount: clone_tree(&opened)?, source: Some(source) })
}

/// Clones an open directory with all mounts below it.
fn clone_tree(opened: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(opened, "", flags)?)
}

/// Creates an empty tmpfs.
fn new_tmpfs(mode: &str) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "mode", mode)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Attaches a tree to its mount point. `around` is the planned mount that contains the mount point.
fn attach(
    planned: &PlannedMount,
    tree: &MountTree,
    around: Option<(&PlannedMount, BorrowedFd<'_>)>,
    root: BorrowedFd<'_>,
) -> Result<(), MountFailure> {
    let (above, directory) = around.map_or((Path::new("/"), root), |(above, mount)| (&above.at, mount));
    let below = planned.at.strip_prefix(above).unwrap_or(&planned.at);
    let is_created = around.is_some_and(|(above, _)| above.differs_from_machine());
    let mount_point = match &tree.source {
        Some(source) if is_created => create_mount_point(directory, below, source.is_directory),
        None if is_created && planned.mount == Mount::Home => create_mount_point(directory, below, true),
        _ => open_beneath(directory, below),
    };
    let mount_point = mount_point.map_err(mount_failure(planned))?;
    if let Some(source) = tree.source.as_ref().filter(|_| !is_created && planned.source == planned.at) {
        let found = fstat(&mount_point).map_err(mount_failure(planned))?;
        if (found.st_dev, found.st_ino) != source.identity {
            return Err(MountFailure::Replaced { path: planned.at.clone() });
        }
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&tree.mount, "", &mount_point, "", flags).map_err(mount_failure(planned))
}

/// Creates a mount point in a directory of the run, unless it exists.
fn create_mount_point(directory: BorrowedFd<'_>, below: &Path, is_directory: bool) -> io::Result<OwnedFd> {
    let (parents, name) = (below.parent().unwrap_or(Path::new("")), below.file_name().unwrap_or_default());
    let mut directory = directory.try_clone_to_owned()?;
    for part in parents.components() {
        create_directory(&directory, part.as_os_str())?;
        directory = open_beneath(&directory, Path::new(part.as_os_str()))?;
    }
    if is_directory {
        create_directory(&directory, name)?;
    } else {
        ignore_existing(mknodat(&directory, name, FileType::RegularFile, Mode::RUSR, 0))?;
    }
    open_beneath(&directory, Path::new(name))
}

fn create_directory(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    ignore_existing(mkdirat(directory, name, Mode::from_raw_mode(0o755)))
}

fn ignore_existing(created: rustix::io::Result<()>) -> io::Result<()> {
    match created {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Compares the finished namespace with the plan: by the kernel's list of mounts, and by the mount that each path leads to.
fn verify_mounts(mounted: &[(&PlannedMount, &MountTree)], before: &[MountEntry]) -> Result<(), MountFailure> {
    let mut expected = Vec::with_capacity(mounted.len());
    for (planned, tree) in mounted {
        let id = mount_id(&tree.mount).map_err(mount_failure(planned))?;
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
    let after = read_mounts().map_err(namespace_failure)?;
    compare_mounts(&expected, before, &after).map_err(MountFailure::Different)?;
    for ((planned, _), mount) in mounted.iter().zip(&expected) {
        let found = open_without_links(&planned.at).and_then(|opened| mount_id(&opened));
        if found.map_err(mount_failure(planned))? != mount.id {
            return Err(MountFailure::Replaced { path: planned.at.clone() });
        }
    }
    Ok(())
}

fn mount_id(opened: &OwnedFd) -> io::Result<u64> {
    let found = statx(opened, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    // Since Linux 5.8, older than the mount syscalls above.
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(found.stx_mnt_id)
}

/// Attributes of a mount.
#[derive(Clone, Copy)]
struct Attributes {
    set: u64,
    propagation: u64,
    /// Is true if they apply to all mounts below it, too.
    is_recursive: bool,
}

const PRIVATE_PROPAGATION: Attributes =
    Attributes { set: 0, propagation: libc::MS_PRIVATE, is_recursive: true };
const READ_ONLY: Attributes = Attributes { set: libc::MOUNT_ATTR_RDONLY, propagation: 0, is_recursive: true };
const NO_DEVICES: u64 = libc::MOUNT_ATTR_NODEV;

#[expect(unsafe_code, reason = "there is no safe wrapper for mount_setattr")]
fn set_attributes(tree: BorrowedFd<'_>, attributes: Attributes) -> io::Result<()> {
    let Attributes { set, propagation, is_recursive } = attributes;
    let attributes = libc::mount_attr { attr_set: set, attr_clr: 0, propagation, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if is_recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is NUL-terminated and the size is that of the structure; the kernel only reads both.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The program of a socket may exit at any time. A hidden file that is gone could be created again.
    #[test]
    fn vanished_socket_is_not_masked() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().canonicalize().unwrap().join("gone.sock");
        // A mount namespace belongs to a thread.
        let mount = |mount: Mount| {
            let plan = [PlannedMount { source: at.clone(), at: at.clone(), mount, around: None }];
            std::thread::scope(|scope| scope.spawn(|| create_mounts(&plan, &[])).join().unwrap())
        };
        let failure = mount(Mount::HideFile).unwrap_err();
        assert!(failure.is_not_found(), "{failure}");
        let created = mount(Mount::HideSocket);
        assert!(created.as_ref().map_or_else(|failure| !failure.is_not_found(), |()| true), "{created:?}");
    }
}
