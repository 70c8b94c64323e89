//! System calls that an agent has no need for, refused by the kernel.
//!
//! A list of what is denied and not of what is allowed: agents run compilers, browsers and whatever else a workspace needs.
//! What is denied is what reaches other processes or around the other safeguards, and what has broken kernels before.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter, sock_filter,
};

type Chains = BTreeMap<i64, Vec<SeccompRule>>;

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
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Typing into a terminal, and pasting into a console.
const TERMINAL: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// Puts the filters on this process and everything that it starts.
pub(crate) fn apply(unix_sockets: bool, internet: bool) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    for filter in filters(unix_sockets, internet).map_err(|error| text(&error))? {
        apply_filter(&filter).map_err(|error| text(&error))?;
    }
    Ok(())
}

fn filters(unix_sockets: bool, internet: bool) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let mut denied: Chains = DENIED.iter().map(|&call| (call, Vec::new())).collect();
    denied.insert(
        libc::SYS_clone,
        NAMESPACES.map(|flag| flag_set(0, flag)).into_iter().collect::<Result<_, _>>()?,
    );
    denied.insert(
        libc::SYS_unshare,
        NAMESPACES.map(|flag| flag_set(0, flag)).into_iter().collect::<Result<_, _>>()?,
    );
    let terminal = TERMINAL.map(|request| equal(1, request)).into_iter().collect::<Result<Vec<_>, _>>()?;
    denied.insert(libc::SYS_ioctl, terminal);
    denied.insert(libc::SYS_socket, families(unix_sockets, internet)?);
    let absent: Chains = ABSENT.iter().map(|&call| (call, Vec::new())).collect();
    let mut filters = vec![compiled(denied, libc::EPERM)?, compiled(absent, libc::ENOSYS)?];
    if cfg!(target_arch = "x86_64") {
        filters.push(no_other_numbers());
    }
    Ok(filters)
}

fn compiled(chains: Chains, errno: i32) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    SeccompFilter::new(chains, SeccompAction::Allow, refuse, arch)?.try_into()
}

/// The families of sockets that are refused: all but files, internet and the kernel's own (`netlink`), which programs need
/// to look up names. Not this machine's host (`vsock`), for one.
fn families(unix_sockets: bool, internet: bool) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let [unix, inet, inet6, netlink] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]
        .map(|family| u64::from(family.unsigned_abs()));
    let between = |low: u64, high: u64| {
        SeccompRule::new(vec![
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ge, low)?,
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Le, high)?,
        ])
    };
    let mut rules = vec![
        between(inet + 1, inet6 - 1)?,
        between(inet6 + 1, netlink - 1)?,
        between(netlink + 1, u64::from(u32::MAX))?,
    ];
    if !unix_sockets {
        rules.push(equal(0, unix)?);
    }
    if !internet {
        rules.push(equal(0, inet)?);
        rules.push(equal(0, inet6)?);
    }
    Ok(rules)
}

fn equal(argument: u8, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?])
}

fn flag_set(argument: u8, flag: i32) -> Result<SeccompRule, seccompiler::BackendError> {
    let flag = u64::from(flag.cast_unsigned());
    SeccompRule::new(vec![SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(flag),
        flag,
    )?])
}

/// A 64-bit kernel may know every system call by a second number (x32), which no list above names.
fn no_other_numbers() -> BpfProgram {
    const LOAD_NUMBER: sock_filter = sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    const IF_SECOND: sock_filter = sock_filter { code: 0x35, jt: 0, jf: 1, k: 0x4000_0000 };
    let refuse =
        sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs() };
    let allow = sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    vec![LOAD_NUMBER, IF_SECOND, refuse, allow]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_compiles_for_this_machine() {
        for (unix_sockets, internet) in [(true, true), (false, true), (true, false), (false, false)] {
            assert!(filters(unix_sockets, internet).unwrap().iter().all(|filter| !filter.is_empty()));
        }
    }
}
