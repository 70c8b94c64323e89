//! Protects the targets of symbolic links that git would run or obey: a hook may be a link to a script in the workspace, and the user's
//! configuration a link into a dotfiles repository.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use model::{Protected, is_in_products};

use crate::layout::Layout;
use crate::mount_plan::Mount;

/// The kernel's limit of links in one path.
const MAX_LINKS: usize = 40;

/// A path with its links followed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FollowedPath {
    /// Each link on the way, by its real path.
    pub links: Vec<PathBuf>,
    /// The final target, which need not exist.
    pub target: PathBuf,
}

impl FollowedPath {
    /// Follows the links of an absolute path.
    pub fn follow(path: &Path) -> Self {
        let parts = |path: &Path| -> Vec<OsString> {
            path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
        };
        let (mut links, mut target, mut rest) = (Vec::new(), PathBuf::new(), parts(path));
        while let Some(part) = rest.pop() {
            match Path::new(&part).components().next() {
                Some(Component::ParentDir) => drop(target.pop()),
                Some(Component::CurDir) | None => {}
                // An absolute target starts with `/`, which replaces everything before it.
                Some(_) => {
                    let next = target.join(&part);
                    match fs::read_link(&next) {
                        Ok(destination) if links.len() < MAX_LINKS => {
                            links.push(next);
                            rest.extend(parts(&destination));
                        }
                        _ => target = next,
                    }
                }
            }
        }
        Self { links, target }
    }
}

/// Protects paths and their link targets in writable directories. Links on the way that an agent could replace are reported as
/// unprotected.
pub(crate) fn protect_followed(layout: &mut Layout, protected: impl IntoIterator<Item = Protected>) {
    let mut targets = Vec::new();
    for Protected { path, on_create } in protected {
        let FollowedPath { links, target } = FollowedPath::follow(&path);
        for link in links {
            if layout.is_writable(&link) {
                layout.protect(&Protected { path: link, on_create });
            }
        }
        targets.push(Protected { path: target, on_create });
    }
    // A directory that is read-only as a whole comes before its contents, which then need no mount.
    targets.sort_by_key(|protected| protected.path.components().count());
    for protected in targets {
        if layout.is_writable(&protected.path) {
            layout.protect(&protected);
            unpin_below(layout, &protected.path);
        }
    }
}

/// Removes pins below a directory that is read-only as a whole, such as those of a repository in it: a pin is a writable mount.
fn unpin_below(layout: &mut Layout, directory: &Path) {
    if layout.is_writable(directory) {
        return;
    }
    let Layout { mounts, writable, .. } = layout;
    let is_pin = |at: &PathBuf| at != directory && at.starts_with(directory) && !writable.contains(at);
    mounts.retain(|(at, mount)| *mount != Mount::Write || !is_pin(at));
}

/// Returns the links in a hooks directory, without those to installed packages, which are replaced as a whole.
pub(crate) fn find_linked_hooks(layout: &Layout, hooks: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(hooks).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let is_source = |path: &PathBuf| {
        let below = layout.split_at_root(&FollowedPath::follow(path).target);
        below.is_none_or(|(_, rest)| !is_in_products(&rest))
    };
    links.map(|entry| entry.path()).filter(is_source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_to_missing_targets_too() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("a/b", root.join("link")).unwrap();
        symlink(root.join("link/../missing/x"), root.join("a/b/first")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let followed = FollowedPath::follow(&root.join("link/first"));
        assert_eq!(followed.links, ["link", "a/b/first", "link"].map(|name| root.join(name)));
        assert_eq!(followed.target, root.join("a/missing/x"));
        assert_eq!(FollowedPath::follow(&root.join("loop")).target, root.join("loop"));
        let plain = FollowedPath { links: Vec::new(), target: root.join("a/b/c") };
        assert_eq!(FollowedPath::follow(&root.join("a/./b/c")), plain);
    }
}
