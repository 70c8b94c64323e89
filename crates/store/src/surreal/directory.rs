//! The directory of an embedded `SurrealDB`, with access for its user only.
//!
//! The engine creates files at any time, with the mode that the umask permits. The directory is therefore restricted
//! before the engine starts, and a default ACL restricts all new files in it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rustix::fs::XattrFlags;

/// The entries that the engine creates, in any order.
const ENGINE_ENTRIES: [&str; 5] = ["LOCK", "manifest", "sstables", "vlog", "wal"];

/// Creates the directory if it is missing and removes the access of other users.
pub fn create_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    restrict_to_owner(path)
}

/// Returns whether the directory has entries but none of the engine's. Its mode must not be changed then: it may be
/// `/tmp`.
pub fn is_foreign(path: &Path) -> io::Result<bool> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    let mut is_empty = true;
    for entry in entries {
        let name = entry?.file_name();
        if ENGINE_ENTRIES.iter().any(|file| name == *file) {
            return Ok(false);
        }
        is_empty = false;
    }
    Ok(!is_empty)
}

/// Removes the access of other users, also to files that are created later. Does not follow links.
fn restrict_to_owner(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        // An engine that is being closed removes its logs.
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
        set_default_acl(path);
        for entry in fs::read_dir(path)? {
            restrict_to_owner(&entry?.path())?;
        }
    }
    Ok(())
}

/// Sets the default ACL (acl(5)) of a directory, which takes precedence over the umask: new files, also in
/// subdirectories, are accessible for the user only. A file system without ACLs relies on the mode of the directory.
fn set_default_acl(directory: &Path) {
    let _ = rustix::fs::setxattr(directory, "system.posix_acl_default", &USER_ONLY_ACL, XattrFlags::empty());
}

/// The ACL in the format of the kernel (`linux/posix_acl_xattr.h`): version 2, then a tag, permissions and an unused
/// id per entry. The user (1) has rwx; the group (4) and others (32) have nothing.
const USER_ONLY_ACL: [u8; 28] = [
    2, 0, 0, 0, //
    1, 0, 7, 0, 255, 255, 255, 255, //
    4, 0, 0, 0, 255, 255, 255, 255, //
    32, 0, 0, 0, 255, 255, 255, 255,
];
