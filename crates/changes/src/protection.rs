//! Keeps copies of protected files, and restores them byte for byte.
//!
//! Independent of git: ignore rules, attributes and the index, which an agent can change, have no effect. Follows no link.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use model::exact_path;
use regular_file::{create_private_directory, create_regular, open_regular_at};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, fchmod, mkdirat, openat, readlinkat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::ChangesError;
use crate::files::{read_json, write_json};

/// The limit for the copies.
const LIMIT: u64 = 256 * 1024 * 1024;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The copies of the protected files of a worktree.
#[derive(Debug, Clone)]
pub struct ProtectedFiles {
    directory: PathBuf,
}

/// The content of a protected file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Saved {
    /// A regular file with its permissions, in a copy with this number.
    File { mode: u32, copy: usize },
    /// A link with its target.
    Link {
        #[serde(with = "exact_path")]
        target: PathBuf,
    },
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    #[serde(with = "exact_path")]
    paths: Vec<PathBuf>,
    saved: Vec<Saved>,
}

impl ProtectedFiles {
    /// Returns the copies in a directory, which need not exist.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Copies the files of a worktree that match, unless that was done before.
    pub fn save(&self, worktree: &Path, matches: &dyn Fn(&Path) -> bool) -> Result<(), ChangesError> {
        if self.index().exists() {
            return Ok(());
        }
        let failed = ChangesError::file("copy", &self.directory);
        let _ = fs::remove_dir_all(&self.directory);
        create_private_directory(&self.directory).map_err(ChangesError::file("create", &self.directory))?;
        let index = self.copy_files(worktree, matches).map_err(failed)?;
        write_json(&self.index(), &index)
    }

    /// Restores the files that match and differ from their copies, and removes the others that match. Returns their paths. The replaced
    /// contents are kept beside the copies.
    pub fn restore(
        &self,
        worktree: &Path,
        matches: &dyn Fn(&Path) -> bool,
    ) -> Result<Vec<PathBuf>, ChangesError> {
        let Some(Index { paths, saved }) = read_json(&self.index())? else {
            return Err(ChangesError::NotStarted { directory: self.directory.clone() });
        };
        let saved: BTreeMap<PathBuf, Saved> = paths.into_iter().zip(saved).collect();
        self.restore_files(worktree, matches, &saved).map_err(ChangesError::file("restore", worktree))
    }

    fn index(&self) -> PathBuf {
        self.directory.join("index.json")
    }

    fn copy(&self, number: usize) -> PathBuf {
        self.directory.join(number.to_string())
    }

    fn copy_files(&self, worktree: &Path, matches: &dyn Fn(&Path) -> bool) -> io::Result<Index> {
        let (root, mut index, mut size) = (open_root(worktree)?, Index::default(), 0);
        for path in list_files(&root, matches)? {
            let (directory, name) = open_parent(&root, &path)?;
            let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let saved = match FileType::from_raw_mode(found.st_mode) {
                FileType::Symlink => Saved::Link { target: read_link(&directory, name)? },
                FileType::RegularFile => {
                    let mut file = open_regular_at(&directory, Path::new(name), OFlags::RDONLY)?;
                    let number = index.saved.len();
                    size += io::copy(
                        &mut Read::by_ref(&mut file).take(LIMIT - size + 1),
                        &mut create_regular(&self.copy(number))?,
                    )?;
                    if size > LIMIT {
                        return Err(io::Error::other("the protected files have more than 256 MiB"));
                    }
                    Saved::File { mode: found.st_mode & 0o777, copy: number }
                }
                _ => continue,
            };
            index.paths.push(path);
            index.saved.push(saved);
        }
        Ok(index)
    }

    fn restore_files(
        &self,
        worktree: &Path,
        matches: &dyn Fn(&Path) -> bool,
        saved: &BTreeMap<PathBuf, Saved>,
    ) -> io::Result<Vec<PathBuf>> {
        let (root, mut restored) = (open_root(worktree)?, BTreeSet::new());
        for path in list_files(&root, matches)?.into_iter().filter(|path| !saved.contains_key(path)) {
            let (directory, name) = open_parent(&root, &path)?;
            self.keep_replaced(&directory, name, restored.len());
            unlinkat(&directory, name, AtFlags::empty())?;
            restored.insert(path);
        }
        for (path, saved) in saved {
            let (directory, name) = create_parent(&root, path)?;
            if self.is_same(&directory, name, saved)? {
                continue;
            }
            self.keep_replaced(&directory, name, restored.len());
            remove(&directory, name)?;
            match saved {
                Saved::Link { target } => symlinkat(target, &directory, name)?,
                Saved::File { mode, copy } => {
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                    let file = openat(&directory, name, flags | OFlags::NOFOLLOW, Mode::RUSR | Mode::WUSR)?;
                    let mut file = File::from(file);
                    file.write_all(&fs::read(self.copy(*copy))?)?;
                    fchmod(&file, to_mode(*mode))?;
                }
            }
            restored.insert(path.clone());
        }
        Ok(restored.into_iter().collect())
    }

