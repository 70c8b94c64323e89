//! Forking this process, which has one thread.

use std::io;

/// Which of the two one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    Parent,
    Child,
}

/// Forks. Only for a process with a single thread: in a child of several, whatever another thread had locked stays locked.
#[expect(unsafe_code, reason = "a fork is unsafe in a process with several threads")]
pub fn fork() -> io::Result<Forked> {
    // SAFETY: there is one thread (see above), so the child is a whole copy of the program, locks and allocator with it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        _ => Ok(Forked::Parent),
    }
}

/// Lets children vanish when they end: nobody here asks how they did.
pub fn let_children_go() -> io::Result<()> {
    on_the_end_of_a_child(libc::SIG_IGN)
}

/// Keeps ended children until they are waited for, as every process does by itself.
pub fn keep_children() -> io::Result<()> {
    on_the_end_of_a_child(libc::SIG_DFL)
}

#[expect(
    unsafe_code,
    reason = "changing what a signal does is unsafe when it installs a handler; this does not"
)]
fn on_the_end_of_a_child(what: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: neither of the two actions runs code of this process.
    if unsafe { libc::signal(libc::SIGCHLD, what) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
