//! `stat`: describes a path and the confinement of this process.

use rustix::fs::{FileType, OFlags};
use serde::Serialize;

use crate::beneath::{self, FinalLink, LookupPurpose, kind};
use crate::contents::{self, FILE_LIMIT, kind_word};
use crate::lock::AppliedConfinement;
use crate::name;
use crate::rejection::FileRejection;
use crate::request::StatRequest;
use crate::workspace::Workspace;

/// The reply to `stat`.
#[derive(Debug, Serialize)]
pub struct StatReply {
    /// The path, without links.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`. Links are not followed.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The size in bytes.
    pub size: u64,
    /// The mode in octal.
    pub mode: String,
    /// Seconds since 1970.
    pub modified: i64,
    /// The number of hard links.
    pub links: u64,
    /// The target of a symlink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// True if `read` accepts it.
    pub readable: bool,
    /// True if changes to it are rejected.
    pub protected: bool,
    /// The confinement of this process.
    pub confinement: AppliedConfinement,
}

pub(crate) fn stat(workspace: &Workspace, request: &StatRequest) -> Result<StatReply, FileRejection> {
    let path = workspace.root.parse(&request.path)?;
    let place = workspace.root.find(&path, FinalLink::Keep, LookupPurpose::Look)?;
    let found = place.found(&path)?;
    let size = u64::try_from(found.st_size).unwrap_or(0);
    Ok(StatReply {
        path: place.shown(),
        kind: kind_word(kind(found)),
        size,
        mode: format!("{:04o}", found.st_mode & 0o7777),
        modified: found.st_mtime,
        links: links(found),
        target: (kind(found) == FileType::Symlink).then(|| target(&place)).flatten(),
        readable: size <= FILE_LIMIT && contents::open(workspace, &place, &path).is_ok(),
        protected: workspace.root.find(&path, FinalLink::Keep, LookupPurpose::Change).is_err(),
        confinement: workspace.held,
    })
}

#[allow(clippy::useless_conversion, reason = "the kernel's own type differs between processors")]
fn links(stat: &rustix::fs::Stat) -> u64 {
    stat.st_nlink.into()
}

fn target(place: &beneath::ResolvedPath) -> Option<String> {
    let link = place.open(OFlags::PATH).ok()?;
    let target = rustix::fs::readlinkat(link, "", Vec::new()).ok()?;
    Some(name::show(target.to_bytes()).into_owned())
}
