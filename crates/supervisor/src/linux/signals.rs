//! Signals of the supervisor, read from a file like everything else it waits for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that a supervisor listens to.
#[derive(Debug)]
pub struct SignalReader(SignalFd);

/// What has come since the last look.
#[derive(Debug, Clone, Copy, Default)]
pub struct PendingSignals {
    /// SIGTERM or SIGINT: somebody wants the run to end.
    pub stop: bool,
}

impl SignalReader {
    /// From here on, SIGTERM, SIGINT and SIGCHLD no longer act by themselves. SIGHUP does nothing: a terminal that closes is
    /// no reason to end a run. Nor does SIGXFSZ: a file over the caller's `ulimit -f` is an error of the write. A process that is started from here inherits the block and has to lift it.
    pub fn block() -> io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD, Signal::SIGXFSZ] {
            set.add(signal);
        }
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Takes everything that has come, without waiting.
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

/// Lets the signals that the caller had ignored (`nohup`) act again: what is started from here must not miss them. SIGPIPE stays
/// ignored, as the runtime wants it: a starter that has gone away is no reason to end.
#[expect(
    unsafe_code,
    reason = "changing what a signal does is unsafe when it installs a handler; this installs none"
)]
pub fn reset_ignored_signals() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: an action of zeros is a valid one, to be overwritten by the kernel. The default action runs no code of this
        // process. KILL and STOP refuse, which is as it should be.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0;
            if known && action.sa_sigaction == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// Takes back the block that [`SignalReader::block`] has put on them.
pub fn unblock_signals() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}
