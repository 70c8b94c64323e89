//! The file system view of one agent: its mounts, its writable and hidden paths, and the protected paths in them.
//!
//! Holds the view while it is built ([`crate::layout_builder`]) and answers questions about it. A deeper mount overrides the mounts above
//! it: a visible path shows inside of a hidden one, and a hidden path stays hidden inside of a writable one.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use model::{OnCreate, PRIVATE_DIRECTORIES as PRIVATE, Protected};

use crate::mount_plan::Mount;
use crate::quarantine::{Quarantine, QuarantineTime};
use crate::real_path::real_path;
use crate::untrusted_paths::UntrustedPaths;
use crate::writable_roots::HeldRoots;

/// The file system view of an agent.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Sorted: parents before children.
    pub mounts: Vec<(PathBuf, Mount)>,
    /// The writable roots.
    pub writable: Vec<PathBuf>,
    /// The hidden paths, without links.
    pub hidden: Vec<PathBuf>,
    /// Is true if a hidden path is mounted a second time. The alias is hidden, too.
    pub has_aliases: bool,
    /// Protected paths that no mount can protect, such as symbolic links.
    pub unprotected: Vec<PathBuf>,
    /// Protected paths that do not exist.
    pub quarantine: Quarantine,
    /// The open writable roots.
    pub held_roots: HeldRoots,
    /// The reason why the repository around a workspace is read-only.
    pub git_read_only: Option<String>,
    /// Visible paths inside of the absent home directory: exposed parts, and the repository around a workspace.
    pub exposed: Vec<PathBuf>,
    /// Paths that other active runs may have created.
    pub untrusted: UntrustedPaths,
}

impl Layout {
    /// Hides a path.
    pub fn hide(&mut self, path: PathBuf, is_directory: bool) {
        self.hidden.push(path.clone());
        self.mounts.push((path, if is_directory { Mount::HideDirectory } else { Mount::HideFile }));
    }

    /// Makes a path read-only and pins every directory between it and its writable root: renaming such a directory would move the path
    /// away, and another could be created in its place. A missing path is left to the quarantine.
    pub fn protect(&mut self, protected: &Protected) {
        let Some((mut path, rest)) = self.split_at_root(&protected.path) else { return };
        let mut rest = rest.components().peekable();
        while let Some(Component::Normal(name)) = rest.next() {
            path.push(name);
            let is_last = rest.peek().is_none();
            let found = if self.untrusted.contains(&path) {
                Err(io::ErrorKind::NotFound.into())
            } else {
                path.symlink_metadata()
            };
            if found.as_ref().is_ok_and(fs::Metadata::is_symlink) {
                self.unprotected.push(path);
                return;
            }
            match found {
                Ok(found) if found.is_dir() && !is_last => self.mounts.push((path.clone(), Mount::Write)),
                // This includes a file in place of a directory: the `.git` of a linked worktree.
                Ok(_) => {
                    self.mounts.push((path, Mount::Read));
                    return;
                }
                Err(_) => {
                    let time = match protected.on_create {
                        OnCreate::Keep => return,
                        _ if !is_last && path.ends_with(".git") => QuarantineTime::AtEndUnlessInert,
                        // A parent directory of a file that the git configuration includes.
                        _ if !is_last => QuarantineTime::AtEnd,
                        OnCreate::QuarantineAtOnce => QuarantineTime::AtOnce,
                        OnCreate::QuarantineAtEnd => QuarantineTime::AtEnd,
                    };
                    self.quarantine.add(path, time);
                    return;
                }
            }
        }
    }

    /// Splits a path into its outermost writable root and the rest. Returns `None` for a path outside of all roots.
    pub fn split_at_root(&self, path: &Path) -> Option<(PathBuf, PathBuf)> {
        // Links inside of a workspace are not resolved here: `protect` detects and rejects them.
        let holds = |root: &&PathBuf| path.starts_with(root);
        if let Some(root) = self.writable.iter().filter(holds).min_by_key(|root| root.components().count()) {
            return Some((root.clone(), path.strip_prefix(root).ok()?.to_owned()));
        }
        // The existing part is resolved; the rest has no links.
        let whole = path.ancestors().skip(1).find_map(|above| {
            let real = real_path(above).ok()?;
            Some(real.join(path.strip_prefix(above).ok()?))
        })?;
        let root = self
            .writable
            .iter()
            .filter(|root| whole.starts_with(root))
            .min_by_key(|root| root.components().count())?;
        Some((root.clone(), whole.strip_prefix(root).ok()?.to_owned()))
    }

    /// Returns whether an agent can write to a path: the deepest mount decides.
    pub fn is_writable(&self, path: &Path) -> bool {
        let above = self.mounts.iter().filter(|(at, _)| path.starts_with(at));
        let innermost = above.max_by_key(|(at, mount)| (at.components().count(), mount));
        innermost.is_some_and(|(_, mount)| *mount == Mount::Write)
    }

    /// Returns whether the machine's file at a path is visible inside: the deepest mount decides.
    pub fn is_visible(&self, path: &Path) -> bool {
        let private = PRIVATE.iter().map(|directory| (Path::new(directory), false));
        let mounts = self.mounts.iter().map(|(at, mount)| (at.as_path(), !mount.is_mask()));
        let above = private.chain(mounts).filter(|(at, _)| path.starts_with(at));
        above.max_by_key(|(at, shows)| (at.components().count(), !shows)).is_none_or(|(_, shows)| shows)
    }
}
