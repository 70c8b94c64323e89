//! System calls that an agent has no need for, refused by the kernel.
//!
//! A list of what is denied and not of what is allowed: agents run compilers, browsers and whatever else a workspace needs.
//! What is denied is what reaches other processes or around the other safeguards, and what has broken kernels before.

use syscall_filter::{Argument, NoFilter, Refusals, Test};

/// Refused with "not permitted", whatever the arguments.
const DENIED: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts and other views of the file system.
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
    // Keys, programs and probes in the kernel.
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

/// Refused as if the kernel did not have them, so that programs take their other way. The flags of `clone3` lie in memory,
/// where no filter sees them; every libc falls back to `clone`.
const ABSENT: &[i64] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Namespaces of one's own.
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;
/// One more, which only `unshare` makes: `clone` has the number of a signal there.
const TIME: i32 = 0x80;

/// Typing into a terminal, and pasting into a console.
const TERMINAL: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// Puts the filter on this process and everything that it starts.
pub(crate) fn apply(unix_sockets: bool, internet: bool) -> Result<(), NoFilter> {
    refusals(unix_sockets, internet).apply()
}

fn refusals(unix_sockets: bool, internet: bool) -> Refusals {
    let first = |any_of| Argument { position: 0, any_of };
    let bits = |flags: i32| vec![Test::HasAnyBit(flags.cast_unsigned())];
    let requests = TERMINAL.iter().filter_map(|request| u32::try_from(*request).ok());
    let terminal = Argument { position: 1, any_of: requests.map(Test::Is).collect() };
    Refusals::default()
        .always(DENIED, libc::EPERM)
        .always(ABSENT, libc::ENOSYS)
        .when(libc::SYS_clone, first(bits(NAMESPACES)), libc::EPERM)
        .when(libc::SYS_unshare, first(bits(NAMESPACES | TIME)), libc::EPERM)
        .when(libc::SYS_ioctl, terminal, libc::EPERM)
        .when(libc::SYS_socket, first(families(unix_sockets, internet)), libc::EPERM)
}

/// The families of sockets that are refused: all but files, internet and the kernel's own (`netlink`), which programs need
/// to look up names. Not this machine's host (`vsock`), for one.
fn families(unix_sockets: bool, internet: bool) -> Vec<Test> {
    let [unix, inet, inet6, netlink] =
        [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(i32::unsigned_abs);
    let mut refused = vec![
        Test::Between(inet + 1, inet6 - 1),
        Test::Between(inet6 + 1, netlink - 1),
        Test::Between(netlink + 1, u32::MAX),
    ];
    if !unix_sockets {
        refused.push(Test::Is(unix));
    }
    if !internet {
        refused.extend([Test::Is(inet), Test::Is(inet6)]);
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_filter_for_this_machine() {
        for (unix_sockets, internet) in [(true, true), (false, true), (true, false), (false, false)] {
            assert!(!refusals(unix_sockets, internet).compile().unwrap().is_empty());
        }
    }
}
