//! Finds the git repositories in a directory that an agent writes to.
//!
//! Every directory is opened relative to the open root without following a link, so a directory that is swapped for a link leads nowhere
//! else. Git also takes a directory with the right names in it for a repository, whatever its own name is; those are found too.

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

use crate::beneath::{list_beneath, open_beneath, open_without_links};
use crate::quarantine::{ChangeTime, Permission, change_time};

/// How many directories are read at most.
pub(crate) const MAX_DIRECTORIES: usize = 50_000;

/// How git comes to take a path for a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepositoryKind {
    /// An entry `.git`: a directory, a file that names one, or a link.
    Entry,
    /// A directory that is a repository by the names in it.
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

/// Which directories are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All but those of packages and build products, with the rights that they have.
    Sources,
    /// All. Directories whose rights an agent may have taken away are unlocked for as long as the result exists.
    Everything,
}

/// The repositories below a directory.
#[derive(Debug, Default)]
pub(crate) struct RepositoryWalk {
    pub repositories: Vec<FoundRepository>,
    /// Whether there were too many directories, or one of the user's could not be read.
    pub is_incomplete: bool,
    unlocked: Vec<Permission>,
    /// Device and inode of each directory that was unlocked, and when it was last changed before that.
    changed_before: Vec<((u64, u64), ChangeTime)>,
}

/// The kind of a directory of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Ordinary,
    /// A directory in the `modules` of a repository.
    Modules,
}

/// The names by which git takes a directory for a repository, or runs commands in one.
const MARKS: [&str; 7] = ["HEAD", "objects", "refs", "commondir", "config", "config.worktree", "hooks"];

/// The names in a directory that matter.
#[derive(Debug, Default)]
struct Names {
    /// The entry `.git`, and whether that is a directory.
    git: Option<bool>,
    marks: Vec<&'static str>,
    directories: Vec<PathBuf>,
}

impl Names {
    fn has(&self, mark: &str) -> bool {
        self.marks.contains(&mark)
    }

    fn is_bare_repository(&self) -> bool {
        self.has("HEAD") && (self.has("commondir") || (self.has("objects") && self.has("refs")))
    }

    /// Whether it is a repository in `modules`, or the start of one that git would complete.
    fn is_module(&self) -> bool {
        ["HEAD", "commondir", "config", "config.worktree", "hooks"].iter().any(|mark| self.has(mark))
    }
}

impl RepositoryWalk {
    /// Looks for repositories below a directory, itself included, shallow ones first.
    pub fn below(root: &Path, extent: Extent) -> Self {
        let mut walk = Self::default();
        let Ok(opened) = open_without_links(root) else { return walk };
        walk.search(&opened, root, Place::Ordinary, extent, MAX_DIRECTORIES);
        walk
    }

    /// Looks for repositories in the `modules` of a repository.
    pub fn of_modules(modules: &Path, extent: Extent) -> Self {
        let mut walk = Self::default();
        let Ok(opened) = open_without_links(modules) else { return walk };
        walk.search(&opened, modules, Place::Modules, extent, MAX_DIRECTORIES);
        walk
    }

