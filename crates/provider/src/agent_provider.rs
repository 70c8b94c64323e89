//! The provider of any agent.
//!
//! Providers differ in name and agent only; `agents` knows the differences between the programs.

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

/// A provider that runs an agent's program with the user's login: any agent in [`ProviderConfig::profiles`].
///
/// ```
/// use provider::{AgentProvider, Provider, ProviderConfig};
///
/// let opencode = AgentProvider::new("opencode".parse().unwrap(), ProviderConfig::default());
/// assert_eq!(opencode.name(), "opencode");
/// ```
#[derive(Debug, Clone)]
pub struct AgentProvider {
    backend: Arc<CliBackend>,
}

impl AgentProvider {
    /// Creates a provider with these settings. An agent that is not in them is reported when it is used.
    pub fn new(agent: AgentKind, config: ProviderConfig) -> Self {
        Self::named(agent, agent.name(), config)
    }

    pub(crate) fn named(agent: AgentKind, name: &str, config: ProviderConfig) -> Self {
        Self { backend: Arc::new(CliBackend { kind: agent, name: name.to_owned(), config }) }
    }

    /// Returns the settings.
    pub fn config(&self) -> &ProviderConfig {
        &self.backend.config
    }

    /// Returns the turn limit of one run; `None` for an agent without one.
    pub fn max_turns(&self) -> Option<u32> {
        self.backend.config.turns_per_run(self.backend.kind)
    }
}

#[async_trait]
impl Provider for AgentProvider {
    fn name(&self) -> &str {
        &self.backend.name
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
        confine::check(self.backend.kind, &agent.access)?;
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
        Ok(Session::new(self.name(), agent, directory))
    }

    fn send_message_stream(&self, session: &Session, text: &str) -> Updates<Response> {
        if session.provider() != self.name() {
            let error = ProviderError::Unsupported {
                what: format!("the session belongs to `{}`, not to `{}`", session.provider(), self.name()),
                instead: "send the message with the provider that created the session",
            };
            return Box::pin(futures_util::stream::once(async { Err(error) }));
        }
        let question = RequestInput::SessionMessage(session.clone(), text.to_owned());
        ProviderExchange::new(&self.backend, question).updates(ToolUses::into_response)
    }

    async fn resume_session(&self, id: &str) -> Result<Option<Session>, ProviderError> {
        let Ok(id) = id.parse::<SessionId>() else { return Ok(None) };
        self.backend.records().find(self.name(), &id).map_err(|source| ProviderError::Environment {
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
            what: format!("{} CLI runs its tools itself and accepts no results", self.backend.kind),
            instead: "read the tool uses from the events or from `Response::tool_uses`",
        })
    }
}
