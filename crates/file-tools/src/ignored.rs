//! What `.gitignore` leaves out, read through the workspace's own door.
//!
//! The matching is the `ignore` crate's. Its walker is not used: it goes by paths, and a folder that becomes a link under way
//! would lead it out. For the same reason nothing above the workspace and nobody's global file counts.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::OFlags;

use crate::beneath::{self, os};

/// The files with rules, the later the stronger.
const FILES: [&[u8]; 2] = [b".gitignore", b".ignore"];
/// No rules are longer, and a longer file is not read.
const LONGEST: u64 = 1024 * 1024;

/// The rules that hold in a folder: its own, and behind them those of the folders above.
#[derive(Debug)]
pub(crate) struct Ignored {
    above: Option<Arc<Ignored>>,
    /// How many bytes of a path come before what the rules are about.
    prefix: usize,
    rules: Gitignore,
}

impl Ignored {
    /// Whether `name` is the name of a file with rules.
    pub(crate) fn is_rules(name: &[u8]) -> bool {
        FILES.contains(&name)
    }

    /// The rules in a folder. `real` is its path in the workspace.
    pub(crate) fn enter(above: Option<Arc<Self>>, folder: BorrowedFd<'_>, real: &[u8]) -> Option<Arc<Self>> {
        FILES.iter().fold(above, |above, file| Self::add(above, folder, file, real))
    }

    /// What git itself leaves out in this clone, without a file that others see.
    pub(crate) fn excluded(workspace: BorrowedFd<'_>) -> Option<Arc<Self>> {
        let folder = |above, name| beneath::open(above, name, OFlags::PATH | OFlags::DIRECTORY, 0).ok();
        let git = folder(workspace, b".git".as_slice())?;
        let info = folder(std::os::fd::AsFd::as_fd(&git), b"info".as_slice())?;
        Self::add(None, std::os::fd::AsFd::as_fd(&info), b"exclude", b"")
    }

    fn add(above: Option<Arc<Self>>, folder: BorrowedFd<'_>, file: &[u8], real: &[u8]) -> Option<Arc<Self>> {
        let Some(rules) = rules(folder, file).filter(|rules| !rules.is_empty()) else { return above };
        let prefix = if real.is_empty() { 0 } else { real.len() + 1 };
        Some(Arc::new(Self { above, prefix, rules }))
    }

    /// Whether the nearest rule that says anything about a path leaves it out.
    pub(crate) fn ignores(&self, path: &[u8], is_folder: bool) -> bool {
        let mut here = Some(self);
        while let Some(ignored) = here {
            match ignored.rules.matched(os(&path[ignored.prefix..]), is_folder) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => here = ignored.above.as_deref(),
            }
        }
        false
    }
}

fn rules(folder: BorrowedFd<'_>, name: &[u8]) -> Option<Gitignore> {
    let fd = beneath::open(folder, name, OFlags::RDONLY | OFlags::NONBLOCK, 0).ok()?;
    let file = File::from(fd);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    let mut builder = GitignoreBuilder::new(".");
    for line in String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').lines() {
        // A line that cannot be read is left out, as git does.
        let _ = builder.add_line(None, line);
    }
    builder.build().ok()
}
