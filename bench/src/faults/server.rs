//! The servers under test: ours and the peers, each with the options of its own documentation.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::{Value, json};

use crate::Failure;
use crate::peers::installed;

use super::fault::InjectedFault;

/// The time limit that a call over its time is given, in seconds.
pub const LIMIT: u32 = 3;

const TASK: &str = "Do the work.";

/// An MCP server that calls agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerUnderTest {
    /// This one.
    Ours,
    /// `@steipete/claude-code-mcp`.
    ClaudeCodeMcp,
    /// `codex-mcp-server`.
    CodexMcp,
    /// `gemini-mcp-tool`.
    GeminiMcpTool,
    /// `pal-mcp-server`, its tool `clink`.
    Pal,
}

impl ServerUnderTest {
    /// All servers, in the order of the table.
    pub const ALL: [Self; 5] =
        [Self::Ours, Self::ClaudeCodeMcp, Self::CodexMcp, Self::GeminiMcpTool, Self::Pal];

    /// Returns the name of its installation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "switchboard",
            Self::ClaudeCodeMcp => "claude-code-mcp",
            Self::CodexMcp => "codex-mcp-server",
            Self::GeminiMcpTool => "gemini-mcp-tool",
            Self::Pal => "pal-mcp-server",
        }
    }

    /// The program of a peer, if it is installed, and its version.
    pub fn program(self) -> Option<(PathBuf, String)> {
        let directory = installed().join(self.name()).canonicalize().ok()?;
        let version =
            directory.file_name()?.to_str()?.strip_prefix(self.name())?.trim_start_matches('-').to_owned();
        Some((directory.join("program"), version)).filter(|(program, _)| program.exists())
    }

    /// The name under which it looks for the agent, and the format in which the agent then has to speak.
    pub fn agent(self) -> (&'static str, &'static str) {
        match self {
            Self::Ours => ("claude", "claude"),
            Self::ClaudeCodeMcp => ("claude", "plain"),
            Self::CodexMcp => ("codex", "plain"),
            Self::GeminiMcpTool => ("gemini", "plain"),
            Self::Pal => ("codex", "codex"),
        }
    }

    /// Why a fault means nothing to it.
    pub fn refuses(self, fault: InjectedFault) -> Option<&'static str> {
        if self == Self::Ours {
            return None;
        }
        match (self, fault) {
            (_, InjectedFault::SupervisorKilled) => Some("n/a: has none"),
            (Self::ClaudeCodeMcp, InjectedFault::Timeout) => Some("n/a: 30 min, cannot be set"),
            (Self::CodexMcp, InjectedFault::Timeout) => Some("n/a: has no time limit"),
            _ => None,
        }
    }

    /// Returns whether it accepts a time limit.
    pub fn has_time_limit(self) -> bool {
        matches!(self, Self::Ours | Self::GeminiMcpTool | Self::Pal)
    }

    /// The request.
    pub fn call(self, fault: InjectedFault, workspace: &Path) -> Value {
        match self {
            Self::Ours => {
                let mut arguments = json!({ "prompt": TASK, "cwd": workspace });
                if fault.is_over_its_time() {
                    arguments["timeout_ms"] = json!(LIMIT * 1000);
                }
                json!({ "name": "call_cc", "arguments": arguments })
            }
            Self::ClaudeCodeMcp => {
                json!({ "name": "claude_code", "arguments": { "prompt": TASK, "workFolder": workspace } })
            }
            Self::CodexMcp => json!({ "name": "codex", "arguments": { "prompt": TASK } }),
            Self::GeminiMcpTool => json!({ "name": "ask-gemini", "arguments": { "prompt": TASK } }),
            Self::Pal => {
                json!({ "name": "clink", "arguments": { "prompt": TASK, "cli_name": "codex", "role": "default" } })
            }
        }
    }

    /// Returns the command of a peer: `agents` is first in its PATH, and its files are below `home`.
    pub fn command(
        self,
        fault: InjectedFault,
        program: &Path,
        agents: &Path,
        home: &Path,
    ) -> Result<Command, Failure> {
        let inherited = env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", home)
            .env("TMPDIR", home)
            .env("PATH", format!("{}:{inherited}", agents.display()))
            .current_dir(home);
        if self == Self::GeminiMcpTool {
            command.env("GEMINI_MCP_BACKEND", "gemini");
            if fault.is_over_its_time() {
                command.env("GEMINI_MCP_TIMEOUT", format!("{}", f64::from(LIMIT) / 60.0));
            }
        }
        if self == Self::Pal {
            // It does not start without a key of some vendor; nothing is ever sent with it.
            command.env("GEMINI_API_KEY", "none");
            if fault.is_over_its_time() {
                let clients = home.join("clients");
                fs::create_dir_all(&clients)?;
                let client = json!({
                    "name": "codex", "command": "codex", "additional_args": ["--json"], "timeout_seconds": LIMIT,
                    "roles": { "default": { "prompt_path": "systemprompts/clink/default.txt" } }
                });
                fs::write(clients.join("codex.json"), client.to_string())?;
                command.env("CLI_CLIENTS_CONFIG_PATH", &clients);
            }
        }
        Ok(command)
    }
}
