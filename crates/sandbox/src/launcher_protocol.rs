//! The protocol between the supervisor and the launcher: a [`SandboxSpec`] in, [`LauncherEvent`]s out.
//!
//! The spec is passed in a sealed memfd, since it contains the agent's environment with its secrets; it is closed before the agent
//! starts. Events are lines of JSON on a pipe that the agent does not inherit.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;

use model::{Bounds, Exit};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde::{Deserialize, Serialize};

use crate::mount_plan::PlannedMount;
use crate::writable_roots::WritableRoot;

/// The sandbox and the command that the launcher starts in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SandboxSpec {
    #[serde(with = "model::exact_path")]
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    #[serde(with = "model::exact_path")]
    pub cwd: PathBuf,
    /// The mounts to create. Present if the launcher is the first process of a pid namespace, where it stays until the last process exits.
    pub mounts: Option<Vec<PlannedMount>>,
    /// The socket over which the launcher sends the proxy's listener.
    #[serde(rename = "door")]
    pub proxy_channel: Option<RawFd>,
    pub rules: Rules,
}

/// The restrictions that the launcher applies to itself and thereby to all of its descendants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    /// Readable paths.
    #[serde(with = "model::exact_path")]
    pub read: Vec<PathBuf>,
    /// Directories that can be listed even if their files cannot be read.
    #[serde(with = "model::exact_path")]
    pub list: Vec<PathBuf>,
    /// Writable paths.
    #[serde(with = "model::exact_path")]
    pub write: Vec<PathBuf>,
    /// The identities that writable roots must have.
    pub roots: Vec<WritableRoot>,
    /// Is true if Unix sockets can be created.
    pub unix_sockets: bool,
    /// Is true if internet sockets can be created.
    pub internet: bool,
    pub bounds: Bounds,
    /// Is true if a rule that cannot be applied is an error.
    pub required: bool,
}

/// An event that the launcher reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LauncherEvent {
    /// The rules are in force.
    #[serde(rename = "applied")]
    RulesApplied(AppliedRules),
    /// The agent was started in a pid namespace.
    #[serde(rename = "started")]
    AgentStarted,
    /// The agent was not started.
    Failed {
        /// The step that failed.
        step: LaunchStep,
        /// The error number of the operating system, if there is one.
        errno: Option<i32>,
        /// The error message.
        message: String,
    },
    /// The agent's own process has exited in a pid namespace; its descendants may live.
    #[serde(rename = "ended")]
    AgentExited {
        /// The exit status.
        exit: Exit,
        /// Is true if it was the last process inside.
        is_last: bool,
    },
}

/// The rules that the kernel accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is accepted or not on its own")]
pub struct AppliedRules {
    /// Is true if Landlock's file rules are in force.
    pub files: bool,
    /// Is true if Landlock's scopes (abstract sockets, signals) are in force.
    pub scopes: bool,
    /// Is true if the seccomp filter is in force.
    pub seccomp: bool,
    /// Is true if all capabilities are dropped and none can be gained.
    pub privileges: bool,
}

/// A step of the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchStep {
    /// Creating or verifying the mounts.
    Mounts,
    /// Applying the rules.
    Rules,
    /// Entering the working directory.
    #[serde(rename = "folder")]
    WorkingDirectory,
    /// Starting the program.
    Program,
}

impl SandboxSpec {
    /// Writes the spec to a sealed memfd.
    pub fn to_file(&self) -> io::Result<OwnedFd> {
        let bytes = serde_json::to_vec(self)?;
        let file = memfd_create("switchboard", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut file = File::from(file);
        file.write_all(&bytes)?;
        file.rewind()?;
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(file.into())
    }

    /// Reads a spec.
    pub fn from_file(file: OwnedFd) -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    }
}

impl LauncherEvent {
    /// Serializes the event to one line. It is shorter than `PIPE_BUF`, since messages are truncated, so its write is atomic.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// Parses the events in the bytes that were read so far. A partial last line and unknown lines are skipped.
    pub fn parse(bytes: &[u8]) -> Vec<Self> {
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        bytes[..whole]
            .split(|&byte| byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }
}
