//! The changes of a job as a part of its answer.

use model::exact_path::show_path;
use model::{ChangeExtent, ChangeKind, ChangeSet, FileChange, NotRecorded};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The maximum number of files in an answer.
const MAX_FILES: usize = 200;

/// The changes of a call in its git worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changes {
    /// The root of the worktree, to which the paths are relative.
    pub worktree: String,
    /// The commit at the start. Omitted in a repository without commits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The commit at the end, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// The number of changed files. Ignored files are not part of the changes.
    pub files_changed: u64,
    /// The number of added lines.
    pub lines_added: u64,
    /// The number of removed lines.
    pub lines_removed: u64,
    /// The number of changed files that another call changed at the same time. Omitted if it is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub files_shared: u64,
    /// The changed files, sorted by path; the first 200.
    pub files: Vec<ChangedFile>,
    /// The number of files that are not listed. Omitted if it is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub files_left_out: u64,
    /// The patch in the format of git, for `git apply`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch_file: Option<String>,
    /// The private checkout in which the call worked. Omitted if it worked in the worktree of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkout: Option<PrivateCheckout>,
}

/// The private checkout of a call, whose changes are not in the worktree of the user until they are applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrivateCheckout {
    /// Its directory.
    pub directory: String,
    /// The worktree of the user.
    pub source: String,
    /// `open`: neither applied nor discarded; `continued`: part of the changes of a later call; `unchanged`, `applied`, `undone` or
    /// `discarded`: the checkout is removed.
    pub state: ChangesState,
    /// The branch with the changes, in the repository of the user, until they are applied or discarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The reason why there is no branch. The changes are in the checkout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_published: Option<String>,
    /// Changed files that other open calls or the user have changed, too, when the call ended; the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub collisions: Vec<Collision>,
    /// Submodules and nested repositories, which are empty or missing in the checkout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_content: Vec<String>,
}

/// The state of the changes that a job made in a private checkout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangesState {
    /// Neither applied nor discarded. The checkout exists.
    Open,
    /// Part of the changes of a later job, which has resumed the session.
    Continued,
    /// Nothing has changed. The checkout is removed.
    Unchanged,
    /// Merged into the worktree of the user. The checkout and the branch are removed.
    Applied,
    /// Applied and then undone.
    Undone,
    /// The checkout and the branch were removed.
    Discarded,
}

impl ChangesState {
    /// Returns the serialized name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Continued => "continued",
            Self::Unchanged => "unchanged",
            Self::Applied => "applied",
            Self::Undone => "undone",
            Self::Discarded => "discarded",
        }
    }
}

/// A file that was also changed elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Collision {
    /// The path in the worktree.
    pub path: String,
    /// The other call. Omitted if the user has changed the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The reason for which the changes cannot be merged with those of the user. Omitted if they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
}

/// A changed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedFile {
    /// The path after the change. One that is not UTF-8 is quoted like in bash: `$'\xff'`.
    pub path: String,
    /// `added`, `modified`, `deleted`, `renamed`, `mode_changed` or `type_changed`.
    pub kind: String,
    /// The path before a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The number of added lines. Omitted for a binary file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<u64>,
    /// The number of removed lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<u64>,
    /// `binary`, `submodule`, or the reason for which the content is not recorded: `too_large`, `filtered`, `repository`, `unreadable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Another call changed the file at the same time, so the change may be that of the other call.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl From<&ChangeSet> for Changes {
    fn from(changes: &ChangeSet) -> Self {
        let (lines_added, lines_removed) = changes.lines();
        Self {
            worktree: show_path(&changes.worktree),
            base: changes.base.clone(),
            head: changes.head.clone(),
            files_changed: changes.files.len() as u64,
            lines_added,
            lines_removed,
            files_shared: changes.files.iter().filter(|file| file.shared).count() as u64,
            files_left_out: changes.files.len().saturating_sub(MAX_FILES) as u64,
            files: changes.files.iter().take(MAX_FILES).map(ChangedFile::from).collect(),
            patch_file: None,
            checkout: None,
        }
    }
}

impl From<&FileChange> for ChangedFile {
    fn from(file: &FileChange) -> Self {
        let (kind, from) = match &file.kind {
            ChangeKind::Added => ("added", None),
            ChangeKind::Modified => ("modified", None),
            ChangeKind::Deleted => ("deleted", None),
            ChangeKind::Renamed { from } => ("renamed", Some(show_path(from))),
            ChangeKind::ModeChanged => ("mode_changed", None),
            ChangeKind::TypeChanged => ("type_changed", None),
        };
        let (lines, content) = match &file.extent {
            ChangeExtent::Text { added, removed } => (Some((*added, *removed)), None),
            ChangeExtent::Binary { .. } => (None, Some("binary")),
            ChangeExtent::Submodule { .. } => (None, Some("submodule")),
            ChangeExtent::NotRecorded { reason } => (None, Some(reason_name(*reason))),
        };
        Self {
            path: show_path(&file.path),
            kind: kind.to_owned(),
            from,
            added: lines.map(|(added, _)| added),
            removed: lines.map(|(_, removed)| removed),
            content: content.map(str::to_owned),
            shared: file.shared,
        }
    }
}

fn reason_name(reason: NotRecorded) -> &'static str {
    match reason {
        NotRecorded::TooLarge => "too_large",
        NotRecorded::Filtered => "filtered",
        NotRecorded::Repository => "repository",
        NotRecorded::Unreadable => "unreadable",
    }
}
