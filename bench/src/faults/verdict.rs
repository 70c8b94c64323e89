//! The result of a trial, as one cell of the table.

use std::fmt;
use std::time::Duration;

/// One cell.
#[derive(Debug)]
pub enum Cell {
    /// It means nothing to this server, or could not be set up here: why.
    NotTried(String),
    /// It was tried.
    Judged(TrialVerdict),
}

/// The observations from outside.
#[derive(Debug)]
pub struct TrialVerdict {
    /// Processes of the agent that were alive when everything should have been over.
    pub left: usize,
    /// The reply to the host.
    pub answer: ReplyTruth,
    /// True if the agent's output is available: in the reply, or from the server later.
    pub kept: bool,
    /// True if the server process outlived its host.
    pub server_stays: bool,
    /// The length of the reply.
    pub reply_bytes: usize,
    /// The most memory that the server had, in millions of bytes.
    pub memory: f64,
}

impl TrialVerdict {
    /// Returns whether no process is left, no output is lost, and the reply is true.
    pub fn is_as_promised(&self) -> bool {
        let true_or_unasked = matches!(self.answer, ReplyTruth::True | ReplyTruth::Unasked);
        self.left == 0 && self.kept && true_or_unasked && !self.server_stays
    }
}

/// The truth of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyTruth {
    /// True.
    True,
    /// The answer, with noise that the agent did not print.
    Noisy,
    /// Not the answer, but that it was too long.
    Cut,
    /// Something else.
    False(&'static str),
    /// Nothing within that time.
    None(Duration),
    /// Nothing, and the connection is gone.
    Closed,
    /// No reply was due.
    Unasked,
}

/// The length of a reply that is worth a note, in bytes; and the memory, in millions of bytes.
const LONG: usize = 2_000_000;
const MUCH: f64 = 150.0;

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTried(reason) => f.write_str(reason),
            Self::Judged(verdict) => verdict.fmt(f),
        }
    }
}

impl fmt::Display for TrialVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.left {
            0 => write!(f, "clean")?,
            left => write!(f, "**{left} left**")?,
        }
        if self.server_stays {
            write!(f, " (+ server)")?;
        }
        write!(f, " · {}", self.answer)?;
        if self.reply_bytes > LONG {
            write!(f, " ({} MB)", self.reply_bytes / 1_000_000)?;
        }
        write!(f, " · {}", if self.kept { "kept" } else { "**lost**" })?;
        if self.memory > MUCH {
            write!(f, " · {:.0} MB of memory", self.memory)?;
        }
        Ok(())
    }
}

impl fmt::Display for ReplyTruth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::True => f.write_str("true"),
            Self::Noisy => f.write_str("true, with the noise in it"),
            Self::Cut => f.write_str("cut, and says so"),
            Self::False(what) => write!(f, "**false: {what}**"),
            Self::None(patience) => write!(f, "**no answer in {} s**", patience.as_secs()),
            Self::Closed => f.write_str("**no answer**"),
            Self::Unasked => f.write_str("–"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict() -> TrialVerdict {
        TrialVerdict {
            left: 0,
            answer: ReplyTruth::True,
            kept: true,
            server_stays: false,
            reply_bytes: 9,
            memory: 9.0,
        }
    }

    #[test]
    fn only_bad_verdicts_are_highlighted() {
        assert_eq!(verdict().to_string(), "clean · true · kept");
        let bad = TrialVerdict {
            left: 2,
            answer: ReplyTruth::None(Duration::from_secs(20)),
            kept: false,
            ..verdict()
        };
        assert_eq!(bad.to_string(), "**2 left** · **no answer in 20 s** · **lost**");
    }

    #[test]
    fn huge_answer_and_memory_use_are_reported() {
        let huge = TrialVerdict { reply_bytes: 220_000_000, memory: 1500.0, ..verdict() };
        assert_eq!(huge.to_string(), "clean · true (220 MB) · kept · 1500 MB of memory");
    }
}
