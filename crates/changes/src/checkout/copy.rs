//! Copies files from one worktree to another without following links.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, openat, readlinkat, statat, symlinkat,
};

use crate::beneath::{LastDirectory, Root};
use crate::error::ChangesError;
use crate::git::Git;
use crate::parallel::run_both;

/// The size up to which a read and a write take less time than `copy_file_range`, with which large files share their space on some file
/// systems.
const SMALL: usize = 16 * 1024;

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
        let (mut from, mut to) = (LastDirectory::new(source), LastDirectory::new(target));
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

fn copy_file(
    from: &mut LastDirectory<'_>,
    to: &mut LastDirectory<'_>,
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
            let copy = copy_content(&mut file, to.open(path, true)?, name, &found)?;
            // One that changed meanwhile is compared by content.
            Ok(Some(CopiedFile { source: fstat(&file)?, copy }))
        }
        _ => Ok(None),
    }
}

fn copy_content(file: &mut File, directory: &OwnedFd, name: &OsStr, found: &Stat) -> io::Result<Stat> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode((found.st_mode & 0o777) | 0o600);
    let mut copy = File::from(openat(directory, name, flags, mode)?);
    let mut buffer = [0; SMALL];
    let count = file.read(&mut buffer)?;
    copy.write_all(&buffer[..count])?;
    if i64::try_from(count) != Ok(found.st_size) {
        io::copy(file, &mut copy)?;
    }
    let copied = fstat(&copy)?;
    if Mode::from_raw_mode(copied.st_mode) == mode {
        return Ok(copied);
    }
    // The umask has removed permissions.
    fchmod(&copy, mode)?;
    Ok(fstat(&copy)?)
}
