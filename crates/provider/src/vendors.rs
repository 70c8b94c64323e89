//! The providers, one per agent.
//!
//! They differ in name and kind only; `agents` knows the differences between the programs.

use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use model::{AgentKind, SessionId};

use crate::agent_spec::AgentSpec;
use crate::backend::CliBackend;
use crate::config::ProviderConfig;
use crate::confine;
use crate::context::Context;
use crate::error::ProviderError;
use crate::exchange::{ProviderExchange, RequestInput};
use crate::message::{OutgoingMessage, Response, ToolUses};
use crate::provider::{Provider, ToolResult, Updates};
use crate::session::Session;

/// The agent of a [`CliProvider`].
pub trait Vendor: Send + Sync + 'static {
    /// [`Provider::name`].
    const NAME: &'static str;
    /// The agent.
    const KIND: AgentKind;
}

/// Anthropic's Claude Code.
#[derive(Debug, Clone, Copy)]
pub enum ClaudeCode {}
/// Codex, of `OpenAI`.
#[derive(Debug, Clone, Copy)]
pub enum Codex {}
/// Google's Gemini CLI.
#[derive(Debug, Clone, Copy)]
pub enum Gemini {}
/// The scripted agent, for trying out and for tests: no account, no tokens.
#[derive(Debug, Clone, Copy)]
pub enum Rehearsal {}

impl Vendor for ClaudeCode {
    const NAME: &'static str = "claude-code";
    const KIND: AgentKind = AgentKind::Claude;
}

impl Vendor for Codex {
    const NAME: &'static str = "codex";
    const KIND: AgentKind = AgentKind::Codex;
}

impl Vendor for Gemini {
    const NAME: &'static str = "gemini";
    const KIND: AgentKind = AgentKind::Gemini;
}

impl Vendor for Rehearsal {
    const NAME: &'static str = "rehearsal";
    const KIND: AgentKind = AgentKind::Rehearsal;
}

/// The Claude Code provider.
pub type ClaudeCodeProvider = CliProvider<ClaudeCode>;
/// The Codex provider. It has no turn limit and no choice of tools: requests with either are rejected.
pub type CodexProvider = CliProvider<Codex>;
/// The Gemini CLI provider. It has no turn limit and takes MCP servers only from its own settings: requests with either are
/// rejected.
pub type GeminiProvider = CliProvider<Gemini>;
/// The provider of the scripted agent: it follows the `@rehearse …` lines of a prompt, and otherwise repeats the prompt.
pub type RehearsalProvider = CliProvider<Rehearsal>;

/// A provider that runs an agent's command-line program with the user's login.
#[derive(Debug)]
pub struct CliProvider<V: Vendor> {
    backend: Arc<CliBackend>,
    vendor: PhantomData<V>,
}

impl<V: Vendor> CliProvider<V> {
    /// Creates a provider with the default settings: 25 turns per run if the agent has a turn limit, all tools, one hour, this
    /// program's directory, 5 resumes, the agent's default model.
    pub fn new() -> Self {
        Self::from_config(ProviderConfig::default())
    }

    /// Creates a provider with these settings.
    pub fn from_config(config: ProviderConfig) -> Self {
        Self { backend: Arc::new(CliBackend { kind: V::KIND, name: V::NAME, config }), vendor: PhantomData }
    }

    /// Returns the settings.
    pub fn config(&self) -> &ProviderConfig {
        &self.backend.config
    }

    /// Returns the turn limit of one run; `None` for an agent without one.
    pub fn max_turns(&self) -> Option<u32> {
        self.backend.config.turns_per_run(V::KIND)
    }

    /// Returns whether the agent's program is in `PATH` and works.
    pub async fn check_cli() -> bool {
        Self::new().is_available().await
    }
}

impl<V: Vendor> Default for CliProvider<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Vendor> Clone for CliProvider<V> {
    fn clone(&self) -> Self {
        Self { backend: Arc::clone(&self.backend), vendor: PhantomData }
    }
}

#[async_trait]
impl<V: Vendor> Provider for CliProvider<V> {
    fn name(&self) -> &str {
        V::NAME
    }

    async fn validate_environment(&self) -> Result<(), ProviderError> {
        self.backend.validate().await
    }

    async fn is_available(&self) -> bool {
        self.backend.look_up(self.backend.config.resolve_environment(), &[]).await.is_ok()
    }

    fn complete_stream(&self, context: &Context) -> Updates<OutgoingMessage> {
        let question = RequestInput::Completion(Box::new(context.clone()));
        ProviderExchange::new(&self.backend, question).updates(|_, message| message)
    }

    async fn create_session(&self, agent: &AgentSpec, workspace: &Path) -> Result<Session, ProviderError> {
        confine::check(V::KIND, &agent.access)?;
        self.backend.validate().await?;
        let cannot = |source| ProviderError::directory("cannot work in", workspace, source);
        self.backend.check_links(workspace)?;
        let directory = workspace.canonicalize().map_err(cannot)?;
        if !directory.is_dir() {
            return Err(cannot(std::io::ErrorKind::NotADirectory.into()));
        }
        // Stored with the session: a resumed session is as confined as before, whatever the settings are by then.
        let agent = AgentSpec { policy: Some(self.backend.policy(agent)?), ..agent.clone() };
        self.backend.check_launch(&agent, &directory).await?;
        Ok(Session::new(V::NAME, agent, directory))
    }

    fn send_message_stream(&self, session: &Session, text: &str) -> Updates<Response> {
        if session.provider() != V::NAME {
            let error = ProviderError::Unsupported {
                what: format!("the session belongs to `{}`, not to `{}`", session.provider(), V::NAME),
                instead: "send the message with the provider that created the session",
            };
            return Box::pin(futures_util::stream::once(async { Err(error) }));
        }
        let question = RequestInput::SessionMessage(session.clone(), text.to_owned());
        ProviderExchange::new(&self.backend, question).updates(ToolUses::into_response)
    }

    async fn resume_session(&self, id: &str) -> Result<Option<Session>, ProviderError> {
        let Ok(id) = id.parse::<SessionId>() else { return Ok(None) };
        self.backend.records().find(V::NAME, &id).map_err(|source| ProviderError::Environment {
            problem: format!("the record of session {id} cannot be read"),
            remedy: "remove it and start a new session, or adopt the old one with `Session::adopt`"
                .to_owned(),
            source: Some(source.into()),
        })
    }

    async fn submit_tool_results(
        &self,
        _session: &Session,
        _results: &[ToolResult],
    ) -> Result<Response, ProviderError> {
        Err(ProviderError::Unsupported {
            what: format!("{} CLI runs its tools itself and accepts no results", V::KIND),
            instead: "read the tool uses from the events or from `Response::tool_uses`",
        })
    }
}

/// Returns the provider with a name (`claude-code` or `claude`, `codex`, `gemini`, `rehearsal`) and default settings.
pub fn by_name(name: &str) -> Option<Box<dyn Provider>> {
    Some(match name {
        "claude" | ClaudeCode::NAME => Box::new(ClaudeCodeProvider::new()),
        Codex::NAME => Box::new(CodexProvider::new()),
        Gemini::NAME => Box::new(GeminiProvider::new()),
        Rehearsal::NAME => Box::new(RehearsalProvider::new()),
        _ => return None,
    })
}
