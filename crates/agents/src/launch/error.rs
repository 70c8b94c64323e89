//! Why a call cannot be launched as asked. All of these are told before anything starts.

use std::path::PathBuf;
use std::sync::Arc;

use model::{AgentKind, BadName, PlanError, PolicyError, SessionId};

use crate::{BadModelName, Version};

/// The option that a policy asks for: file tools, and no shell.
pub(super) const NO_SHELL: &str = "policy without a shell";

/// What to do where `file-tools` is missing. A daemon looks for it once, when it starts.
pub(crate) const WITH_FILE_TOOLS: &str = "install all of Switchboard (`cargo install --path crates/switchboard`), which puts it beside `switchboard`; a daemon that runs finds it after `switchboard stop --now`";

/// A call that cannot be launched.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LaunchError {
    /// There is nothing to ask.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The agent would refuse it, or cut it.
    #[error("the prompt has {length} {unit}, and {agent} takes {limit}")]
    PromptTooLong {
        /// Who is called.
        agent: AgentKind,
        /// How long it is.
        length: usize,
        /// How long it may be.
        limit: usize,
        /// What is counted.
        unit: &'static str,
    },
    /// A text that cannot be the name of a model.
    #[error(transparent)]
    Model(#[from] BadModelName),
    /// The name of an MCP server that cannot be one.
    #[error(transparent)]
    Name(#[from] BadName),
    /// Two MCP servers of the same name.
    #[error("two MCP servers are named `{name}`")]
    TwoServers {
        /// The name.
        name: String,
    },
    /// Two MCP servers want different values of one variable, which this agent can only give to both.
    #[error("variable `{variable}` of MCP server `{server}` has another value already")]
    VariableClash {
        /// The second server.
        server: String,
        /// The variable.
        variable: String,
    },
    /// A variable that this agent would get too, and cannot be given.
    #[error(
        "variable `{variable}` of MCP server `{server}` cannot be given to it without giving it to the agent"
    )]
    VariableForbidden {
        /// The server.
        server: String,
        /// The variable.
        variable: String,
    },
    /// Settings of the workspace that the agent obeys even when it is only to look.
    #[error("{agent} obeys the settings in `{}`, so it cannot be held to looking only", folder.display())]
    WorkspaceSettings {
        /// Who is called.
        agent: AgentKind,
        /// Where they are.
        folder: PathBuf,
    },
    /// The agent has no means for it.
    #[error("{agent} does not support {}", shown(option))]
    CannotDo {
        /// Who is called.
        agent: AgentKind,
        /// What was asked.
        option: &'static str,
    },
    /// The installed version has no means for it.
    #[error("the installed {agent}{} cannot do `{option}`", version.map(|v| format!(" {v}")).unwrap_or_default())]
    NotInThisVersion {
        /// Who is called.
        agent: AgentKind,
        /// Its version.
        version: Option<Version>,
        /// What was asked.
        option: &'static str,
    },
    /// Two options that contradict each other.
    #[error("`{one}` and `{other}` cannot be combined")]
    Contradiction {
        /// The one.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
    /// A tool that can change something, in a call that may only look.
    #[error("tool `{tool}` is not one that only looks")]
    NotReadOnly {
        /// The tool.
        tool: String,
    },
    /// The name of a tool that would be read as something else.
    #[error("`{}` is not the name of a tool", tool.escape_debug())]
    BadTool {
        /// The tool.
        tool: String,
    },
    /// The id of a session that the agent would misread.
    #[error("`{id}` is not the id of a {agent} session")]
    SessionIsNoUuid {
        /// Who is called.
        agent: AgentKind,
        /// The id.
        id: SessionId,
    },
    /// A limit that nothing can keep.
    #[error("`{option}` cannot be {value}")]
    BadLimit {
        /// Which one.
        option: &'static str,
        /// What was asked.
        value: String,
    },
    /// A schema that is none.
    #[error("the output schema is not a JSON object")]
    BadSchema {
        /// What is wrong with it.
        source: Arc<serde_json::Error>,
    },
    /// A value that the operating system would not take as an argument.
    #[error("the value of `{flag}` has {length} bytes, and an argument may have {limit}")]
    ValueTooLong {
        /// The flag.
        flag: &'static str,
        /// How long the value is.
        length: usize,
        /// How long it may be.
        limit: usize,
    },
    /// A value that the operating system would end in the middle.
    #[error("the value of `{flag}` contains a NUL character")]
    NulInValue {
        /// The flag.
        flag: &'static str,
    },
    /// A folder that depends on who reads it.
    #[error("folder `{}` is not an absolute path", folder.display())]
    RelativeFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder whose name cannot be passed on.
    #[error("folder `{}` is not valid Unicode", folder.display())]
    NotUnicode {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder that the agent would take for two.
    #[error("folder `{}` has a comma in its name", folder.display())]
    CommaInFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// A policy that the call cannot have where it is to work.
    #[error("{error}")]
    Policy {
        /// What the call asks for that it cannot have.
        option: &'static str,
        /// Why.
        error: PolicyError,
    },
    /// An agent without a shell has no files without `file-tools`.
    #[error("`file-tools` is not there, and an agent without a shell needs it")]
    NoFileTools,
    /// A variable that no agent can be given.
    #[error("variable `{variable}` cannot be passed on: {reason}")]
    ForbiddenVariable {
        /// Its name.
        variable: String,
        /// Why not.
        reason: &'static str,
    },
    /// A network of nobody, for an agent that asks its vendor.
    #[error("{agent} cannot work with network `none`: it has to reach its vendor")]
    NoNetwork {
        /// Who is called.
        agent: AgentKind,
    },
    /// A state folder of its own, and no place for it.
    #[error("there is no place for a private state folder")]
    NoPrivateState,
    /// A plan that no machine can carry out.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl LaunchError {
    /// Returns whether the working directory is the problem.
    pub fn is_about_cwd(&self) -> bool {
        matches!(self, Self::NotUnicode { .. } | Self::Policy { option: "cwd", .. })
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::EmptyPrompt => "say what the agent is to do".to_owned(),
            Self::PromptTooLong { .. } => {
                "put the long part into a file in the working folder and name it in the prompt".to_owned()
            }
            Self::Model(error) => error.hint(),
            Self::Name(error) => error.hint().to_owned(),
            Self::TwoServers { .. } => "give each server a name of its own".to_owned(),
            Self::WorkspaceSettings { .. } => "remove the folder, or call another agent".to_owned(),
            Self::VariableForbidden { .. } => {
                "let the server's command set it: `env NAME=value server`".to_owned()
            }
            Self::VariableClash { .. } => "rename the variable for one of the servers".to_owned(),
            Self::CannotDo { agent, option } => cannot_do_hint(*agent, option),
            Self::NotInThisVersion { agent, .. } => format!("update {agent}; `switchboard doctor` says how"),
            Self::Contradiction { .. } => "leave one of them out".to_owned(),
            Self::NotReadOnly { .. } => "leave the tool out, or use mode `execute`".to_owned(),
            Self::BadTool { .. } => "use a name such as `Read` or a rule such as `Bash(git *)`".to_owned(),
            Self::SessionIsNoUuid { .. } => "pass the session_id of an earlier result".to_owned(),
            Self::BadLimit { .. } => "give a number above zero, or leave it out".to_owned(),
            Self::BadSchema { .. } => "give a JSON Schema, such as {\"type\":\"object\"}".to_owned(),
            Self::ValueTooLong { .. } => "shorten it".to_owned(),
            Self::NulInValue { .. } => "remove the NUL; only the prompt may hold one".to_owned(),
            Self::RelativeFolder { .. } => "give the whole path".to_owned(),
            // A link is followed before anything is handed on.
            Self::NotUnicode { .. } => {
                "rename it, or work in another: folders are handed on as UTF-8 text".to_owned()
            }
            Self::CommaInFolder { .. } => "rename it, or use a symbolic link with a UTF-8 name".to_owned(),
            Self::Policy { error, .. } => error.hint().to_owned(),
            Self::ForbiddenVariable { .. } => "take it out of `pass_env`".to_owned(),
            Self::NoNetwork { .. } => {
                "name the hosts that the task needs (`--network github.com,…`): those of the vendor are added"
                    .to_owned()
            }
            Self::NoFileTools => WITH_FILE_TOOLS.to_owned(),
            Self::NoPrivateState => {
                "let the operator's settings name one, or leave `private_state` out".to_owned()
            }
            Self::Plan(error) => error.hint().to_owned(),
        }
    }
}

/// Returns an option as its caller knows it: by the parameter of a tool and by the option of the command line.
fn shown(option: &str) -> String {
    match option {
        "max_turns" => "`max_turns` (`--max-turns`)".to_owned(),
        NO_SHELL => "policies without a shell (`restricted`, `sealed`)".to_owned(),
        option => format!("`{option}`"),
    }
}

fn cannot_do_hint(agent: AgentKind, option: &str) -> String {
    match (agent, option) {
        (_, "max_turns" | "max_budget_usd" | "tool_timeout") => {
            "leave it out and bound the call by its time limits instead, or call claude".to_owned()
        }
        (AgentKind::Gemini, "mcp_servers") => {
            "add the server with `gemini mcp add` and leave it out of the call, or call another agent"
                .to_owned()
        }
        (AgentKind::Codex, "tools") => {
            "use mode `observe`, or the sandbox policy of the call, or call claude".to_owned()
        }
        _ => "leave it out, or call another agent".to_owned(),
    }
}
