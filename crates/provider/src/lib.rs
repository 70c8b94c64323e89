//! Coding agents for Rust programs, through the user's own login and without an API key.
//!
//! A chat bot, an agent executor or a CI tool queries Claude Code, Codex or Gemini like a web API. The CLI that is installed
//! and logged in on the machine does the work, under a supervisor that leaves no process behind. Needs no daemon and no store.
//! Does not touch the terminal or the user's settings, and reads only the environment that it is given.
//!
//! # One request
//!
//! ```no_run
//! use provider::{ClaudeCodeProvider, Context, Provider};
//!
//! fn main() -> std::process::ExitCode {
//!     // First in `main`: this program is also the supervisor of its agents.
//!     if let Some(code) = provider::run_if_asked() {
//!         return code;
//!     }
//!     let runtime = tokio::runtime::Runtime::new().expect("a runtime");
//!     match runtime.block_on(ClaudeCodeProvider::new().complete(&Context::new("What is 2 + 2?"))) {
//!         Ok(message) => println!("{} ({:?})", message.text, message.metadata.tokens),
//!         Err(error) => eprintln!("error: {error}\nhint: {}", error.hint()),
//!     }
//!     std::process::ExitCode::SUCCESS
//! }
//! ```
//!
//! [`Context`] contains the message and its options: earlier messages, a model, a turn limit, tools, MCP servers. Unset
//! options fall back to [`ProviderConfig`]. [`CodexProvider`] and [`GeminiProvider`] are used the same
//! way, and [`by_name`] picks one at run time. [`RehearsalProvider`] is the scripted agent: no account, no tokens.
//!
//! # The supervisor
//!
//! Each run of an agent has a supervisor: a small process that stops the agent's process tree, whatever happens to this
//! program. It is this program itself if `main` starts with [`run_if_asked`], so a single-file program works. A program
//! without that line uses `switchboard-supervisor` beside it or in `PATH`, or the one in [`ProviderConfig::supervisor`].
//!
//! # Sessions
//!
//! ```no_run
//! # async fn example() -> Result<(), provider::ProviderError> {
//! use std::path::Path;
//! use provider::{Access, AgentSpec, ClaudeCodeProvider, Provider};
//!
//! let provider = ClaudeCodeProvider::new();
//! let agent = AgentSpec { access: Access::Full, ..AgentSpec::new("You are terse.") };
//! let session = provider.create_session(&agent, Path::new("/home/ana/shop")).await?;
//! provider.send_message(&session, "The word is heron.").await?;
//! let id = session.id().expect("it has answered");
//!
//! // Later, perhaps in another run of this program:
//! if let Some(session) = provider.resume_session(id.as_str()).await? {
//!     println!("{}", provider.send_message(&session, "Which word?").await?.text);
//! }
//! # Ok(()) }
//! ```
//!
//! The agent stores the messages. This library stores a small file per session in [`ProviderConfig::sessions`] (id, workspace
//! and access, no message), so that a resumed session is as confined as before. [`Session::adopt`] adopts a session that was
//! started elsewhere. Messages to one session are serialized.
//!
//! # An agent restricted to the file tools
//!
//! By default the agent of a session has the `file-tools` verbs on its workspace and nothing else: no shell, no built-in
//! tool, no settings of the user or the workspace. That is [`Access::Files`]. Only claude can enforce it; the others reject it.
//!
//! ```no_run
//! # async fn example() -> Result<(), provider::ProviderError> {
//! # use std::path::Path;
//! use provider::{Access, AgentSpec, ClaudeCodeProvider, FileVerb, Provider};
//!
//! let agent = AgentSpec {
//!     access: Access::Files(vec![FileVerb::Read, FileVerb::List, FileVerb::Write]),
//!     ..AgentSpec::new("You keep the notes of your workspace in order.")
//! };
//! let provider = ClaudeCodeProvider::new();
//! let session = provider.create_session(&agent, Path::new("/home/ana/notes")).await?;
//! let response = provider.send_message(&session, "Make a table of contents in index.md.").await?;
//! for used in &response.tool_uses {
//!     println!("{} {}", used.name, used.input);
//! }
//! # Ok(()) }
//! ```
//!
//! [`Access::FilesByShell`] adds a shell that may only run `file-tools`, for setups that need one. It requires a working OS
//! sandbox.
//!
//! # The sandbox
//!
//! A [`CallPolicy`], in [`ProviderConfig::policy`] for every request or in [`AgentSpec::policy`] for a session, confines the
//! agent independently of its tools. The default is `workspace`, as far as the machine can enforce it: the agent can write to
//! its directory and cannot read keys. [`Metadata::sandbox`] reports the enforcement. A required policy that cannot be enforced
//! is an error ([`ProviderError::NeedsSandbox`]), and `CallPolicy::off()` disables the sandbox.
//!
//! ```
//! use provider::{CallPolicy, ClaudeCodeProvider, Preset, ProviderConfig};
//!
//! assert!(!ClaudeCodeProvider::new().config().policy.is_off());
//! let strict = ProviderConfig { policy: Preset::Observe.into(), ..ProviderConfig::default() }; // required
//! let unsandboxed = ProviderConfig { policy: CallPolicy::off(), ..ProviderConfig::default() };
//! ```
//!
//! # Streaming
//!
//! [`Provider::complete_stream`] and [`Provider::send_message_stream`] stream every [`AgentEvent`], and
//! finally the answer.
//!
//! ```no_run
//! # async fn example(provider: &dyn provider::Provider) -> Result<(), provider::ProviderError> {
//! use futures_util::StreamExt;
//! use provider::{AgentEvent, Context, Update};
//!
//! let mut updates = provider.complete_stream(&Context::new("Tidy up."));
//! while let Some(update) = updates.next().await {
//!     match update? {
//!         Update::Event(AgentEvent::ToolUse { name, .. }) => println!("· {name}"),
//!         Update::Event(_) | Update::Resuming { .. } => {}
//!         Update::Done(message) => println!("{}", message.text),
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! With [`ProviderConfig::partial_messages`] claude streams each text in deltas ([`TextPart::Partial`]) and then as a whole
//! ([`TextPart::Whole`]): show one or the other. Gemini sends deltas only. The final answer contains each text once.
//!
//! # Stopping
//!
//! Drop the future or the stream. The agent's process tree is stopped (SIGTERM, and SIGKILL after 5 s), and its files are
//! removed immediately. So `tokio::time::timeout`, `select!` and a panic leave nothing behind. A killed program (SIGKILL) leaves
//! no process either: the supervisor detects it. Only its directory remains in the temporary directory.
//!
//! # Turn limits
//!
//! A run has 25 turns (claude). When they are used up, the session is resumed after 2, 4, 8 … s, up to
//! [`ProviderConfig::max_resume_attempts`] times; texts are joined and numbers added up. Time and cost limits apply to the whole
//! request. A request with a turn limit in its [`Context`] is never resumed.
//!
//! # MCP servers
//!
//! [`Context::mcp_servers`] apply to one request. Claude reads them from a private file of the run (0600, removed with the run)
//! and uses no others; their variables never appear in an argument, where every user of the machine could read them. No file of
//! the user or the workspace is written. The tools of a server `x` are named `mcp__x__…`.
//!
//! # Errors
//!
//! [`ProviderError`] has a message, a [`ProviderError::hint`], and in [`ProviderError::so_far`] the partial result with the
//! session to resume. Three cases are returned as an answer with a [`Warning`] in the metadata: output that is not JSON (its
//! text), an error without a text (`Error from Claude: …`), and no answer at all (a fixed text, [`NO_ANSWER`]).
//!
//! # Unsupported options
//!
//! An option that an agent cannot enforce is rejected, never silently ignored.
//!
//! | | claude | codex | gemini |
//! | --- | --- | --- | --- |
//! | turn limit, and therefore resumes | yes | rejected | rejected |
//! | choice of tools | yes | rejected | yes |
//! | MCP servers of a request | yes | yes | rejected |
//! | the file tools and nothing else | yes | rejected | rejected |
//! | a named agent | yes | rejected | rejected |
//! | streamed text | [`ProviderConfig::partial_messages`] | rejected | always |
//! | cost | yes | not reported | not reported |

