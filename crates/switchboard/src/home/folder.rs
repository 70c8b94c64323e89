//! Folders that nobody else can have prepared.
//!
//! Who can write to the state folder can make the daemon run programs; so one that others own or can write to is refused, and
//! not mended: what is already in it may be theirs.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fchmod};
use rustix::process::geteuid;

const PRIVATE: Mode = Mode::RWXU;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const ANYTHING_FOR_OTHERS: u32 = 0o077;

/// A folder of the user's, held open.
#[derive(Debug)]
pub struct OpenFolder {
    folder: File,
}

impl OpenFolder {
    /// A folder for the user alone (0700), made when it is missing.
    pub fn private(path: &Path) -> Result<Self, FolderError> {
        let open = Self::of_the_user(path)?;
        let cannot = |source| FolderError::Cannot { path: path.to_owned(), source };
        if open.folder.metadata().map_err(cannot)?.mode() & ANYTHING_FOR_OTHERS != 0 {
            fchmod(&open.folder, PRIVATE).map_err(|errno| cannot(errno.into()))?;
        }
        Ok(open)
    }

    /// A folder that the user owns and nobody else can write to, made when it is missing.
    pub fn of_the_user(path: &Path) -> Result<Self, FolderError> {
        let cannot = |source| FolderError::Cannot { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(PRIVATE.bits()).create(path).map_err(cannot)?;
        let flags = i32::try_from(OFlags::DIRECTORY.bits()).unwrap_or_default();
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(cannot)?;
        // Of the open folder, and not of its path: between two looks at a path it may become another.
        let metadata = folder.metadata().map_err(cannot)?;
        let (owner, you) = (metadata.uid(), geteuid().as_raw());
        if owner != you {
            return Err(FolderError::NotYours { path: path.to_owned(), owner, you });
        }
        if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(FolderError::WritableByOthers {
                path: path.to_owned(),
                mode: metadata.mode() & 0o7777,
            });
        }
        Ok(Self { folder })
    }

    /// The open folder.
    pub fn file(&self) -> &File {
        &self.folder
    }
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("cannot use directory `{}`", path.display())]
    Cannot { path: PathBuf, source: io::Error },
    #[error("directory `{}` belongs to user {owner}, but you are user {you}", path.display())]
    NotYours { path: PathBuf, owner: u32, you: u32 },
    #[error("directory `{}` is writable by other users (mode {mode:04o})", path.display())]
    WritableByOthers { path: PathBuf, mode: u32 },
}

impl FolderError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::Cannot { .. } => {
                "check that it can be created and read, or set SWITCHBOARD_HOME to another directory"
                    .to_owned()
            }
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
    fn a_missing_folder_is_made_for_the_user_alone_and_an_open_one_is_closed() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("a/b");
        OpenFolder::private(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        OpenFolder::of_the_user(&folder).unwrap();
        assert_eq!(mode(&folder), 0o755, "somebody may look into what is only looked at");
        OpenFolder::private(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused_and_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        for open in [0o770, 0o702, 0o1777] {
            fs::set_permissions(scratch.path(), Permissions::from_mode(open)).unwrap();
            let error = OpenFolder::private(scratch.path()).unwrap_err();
            assert!(matches!(error, FolderError::WritableByOthers { mode, .. } if mode == open), "{error}");
            assert_eq!(mode(scratch.path()), open);
        }
    }

    #[test]
    fn a_file_in_the_place_of_a_folder_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("state"), "").unwrap();
        assert!(matches!(
            OpenFolder::private(&scratch.path().join("state")),
            Err(FolderError::Cannot { .. })
        ));
    }
}
