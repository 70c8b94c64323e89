//! What reached the model: every request, kept as it came, with one way to read the three vendors' bodies.

use serde_json::Value;

use crate::{anthropic, gemini, openai};

/// Whose API a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// The Messages API, as Claude Code speaks it.
    Anthropic,
    /// The Responses API, as Codex speaks it.
    OpenAi,
    /// `generateContent` and `streamGenerateContent`, as Gemini CLI speaks them.
    Gemini,
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A turn of the conversation: answered by the script.
    Turn,
    /// Something the CLI asks on its own account (a title, a quota check, a classifier): answered without taking
    /// a turn of the script.
    Auxiliary,
    /// No API that is served here: answered with 404.
    Unknown,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// Whose API it speaks, if any of the three.
    pub vendor: Option<Vendor>,
    /// What it wants.
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

/// Who says a part of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The system prompt or instructions.
    System,
    /// The user's side, context that the CLI adds included.
    User,
    /// The model.
    Model,
}

/// A part of the conversation that a request carries.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text {
        /// Who says it.
        role: Role,
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
    /// What a tool answered.
    ToolResult {
        /// The answer as text; JSON where it was not text.
        output: String,
    },
}

impl ModelRequest {
    pub(crate) fn new(method: String, path: String, headers: Vec<(String, String)>, body: Value) -> Self {
        let (vendor, purpose) = classify(&method, &path, &body);
        Self { vendor, purpose, method, path, headers, body }
    }

    /// A header's value; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The model asked for.
    pub fn model(&self) -> Option<&str> {
        if self.vendor == Some(Vendor::Gemini) {
            return gemini::model(&self.path);
        }
        self.body["model"].as_str()
    }

    /// The names of the tools offered to the model, in order.
    pub fn tools(&self) -> Vec<String> {
        match self.vendor {
            Some(Vendor::Anthropic) => anthropic::tools(&self.body),
            Some(Vendor::OpenAi) => openai::tools(&self.body),
            Some(Vendor::Gemini) => gemini::tools(&self.body),
            None => Vec::new(),
        }
    }

    /// The conversation so far, the system prompt first.
    pub fn conversation(&self) -> Vec<Part> {
        match self.vendor {
            Some(Vendor::Anthropic) => anthropic::conversation(&self.body),
            Some(Vendor::OpenAi) => openai::conversation(&self.body),
            Some(Vendor::Gemini) => gemini::conversation(&self.body),
            None => Vec::new(),
        }
    }

    /// Everything `role` says in the conversation, in order.
    pub fn says(&self, role: Role) -> Vec<String> {
        self.conversation()
            .into_iter()
            .filter_map(|part| match part {
                Part::Text { role: by, text } if by == role => Some(text),
                _ => None,
            })
            .collect()
    }

    /// The last thing the user said: the prompt, as it reached the model. What the CLI says in the user's name
    /// (context, reminders) is passed over.
    pub fn prompt(&self) -> Option<String> {
        const OWN_WORDS: [&str; 4] =
            ["<system-reminder>", "<environment_context>", "<session_context>", "<user_instructions>"];
        self.says(Role::User).into_iter().rfind(|text| !OWN_WORDS.iter().any(|tag| text.starts_with(tag)))
    }

    /// What the tools answered, in order.
    pub fn tool_results(&self) -> Vec<String> {
        self.conversation()
            .into_iter()
            .filter_map(|part| match part {
                Part::ToolResult { output } => Some(output),
                _ => None,
            })
            .collect()
    }

    /// Whether the model is asked to go on after a tool: no model text or call follows the last tool result.
    pub fn ends_with_tool_result(&self) -> bool {
        // The user's side may follow the result: the CLIs append reminders to it.
        self.conversation()
            .iter()
            .rev()
            .find_map(|part| match part {
                Part::ToolResult { .. } => Some(true),
                Part::ToolCall { .. } | Part::Text { role: Role::Model, .. } => Some(false),
                Part::Text { .. } => None,
            })
            .unwrap_or(false)
    }
}

fn classify(method: &str, path: &str, body: &Value) -> (Option<Vendor>, Purpose) {
    let purpose = |auxiliary| if auxiliary { Purpose::Auxiliary } else { Purpose::Turn };
    let route = path.split('?').next().unwrap_or(path);
    if method == "POST" && route == "/v1/messages" {
        (Some(Vendor::Anthropic), purpose(anthropic::is_auxiliary(body)))
    } else if method == "POST" && route == "/v1/messages/count_tokens" {
        (Some(Vendor::Anthropic), Purpose::Auxiliary)
    } else if method == "POST" && route == "/v1/responses" {
        (Some(Vendor::OpenAi), purpose(openai::is_auxiliary(body)))
    } else if route.ends_with(":streamGenerateContent") || route.ends_with(":generateContent") {
        (Some(Vendor::Gemini), purpose(gemini::is_auxiliary(body)))
    } else if route.ends_with(":countTokens") {
        (Some(Vendor::Gemini), Purpose::Auxiliary)
    } else if method == "HEAD" || route == "/v1/models" {
        (None, Purpose::Auxiliary)
    } else {
        (None, Purpose::Unknown)
    }
}
