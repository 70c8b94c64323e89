//! `list`: what is in a folder, or which files below it a glob means.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType};
use serde::Serialize;

use crate::beneath::{Last, Place, Purpose, kind};
use crate::contents::kind_word;
use crate::glob::FileGlob;
use crate::ignored::Ignored;
use crate::name;
use crate::refusal::Refusal;
use crate::request::List;
use crate::tree::{self, Entry, Flow, Folder, Visitor};
use crate::workspace::Workspace;

/// More than anybody reads.
const MOST: usize = 2000;

/// What is there.
#[derive(Debug, Serialize)]
pub struct Listing {
    /// The folder, without links.
    pub path: String,
    /// What is in it, by name.
    pub entries: Vec<Listed>,
    /// How many there are in all.
    pub total: u64,
    /// Whether some are left out.
    pub truncated: bool,
    /// Folders that could not be read.
    #[serde(skip_serializing_if = "is_zero")]
    pub unreadable_folders: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One of them.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// Its path in the workspace. Can be given back as it is.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Bytes of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// What was found so far.
struct Found {
    path: Vec<u8>,
    kind: FileType,
    size: Option<u64>,
}

pub(crate) fn list(workspace: &Workspace, request: &List) -> Result<Listing, Refusal> {
    let path = workspace.root.parse(&request.path)?;
    let place = workspace.root.find(&path, Last::Follow, Purpose::Look)?;
    if kind(place.found(&path)?) != FileType::Directory {
        return Err(Refusal::not_a_directory(path.said()));
    }
    let glob = request.glob.as_deref().map(|glob| FileGlob::parse(glob, &place.real)).transpose()?;
    let fd = place.open_folder(&path)?;
    let (mut found, unreadable_folders) = match &glob {
        None => directly(fd, &place.real),
        Some(glob) => matching(workspace, &place, fd, glob),
    };
    found.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    let total = found.len() as u64;
    let truncated = found.len() > MOST;
    let entries = found.into_iter().take(MOST).map(|found| Listed {
        path: name::show(&found.path).into_owned(),
        kind: kind_word(found.kind),
        size: found.size,
    });
    Ok(Listing { path: place.shown(), entries: entries.collect(), total, truncated, unreadable_folders })
}

fn directly(fd: std::os::fd::OwnedFd, real: &[u8]) -> (Vec<Found>, u64) {
    let mut found = Vec::new();
    let unreadable = tree::visit_folder(fd, real, |entry| found.push(look(entry)));
    (found, unreadable)
}

struct Matching<'a> {
    glob: &'a FileGlob,
    found: Vec<Found>,
}

impl Visitor for Matching<'_> {
    fn visit(&mut self, entry: &Entry<'_>) -> Flow {
        if self.glob.means(entry.name, || entry.path()) {
            self.found.push(look(entry));
        }
        Flow::Go
    }
}

fn matching(
    workspace: &Workspace,
    place: &Place,
    fd: std::os::fd::OwnedFd,
    glob: &FileGlob,
) -> (Vec<Found>, u64) {
    let start = Folder { fd, real: place.real.clone(), ignored: rules_above(workspace, &place.real) };
    let (visitors, unreadable) = tree::visit(start, 1, || Matching { glob, found: Vec::new() });
    (visitors.into_iter().flat_map(|visitor| visitor.found).collect(), unreadable)
}

/// The rules of `.gitignore` files above a folder, from the workspace down.
pub(crate) fn rules_above(workspace: &Workspace, real: &[u8]) -> Option<Arc<Ignored>> {
    let root = workspace.root.fd();
    let mut rules = Ignored::excluded(root);
    let mut at: Option<std::os::fd::OwnedFd> = None;
    let mut here = Vec::new();
    for part in name::split(real) {
        let folder = at.as_ref().map_or(root, |fd| fd.as_fd());
        rules = Ignored::enter(rules, folder, &here);
        let Ok(next) =
            crate::beneath::open(folder, part, rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY, 0)
        else {
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

fn look(entry: &Entry<'_>) -> Found {
    let size = (entry.kind == FileType::RegularFile)
        .then(|| rustix::fs::statat(&entry.folder.fd, entry.name, AtFlags::SYMLINK_NOFOLLOW).ok())
        .flatten()
        .and_then(|stat| u64::try_from(stat.st_size).ok());
    Found { path: entry.path(), kind: entry.kind, size }
}
