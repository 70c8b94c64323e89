//! The agents that are known by type: the names of [`AgentProvider`] for them.

use std::marker::PhantomData;
use std::path::Path;

use agents::AgentProfiles;
use async_trait::async_trait;
use model::AgentKind;

use crate::agent_provider::AgentProvider;
use crate::agent_spec::AgentSpec;
use crate::config::ProviderConfig;
use crate::context::Context;
use crate::error::ProviderError;
use crate::message::{OutgoingMessage, Response};
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

/// A provider that runs one of the agents that this crate knows by type.
#[derive(Debug)]
pub struct CliProvider<V: Vendor> {
    provider: AgentProvider,
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
        Self { provider: AgentProvider::named(V::KIND, V::NAME, config), vendor: PhantomData }
    }

    /// Returns the settings.
    pub fn config(&self) -> &ProviderConfig {
        self.provider.config()
    }

    /// Returns the turn limit of one run; `None` for an agent without one.
    pub fn max_turns(&self) -> Option<u32> {
        self.provider.max_turns()
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
        Self { provider: self.provider.clone(), vendor: PhantomData }
    }
}

#[async_trait]
impl<V: Vendor> Provider for CliProvider<V> {
    fn name(&self) -> &str {
        V::NAME
    }

    async fn validate_environment(&self) -> Result<(), ProviderError> {
        self.provider.validate_environment().await
    }

    async fn is_available(&self) -> bool {
        self.provider.is_available().await
    }

    fn complete_stream(&self, context: &Context) -> Updates<OutgoingMessage> {
        self.provider.complete_stream(context)
    }

    async fn create_session(&self, agent: &AgentSpec, workspace: &Path) -> Result<Session, ProviderError> {
        self.provider.create_session(agent, workspace).await
    }

    fn send_message_stream(&self, session: &Session, text: &str) -> Updates<Response> {
        self.provider.send_message_stream(session, text)
    }

    async fn resume_session(&self, id: &str) -> Result<Option<Session>, ProviderError> {
        self.provider.resume_session(id).await
    }

    async fn submit_tool_results(
        &self,
        session: &Session,
        results: &[ToolResult],
    ) -> Result<Response, ProviderError> {
        self.provider.submit_tool_results(session, results).await
    }
}

/// Returns the provider with a name (`claude-code` or `claude`, `codex`, `gemini`, `rehearsal`, or any built-in agent such as
/// `opencode`) and default settings.
pub fn by_name(name: &str) -> Option<Box<dyn Provider>> {
    Some(match name {
        "claude" | ClaudeCode::NAME => Box::new(ClaudeCodeProvider::new()),
        Codex::NAME => Box::new(CodexProvider::new()),
        Gemini::NAME => Box::new(GeminiProvider::new()),
        Rehearsal::NAME => Box::new(RehearsalProvider::new()),
        name => {
            let agent = name.parse().ok()?;
            AgentProfiles::default().get(agent)?;
            Box::new(AgentProvider::new(agent, ProviderConfig::default()))
        }
    })
}
