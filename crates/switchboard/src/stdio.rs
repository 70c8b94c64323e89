//! Whether this program was given a stdout at all.
//!
//! The runtime of Rust opens `/dev/null` in the place of a closed one (`switchboard … >&-`) before `main`, and from then on it
//! looks like a stdout that somebody has sent there on purpose. So it is looked at before the runtime begins.

use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

#[used]
#[expect(unsafe_code, reason = "there is no other moment before the runtime")]
// SAFETY: the C library calls what is listed there before `main`, in the only thread; the function needs nothing of the runtime.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

#[expect(unsafe_code, reason = "a file that may be closed cannot be borrowed")]
extern "C" fn look() {
    // SAFETY: asks about a number, whether it stands for a file or not.
    let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
    CLOSED.store(closed, Ordering::Relaxed);
}

/// Whether there was one when the program began.
pub fn had_stdout() -> bool {
    !CLOSED.load(Ordering::Relaxed)
}
