//! Signals: parses their names, ignores them, and terminates this process by one.

use std::io;

use rustix::process::{Resource, Rlimit, getpid, getrlimit, kill_process, setrlimit};

/// A signal that has a name on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal(rustix::process::Signal);

const NAMES: [(&str, rustix::process::Signal); 16] = {
    use rustix::process::Signal as S;
    [
        ("TERM", S::TERM),
        ("INT", S::INT),
        ("HUP", S::HUP),
        ("QUIT", S::QUIT),
        ("KILL", S::KILL),
        ("SEGV", S::SEGV),
        ("ABRT", S::ABORT),
        ("BUS", S::BUS),
        ("ILL", S::ILL),
        ("FPE", S::FPE),
        ("PIPE", S::PIPE),
        ("ALRM", S::ALARM),
        ("USR1", S::USR1),
        ("USR2", S::USR2),
        ("XCPU", S::XCPU),
        ("STOP", S::STOP),
    ]
};

impl Signal {
    pub(crate) const TERM: Self = Self(rustix::process::Signal::TERM);
    pub(crate) const INT: Self = Self(rustix::process::Signal::INT);
    pub(crate) const HUP: Self = Self(rustix::process::Signal::HUP);

    /// Parses `TERM`, `SIGTERM` or `15`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse() {
            return rustix::process::Signal::from_named_raw(number).map(Self);
        }
        let name = text.strip_prefix("SIG").unwrap_or(text);
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| Self(*signal))
    }

    /// Lists the names that [`Signal::parse`] accepts, for a hint.
    pub(crate) fn names() -> String {
        NAMES.map(|(name, _)| name).join(", ")
    }

    /// Returns whether a process may ignore this signal.
    pub(crate) fn can_be_ignored(self) -> bool {
        self.0 != rustix::process::Signal::KILL && self.0 != rustix::process::Signal::STOP
    }

    /// Ignores the signal from now on; children inherit that.
    pub(crate) fn ignore(self) -> io::Result<()> {
        self.dispose(libc::SIG_IGN)
    }

    /// Restores the default action.
    pub(crate) fn restore(self) -> io::Result<()> {
        self.dispose(libc::SIG_DFL)
    }

    /// Sends the signal to this process with its default action: std catches SIGSEGV and SIGBUS and ignores SIGPIPE, and the
    /// script may have ignored others.
    ///
    /// Returns only if the signal does not terminate a process. No core is dumped: the crash is intended.
    pub(crate) fn strike(self) -> io::Result<()> {
        setrlimit(Resource::Core, Rlimit { current: Some(0), ..getrlimit(Resource::Core) })?;
        if self.can_be_ignored() {
            self.restore()?;
        }
        Ok(kill_process(getpid(), self.0)?)
    }

    #[expect(unsafe_code, reason = "no safe crate sets a disposition without installing a handler")]
    fn dispose(self, action: libc::sighandler_t) -> io::Result<()> {
        // SAFETY: the action is SIG_IGN or SIG_DFL, so no code of ours ever runs in a signal handler.
        let previous = unsafe { libc::signal(self.0.as_raw(), action) };
        if previous == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_is_parsed_by_name_and_number() {
        assert_eq!(Signal::parse("TERM"), Some(Signal::TERM));
        assert_eq!(Signal::parse("SIGTERM"), Some(Signal::TERM));
        assert_eq!(Signal::parse("15"), Some(Signal::TERM));
        for unknown in ["", "0", "99", "-1", "term", "SIG", "FOO"] {
            assert_eq!(Signal::parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn sigkill_and_sigstop_cannot_be_ignored() {
        assert!(!Signal::parse("KILL").unwrap().can_be_ignored());
        assert!(!Signal::parse("STOP").unwrap().can_be_ignored());
        assert!(Signal::TERM.can_be_ignored());
    }
}
