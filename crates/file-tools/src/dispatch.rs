//! Dispatches a request to the module of its verb.

use serde::Serialize;

use crate::rejection::FileRejection;
use crate::request::Request;
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
    pub fn execute(&self, request: &Request) -> Result<VerbReply, FileRejection> {
        match request {
            Request::Read(request) => read::read(self, request).map(VerbReply::Read),
            Request::Write(request) => write::write(self, request).map(VerbReply::Write),
            Request::Create(request) => write::create(self, request).map(VerbReply::Write),
            Request::Patch(request) => patch::patch(self, request).map(VerbReply::Patch),
            Request::Delete(request) => delete::delete(self, request).map(VerbReply::Delete),
            Request::Move(request) => relocate::relocate(self, request).map(VerbReply::Move),
            Request::List(request) => list::list(self, request).map(VerbReply::List),
            Request::Search(request) => search::search(self, request).map(VerbReply::Search),
            Request::Stat(request) => stat::stat(self, request).map(VerbReply::Stat),
        }
    }
}
