//! What this machine has to confine with.
//!
//! Presence only, by asking the kernel itself: whether it really holds is proven ([`crate::prove`]).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use model::{Bounds, Confinement};

use crate::cgroup::Delegated;

/// How a process can be confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Namespaces through bubblewrap, and the kernel's rules within.
    Namespaces,
    /// The kernel's rules alone.
    Rules,
}

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The bubblewrap that is used ([`find_bubblewrap`]).
    pub bubblewrap: Option<PathBuf>,
    /// The version of Landlock's interface; 0 where there is none.
    pub landlock: i32,
    /// Whether system calls can be filtered.
    pub seccomp: bool,
    /// Where cgroups can be made, if anywhere.
    pub cgroup: Option<Delegated>,
}

impl Machine {
    /// Looks. Bubblewrap is searched for in `search_path`, too.
    pub fn look(search_path: &str) -> Self {
        Self {
            bubblewrap: find_bubblewrap(search_path),
            landlock: landlock_abi(),
            seccomp: seccomp(),
            cgroup: Delegated::look(),
        }
    }

    /// Says what is missing for a policy that requires all that it asks for.
    pub(crate) fn missing_for(&self, confinement: &Confinement) -> Vec<String> {
        let mut missing = self.missing(Tier::Namespaces);
        if !confinement.namespaces {
            missing.push("namespaces, which the policy itself leaves out".to_owned());
        }
        missing
    }

    /// Says what is missing for bounds that a policy names. The built-in number of processes is named by nobody: where root is held to
    /// none, it is told as open, or nothing could be required in a container.
    pub(crate) fn missing_for_bounds(&self, bounds: Bounds, is_root: bool) -> Vec<String> {
        let counts = |what: &str| {
            format!("a delegated cgroup (version 2) that counts {what}, which the policy bounds")
        };
        let named = bounds.processes.is_some() && bounds.processes != Bounds::default().processes;
        let memory =
            bounds.memory_bytes.is_some() && !self.cgroup.as_ref().is_some_and(|cgroup| cgroup.memory);
        let processes = named && !self.counts_processes(is_root);
        let processes = processes.then(|| counts("processes") + " and the kernel does not hold root to");
        memory.then(|| counts("memory")).into_iter().chain(processes).collect()
    }

    /// Whether writes are held in a tier: by read-only mounts, or by Landlock alone.
    pub fn holds_writes(&self, tier: Tier) -> bool {
        tier == Tier::Namespaces || self.landlock > 0
    }

    /// Whether the processes of one run can be counted where there are namespaces. Those of root only a cgroup counts.
    pub fn counts_processes(&self, is_root: bool) -> bool {
        !is_root || self.cgroup.as_ref().is_some_and(|cgroup| cgroup.processes)
    }

    /// Says what is missing for a tier.
    pub fn missing(&self, tier: Tier) -> Vec<String> {
        let mut missing = Vec::new();
        if tier == Tier::Namespaces && self.bubblewrap.is_none() {
            missing.push("bubblewrap (install it: `apt install bubblewrap`)".to_owned());
        }
        // From 6 on it holds abstract sockets and signals.
        if self.landlock < 6 {
            missing.push(match self.landlock {
                0 => "Landlock (a kernel from 6.12 on with `landlock` among its security modules)".to_owned(),
                abi => format!("Landlock 6 (this kernel has {abi}; Linux has it from 6.12 on)"),
            });
        }
        if !self.seccomp {
            missing.push("seccomp filters (a kernel with CONFIG_SECCOMP_FILTER)".to_owned());
        }
        missing
    }
}

/// Where systems keep bubblewrap. The first comes before `PATH`: the exceptions of `AppArmor` name that path alone.
const SYSTEM_BUBBLEWRAP: [&str; 3] =
    ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/run/current-system/sw/bin/bwrap"];

/// Returns the bubblewrap of the system, else the first one in a search path that can be trusted.
///
/// Bubblewrap runs unconfined, so one in `PATH` counts only if this user cannot replace it: a confined agent may have written anywhere
/// that the user works. Root can replace everything, and uses that of the system only.
pub fn find_bubblewrap(search_path: &str) -> Option<PathBuf> {
    let system = SYSTEM_BUBBLEWRAP.map(PathBuf::from).into_iter().find(|path| is_program(path));
    system.or_else(|| {
        let directories = std::env::split_paths(search_path).filter(|directory| directory.is_absolute());
        let mut programs = directories.filter_map(|directory| directory.join("bwrap").canonicalize().ok());
        let is_root = rustix::process::geteuid().is_root();
        programs.find(|program| !is_root && is_program(program) && belongs_to(program, 0))
    })
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns whether a file and every directory above it belong to a user or to root, and nobody else can replace one of them.
fn belongs_to(program: &Path, user: u32) -> bool {
    let is_theirs = |path: &Path| {
        path.symlink_metadata().is_ok_and(|found| {
            // In a sticky directory, others replace nothing of theirs.
            let is_shared = found.mode() & 0o022 != 0 && !(found.is_dir() && found.mode() & 0o1000 != 0);
            [0, user].contains(&found.uid()) && !is_shared
        })
    };
    program.ancestors().all(is_theirs)
}

/// The kernel's own answer; the security file system may not be mounted.
#[expect(unsafe_code, reason = "there is no safe wrapper for the question alone")]
fn landlock_abi() -> i32 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag, no memory is read.
    let answer = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION)
    };
    i32::try_from(answer).unwrap_or(0).max(0)
}

#[expect(unsafe_code, reason = "there is no safe wrapper for the question alone")]
fn seccomp() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads one number.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0_u32, &raw const action) };
    answer == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bubblewrap_in_path_is_used_only_if_nobody_can_replace_it() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().canonicalize().unwrap().join("bin");
        let program = bin.join("bwrap");
        fs::create_dir(&bin).unwrap();
        fs::write(&program, "").unwrap();
        let set_mode =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set_mode(&bin, 0o755);
        set_mode(&program, 0o755);
        let user = rustix::process::geteuid();
        let is_ours = || belongs_to(&program, user.as_raw());
        assert!(is_ours());
        assert_eq!(belongs_to(&program, 0), user.is_root());
        set_mode(&bin, 0o777);
        assert!(!is_ours(), "anybody can replace it");
        set_mode(&bin, 0o1777);
        assert!(is_ours(), "in a sticky directory nobody can");
        set_mode(&program, 0o775);
        assert!(!is_ours(), "a group can write to it");
        set_mode(&program, 0o755);
        let found = find_bubblewrap(&format!("relative:/nonexistent:{}", bin.display()));
        let system = SYSTEM_BUBBLEWRAP.map(PathBuf::from).into_iter().find(|path| is_program(path));
        assert_eq!(found, system, "this user can replace it");
    }

    #[test]
    fn a_bound_that_a_policy_names_is_missing_where_nothing_holds_it() {
        let machine = Machine { bubblewrap: None, landlock: 7, seccomp: true, cgroup: None };
        let missing = |bounds, is_root| machine.missing_for_bounds(bounds, is_root).join("; ");
        let few = Bounds { processes: Some(100), ..Bounds::default() };
        assert!(missing(few, true).contains("counts processes"), "{}", missing(few, true));
        assert_eq!(missing(few, false), "");
        assert_eq!(missing(Bounds::default(), true), "");
        assert_eq!(missing(Bounds { processes: None, ..Bounds::default() }, true), "");
        let little = Bounds { memory_bytes: Some(1 << 30), ..Bounds::default() };
        assert!(missing(little, false).contains("counts memory"), "{}", missing(little, false));
    }
}
