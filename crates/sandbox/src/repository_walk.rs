//! Finds the git repositories in a directory that an agent can write to.
//!
//! Every directory is opened relative to the open root without following a link, so swapping a directory for a link has no effect. Git also
//! treats a directory with the right names in it as a repository, whatever its own name is; those are found, too.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::is_in_products;
use rustix::fs::{AtFlags, FileType, RawDir, fstat, statat};

use crate::beneath::{open_beneath, open_directory_beneath, open_without_links};
use crate::change_time::{ChangeTime, change_time};
use crate::unlock::UnlockedDirectory;

/// The maximum number of directories that are read.
pub(crate) const MAX_DIRECTORIES: usize = 50_000;

/// The reason why git treats a path as a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepositoryKind {
    /// An entry `.git`: a directory, a file that names a repository, or a link.
    Entry,
    /// A directory with the names of a repository in it.
    Bare,
    /// A directory in the `modules` of a repository.
    Module,
}

/// A repository that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundRepository {
    pub path: PathBuf,
    pub kind: RepositoryKind,
}

/// The directories that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SearchExtent {
    /// All except for packages and build products, as far as they are readable.
    Sources,
    /// All. Directories without permissions are unlocked while the result exists.
    Everything,
}

/// The repositories below a directory.
#[derive(Debug, Default)]
pub(crate) struct RepositoryWalk {
    pub repositories: Vec<FoundRepository>,
    /// Is true if there were too many directories, or one of this user could not be read.
    pub is_incomplete: bool,
    unlocked: Vec<UnlockedDirectory>,
    /// Device and inode of each unlocked directory, and its ctime before that.
    ctimes_before_unlock: Vec<((u64, u64), ChangeTime)>,
}

/// The role of a directory in the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectoryRole {
    Ordinary,
    /// A directory in the `modules` of a repository.
    Modules,
}

/// The names that make a directory a repository, or make git run commands in one.
const MARKERS: [&str; 7] = ["HEAD", "objects", "refs", "commondir", "config", "config.worktree", "hooks"];

/// The relevant names in a directory.
#[derive(Debug, Default)]
struct DirectoryNames {
    /// The kind of the entry `.git`, if there is one: true for a directory.
    git: Option<bool>,
    markers: Vec<&'static str>,
    directories: Vec<PathBuf>,
}

impl DirectoryNames {
    fn has(&self, marker: &str) -> bool {
        self.markers.contains(&marker)
    }

    fn is_bare_repository(&self) -> bool {
        self.has("HEAD") && (self.has("commondir") || (self.has("objects") && self.has("refs")))
    }

    /// Returns whether it is a repository in `modules`, or an incomplete one that git would complete.
    fn is_module(&self) -> bool {
        ["HEAD", "commondir", "config", "config.worktree", "hooks"].iter().any(|marker| self.has(marker))
    }
}

impl RepositoryWalk {
    /// Finds the repositories below a directory, including the directory itself, shallow ones first.
    pub fn below(root: &Path, extent: SearchExtent) -> Self {
        let mut walk = Self::default();
        let Ok(opened) = open_without_links(root) else { return walk };
        walk.search(&opened, root, DirectoryRole::Ordinary, extent, MAX_DIRECTORIES);
        walk
    }

    /// Finds the repositories in the `modules` of a repository.
    pub fn below_modules(modules: &Path, extent: SearchExtent) -> Self {
        let mut walk = Self::default();
        let Ok(opened) = open_without_links(modules) else { return walk };
        walk.search(&opened, modules, DirectoryRole::Modules, extent, MAX_DIRECTORIES);
        walk
    }

    fn search(
        &mut self,
        opened: &OwnedFd,
        root: &Path,
        role: DirectoryRole,
        extent: SearchExtent,
        mut budget: usize,
    ) {
        let mut queue = VecDeque::from([(PathBuf::new(), role)]);
        while let Some((relative, role)) = queue.pop_front() {
            if budget == 0 {
                self.is_incomplete = true;
                return;
            }
            budget -= 1;
            let names = match self.read_directory(opened, &relative, extent) {
                Ok(Some(names)) => names,
                Ok(None) => continue,
                Err(_) => {
                    self.is_incomplete = true;
                    continue;
                }
            };
            let mut found =
                |path: &Path, kind| self.repositories.push(FoundRepository { path: root.join(path), kind });
            if role == DirectoryRole::Modules {
                if names.is_module() {
                    found(&relative, RepositoryKind::Module);
                    queue.push_back((relative.join("modules"), DirectoryRole::Modules));
                } else {
                    queue.extend(
                        names.directories.iter().map(|name| (relative.join(name), DirectoryRole::Modules)),
                    );
                }
                continue;
            }
            if let Some(is_directory) = names.git {
                found(&relative.join(".git"), RepositoryKind::Entry);
                if is_directory {
                    queue.push_back((relative.join(".git/modules"), DirectoryRole::Modules));
                }
            }
            if names.is_bare_repository() {
                found(&relative, RepositoryKind::Bare);
                queue.push_back((relative.join("modules"), DirectoryRole::Modules));
            }
            let is_read = |name: &&PathBuf| extent == SearchExtent::Everything || !is_in_products(name);
            let below = names.directories.iter().filter(is_read);
            queue.extend(below.map(|name| (relative.join(name), DirectoryRole::Ordinary)));
        }
    }

