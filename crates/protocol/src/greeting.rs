//! The handshake of a connection. Client and daemon exchange greetings; MCP messages or control requests follow.
//!
//! Every message is one line of JSON. Unknown fields are ignored, so two versions with the same protocol are compatible; both sides
//! reject another protocol.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The protocol version. It is incremented when older programs would misread a message.
pub const PROTOCOL_VERSION: u32 = 2;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The maximum size of a greeting: the longest path with every byte escaped, the variables for agents, and the other fields.
pub const MAX_GREETING_BYTES: usize = 32 * 1024;

/// The envelope of a greeting, which identifies the protocol by its first line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Greeting<T> {
    /// The greeting.
    pub switchboard: T,
}

/// The part of a greeting that all protocol versions share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerVersion {
    /// The protocol version.
    pub protocol: u32,
    /// The program version.
    pub version: String,
}

impl PeerVersion {
    /// Returns the versions of this program.
    pub fn current() -> Self {
        Self { protocol: PROTOCOL_VERSION, version: VERSION.to_owned() }
    }
}

/// The greeting of a client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The versions of the client.
    #[serde(flatten)]
    pub peer: PeerVersion,
    /// The kind of messages that follow.
    pub role: ClientRole,
    /// Its working directory; `None` if the path is not valid UTF-8.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Its process id, for the log.
    pub pid: u32,
    /// The variables of its environment that agents may receive; `None` if it sends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<BTreeMap<String, String>>,
}

/// The kind of messages on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientRole {
    /// MCP messages, one per line.
    Mcp,
    /// `DaemonRequest`s and `DaemonReply`s.
    Control,
}

/// The greeting of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The versions of the daemon.
    #[serde(flatten)]
    pub peer: PeerVersion,
    /// Its process id.
    pub pid: u32,
    /// The name under which it owns jobs.
    #[serde(default)]
    pub owner: String,
    /// The reason why it rejects the connection; `None` if it accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorReply>,
}

/// An error message of the daemon with its remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// The error.
    pub message: String,
    /// The remedy, as an imperative.
    pub hint: String,
}

/// The remedy when the daemon is the older side. Not a drain, which would reject calls until the longest job finishes.
pub const UPGRADE_DAEMON: &str = "stop the old daemon with `switchboard stop --now`; the next call starts the new one, which adopts \
    running jobs";
/// The remedy when the daemon is the newer side: a restart would start the same one.
const UPGRADE_CLIENT: &str = "this program is older than the daemon: upgrade it, or restart the process that started it, such as \
    the MCP host";

/// Returns the remedy if the versions differ.
fn remedy(client: &PeerVersion, daemon: &PeerVersion) -> &'static str {
    let age = |peer: &PeerVersion| (peer.protocol, version_numbers(&peer.version));
    if age(daemon) > age(client) { UPGRADE_CLIENT } else { UPGRADE_DAEMON }
}

/// Parses the numbers of a version, so that 0.10 sorts after 0.9. A pre-release suffix is ignored.
fn version_numbers(version: &str) -> Vec<u64> {
    let end = version.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(version.len());
    version[..end].split('.').map_while(|number| number.parse().ok()).collect()
}

impl ErrorReply {
    /// Creates the error for a protocol mismatch.
    pub fn protocol_mismatch(client: &PeerVersion, daemon: &PeerVersion) -> Self {
        Self {
            message: format!(
                "protocol mismatch: the client (version {}) uses protocol {}, the daemon (version {}) uses protocol {}",
                client.version, client.protocol, daemon.version, daemon.protocol
            ),
            hint: remedy(client, daemon).to_owned(),
        }
    }
}

/// Describes a version difference that the protocol permits; `None` if the versions are equal.
pub fn describe_version_skew(daemon: &PeerVersion) -> Option<String> {
    (daemon.version != VERSION).then(|| {
        let remedy = remedy(&PeerVersion::current(), daemon);
        format!(
            "this program is version {VERSION}, but the running daemon is version {}; {remedy}",
            daemon.version
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_match_the_documentation() {
        let hello = Hello {
            peer: PeerVersion::current(),
            role: ClientRole::Mcp,
            cwd: Some("/abs".into()),
            pid: 7,
            environment: None,
        };
        assert_eq!(
            serde_json::to_string(&Greeting { switchboard: hello }).unwrap(),
            format!(
                r#"{{"switchboard":{{"protocol":2,"version":"{VERSION}","role":"mcp","cwd":"/abs","pid":7}}}}"#
            )
        );
        let welcome = Welcome { peer: PeerVersion::current(), pid: 7, owner: "vm:1".into(), error: None };
        assert_eq!(
            serde_json::to_string(&Greeting { switchboard: welcome }).unwrap(),
            format!(r#"{{"switchboard":{{"protocol":2,"version":"{VERSION}","pid":7,"owner":"vm:1"}}}}"#)
        );
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let line =
            r#"{"switchboard":{"protocol":1,"version":"9.9.9","role":"mcp","pid":1,"mood":"good"},"x":1}"#;
        let hello: Greeting<Hello> = serde_json::from_str(line).unwrap();
        assert_eq!(hello.switchboard.cwd, None);
        assert!(describe_version_skew(&hello.switchboard.peer).unwrap().contains("9.9.9"));
        assert_eq!(describe_version_skew(&PeerVersion::current()), None);
    }

    #[test]
    fn older_side_is_told_to_upgrade() {
        let peer = |protocol, version: &str| PeerVersion { protocol, version: version.to_owned() };
        let hint =
            |client: &PeerVersion, daemon: &PeerVersion| ErrorReply::protocol_mismatch(client, daemon).hint;
        let (old, new) = (peer(1, "0.9.3"), peer(1, "0.10.0-rc.1"));
        assert!(hint(&new, &old).contains("`switchboard stop --now`"));
        assert!(hint(&old, &new).contains("restart") && !hint(&old, &new).contains("switchboard stop"));
        assert_eq!(
            hint(&peer(2, "0.1"), &peer(1, "0.2")),
            UPGRADE_DAEMON,
            "the protocol version takes precedence"
        );
        assert_eq!(hint(&peer(1, "0.2"), &peer(2, "0.1")), UPGRADE_CLIENT);
        assert_eq!(hint(&peer(1, "unknown"), &peer(1, "?")), UPGRADE_DAEMON);
    }
}
