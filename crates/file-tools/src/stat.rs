//! `stat`: what a path is, and what holds the process that tells.

use rustix::fs::{FileType, OFlags};
use serde::Serialize;

use crate::beneath::{self, Last, Purpose, kind};
use crate::contents::{self, FILE_LIMIT, kind_word};
use crate::lock::Held;
use crate::name;
use crate::refusal::Refusal;
use crate::request::Stat;
use crate::workspace::Workspace;

/// What a path is.
#[derive(Debug, Serialize)]
pub struct Facts {
    /// The path, without links on the way.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`. A link itself, not what it points to.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Bytes.
    pub size: u64,
    /// As `ls` and `chmod` write it.
    pub mode: String,
    /// Seconds since 1970.
    pub modified: i64,
    /// How many names the file has.
    pub links: u64,
    /// What a link points to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Whether `read` would read it.
    pub readable: bool,
    /// Whether every change to it is refused.
    pub protected: bool,
    /// What holds the process.
    pub confinement: Held,
}

pub(crate) fn stat(workspace: &Workspace, request: &Stat) -> Result<Facts, Refusal> {
    let path = workspace.root.parse(&request.path)?;
    let place = workspace.root.find(&path, Last::Keep, Purpose::Look)?;
    let found = place.found(&path)?;
    let size = u64::try_from(found.st_size).unwrap_or(0);
    Ok(Facts {
        path: place.shown(),
        kind: kind_word(kind(found)),
        size,
        mode: format!("{:04o}", found.st_mode & 0o7777),
        modified: found.st_mtime,
        links: links(found),
        target: (kind(found) == FileType::Symlink).then(|| target(&place)).flatten(),
        readable: size <= FILE_LIMIT && contents::open(workspace, &place, &path).is_ok(),
        protected: workspace.root.find(&path, Last::Keep, Purpose::Change).is_err(),
        confinement: workspace.held,
    })
}

#[allow(clippy::useless_conversion, reason = "the kernel's own type differs between processors")]
fn links(stat: &rustix::fs::Stat) -> u64 {
    stat.st_nlink.into()
}

fn target(place: &beneath::Place) -> Option<String> {
    let link = place.open(OFlags::PATH).ok()?;
    let target = rustix::fs::readlinkat(link, "", Vec::new()).ok()?;
    Some(name::show(target.to_bytes()).into_owned())
}
