//! The interface to an agent, whichever it is.

use std::path::Path;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use crate::agent_spec::AgentSpec;
use crate::context::Context;
use crate::error::ProviderError;
use crate::message::{OutgoingMessage, Response, Update};
use crate::session::Session;

/// What happens while an answer is made, ending with [`Update::Done`] or an error. Nothing happens unless it is polled;
/// dropping it ends the agent and everything that it has started.
pub type Updates<T> = BoxStream<'static, Result<Update<T>, ProviderError>>;

/// An agent that answers.
///
/// Every method needs a tokio runtime with I/O and time enabled. A future or stream that is dropped stops the agent, ends
/// every process that it has started and removes the files of its run.
///
/// ```
/// use provider::{ClaudeCodeProvider, CodexProvider, GeminiProvider, Provider};
///
/// let providers: [Box<dyn Provider>; 3] =
///     [Box::new(ClaudeCodeProvider::new()), Box::new(CodexProvider::new()), Box::new(GeminiProvider::new())];
/// assert_eq!(providers.each_ref().map(|provider| provider.name()), ["claude-code", "codex", "gemini"]);
/// assert!(providers.iter().all(|provider| !provider.requires_api_key()));
/// ```
#[async_trait]
pub trait Provider: Send + Sync {
    /// Its name: `claude-code`, `codex`, `gemini`.
    fn name(&self) -> &str;

    /// Whether the program has to bring an API key. Never: the agent uses the login that the user has given it.
    fn requires_api_key(&self) -> bool {
        false
    }

    /// Says whether a request can be placed: the agent is installed, works and is logged in, as far as that can be told
    /// without asking a model.
    async fn validate_environment(&self) -> Result<(), ProviderError>;

    /// Whether the agent is installed and works. Its login is not looked at.
    async fn is_available(&self) -> bool;

    /// Answers one request.
    async fn complete(&self, context: &Context) -> Result<OutgoingMessage, ProviderError> {
        the_end(self.complete_stream(context)).await
    }

    /// Answers one request, and tells what happens on the way.
    fn complete_stream(&self, context: &Context) -> Updates<OutgoingMessage>;

    /// Prepares a conversation with an agent in a workspace. Validates the environment first, and that the agent can be
    /// kept to what it may touch. The agent itself begins with the first message.
    async fn create_session(&self, agent: &AgentSpec, workspace: &Path) -> Result<Session, ProviderError>;

    /// Says something in a conversation.
    async fn send_message(&self, session: &Session, text: &str) -> Result<Response, ProviderError> {
        the_end(self.send_message_stream(session, text)).await
    }

    /// Says something in a conversation, and tells what happens on the way.
    fn send_message_stream(&self, session: &Session, text: &str) -> Updates<Response>;

    /// Finds a conversation that this library has held before, also in an earlier run of the program, with the same agent,
    /// workspace and bounds; none when it is not known.
    async fn resume_session(&self, id: &str) -> Result<Option<Session>, ProviderError>;

    /// Hands the results of tools to the agent. Agents that run their tools themselves refuse it; there is then no
    /// streaming form either.
    async fn submit_tool_results(
        &self,
        session: &Session,
        results: &[ToolResult],
    ) -> Result<Response, ProviderError>;
}

/// What a tool answered, for providers whose tools the program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// The id of its use.
    pub id: String,
    /// What it answered.
    pub output: String,
    /// Whether it failed.
    pub is_error: bool,
}

/// Waits for the answer.
async fn the_end<T>(mut updates: Updates<T>) -> Result<T, ProviderError> {
    while let Some(update) = updates.next().await {
        if let Update::Done(answer) = update? {
            return Ok(answer);
        }
    }
    Err(ProviderError::environment(
        "the request ended without an answer",
        "this is a defect: please report it",
    ))
}
