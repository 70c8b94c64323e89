//! Aliases of a path: a file system, or a part of it, that is mounted a second time.
//!
//! A path that is hidden by one name alone would be visible under its alias. Snapshots and hard links are not aliases of a directory and
//! are not found here.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::mountinfo::{MountEntry, joined, read_mounts};

/// The mounts of this process.
#[derive(Debug, Default)]
pub(crate) struct MountTable(Vec<MountEntry>);

impl MountTable {
    /// Reads the kernel's list; empty if `/proc` is missing.
    pub fn read() -> Self {
        Self(read_mounts().unwrap_or_default())
    }

    /// Returns the aliases of a real path, or of a path below it, that lie outside of the path itself.
    pub fn aliases_outside(&self, path: &Path) -> Vec<PathBuf> {
        let mut aliases = self.aliases(path);
        aliases.retain(|alias| !alias.starts_with(path));
        aliases
    }

    /// Returns the aliases of a real path, or of a path below it.
    pub fn aliases(&self, path: &Path) -> Vec<PathBuf> {
        let mut aliases = self.candidates(path);
        // A mount on top of another one hides it.
        aliases.retain(|(alias, below)| is_same_file(&path.join(below), alias));
        aliases.into_iter().map(|(alias, _)| alias).collect()
    }

    /// Returns the aliases of a directory itself, through which its entries can be changed.
    pub fn directory_aliases(&self, directory: &Path) -> Vec<PathBuf> {
        let whole = self.candidates(directory).into_iter().filter(|(_, below)| below.as_os_str().is_empty());
        whole.map(|(alias, _)| alias).filter(|alias| is_same_file(directory, alias)).collect()
    }

    /// Returns possible aliases by the mount table alone, each with the part of the path that it shows.
    fn candidates(&self, path: &Path) -> Vec<(PathBuf, PathBuf)> {
        // Later mounts cover earlier ones at the same mount point.
        let holding = self.0.iter().filter(|mount| path.starts_with(&mount.at));
        let Some(own) = holding.max_by_key(|mount| mount.at.components().count()) else { return Vec::new() };
        let Ok(below) = path.strip_prefix(&own.at) else { return Vec::new() };
        let within = own.root.join(below);
        let same = self.0.iter().filter(|mount| mount.device == own.device && **mount != *own);
        let other = |mount: &MountEntry| {
            if let Ok(rest) = within.strip_prefix(&mount.root) {
                return Some((joined(&mount.at, rest), PathBuf::new()));
            }
            // Only a part of the path is mounted there.
            Some((mount.at.clone(), mount.root.strip_prefix(&within).ok()?.to_owned()))
        };
        same.filter_map(other).collect()
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()));
    id(one).is_some_and(|found| Some(found) == id(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo::parse_mounts;

    const LIST: &str = "\
20 1 254:0 / / rw - ext4 /dev/vda rw
21 20 0:5 / /proc rw - proc proc rw
22 20 254:0 /home /mnt/homes rw - ext4 /dev/vda rw
23 20 254:0 /home/ana/.ssh/work /mnt/two\\040words rw - ext4 /dev/vda rw
24 20 254:1 / /data rw - ext4 /dev/vdb rw
25 20 254:0 / /old_root rw - ext4 /dev/vda rw";

    fn candidates(path: &str) -> Vec<PathBuf> {
        MountTable(parse_mounts(LIST.as_bytes()))
            .candidates(Path::new(path))
            .into_iter()
            .map(|(other, _)| other)
            .collect()
    }

    #[test]
    fn mounts_of_parents_and_children_are_candidates() {
        let expected =
            ["/mnt/homes/ana/.ssh", "/mnt/two words", "/old_root/home/ana/.ssh"].map(PathBuf::from);
        assert_eq!(candidates("/home/ana/.ssh"), expected);
        assert_eq!(
            candidates("/mnt/homes/ana/.aws"),
            ["/home/ana/.aws", "/old_root/home/ana/.aws"].map(PathBuf::from)
        );
        assert_eq!(candidates("/data/keys"), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn mount_of_a_part_is_no_alias_of_the_whole() {
        let directory = tempfile::tempdir().unwrap();
        let whole = directory.path().canonicalize().unwrap();
        std::fs::create_dir(whole.join("part")).unwrap();
        // The same directory by another path, as a bind mount would show it.
        let list = format!(
            "20 1 254:0 / / rw - ext4 /dev/vda rw\n21 20 254:0 / /proc/self/root rw - ext4 /dev/vda rw\n\
             22 20 254:0 {0}/part /proc/thread-self/root{0}/part rw - ext4 /dev/vda rw",
            whole.display()
        );
        let mounts = MountTable(parse_mounts(list.as_bytes()));
        let other = PathBuf::from(format!("/proc/self/root{}", whole.display()));
        assert_eq!(mounts.directory_aliases(&whole), [other]);
        assert_eq!(mounts.directory_aliases(&whole.join("part")).len(), 2);
    }

    #[test]
    fn mount_of_another_directory_is_no_alias() {
        let directory = tempfile::tempdir().unwrap();
        // The mounts of the list do not exist here.
        assert_eq!(
            MountTable(parse_mounts(LIST.as_bytes())).aliases_outside(&directory.path().join("none")),
            [""; 0].map(PathBuf::from)
        );
    }
}
