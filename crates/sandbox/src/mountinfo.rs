//! Parses the kernel's list of mounts and compares it with a plan.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountEntry {
    pub id: u64,
    pub parent: u64,
    /// The file system.
    pub device: String,
    /// The directory or file of the file system that is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub at: PathBuf,
    pub is_read_only: bool,
}

/// Reads the mounts of this process.
pub(crate) fn read_mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse_mounts(&fs::read("/proc/self/mountinfo")?))
}

/// Parses the contents of `mountinfo`.
pub(crate) fn parse_mounts(list: &[u8]) -> Vec<MountEntry> {
    list.split(|byte| *byte == b'\n').filter_map(parse_entry).collect()
}

fn parse_entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
    let (id, parent, device) = (text()?.parse().ok()?, text()?.parse().ok()?, text()?);
    let (root, at) = (unescape(fields.next()?), unescape(fields.next()?));
    let is_read_only = fields.next()?.split(|byte| *byte == b',').any(|option| option == b"ro");
    Some(MountEntry { id, parent, device, root, at, is_read_only })
}

/// Decodes the kernel's octal escapes of whitespace and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &after[3..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    OsString::from_vec(bytes).into()
}

/// A created mount as the finished namespace must list it.
#[derive(Debug)]
pub(crate) struct ExpectedMount<'a> {
    pub id: u64,
    pub at: &'a Path,
    pub source: ExpectedSource<'a>,
}

/// The contents of an expected mount.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ExpectedSource<'a> {
    /// A path of the machine.
    Bind {
        path: &'a Path,
        /// The mount that the path was opened on.
        base: u64,
        /// Is true if it is read-only even if the machine's own mount is not.
        is_read_only: bool,
    },
    /// A file system of the sandbox.
    Own { is_read_only: bool },
}

/// A path whose mount differs from the plan.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountDifference {
    pub path: PathBuf,
    pub found: &'static str,
}

/// Compares the mounts of a finished namespace (`after`) with the plan and with its initial mounts (`before`).
pub(crate) fn compare_mounts(
    expected: &[ExpectedMount<'_>],
    before: &[MountEntry],
    after: &[MountEntry],
) -> Result<(), MountDifference> {
    let comparison = Comparison {
        expected: expected.iter().map(|mount| (mount.id, mount)).collect(),
        before: before.iter().map(|entry| (entry.id, entry)).collect(),
        after: after.iter().map(|entry| (entry.id, entry)).collect(),
    };
    for mount in expected {
        comparison.check_expected(mount).map_err(|found| difference(mount.at, found))?;
    }
    for entry in after {
        comparison.check_listed(entry).map_err(|found| difference(&entry.at, found))?;
    }
    // A mount on top of a planned one hides it.
    let covered: HashSet<(u64, &Path)> =
        after.iter().map(|entry| (entry.parent, entry.at.as_path())).collect();
    match expected.iter().find(|mount| covered.contains(&(mount.id, mount.at))) {
        Some(mount) => Err(difference(mount.at, "another mount covers it")),
        None => Ok(()),
    }
}

fn difference(path: &Path, found: &'static str) -> MountDifference {
    MountDifference { path: path.to_owned(), found }
}

struct Comparison<'a> {
    expected: HashMap<u64, &'a ExpectedMount<'a>>,
    before: HashMap<u64, &'a MountEntry>,
    after: HashMap<u64, &'a MountEntry>,
}

impl Comparison<'_> {
    fn check_expected(&self, mount: &ExpectedMount<'_>) -> Result<(), &'static str> {
        let entry = self.after.get(&mount.id).ok_or("the mount is missing")?;
        if entry.at != mount.at {
            return Err("the mount moved to another path");
        }
        match mount.source {
            ExpectedSource::Own { is_read_only } => check_read_only(entry, is_read_only),
            ExpectedSource::Bind { path, base, is_read_only } => {
                let base = self.before.get(&base).ok_or("its source is on an unknown mount")?;
                let below = path.strip_prefix(&base.at).map_err(|_| "its source is on another mount")?;
                if entry.device != base.device || entry.root != joined(&base.root, below) {
                    return Err("another file is mounted");
                }
                check_read_only(entry, is_read_only || base.is_read_only)
            }
        }
    }

    /// Checks that a mount was planned, was cloned with a planned one, or is an initial mount that is read-only now.
    fn check_listed(&self, entry: &MountEntry) -> Result<(), &'static str> {
        if self.expected.contains_key(&entry.id) {
            return Ok(());
        }
        if let Some(base) = self.before.get(&entry.id) {
            let is_same = base.at == entry.at && base.root == entry.root && base.device == entry.device;
            return if is_same { check_read_only(entry, true) } else { Err("a mount of the machine moved") };
        }
        let mount = self.planned_around(entry).ok_or("unexpected mount")?;
        let ExpectedSource::Bind { path, is_read_only, .. } = mount.source else {
            return Err("unexpected mount");
        };
        let below = entry.at.strip_prefix(mount.at).map_err(|_| "a mount moved to another path")?;
        let source = joined(path, below);
        let copied = self
            .before
            .values()
            .find(|base| base.at == source && base.device == entry.device && base.root == entry.root);
        let copied = copied.ok_or("unexpected mount")?;
        check_read_only(entry, is_read_only || copied.is_read_only)
    }

    fn planned_around(&self, entry: &MountEntry) -> Option<&ExpectedMount<'_>> {
        let mut parent = entry.parent;
        // A tree is at most as deep as its number of mounts.
        for _ in 0..self.after.len() {
            if let Some(mount) = self.expected.get(&parent) {
                return Some(mount);
            }
            parent = self.after.get(&parent)?.parent;
        }
        None
    }
}

