//! Copies files from one worktree to another without following links.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, openat, readlinkat, statat, symlinkat,
};

use crate::beneath::Root;
use crate::error::ChangesError;
use crate::git::Git;
use crate::parallel::run_both;

/// The identity of a file and of its copy.
#[derive(Debug)]
pub(super) struct CopiedFile {
    pub(super) source: Stat,
    pub(super) copy: Stat,
}

pub(super) type CopiedFiles = BTreeMap<PathBuf, CopiedFile>;

/// Copies files and links. Leaves out those that are missing, unreadable or of another type.
pub(super) fn copy_files(
    git: &Git,
    source: &Root,
    target: &Root,
    paths: &BTreeSet<PathBuf>,
) -> Result<CopiedFiles, ChangesError> {
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let (first, second) = paths.split_at(paths.len() / 2);
    let copy = |paths: &[&Path]| {
        let (mut from, mut to) = (OpenDirectory::new(source), OpenDirectory::new(target));
        let mut copied = CopiedFiles::new();
        for path in paths {
            git.check_time()?;
            let file = copy_file(&mut from, &mut to, path);
            let file = file.map_err(ChangesError::file("copy", &git.worktree.join(path)))?;
            copied.extend(file.map(|file| ((*path).to_owned(), file)));
        }
        Ok(copied)
    };
    let (mut copied, rest) = run_both(|| copy(first), || copy(second))?;
    copied.extend(rest);
    Ok(copied)
}

/// The directory of the file that was opened last: sorted paths are often in the same one.
struct OpenDirectory<'a> {
    root: &'a Root,
    last: Option<(PathBuf, OwnedFd)>,
}

impl<'a> OpenDirectory<'a> {
    fn new(root: &'a Root) -> Self {
        Self { root, last: None }
    }

    fn open(&mut self, path: &Path, create: bool) -> io::Result<&OwnedFd> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.last.as_ref().is_none_or(|(last, _)| last != parent) {
            if create {
                self.root.create_parents(path, |_| {})?;
            }
            self.last = Some((parent.to_owned(), self.root.open_directory(parent)?));
        }
        self.last.as_ref().map(|(_, directory)| directory).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn copy_file(
    from: &mut OpenDirectory<'_>,
    to: &mut OpenDirectory<'_>,
    path: &Path,
) -> io::Result<Option<CopiedFile>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let Ok(from) = from.open(path, false) else { return Ok(None) };
    let Ok(found) = statat(from, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(None) };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => {
            let Ok(link) = readlinkat(from, name, Vec::new()) else { return Ok(None) };
            let to = to.open(path, true)?;
            symlinkat(link.as_c_str(), to, name)?;
            Ok(Some(CopiedFile { source: found, copy: statat(to, name, AtFlags::SYMLINK_NOFOLLOW)? }))
        }
        FileType::RegularFile => {
            let opened = regular_file::open_regular_at(from, Path::new(name), OFlags::RDONLY);
            let Ok(mut file) = opened else { return Ok(None) };
            let copy = copy_content(&mut file, to.open(path, true)?, name, found.st_mode)?;
            // One that changed meanwhile is compared by content.
            Ok(Some(CopiedFile { source: fstat(&file)?, copy }))
        }
        _ => Ok(None),
    }
}

fn copy_content(file: &mut File, directory: &OwnedFd, name: &OsStr, mode: u32) -> io::Result<Stat> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut copy = File::from(openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?);
    io::copy(file, &mut copy)?;
    fchmod(&copy, Mode::from_raw_mode((mode & 0o777) | 0o600))?;
    Ok(fstat(&copy)?)
}
