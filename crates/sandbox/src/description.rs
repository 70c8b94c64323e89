//! What passes between the one who starts and the one inside: the description in, words out.
//!
//! The description goes through a sealed file in memory and names the agent's environment, secrets included; it is closed
//! before the agent starts. Words come back as lines of JSON on a pipe that the agent does not have.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;

use model::{Bounds, Exit};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde::{Deserialize, Serialize};

use crate::mount_plan::PlannedMount;
use crate::quarantine::WritableRoot;

/// What the one inside is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    #[serde(with = "model::exact_path")]
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    #[serde(with = "model::exact_path")]
    pub cwd: PathBuf,
    /// The mounts to make, where it is the first process of a namespace and stays until the last one has gone.
    pub mounts: Option<Vec<PlannedMount>>,
    /// The line over which it hands out a door to named hosts.
    pub door: Option<RawFd>,
    pub rules: Rules,
}

/// What it puts on itself, and so on everything that it starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    /// What can be read.
    #[serde(with = "model::exact_path")]
    pub read: Vec<PathBuf>,
    /// Directories that can be listed, even if their files cannot be read.
    #[serde(with = "model::exact_path")]
    pub list: Vec<PathBuf>,
    /// What can be written.
    #[serde(with = "model::exact_path")]
    pub write: Vec<PathBuf>,
    /// Which directory each of them must be, where that counts.
    pub roots: Vec<WritableRoot>,
    /// Whether sockets with a name in the file system can be made.
    pub unix_sockets: bool,
    /// Whether sockets of the internet can be made.
    pub internet: bool,
    pub bounds: Bounds,
    /// Whether it is an error that a rule cannot be put.
    pub required: bool,
}

/// What the one inside says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The rules are on.
    Applied(Applied),
    /// The agent runs, or is about to be this very process.
    Started,
    /// It does not.
    Failed {
        /// At which step.
        step: Step,
        /// The number of the operating system's error, when it was one.
        errno: Option<i32>,
        /// What it said.
        message: String,
    },
    /// The agent's own process has ended; others may live.
    Ended(Exit),
}

/// Which rules the kernel took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is an answer of its own")]
pub struct Applied {
    /// Whether the file rules of Landlock are on.
    pub files: bool,
    /// Whether its scopes (abstract sockets, signals) are.
    pub scopes: bool,
    /// Whether system calls are filtered.
    pub seccomp: bool,
    /// Whether no capability is left, and none can be gained.
    pub privileges: bool,
}

/// A step on the way into the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Making the mounts, or checking them.
    Mounts,
    /// Putting the rules on.
    Rules,
    /// Entering the folder.
    Folder,
    /// Starting the program.
    Program,
}

impl Description {
    /// A sealed file that holds it.
    pub fn to_file(&self) -> io::Result<OwnedFd> {
        sealed(&serde_json::to_vec(self)?)
    }

    pub fn read(file: OwnedFd) -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    }
}

/// A file in memory that nobody can change any more.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create("switchboard", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    file.rewind()?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file.into())
}

impl Word {
    /// As one line. Shorter than a pipe's atomic write, but for a message that is cut.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// The words in what was heard so far; what is no word is left out.
    pub fn read(heard: &[u8]) -> Vec<Self> {
        let whole = heard.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        heard[..whole]
            .split(|&byte| byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }
}
