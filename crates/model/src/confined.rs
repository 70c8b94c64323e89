//! The sandbox report of a run: the effective policy and the enforcement of each safeguard.
//!
//! Written by the supervisor from the kernel's answers, not from the request.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Confinement, exact_path};

/// The sandbox of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxReport {
    /// No sandbox: the agent had all permissions of the user.
    Off,
    /// A sandbox.
    Confined(Box<Confined>),
}

/// The sandbox of a run, as enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confined {
    /// The effective policy.
    pub policy: Confinement,
    /// The safeguards and their enforcement.
    pub safeguards: Vec<Safeguard>,
    /// The result of the self-test in the same sandbox.
    #[serde(default)]
    pub proof: Option<Proof>,
    /// Hosts that the proxy rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_hosts: Vec<String>,
    /// Protected paths that were created during the run, with their new locations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<Quarantined>,
    /// The reason why the git repository was read-only. `None` if it was writable or there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_read_only: Option<String>,
    /// The paths of the home directory that the agent could read; the rest was hidden.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "exact_path")]
    pub exposed: Vec<PathBuf>,
    /// The number of commits made without the hooks of their repository.
    #[serde(default)]
    pub commits_without_hooks: u32,
    /// The number of commits made without the signature that the user's configuration requires.
    #[serde(default)]
    pub unsigned_commits: u32,
}

/// A new path that could run commands later, moved to quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// The original path.
    #[serde(with = "exact_path")]
    pub path: PathBuf,
    /// The new location. `None` if the path could not be moved.
    #[serde(default, with = "exact_path")]
    pub moved_to: Option<PathBuf>,
    /// The path is a directory that could not be scanned: new paths in it are unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unexamined: bool,
}

impl Confined {
    /// Returns the safeguards that are not fully enforced.
    pub fn gaps(&self) -> impl Iterator<Item = &Safeguard> {
        self.safeguards.iter().filter(|safeguard| safeguard.enforcement != Enforcement::Full)
    }
}

/// A safeguard of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Safeguard {
    /// The name.
    pub name: SafeguardName,
    /// The enforcement on this machine.
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
    /// No writes outside of the roots.
    Writes,
    /// Hidden paths cannot be read.
    HiddenPaths,
    /// Existing protected paths are read-only; new ones are moved to quarantine.
    ProtectedPaths,
    /// Processes outside of the sandbox cannot be seen or signaled.
    Processes,
    /// No process survives the run, even if the supervisor is killed.
    Lifetime,
    /// Only allowed hosts can be reached.
    Network,
    /// No Unix socket outside of the sandbox can be reached, by path or abstract name.
    UnixSockets,
    /// Dangerous system calls fail.
    SystemCalls,
    /// No privileges can be gained: no capabilities, no setuid.
    Privileges,
    /// No file descriptor of the supervisor is inherited.
    OpenFiles,
    /// The number of processes is limited.
    ProcessCount,
    /// The size of files is limited.
    FileSize,
    /// Memory is limited.
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

/// The result of a self-test, which tries to escape from the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The escape attempts.
    pub escapes: Vec<Escape>,
    /// The result comes from an earlier run in this boot, with the same kind of policy and the same programs.
    pub earlier: bool,
}

/// An attempt to escape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Escape {
    /// The action.
    pub tried: String,
    /// The safeguard under test.
    pub safeguard: SafeguardName,
    /// The attempt was blocked.
    pub stopped: bool,
    /// The error of the kernel, or the observation from outside.
    pub said: String,
}
