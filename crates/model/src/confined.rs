//! What really confined a run: the policy as it was enforced, and which of its safeguards held.
//!
//! Written by the supervisor from what the kernel said, never from what was asked for.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Confinement, exact_path};

/// How a run was confined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxReport {
    /// Not at all: the agent had all the rights of the user.
    Off,
    /// By this.
    Confined(Box<Confined>),
}

/// What confined a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confined {
    /// The policy as it was enforced.
    pub policy: Confinement,
    /// Each safeguard, and whether it held.
    pub safeguards: Vec<Safeguard>,
    /// What a probe in the same sandbox came to.
    #[serde(default)]
    pub proof: Option<Proof>,
    /// Whom it asked for in vain, in a network of named hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_hosts: Vec<String>,
    /// The protected paths that were created during the run, and where each is now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<Quarantined>,
    /// Why the repository around the workspace was read-only; none when it was writable or there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_read_only: Option<String>,
    /// The paths of the home directory that the agent could read; the rest of it was absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "exact_path")]
    pub exposed: Vec<PathBuf>,
    /// How many commits were made without the hooks of their repository.
    #[serde(default)]
    pub commits_without_hooks: u32,
    /// How many commits were made without a signature, though the user's configuration asks for one.
    #[serde(default)]
    pub unsigned_commits: u32,
}

/// A path that could run commands later, moved away after it was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Where it was created.
    #[serde(with = "exact_path")]
    pub path: PathBuf,
    /// Where it is now; none when it could not be moved.
    #[serde(default, with = "exact_path")]
    pub moved_to: Option<PathBuf>,
    /// Whether it is a directory that could not be examined: paths that were created in it are not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unexamined: bool,
}

impl Confined {
    /// The safeguards that did not hold in full.
    pub fn gaps(&self) -> impl Iterator<Item = &Safeguard> {
        self.safeguards.iter().filter(|safeguard| safeguard.enforcement != Enforcement::Full)
    }
}

/// One thing that confines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Safeguard {
    /// Which one.
    pub name: SafeguardName,
    /// Whether the machine enforces it.
    #[serde(rename = "hold")]
    pub enforcement: Enforcement,
    /// The mechanism, or the reason why there is none.
    pub why: String,
}

/// The degree to which a safeguard is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Enforced.
    #[serde(rename = "held")]
    Full,
    /// Enforced, with the exception that [`Safeguard::why`] names.
    #[serde(rename = "partly")]
    Partial,
    /// Not enforced.
    #[serde(rename = "open")]
    None,
}

/// The names of the safeguards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SafeguardName {
    /// Nothing is written outside of the roots.
    Writes,
    /// What is hidden cannot be read.
    HiddenPaths,
    /// Existing protected paths cannot be changed; new ones are moved to quarantine.
    ProtectedPaths,
    /// No process outside can be seen or signalled.
    Processes,
    /// No process of the run outlives it, whoever is killed.
    Lifetime,
    /// Nobody is reached over the network but who may be.
    Network,
    /// No socket of the machine is reached through the file system or by an abstract name.
    UnixSockets,
    /// Dangerous system calls are refused.
    SystemCalls,
    /// No right can be gained: no capability, no setuid.
    Privileges,
    /// No open file of the supervisor is inherited.
    OpenFiles,
    /// The number of processes is bounded.
    ProcessCount,
    /// The size of files is bounded.
    FileSize,
    /// Memory is bounded.
    Memory,
}

impl fmt::Display for SafeguardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Writes => "writes",
            Self::HiddenPaths => "hidden paths",
            Self::ProtectedPaths => "protected paths",
            Self::Processes => "processes",
            Self::Lifetime => "lifetime",
            Self::Network => "network",
            Self::UnixSockets => "unix sockets",
            Self::SystemCalls => "system calls",
            Self::Privileges => "privileges",
            Self::OpenFiles => "open files",
            Self::ProcessCount => "process count",
            Self::FileSize => "file size",
            Self::Memory => "memory",
        })
    }
}

/// What a probe that tried to break out came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Each try and what it came to.
    pub escapes: Vec<Escape>,
    /// Whether this was proven earlier in this boot, for the same kind of policy and the same programs.
    pub earlier: bool,
}

/// One try to break out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escape {
    /// What was tried.
    pub tried: String,
    /// Which safeguard answers for it.
    pub safeguard: SafeguardName,
    /// Whether it was stopped.
    pub stopped: bool,
    /// What the kernel, or the one who watched from outside, said.
    pub said: String,
}
