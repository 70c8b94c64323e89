//! Applies `.gitignore` rules, read through the workspace's own descriptors.
//!
//! The matching is done by the `ignore` crate. Its walker is not used: it works with paths, so a directory that is swapped for
//! a link would lead it out of the workspace. For the same reason, rules above the workspace and global rules are not read.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::OFlags;

use crate::beneath::{self, os};

/// The files with rules, in increasing precedence.
const FILES: [&[u8]; 2] = [b".gitignore", b".ignore"];
/// Larger files with rules are not read.
const LONGEST: u64 = 1024 * 1024;

/// The rules of a directory, linked to those of its parents.
#[derive(Debug)]
pub(crate) struct Ignored {
    above: Option<Arc<Ignored>>,
    /// The length of the path prefix that the rules do not apply to.
    prefix: usize,
    rules: Gitignore,
}

impl Ignored {
    /// Returns whether `name` is a file with rules.
    pub(crate) fn is_rules(name: &[u8]) -> bool {
        FILES.contains(&name)
    }

    /// Reads the rules of a directory. `real` is its path in the workspace.
    pub(crate) fn enter(
        above: Option<Arc<Self>>,
        directory: BorrowedFd<'_>,
        real: &[u8],
    ) -> Option<Arc<Self>> {
        FILES.iter().fold(above, |above, file| Self::add(above, directory, file, real))
    }

    /// Reads the rules in `.git/info/exclude`.
    pub(crate) fn excluded(workspace: BorrowedFd<'_>) -> Option<Arc<Self>> {
        let directory = |above, name| beneath::open(above, name, OFlags::PATH | OFlags::DIRECTORY, 0).ok();
        let git = directory(workspace, b".git".as_slice())?;
        let info = directory(std::os::fd::AsFd::as_fd(&git), b"info".as_slice())?;
        Self::add(None, std::os::fd::AsFd::as_fd(&info), b"exclude", b"")
    }

    fn add(
        above: Option<Arc<Self>>,
        directory: BorrowedFd<'_>,
        file: &[u8],
        real: &[u8],
    ) -> Option<Arc<Self>> {
        let Some(rules) = rules(directory, file).filter(|rules| !rules.is_empty()) else { return above };
        let prefix = if real.is_empty() { 0 } else { real.len() + 1 };
        Some(Arc::new(Self { above, prefix, rules }))
    }

    /// Returns whether the nearest matching rule ignores a path.
    pub(crate) fn ignores(&self, path: &[u8], is_directory: bool) -> bool {
        let mut here = Some(self);
        while let Some(ignored) = here {
            match ignored.rules.matched(os(&path[ignored.prefix..]), is_directory) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => here = ignored.above.as_deref(),
            }
        }
        false
    }
}

fn rules(directory: BorrowedFd<'_>, name: &[u8]) -> Option<Gitignore> {
    let fd = beneath::open(directory, name, OFlags::RDONLY | OFlags::NONBLOCK, 0).ok()?;
    let file = File::from(fd);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    let mut builder = GitignoreBuilder::new(".");
    for line in String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').lines() {
        // Skips an invalid line, as git does.
        let _ = builder.add_line(None, line);
    }
    builder.build().ok()
}
