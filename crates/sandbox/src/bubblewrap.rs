//! The arguments of bubblewrap.
//!
//! Bubblewrap is the program that may make user namespaces on every system. It shows the whole machine and makes the mounts that need
//! no path of a policy; all others are made inside, by descriptor ([`crate::mounts`]).

use model::Network;

/// Returns everything up to the command.
pub(crate) fn arguments(network: &Network) -> Vec<&'static str> {
    // In a user namespace root has no more rights over the machine than anybody else.
    let mut args =
        vec!["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"];
    args.extend(["--new-session", "--die-with-parent", "--as-pid-1"]);
    // To make mounts inside, and to give both up for good before anything else is started.
    args.extend(["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"]);
    if *network != Network::Full {
        args.push("--unshare-net");
    }
    // Made read-only inside, after the writable paths have been cloned.
    args.extend(["--bind", "/", "/", "--dev", "/dev"]);
    // Root owns the kernel's settings in there, in every namespace; nobody else has any use for writing to it.
    args.extend(["--proc", "/proc", "--remount-ro", "/proc"]);
    args
}
