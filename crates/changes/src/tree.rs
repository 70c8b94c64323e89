//! Writes trees, which git compares.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::entry::{Entry, decode_id};
use crate::error::ChangesError;
use crate::pack::{ObjectKind, ObjectPack};

const DIRECTORY: u32 = 0o040_000;

/// Writes the tree of some files and returns its id. A file in place of a directory above another one is left out.
pub(crate) fn write_tree<'a>(
    pack: &mut ObjectPack,
    files: impl IntoIterator<Item = (&'a Path, &'a Entry)>,
) -> Result<String, ChangesError> {
    let mut root = Directory::default();
    for (path, entry) in files {
        root.insert(path.as_os_str().as_bytes(), entry);
    }
    root.write(pack)
}

#[derive(Default)]
struct Directory<'a> {
    files: BTreeMap<&'a [u8], &'a Entry>,
    directories: BTreeMap<&'a [u8], Directory<'a>>,
}

impl<'a> Directory<'a> {
    fn insert(&mut self, path: &'a [u8], entry: &'a Entry) {
        match path.iter().position(|byte| *byte == b'/') {
            None => drop(self.files.insert(path, entry)),
            Some(end) => {
                self.directories.entry(&path[..end]).or_default().insert(&path[end + 1..], entry);
            }
        }
    }

    fn write(self, pack: &mut ObjectPack) -> Result<String, ChangesError> {
        let mut entries: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let encode = |mode: u32, name: &[u8], oid: &str| {
            [format!("{mode:o} ").as_bytes(), name, b"\0", &decode_id(oid)].concat()
        };
        for (name, entry) in self.files.into_iter().filter(|(name, _)| !self.directories.contains_key(name)) {
            entries.insert(name.to_owned(), encode(entry.mode, name, &entry.oid));
        }
        for (name, directory) in self.directories {
            // Git sorts directories as if their names ended with a slash.
            entries.insert([name, b"/"].concat(), encode(DIRECTORY, name, &directory.write(pack)?));
        }
        let content: Vec<u8> = entries.into_values().flatten().collect();
        let id = pack.add(ObjectKind::Tree, &content)?;
        id.ok_or(ChangesError::UnexpectedOutput { command: "write-tree" })
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the trees are compared with those of git")]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::git::{Git, GitProgram, GitSession};
    use crate::index_file::PrivateIndex;

    #[test]
    fn tree_is_that_of_git() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let program = GitProgram { program: "git".into(), path: std::env::var_os("PATH").unwrap() };
        let session = GitSession::start(program, Duration::from_mins(1));
        let (git_dir, user_objects) = (root.join("git"), root.join("objects"));
        let git = Git { git_dir, worktree: root.to_owned(), user_objects, id_length: 40, session };
        git.command("init").args(["-q"]).run().unwrap();
        let mut entries: BTreeMap<PathBuf, Entry> = BTreeMap::new();
        let names = ["a/b", "a/b.c", "a/b/d", "a-b", "a.b", "a0", "a/c/e", "b", "b/c"];
        for (name, mode) in names.into_iter().zip([0o100_644, 0o100_755, 0o120_000, 0o160_000].repeat(3)) {
            entries.insert(name.into(), Entry { mode, oid: "7".repeat(40) });
        }
        let mut index = PrivateIndex::default();
        for (path, entry) in &entries {
            index.insert(path, entry);
        }
        index.write(&root.join("index"), 40).unwrap();
        let expected = git.command("write-tree").args(["--missing-ok"]).index(&root.join("index")).run();
        let mut pack = ObjectPack::new(&git);
        let tree =
            write_tree(&mut pack, entries.iter().map(|(path, entry)| (path.as_path(), entry))).unwrap();
        pack.finish().unwrap();
        assert_eq!(tree, String::from_utf8(expected.unwrap()).unwrap().trim());
        let listed = git.command("ls-tree").args(["-r", "--name-only", &tree]).run().unwrap();
        assert_eq!(String::from_utf8(listed).unwrap(), "a-b\na.b\na/b.c\na/b/d\na/c/e\na0\nb/c\n");
    }
}
