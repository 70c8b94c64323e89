//! A workspace with the process locked into it, and the verbs done there.

use std::path::Path;

use serde::Serialize;

use crate::beneath::Root;
use crate::lock::{self, Held, Reach};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::{delete, list, patch, read, relocate, search, stat, write};

/// What the operator decides, and never the caller of a verb.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Setting {
    /// Whether a file that has a second name may be read. That name may be outside, and then so is the file.
    pub read_hardlinks: bool,
}

/// A workspace that this process is locked into.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) root: Root,
    pub(crate) held: Held,
    pub(crate) setting: Setting,
}

/// What a verb came to.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Of `read`.
    Read(read::Lines),
    /// Of `write` and `create`.
    Write(write::Written),
    /// Of `patch`.
    Patch(patch::Patched),
    /// Of `delete`.
    Delete(delete::Deleted),
    /// Of `move`.
    Move(relocate::Moved),
    /// Of `list`.
    List(list::Listing),
    /// Of `search`.
    Search(search::Matches),
    /// Of `stat`.
    Stat(stat::Facts),
}

impl Workspace {
    /// Opens a workspace and locks this process into it, for good.
    ///
    /// To be called before there is a second thread: the kernel locks in the thread that asks, and those it starts later.
    pub fn enter(path: &Path, reach: Reach, setting: Setting) -> Result<Self, Refusal> {
        let root = Root::open(path)?;
        let held = lock::lock(root.fd(), reach);
        Ok(Self::within(root, held, setting))
    }

    fn within(root: Root, held: Held, setting: Setting) -> Self {
        Self { root, held, setting }
    }

    /// What holds this process.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Carries out a request.
    pub fn carry_out(&self, request: &Request) -> Result<Answer, Refusal> {
        match request {
            Request::Read(request) => read::read(self, request).map(Answer::Read),
            Request::Write(request) => write::write(self, request).map(Answer::Write),
            Request::Create(request) => write::create(self, request).map(Answer::Write),
            Request::Patch(request) => patch::patch(self, request).map(Answer::Patch),
            Request::Delete(request) => delete::delete(self, request).map(Answer::Delete),
            Request::Move(request) => relocate::relocate(self, request).map(Answer::Move),
            Request::List(request) => list::list(self, request).map(Answer::List),
            Request::Search(request) => search::search(self, request).map(Answer::Search),
            Request::Stat(request) => stat::stat(self, request).map(Answer::Stat),
        }
    }

    /// A workspace that is confined by `openat2` alone, as on a kernel without the rest: for tests, which share one process.
    #[doc(hidden)]
    pub fn enter_unlocked(path: &Path) -> Result<Self, Refusal> {
        let held = Held { openat2: true, landlock_abi: None, seccomp: false, no_new_privileges: false };
        Ok(Self::within(Root::open(path)?, held, Setting::default()))
    }
}
