//! Inspects files of a worktree without following links, neither of the file nor of a directory above it.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The thing at a path.
#[derive(Debug)]
pub(crate) enum Found {
    Absent,
    /// Something other than a directory is in place of a directory above the path.
    Hidden {
        obstacle: PathBuf,
    },
    File(Metadata),
    Link(Metadata),
    Directory,
    /// A FIFO, socket or device.
    Other,
    Unreadable,
}

/// A worktree, with a cache of its directories. Live for one pass: the cache is never refreshed.
#[derive(Debug)]
pub(crate) struct WorktreeFiles<'a> {
    root: &'a Path,
    obstacles: HashMap<PathBuf, Option<PathBuf>>,
}

impl<'a> WorktreeFiles<'a> {
    pub(crate) fn new(root: &'a Path) -> Self {
        Self { root, obstacles: HashMap::new() }
    }

    /// Inspects a path relative to the worktree.
    pub(crate) fn inspect(&mut self, path: &Path) -> Found {
        if let Some(obstacle) = path.parent().and_then(|parent| self.find_obstacle(parent)) {
            return Found::Hidden { obstacle };
        }
        match fs::symlink_metadata(self.root.join(path)) {
            Ok(found) if found.is_file() => Found::File(found),
            Ok(found) if found.is_symlink() => Found::Link(found),
            Ok(found) if found.is_dir() => Found::Directory,
            Ok(_) => Found::Other,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Found::Absent
            }
            Err(_) => Found::Unreadable,
        }
    }

    /// Returns the topmost thing other than a directory in place of a directory.
    fn find_obstacle(&mut self, directory: &Path) -> Option<PathBuf> {
        if directory.as_os_str().is_empty() {
            return None;
        }
        if let Some(known) = self.obstacles.get(directory) {
            return known.clone();
        }
        let above = directory.parent().and_then(|parent| self.find_obstacle(parent));
        let found = above.or_else(|| {
            let found = fs::symlink_metadata(self.root.join(directory)).ok()?;
            (!found.is_dir()).then(|| directory.to_owned())
        });
        self.obstacles.insert(directory.to_owned(), found.clone());
        found
    }
}

/// Returns whether a part of a path is `.git`, in any case: file systems without case open the same directory.
pub(crate) fn is_inside_git_dir(path: &Path) -> bool {
    path.components().any(|name| name.as_os_str().eq_ignore_ascii_case(".git"))
}
