//! Versions of the CLIs, and the tested range.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A version `x.y.z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Returns the first `x.y.z` in a text, such as the output of `--version` (`codex-cli 0.166.0`).
    pub fn find(text: &str) -> Option<Self> {
        text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
            let mut numbers = word.split('.').map(|number| number.parse().ok());
            Some(Self(numbers.next()??, numbers.next()??, numbers.next()??))
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::find(&text).ok_or_else(|| format!("`{text}` is not a version"))
    }
}

/// The versions with recorded streams in this crate's tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TestedRange {
    /// The oldest.
    pub oldest: Version,
    /// The newest.
    pub newest: Version,
}

impl TestedRange {
    /// Compares a version with the range.
    pub fn classify(self, version: Version) -> VersionSupport {
        if version < self.oldest {
            VersionSupport::Older
        } else if version > self.newest {
            VersionSupport::Newer
        } else {
            VersionSupport::Tested
        }
    }
}

/// A version compared with the tested range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionSupport {
    /// Tested.
    Tested,
    /// Older: may lack flags.
    Older,
    /// Newer: probably compatible; unknown events are reported as `Unknown`.
    Newer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_from_each_cli() {
        for (text, version) in [
            ("2.1.325 (Claude Code)\n", Some(Version(2, 1, 325))),
            ("codex-cli 0.166.0\n", Some(Version(0, 166, 0))),
            ("0.61.0\n", Some(Version(0, 61, 0))),
            ("v1.2.3-beta.4", Some(Version(1, 2, 3))),
            ("no version here 1.2", None),
            ("", None),
        ] {
            assert_eq!(Version::find(text), version, "{text:?}");
        }
    }

    #[test]
    fn versions_compare_numerically() {
        let range = TestedRange { oldest: Version(2, 1, 197), newest: Version(2, 1, 325) };
        assert_eq!(range.classify(Version(2, 1, 99)), VersionSupport::Older);
        assert_eq!(range.classify(Version(2, 1, 200)), VersionSupport::Tested);
        assert_eq!(range.classify(Version(2, 10, 0)), VersionSupport::Newer);
    }
}
