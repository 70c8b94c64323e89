//! What a process and its descendants may use up, which rights they can never gain, and which open files they do not get.

use std::io;

use model::Bounds;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// Sets the limits that every descendant inherits and none can raise.
pub(crate) fn bound(bounds: Bounds, count_processes: bool) -> io::Result<()> {
    let at_most = |resource: Resource, limit: u64| {
        let Rlimit { maximum, .. } = getrlimit(resource);
        let limit = maximum.map_or(limit, |maximum| maximum.min(limit));
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })
    };
    // What was in memory does not belong into a file of the workspace.
    at_most(Resource::Core, 0)?;
    if let Some(bytes) = bounds.file_bytes {
        at_most(Resource::Fsize, bytes)?;
    }
    // Outside of a user namespace, all processes of the user would be counted, and the user's own refused.
    if let Some(processes) = bounds.processes.filter(|_| count_processes) {
        at_most(Resource::Nproc, processes)?;
    }
    Ok(())
}

/// Gives up every right that goes beyond the user's own, for good.
pub(crate) fn give_up_privileges() -> io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set().or_else(unless_refused)?;
    for capability in CapabilitySet::all().iter() {
        // Only who has them may take them from the bounding set; without new privileges it is of no use to anybody.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

fn unless_refused(error: rustix::io::Errno) -> Result<(), rustix::io::Errno> {
    if error == rustix::io::Errno::INVAL { Ok(()) } else { Err(error) }
}

/// Keeps what is inside from reading or changing this process through `/proc`.
pub(crate) fn be_private() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Lets no open file but the first three pass to the agent.
#[expect(unsafe_code, reason = "there is no safe wrapper for close_range")]
pub(crate) fn keep_files_back() -> io::Result<()> {
    // SAFETY: marks descriptors to be closed on exec; none is closed here.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
