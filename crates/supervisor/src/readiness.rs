//! Readiness of files: polled, or awaited through the async runtime.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::os::{InotifyWatch, ProcessHandle};

/// A file that keeps its descriptor for the lifetime of the value.
pub trait Waitable: AsRawFd {}
impl Waitable for OwnedFd {}
impl Waitable for ProcessHandle {}
impl Waitable for InotifyWatch {}

/// Registers a file with the runtime for read readiness.
#[expect(unsafe_code, reason = "tokio cannot check that a file keeps its descriptor")]
pub fn register_readable<T: Waitable>(file: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: `Waitable` is implemented here for three types only; each owns its descriptor, never replaces it, and
    // closes it when it is dropped.
    unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }.map_err(io::Error::from)
}

/// Returns whether a read would not block, be it at the end of the file.
pub fn is_readable(file: impl AsFd) -> io::Result<bool> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Even a poll that does not wait returns EINTR if a signal is pending.
    Ok(retry_on_intr(|| poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&at_once)))? > 0)
}
