//! What a program asks of an agent: the words, and how it may answer them.
//!
//! Owns the request in the program's own terms, and how a conversation becomes one prompt. Knows no vendor.

use std::fmt::Write as _;

use model::{AgentName, McpServer, SessionId};
use serde::{Deserialize, Serialize};

/// One request: a message, what came before it, and how it may be answered. Whatever is left out falls back to the
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
    /// How the agent is to behave; empty for its own way.
    pub system_prompt: String,
    /// What was said before, oldest first.
    pub history: Vec<Message>,
    /// What is asked now.
    pub current_message: String,
    /// MCP servers for this request alone.
    pub mcp_servers: Vec<McpServer>,
    /// How many turns the model may take. Set here, it is a limit: the request is then never continued by itself.
    pub max_turns: Option<u32>,
    /// Which tools the agent may use: none for the provider's own choice, an empty list for no tools at all.
    pub allowed_tools: Option<Vec<String>>,
    /// The model: an alias of the vendor such as `haiku`, or a full name. None for that of the [`crate::ProviderConfig`];
    /// an empty text leaves the choice to the agent.
    pub model: Option<String>,
    /// The conversation to go on with, which then remembers what came before by itself.
    pub session_id: Option<SessionId>,
    /// A named agent of the vendor (`claude --agent`), which brings its own prompt and tools.
    pub agent_name: Option<AgentName>,
}

/// Something that was said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// The words.
    pub text: String,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The user of the program.
    User,
    /// The agent.
    Assistant,
}

impl Message {
    /// Something that the user said.
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, text: text.into() }
    }

    /// Something that the agent said.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self { role: Role::Assistant, text: text.into() }
    }
}

impl Context {
    /// A message and nothing else.
    pub fn new(message: impl Into<String>) -> Self {
        Self { current_message: message.into(), ..Self::default() }
    }

    /// The prompt that the agent is given.
    ///
    /// - For a named agent: the bare message. It brings its own prompt.
    /// - With a session: only the new turn. The agent remembers the rest.
    /// - Otherwise the system prompt and the history flattened into one text, the message last; or the bare message when
    ///   there is neither.
    pub fn to_prompt_string(&self) -> String {
        let system_prompt = self.system_prompt.trim();
        let alone = system_prompt.is_empty() && self.history.is_empty();
        if alone || self.agent_name.is_some() || self.session_id.is_some() {
            return self.current_message.clone();
        }
        let mut prompt = String::new();
        let mut part = |title: &str, text: &str| {
            let gap = if prompt.is_empty() { "" } else { "\n\n" };
            // Writing to a string cannot fail.
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
    fn without_a_session_everything_is_flattened_in_order() {
        let prompt = conversation().to_prompt_string();
        assert_eq!(
            prompt,
            "[System]\nYou are terse.\n\n[User]\nHello.\n\n[Assistant]\nHi.\n\n[User]\nAnd now?"
        );
        let only_history = Context { system_prompt: String::new(), ..conversation() };
        assert!(only_history.to_prompt_string().starts_with("[User]\nHello."));
    }

    #[test]
    fn with_a_session_only_the_new_turn_is_sent() {
        let context = Context { session_id: "abc".parse().ok(), ..conversation() };
        assert_eq!(context.to_prompt_string(), "And now?");
    }

    #[test]
    fn a_named_agent_gets_the_bare_message() {
        let context = Context { agent_name: "reviewer".parse().ok(), ..conversation() };
        assert_eq!(context.to_prompt_string(), "And now?");
    }

    #[test]
    fn a_lone_message_reaches_the_agent_as_it_is() {
        assert_eq!(Context::new("  /help me \n").to_prompt_string(), "  /help me \n");
    }
}
