//! A cgroup (version 2) for one run: all of its processes counted as one, bounded as one and killed as one.
//!
//! Only where one is delegated: a folder of the hierarchy, this process's own or one above it, in which this user may make others. It
//! is made before the first process and entered by that process itself, so nothing of the run was ever outside. Where the
//! hierarchy hands no controller down, it still kills. Made only for a bound that nothing else holds: it is not cheap.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use model::Bounds;
use rustix::fs::{Access, access};
use rustix::process::{Pid, geteuid, test_kill_process};

/// What the folders are called; the number of the process that made one follows.
const PREFIX: &str = "switchboard-";

/// Where cgroups can be made, and what they bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegated {
    folder: PathBuf,
    /// Whether memory is counted there.
    pub memory: bool,
    /// Whether processes are.
    pub processes: bool,
}

impl Delegated {
    /// Looks for one, from this process's own cgroup upwards: one that bounds, or else the nearest that only kills.
    pub fn look() -> Option<Self> {
        let mounted = hierarchy()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = mounted.join(own.lines().find_map(|line| line.strip_prefix("0::/"))?);
        let all = own.ancestors().take_while(|folder| folder.starts_with(&mounted)).filter_map(Self::at);
        let mut kills = None;
        for found in all {
            if found.memory && found.processes {
                return Some(found);
            }
            kills.get_or_insert(found);
        }
        kills
    }

    fn at(folder: &Path) -> Option<Self> {
        let writable = |path: &Path| access(path, Access::WRITE_OK).is_ok();
        // To move a process one must be able to write where it comes from and where it goes to have an ancestor in common.
        if !writable(folder) || !writable(&folder.join("cgroup.procs")) {
            return None;
        }
        let handed_down = fs::read_to_string(folder.join("cgroup.subtree_control")).ok()?;
        let has = |name: &str| handed_down.split_ascii_whitespace().any(|controller| controller == name);
        Some(Self { folder: folder.to_owned(), memory: has("memory"), processes: has("pids") })
    }

    /// Whether a run needs one. To enter a cgroup is to wait for every processor of the machine once, which takes longer than all
    /// else about a start: so only for a bound that nothing else holds. Namespaces hold the number of processes, but not of root.
    pub(crate) fn is_worth_it(&self, bounds: Bounds, namespaces: bool) -> bool {
        let counted_otherwise = namespaces && !geteuid().is_root();
        bounds.memory_bytes.is_some() || (bounds.processes.is_some() && self.processes && !counted_otherwise)
    }

    /// Makes a cgroup with these bounds.
    pub(crate) fn make(&self, bounds: Bounds) -> io::Result<Cgroup> {
        self.sweep();
        // The time besides: in a container, the same number may be another's, and two runs must not share one.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let folder = self.folder.join(format!("{PREFIX}{}-{now}", std::process::id()));
        fs::create_dir(&folder)?;
        let cgroup =
            Cgroup { door: OpenOptions::new().write(true).open(folder.join("cgroup.procs"))?, folder };
        if let Some(bytes) = bounds.memory_bytes.filter(|_| self.memory) {
            cgroup.set("memory.max", &bytes.to_string())?;
            // What is over the bound ends as a whole, not with one process that others wait for. Both are not on every kernel.
            let _ = cgroup.set("memory.swap.max", "0");
            let _ = cgroup.set("memory.oom.group", "1");
        }
        if let Some(count) = bounds.processes.filter(|_| self.processes) {
            cgroup.set("pids.max", &count.to_string())?;
        }
        Ok(cgroup)
    }

    /// Takes away what killed supervisors have left. One that is not empty stays: the kernel refuses.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let maker =
                name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok());
            let Some(maker) = maker.and_then(Pid::from_raw) else { continue };
            if test_kill_process(maker) == Err(rustix::io::Errno::SRCH) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// Where the hierarchy of version 2 is mounted. It is nearly always in one of two places, and to have the kernel write down every mount
/// of a machine for each start is not cheap.
fn hierarchy() -> Option<PathBuf> {
    const CGROUP2: u64 = 0x6367_7270;
    let is_it = |path: &&str| {
        rustix::fs::statfs(*path)
            .is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == CGROUP2))
    };
    match ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].iter().find(|path| is_it(path)) {
        Some(usual) => Some(PathBuf::from(usual)),
        None => mount_point(&fs::read_to_string("/proc/self/mountinfo").ok()?),
    }
}

/// Where it is mounted by the kernel's list; beside those of version 1, perhaps.
fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| place.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// The cgroup of one run, which goes with this value once it is empty.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    door: File,
}

impl Cgroup {
    /// Where a process that is to enter writes a zero, before it becomes anything else.
    pub fn door(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }

    /// Kills everything in it at once, whatever forks.
    pub fn kill(&self) -> io::Result<()> {
        self.set("cgroup.kill", "1")
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.folder.join(name))?.write_all(value.as_bytes())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // One that is not empty is left to the next sweep.
        let _ = fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_is_found_alone_and_beside_version_1() {
        let alone = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mount_point(alone), Some("/sys/fs/cgroup".into()));
        let beside = "30 1 0:1 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n31 1 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        assert_eq!(mount_point(beside), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mount_point("30 1 0:1 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"), None);
    }

    #[test]
    fn the_usual_place_is_the_one_in_the_kernels_list() {
        let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert_eq!(hierarchy(), mount_point(&list), "{list}");
    }

    #[test]
    fn only_what_is_handed_down_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let given = |handed_down: &str| {
            fs::write(folder.path().join("cgroup.procs"), "").unwrap();
            fs::write(folder.path().join("cgroup.subtree_control"), handed_down).unwrap();
            Delegated::at(folder.path()).map(|found| (found.memory, found.processes))
        };
        assert_eq!(given("cpu memory pids"), Some((true, true)));
        assert_eq!(given("cpu pids"), Some((false, true)));
        assert_eq!(given(""), Some((false, false)));
    }
}
