//! Forks a single-threaded process.

use std::io;

use rustix::process::Pid;

/// The side of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// The parent, with the pid of its child.
    Parent(Pid),
    Child,
}

/// Forks. Only for a process with a single thread: in the child of a multi-threaded process, locks of other threads
/// stay locked.
#[expect(unsafe_code, reason = "a fork is unsafe in a process with several threads")]
pub fn fork() -> io::Result<Forked> {
    // SAFETY: there is one thread (see above), so the child is a complete copy of the program, including locks and
    // allocator.
    match unsafe { libc::fork() } {
        0 => Ok(Forked::Child),
        child => Pid::from_raw(child)
            .filter(|_| child > 0)
            .map(Forked::Parent)
            .ok_or_else(io::Error::last_os_error),
    }
}
