//! The vendor's session: its id, the caller's choice, and the expected id.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A session id of a vendor.
///
/// All current agents use UUIDs. The type only guarantees that the id cannot be mistaken for a flag or a path, so that an unknown
/// format can still be stored and shown. Requests for a session check [`SessionId::as_uuid`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    const MAX_LEN: usize = 128;

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the UUID, if it is one.
    pub fn as_uuid(&self) -> Option<Uuid> {
        Uuid::parse_str(&self.0).ok()
    }

    /// Returns whether a text is this id. UUIDs also match in upper case or without hyphens.
    pub fn is_written(&self, text: &str) -> bool {
        self.0 == text || self.as_uuid().is_some_and(|id| Uuid::parse_str(text) == Ok(id))
    }
}

impl From<Uuid> for SessionId {
    fn from(id: Uuid) -> Self {
        Self(id.to_string())
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for SessionId {
    type Err = BadSessionId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.len() <= Self::MAX_LEN
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
        if plain { Ok(Self(text.to_owned())) } else { Err(BadSessionId(text.chars().take(64).collect())) }
    }
}

impl TryFrom<String> for SessionId {
    type Error = BadSessionId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// A malformed session id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a session id", .0.escape_debug())]
pub struct BadSessionId(String);

impl BadSessionId {
    /// Returns the remedy.
    pub fn hint(&self) -> &'static str {
        "pass the session_id of an earlier result"
    }
}

/// The session of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionChoice {
    /// A new session.
    #[default]
    New,
    /// Resume this session.
    Resume(SessionId),
    /// Fork this session, which stays unchanged.
    Fork(SessionId),
    /// Resume the newest session of the working directory.
    ContinueLatest,
}

/// The session that an agent is expected to report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedSession {
    /// A new session with this id.
    Assigned(SessionId),
    /// The resumed session.
    Resumed(SessionId),
    /// A fork.
    Forked {
        /// The original session.
        from: SessionId,
        /// The id of the fork, if it could be assigned.
        into: Option<SessionId>,
    },
    /// The newest session of the working directory.
    Latest,
    /// A new session with an id of the agent's choice.
    Any,
}

impl ExpectedSession {
    /// Returns the id, if it is known before the agent starts.
    pub fn known(&self) -> Option<&SessionId> {
        match self {
            Self::Assigned(id) | Self::Resumed(id) => Some(id),
            Self::Forked { into, .. } => into.as_ref(),
            Self::Latest | Self::Any => None,
        }
    }

    /// Returns the expected id if an agent that reports `got` violates the expectation.
    pub fn broken_by(&self, got: &str) -> Option<&SessionId> {
        match self {
            Self::Forked { from, into: None } => Some(from).filter(|from| from.is_written(got)),
            expected => expected.known().filter(|id| !id.is_written(got)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_id_rejects_flags_and_paths() {
        for bad in ["", "-p", "--last", "../x", "a b", "a/b", "a\0", "é", &"a".repeat(129)] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?}");
            let json = serde_json::to_string(bad).unwrap();
            assert!(serde_json::from_str::<SessionId>(&json).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn fork_may_report_any_id_but_its_origin() {
        let old: SessionId = "old".parse().unwrap();
        let fork = ExpectedSession::Forked { from: old.clone(), into: None };
        assert_eq!((fork.broken_by("new"), fork.broken_by("old")), (None, Some(&old)));
        assert_eq!(ExpectedSession::Resumed(old.clone()).broken_by("new"), Some(&old));
        assert_eq!(ExpectedSession::Assigned(old.clone()).broken_by("old"), None);
    }

    #[test]
    fn uuid_matches_in_any_notation() {
        let id: SessionId = "0000abcd-0000-4000-8000-00000000000a".parse().unwrap();
        for same in ["0000ABCD-0000-4000-8000-00000000000A", "0000abcd00004000800000000000000a"] {
            assert_eq!(ExpectedSession::Resumed(id.clone()).broken_by(same), None, "{same}");
            let fork = ExpectedSession::Forked { from: id.clone(), into: None };
            assert_eq!(fork.broken_by(same), Some(&id), "{same}");
        }
        let other = "0000abcd-0000-4000-8000-00000000000b";
        assert_eq!(ExpectedSession::Resumed(id.clone()).broken_by(other), Some(&id));
        // Only UUIDs are case-insensitive.
        let word: SessionId = "old".parse().unwrap();
        assert_eq!(ExpectedSession::Resumed(word.clone()).broken_by("OLD"), Some(&word));
    }
}
