//! Finds unprotected paths that protected names link to.
//!
//! If `.claude` links to `settings/claude`, a write there is a write to `.claude`. The same applies to every link in between,
//! and to missing targets. Only names at the top of the workspace are checked, again for each change.

use std::fs::File;
use std::io::Read as _;

use rustix::fs::{AtFlags, FileType, OFlags, Stat};

use crate::beneath::{self, FileIdentity, WorkspaceRoot, identity, kind};
use crate::protected;

/// The maximum size of a `.git` file.
const LONGEST: u64 = 8192;

/// The files that must not be changed under any name.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    identities: Vec<FileIdentity>,
    /// Paths in the workspace, including missing ones.
    paths: Vec<Vec<u8>>,
}

impl Pins {
    /// Reads the pinned files of a workspace.
    pub(crate) fn of(root: &WorkspaceRoot) -> Self {
        let mut pins = Self::default();
        for name in protected::NAMES {
            let Ok(stat) = rustix::fs::statat(root.fd(), name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let target = match kind(&stat) {
                FileType::Symlink => Some(name.to_owned()),
                FileType::RegularFile if name == ".git" => git_directory(root),
                _ => None,
            };
            if let Some(path) = target.and_then(|target| root.parse(&target).ok()) {
                let (found, crossed) = root.trace(&path);
                pins.identities.extend(found.as_ref().map(identity));
                pins.paths.extend(crossed);
            }
        }
        pins
    }

    /// Returns whether this file is pinned.
    pub(crate) fn has(&self, stat: &Stat) -> bool {
        self.identities.contains(&identity(stat))
    }

    /// Returns whether a path is pinned, or is above or below a pinned path.
    pub(crate) fn concern(&self, path: &[u8]) -> bool {
        self.paths.iter().any(|pin| is_at_or_below(path, pin) || is_at_or_below(pin, path))
    }
}

fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Reads the target of a `.git` file.
fn git_directory(root: &WorkspaceRoot) -> Option<String> {
    let file = File::from(beneath::open(root.fd(), b".git", OFlags::RDONLY | OFlags::NONBLOCK, 0).ok()?);
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text.strip_prefix("gitdir:")?.trim().to_owned())
}
