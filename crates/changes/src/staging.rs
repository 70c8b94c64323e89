//! Copies files of a worktree to a private directory, in which git hashes them.
//!
//! In the worktree itself, git could be led out of it: a link can replace a directory while git reads the files below. The
//! copies are made without following any link, and git finds the same attributes beside them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, OFlags, readlinkat, statat};

use crate::beneath::Root;
use crate::error::ChangesError;
use crate::files::remove_directory;
use crate::git::Git;

pub(crate) const ATTRIBUTES: &str = ".gitattributes";
/// The limit of git on such a file.
const ATTRIBUTES_LIMIT: u64 = 100 * 1024 * 1024;

/// Copies files and links, and the attributes of the directories above them. Leaves out any that is missing, over the limit,
/// unreadable or of another type.
pub(crate) fn stage_worktree(
    git: &Git,
    stage: &Path,
    paths: &BTreeSet<&Path>,
    size_limit: u64,
) -> Result<(), ChangesError> {
    remove_directory(stage)?;
    regular_file::create_private_directory(stage).map_err(ChangesError::file("create", stage))?;
    let root = Root::open(&git.worktree).map_err(ChangesError::file("open", &git.worktree))?;
    let directories: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    for directory in directories {
        let path = directory.join(ATTRIBUTES);
        if !paths.contains(path.as_path()) {
            copy_file(&root, stage, &path, ATTRIBUTES_LIMIT)?;
        }
    }
    for path in paths {
        git.check_time()?;
        copy_file(&root, stage, path, size_limit)?;
    }
    Ok(())
}

fn copy_file(root: &Root, stage: &Path, path: &Path, size_limit: u64) -> Result<(), ChangesError> {
    let Ok((directory, name)) = root.open_parent(path) else { return Ok(()) };
    let Ok(found) = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
    let copy = stage.join(path);
    let create_parent = || match copy.parent() {
        Some(parent) => fs::create_dir_all(parent),
        None => Ok(()),
    };
    let copied = match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => {
            let Ok(target) = readlinkat(&directory, name, Vec::new()) else { return Ok(()) };
            create_parent().and_then(|()| symlink(OsStr::from_bytes(target.as_bytes()), &copy))
        }
        FileType::RegularFile => {
            let opened = regular_file::open_regular_at(&directory, Path::new(name), OFlags::RDONLY);
            let Ok(file) = opened else { return Ok(()) };
            create_parent().and_then(|()| copy_content(&file, &copy, found.st_mode, size_limit))
        }
        _ => return Ok(()),
    };
    copied.map_err(ChangesError::file("write", &copy))
}

fn copy_content(file: &File, copy: &Path, mode: u32, size_limit: u64) -> io::Result<()> {
    let mut options = File::options();
    let mut copied = options.write(true).create_new(true).mode(0o600 | (mode & 0o100)).open(copy)?;
    // One that grew since its size was checked is left out.
    if io::copy(&mut file.take(size_limit + 1), &mut copied)? > size_limit {
        fs::remove_file(copy)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::git::{GitProgram, GitSession};

    fn stage(root: &Path, paths: &[&str]) -> PathBuf {
        let program = GitProgram { program: "git".into(), path: "/nonexistent".into() };
        let git = Git {
            git_dir: root.join("git"),
            worktree: root.join("work"),
            user_objects: root.join("objects"),
            id_length: 40,
            session: GitSession::start(program, Duration::from_mins(1)),
        };
        let stage = root.join("stage");
        stage_worktree(&git, &stage, &paths.iter().map(Path::new).collect(), 4).unwrap();
        stage
    }

    #[test]
    fn file_behind_link_is_not_staged() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for name in ["work/inside", "outside"] {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("key"), name.get(..4).unwrap()).unwrap();
        }
        symlink("../outside", root.join("work/link")).unwrap();
        let stage = stage(root, &["inside/key", "link", "link/key"]);
        assert_eq!(fs::read_to_string(stage.join("inside/key")).unwrap(), "work");
        assert_eq!(fs::read_link(stage.join("link")).unwrap(), Path::new("../outside"));
    }

    #[test]
    fn attributes_of_parent_directories_are_staged() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("work/a/b")).unwrap();
        fs::create_dir(root.join("work/c")).unwrap();
        for name in [".gitattributes", "a/.gitattributes", "a/b/file", "c/.gitattributes"] {
            fs::write(root.join("work").join(name), "*").unwrap();
        }
        let stage = stage(root, &["a/b/file"]);
        assert!(stage.join(".gitattributes").exists() && stage.join("a/.gitattributes").exists());
        assert!(!stage.join("c").exists());
    }

    #[test]
    fn file_over_the_limit_is_not_staged() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("work")).unwrap();
        for (name, content) in [("small", "1234"), ("large", "12345")] {
            fs::write(directory.path().join("work").join(name), content).unwrap();
        }
        let stage = stage(directory.path(), &["small", "large"]);
        assert!(stage.join("small").exists() && !stage.join("large").exists());
    }
}
