//! The name of an agent that is described by a profile.

use std::fmt;
use std::str::FromStr;

use crate::BadName;

/// The longest name.
const MAX_BYTES: usize = 32;

/// The name of an agent profile: 1 to 32 lower-case letters, digits, `-` and `_`, the first of them a letter.
///
/// Stored inline, so that the name of an agent is copied like the other kinds of agents.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProfileName {
    bytes: [u8; MAX_BYTES],
    length: u8,
}

impl ProfileName {
    /// Returns the name of a profile in this program's own table. Anything but a valid name fails to compile in a constant.
    pub const fn built_in(name: &str) -> Self {
        let text = name.as_bytes();
        assert!(is_valid(text), "not the name of a profile");
        let (mut bytes, mut at) = ([0; MAX_BYTES], 0);
        while at < text.len() {
            bytes[at] = text[at];
            at += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 32")]
        Self { bytes, length: text.len() as u8 }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

const fn is_valid(text: &[u8]) -> bool {
    if text.is_empty() || text.len() > MAX_BYTES || !text[0].is_ascii_lowercase() {
        return false;
    }
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        if !(byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_') {
            return false;
        }
        at += 1;
    }
    true
}

impl FromStr for ProfileName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.to_ascii_lowercase();
        if is_valid(name.as_bytes()) {
            Ok(Self::built_in(&name))
        } else {
            let hint = "use a letter and up to 31 lower-case letters, digits, `-` and `_`";
            Err(BadName::new("agent", text, hint))
        }
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_name_is_a_lower_case_word() {
        for good in ["a", "opencode", "claude-agent-acp", "my_2nd", &"x".repeat(32)] {
            assert_eq!(good.parse::<ProfileName>().unwrap().as_str(), good);
        }
        for bad in ["", "2nd", "-a", "a b", "a/b", "ä", &"x".repeat(33)] {
            assert!(bad.parse::<ProfileName>().is_err(), "{bad}");
        }
        assert_eq!("OpenCode".parse::<ProfileName>().unwrap().to_string(), "opencode");
    }
}