    fn search(&mut self, opened: &OwnedFd, root: &Path, place: Place, extent: Extent, mut budget: usize) {
        let mut queue = VecDeque::from([(PathBuf::new(), place)]);
        while let Some((relative, place)) = queue.pop_front() {
            if budget == 0 {
                self.is_incomplete = true;
                return;
            }
            budget -= 1;
            let names = match self.read(opened, &relative, extent) {
                Ok(Some(names)) => names,
                Ok(None) => continue,
                Err(_) => {
                    self.is_incomplete = true;
                    continue;
                }
            };
            let mut found =
                |path: &Path, kind| self.repositories.push(FoundRepository { path: root.join(path), kind });
            if place == Place::Modules {
                if names.is_module() {
                    found(&relative, RepositoryKind::Module);
                    queue.push_back((relative.join("modules"), Place::Modules));
                } else {
                    queue.extend(names.directories.iter().map(|name| (relative.join(name), Place::Modules)));
                }
                continue;
            }
            if let Some(is_directory) = names.git {
                found(&relative.join(".git"), RepositoryKind::Entry);
                if is_directory {
                    queue.push_back((relative.join(".git/modules"), Place::Modules));
                }
            }
            if names.is_bare_repository() {
                found(&relative, RepositoryKind::Bare);
                queue.push_back((relative.join("modules"), Place::Modules));
            }
            let is_read = |name: &&PathBuf| extent == Extent::Everything || !is_in_products(name);
            let below = names.directories.iter().filter(is_read);
            queue.extend(below.map(|name| (relative.join(name), Place::Ordinary)));
        }
    }

    /// Returns when a path was last changed, not by this walk itself.
    pub fn change_time(&self, found: &Metadata) -> ChangeTime {
        let identity = (found.dev(), found.ino());
        let before = self.changed_before.iter().find(|(known, _)| *known == identity);
        before.map_or_else(|| change_time(found), |(_, changed)| *changed)
    }

    /// Reads a directory; none when it has gone, is none, or belongs to somebody who keeps it from the agent too.
    fn read(&mut self, root: &OwnedFd, relative: &Path, extent: Extent) -> io::Result<Option<Names>> {
        let opened = match list_beneath(root, relative) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if extent == Extent::Sources {
                    return Ok(None);
                }
                let locked = open_beneath(root, relative)?;
                let found = fstat(&locked)?;
                if found.st_uid != rustix::process::geteuid().as_raw() {
                    return Ok(None);
                }
                let changed = (found.st_ctime, i64::try_from(found.st_ctime_nsec).unwrap_or_default());
                self.changed_before.push(((found.st_dev, found.st_ino), changed));
                self.unlocked.push(Permission::grant(locked.as_fd()));
                list_beneath(root, relative)
            }
            opened => opened,
        };
        let opened = match opened {
            Err(error) if is_no_directory(&error) => return Ok(None),
            opened => opened?,
        };
        read_names(&opened).map(Some)
    }
}

fn is_no_directory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP | libc::EXDEV))
}

fn read_names(directory: &OwnedFd) -> io::Result<Names> {
    let mut names = Names::default();
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
        names.marks.extend(MARKS.iter().find(|mark| name == **mark));
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

    fn stage(directories: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for name in directories {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        (directory, root)
    }

    fn found(root: &Path, walk: RepositoryWalk) -> Vec<(PathBuf, RepositoryKind)> {
        let relative = |path: PathBuf| path.strip_prefix(root).unwrap().to_owned();
        let mut found: Vec<_> =
            walk.repositories.into_iter().map(|found| (relative(found.path), found.kind)).collect();
        found.sort_by_key(|(path, _)| path.clone());
        found
    }

    #[test]
    fn repositories_of_every_kind_are_found() {
        let (_directory, root) = stage(&[
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
        assert_eq!(found(&root, RepositoryWalk::below(&root, Extent::Sources)), expected);
        expected.push(("node_modules/x/.git".into(), RepositoryKind::Entry));
        assert_eq!(found(&root, RepositoryWalk::below(&root, Extent::Everything)), expected);
    }

    #[test]
    fn too_many_directories_are_reported() {
        let (_directory, root) = stage(&["a/b/.git", "c"]);
        let search = |budget| {
            let mut walk = RepositoryWalk::default();
            let opened = open_without_links(&root).unwrap();
            walk.search(&opened, &root, Place::Ordinary, Extent::Sources, budget);
            walk
        };
        assert!(search(3).is_incomplete);
        let walk = search(5);
        assert!(!walk.is_incomplete);
        assert_eq!(found(&root, walk), [("a/b/.git".into(), RepositoryKind::Entry)]);
    }
}