    /// Returns whether a file has the content and the permissions of its copy.
    fn is_same(&self, directory: &OwnedFd, name: &OsStr, saved: &Saved) -> io::Result<bool> {
        let found = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(false),
            found => found?,
        };
        match (FileType::from_raw_mode(found.st_mode), saved) {
            (FileType::Symlink, Saved::Link { target }) => Ok(&read_link(directory, name)? == target),
            (FileType::RegularFile, Saved::File { mode, copy }) if found.st_mode & 0o777 == *mode => {
                let copy = fs::read(self.copy(*copy))?;
                // One that the user cannot read has no other permissions than before, so it was unreadable then.
                let mut file = open_regular_at(directory, Path::new(name), OFlags::RDONLY)?;
                let mut content = Vec::new();
                Read::by_ref(&mut file).take(copy.len() as u64 + 1).read_to_end(&mut content)?;
                Ok(content == copy)
            }
            _ => Ok(false),
        }
    }

    /// Keeps the content of a file that is about to be replaced: it can be an edit of the user. A lost copy is no reason to stop.
    fn keep_replaced(&self, directory: &OwnedFd, name: &OsStr, number: usize) {
        let Ok(mut file) = open_regular_at(directory, Path::new(name), OFlags::RDONLY) else { return };
        let kept = self.directory.join("replaced");
        let mut label = format!("{number}-").into_bytes();
        label.extend_from_slice(name.as_bytes());
        let copied = create_private_directory(&kept)
            .and_then(|()| create_regular(&kept.join(OsStr::from_bytes(&label))))
            .and_then(|mut copy| io::copy(&mut Read::by_ref(&mut file).take(LIMIT), &mut copy));
        let _ = copied;
    }
}

/// Returns the files of a worktree that match, ignored ones included.
pub fn find_files(worktree: &Path, matches: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>, ChangesError> {
    let found = open_root(worktree).and_then(|root| list_files(&root, matches));
    found.map_err(ChangesError::file("read", worktree))
}

/// Converts permission bits to the type of the system.
#[allow(clippy::useless_conversion, reason = "the type has 16 bits on macOS")]
fn to_mode(mode: u32) -> Mode {
    Mode::from_bits_truncate((mode & 0o777).try_into().unwrap_or(0o600))
}

fn open_root(worktree: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, worktree, DIRECTORY, Mode::empty())?)
}

/// Opens a directory. The agent can have removed the permissions of the user.
fn open_directory(above: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    match openat(above, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            chmodat(above, name, Mode::RWXU, AtFlags::empty())?;
            openat(above, name, DIRECTORY, Mode::empty())
        }
        opened => opened,
    }
}

fn open_parent<'p>(root: &OwnedFd, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
    let mut directory = rustix::io::dup(root)?;
    for part in path.parent().into_iter().flat_map(Path::iter) {
        directory = open_directory(&directory, part)?;
    }
    Ok((directory, path.file_name().ok_or(Errno::INVAL)?))
}

/// Opens the directory of a path. Creates missing parts, also in place of files and links.
fn create_parent<'p>(root: &OwnedFd, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
    let mut directory = rustix::io::dup(root)?;
    for part in path.parent().into_iter().flat_map(Path::iter) {
        directory = match open_directory(&directory, part) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                remove(&directory, part)?;
                mkdirat(&directory, part, Mode::from_raw_mode(0o777))?;
                open_directory(&directory, part)?
            }
            opened => opened?,
        };
    }
    Ok((directory, path.file_name().ok_or(Errno::INVAL)?))
}

/// Removes a file, or a directory with its content. Succeeds if there is none.
fn remove(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let inner = open_directory(directory, name)?;
    for (name, _) in read_entries(&inner)? {
        remove(&inner, &name)?;
    }
    Ok(unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}

fn read_link(directory: &OwnedFd, name: &OsStr) -> io::Result<PathBuf> {
    let target = readlinkat(directory, name, Vec::new())?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(target.into_bytes())))
}

fn read_entries(directory: impl AsFd) -> io::Result<Vec<(std::ffi::OsString, FileType)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(found.st_mode)
            }
            kind => kind,
        };
        entries.push((name.to_owned(), kind));
    }
    Ok(entries)
}

