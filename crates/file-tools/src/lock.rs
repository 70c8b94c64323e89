//! The process locks itself in: the kernel keeps it to the workspace, whatever the rest of the program does.
//!
//! Landlock: below the workspace only what the verbs need, nothing anywhere else; no TCP, no abstract sockets, no signals to others. Seccomp: no
//! sockets at all, no new program, no way around the two. Neither can be taken off again. Where the kernel has less, the verbs
//! still go through `beneath` alone, and [`Held`] says so.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};
use serde::Serialize;
use syscall_filter::SyscallDenyList;

/// The newest interface of Landlock that is asked for. An older kernel gives what it has.
const ABI_ASKED: ABI = ABI::V7;

/// What the process is to do in the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Look only.
    Read,
    /// Also change.
    Write,
}

/// What holds this process, as the kernel answered.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Held {
    /// Every path is opened below the workspace by the kernel. Always: without it nothing is done at all.
    pub openat2: bool,
    /// The interface of Landlock that is in force; none where the kernel has no Landlock.
    pub landlock_abi: Option<i32>,
    /// Whether every system call for sockets and for starting programs is refused.
    pub seccomp: bool,
    /// Whether no right can be gained.
    pub no_new_privileges: bool,
}

impl Held {
    /// In one line.
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

/// Locks this process in, for good. Must be called before there is a second thread.
pub fn lock(workspace: BorrowedFd<'_>, reach: Reach) -> Held {
    let landlock = restrict_paths(workspace, reach);
    // The filter needs it, and so it is set even where Landlock is missing.
    let no_new_privileges = rustix::thread::set_no_new_privs(true).is_ok();
    let seccomp = SyscallDenyList::default().deny(DENIED, libc::EPERM).install().is_ok();
    Held { openat2: true, landlock_abi: landlock.ok().flatten(), seccomp, no_new_privileges }
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

/// What the verbs need. Never to run a file, nor to make a link, a device, a FIFO or a socket.
fn rights(reach: Reach) -> BitFlags<AccessFs> {
    let look = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    match reach {
        Reach::Read => look,
        Reach::Write => {
            look | make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir | Refer})
        }
    }
}

/// Calls that no verb makes: they answer "not permitted". `socketpair` stays, since it reaches nobody and the MCP server's
/// runtime makes one.
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
