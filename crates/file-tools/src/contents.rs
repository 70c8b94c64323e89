//! Reads the bytes of one file, up to a limit.
//!
//! Opens only regular files: a FIFO would block until a writer appears, and opening a device can have side effects. So the
//! file's type is checked, the file is opened with `O_NONBLOCK`, and the type is checked again.

use std::fs::File;
use std::io::Read as _;

use rustix::fs::{FileType, OFlags, Stat};

use crate::beneath::{ResolvedPath, explain, kind};
use crate::name::WorkPath;
use crate::rejection::{FileRejection, RejectionCode};
use crate::workspace::Workspace;

/// The largest file that can be read, written, patched or searched.
pub const FILE_LIMIT: u64 = 64 * 1024 * 1024;

/// Opens a resolved file.
pub(crate) fn open(
    workspace: &Workspace,
    place: &ResolvedPath,
    path: &WorkPath,
) -> Result<(File, Stat), FileRejection> {
    check(workspace, place.found(path)?, path.said())?;
    let fd = place
        .open(OFlags::RDONLY | OFlags::NONBLOCK)
        .map_err(|refused| explain(path.said(), refused, RejectionCode::ReadFailed))?;
    let stat = rustix::fs::fstat(&fd).map_err(|refused| FileRejection::unreadable(path.said(), refused))?;
    check(workspace, &stat, path.said())?;
    Ok((File::from(fd), stat))
}

/// Reads a resolved file.
pub(crate) fn load(
    workspace: &Workspace,
    place: &ResolvedPath,
    path: &WorkPath,
) -> Result<(Vec<u8>, Stat), FileRejection> {
    let (file, stat) = open(workspace, place, path)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let too_large = || FileRejection::too_large(format!("`{}`", path.said()), FILE_LIMIT);
    if size > FILE_LIMIT {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    // The file may have grown since the check.
    file.take(FILE_LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(|refused| FileRejection::unreadable(path.said(), refused))?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(too_large());
    }
    Ok((bytes, stat))
}

/// Rejects irregular files, and files with hard links unless they are allowed.
fn check(workspace: &Workspace, stat: &Stat, said: &str) -> Result<(), FileRejection> {
    check_kind(stat, said)?;
    if stat.st_nlink > 1 && !workspace.setting.read_hardlinks {
        return Err(FileRejection::new(
            RejectionCode::NotARegularFile,
            format!("`{said}` has {} hard links, and one may be outside the workspace", stat.st_nlink),
            "use `write` to replace it by a file of its own; the operator can allow reading with FILE_TOOLS_HARDLINKS=read",
        ));
    }
    Ok(())
}

/// Rejects irregular files.
pub(crate) fn check_kind(stat: &Stat, said: &str) -> Result<(), FileRejection> {
    match kind(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(FileRejection::is_directory(said)),
        other => Err(FileRejection::irregular(said, describe(other))),
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

/// Returns the name of a file type in replies.
pub(crate) fn kind_word(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "other",
    }
}
