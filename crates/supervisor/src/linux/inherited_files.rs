//! Closes files inherited from the caller.

use std::io;

/// Closes all descriptors from 3 on.
///
/// An inherited pipe of the caller would keep its reader waiting for the duration of the run, and an agent could read
/// data that was not meant for it.
///
/// Must come first in a process, before anything in it opens a file.
#[expect(unsafe_code, reason = "there is no safe wrapper for close_range")]
pub fn close_inherited_files() -> io::Result<()> {
    // SAFETY: closing descriptors is memory-safe by itself; it would break an owner of one of them, and at the start of
    // the process (see above) there is none.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
