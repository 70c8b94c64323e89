//! Finds the git repository around a directory, without running git.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::exact_path;
use serde::{Deserialize, Serialize};

use crate::config::RepositorySettings;
use crate::entry::to_path;
use crate::error::ChangesError;
use crate::files::read_small;

const LIMIT: u64 = 64 * 1024;

/// A git repository with a worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitRepository {
    #[serde(with = "exact_path")]
    worktree: PathBuf,
    #[serde(with = "exact_path")]
    git_dir: PathBuf,
    #[serde(with = "exact_path")]
    common_dir: PathBuf,
}

impl GitRepository {
    /// Finds the repository around a directory. Returns `None` outside of one, in a bare one, or inside of a `.git`
    /// directory. The worktree is always the directory that contains `.git`: a `core.worktree` that leads elsewhere is
    /// ignored, so that nothing is written there. Like git, does not cross the boundary of a file system.
    pub fn find(directory: &Path) -> Result<Option<Self>, ChangesError> {
        let directory = directory.canonicalize().map_err(ChangesError::file("open", directory))?;
        let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
        let start = device(&directory).map_err(ChangesError::file("open", &directory))?;
        if directory.components().any(|name| name.as_os_str().as_bytes().eq_ignore_ascii_case(b".git")) {
            return Ok(None);
        }
        for ancestor in directory.ancestors() {
            if device(ancestor).is_ok_and(|device| device != start) {
                return Ok(None);
            }
            if let Some(found) = Self::open(ancestor)? {
                return Ok(Some(found).filter(|found| !found.is_bare()));
            }
            if is_git_directory(ancestor, ancestor) {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Opens the repository of a private checkout. Returns `None` if its agent has replaced the git directory.
    pub fn find_checkout(directory: &Path) -> Result<Option<Self>, ChangesError> {
        let worktree = directory.canonicalize().map_err(ChangesError::file("open", directory))?;
        let git_dir = worktree.join(".git");
        let is_plain = fs::symlink_metadata(&git_dir).is_ok_and(|found| found.is_dir())
            && fs::symlink_metadata(git_dir.join("commondir")).is_err()
            && is_git_directory(&git_dir, &git_dir);
        Ok(is_plain.then(|| Self { worktree, common_dir: git_dir.clone(), git_dir }))
    }

    /// Opens the repository whose worktree is a directory. Returns `None` if the directory has no `.git`.
    pub(crate) fn open(worktree: &Path) -> Result<Option<Self>, ChangesError> {
        let dot_git = worktree.join(".git");
        let Ok(found) = fs::metadata(&dot_git) else { return Ok(None) };
        let is_file = found.is_file();
        let git_dir = if is_file { read_git_file(&dot_git) } else { Some(dot_git.clone()) };
        let opened = git_dir.and_then(|git_dir| {
            let common_dir = find_common_dir(&git_dir);
            let is_valid = is_git_directory(&git_dir, &common_dir);
            is_valid.then(|| Self { worktree: worktree.to_owned(), git_dir, common_dir })
        });
        if is_file && opened.is_none() {
            return Err(ChangesError::BrokenRepository { path: dot_git });
        }
        Ok(opened)
    }

    /// Returns the repository that a record names.
    pub(crate) fn from_parts(worktree: PathBuf, git_dir: PathBuf, common_dir: PathBuf) -> Self {
        Self { worktree, git_dir, common_dir }
    }

    /// Returns the root of the worktree.
    pub fn worktree(&self) -> &Path {
        &self.worktree
    }

    /// Returns the directories of its objects: its own, which all worktrees share, and those that it borrows itself.
    pub fn object_directories(&self) -> Vec<PathBuf> {
        let mut found = vec![self.common_dir.join("objects")];
        // Git follows five levels.
        let mut level = found.clone();
        for _ in 0..5 {
            let borrowed = level.iter().flat_map(|objects| read_alternates(objects));
            level = borrowed.filter(|path| !found.contains(path)).collect();
            found.extend(level.iter().cloned());
        }
        found
    }

    /// Returns the git directory of this worktree.
    pub fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    /// Returns the git directory that all worktrees share.
    pub fn common_dir(&self) -> &Path {
        &self.common_dir
    }

    /// Returns whether the repository is declared as bare. Git ignores that setting in linked worktrees.
    fn is_bare(&self) -> bool {
        let mut settings = RepositorySettings::default();
        settings.add_file(&self.git_dir.join("config"));
        settings.get_bool("core.bare") == Some(true)
    }
}

/// Reads `gitdir: PATH` from a `.git` file of a linked worktree or of a submodule.
fn read_git_file(path: &Path) -> Option<PathBuf> {
    let content = read_small(path, LIMIT)?;
    let target = to_path(content.strip_prefix(b"gitdir:")?.trim_ascii());
    path.parent()?.join(target).canonicalize().ok()
}

/// Reads the existing directories from which a directory borrows objects. Quoted paths are left out.
fn read_alternates(objects: &Path) -> Vec<PathBuf> {
    let content = read_small(&objects.join("info/alternates"), LIMIT).unwrap_or_default();
    let lines = content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let lines = lines.filter(|line| !line.starts_with(b"#") && !line.starts_with(b"\""));
    lines
        .filter_map(|line| objects.join(to_path(line)).canonicalize().ok())
        .filter(|path| path.is_dir())
        .collect()
}

fn find_common_dir(git_dir: &Path) -> PathBuf {
    let content = read_small(&git_dir.join("commondir"), LIMIT);
    let common_dir = content.map(|content| git_dir.join(to_path(content.trim_ascii())));
    common_dir.and_then(|path| path.canonicalize().ok()).unwrap_or_else(|| git_dir.to_owned())
}

fn is_git_directory(git_dir: &Path, common_dir: &Path) -> bool {
    git_dir.join("HEAD").symlink_metadata().is_ok()
        && common_dir.join("objects").is_dir()
        && common_dir.join("refs").is_dir()
}
