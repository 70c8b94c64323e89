//! Copies the objects that a job wrote in its checkout.
//!
//! The job can have replaced anything in the git directory, for example by links or alternates that lead to another repository. Git
//! would follow them, outside of any sandbox. Therefore it reads only copies, which are made without following links.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};

use crate::error::ChangesError;
use crate::files::remove_directory;
use crate::git::quote_alternate;

/// The limit for all objects, also those that no commit contains.
const LIMIT: u64 = 1024 * 1024 * 1024;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Copies the objects of a checkout to a new directory, which borrows further objects from others.
pub(crate) fn copy_own_objects(
    checkout: &Path,
    target: &Path,
    borrowed: &[&Path],
) -> Result<(), ChangesError> {
    remove_directory(target)?;
    let info = target.join("info");
    regular_file::create_private_directory(&info).map_err(ChangesError::file("create", &info))?;
    let lines = borrowed.iter().flat_map(|path| [quote_alternate(path).into_encoded_bytes(), b"\n".into()]);
    let alternates = info.join("alternates");
    fs::write(&alternates, lines.flatten().collect::<Vec<u8>>())
        .map_err(ChangesError::file("write", &alternates))?;
    let broken = || ChangesError::BrokenRepository { path: checkout.join(".git") };
    let objects = open_objects(checkout).map_err(|_| broken())?;
    let mut total = 0;
    for name in list(&objects).map_err(|_| broken())? {
        let is_loose = name.len() == 2 && is_hex(name.as_bytes());
        if !is_loose && name != "pack" {
            continue;
        }
        let Ok(directory) = openat(&objects, &name, DIRECTORY, Mode::empty()) else { continue };
        for file in list(&directory).map_err(|_| broken())? {
            if if is_loose { is_hex(file.as_bytes()) } else { is_pack(file.as_bytes()) } {
                let copy = target.join(&name).join(&file);
                copy_file(&directory, Path::new(&file), &copy, &mut total)
                    .map_err(ChangesError::file("copy", &copy))?;
            }
            if total > LIMIT {
                return Err(ChangesError::CommitsTooLarge { bytes: total, limit: LIMIT });
            }
        }
    }
    Ok(())
}

fn open_objects(checkout: &Path) -> io::Result<OwnedFd> {
    let directory = openat(CWD, checkout, DIRECTORY, Mode::empty())?;
    let directory = openat(directory, ".git", DIRECTORY, Mode::empty())?;
    Ok(openat(directory, "objects", DIRECTORY, Mode::empty())?)
}

fn list(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        names.push(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned());
    }
    Ok(names)
}

fn copy_file(directory: &OwnedFd, name: &Path, copy: &Path, total: &mut u64) -> io::Result<()> {
    // A link is left out: git then reports the missing object.
    let Ok(file) = regular_file::open_regular_at(directory, name, OFlags::RDONLY) else { return Ok(()) };
    let size = file.metadata()?.len();
    *total = total.saturating_add(size);
    if *total > LIMIT {
        return Ok(());
    }
    if let Some(parent) = copy.parent() {
        fs::create_dir_all(parent)?;
    }
    io::copy(&mut file.take(size), &mut File::create_new(copy)?).map(drop)
}

fn is_hex(name: &[u8]) -> bool {
    name.iter().all(u8::is_ascii_hexdigit)
}

fn is_pack(name: &[u8]) -> bool {
    let id = name.strip_prefix(b"pack-");
    let id = id.and_then(|rest| rest.strip_suffix(b".pack").or_else(|| rest.strip_suffix(b".idx")));
    id.is_some_and(is_hex)
}
