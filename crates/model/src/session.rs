//! The vendor's conversation: its id, which one a call wants, and which one may come back.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The id that an agent gave to a conversation.
///
/// Every agent of today uses a UUID; the type only promises a plain word that cannot be taken for a flag or a path, so
/// that an id of tomorrow can be kept and shown. Whoever *asks* for a session checks [`SessionId::as_uuid`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    const MAX_LEN: usize = 128;

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id as a UUID, when it is one.
    pub fn as_uuid(&self) -> Option<Uuid> {
        Uuid::parse_str(&self.0).ok()
    }

    /// Whether a text is this id. The same UUID may be written in capitals or without hyphens.
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

/// A text that cannot be the id of a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a session id", .0.escape_debug())]
pub struct BadSessionId(String);

impl BadSessionId {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        "give the UUID that an earlier call answered as its session_id"
    }
}

/// Which conversation a call is to be part of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionChoice {
    /// A new one.
    #[default]
    New,
    /// Go on with this one.
    Resume(SessionId),
    /// Begin a new one that remembers this one, which stays as it is.
    Fork(SessionId),
    /// Go on with the newest of the working directory.
    ContinueLatest,
}

/// What is known, before an agent starts, about the id that it will answer with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedSession {
    /// A new one, which was given this id.
    Assigned(SessionId),
    /// The old one that was asked for.
    Resumed(SessionId),
    /// A new one that remembers an old one.
    Forked {
        /// The old one.
        from: SessionId,
        /// The id that the new one was given, when it could be given one.
        into: Option<SessionId>,
    },
    /// The newest of the folder, whichever that is.
    Latest,
    /// A new one, whose id the agent chooses.
    Any,
}

impl ExpectedSession {
    /// The id, when it is known before the agent says anything.
    pub fn known(&self) -> Option<&SessionId> {
        match self {
            Self::Assigned(id) | Self::Resumed(id) => Some(id),
            Self::Forked { into, .. } => into.as_ref(),
            Self::Latest | Self::Any => None,
        }
    }

    /// The id that an agent which answers with `got` did not keep to, if so.
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
    fn what_a_shell_or_a_cli_could_misread_is_no_session_id() {
        for bad in ["", "-p", "--last", "../x", "a b", "a/b", "a\0", "é", &"a".repeat(129)] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?}");
            let json = serde_json::to_string(bad).unwrap();
            assert!(serde_json::from_str::<SessionId>(&json).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_fork_keeps_every_id_but_the_one_it_came_from() {
        let old: SessionId = "old".parse().unwrap();
        let fork = ExpectedSession::Forked { from: old.clone(), into: None };
        assert_eq!((fork.broken_by("new"), fork.broken_by("old")), (None, Some(&old)));
        assert_eq!(ExpectedSession::Resumed(old.clone()).broken_by("new"), Some(&old));
        assert_eq!(ExpectedSession::Assigned(old.clone()).broken_by("old"), None);
    }

    #[test]
    fn a_uuid_is_the_same_id_however_it_is_written() {
        let id: SessionId = "0000abcd-0000-4000-8000-00000000000a".parse().unwrap();
        for same in ["0000ABCD-0000-4000-8000-00000000000A", "0000abcd00004000800000000000000a"] {
            assert_eq!(ExpectedSession::Resumed(id.clone()).broken_by(same), None, "{same}");
            let fork = ExpectedSession::Forked { from: id.clone(), into: None };
            assert_eq!(fork.broken_by(same), Some(&id), "{same}");
        }
        let other = "0000abcd-0000-4000-8000-00000000000b";
        assert_eq!(ExpectedSession::Resumed(id.clone()).broken_by(other), Some(&id));
        // Only UUIDs: another word means something else in capitals.
        let word: SessionId = "old".parse().unwrap();
        assert_eq!(ExpectedSession::Resumed(word.clone()).broken_by("OLD"), Some(&word));
    }
}
