//! Recognizes a file that has not changed since it was read.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// The age from which a time of change is unique: two changes within one tick of the kernel's clock may have the same time, which
/// some file systems store in steps of two seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// The identity and the times of a file. Equal stamps mean equal content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStamp(Option<Identity>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    /// No program can set this time, so it tells a change even if the others were restored.
    changed: (i64, i64),
}

impl FileStamp {
    /// Returns the stamp of a file, or of its absence. Returns `None` if the file was changed just now, or cannot be inspected: its
    /// content must then be read again.
    pub fn of_settled(path: &Path) -> Option<Self> {
        let file = match fs::metadata(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Self(None)),
            Err(_) => return None,
        };
        let changed_at =
            Duration::new(u64::try_from(file.ctime()).ok()?, u32::try_from(file.ctime_nsec()).ok()?);
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed_at).ok()?;
        (age >= SETTLED_AFTER).then(|| {
            Self(Some(Identity {
                device: file.dev(),
                inode: file.ino(),
                bytes: file.len(),
                modified: (file.mtime(), file.mtime_nsec()),
                changed: (file.ctime(), file.ctime_nsec()),
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_was_just_written_has_no_stamp() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        assert_eq!(FileStamp::of_settled(&path), Some(FileStamp(None)));
        fs::write(&path, "").unwrap();
        assert_eq!(FileStamp::of_settled(&path), None);
    }

    #[test]
    fn settled_files_differ_by_identity_and_equal_themselves() {
        let stamp = |path: &str| FileStamp::of_settled(Path::new(path)).unwrap();
        assert_eq!(stamp("/usr/bin/env"), stamp("/usr/bin/env"));
        assert_ne!(stamp("/usr/bin/env"), stamp("/bin/sh"));
    }
}