    /// Returns the ctime of a file, not counting changes by this walk.
    pub fn change_time(&self, found: &Metadata) -> ChangeTime {
        let identity = (found.dev(), found.ino());
        let before = self.ctimes_before_unlock.iter().find(|(known, _)| *known == identity);
        before.map_or_else(|| change_time(found), |(_, changed)| *changed)
    }

    /// Reads a directory. Returns `None` if it is gone, is not a directory, or belongs to a user who denies access to the agent, too.
    fn read_directory(
        &mut self,
        root: &OwnedFd,
        relative: &Path,
        extent: SearchExtent,
    ) -> io::Result<Option<DirectoryNames>> {
        let opened = match open_directory_beneath(root, relative) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if extent == SearchExtent::Sources {
                    return Ok(None);
                }
                let locked = open_beneath(root, relative)?;
                let found = fstat(&locked)?;
                if found.st_uid != rustix::process::geteuid().as_raw() {
                    return Ok(None);
                }
                let changed = (found.st_ctime, i64::try_from(found.st_ctime_nsec).unwrap_or_default());
                self.ctimes_before_unlock.push(((found.st_dev, found.st_ino), changed));
                self.unlocked.push(UnlockedDirectory::grant(locked.as_fd()));
                open_directory_beneath(root, relative)
            }
            opened => opened,
        };
        let opened = match opened {
            Err(error) if is_not_a_directory(&error) => return Ok(None),
            opened => opened?,
        };
        read_names(&opened).map(Some)
    }
}

fn is_not_a_directory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP | libc::EXDEV))
}

fn read_names(directory: &OwnedFd) -> io::Result<DirectoryNames> {
    let mut names = DirectoryNames::default();
    let mut buffer = [MaybeUninit::uninit(); 16 << 10];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        let kind = match entry.file_type() {
            FileType::Unknown => statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode)),
            kind => kind,
        };
        let name = OsStr::from_bytes(name.to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if name == ".git" {
            names.git = Some(kind.is_dir());
            continue;
        }
        names.markers.extend(MARKERS.iter().find(|marker| name == **marker));
        if kind.is_dir() {
            names.directories.push(PathBuf::from(name));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn create(directories: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for name in directories {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        (directory, root)
    }

    fn sorted(root: &Path, walk: RepositoryWalk) -> Vec<(PathBuf, RepositoryKind)> {
        let relative = |path: PathBuf| path.strip_prefix(root).unwrap().to_owned();
        let mut found: Vec<_> =
            walk.repositories.into_iter().map(|found| (relative(found.path), found.kind)).collect();
        found.sort_by_key(|(path, _)| path.clone());
        found
    }

    #[test]
    fn repositories_of_every_kind_are_found() {
        let (_directory, root) = create(&[
            ".git/modules/libs/one/modules/two/hooks",
            ".git/modules/libs/one/hooks",
            ".git/evil/.git",
            "a/b/c/.git",
            "bare/objects",
            "bare/refs",
            "only/objects",
            "node_modules/x/.git",
        ]);
        fs::write(root.join("bare/HEAD"), "").unwrap();
        fs::write(root.join("a/.git"), "gitdir: elsewhere").unwrap();
        symlink(root.join("a/b"), root.join("link")).unwrap();
        let expected = [
            (".git", RepositoryKind::Entry),
            (".git/modules/libs/one", RepositoryKind::Module),
            (".git/modules/libs/one/modules/two", RepositoryKind::Module),
            ("a/.git", RepositoryKind::Entry),
            ("a/b/c/.git", RepositoryKind::Entry),
            ("bare", RepositoryKind::Bare),
        ];
        let mut expected = expected.map(|(path, kind)| (PathBuf::from(path), kind)).to_vec();
        assert_eq!(sorted(&root, RepositoryWalk::below(&root, SearchExtent::Sources)), expected);
        expected.push(("node_modules/x/.git".into(), RepositoryKind::Entry));
        assert_eq!(sorted(&root, RepositoryWalk::below(&root, SearchExtent::Everything)), expected);
    }

    #[test]
    fn too_many_directories_are_reported() {
        let (_directory, root) = create(&["a/b/.git", "c"]);
        let search = |budget| {
            let mut walk = RepositoryWalk::default();
            let opened = open_without_links(&root).unwrap();
            walk.search(&opened, &root, DirectoryRole::Ordinary, SearchExtent::Sources, budget);
            walk
        };
        assert!(search(3).is_incomplete);
        let walk = search(5);
        assert!(!walk.is_incomplete);
        assert_eq!(sorted(&root, walk), [("a/b/.git".into(), RepositoryKind::Entry)]);
    }
}
