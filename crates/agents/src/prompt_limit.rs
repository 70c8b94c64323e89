//! The longest prompt of an agent.

use std::fmt;

/// The longest prompt that any agent accepts.
pub const MAX_PROMPT_BYTES: usize = 10 * 1024 * 1024;

/// The prompt limit of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptLimit {
    /// In bytes of UTF-8.
    Bytes(usize),
    /// In characters.
    Chars(usize),
}

impl Default for PromptLimit {
    fn default() -> Self {
        Self::Bytes(MAX_PROMPT_BYTES)
    }
}

/// A prompt over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) length: usize,
    pub(crate) limit: usize,
    pub(crate) unit: &'static str,
}

impl PromptLimit {
    /// Checks the size of a prompt.
    pub(crate) fn check(self, prompt: &str) -> Result<(), Excess> {
        let (length, limit, unit) = match self {
            Self::Bytes(limit) => (prompt.len(), limit, "bytes"),
            Self::Chars(limit) => (prompt.chars().count(), limit, "characters"),
        };
        if length > limit { Err(Excess { length, limit, unit }) } else { Ok(()) }
    }
}

impl fmt::Display for PromptLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(limit) => write!(f, "{limit} bytes"),
            Self::Chars(limit) => write!(f, "{limit} characters"),
        }
    }
}
