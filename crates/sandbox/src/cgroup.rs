//! A cgroup (version 2) for one run, which counts, limits and kills all of its processes as one.
//!
//! Needs a delegated cgroup: a directory of the hierarchy, at or above this process's own, in which this user may create others. The
//! cgroup is created before the first process and entered by that process itself, so no process of the run was ever outside. Without
//! controllers it can still kill. It is expensive, and created only for a limit that no other mechanism enforces.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use model::Bounds;
use rustix::fs::{Access, access};
use rustix::process::{Pid, geteuid, test_kill_process};

/// The prefix of the cgroups' names; the pid of the creator follows.
const PREFIX: &str = "switchboard-";

/// A cgroup in which this user may create others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelegatedCgroup {
    directory: PathBuf,
    /// Is true if its children have the memory controller.
    pub memory: bool,
    /// Is true if its children have the pids controller.
    pub processes: bool,
}

impl DelegatedCgroup {
    /// Searches from this process's own cgroup upwards: returns the first with both controllers, else the nearest one.
    pub fn find() -> Option<Self> {
        let mounted = find_hierarchy()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = mounted.join(own.lines().find_map(|line| line.strip_prefix("0::/"))?);
        let above = own.ancestors().take_while(|directory| directory.starts_with(&mounted));
        let mut nearest = None;
        for found in above.filter_map(Self::open) {
            if found.memory && found.processes {
                return Some(found);
            }
            nearest.get_or_insert(found);
        }
        nearest
    }

    fn open(directory: &Path) -> Option<Self> {
        let is_writable = |path: &Path| access(path, Access::WRITE_OK).is_ok();
        // Moving a process needs write access to `cgroup.procs` of the common ancestor.
        if !is_writable(directory) || !is_writable(&directory.join("cgroup.procs")) {
            return None;
        }
        let controllers = fs::read_to_string(directory.join("cgroup.subtree_control")).ok()?;
        let has = |name: &str| controllers.split_ascii_whitespace().any(|controller| controller == name);
        Some(Self { directory: directory.to_owned(), memory: has("memory"), processes: has("pids") })
    }

    /// Returns whether a run needs a cgroup: only for a limit that no other mechanism enforces. Entering a cgroup waits for every
    /// processor of the machine once, which takes longer than the rest of a start. Namespaces limit the number of processes, except for
    /// root's.
    pub(crate) fn is_needed(&self, bounds: Bounds, namespaces: bool) -> bool {
        let is_limited_by_namespaces = namespaces && !geteuid().is_root();
        bounds.memory_bytes.is_some()
            || (bounds.processes.is_some() && self.processes && !is_limited_by_namespaces)
    }

    /// Creates a cgroup with these limits.
    pub(crate) fn create(&self, bounds: Bounds) -> io::Result<Cgroup> {
        self.remove_stale();
        // The time makes the name unique: pids of different containers may be equal, and two runs must not share a cgroup.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let directory = self.directory.join(format!("{PREFIX}{}-{now}", std::process::id()));
        fs::create_dir(&directory)?;
        let procs = OpenOptions::new().write(true).open(directory.join("cgroup.procs"))?;
        let cgroup = Cgroup { directory, procs };
        if let Some(bytes) = bounds.memory_bytes.filter(|_| self.memory) {
            cgroup.write("memory.max", &bytes.to_string())?;
            // The OOM killer kills the whole cgroup, not one process that others wait for. Not every kernel has both files.
            let _ = cgroup.write("memory.swap.max", "0");
            let _ = cgroup.write("memory.oom.group", "1");
        }
        if let Some(count) = bounds.processes.filter(|_| self.processes) {
            cgroup.write("pids.max", &count.to_string())?;
        }
        Ok(cgroup)
    }

    /// Removes the cgroups of killed supervisors. The kernel refuses to remove one with processes in it.
    fn remove_stale(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let creator =
                name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok());
            let Some(creator) = creator.and_then(Pid::from_raw) else { continue };
            if test_kill_process(creator) == Err(rustix::io::Errno::SRCH) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// Returns the mount point of the version 2 hierarchy. Nearly all systems use one of two paths, which saves parsing `mountinfo` at each
/// start.
fn find_hierarchy() -> Option<PathBuf> {
    const CGROUP2: u64 = 0x6367_7270;
    let is_cgroup2 = |path: &&str| {
        rustix::fs::statfs(*path)
            .is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == CGROUP2))
    };
    match ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].iter().find(|path| is_cgroup2(path)) {
        Some(usual) => Some(PathBuf::from(usual)),
        None => parse_mount_point(&fs::read_to_string("/proc/self/mountinfo").ok()?),
    }
}

/// Returns the mount point of the version 2 hierarchy from `mountinfo`.
fn parse_mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        source.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// The cgroup of one run. It is removed on drop if it is empty.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    procs: File,
}

impl Cgroup {
    /// Returns `cgroup.procs`. A process enters the cgroup by writing a zero to it.
    pub fn procs(&self) -> BorrowedFd<'_> {
        self.procs.as_fd()
    }

    /// Kills all processes at once, even while they fork.
    pub fn kill(&self) -> io::Result<()> {
        self.write("cgroup.kill", "1")
    }

    fn write(&self, name: &str, value: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.directory.join(name))?.write_all(value.as_bytes())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A cgroup with processes in it is removed before a later run.
        let _ = fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_hierarchy_is_found_beside_version_1() {
        let alone = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(parse_mount_point(alone), Some("/sys/fs/cgroup".into()));
        let beside = "30 1 0:1 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n31 1 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        assert_eq!(parse_mount_point(beside), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(parse_mount_point("30 1 0:1 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"), None);
    }

    #[test]
    fn usual_mount_point_equals_mountinfo() {
        let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert_eq!(find_hierarchy(), parse_mount_point(&list), "{list}");
    }

    #[test]
    fn only_delegated_controllers_count() {
        let directory = tempfile::tempdir().unwrap();
        let controllers = |enabled: &str| {
            fs::write(directory.path().join("cgroup.procs"), "").unwrap();
            fs::write(directory.path().join("cgroup.subtree_control"), enabled).unwrap();
            DelegatedCgroup::open(directory.path()).map(|found| (found.memory, found.processes))
        };
        assert_eq!(controllers("cpu memory pids"), Some((true, true)));
        assert_eq!(controllers("cpu pids"), Some((false, true)));
        assert_eq!(controllers(""), Some((false, false)));
    }
}
