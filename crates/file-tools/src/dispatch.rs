//! Dispatches a request to the module of its verb.

use serde::Serialize;

use crate::rejection::FileRejection;
use crate::request::FileRequest;
use crate::workspace::Workspace;
use crate::{delete, list, patch, read, relocate, search, stat, write};

/// The reply to a verb.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum VerbReply {
    /// Of `read`.
    Read(read::ReadReply),
    /// Of `write` and `create`.
    Write(write::WriteReply),
    /// Of `patch`.
    Patch(patch::PatchReply),
    /// Of `delete`.
    Delete(delete::DeleteReply),
    /// Of `move`.
    Move(relocate::MoveReply),
    /// Of `list`.
    List(list::ListReply),
    /// Of `search`.
    Search(search::SearchReply),
    /// Of `stat`.
    Stat(stat::StatReply),
}

impl Workspace {
    /// Executes a request.
    pub fn execute(&self, request: &FileRequest) -> Result<VerbReply, FileRejection> {
        match request {
            FileRequest::Read(request) => read::read(self, request).map(VerbReply::Read),
            FileRequest::Write(request) => write::write(self, request).map(VerbReply::Write),
            FileRequest::Create(request) => write::create(self, request).map(VerbReply::Write),
            FileRequest::Patch(request) => patch::patch(self, request).map(VerbReply::Patch),
            FileRequest::Delete(request) => delete::delete(self, request).map(VerbReply::Delete),
            FileRequest::Move(request) => relocate::relocate(self, request).map(VerbReply::Move),
            FileRequest::List(request) => list::list(self, request).map(VerbReply::List),
            FileRequest::Search(request) => search::search(self, request).map(VerbReply::Search),
            FileRequest::Stat(request) => stat::stat(self, request).map(VerbReply::Stat),
        }
    }
}
