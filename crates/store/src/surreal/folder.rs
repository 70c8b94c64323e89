//! The folder of an embedded `SurrealDB`: for its user alone.
//!
//! The engine makes files for as long as it runs, with whatever mode the process gives to new ones. So the folder is shut before
//! it begins, and tells the system itself that what is made in it is for its user.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rustix::fs::XattrFlags;

/// What the engine makes in a folder, whichever of it comes first.
const FILES: [&str; 5] = ["LOCK", "manifest", "sstables", "vlog", "wal"];

/// Makes the folder when it is missing, and shuts it to others.
pub fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    shut_out_others(path)
}

/// Whether there is something in the folder, and nothing of the engine's. Its mode would be changed, and that may be `/tmp`.
pub fn is_foreign(path: &Path) -> io::Result<bool> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    let mut is_empty = true;
    for entry in entries {
        let name = entry?.file_name();
        if FILES.iter().any(|file| name == *file) {
            return Ok(false);
        }
        is_empty = false;
    }
    Ok(!is_empty)
}

/// Takes from others what they may do here, and with what is made here later. Follows no link.
fn shut_out_others(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        // An engine that is still closing removes its logs.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let wanted = match found.file_type() {
        kind if kind.is_dir() => 0o700,
        kind if kind.is_file() => 0o600,
        _ => return Ok(()),
    };
    if found.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, PermissionsExt::from_mode(wanted))?;
    }
    if found.is_dir() {
        keep_new_files_private(path);
        for entry in fs::read_dir(path)? {
            shut_out_others(&entry?.path())?;
        }
    }
    Ok(())
}

/// The default rights of a folder (acl(5)) come before the process's own mask: what is made in it, and in the folders in it, is for
/// the user alone. A file system that has none of them leaves it at the folder, which nobody else can enter.
fn keep_new_files_private(folder: &Path) {
    let _ = rustix::fs::setxattr(folder, "system.posix_acl_default", &USER_ALONE, XattrFlags::empty());
}

/// As the kernel reads it (`linux/posix_acl_xattr.h`): version 2, then a tag, what it may and an id that says nothing, each time.
/// The user (1) reads, writes and enters; the group (4) and others (32) do nothing.
const USER_ALONE: [u8; 28] = [
    2, 0, 0, 0, //
    1, 0, 7, 0, 255, 255, 255, 255, //
    4, 0, 0, 0, 255, 255, 255, 255, //
    32, 0, 0, 0, 255, 255, 255, 255,
];