mod agent_provider;
mod agent_spec;
mod answer;
mod backend;
mod config;
mod confine;
mod context;
mod error;
mod exchange;
mod host_config;
mod message;
mod provider;
mod request_directory;
mod session;
mod vendors;

pub use agent_provider::AgentProvider;
pub use agent_spec::{Access, AgentSpec, FileVerb};
pub use agents::{
    AcpRules, AgentFeature, AgentProfile, AgentProfiles, AnswerRule, DefaultVariables, KeptRule, LaunchRules,
    LoginRule, ModelErrorReport, ModelTable, ModelTables, PlainRules, ProfileSupport, PromptLimit, StateRule,
    StateVariable, UsageReport,
};
pub use answer::NO_ANSWER;
pub use backend::run_if_asked;
pub use config::{ProviderConfig, SupervisorProgram};
pub use context::{Context, Message, Role};
pub use error::ProviderError;
pub use message::{MAX_TOOL_USES, Metadata, OutgoingMessage, Response, ToolUse, Update, Warning};
pub use model::{
    AgentEvent, AgentKind, AgentName, AgentText, Bounds, CallPolicy, Deadline, Finish, McpServer, Network,
    PermissionDenial, Preset, RawJson, Requirement, SandboxReport, SessionId, TextPart, ToolOutput, Usage,
};
pub use provider::{Provider, ToolResult, Updates};
pub use session::Session;
pub use vendors::{
    ClaudeCode, ClaudeCodeProvider, CliProvider, Codex, CodexProvider, Gemini, GeminiProvider, Rehearsal,
    RehearsalProvider, Vendor, by_name,
};
