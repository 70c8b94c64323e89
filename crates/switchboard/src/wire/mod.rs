//! What a front-end and the daemon say to each other: a greeting both ways, then MCP lines or control requests.
//!
//! Everything is one JSON value to a line. Owns the words; who carries them is `front` and `daemon`. Fields that are not known are
//! passed over, so that two versions of one protocol understand each other; another protocol is refused by both sides.

mod control;
mod jobs;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use control::{HttpStatus, Line, Phase, Reply, Request, Status, StopHow};
pub use jobs::{About, JobLine, Placed, Search, StatsLine, Sums, Taken, Wanted, is_waiting, said, waiting};

/// The number of this protocol. It changes when an older program could no longer make sense of what is said.
pub const PROTOCOL: u32 = 2;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How long a greeting may be: the longest path, every byte of it escaped, the variables for agents, and the rest.
pub const LONGEST_GREETING: usize = 32 * 1024;

/// What stands around every greeting, so that a stranger is recognised by its first line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Greeting<T> {
    /// The greeting itself.
    pub switchboard: T,
}

/// What every version of every protocol says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speaker {
    /// Which protocol it speaks.
    pub protocol: u32,
    /// Its version.
    pub version: String,
}

impl Speaker {
    /// This program.
    pub fn me() -> Self {
        Self { protocol: PROTOCOL, version: VERSION.to_owned() }
    }
}

/// A front-end's greeting.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Who speaks.
    #[serde(flatten)]
    pub speaker: Speaker,
    /// What it wants to talk about.
    pub role: Role,
    /// The folder it stands in; none when its name is no text.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Its process, for the log.
    pub pid: u32,
    /// The variables of its own environment that agents may have; none when it has nothing to say about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<BTreeMap<String, String>>,
}

/// What a front-end wants to talk about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// MCP messages, one to a line.
    Mcp,
    /// [`Request`]s and [`Reply`]s.
    Control,
}

/// The daemon's answer to a greeting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Who answers.
    #[serde(flatten)]
    pub speaker: Speaker,
    /// Its process.
    pub pid: u32,
    /// The name under which it owns jobs.
    #[serde(default)]
    pub owner: String,
    /// Why it will not talk; none when it will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Complaint>,
}

/// What is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complaint {
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// The remedy when the daemon is the older side. Not a drain, which would reject calls until the longest job finishes.
pub const UPGRADE_DAEMON: &str = "stop the old daemon with `switchboard stop --now`; the next call starts the new one, which adopts \
    running jobs";
/// The remedy when the daemon is the newer side: a restart would start the same one.
const UPGRADE_CLIENT: &str = "this program is older than the daemon: upgrade it, or restart the process that started it, such as \
    the MCP host";

/// Returns the remedy when the two sides differ in version.
fn remedy(front_end: &Speaker, daemon: &Speaker) -> &'static str {
    let age = |speaker: &Speaker| (speaker.protocol, numbers(&speaker.version));
    if age(daemon) > age(front_end) { UPGRADE_CLIENT } else { UPGRADE_DAEMON }
}

/// The numbers of a version, so that 0.10 comes after 0.9. What follows them does not count.
fn numbers(version: &str) -> Vec<u64> {
    let end = version.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(version.len());
    version[..end].split('.').map_while(|number| number.parse().ok()).collect()
}

impl Complaint {
    /// Reports that the two sides use different protocols.
    pub fn other_protocol(front_end: &Speaker, daemon: &Speaker) -> Self {
        Self {
            message: format!(
                "protocol mismatch: the client (version {}) uses protocol {}, the daemon (version {}) uses protocol {}",
                front_end.version, front_end.protocol, daemon.version, daemon.protocol
            ),
            hint: remedy(front_end, daemon).to_owned(),
        }
    }
}

/// Describes a version difference that the protocol allows; none when the versions are the same.
pub fn skew(daemon: &Speaker) -> Option<String> {
    (daemon.version != VERSION).then(|| {
        let remedy = remedy(&Speaker::me(), daemon);
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
    fn greetings_are_as_the_documents_say() {
        let hello = Hello {
            speaker: Speaker::me(),
            role: Role::Mcp,
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
        let welcome = Welcome { speaker: Speaker::me(), pid: 7, owner: "vm:1".into(), error: None };
        assert_eq!(
            serde_json::to_string(&Greeting { switchboard: welcome }).unwrap(),
            format!(r#"{{"switchboard":{{"protocol":2,"version":"{VERSION}","pid":7,"owner":"vm:1"}}}}"#)
        );
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        let line =
            r#"{"switchboard":{"protocol":1,"version":"9.9.9","role":"mcp","pid":1,"mood":"good"},"x":1}"#;
        let hello: Greeting<Hello> = serde_json::from_str(line).unwrap();
        assert_eq!(hello.switchboard.cwd, None);
        assert!(skew(&hello.switchboard.speaker).unwrap().contains("9.9.9"));
        assert_eq!(skew(&Speaker::me()), None);
    }

    #[test]
    fn the_older_side_is_the_one_to_be_renewed() {
        let speaker = |protocol, version: &str| Speaker { protocol, version: version.to_owned() };
        let said = |front_end: &Speaker, daemon: &Speaker| Complaint::other_protocol(front_end, daemon).hint;
        let (old, new) = (speaker(1, "0.9.3"), speaker(1, "0.10.0-rc.1"));
        assert!(said(&new, &old).contains("`switchboard stop --now`"));
        assert!(said(&old, &new).contains("restart") && !said(&old, &new).contains("switchboard stop"));
        assert_eq!(said(&speaker(2, "0.1"), &speaker(1, "0.2")), UPGRADE_DAEMON, "the protocol says more");
        assert_eq!(said(&speaker(1, "0.2"), &speaker(2, "0.1")), UPGRADE_CLIENT);
        assert_eq!(said(&speaker(1, "unknown"), &speaker(1, "?")), UPGRADE_DAEMON);
    }

    #[test]
    fn requests_and_replies_are_told_apart_by_name() {
        let line = serde_json::to_string(&Request::Stop { how: StopHow::Drain }).unwrap();
        assert_eq!(line, r#"{"request":"stop","how":"drain"}"#);
        assert_eq!(serde_json::from_str::<Request>(r#"{"request":"status"}"#).unwrap(), Request::Status);
        let line =
            serde_json::to_string(&Line { reply: Reply::Draining { running: 2 }, more: true }).unwrap();
        assert_eq!(line, r#"{"reply":"draining","running":2,"more":true}"#);
        let last = serde_json::to_string(&Line { reply: Reply::Ending, more: false }).unwrap();
        assert_eq!(last, r#"{"reply":"ending"}"#);
        assert!(!serde_json::from_str::<Line>(&last).unwrap().more);
    }
}
