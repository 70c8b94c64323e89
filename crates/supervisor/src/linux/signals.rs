//! Receives the signals of the supervisor through a signalfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The blocked signals of a supervisor.
#[derive(Debug)]
pub struct SignalReader(SignalFd);

/// The signals received since the last read.
#[derive(Debug, Clone, Copy, Default)]
pub struct PendingSignals {
    /// SIGTERM or SIGINT: a stop was requested.
    pub stop: bool,
}

impl SignalReader {
    /// Blocks SIGTERM, SIGINT and SIGCHLD, to be read from the descriptor. Blocks SIGHUP, because a closing terminal
    /// must not end a run, and SIGXFSZ, so that a file over the caller's `ulimit -f` is an error of the write (EFBIG).
    /// Child processes inherit the mask and have to reset it.
    pub fn block() -> io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD, Signal::SIGXFSZ] {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Reads all pending signals without blocking.
    pub fn read_pending(&self) -> io::Result<PendingSignals> {
        let mut pending = PendingSignals::default();
        while let Some(info) = self.0.read_signal()? {
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            pending.stop |= number == Signal::SIGTERM as i32 || number == Signal::SIGINT as i32;
        }
        Ok(pending)
    }
}

impl AsFd for SignalReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Resets the signals that the caller ignores (`nohup`) to their default action: agents must receive them. SIGPIPE
/// stays ignored, as the runtime expects: an exited starter must not end the supervisor.
#[expect(
    unsafe_code,
    reason = "changing what a signal does is unsafe when it installs a handler; this installs none"
)]
pub fn reset_ignored_signals() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: a zeroed action is a valid one, to be overwritten by the kernel. The default action runs no code of
        // this process. The call fails for SIGKILL and SIGSTOP, as intended.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0;
            if known && action.sa_sigaction == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// Reverts the signal mask of [`SignalReader::block`].
pub fn unblock_signals() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}
