//! `list`: lists a directory, or the files below it that match a glob.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType};
use serde::Serialize;

use crate::beneath::{FinalLink, LookupPurpose, ResolvedPath, kind};
use crate::contents::kind_word;
use crate::glob::FileGlob;
use crate::ignored::Ignored;
use crate::name;
use crate::rejection::FileRejection;
use crate::request::ListRequest;
use crate::tree::{self, DirectoryEntry, OpenDirectory, TreeVisitor, WalkFlow};
use crate::workspace::Workspace;

/// The maximum number of entries.
const MOST: usize = 2000;

/// The reply to `list`.
#[derive(Debug, Serialize)]
pub struct ListReply {
    /// The directory, without links.
    pub path: String,
    /// The entries, sorted by name.
    pub entries: Vec<ListedEntry>,
    /// The number of all entries.
    pub total: u64,
    /// True if entries were omitted.
    pub truncated: bool,
    /// The number of unreadable directories.
    #[serde(skip_serializing_if = "is_zero")]
    pub unreadable_directories: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// An entry of a list.
#[derive(Debug, Serialize)]
pub struct ListedEntry {
    /// The path in the workspace, in the form that requests accept.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The size of a file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// The entries found so far.
struct Found {
    path: Vec<u8>,
    kind: FileType,
    size: Option<u64>,
}

pub(crate) fn list(workspace: &Workspace, request: &ListRequest) -> Result<ListReply, FileRejection> {
    let path = workspace.root.parse(&request.path)?;
    let place = workspace.root.find(&path, FinalLink::Follow, LookupPurpose::Look)?;
    if kind(place.found(&path)?) != FileType::Directory {
        return Err(FileRejection::not_a_directory(path.said()));
    }
    let glob = request.glob.as_deref().map(|glob| FileGlob::parse(glob, &place.real)).transpose()?;
    let fd = place.open_directory(&path)?;
    let (mut found, unreadable_directories) = match &glob {
        None => directly(fd, &place.real),
        Some(glob) => matching(workspace, &place, fd, glob),
    };
    found.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    let total = found.len() as u64;
    let truncated = found.len() > MOST;
    let entries = found.into_iter().take(MOST).map(|found| ListedEntry {
        path: name::show(&found.path).into_owned(),
        kind: kind_word(found.kind),
        size: found.size,
    });
    Ok(ListReply {
        path: place.shown(),
        entries: entries.collect(),
        total,
        truncated,
        unreadable_directories,
    })
}

fn directly(fd: std::os::fd::OwnedFd, real: &[u8]) -> (Vec<Found>, u64) {
    let mut found = Vec::new();
    let unreadable = tree::visit_directory(fd, real, |entry| found.push(look(entry)));
    (found, unreadable)
}

struct Matching<'a> {
    glob: &'a FileGlob,
    found: Vec<Found>,
}

impl TreeVisitor for Matching<'_> {
    fn visit(&mut self, entry: &DirectoryEntry<'_>) -> WalkFlow {
        if self.glob.means(entry.name, || entry.path()) {
            self.found.push(look(entry));
        }
        WalkFlow::Go
    }
}

fn matching(
    workspace: &Workspace,
    place: &ResolvedPath,
    fd: std::os::fd::OwnedFd,
    glob: &FileGlob,
) -> (Vec<Found>, u64) {
    let start = OpenDirectory { fd, real: place.real.clone(), ignored: rules_above(workspace, &place.real) };
    let (visitors, unreadable) = tree::visit(start, 1, || Matching { glob, found: Vec::new() });
    (visitors.into_iter().flat_map(|visitor| visitor.found).collect(), unreadable)
}

/// Reads the `.gitignore` rules of all parents of a directory, from the workspace down.
pub(crate) fn rules_above(workspace: &Workspace, real: &[u8]) -> Option<Arc<Ignored>> {
    let root = workspace.root.fd();
    let mut rules = Ignored::excluded(root);
    let mut at: Option<std::os::fd::OwnedFd> = None;
    let mut here = Vec::new();
    for part in name::split(real) {
        let directory = at.as_ref().map_or(root, |fd| fd.as_fd());
        rules = Ignored::enter(rules, directory, &here);
        let Ok(next) = crate::beneath::open(
            directory,
            part,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY,
            0,
        ) else {
            break;
        };
        at = Some(next);
        if !here.is_empty() {
            here.push(b'/');
        }
        here.extend_from_slice(part);
    }
    rules
}

fn look(entry: &DirectoryEntry<'_>) -> Found {
    let size = (entry.kind == FileType::RegularFile)
        .then(|| rustix::fs::statat(&entry.directory.fd, entry.name, AtFlags::SYMLINK_NOFOLLOW).ok())
        .flatten()
        .and_then(|stat| u64::try_from(stat.st_size).ok());
    Found { path: entry.path(), kind: entry.kind, size }
}
