//! Coding agents for Rust programs, through the user's own login and without an API key.

mod agent_spec;
mod answer;
mod config;
mod confine;
mod context;
mod error;
mod exchange;
mod message;
mod operator;
mod provider;
mod session;
mod spool_folder;
mod vendors;

pub use agent_spec::{Access, AgentSpec, FileVerb};
pub use agents::{ModelTable, ModelTables};
pub use answer::NO_ANSWER;
pub use config::{ProviderConfig, SupervisorProgram};
pub use context::{Context, Message, Role};
pub use error::ProviderError;
pub use message::{MAX_TOOL_USES, Metadata, OutgoingMessage, Response, ToolUse, Update, Warning};
pub use model::{AgentEvent, AgentKind, AgentName, Deadline, McpServer, PermissionDenial, SessionId, Usage};
pub use operator::run_if_asked;
pub use provider::{Provider, ToolResult, Updates};
pub use session::Session;
pub use vendors::{
    ClaudeCode, ClaudeCodeProvider, CliProvider, Codex, CodexProvider, Gemini, GeminiProvider, Rehearsal,
    RehearsalProvider, Vendor, by_name,
};
