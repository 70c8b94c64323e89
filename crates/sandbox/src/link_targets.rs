//! Protects what symbolic links lead to, where git would run or obey it: a hook may be a link to a script in the workspace, and the
//! user's configuration one to a file in a repository of such files.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use model::{Protected, is_in_products};

use crate::layout::{Layout, Mount};

/// How many links the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// A path with its links followed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FollowedPath {
    /// Each link on the way, by its real path.
    pub links: Vec<PathBuf>,
    /// Where the path leads, whether that exists or not.
    pub end: PathBuf,
}

impl FollowedPath {
    /// Follows the links of an absolute path.
    pub fn of(path: &Path) -> Self {
        let parts = |path: &Path| -> Vec<OsString> {
            path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
        };
        let (mut links, mut end, mut rest) = (Vec::new(), PathBuf::new(), parts(path));
        while let Some(part) = rest.pop() {
            match Path::new(&part).components().next() {
                Some(Component::ParentDir) => drop(end.pop()),
                Some(Component::CurDir) | None => {}
                // An absolute target starts with `/`, which takes the place of all before.
                Some(_) => {
                    let next = end.join(&part);
                    match fs::read_link(&next) {
                        Ok(target) if links.len() < MAX_LINKS => {
                            links.push(next);
                            rest.extend(parts(&target));
                        }
                        _ => end = next,
                    }
                }
            }
        }
        Self { links, end }
    }
}

impl Layout {
    /// Protects paths and their targets, where an agent could write to them. Links on the way that an agent could replace are reported
    /// as unprotected.
    pub fn protect_followed(&mut self, protected: impl IntoIterator<Item = Protected>) {
        let mut ends = Vec::new();
        for Protected { path, on_create } in protected {
            let FollowedPath { links, end } = FollowedPath::of(&path);
            for link in links {
                if self.can_be_written(&link) {
                    self.protect(&Protected { path: link, on_create });
                }
            }
            ends.push(Protected { path: end, on_create });
        }
        // A directory that is read-only as a whole comes before its contents, which then need no mount.
        ends.sort_by_key(|protected| protected.path.components().count());
        for protected in ends {
            if self.can_be_written(&protected.path) {
                self.protect(&protected);
                self.unpin_below(&protected.path);
            }
        }
    }

    /// Leaves no directory writable in one that is read-only as a whole, such as one that was pinned for a repository in it.
    fn unpin_below(&mut self, directory: &Path) {
        if self.can_be_written(directory) {
            return;
        }
        let Self { mounts, write, .. } = self;
        let is_pin = |at: &PathBuf| at != directory && at.starts_with(directory) && !write.contains(at);
        mounts.retain(|(at, mount)| *mount != Mount::Write || !is_pin(at));
    }

    /// Returns the links in a directory of hooks, unless they lead to packages, which are replaced as a whole.
    pub fn linked_hooks(&self, hooks: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(hooks).into_iter().flatten().flatten();
        let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        let is_ours = |path: &PathBuf| {
            let below = self.below_a_root(&FollowedPath::of(path).end);
            below.is_none_or(|(_, rest)| !is_in_products(&rest))
        };
        links.map(|entry| entry.path()).filter(is_ours).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_to_what_exists_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("a/b", root.join("link")).unwrap();
        symlink(root.join("link/../missing/x"), root.join("a/b/first")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let followed = FollowedPath::of(&root.join("link/first"));
        assert_eq!(followed.links, ["link", "a/b/first", "link"].map(|name| root.join(name)));
        assert_eq!(followed.end, root.join("a/missing/x"));
        assert_eq!(FollowedPath::of(&root.join("loop")).end, root.join("loop"));
        let plain = FollowedPath { links: Vec::new(), end: root.join("a/b/c") };
        assert_eq!(FollowedPath::of(&root.join("a/./b/c")), plain);
    }
}
