//! What has no protected name itself, and is what a protected name leads to.
//!
//! When `.claude` is a link to `settings/claude`, who may write there may write `.claude`. The same holds for every link on the way,
//! and for what is not there yet. Only names at the top of the workspace are looked at, anew for each change.

use std::fs::File;
use std::io::Read as _;

use rustix::fs::{AtFlags, FileType, OFlags, Stat};

use crate::beneath::{self, Identity, Root, identity, kind};
use crate::protected;

/// No `.git` file is longer.
const LONGEST: u64 = 8192;

/// What must not be changed, by whichever name.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    identities: Vec<Identity>,
    /// Paths in the workspace, also of what is not there.
    paths: Vec<Vec<u8>>,
}

impl Pins {
    /// Those of a workspace, as it is now.
    pub(crate) fn of(root: &Root) -> Self {
        let mut pins = Self::default();
        for name in protected::NAMES {
            let Ok(stat) = rustix::fs::statat(root.fd(), name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let target = match kind(&stat) {
                FileType::Symlink => Some(name.to_owned()),
                FileType::RegularFile if name == ".git" => git_folder(root),
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

    /// Whether this very file is pinned.
    pub(crate) fn has(&self, stat: &Stat) -> bool {
        self.identities.contains(&identity(stat))
    }

    /// Whether a path is pinned, is below something pinned, or has it below itself.
    pub(crate) fn concern(&self, path: &[u8]) -> bool {
        self.paths.iter().any(|pin| is_at_or_below(path, pin) || is_at_or_below(pin, path))
    }
}

fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// What a `.git` that is a file points to.
fn git_folder(root: &Root) -> Option<String> {
    let file = File::from(beneath::open(root.fd(), b".git", OFlags::RDONLY | OFlags::NONBLOCK, 0).ok()?);
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text.strip_prefix("gitdir:")?.trim().to_owned())
}
