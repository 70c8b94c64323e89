//! Closing what the caller left open.

use std::io;

/// Closes every file from descriptor 3 on.
///
/// A pipe of the caller that stayed open here would keep its reader waiting for as long as the run lasts, and an agent could
/// read what was never meant for it.
///
/// Only for the first moment of a process, before anything in it has opened a file.
#[expect(unsafe_code, reason = "there is no safe wrapper for close_range")]
pub fn close_inherited_files() -> io::Result<()> {
    // SAFETY: closing descriptors is memory-safe by itself; it would break an owner of one of them, and at the start of the
    // process (see above) there is none.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
