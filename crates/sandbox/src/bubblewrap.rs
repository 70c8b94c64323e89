//! The arguments of bubblewrap.
//!
//! Bubblewrap is allowed to create user namespaces on every system. It binds the whole file system and creates the mounts that do not depend on
//! the policy; all others are created inside, by descriptor ([`crate::mounts`]).

use model::Network;

/// Returns the arguments before the command.
pub(crate) fn arguments(network: &Network) -> Vec<&'static str> {
    // In a user namespace, root has no more privileges over the machine than any other user.
    let mut args =
        vec!["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"];
    args.extend(["--new-session", "--die-with-parent", "--as-pid-1"]);
    // The launcher needs both to create mounts, and drops them before it starts the agent.
    args.extend(["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"]);
    if *network != Network::Full {
        args.push("--unshare-net");
    }
    // The launcher makes it read-only after it has cloned the writable paths.
    args.extend(["--bind", "/", "/", "--dev", "/dev"]);
    // Root owns the kernel settings in `/proc/sys` in every namespace; no other user needs to write to it.
    args.extend(["--proc", "/proc", "--remount-ro", "/proc"]);
    args
}
