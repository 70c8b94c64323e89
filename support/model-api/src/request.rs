//! Requests to the model, stored as they arrived, with one way to read the bodies of all APIs.

use serde_json::Value;

use crate::{anthropic, chat, gemini, openai};

/// The API of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiVendor {
    /// The Messages API of Claude Code.
    Anthropic,
    /// The Responses API of Codex.
    OpenAi,
    /// The Chat Completions API of `OpenAI`.
    OpenAiChat,
    /// `generateContent` and `streamGenerateContent` of Gemini CLI.
    Gemini,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A turn of the conversation: answered by the script.
    ModelTurn,
    /// A request of the CLI itself (a title, a quota check, a classifier): answered without a turn of the script.
    Auxiliary,
    /// An unknown API: answered with 404.
    Unknown,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The API, if it is a known one.
    pub vendor: Option<ApiVendor>,
    /// The purpose.
    pub purpose: Purpose,
    /// The HTTP method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; [`Value::Null`] when there was none or it was not JSON.
    pub body: Value,
}

/// The author of a part of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConversationRole {
    /// The system prompt or instructions.
    System,
    /// The user, including context that the CLI adds.
    User,
    /// The model.
    Model,
}

/// A part of the conversation that a request carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text {
        /// The author.
        role: ConversationRole,
        /// The text.
        text: String,
    },
    /// A tool call the model made earlier.
    ToolCall {
        /// The tool.
        name: String,
        /// Its input.
        input: Value,
    },
    /// The result of a tool.
    ToolResult {
        /// The result as text; JSON if it was not text.
        output: String,
    },
}

impl ModelRequest {
    pub(crate) fn new(method: String, path: String, headers: Vec<(String, String)>, body: Value) -> Self {
        let (vendor, purpose) = classify(&method, &path, &body);
        Self { vendor, purpose, method, path, headers, body }
    }

    /// Returns the value of a header; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the requested model.
    pub fn model(&self) -> Option<&str> {
        if self.vendor == Some(ApiVendor::Gemini) {
            return gemini::model(&self.path);
        }
        self.body["model"].as_str()
    }

    /// Returns the names of the offered tools, in order.
    pub fn tools(&self) -> Vec<String> {
        match self.vendor {
            Some(ApiVendor::Anthropic) => anthropic::tools(&self.body),
            Some(ApiVendor::OpenAi) => openai::tools(&self.body),
            Some(ApiVendor::OpenAiChat) => chat::tools(&self.body),
            Some(ApiVendor::Gemini) => gemini::tools(&self.body),
            None => Vec::new(),
        }
    }

    /// Returns the conversation so far, the system prompt first.
    pub fn conversation(&self) -> Vec<Part> {
        match self.vendor {
            Some(ApiVendor::Anthropic) => anthropic::conversation(&self.body),
            Some(ApiVendor::OpenAi) => openai::conversation(&self.body),
            Some(ApiVendor::OpenAiChat) => chat::conversation(&self.body),
            Some(ApiVendor::Gemini) => gemini::conversation(&self.body),
            None => Vec::new(),
        }
    }

    /// Returns all texts of `role`, in order.
    pub fn says(&self, role: ConversationRole) -> Vec<String> {
        self.conversation()
            .into_iter()
            .filter_map(|part| match part {
                Part::Text { role: by, text } if by == role => Some(text),
                _ => None,
            })
            .collect()
    }

    /// Returns the last text of the user: the prompt, as it reached the model. Context and reminders of the CLI are skipped.
    pub fn prompt(&self) -> Option<String> {
        const OWN_WORDS: [&str; 4] =
            ["<system-reminder>", "<environment_context>", "<session_context>", "<user_instructions>"];
        self.says(ConversationRole::User)
            .into_iter()
            .rfind(|text| !OWN_WORDS.iter().any(|tag| text.starts_with(tag)))
    }

    /// Returns the results of the tools, in order.
    pub fn tool_results(&self) -> Vec<String> {
        self.conversation()
            .into_iter()
            .filter_map(|part| match part {
                Part::ToolResult { output } => Some(output),
                _ => None,
            })
            .collect()
    }

    /// Returns whether the conversation ends with a tool result: no text or call of the model follows it.
    pub fn ends_with_tool_result(&self) -> bool {
        // Reminders of the CLI may follow the result.
        self.conversation()
            .iter()
            .rev()
            .find_map(|part| match part {
                Part::ToolResult { .. } => Some(true),
                Part::ToolCall { .. } | Part::Text { role: ConversationRole::Model, .. } => Some(false),
                Part::Text { .. } => None,
            })
            .unwrap_or(false)
    }
}

fn classify(method: &str, path: &str, body: &Value) -> (Option<ApiVendor>, Purpose) {
    let purpose = |auxiliary| if auxiliary { Purpose::Auxiliary } else { Purpose::ModelTurn };
    let route = path.split('?').next().unwrap_or(path);
    if method == "POST" && route == "/v1/messages" {
        (Some(ApiVendor::Anthropic), purpose(anthropic::is_auxiliary(body)))
    } else if method == "POST" && route == "/v1/messages/count_tokens" {
        (Some(ApiVendor::Anthropic), Purpose::Auxiliary)
    } else if method == "POST" && route == "/v1/responses" {
        (Some(ApiVendor::OpenAi), purpose(openai::is_auxiliary(body)))
    } else if method == "POST" && route == "/v1/chat/completions" {
        (Some(ApiVendor::OpenAiChat), purpose(chat::is_auxiliary(body)))
    } else if route.ends_with(":streamGenerateContent") || route.ends_with(":generateContent") {
        (Some(ApiVendor::Gemini), purpose(gemini::is_auxiliary(body)))
    } else if route.ends_with(":countTokens") {
        (Some(ApiVendor::Gemini), Purpose::Auxiliary)
    } else if method == "HEAD" || route == "/v1/models" {
        (None, Purpose::Auxiliary)
    } else {
        (None, Purpose::Unknown)
    }
}
