//! The bytes of one file, read within bounds.
//!
//! Opens nothing but ordinary files: a FIFO would wait for a writer, a device may do anything when it is opened. So the file is
//! looked at first, opened without waiting, and looked at again.

use std::fs::File;
use std::io::Read as _;

use rustix::fs::{FileType, OFlags, Stat};

use crate::beneath::{Place, explain, kind};
use crate::name::WorkPath;
use crate::refusal::{Code, Refusal};
use crate::workspace::Workspace;

/// The largest file that is read, written, patched or searched.
pub const FILE_LIMIT: u64 = 64 * 1024 * 1024;

/// Opens the file at a place.
pub(crate) fn open(workspace: &Workspace, place: &Place, path: &WorkPath) -> Result<(File, Stat), Refusal> {
    check(workspace, place.found(path)?, path.said())?;
    let fd = place
        .open(OFlags::RDONLY | OFlags::NONBLOCK)
        .map_err(|refused| explain(path.said(), refused, Code::ReadFailed))?;
    let stat = rustix::fs::fstat(&fd).map_err(|refused| Refusal::unreadable(path.said(), refused))?;
    check(workspace, &stat, path.said())?;
    Ok((File::from(fd), stat))
}

/// Reads the file at a place.
pub(crate) fn load(
    workspace: &Workspace,
    place: &Place,
    path: &WorkPath,
) -> Result<(Vec<u8>, Stat), Refusal> {
    let (file, stat) = open(workspace, place, path)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let too_large = || Refusal::too_large(format!("`{}`", path.said()), FILE_LIMIT);
    if size > FILE_LIMIT {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    // It may have grown since it was looked at.
    file.take(FILE_LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(|refused| Refusal::unreadable(path.said(), refused))?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(too_large());
    }
    Ok((bytes, stat))
}

/// Refuses what is no ordinary file, or may be somebody else's.
fn check(workspace: &Workspace, stat: &Stat, said: &str) -> Result<(), Refusal> {
    check_kind(stat, said)?;
    if stat.st_nlink > 1 && !workspace.setting.read_hardlinks {
        return Err(Refusal::new(
            Code::NotARegularFile,
            format!("`{said}` has {} names, and another may be outside the workspace", stat.st_nlink),
            "`write` gives it a content of its own; the operator can allow reading with FILE_TOOLS_HARDLINKS=read",
        ));
    }
    Ok(())
}

/// Refuses what is no ordinary file.
pub(crate) fn check_kind(stat: &Stat, said: &str) -> Result<(), Refusal> {
    match kind(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Refusal::is_directory(said)),
        other => Err(Refusal::irregular(said, describe(other))),
    }
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "a link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "no ordinary file",
    }
}

/// The word for it in answers.
pub(crate) fn kind_word(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "other",
    }
}
