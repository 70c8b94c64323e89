//! Coding agents for Rust programs, through the user's own login and without an API key.
//!
//! A chat bot, an agent executor or a CI tool asks Claude Code, Codex or Gemini as it would ask a web API; behind it, the CLI
//! that is installed and logged in on the machine does the work, watched over so that nothing of it is left. Needs no daemon
//! and no store. Refuses to touch the terminal, the user's settings, or anything of the environment that it was not given.
//!
//! # One question
//!
//! ```no_run
//! use provider::{ClaudeCodeProvider, Context, Provider};
//!
//! fn main() -> std::process::ExitCode {
//!     // This program is also the process that watches over its agents. First in `main`.
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
//! [`Context`] says what is asked and how it may be answered: the conversation so far, a model, a turn limit, tools, MCP
//! servers. Whatever it leaves out falls back to [`ProviderConfig`]. [`CodexProvider`] and [`GeminiProvider`] are used the same
//! way, and [`by_name`] picks one at run time. [`RehearsalProvider`] is the scripted agent: no account, no tokens.
//!
//! # The process that watches
//!
//! Each run of an agent has a supervisor: a small process that ends everything the agent has started, whatever happens to
//! this program. It is this program itself, when `main` begins with [`run_if_asked`]: then a program of one file works. A
//! program without that line uses the `switchboard-supervisor` beside it or in `PATH`, or one that
//! [`ProviderConfig::supervisor`] names.
//!
//! # Conversations
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
//! The agent keeps what was said. This library keeps a small file per session (its id, workspace and bounds; no word of the
//! conversation), so that a resumed session is as confined as it was: [`ProviderConfig::sessions`] says where. A session that
//! was begun elsewhere is taken over with [`Session::adopt`]. Messages to one session take turns.
//!
//! # An agent that can do nothing but use the file tools
//!
//! Unless it is given more, the agent of a session has the verbs of `file-tools` on its workspace and nothing else: no shell, no
//! tool of its own, no settings of the user or the workspace. That is [`Access::Files`], and only claude can be kept to it; the
//! others refuse it.
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
//! [`Access::FilesByShell`] gives it a shell that may run `file-tools` alone, for setups that need one; it works only where the
//! operating system can confine it.
//!
//! # What the operating system keeps an agent from
//!
//! A [`CallPolicy`], in [`ProviderConfig::policy`] for every request or in [`AgentSpec::policy`] for a session, confines the agent
//! whatever its tools are. By default it is `workspace`, as far as the machine can enforce it: the agent writes its directory and
//! sees no keys. What held is in [`Metadata::sandbox`]. A policy that is required runs nothing where it cannot be enforced
//! ([`ProviderError::NeedsSandbox`]), and `CallPolicy::off()` confines nothing.
//!
//! ```
//! use provider::{CallPolicy, ClaudeCodeProvider, Preset, ProviderConfig};
//!
//! assert!(!ClaudeCodeProvider::new().config().policy.is_off());
//! let strict = ProviderConfig { policy: Preset::Observe.into(), ..ProviderConfig::default() }; // required
//! let with_all_rights = ProviderConfig { policy: CallPolicy::off(), ..ProviderConfig::default() };
//! ```
//!
//! # Watching
//!
//! [`Provider::complete_stream`] and [`Provider::send_message_stream`] tell what happens as it happens: every
//! [`AgentEvent`], and in the end the answer.
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
//! With [`ProviderConfig::partial_messages`] the texts of claude come piece by piece while they are written
//! ([`TextPart::Partial`]), and each once more when it is whole ([`TextPart::Whole`]): show one or the other. Gemini sends pieces only. The
//! answer in the end is whole either way, and has each text once.
//!
//! # Stopping
//!
//! Drop the future or the stream. The agent and everything that it has started are ended (asked first, and killed after 5 s),
//! and its files are gone at once. So `tokio::time::timeout`, `select!` and a panic of the program all leave nothing. A program
//! that is killed (SIGKILL) leaves nothing running either: the supervisor sees its end. Only its folder stays, in the temporary
//! folder.
//!
//! # Work that takes more turns
//!
//! A run is given 25 turns (claude). When they are used up the work goes on in the same conversation, after 2, 4, 8 … s, up to
//! [`ProviderConfig::max_resume_attempts`] times; texts are joined, numbers added up. Time and money are those of the whole
//! request. A turn limit in the [`Context`] is a limit: such a request is never continued.
//!
//! # MCP servers
//!
//! [`Context::mcp_servers`] are for one request. Claude finds them in a file of the run's own (0600, gone when the run is), and
//! uses them and no others; their variables are never in an argument, where every user of the machine could read them. No file
//! of the user or the workspace is written. The tools of a server `x` are named `mcp__x__…`.
//!
//! # When it goes wrong
//!
//! [`ProviderError`] says what kind of failure it is, in words for a person, with a [`ProviderError::hint`]; and what the agent
//! had said, with the session to go on in, in [`ProviderError::so_far`]. Three things are told as an answer, with a
//! [`Warning`] in the metadata: output that is not the JSON it should be (its text), an error of which the agent says nothing
//! but its name (`Error from Claude: …`), and no answer at all (a fixed text, [`NO_ANSWER`]).
//!
//! # What each agent has no means for
//!
//! What an agent cannot be held to is refused, never quietly left out.
//!
//! | | claude | codex | gemini |
//! | --- | --- | --- | --- |
//! | turn limit, and therefore continuations | yes | refused | refused |
//! | choice of tools | yes | refused | yes |
//! | MCP servers of a request | yes | yes | refused |
//! | the file tools and nothing else | yes | refused | refused |
//! | a named agent | yes | refused | refused |
//! | texts piece by piece | [`ProviderConfig::partial_messages`] | refused | always |
//! | cost | yes | not told | not told |

mod agent_spec;
mod answer;
mod config;
mod confine;
mod context;
mod error;
mod exchange;
mod message;
mod operator;
mod premises;
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
pub use model::{
    AgentEvent, AgentKind, AgentName, AgentText, Bounds, CallPolicy, Deadline, Finish, McpServer, Network,
    PermissionDenial, Preset, RawJson, Requirement, SandboxReport, SessionId, TextPart, ToolOutput, Usage,
};
pub use operator::run_if_asked;
pub use provider::{Provider, ToolResult, Updates};
pub use session::Session;
pub use vendors::{
    ClaudeCode, ClaudeCodeProvider, CliProvider, Codex, CodexProvider, Gemini, GeminiProvider, Rehearsal,
    RehearsalProvider, Vendor, by_name,
};
