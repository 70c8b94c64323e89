//! `delete`: a file or a link, by its name. Never a folder.

use rustix::fs::{AtFlags, FileType};
use serde::Serialize;

use crate::beneath::{Last, Purpose, explain};
use crate::contents;
use crate::refusal::{Code, Refusal};
use crate::request::Delete;
use crate::workspace::Workspace;
use crate::write::{check_movable, settle, turn};

/// What was deleted.
#[derive(Debug, Serialize)]
pub struct Deleted {
    /// The file.
    pub path: String,
    /// Always true: otherwise there is a refusal.
    pub deleted: bool,
}

pub(crate) fn delete(workspace: &Workspace, request: &Delete) -> Result<Deleted, Refusal> {
    let path = workspace.root.parse(&request.path)?;
    let _turn = turn(workspace, &path)?;
    let place = workspace.root.find(&path, Last::Keep, Purpose::Change)?;
    match check_movable(&place, &path)? {
        // The link goes; what it points to stays, wherever that is.
        FileType::Symlink => {}
        _ => contents::check_kind(place.found(&path)?, path.said())?,
    }
    rustix::fs::unlinkat(&place.folder, place.name.as_slice(), AtFlags::empty())
        .map_err(|refused| explain(path.said(), refused, Code::WriteFailed))?;
    settle(&place);
    Ok(Deleted { path: place.shown(), deleted: true })
}