/// Lists everything that matches, except for directories, and leaves out git directories.
fn list_files(root: &OwnedFd, matches: &dyn Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut open) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(above) = open.pop() {
        let (parent, name) = match above.file_name() {
            None => (rustix::io::dup(root)?, None),
            Some(_) => open_parent(root, &above).map(|(parent, name)| (parent, Some(name)))?,
        };
        let directory =
            name.map_or_else(|| rustix::io::dup(&parent), |name| open_directory(&parent, name))?;
        for (name, kind) in read_entries(&directory)? {
            let path = above.join(&name);
            match kind {
                FileType::Directory if name.eq_ignore_ascii_case(".git") => {}
                FileType::Directory => open.push(path),
                _ if matches(&path) => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn is_test(path: &Path) -> bool {
        path.starts_with("tests")
    }

    /// A worktree with protected files, and their copies.
    fn protected() -> (tempfile::TempDir, PathBuf, ProtectedFiles) {
        let directory = tempfile::tempdir().unwrap();
        let worktree = directory.path().join("work");
        fs::create_dir_all(worktree.join("tests/deep")).unwrap();
        fs::write(worktree.join("tests/run"), "check").unwrap();
        fs::write(worktree.join("tests/deep/data"), [0, 255, 13, 10]).unwrap();
        symlink("run", worktree.join("tests/link")).unwrap();
        fs::write(worktree.join("src"), "work").unwrap();
        let files = ProtectedFiles::at(directory.path().join("copies"));
        files.save(&worktree, &is_test).unwrap();
        (directory, worktree, files)
    }

    fn assert_restored(worktree: &Path, files: &ProtectedFiles, expected: &[&str]) {
        let restored = files.restore(worktree, &is_test).unwrap();
        assert_eq!(restored, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(fs::read(worktree.join("tests/run")).unwrap(), b"check");
        assert_eq!(fs::read(worktree.join("tests/deep/data")).unwrap(), [0, 255, 13, 10]);
        assert_eq!(fs::read_link(worktree.join("tests/link")).unwrap(), Path::new("run"));
        assert!(files.restore(worktree, &is_test).unwrap().is_empty());
    }

    #[test]
    fn unchanged_files_are_left_alone() {
        let (_directory, worktree, files) = protected();
        fs::write(worktree.join("src"), "changed").unwrap();
        assert_restored(&worktree, &files, &[]);
        assert_eq!(fs::read(worktree.join("src")).unwrap(), b"changed");
    }

    #[test]
    fn changed_new_and_removed_files_are_restored() {
        let (_directory, worktree, files) = protected();
        fs::write(worktree.join("tests/run"), "true").unwrap();
        fs::write(worktree.join("tests/.gitignore"), "*").unwrap();
        fs::remove_dir_all(worktree.join("tests/deep")).unwrap();
        assert_restored(&worktree, &files, &["tests/.gitignore", "tests/deep/data", "tests/run"]);
        assert_eq!(fs::read_dir(files.directory.join("replaced")).unwrap().count(), 2);
    }

    #[test]
    fn mode_and_unsearchable_directory_are_restored() {
        let (_directory, worktree, files) = protected();
        let set_mode = |path: &str, mode| {
            fs::set_permissions(worktree.join(path), fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode("tests/run", 0o700);
        fs::write(worktree.join("tests/deep/extra"), "x").unwrap();
        set_mode("tests/deep", 0o000);
        assert_restored(&worktree, &files, &["tests/deep/extra", "tests/run"]);
    }

    #[test]
    fn link_in_place_of_a_directory_is_not_followed() {
        let (directory, worktree, files) = protected();
        let outside = directory.path().join("outside");
        fs::create_dir_all(outside.join("deep")).unwrap();
        fs::write(outside.join("run"), "mine").unwrap();
        fs::remove_dir_all(worktree.join("tests")).unwrap();
        symlink(&outside, worktree.join("tests")).unwrap();
        let restored = files.restore(&worktree, &is_test).unwrap();
        assert_eq!(restored.len(), 4);
        assert_eq!(fs::read(outside.join("run")).unwrap(), b"mine");
        assert_eq!(fs::read(worktree.join("tests/run")).unwrap(), b"check");
    }

    #[test]
    fn directory_in_place_of_a_file_is_replaced() {
        let (_directory, worktree, files) = protected();
        fs::remove_file(worktree.join("tests/run")).unwrap();
        fs::create_dir_all(worktree.join("tests/run/a")).unwrap();
        fs::write(worktree.join("tests/run/a/b"), "x").unwrap();
        assert_restored(&worktree, &files, &["tests/run", "tests/run/a/b"]);
    }
}
