//! What a trial came to, as one cell of the table.

use std::fmt;
use std::time::Duration;

/// One cell.
#[derive(Debug)]
pub enum Cell {
    /// It means nothing to this server, or could not be set up here: why.
    NotTried(String),
    /// It was tried.
    Judged(Verdict),
}

/// What was seen from outside.
#[derive(Debug)]
pub struct Verdict {
    /// Processes of the agent that were alive when everything should have been over.
    pub left: usize,
    /// What the host was told.
    pub answer: Answer,
    /// Whether what the agent had said can be had: from the answer, or from the server later.
    pub kept: bool,
    /// Whether the process that the host had started outlived it.
    pub server_stays: bool,
    /// How long the answer was.
    pub reply_bytes: usize,
    /// The most memory that the server had, in millions of bytes.
    pub memory: f64,
}

impl Verdict {
    /// Whether nothing is left, nothing was lost, and nobody was told what was not the case.
    pub fn is_as_promised(&self) -> bool {
        let true_or_unasked = matches!(self.answer, Answer::True | Answer::Unasked);
        self.left == 0 && self.kept && true_or_unasked && !self.server_stays
    }
}

/// What the host was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// What was the case.
    True,
    /// The answer, and noise with it that the agent had not said.
    Noisy,
    /// Not the answer, but that it was too long.
    Cut,
    /// Something else.
    False(&'static str),
    /// Nothing within that time.
    None(Duration),
    /// Nothing, and the connection is gone.
    Closed,
    /// Nobody was there to be told, or nobody wanted to be.
    Unasked,
}

/// From here on the length of an answer is worth a word, in bytes; and the memory, in millions of bytes.
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

impl fmt::Display for Verdict {
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

impl fmt::Display for Answer {
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

    fn verdict() -> Verdict {
        Verdict {
            left: 0,
            answer: Answer::True,
            kept: true,
            server_stays: false,
            reply_bytes: 9,
            memory: 9.0,
        }
    }

    #[test]
    fn only_what_is_bad_stands_out() {
        assert_eq!(verdict().to_string(), "clean · true · kept");
        let bad =
            Verdict { left: 2, answer: Answer::None(Duration::from_secs(20)), kept: false, ..verdict() };
        assert_eq!(bad.to_string(), "**2 left** · **no answer in 20 s** · **lost**");
    }

    #[test]
    fn a_huge_answer_and_much_memory_are_told() {
        let huge = Verdict { reply_bytes: 220_000_000, memory: 1500.0, ..verdict() };
        assert_eq!(huge.to_string(), "clean · true (220 MB) · kept · 1500 MB of memory");
    }
}
