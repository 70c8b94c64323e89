//! Reads directories for comparison.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The state of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The type and the permissions.
    pub mode: u32,
    /// The bytes of a file or the target of a link. Empty for anything else, and for an unreadable file.
    pub content: Vec<u8>,
    /// The modification time, or zero if it is not compared.
    modified: (i64, i64),
}

/// The files and directories below a directory, by their relative paths.
pub type FileTree = BTreeMap<PathBuf, Node>;

/// Reads everything below a directory, with modification times. Skips the selected paths and everything below.
pub fn read_exact(root: &Path, skip: impl Fn(&Path) -> bool) -> FileTree {
    let mut tree = FileTree::new();
    read_directory(root, Path::new(""), &skip, &mut tree);
    tree
}

/// Reads everything below a directory but git directories, without modification times.
pub fn read_worktree(root: &Path) -> FileTree {
    let mut tree = read_exact(root, |path| path.file_name().is_some_and(|name| name == ".git"));
    for node in tree.values_mut() {
        node.modified = (0, 0);
    }
    tree
}

/// Asserts that two trees are the same, and names the paths that differ.
#[track_caller]
pub fn assert_same_tree(before: &FileTree, after: &FileTree, step: &str) {
    let paths: std::collections::BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
    let differs = |path: &&&PathBuf| before.get(**path) != after.get(**path);
    let show =
        |path: &PathBuf| format!("{}: {:?} -> {:?}", path.display(), before.get(path), after.get(path));
    let different: Vec<String> = paths.iter().filter(differs).map(|path| show(path)).collect();
    assert!(different.is_empty(), "{step} changed {different:#?}");
}

fn read_directory(root: &Path, below: &Path, skip: &impl Fn(&Path) -> bool, tree: &mut FileTree) {
    let Ok(entries) = fs::read_dir(root.join(below)) else { return };
    for entry in entries {
        let path = below.join(entry.unwrap().file_name());
        if skip(&path) {
            continue;
        }
        let found = fs::symlink_metadata(root.join(&path)).unwrap();
        let content = if found.is_symlink() {
            fs::read_link(root.join(&path)).unwrap().into_os_string().into_encoded_bytes()
        } else if found.is_file() {
            fs::read(root.join(&path)).unwrap_or_default()
        } else {
            Vec::new()
        };
        let modified = (found.mtime(), found.mtime_nsec());
        tree.insert(path.clone(), Node { mode: found.mode(), content, modified });
        if found.is_dir() {
            read_directory(root, &path, skip, tree);
        }
    }
}
