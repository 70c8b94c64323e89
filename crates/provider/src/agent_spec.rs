//! What kind of agent a session is held with, and what it may touch.
//!
//! Owns the program's side of it. How an agent is kept to it is `confine.rs`.

use std::fmt;
use std::path::PathBuf;

use model::CallPolicy;
use serde::{Deserialize, Serialize};

/// The agent of a session. Unless it is given more, it can do nothing but use the file tools on its workspace.
///
/// ```
/// use provider::{Access, AgentSpec, FileVerb};
///
/// let reader = AgentSpec {
///     system_prompt: "You answer questions about the notes in your workspace.".to_owned(),
///     access: Access::Files(FileVerb::READING.to_vec()),
///     ..AgentSpec::default()
/// };
/// assert_eq!(AgentSpec::default().access, Access::Files(FileVerb::ALL.to_vec()));
/// # let _ = reader;
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSpec {
    /// Takes the place of the agent's own system prompt; empty to keep that.
    pub system_prompt: String,
    /// What it may touch.
    pub access: Access,
    /// What the operating system keeps it from, whatever its tools are; none for the provider's.
    pub policy: Option<CallPolicy>,
    /// The model; none for the provider's, an empty text for the agent's own choice.
    pub model: Option<String>,
    /// Where the `file-tools` program is; none to look beside this program, and then in `PATH`.
    pub file_tools: Option<PathBuf>,
}

impl AgentSpec {
    /// An agent with this prompt that has the file tools and nothing else.
    pub fn new(system_prompt: impl Into<String>) -> Self {
        Self { system_prompt: system_prompt.into(), ..Self::default() }
    }
}

/// What an agent may touch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// These verbs of `file-tools` on its workspace and nothing else: no shell, no tool of its own, no settings of the
    /// user or the workspace. Only claude can be kept to it.
    Files(Vec<FileVerb>),
    /// The same by way of a shell that may only run `file-tools`. Such a rule is no boundary by itself, so the agent runs in
    /// the OS sandbox: with policy `workspace` (`observe` when no verb writes), or a stricter one. Where there is no sandbox
    /// it is refused ([`crate::ProviderError::NeedsSandbox`]). Only claude can be kept to it.
    FilesByShell(Vec<FileVerb>),
    /// These tools of its own, by the vendor's names or rules.
    Tools(Vec<String>),
    /// All of its tools, without asking, with the rights of the user.
    Full,
}

impl Default for Access {
    fn default() -> Self {
        Self::Files(FileVerb::ALL.to_vec())
    }
}

/// What `file-tools` can do with a file of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileVerb {
    /// Read a file.
    Read,
    /// List files.
    List,
    /// Search in files.
    Search,
    /// Say what a file is.
    Stat,
    /// Write a file, new or not.
    Write,
    /// Write a new file.
    Create,
    /// Change parts of a file.
    Patch,
    /// Move a file.
    Move,
    /// Delete a file.
    Delete,
}

impl FileVerb {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::List,
        Self::Search,
        Self::Stat,
        Self::Write,
        Self::Create,
        Self::Patch,
        Self::Move,
        Self::Delete,
    ];

    /// Those that change nothing.
    pub const READING: [Self; 4] = [Self::Read, Self::List, Self::Search, Self::Stat];

    /// Whether it changes nothing.
    pub fn only_reads(self) -> bool {
        Self::READING.contains(&self)
    }

    /// Its name, which is that of the tool.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::List => "list",
            Self::Search => "search",
            Self::Stat => "stat",
            Self::Write => "write",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Move => "move",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for FileVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
