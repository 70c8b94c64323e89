//! A request: the messages and the options of the answer.
//!
//! Converts a conversation to one prompt. Knows no vendor.

use std::fmt::Write as _;

use model::{AgentName, McpServer, SessionId};
use serde::{Deserialize, Serialize};

/// One request: a message, the earlier messages, and the options of its answer. Unset options fall back to the
/// provider's own settings.
///
/// ```
/// use provider::Context;
///
/// let context = Context {
///     system_prompt: "You are terse.".to_owned(),
///     model: Some("haiku".to_owned()),
///     allowed_tools: Some(vec![]), // no tools at all
///     ..Context::new("What is 2 + 2?")
/// };
/// assert_eq!(context.to_prompt_string(), "[System]\nYou are terse.\n\n[User]\nWhat is 2 + 2?");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    /// The system prompt; empty for the agent's own.
    pub system_prompt: String,
    /// Earlier messages, oldest first.
    pub history: Vec<Message>,
    /// The current message.
    pub current_message: String,
    /// MCP servers for this request only.
    pub mcp_servers: Vec<McpServer>,
    /// The turn limit of the model. If it is set here, the request is never resumed automatically.
    pub max_turns: Option<u32>,
    /// The allowed tools: `None` for the provider's choice, an empty list for no tools.
    pub allowed_tools: Option<Vec<String>>,
    /// The model: a vendor alias such as `haiku`, or a full name. `None` for that of the [`crate::ProviderConfig`]; an empty
    /// string leaves the choice to the agent.
    pub model: Option<String>,
    /// The session to resume, which contains the earlier messages.
    pub session_id: Option<SessionId>,
    /// A named agent of the vendor (`claude --agent`), with its own prompt and tools.
    pub agent_name: Option<AgentName>,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The text.
    pub text: String,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The user of the program.
    User,
    /// The agent.
    Assistant,
}

impl Message {
    /// Creates a message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, text: text.into() }
    }

    /// Creates a message of the agent.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self { role: Role::Assistant, text: text.into() }
    }
}

impl Context {
    /// Creates a request with a message only.
    pub fn new(message: impl Into<String>) -> Self {
        Self { current_message: message.into(), ..Self::default() }
    }

    /// Returns the prompt for the agent.
    ///
    /// - For a named agent: the bare message. It has its own prompt.
    /// - With a session: only the new message. The session contains the rest.
    /// - Otherwise the system prompt and the history flattened into one text, the message last; or the bare message if there is
    ///   neither.
    pub fn to_prompt_string(&self) -> String {
        let system_prompt = self.system_prompt.trim();
        let alone = system_prompt.is_empty() && self.history.is_empty();
        if alone || self.agent_name.is_some() || self.session_id.is_some() {
            return self.current_message.clone();
        }
        let mut prompt = String::new();
        let mut part = |title: &str, text: &str| {
            let gap = if prompt.is_empty() { "" } else { "\n\n" };
            // Writing to a `String` cannot fail.
            let _ = write!(prompt, "{gap}[{title}]\n{text}");
        };
        if !system_prompt.is_empty() {
            part("System", system_prompt);
        }
        for Message { role, text } in &self.history {
            part(if *role == Role::User { "User" } else { "Assistant" }, text);
        }
        part("User", &self.current_message);
        prompt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> Context {
        Context {
            system_prompt: "You are terse.\n".to_owned(),
            history: vec![Message::user("Hello."), Message::assistant("Hi.")],
            ..Context::new("And now?")
        }
    }

    #[test]
    fn conversation_is_flattened_without_a_session() {
        let prompt = conversation().to_prompt_string();
        assert_eq!(
            prompt,
            "[System]\nYou are terse.\n\n[User]\nHello.\n\n[Assistant]\nHi.\n\n[User]\nAnd now?"
        );
        let only_history = Context { system_prompt: String::new(), ..conversation() };
        assert!(only_history.to_prompt_string().starts_with("[User]\nHello."));
    }

    #[test]
    fn session_receives_only_the_new_message() {
        let context = Context { session_id: "abc".parse().ok(), ..conversation() };
        assert_eq!(context.to_prompt_string(), "And now?");
    }

    #[test]
    fn named_agent_receives_the_bare_message() {
        let context = Context { agent_name: "reviewer".parse().ok(), ..conversation() };
        assert_eq!(context.to_prompt_string(), "And now?");
    }

    #[test]
    fn single_message_is_sent_verbatim() {
        assert_eq!(Context::new("  /help me \n").to_prompt_string(), "  /help me \n");
    }
}
