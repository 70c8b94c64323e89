//! Finds links that lead out of a workspace.
//!
//! A sandboxed agent can replace a directory of its workspace by a link to any other one. The next call that names the directory
//! would make the target of the link writable.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Lookup;
use super::workspaces::KnownWorkspaces;

/// The maximum number of links that the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// A link in an earlier workspace that leads a path out of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is a link to `{}`, and an agent that worked in `{}` may have planted it",
    link.display(),
    target.display(),
    workspace.display()
)]
pub struct EscapingLink {
    /// The path in the request.
    pub given: PathBuf,
    /// The link.
    pub link: PathBuf,
    /// The content of the link.
    pub target: PathBuf,
    /// The workspace that the link is in.
    pub workspace: PathBuf,
    /// The directory that the given path leads to.
    pub real: PathBuf,
}

impl EscapingLink {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        format!("remove the link, or pass the real path itself if you mean it: `{}`", self.real.display())
    }
}

impl Lookup {
    /// Checks that no link in an earlier workspace leads an absolute path out of that workspace.
    pub fn check_links(&self, path: &Path) -> Result<(), EscapingLink> {
        let known = self.workspaces_file().map(|file| KnownWorkspaces::read(&file)).unwrap_or_default();
        find(path, &known).map_or(Ok(()), Err)
    }
}

/// Resolves a path link by link: one outside of a workspace may lead to one inside.
fn find(given: &Path, known: &KnownWorkspaces) -> Option<EscapingLink> {
    let mut pending = parts(given);
    let mut real = PathBuf::from("/");
    let mut crossed = Vec::new();
    let mut links = 0;
    while let Some(part) = pending.pop() {
        if part == ".." {
            real.pop();
            continue;
        }
        let next = real.join(part);
        let Ok(target) = fs::read_link(&next) else {
            real = next;
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            return None;
        }
        crossed.extend(known.roots_above(&real).map(|workspace| (next.clone(), target.clone(), workspace)));
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        pending.extend(parts(&target));
    }
    let (link, target, workspace) =
        crossed.into_iter().find(|(_, _, workspace)| !real.starts_with(workspace))?;
    Some(EscapingLink { given: given.to_owned(), link, target, workspace, real })
}

/// Returns the names in a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let is_name = |part: &Component| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(is_name).map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates a workspace `shop` with links, and returns its parent and what is known of it.
    fn shop() -> (tempfile::TempDir, PathBuf, KnownWorkspaces) {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        for directory in ["shop/src/deep", "private"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        symlink("../private", root.join("shop/sub")).unwrap();
        symlink("src/deep", root.join("shop/inside")).unwrap();
        symlink("shop/sub", root.join("outside")).unwrap();
        let mut known = KnownWorkspaces::default();
        known.extend([root.join("shop").as_path()]);
        (scratch, root, known)
    }

    #[test]
    fn link_out_of_an_earlier_workspace_is_found() {
        let (_scratch, root, known) = shop();
        fs::create_dir(root.join("private/below")).unwrap();
        for given in
            ["shop/sub", "shop/sub/below", "shop/src/../sub/./below", "outside", "shop/src/deep/../../sub"]
        {
            let found = find(&root.join(given), &known).expect(given);
            assert_eq!(found.link, root.join("shop/sub"), "{given}");
            assert_eq!(found.workspace, root.join("shop"), "{given}");
            assert!(found.real.starts_with(root.join("private")), "{given}");
            assert!(found.hint().contains(found.real.to_str().unwrap()));
        }
    }

    #[test]
    fn other_links_are_followed() {
        let (_scratch, root, known) = shop();
        symlink("private", root.join("mine")).unwrap();
        for given in
            ["shop", "shop/inside", "shop/src/deep", "mine", "private", "shop/missing", "shop/../private"]
        {
            assert_eq!(find(&root.join(given), &known), None, "{given}");
        }
        symlink("loop", root.join("shop/loop")).unwrap();
        assert_eq!(find(&root.join("shop/loop"), &known), None);
    }

    #[test]
    fn link_out_of_a_renamed_workspace_is_found() {
        let (_scratch, root, known) = shop();
        fs::rename(root.join("shop"), root.join("store")).unwrap();
        assert_eq!(find(&root.join("store/sub"), &known).unwrap().workspace, root.join("store"));
    }
}
