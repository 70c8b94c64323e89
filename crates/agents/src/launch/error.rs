//! The reasons why a call cannot be launched as requested. All are reported before anything starts.

use std::path::PathBuf;

use model::{AgentKind, BadName, PlanError, PolicyError, SessionId};

use crate::{BadModelName, Version};

/// The name of the option that a policy without a shell implies.
pub(super) const NO_SHELL: &str = "policy without a shell";

/// The remedy for a missing program of Switchboard. A daemon searches for it only at startup.
pub(crate) const INSTALL_ALL: &str = "install all of Switchboard (`cargo install --path crates/switchboard`), which installs it next to `switchboard`; a running daemon finds it after `switchboard stop --now`";

/// A call that cannot be launched.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LaunchError {
    /// The prompt is empty.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The agent would reject or truncate the prompt.
    #[error("the prompt has {length} {unit}, and {agent} takes {limit}")]
    PromptTooLong {
        /// The agent.
        agent: AgentKind,
        /// The length of the prompt.
        length: usize,
        /// The limit.
        limit: usize,
        /// The unit of both.
        unit: &'static str,
    },
    /// A malformed model name.
    #[error(transparent)]
    Model(#[from] BadModelName),
    /// A malformed name of an MCP server.
    #[error(transparent)]
    Name(#[from] BadName),
    /// Two MCP servers with the same name.
    #[error("two MCP servers are named `{name}`")]
    DuplicateServer {
        /// The name.
        name: String,
    },
    /// Two MCP servers need different values of a variable, but this agent passes it to both.
    #[error("variable `{variable}` of MCP server `{server}` has another value already")]
    VariableClash {
        /// The second server.
        server: String,
        /// The variable.
        variable: String,
    },
    /// A variable that this agent would get, too, and must not.
    #[error(
        "variable `{variable}` of MCP server `{server}` cannot be set without setting it for the agent, too"
    )]
    VariableForbidden {
        /// The server.
        server: String,
        /// The variable.
        variable: String,
    },
    /// Settings of the workspace that the agent obeys even in read-only mode.
    #[error("{agent} loads settings from `{}`, so read-only mode cannot be enforced", directory.display())]
    WorkspaceSettings {
        /// The agent.
        agent: AgentKind,
        /// The directory of the settings.
        directory: PathBuf,
    },
    /// The agent does not support the option.
    #[error("{agent} does not support {}", shown(option))]
    Unsupported {
        /// The agent.
        agent: AgentKind,
        /// The option.
        option: &'static str,
    },
    /// The installed version does not support the option.
    #[error("the installed {agent}{} does not support `{option}`", version.map(|v| format!(" {v}")).unwrap_or_default())]
    UnsupportedVersion {
        /// The agent.
        agent: AgentKind,
        /// The version.
        version: Option<Version>,
        /// The option.
        option: &'static str,
    },
    /// Two contradictory options.
    #[error("`{one}` and `{other}` cannot be combined")]
    Contradiction {
        /// The first option.
        one: &'static str,
        /// The second option.
        other: &'static str,
    },
    /// A tool with side effects in a read-only call.
    #[error("tool `{tool}` is not read-only")]
    NotReadOnly {
        /// The tool.
        tool: String,
    },
    /// A malformed tool name.
    #[error("`{}` is not the name of a tool", tool.escape_debug())]
    BadTool {
        /// The tool.
        tool: String,
    },
    /// A session id that the agent would misinterpret.
    #[error("`{id}` is not the id of a {agent} session")]
    SessionNotUuid {
        /// The agent.
        agent: AgentKind,
        /// The id.
        id: SessionId,
    },
    /// An invalid limit.
    #[error("`{option}` must be greater than 0, not {value}")]
    BadLimit {
        /// The option.
        option: &'static str,
        /// The value.
        value: String,
    },
    /// An output schema that is no JSON Schema.
    #[error("the output schema is invalid: {problem}")]
    BadSchema {
        /// The problem.
        problem: String,
    },
    /// A value that exceeds the kernel's limit for an argument.
    #[error("the value of `{flag}` has {length} bytes, and an argument may have {limit}")]
    ValueTooLong {
        /// The flag.
        flag: &'static str,
        /// The length of the value.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A value with a NUL byte, which terminates an argument for the kernel.
    #[error("the value of `{flag}` contains a NUL character")]
    NulInValue {
        /// The flag.
        flag: &'static str,
    },
    /// A relative path.
    #[error("directory `{}` is not an absolute path", directory.display())]
    RelativeDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// A path that is not UTF-8.
    #[error("directory `{}` is not valid Unicode", directory.display())]
    NotUnicode {
        /// The directory.
        directory: PathBuf,
    },
    /// A directory that the agent would parse as two.
    #[error("directory `{}` has a comma in its name", directory.display())]
    CommaInDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// A policy that the call cannot have in its workspace.
    #[error("{error}")]
    Policy {
        /// The conflicting option.
        option: &'static str,
        /// The reason.
        error: PolicyError,
    },
    /// `file-tools` is missing, so an agent without a shell has no file access.
    #[error("`file-tools` is not installed, and an agent without a shell needs it")]
    NoFileTools,
    /// `terminal-host` is missing, so an agent that leaves its commands to the client cannot run any.
    #[error("`terminal-host` is not installed, and {agent} needs it to run commands")]
    NoTerminalHost {
        /// The agent.
        agent: AgentKind,
    },
    /// An image that cannot be read.
    #[error("cannot use the image `{}`: {problem}", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// Too many images.
    #[error("a call can have {limit} images")]
    TooManyImages {
        /// The limit.
        limit: usize,
    },
    /// A value that a command would parse as a flag.
    #[error("the value of `{placeholder}` starts with `-`, and the command would parse it as a flag")]
    FlagInValue {
        /// The placeholder in the configuration.
        placeholder: &'static str,
    },
    /// A variable that cannot be set for an MCP server.
    #[error("`{}` of MCP server `{server}` is not the name of a variable", variable.escape_debug())]
    BadVariable {
        /// The server.
        server: String,
        /// The name.
        variable: String,
    },
    /// A variable that an MCP server refers to has no value, or the caller may not use it.
    #[error("variable `{variable}` of MCP server `{server}` is not set")]
    UnknownVariable {
        /// The server.
        server: String,
        /// The variable.
        variable: String,
    },
    /// A variable that is never passed to an agent.
    #[error("variable `{variable}` cannot be passed on: {reason}")]
    ForbiddenVariable {
        /// The name.
        variable: String,
        /// The reason.
        reason: &'static str,
    },
    /// An agent that is restricted to a list of hosts cannot reach its own server.
    #[error("{agent} cannot work with a list of hosts: it connects to a server of its own on this machine")]
    NoHostList {
        /// The agent.
        agent: AgentKind,
    },
    /// An agent without network access cannot reach its vendor.
    #[error("{agent} cannot work with network `none`: it must reach its vendor's API")]
    NoNetwork {
        /// The agent.
        agent: AgentKind,
    },
    /// There is no directory for private state.
    #[error("there is no directory for private state")]
    NoPrivateState,
    /// An invalid plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl LaunchError {
    /// Returns whether the working directory is the problem.
    pub fn is_about_cwd(&self) -> bool {
        matches!(self, Self::NotUnicode { .. } | Self::Policy { option: "cwd", .. })
    }

    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::EmptyPrompt => "describe the task".to_owned(),
            Self::PromptTooLong { .. } => {
                "put the long part into a file in the working directory and refer to it in the prompt"
                    .to_owned()
            }
            Self::Model(error) => error.hint(),
            Self::Name(error) => error.hint().to_owned(),
            Self::DuplicateServer { .. } => "give each server a unique name".to_owned(),
            Self::WorkspaceSettings { .. } => "remove the directory, or call another agent".to_owned(),
            Self::VariableForbidden { .. } => {
                "set it in the server's command: `env NAME=value server`".to_owned()
            }
            Self::VariableClash { .. } => "rename the variable for one of the servers".to_owned(),
            Self::Unsupported { agent, option } => unsupported_hint(*agent, option),
            Self::UnsupportedVersion { agent, .. } => {
                format!("update {agent}; see `switchboard doctor`")
            }
            Self::Contradiction { .. } => "use only one of them".to_owned(),
            Self::NotReadOnly { .. } => "remove the tool, or use mode `execute`".to_owned(),
            Self::BadTool { .. } => "use a name such as `Read` or a rule such as `Bash(git *)`".to_owned(),
            Self::SessionNotUuid { .. } => "pass the session_id of an earlier result".to_owned(),
            Self::BadLimit { .. } => "pass a greater number, or omit it".to_owned(),
            Self::BadSchema { .. } => "pass a JSON Schema such as {\"type\":\"object\"}".to_owned(),
            Self::ValueTooLong { .. } => "shorten it".to_owned(),
            Self::NulInValue { .. } => "remove the NUL; only the prompt may contain one".to_owned(),
            Self::RelativeDirectory { .. } => "pass an absolute path".to_owned(),
            // Links are resolved before the path is passed on.
            Self::NotUnicode { .. } => {
                "rename it, or work in another directory: paths must be valid UTF-8".to_owned()
            }
            Self::CommaInDirectory { .. } => "rename it, or use a symbolic link without a comma".to_owned(),
            Self::Policy { error, .. } => error.hint().to_owned(),
            Self::Image { .. } => "pass the absolute path of a PNG, JPEG, GIF or WebP file".to_owned(),
            Self::TooManyImages { .. } => "pass fewer images".to_owned(),
            Self::FlagInValue { .. } => {
                "start with another character, or use `{prompt_file}` in the command of the agent".to_owned()
            }
            Self::BadVariable { .. } => "use letters, digits and `_`".to_owned(),
            Self::UnknownVariable { variable, .. } => format!(
                "export it where you submit the call with `switchboard call`, or list it in `pass_env` for every caller: `pass_env = [\"{variable}\"]`"
            ),
            Self::ForbiddenVariable { .. } => "remove it from `pass_env`".to_owned(),
            Self::NoHostList { .. } => "use network `full`, or call another agent".to_owned(),
            Self::NoNetwork { .. } => {
                "list the hosts that the task needs (`--network github.com,…`); those of the vendor are added"
                    .to_owned()
            }
            Self::NoFileTools | Self::NoTerminalHost { .. } => INSTALL_ALL.to_owned(),
            Self::NoPrivateState => "configure one, or omit `private_state`".to_owned(),
            Self::Plan(error) => error.hint().to_owned(),
        }
    }
}

/// Returns the names of an option: the tool parameter and the command-line option.
fn shown(option: &str) -> String {
    match option {
        "max_turns" => "`max_turns` (`--max-turns`)".to_owned(),
        "add_dirs" => "`add_dirs` (`--add-dir`)".to_owned(),
        "images" => "`images` (`--image`)".to_owned(),
        "mcp_servers" => "`mcp_servers` (`--mcp-config`)".to_owned(),
        "session fork" => "`fork_session_id` (`--fork`)".to_owned(),
        NO_SHELL => "policies without a shell (`restricted`, `sealed`)".to_owned(),
        option => format!("`{option}`"),
    }
}

fn unsupported_hint(agent: AgentKind, option: &str) -> String {
    match (agent, option) {
        (_, "max_turns" | "max_budget_usd" | "tool_timeout") => {
            "omit it and use time limits instead, or call claude".to_owned()
        }
        (AgentKind::Gemini, "mcp_servers") => {
            "add the server with `gemini mcp add` and omit it from the call, or call another agent".to_owned()
        }
        (AgentKind::Codex, "tools") => {
            "use mode `observe`, or the sandbox policy of the call, or call claude".to_owned()
        }
        _ => "omit it, or call another agent".to_owned(),
    }
}
