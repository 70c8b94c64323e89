//! The faults before a prompt, on the command line.

use crate::mistake::Mistake;

/// A fault before the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpeningFault {
    /// Lines that are no protocol come first.
    Banner,
    /// A request of this method is never answered.
    Silent(String),
    /// A request of this method is answered with an error.
    Reject(String),
    /// A request of this method ends the process.
    Exit(String),
    /// The protocol has this version.
    Version(u64),
    /// A session needs a login.
    LoggedOut,
    /// No session exists.
    UnknownSession,
    /// A loaded session is replayed half before and half after the reply.
    HalfReplay,
    /// Nothing is read after the session was opened.
    Deaf,
}

impl OpeningFault {
    /// The syntax of the flag.
    pub(crate) const SYNTAX: &str = "banner, silent=METHOD, reject=METHOD, exit=METHOD, version=N, logged-out, unknown-session, half-replay or deaf";

    pub(crate) fn parse(text: &str) -> Result<Self, Mistake> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let method = value.to_owned();
        Ok(match (name, value.is_empty()) {
            ("banner", true) => Self::Banner,
            ("silent", false) => Self::Silent(method),
            ("reject", false) => Self::Reject(method),
            ("exit", false) => Self::Exit(method),
            ("version", false) if value.parse::<u64>().is_ok() => Self::Version(value.parse().unwrap_or(0)),
            ("logged-out", true) => Self::LoggedOut,
            ("unknown-session", true) => Self::UnknownSession,
            ("half-replay", true) => Self::HalfReplay,
            ("deaf", true) => Self::Deaf,
            _ => {
                return Err(Mistake::new(
                    format!("unknown fault `{text}` for `--opening`"),
                    format!("use {}", Self::SYNTAX),
                ));
            }
        })
    }
}
