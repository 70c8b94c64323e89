//! `delete`: removes a file or a symlink by name. Never a directory.

use rustix::fs::{AtFlags, FileType};
use serde::Serialize;

use crate::beneath::{FinalLink, LookupPurpose, explain};
use crate::contents;
use crate::rejection::{FileRejection, RejectionCode};
use crate::request::DeleteRequest;
use crate::workspace::Workspace;
use crate::write::{check_movable, settle, turn};

/// The reply to `delete`.
#[derive(Debug, Serialize)]
pub struct DeleteReply {
    /// The deleted file.
    pub path: String,
    /// Always true: a failure is a rejection.
    pub deleted: bool,
}

pub(crate) fn delete(workspace: &Workspace, request: &DeleteRequest) -> Result<DeleteReply, FileRejection> {
    let path = workspace.root.parse(&request.path)?;
    let _turn = turn(workspace, &path)?;
    let place = workspace.root.find(&path, FinalLink::Keep, LookupPurpose::Change)?;
    match check_movable(&place, &path)? {
        // Deletes the link, not its target.
        FileType::Symlink => {}
        _ => contents::check_kind(place.found(&path)?, path.said())?,
    }
    rustix::fs::unlinkat(&place.directory, place.name.as_slice(), AtFlags::empty())
        .map_err(|refused| explain(path.said(), refused, RejectionCode::WriteFailed))?;
    settle(&place);
    Ok(DeleteReply { path: place.shown(), deleted: true })
}
