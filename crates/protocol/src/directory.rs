//! Directories that only the user can write to.
//!
//! A user who can write to the state directory can make the daemon run programs. A directory that another user owns or can write to
//! is rejected, not repaired: its contents may already be planted.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use regular_file::{create_private_directory, name_culprit};
use rustix::fs::{Mode, OFlags, fchmod};
use rustix::process::geteuid;

const PRIVATE_MODE: Mode = Mode::RWXU;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const ACCESSIBLE_BY_OTHERS: u32 = 0o077;

/// An open directory of the user.
#[derive(Debug)]
pub struct PrivateDirectory {
    directory: File,
}

impl PrivateDirectory {
    /// Opens a directory with mode 0700. Creates it if it is missing and removes the permissions of other users.
    pub fn open_private(path: &Path) -> Result<Self, DirectoryError> {
        let open = Self::open_owned(path)?;
        let cannot = |source| DirectoryError::Unusable { path: path.to_owned(), source };
        if open.directory.metadata().map_err(cannot)?.mode() & ACCESSIBLE_BY_OTHERS != 0 {
            fchmod(&open.directory, PRIVATE_MODE).map_err(|errno| cannot(errno.into()))?;
        }
        Ok(open)
    }

    /// Opens a directory that only the user can write to. Creates it if it is missing; other users may read it.
    pub fn open_owned(path: &Path) -> Result<Self, DirectoryError> {
        let cannot = |source| DirectoryError::Unusable { path: path.to_owned(), source };
        create_private_directory(path).map_err(cannot)?;
        let directory = open_directory(path).map_err(cannot)?;
        // From the descriptor, not the path, which may point to another directory by now (TOCTOU).
        let metadata = directory.metadata().map_err(cannot)?;
        let (owner, you) = (metadata.uid(), geteuid().as_raw());
        if owner != you {
            return Err(DirectoryError::NotYours { path: path.to_owned(), owner, you });
        }
        if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(DirectoryError::WritableByOthers {
                path: path.to_owned(),
                mode: metadata.mode() & 0o7777,
            });
        }
        Ok(Self { directory })
    }

    /// Returns the open directory.
    pub fn file(&self) -> &File {
        &self.directory
    }
}

/// Opens a directory for reading. `O_DIRECTORY` rejects anything else without blocking.
pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::DIRECTORY.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.map_err(|error| name_culprit(path, error))
}

/// An unusable directory.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be created, opened or inspected.
    #[error("cannot use directory `{}`", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another user owns it.
    #[error("directory `{}` belongs to user {owner}, but you are user {you}", path.display())]
    NotYours {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        you: u32,
    },
    /// Other users can write to it.
    #[error("directory `{}` is writable by other users (mode {mode:04o})", path.display())]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

impl DirectoryError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::Unusable { source, .. } => regular_file::path_hint(source).unwrap_or_else(|| {
                "check that it can be created and read, or set SWITCHBOARD_HOME to another directory"
                    .to_owned()
            }),
            Self::NotYours { .. } => "set SWITCHBOARD_HOME to a directory of your own".to_owned(),
            Self::WritableByOthers { path, .. } => format!(
                "inspect its contents, then run `chmod go-w '{}'`; or set SWITCHBOARD_HOME to another directory",
                path.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn creates_0700_dir_and_tightens_lax_mode() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("a/b");
        PrivateDirectory::open_private(&directory).unwrap();
        assert_eq!(mode(&directory), 0o700);
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        PrivateDirectory::open_owned(&directory).unwrap();
        assert_eq!(mode(&directory), 0o755, "readable directories are accepted where that is enough");
        PrivateDirectory::open_private(&directory).unwrap();
        assert_eq!(mode(&directory), 0o700);
    }

    #[test]
    fn directory_writable_by_others_is_rejected_unchanged() {
        let scratch = tempfile::tempdir().unwrap();
        for open in [0o770, 0o702, 0o1777] {
            fs::set_permissions(scratch.path(), Permissions::from_mode(open)).unwrap();
            let error = PrivateDirectory::open_private(scratch.path()).unwrap_err();
            assert!(
                matches!(error, DirectoryError::WritableByOthers { mode, .. } if mode == open),
                "{error}"
            );
            assert_eq!(mode(scratch.path()), open);
        }
    }

    #[test]
    fn file_in_place_of_directory_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("state"), "").unwrap();
        assert!(matches!(
            PrivateDirectory::open_private(&scratch.path().join("state")),
            Err(DirectoryError::Unusable { .. })
        ));
    }
}
