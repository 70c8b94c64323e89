//! `move`: renames a file or directory atomically.
//!
//! A directory that contains a protected name is not moved, and no target has a protected name: otherwise `.git` could be
//! renamed, changed and moved back.

use rustix::fs::{AtFlags, FileType, RenameFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::beneath::{FinalLink, LookupPurpose, ResolvedPath, explain};
use crate::contents;
use crate::name::{self, WorkPath};
use crate::protected;
use crate::rejection::{FileRejection, RejectionCode};
use crate::request::MoveRequest;
use crate::tree::{self, DirectoryEntry, WalkFlow};
use crate::workspace::Workspace;
use crate::write::{check_movable, settle, turn};

/// The reply to `move`.
#[derive(Debug, Serialize)]
pub struct MoveReply {
    /// The old path.
    pub from: String,
    /// The new path.
    pub to: String,
}

pub(crate) fn relocate(workspace: &Workspace, request: &MoveRequest) -> Result<MoveReply, FileRejection> {
    let (from, to) = (workspace.root.parse(&request.from)?, workspace.root.parse(&request.to)?);
    let _turn = turn(workspace, &from)?;
    let source = workspace.root.find(&from, FinalLink::Keep, LookupPurpose::Change)?;
    match check_movable(&source, &from)? {
        FileType::Directory => check_contents(&source, &from)?,
        // Nor a symlink: a relative one would have another target afterwards.
        _ => contents::check_kind(source.found(&from)?, from.said())?,
    }
    check_apart(&source, &from, &to)?;
    let target = workspace.root.find(&to, FinalLink::Keep, LookupPurpose::Make)?;
    if target.found.is_some() {
        return Err(FileRejection::exists(to.said()));
    }
    rename(&source, &target).map_err(|refused| match refused {
        Errno::EXIST | Errno::NOTEMPTY => FileRejection::exists(to.said()),
        other => explain(from.said(), other, RejectionCode::WriteFailed),
    })?;
    settle(&source);
    settle(&target);
    Ok(MoveReply { from: source.shown(), to: target.shown() })
}

/// Checked before any directory is created.
fn check_apart(source: &ResolvedPath, from: &WorkPath, to: &WorkPath) -> Result<(), FileRejection> {
    let target = to.parts();
    let below = name::split(&source.real).zip(&target).filter(|(a, b)| a == b).count();
    if below == name::split(&source.real).count() && target.len() > below {
        return Err(FileRejection::invalid(
            format!("`{}` cannot be moved into itself", from.said()),
            "choose a path that is not below it",
        ));
    }
    Ok(())
}

fn rename(source: &ResolvedPath, target: &ResolvedPath) -> Result<(), Errno> {
    let (from, to) = (source.name.as_slice(), target.name.as_slice());
    let moved =
        rustix::fs::renameat_with(&source.directory, from, &target.directory, to, RenameFlags::NOREPLACE);
    let is_file = source
        .found
        .as_ref()
        .is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    match moved {
        // The file system does not support `RENAME_NOREPLACE`.
        Err(Errno::INVAL | Errno::NOSYS) if is_file => {
            rustix::fs::linkat(&source.directory, from, &target.directory, to, AtFlags::empty())?;
            rustix::fs::unlinkat(&source.directory, from, AtFlags::empty())
        }
        other => other,
    }
}

fn check_contents(source: &ResolvedPath, path: &WorkPath) -> Result<(), FileRejection> {
    let mut protected = None;
    let visit = |entry: &DirectoryEntry<'_>| {
        if protected::is_protected(entry.name) {
            protected = Some(entry.path());
            return WalkFlow::Stop;
        }
        WalkFlow::Go
    };
    let unreadable = tree::visit_everything(source.open_directory(path)?, &source.real, visit);
    if let Some(found) = protected {
        return Err(FileRejection::protected(&name::show(&found)));
    }
    if unreadable > 0 {
        return Err(FileRejection::new(
            RejectionCode::WriteFailed,
            format!("`{}` contains directories that cannot be read", path.said()),
            "they may contain protected files; move the files one by one",
        ));
    }
    Ok(())
}
