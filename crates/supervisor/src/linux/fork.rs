//! Forking this process, which has one thread.

use std::io;

use rustix::process::Pid;

/// Which of the two one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// The one that goes on, with its child.
    Parent(Pid),
    Child,
}

/// Forks. Only for a process with a single thread: in a child of several, whatever another thread had locked stays locked.
#[expect(unsafe_code, reason = "a fork is unsafe in a process with several threads")]
pub fn fork() -> io::Result<Forked> {
    // SAFETY: there is one thread (see above), so the child is a whole copy of the program, locks and allocator with it.
    match unsafe { libc::fork() } {
        0 => Ok(Forked::Child),
        child => Pid::from_raw(child)
            .filter(|_| child > 0)
            .map(Forked::Parent)
            .ok_or_else(io::Error::last_os_error),
    }
}
