//! Other names of the same thing: where a file system, or a part of it, is mounted a second time.
//!
//! What is hidden by its name alone would show under the other one. A copy (a snapshot, a link count above one) is no other name
//! of a folder and is not found here.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mounts of this process.
#[derive(Debug, Default)]
pub(crate) struct Mounts(Vec<Mounted>);

#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    /// Which file system.
    device: String,
    /// What of it.
    root: PathBuf,
    /// Where.
    at: PathBuf,
}

impl Mounts {
    /// As the kernel lists them now; none where `/proc` is missing.
    pub fn look() -> Self {
        Self::read(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    fn read(list: &str) -> Self {
        let mounted = |line: &str| {
            let mut words = line.split(' ').skip(2);
            let device = words.next()?.to_owned();
            let (root, at) = (unescaped(words.next()?), unescaped(words.next()?));
            Some(Mounted { device, root, at })
        };
        Self(list.lines().filter_map(mounted).collect())
    }

    /// Where else a real path, or something below it, can be seen.
    pub fn others(&self, path: &Path) -> Vec<PathBuf> {
        let mut others = self.possible(path);
        // What is mounted over another mount hides that.
        others.retain(|(other, below)| is_same(&path.join(below), other));
        others.into_iter().map(|(other, _)| other).collect()
    }

    /// Each with the way to it from the path.
    fn possible(&self, path: &Path) -> Vec<(PathBuf, PathBuf)> {
        // Later ones cover earlier ones at the same place.
        let holding = self.0.iter().filter(|mount| path.starts_with(&mount.at));
        let Some(own) = holding.max_by_key(|mount| mount.at.components().count()) else { return Vec::new() };
        let Ok(below) = path.strip_prefix(&own.at) else { return Vec::new() };
        let within = own.root.join(below);
        let same = self.0.iter().filter(|mount| mount.device == own.device && **mount != *own);
        let other = |mount: &Mounted| {
            if let Ok(way) = within.strip_prefix(&mount.root) {
                return Some((joined(&mount.at, way), PathBuf::new()));
            }
            // Only a part of it is mounted there.
            Some((mount.at.clone(), mount.root.strip_prefix(&within).ok()?.to_owned()))
        };
        same.filter_map(other).filter(|(other, _)| !other.starts_with(path)).collect()
    }
}

/// Without a slash at the end, which would be another path to whoever compares.
fn joined(folder: &Path, way: &Path) -> PathBuf {
    if way.as_os_str().is_empty() { folder.to_owned() } else { folder.join(way) }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()));
    id(one).is_some_and(|found| Some(found) == id(other))
}

/// The kernel writes blanks and backslashes as three digits.
fn unescaped(word: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &after[3..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
20 1 254:0 / / rw - ext4 /dev/vda rw
21 20 0:5 / /proc rw - proc proc rw
22 20 254:0 /home /mnt/homes rw - ext4 /dev/vda rw
23 20 254:0 /home/ana/.ssh/work /mnt/two\\040words rw - ext4 /dev/vda rw
24 20 254:1 / /data rw - ext4 /dev/vdb rw
25 20 254:0 / /old_root rw - ext4 /dev/vda rw";

    fn possible(path: &str) -> Vec<PathBuf> {
        Mounts::read(LIST).possible(Path::new(path)).into_iter().map(|(other, _)| other).collect()
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
    fn what_leads_elsewhere_is_no_other_name() {
        let folder = tempfile::tempdir().unwrap();
        // No such mounts are here.
        assert_eq!(Mounts::read(LIST).others(&folder.path().join("none")), [""; 0].map(PathBuf::from));
    }
}
