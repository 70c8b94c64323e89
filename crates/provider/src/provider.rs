//! The interface of all agents.

use std::path::Path;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use crate::agent_spec::AgentSpec;
use crate::context::Context;
use crate::error::ProviderError;
use crate::message::{OutgoingMessage, Response, Update};
use crate::session::Session;

/// The updates of a request, ending with [`Update::Done`] or an error. Nothing runs unless it is polled; dropping it stops the
/// agent and its process tree.
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
    /// Returns the name: `claude-code`, `codex`, `gemini`.
    fn name(&self) -> &str;

    /// Returns whether the program must supply an API key. Always false: the agent uses the user's login.
    fn requires_api_key(&self) -> bool {
        false
    }

    /// Checks whether a request can run: the agent is installed, works and is logged in, as far as this is known without a
    /// model request.
    async fn validate_environment(&self) -> Result<(), ProviderError>;

    /// Returns whether the agent is installed and works. Does not check its login.
    async fn is_available(&self) -> bool;

    /// Answers a request.
    async fn complete(&self, context: &Context) -> Result<OutgoingMessage, ProviderError> {
        wait_for_answer(self.complete_stream(context)).await
    }

    /// Answers a request and streams its updates.
    fn complete_stream(&self, context: &Context) -> Updates<OutgoingMessage>;

    /// Creates a session with an agent in a workspace. Validates the environment and that the agent can enforce its access. The
    /// agent starts with the first message.
    async fn create_session(&self, agent: &AgentSpec, workspace: &Path) -> Result<Session, ProviderError>;

    /// Sends a message to a session.
    async fn send_message(&self, session: &Session, text: &str) -> Result<Response, ProviderError> {
        wait_for_answer(self.send_message_stream(session, text)).await
    }

    /// Sends a message to a session and streams its updates.
    fn send_message_stream(&self, session: &Session, text: &str) -> Updates<Response>;

    /// Finds an earlier session of this library, also from an earlier process, with the same agent, workspace and access;
    /// `None` if it is unknown.
    async fn resume_session(&self, id: &str) -> Result<Option<Session>, ProviderError>;

    /// Passes tool results to the agent. Agents that run their tools themselves reject it; there is no streaming form either.
    async fn submit_tool_results(
        &self,
        session: &Session,
        results: &[ToolResult],
    ) -> Result<Response, ProviderError>;
}

/// The result of a tool, for providers whose tools the program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// The id of the tool use.
    pub id: String,
    /// The output.
    pub output: String,
    /// True if it failed.
    pub is_error: bool,
}

/// Waits for the answer.
async fn wait_for_answer<T>(mut updates: Updates<T>) -> Result<T, ProviderError> {
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
