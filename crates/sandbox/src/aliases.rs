//! Other names of the same thing: where a file system, or a part of it, is mounted a second time.
//!
//! What is hidden by its name alone would show under the other one. A copy (a snapshot, a link count above one) is no other name
//! of a folder and is not found here.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::mountinfo::{MountEntry, joined, read_mounts};

/// The mounts of this process.
#[derive(Debug, Default)]
pub(crate) struct Mounts(Vec<MountEntry>);

impl Mounts {
    /// As the kernel lists them now; none where `/proc` is missing.
    pub fn look() -> Self {
        Self(read_mounts().unwrap_or_default())
    }

    /// Where else a real path, or something below it, can be seen; not within the path itself.
    pub fn others(&self, path: &Path) -> Vec<PathBuf> {
        let mut others = self.aliases(path);
        others.retain(|other| !other.starts_with(path));
        others
    }

    /// Where else a real path, or something below it, can be seen; within the path, too.
    pub fn aliases(&self, path: &Path) -> Vec<PathBuf> {
        let mut others = self.possible(path);
        // What is mounted over another mount hides that.
        others.retain(|(other, below)| is_same(&path.join(below), other));
        others.into_iter().map(|(other, _)| other).collect()
    }

    /// Other names of a directory itself, by which its entries can be changed, too.
    pub fn names(&self, directory: &Path) -> Vec<PathBuf> {
        let whole = self.possible(directory).into_iter().filter(|(_, below)| below.as_os_str().is_empty());
        whole.map(|(other, _)| other).filter(|other| is_same(directory, other)).collect()
    }

    /// Each with the way to it from the path.
    fn possible(&self, path: &Path) -> Vec<(PathBuf, PathBuf)> {
        // Later ones cover earlier ones at the same place.
        let holding = self.0.iter().filter(|mount| path.starts_with(&mount.at));
        let Some(own) = holding.max_by_key(|mount| mount.at.components().count()) else { return Vec::new() };
        let Ok(below) = path.strip_prefix(&own.at) else { return Vec::new() };
        let within = own.root.join(below);
        let same = self.0.iter().filter(|mount| mount.device == own.device && **mount != *own);
        let other = |mount: &MountEntry| {
            if let Ok(way) = within.strip_prefix(&mount.root) {
                return Some((joined(&mount.at, way), PathBuf::new()));
            }
            // Only a part of it is mounted there.
            Some((mount.at.clone(), mount.root.strip_prefix(&within).ok()?.to_owned()))
        };
        same.filter_map(other).collect()
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
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

    fn possible(path: &str) -> Vec<PathBuf> {
        Mounts(parse_mounts(LIST.as_bytes()))
            .possible(Path::new(path))
            .into_iter()
            .map(|(other, _)| other)
            .collect()
    }

    #[test]
    fn every_mount_of_what_holds_it_or_lies_in_it_is_another_name() {
        let expected =
            ["/mnt/homes/ana/.ssh", "/mnt/two words", "/old_root/home/ana/.ssh"].map(PathBuf::from);
        assert_eq!(possible("/home/ana/.ssh"), expected);
        assert_eq!(
            possible("/mnt/homes/ana/.aws"),
            ["/home/ana/.aws", "/old_root/home/ana/.aws"].map(PathBuf::from)
        );
        assert_eq!(possible("/data/keys"), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn mount_of_a_part_is_no_name_of_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().canonicalize().unwrap();
        std::fs::create_dir(whole.join("part")).unwrap();
        // The same directory by another path, as a bind mount would show it.
        let list = format!(
            "20 1 254:0 / / rw - ext4 /dev/vda rw\n21 20 254:0 / /proc/self/root rw - ext4 /dev/vda rw\n\
             22 20 254:0 {0}/part /proc/thread-self/root{0}/part rw - ext4 /dev/vda rw",
            whole.display()
        );
        let mounts = Mounts(parse_mounts(list.as_bytes()));
        let other = PathBuf::from(format!("/proc/self/root{}", whole.display()));
        assert_eq!(mounts.names(&whole), [other]);
        assert_eq!(mounts.names(&whole.join("part")).len(), 2);
    }

    #[test]
    fn what_leads_elsewhere_is_no_other_name() {
        let folder = tempfile::tempdir().unwrap();
        // No such mounts are here.
        assert_eq!(
            Mounts(parse_mounts(LIST.as_bytes())).others(&folder.path().join("none")),
            [""; 0].map(PathBuf::from)
        );
    }
}
