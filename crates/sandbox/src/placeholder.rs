//! Something harmless where a protected path is missing, for as long as a run lasts, so that nothing else can be made there.
//!
//! A mount needs something to be mounted on, and what is missing in a folder that can be written can otherwise be made. A
//! placeholder is known by its looks (rights and content), so that one which a killed supervisor has left is taken away by
//! the next run in the same folder. Several runs may share one: each holds a lock on it, and the last takes it away.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::ProtectedKind;
use rustix::fs::{FlockOperation, flock};

/// Rights that nobody gives an empty folder or a file of these contents by hand.
const FOLDER: u32 = 0o500;
const FILE: u32 = 0o400;

/// The placeholders of one run, which go with this value.
#[derive(Debug, Default)]
pub struct Placeholders {
    held: Vec<(PathBuf, File)>,
}

/// What stands at a path after it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stands {
    /// Something, a placeholder perhaps.
    Something,
    /// Nothing, and nobody of this user's rights can make anything there.
    NothingCan,
}

impl Placeholders {
    /// Makes sure that something stands at the path.
    pub(crate) fn stand(&mut self, path: &Path, kind: ProtectedKind) -> io::Result<Stands> {
        // A run that ends at the same moment may take its placeholder away between two steps.
        for _ in 0..100 {
            match make(path, kind) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                    ) =>
                {
                    return Ok(Stands::NothingCan);
                }
                Err(error) => return Err(error),
            }
            if !is_placeholder(path) || self.hold(path)? {
                return Ok(Stands::Something);
            }
        }
        Err(io::Error::other(format!("`{}` comes and goes", path.display())))
    }

    /// True: the path is the very thing that is locked now.
    fn hold(&mut self, path: &Path) -> io::Result<bool> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        flock(&file, FlockOperation::LockShared)?;
        let (held, there) = (file.metadata()?, path.symlink_metadata());
        let same = there.is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino()));
        if same {
            self.held.push((path.to_owned(), file));
        }
        Ok(same)
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        // What lies deeper first.
        for (path, file) in self.held.drain(..).rev() {
            let last = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if last && is_placeholder(&path) {
                let is_folder = file.metadata().is_ok_and(|file| file.is_dir());
                let _ = if is_folder { fs::remove_dir(&path) } else { fs::remove_file(&path) };
            }
        }
    }
}

fn make(path: &Path, kind: ProtectedKind) -> io::Result<()> {
    if kind == ProtectedKind::Folder {
        return DirBuilder::new().mode(FOLDER).create(path);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE).open(path)?;
    file.write_all(content(path).as_bytes())
}

/// What says nothing to the program that reads it.
fn content(path: &Path) -> &'static str {
    match path.file_name().and_then(|name| name.to_str()) {
        Some(".mcp.json") => "{\"mcpServers\":{}}\n",
        Some("settings.json" | "settings.local.json" | ".claude.json" | "hooks.json") => "{}\n",
        // The common folder of a repository is the repository.
        Some("commondir") => ".\n",
        _ => "",
    }
}

pub(crate) fn is_placeholder(path: &Path) -> bool {
    let Ok(found) = path.symlink_metadata() else { return false };
    if found.is_dir() {
        return found.mode() & 0o7777 == FOLDER
            && fs::read_dir(path).is_ok_and(|mut list| list.next().is_none());
    }
    found.is_file()
        && found.mode() & 0o7777 == FILE
        && found.len() == content(path).len() as u64
        && fs::read(path).is_ok_and(|bytes| bytes == content(path).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_goes_with_the_last_who_needs_it() {
        let folder = tempfile::tempdir().unwrap();
        let (file, sub) = (folder.path().join(".mcp.json"), folder.path().join(".claude"));
        let mut one = Placeholders::default();
        let mut other = Placeholders::default();
        for holders in [&mut one, &mut other] {
            assert_eq!(holders.stand(&file, ProtectedKind::File).unwrap(), Stands::Something);
            assert_eq!(holders.stand(&sub, ProtectedKind::Folder).unwrap(), Stands::Something);
        }
        drop(one);
        assert!(file.exists() && sub.is_dir());
        drop(other);
        assert!(!file.exists() && !sub.exists());
    }

    #[test]
    fn what_was_there_before_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(".envrc");
        fs::write(&file, "").unwrap();
        let mut holders = Placeholders::default();
        holders.stand(&file, ProtectedKind::File).unwrap();
        drop(holders);
        assert!(file.exists());
    }

    #[test]
    fn what_a_killed_run_has_left_is_taken_away_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("commondir");
        make(&file, ProtectedKind::File).unwrap();
        let mut holders = Placeholders::default();
        holders.stand(&file, ProtectedKind::File).unwrap();
        drop(holders);
        assert!(!file.exists());
    }
}
