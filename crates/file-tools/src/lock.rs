//! Confines the process to the workspace with Landlock and seccomp.
//!
//! Landlock allows only the operations of the verbs below the workspace and nothing elsewhere; no TCP, no abstract sockets, no
//! signals to other processes. Seccomp denies sockets, `execve`, and ways around both. Neither can be removed again. On a
//! kernel without them the verbs still use `beneath`, and [`AppliedConfinement`] reports the difference.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};
use serde::Serialize;
use syscall_filter::SyscallDenyList;

/// The newest Landlock ABI that is requested. An older kernel provides less.
const ABI_ASKED: ABI = ABI::V7;

/// The access that the process needs in the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Reads only.
    Read,
    /// Reads and writes.
    Write,
}

/// The confinement in force, as reported by the kernel.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AppliedConfinement {
    /// Paths are opened beneath the workspace by the kernel. Always true: without `openat2` no verb is executed.
    pub openat2: bool,
    /// The Landlock ABI in force; `None` without Landlock.
    pub landlock_abi: Option<i32>,
    /// True if seccomp denies sockets and `execve`.
    pub seccomp: bool,
    /// True if `no_new_privs` is set.
    pub no_new_privileges: bool,
}

impl AppliedConfinement {
    /// Summarizes the confinement in one line.
    pub fn summary(&self) -> String {
        let landlock = match self.landlock_abi {
            Some(abi) => format!("Landlock ABI {abi}"),
            None => "no Landlock: the kernel has none".to_owned(),
        };
        let seccomp = if self.seccomp { "seccomp" } else { "no seccomp filter" };
        let privileges = if self.no_new_privileges { "no new privileges" } else { "NEW PRIVILEGES POSSIBLE" };
        format!("openat2 beneath the workspace, {landlock}, {seccomp}, {privileges}")
    }
}

/// Confines this process for good. Must be called before a second thread exists.
pub fn lock(workspace: BorrowedFd<'_>, reach: Reach) -> AppliedConfinement {
    let landlock = restrict_paths(workspace, reach);
    // Required by seccomp, and set even without Landlock.
    let no_new_privileges = rustix::thread::set_no_new_privs(true).is_ok();
    let seccomp = SyscallDenyList::default().deny(DENIED, libc::EPERM).install().is_ok();
    AppliedConfinement { openat2: true, landlock_abi: landlock.ok().flatten(), seccomp, no_new_privileges }
}

fn restrict_paths(workspace: BorrowedFd<'_>, reach: Reach) -> Result<Option<i32>, RulesetError> {
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI_ASKED))?
        .handle_access(AccessNet::from_all(ABI_ASKED))?
        .scope(Scope::from_all(ABI_ASKED))?
        .create()?
        .add_rule(PathBeneath::new(workspace, rights(reach)))?
        .restrict_self()?;
    Ok(match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi as i32),
        _ => None,
    })
}

/// Returns the access rights of the verbs. Never to execute a file or to create a link, device, FIFO or socket.
fn rights(reach: Reach) -> BitFlags<AccessFs> {
    let look = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    match reach {
        Reach::Read => look,
        Reach::Write => {
            look | make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir | Refer})
        }
    }
}

/// Denied system calls, which return `EPERM`. `socketpair` is allowed: it reaches no other process, and the runtime of the MCP
/// server needs it.
const DENIED: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_open_by_handle_at,
    libc::SYS_symlinkat,
    libc::SYS_mknodat,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
];
