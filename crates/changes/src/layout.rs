//! Names the files in the directory of a record.

use std::fs;
use std::path::{Path, PathBuf};

/// The directory of a record.
#[derive(Debug, Clone)]
pub(crate) struct RecordLayout {
    pub(crate) directory: PathBuf,
}

impl RecordLayout {
    fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.at("lock")
    }

    /// The private git directory.
    pub(crate) fn git_dir(&self) -> PathBuf {
        self.at("git")
    }

    /// The copy of the index of the user, as it was when the job started.
    pub(crate) fn user_index(&self) -> PathBuf {
        self.at("user.index")
    }

    /// The files before the job that differ from the index of the user.
    pub(crate) fn before_index(&self) -> PathBuf {
        self.at("before.index")
    }

    /// The files after the job that differ from the index of the user.
    pub(crate) fn after_index(&self) -> PathBuf {
        self.at("after.index")
    }

    /// The snapshot before. Its presence means that the snapshot is complete.
    pub(crate) fn before(&self) -> PathBuf {
        self.at("begin.json")
    }

    /// The result. Its presence means that the snapshot after is complete.
    pub(crate) fn changes(&self) -> PathBuf {
        self.at("changes.json")
    }

    /// Marks a record that needs no further snapshot.
    pub(crate) fn sealed(&self) -> PathBuf {
        self.at("sealed")
    }

    pub(crate) fn patch(&self) -> PathBuf {
        self.at("changes.patch")
    }

    /// A directory for temporary files of a step. Each process has its own: the git of a killed one may still write into its directory.
    pub(crate) fn scratch(&self, step: &str) -> PathBuf {
        self.at(&format!("scratch-{}", std::process::id())).join(step)
    }

    /// Removes the temporary files of all processes, as far as no git writes there at the moment.
    pub(crate) fn remove_scratch(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("scratch-") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// The names of temporary files in the worktree.
    pub(crate) fn restore_journal(&self) -> PathBuf {
        self.at("restore.json")
    }

    /// Returns the path of the record relative to a worktree, if the record is inside of it.
    pub(crate) fn path_in(&self, worktree: &Path) -> Option<PathBuf> {
        let directory = self.directory.canonicalize().ok()?;
        directory.strip_prefix(worktree).map(Path::to_owned).ok()
    }
}
