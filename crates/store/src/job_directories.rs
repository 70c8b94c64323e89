//! Removes the spool directories of jobs that retention removed.
//!
//! Traverses by file descriptor with `O_NOFOLLOW`, so that a symbolic link that an agent left in its directory is
//! never followed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use model::JobId;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use crate::StoreError;

/// The maximum nesting of a directory.
const MAX_DEPTH: usize = 256;

/// Removes the directory of each job below `jobs`, with its contents, and returns the number of removed directories.
/// A missing directory is not an error. A directory that cannot be removed does not stop the others; the first such
/// error is returned.
pub fn remove_job_directories(jobs: &Path, ids: &[JobId]) -> Result<usize, StoreError> {
    let cannot =
        |path: &Path, errno: Errno| StoreError::CannotRemove { path: path.to_owned(), source: errno.into() };
    let parent = match open_directory(rustix::fs::CWD, jobs) {
        Ok(parent) => parent,
        Err(Errno::NOENT) => return Ok(0),
        Err(errno) => return Err(cannot(jobs, errno)),
    };
    let (mut removed, mut first_error) = (0, None);
    for id in ids {
        let name = id.to_string();
        match remove_tree(&parent, Path::new(&name), 0) {
            Ok(()) => removed += 1,
            Err(Errno::NOENT) => {}
            Err(errno) => {
                first_error.get_or_insert_with(|| cannot(&jobs.join(&name), errno));
            }
        }
    }
    first_error.map_or(Ok(removed), Err)
}

fn open_directory(parent: impl rustix::fd::AsFd, name: &Path) -> Result<rustix::fd::OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

fn remove_tree(parent: &impl rustix::fd::AsFd, name: &Path, depth: usize) -> Result<(), Errno> {
    if depth > MAX_DEPTH {
        return Err(Errno::LOOP);
    }
    let directory = match open_directory(parent, name) {
        Ok(directory) => directory,
        // A symbolic link in place of the directory: unlink it and keep its target.
        Err(Errno::LOOP | Errno::NOTDIR) => return unlinkat(parent, name, AtFlags::empty()),
        Err(errno) => return Err(errno),
    };
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let inner = entry.file_name().to_bytes();
        if inner == b"." || inner == b".." {
            continue;
        }
        let inner = Path::new(OsStr::from_bytes(inner));
        match entry.file_type() {
            FileType::Directory | FileType::Unknown => remove_tree(&directory, inner, depth + 1)?,
            _ => unlinkat(&directory, inner, AtFlags::empty())?,
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Timestamp;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn id(millis: u64) -> JobId {
        JobId::first_of(Timestamp::from_millis(millis))
    }

    #[test]
    fn job_directory_is_removed_with_contents() {
        let jobs = tempfile::tempdir().unwrap();
        let directory = |millis| jobs.path().join(id(millis).to_string());
        fs::create_dir_all(directory(1).join("private/deep")).unwrap();
        fs::write(directory(1).join("private/deep/file"), "x").unwrap();
        fs::create_dir(directory(2)).unwrap();
        assert_eq!(remove_job_directories(jobs.path(), &[id(1), id(3)]).unwrap(), 1);
        assert!(!directory(1).exists());
        assert!(directory(2).exists());
    }

    #[test]
    fn symlinks_are_not_followed() {
        let (jobs, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let treasure = outside.path().join("treasure");
        fs::write(&treasure, "x").unwrap();
        let directory = jobs.path().join(id(1).to_string());
        fs::create_dir(&directory).unwrap();
        symlink(outside.path(), directory.join("way-out")).unwrap();
        symlink(outside.path(), jobs.path().join(id(2).to_string())).unwrap();
        assert_eq!(remove_job_directories(jobs.path(), &[id(1), id(2)]).unwrap(), 2);
        assert!(treasure.exists());
        assert_eq!(fs::read_dir(jobs.path()).unwrap().count(), 0);
    }

    #[test]
    fn missing_jobs_directory_is_not_an_error() {
        assert_eq!(remove_job_directories(Path::new("/nonexistent/jobs"), &[id(1)]).unwrap(), 0);
    }
}
