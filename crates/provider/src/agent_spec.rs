//! The agent of a session and its access.
//!
//! Owns the program's side; `confine.rs` enforces it.

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
    /// Replaces the agent's own system prompt; empty keeps it.
    pub system_prompt: String,
    /// The access of the agent.
    pub access: Access,
    /// The sandbox policy, independent of its tools; `None` for the provider's.
    pub policy: Option<CallPolicy>,
    /// The model; `None` for the provider's, an empty string for the agent's own choice.
    pub model: Option<String>,
    /// The path of `file-tools`; `None` to search beside this program and then in `PATH`.
    pub file_tools: Option<PathBuf>,
}

impl AgentSpec {
    /// Creates an agent with this prompt and the file tools only.
    pub fn new(system_prompt: impl Into<String>) -> Self {
        Self { system_prompt: system_prompt.into(), ..Self::default() }
    }
}

/// The access of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// These `file-tools` verbs on its workspace and nothing else: no shell, no built-in tool, no settings of the user or the
    /// workspace. Only claude can enforce it.
    Files(Vec<FileVerb>),
    /// The same through a shell that may only run `file-tools`. Such a rule is not a boundary by itself, so the agent runs in
    /// the OS sandbox: with policy `workspace` (`observe` if no verb writes), or a stricter one. Without a sandbox the request
    /// is rejected ([`crate::ProviderError::NeedsSandbox`]). Only claude can enforce it.
    FilesByShell(Vec<FileVerb>),
    /// These built-in tools, by the vendor's names or rules.
    Tools(Vec<String>),
    /// All tools, without permission prompts, with the permissions of the user.
    Full,
}

impl Default for Access {
    fn default() -> Self {
        Self::Files(FileVerb::ALL.to_vec())
    }
}

/// A `file-tools` verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileVerb {
    /// Reads a file.
    Read,
    /// Lists files.
    List,
    /// Searches files.
    Search,
    /// Describes a file.
    Stat,
    /// Creates or replaces a file.
    Write,
    /// Creates a file.
    Create,
    /// Changes parts of a file.
    Patch,
    /// Moves a file.
    Move,
    /// Deletes a file.
    Delete,
}

impl FileVerb {
    /// All verbs.
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

    /// The read-only verbs.
    pub const READING: [Self; 4] = [Self::Read, Self::List, Self::Search, Self::Stat];

    /// Returns whether the verb is read-only.
    pub fn only_reads(self) -> bool {
        Self::READING.contains(&self)
    }

    /// Returns the name, which is that of the tool.
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
