//! Denies system calls that an agent does not need, by a seccomp filter.
//!
//! This is a denylist: agents run compilers, browsers and any other program of a workspace. It contains the system calls that reach other
//! processes, bypass the other safeguards, or were the entry point of past kernel exploits.

use syscall_filter::{ArgumentCondition, ArgumentTest, FilterError, SyscallDenyList};

/// Denied with `EPERM` for all arguments.
const DENIED: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts and other access to the file system.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    // Keys, BPF programs, modules and tracing.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_syslog,
    // The machine itself.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Denied with `ENOSYS`, so that programs use their fallback. The flags of `clone3` are in memory, which a filter cannot read; every libc falls
/// back to `clone`.
const UNIMPLEMENTED: &[i64] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// The flags that create namespaces.
const NAMESPACE_FLAGS: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;
/// A flag of `unshare` alone: in the flags of `clone`, this bit belongs to the exit signal.
const CLONE_NEWTIME: i32 = 0x80;

/// The ioctls that inject input into a terminal or a console.
const TERMINAL_INJECTION: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// Installs the filter for this process and its descendants.
pub(crate) fn apply(unix_sockets: bool, internet: bool) -> Result<(), FilterError> {
    build_list(unix_sockets, internet).install()
}

fn build_list(unix_sockets: bool, internet: bool) -> SyscallDenyList {
    let first = |any_of| ArgumentCondition { position: 0, any_of };
    let bits = |flags: i32| vec![ArgumentTest::HasAnyBit(flags.cast_unsigned())];
    let requests = TERMINAL_INJECTION.iter().filter_map(|request| u32::try_from(*request).ok());
    let terminal = ArgumentCondition { position: 1, any_of: requests.map(ArgumentTest::Equals).collect() };
    SyscallDenyList::default()
        .deny(DENIED, libc::EPERM)
        .deny(UNIMPLEMENTED, libc::ENOSYS)
        .deny_if(libc::SYS_clone, first(bits(NAMESPACE_FLAGS)), libc::EPERM)
        .deny_if(libc::SYS_unshare, first(bits(NAMESPACE_FLAGS | CLONE_NEWTIME)), libc::EPERM)
        .deny_if(libc::SYS_ioctl, terminal, libc::EPERM)
        .deny_if(libc::SYS_socket, first(denied_families(unix_sockets, internet)), libc::EPERM)
}

/// Returns the denied socket families: all except for Unix, internet and `netlink`, which name resolution needs. This denies `vsock`, for
/// example.
fn denied_families(unix_sockets: bool, internet: bool) -> Vec<ArgumentTest> {
    let [unix, inet, inet6, netlink] =
        [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(i32::unsigned_abs);
    let mut denied = vec![
        ArgumentTest::Between(inet + 1, inet6 - 1),
        ArgumentTest::Between(inet6 + 1, netlink - 1),
        ArgumentTest::Between(netlink + 1, u32::MAX),
    ];
    if !unix_sockets {
        denied.push(ArgumentTest::Equals(unix));
    }
    if !internet {
        denied.extend([ArgumentTest::Equals(inet), ArgumentTest::Equals(inet6)]);
    }
    denied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_compiles_for_this_architecture() {
        for (unix_sockets, internet) in [(true, true), (false, true), (true, false), (false, false)] {
            assert!(!build_list(unix_sockets, internet).compile().unwrap().is_empty());
        }
    }
}
