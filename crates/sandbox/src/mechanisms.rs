//! Detects the mechanisms of this machine that can confine a process.
//!
//! Detects their presence only, by asking the kernel itself; the self-test verifies that they work ([`crate::self_test`]).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use model::{Bounds, Confinement, Proof};

use crate::cgroup::DelegatedCgroup;

/// A set of mechanisms that confines a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Namespaces created by bubblewrap, with Landlock and seccomp inside.
    Namespaces,
    /// Landlock and seccomp alone.
    Rules,
}

/// The mechanisms of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mechanisms {
    /// The bubblewrap that is used ([`find_bubblewrap`]).
    pub bubblewrap: Option<PathBuf>,
    /// The version of the Landlock ABI; 0 without Landlock.
    pub landlock: i32,
    /// Is true if the kernel has seccomp filters.
    pub seccomp: bool,
    /// The delegated cgroup, if there is one.
    pub cgroup: Option<DelegatedCgroup>,
}

/// A tier of this machine that passed the self-test of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedSandbox {
    /// The mechanisms of the machine.
    pub mechanisms: Mechanisms,
    /// The selected tier.
    pub tier: Tier,
    /// The result of the self-test.
    pub proof: Proof,
}

impl Mechanisms {
    /// Detects the mechanisms. Bubblewrap is also looked up in `search_path`.
    pub fn detect(search_path: &str) -> Self {
        Self {
            bubblewrap: find_bubblewrap(search_path),
            landlock: landlock_abi(),
            seccomp: has_seccomp(),
            cgroup: DelegatedCgroup::find(),
        }
    }

    /// Returns the mechanisms that are missing to enforce a policy fully.
    pub(crate) fn missing_for_policy(&self, confinement: &Confinement) -> Vec<String> {
        let mut missing = self.missing_for_tier(Tier::Namespaces);
        if !confinement.namespaces {
            missing.push("namespaces, which the policy itself leaves out".to_owned());
        }
        missing
    }

    /// Returns the mechanisms that are missing to enforce explicit bounds. The default process limit is not explicit: for root it is
    /// reported as open, or no policy could be required in a container.
    pub(crate) fn missing_for_bounds(&self, bounds: Bounds, is_root: bool) -> Vec<String> {
        let cgroup = |resource: &str| {
            format!("a delegated cgroup (version 2) that counts {resource}, which the policy limits")
        };
        let is_explicit = bounds.processes.is_some() && bounds.processes != Bounds::default().processes;
        let memory =
            bounds.memory_bytes.is_some() && !self.cgroup.as_ref().is_some_and(|cgroup| cgroup.memory);
        let processes = is_explicit && !self.limits_processes(is_root);
        let processes = processes.then(|| cgroup("processes") + " (RLIMIT_NPROC does not apply to root)");
        memory.then(|| cgroup("memory")).into_iter().chain(processes).collect()
    }

    /// Returns whether a tier blocks writes outside of the policy: by read-only mounts, or by Landlock alone.
    pub fn enforces_writes(&self, tier: Tier) -> bool {
        tier == Tier::Namespaces || self.landlock > 0
    }

    /// Returns whether the process limit of a run with namespaces is enforced. For root this needs a cgroup.
    pub fn limits_processes(&self, is_root: bool) -> bool {
        !is_root || self.cgroup.as_ref().is_some_and(|cgroup| cgroup.processes)
    }

    /// Returns the mechanisms that are missing for a tier.
    pub fn missing_for_tier(&self, tier: Tier) -> Vec<String> {
        let mut missing = Vec::new();
        if tier == Tier::Namespaces && self.bubblewrap.is_none() {
            missing.push("bubblewrap (install it with `apt install bubblewrap`)".to_owned());
        }
        // Version 6 added the scopes of abstract sockets and signals.
        if self.landlock < 6 {
            missing.push(match self.landlock {
                0 => "Landlock (needs Linux 6.12 or later with the `landlock` security module enabled)"
                    .to_owned(),
                abi => format!("Landlock 6 (this kernel has version {abi}; needs Linux 6.12 or later)"),
            });
        }
        if !self.seccomp {
            missing.push("seccomp filters (needs a kernel with CONFIG_SECCOMP_FILTER)".to_owned());
        }
        missing
    }
}

/// The system's locations of bubblewrap. They come before `PATH`: `AppArmor`'s exception covers the first path alone.
const SYSTEM_BUBBLEWRAP: [&str; 3] =
    ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/run/current-system/sw/bin/bwrap"];

/// Returns the system's bubblewrap, else the first trusted one in a search path.
///
/// Bubblewrap runs unconfined, so one in `PATH` is trusted only if this user cannot replace it: a confined agent may have written to
/// any directory that the user works in. Root can replace every file and uses the system's bubblewrap only.
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

/// Returns whether a file and every directory above it belong to a user or to root, and no other user can replace one of them.
fn belongs_to(program: &Path, user: u32) -> bool {
    let is_theirs = |path: &Path| {
        path.symlink_metadata().is_ok_and(|found| {
            // In a sticky directory, other users cannot replace it.
            let is_shared = found.mode() & 0o022 != 0 && !(found.is_dir() && found.mode() & 0o1000 != 0);
            [0, user].contains(&found.uid()) && !is_shared
        })
    };
    program.ancestors().all(is_theirs)
}

/// Asks the kernel for its Landlock ABI; securityfs may not be mounted.
#[expect(unsafe_code, reason = "there is no safe wrapper for the query alone")]
fn landlock_abi() -> i32 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag, the kernel reads no memory.
    let answer = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION)
    };
    i32::try_from(answer).unwrap_or(0).max(0)
}

#[expect(unsafe_code, reason = "there is no safe wrapper for the query alone")]
fn has_seccomp() -> bool {
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
    fn bubblewrap_in_path_is_ignored_if_it_is_replaceable() {
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
        assert!(!is_ours(), "any user can replace it");
        set_mode(&bin, 0o1777);
        assert!(is_ours(), "in a sticky directory no other user can");
        set_mode(&program, 0o775);
        assert!(!is_ours(), "a group can write to it");
        set_mode(&program, 0o755);
        let found = find_bubblewrap(&format!("relative:/nonexistent:{}", bin.display()));
        let system = SYSTEM_BUBBLEWRAP.map(PathBuf::from).into_iter().find(|path| is_program(path));
        assert_eq!(found, system, "this user can replace it");
    }

    #[test]
    fn explicit_bound_requires_a_mechanism() {
        let machine = Mechanisms { bubblewrap: None, landlock: 7, seccomp: true, cgroup: None };
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