fn check_read_only(entry: &MountEntry, is_read_only: bool) -> Result<(), &'static str> {
    match (is_read_only, entry.is_read_only) {
        (true, false) => Err("it is writable"),
        (false, true) => Err("it is read-only"),
        _ => Ok(()),
    }
}

/// Joins paths without a trailing slash if the second one is empty.
pub(crate) fn joined(directory: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { directory.to_owned() } else { directory.join(below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
20 1 254:0 / / rw,nosuid - ext4 /dev/vda rw
21 20 254:1 /users /home rw,nosuid - ext4 /dev/vdb rw
22 21 254:2 / /home/ana/shop/data\\040set ro - ext4 /dev/vdc rw";

    const AFTER: &str = "\
20 1 254:0 / / ro,nosuid - ext4 /dev/vda rw
21 20 254:1 /users /home ro,nosuid - ext4 /dev/vdb rw
22 21 254:2 / /home/ana/shop/data\\040set ro - ext4 /dev/vdc rw
30 21 254:1 /users/ana/shop /home/ana/shop rw,nosuid - ext4 /dev/vdb rw
31 30 254:2 / /home/ana/shop/data\\040set ro - ext4 /dev/vdc rw
32 30 254:1 /users/ana/shop/.git /home/ana/shop/.git ro,nosuid - ext4 /dev/vdb rw
33 21 0:50 / /home/ana/.ssh ro - tmpfs tmpfs rw";

    fn compared(after: &str) -> Result<(), MountDifference> {
        let bind = |at, id, is_read_only| ExpectedMount {
            id,
            at: Path::new(at),
            source: ExpectedSource::Bind { path: Path::new(at), base: 21, is_read_only },
        };
        let expected = [
            bind("/home/ana/shop", 30, false),
            bind("/home/ana/shop/.git", 32, true),
            ExpectedMount {
                id: 33,
                at: Path::new("/home/ana/.ssh"),
                source: ExpectedSource::Own { is_read_only: true },
            },
        ];
        compare_mounts(&expected, &parse_mounts(BEFORE.as_bytes()), &parse_mounts(after.as_bytes()))
    }

    #[test]
    fn namespace_as_planned_has_no_difference() {
        assert_eq!(compared(AFTER), Ok(()));
    }

    #[test]
    fn every_difference_from_the_plan_is_found() {
        let shop = "30 21 254:1 /users/ana/shop /home/ana/shop rw,nosuid";
        let git = "32 30 254:1 /users/ana/shop/.git /home/ana/shop/.git ro,nosuid";
        let ssh = "33 21 0:50 / /home/ana/.ssh ro - tmpfs tmpfs rw";
        let cases = [
            // A directory swapped for a link, or for another directory.
            (shop, "30 21 254:1 /users/ana/.ssh /home/ana/shop rw,nosuid", "/home/ana/shop"),
            (shop, "30 21 254:0 /users/ana/shop /home/ana/shop rw,nosuid", "/home/ana/shop"),
            // A parent renamed after the mount.
            (git, "32 30 254:1 /users/ana/shop/.git /home/ana/shop/other ro,nosuid", "/home/ana/shop/.git"),
            // Writable instead of read-only, and the reverse.
            (git, "32 30 254:1 /users/ana/shop/.git /home/ana/shop/.git rw,nosuid", "/home/ana/shop/.git"),
            (shop, "30 21 254:1 /users/ana/shop /home/ana/shop ro,nosuid", "/home/ana/shop"),
            ("20 1 254:0 / / ro", "20 1 254:0 / / rw", "/"),
            // A mount that disappeared with its mount point, an unplanned one, one on top of another.
            (ssh, "", "/home/ana/.ssh"),
            (ssh, &format!("{ssh}\n34 20 254:0 /etc /mnt ro - ext4 /dev/vda rw"), "/mnt"),
            (
                ssh,
                &format!("{ssh}\n34 30 254:0 /etc /home/ana/shop/x ro - ext4 /dev/vda rw"),
                "/home/ana/shop/x",
            ),
            (
                ssh,
                &format!("{ssh}\n34 33 254:1 /users/ana/.ssh /home/ana/.ssh ro - e d rw"),
                "/home/ana/.ssh",
            ),
        ];
        for (line, instead, path) in cases {
            assert!(AFTER.contains(line), "{line}");
            let found = compared(&AFTER.replacen(line, instead, 1)).unwrap_err();
            assert_eq!(found.path, Path::new(path), "{instead}: {found:?}");
        }
    }
}
