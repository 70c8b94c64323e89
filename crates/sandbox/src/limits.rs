//! Resource limits, privileges and inherited descriptors of a process and its descendants.

use std::io;

use model::Bounds;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// Sets the resource limits, which every descendant inherits and none can raise.
pub(crate) fn set_limits(bounds: Bounds, limit_processes: bool) -> io::Result<()> {
    let at_most = |resource: Resource, limit: u64| {
        let Rlimit { maximum, .. } = getrlimit(resource);
        let limit = maximum.map_or(limit, |maximum| maximum.min(limit));
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })
    };
    // A core dump in the workspace would contain secrets.
    at_most(Resource::Core, 0)?;
    if let Some(bytes) = bounds.file_bytes {
        at_most(Resource::Fsize, bytes)?;
    }
    // Outside of a user namespace, RLIMIT_NPROC counts all processes of the user, and the user's own forks would fail.
    if let Some(processes) = bounds.processes.filter(|_| limit_processes) {
        at_most(Resource::Nproc, processes)?;
    }
    Ok(())
}

/// Drops all capabilities and prevents this process and its descendants from gaining any.
pub(crate) fn drop_privileges() -> io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set().or_else(ignore_unsupported)?;
    for capability in CapabilitySet::all().iter() {
        // This needs CAP_SETPCAP. Without new privileges the bounding set grants nothing anyway.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

fn ignore_unsupported(error: rustix::io::Errno) -> Result<(), rustix::io::Errno> {
    if error == rustix::io::Errno::INVAL { Ok(()) } else { Err(error) }
}

/// Prevents processes in the sandbox from reading or changing this process through `/proc` and ptrace.
pub(crate) fn forbid_inspection() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Marks all descriptors except for stdin, stdout and stderr as close-on-exec.
#[expect(unsafe_code, reason = "there is no safe wrapper for close_range")]
pub(crate) fn set_close_on_exec() -> io::Result<()> {
    // SAFETY: sets FD_CLOEXEC; no descriptor is closed here.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
