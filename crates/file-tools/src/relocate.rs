//! `move`: a new name for a file or a folder, in one step.
//!
//! A folder with something protected in it stays where it is, and nothing gets a protected name: otherwise `.git` could be
//! renamed away and put back with other contents.

use rustix::fs::{AtFlags, FileType, RenameFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::beneath::{Last, Place, Purpose, explain};
use crate::contents;
use crate::name::{self, WorkPath};
use crate::protected;
use crate::refusal::{Code, Refusal};
use crate::request::Move;
use crate::tree::{self, Entry, Flow};
use crate::workspace::Workspace;
use crate::write::{check_movable, settle, turn};

/// What was renamed.
#[derive(Debug, Serialize)]
pub struct Moved {
    /// What it was called.
    pub from: String,
    /// What it is called.
    pub to: String,
}

pub(crate) fn relocate(workspace: &Workspace, request: &Move) -> Result<Moved, Refusal> {
    let (from, to) = (workspace.root.parse(&request.from)?, workspace.root.parse(&request.to)?);
    let _turn = turn(workspace, &from)?;
    let source = workspace.root.find(&from, Last::Keep, Purpose::Change)?;
    match check_movable(&source, &from)? {
        FileType::Directory => check_contents(&source, &from)?,
        // Not a link either: a relative one would point elsewhere from its new place.
        _ => contents::check_kind(source.found(&from)?, from.said())?,
    }
    check_apart(&source, &from, &to)?;
    let target = workspace.root.find(&to, Last::Keep, Purpose::Make)?;
    if target.found.is_some() {
        return Err(Refusal::exists(to.said()));
    }
    rename(&source, &target).map_err(|refused| match refused {
        Errno::EXIST | Errno::NOTEMPTY => Refusal::exists(to.said()),
        other => explain(from.said(), other, Code::WriteFailed),
    })?;
    settle(&source);
    settle(&target);
    Ok(Moved { from: source.shown(), to: target.shown() })
}

/// Before any folder is made for it.
fn check_apart(source: &Place, from: &WorkPath, to: &WorkPath) -> Result<(), Refusal> {
    let target = to.parts();
    let below = name::split(&source.real).zip(&target).filter(|(a, b)| a == b).count();
    if below == name::split(&source.real).count() && target.len() > below {
        return Err(Refusal::invalid(
            format!("`{}` cannot be moved into itself", from.said()),
            "choose a path that is not below it",
        ));
    }
    Ok(())
}

fn rename(source: &Place, target: &Place) -> Result<(), Errno> {
    let (from, to) = (source.name.as_slice(), target.name.as_slice());
    let moved = rustix::fs::renameat_with(&source.folder, from, &target.folder, to, RenameFlags::NOREPLACE);
    let is_file = source
        .found
        .as_ref()
        .is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    match moved {
        // A file system without this kind of renaming.
        Err(Errno::INVAL | Errno::NOSYS) if is_file => {
            rustix::fs::linkat(&source.folder, from, &target.folder, to, AtFlags::empty())?;
            rustix::fs::unlinkat(&source.folder, from, AtFlags::empty())
        }
        other => other,
    }
}

fn check_contents(source: &Place, path: &WorkPath) -> Result<(), Refusal> {
    let mut protected = None;
    let visit = |entry: &Entry<'_>| {
        if protected::is_protected(entry.name) {
            protected = Some(entry.path());
            return Flow::Stop;
        }
        Flow::Go
    };
    let unreadable = tree::visit_everything(source.open_folder(path)?, &source.real, visit);
    if let Some(found) = protected {
        return Err(Refusal::protected(&name::show(&found)));
    }
    if unreadable > 0 {
        return Err(Refusal::new(
            Code::WriteFailed,
            format!("`{}` has folders in it that cannot be looked into", path.said()),
            "something protected may be in them; move the files one by one",
        ));
    }
    Ok(())
}
