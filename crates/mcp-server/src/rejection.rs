//! Errors that a caller can fix: the field, the problem and the remedy.
//!
//! A rejection is the result of a tool (`isError`) and not a protocol error: hosts show tool results to the model, which can then correct
//! its call, and hide protocol errors.

use std::fmt::Display;

use agents::LaunchError;
use calls::{CallError, Conflict, RestoreError};
use model::exact_path::show_path;
use rmcp::model::{CallToolResult, ContentBlock, ErrorData, MetaObject};
use serde_json::{Value, json};

use crate::hints::{call_error_hint, without_flags};

/// `_meta` key of the machine-readable form.
const ERROR_META: &str = "switchboard/error";

/// The reason why a tool call was not executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolRejection {
    field: Option<String>,
    message: String,
    hint: String,
    /// Files that cannot be merged, with the reasons.
    conflicts: Vec<Value>,
    fault: Fault,
}

/// The cause, which decides the error code of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// An invalid argument.
    Caller,
    /// The requested object does not exist.
    NotFound,
    /// An error of the daemon or the machine.
    Internal,
}

impl ToolRejection {
    /// Creates a rejection of one parameter.
    pub fn for_field(field: impl Into<String>, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(message, hint) }
    }

    /// Creates a rejection of the whole call.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        let (message, hint) = (message.into(), hint.into());
        Self { field: None, message, hint, conflicts: Vec::new(), fault: Fault::Caller }
    }

    /// Replaces the field.
    #[must_use]
    pub fn with_field(self, field: &str) -> Self {
        Self { field: Some(field.to_owned()), ..self }
    }

    /// Marks the rejection as *not found*.
    #[must_use]
    pub fn not_found(self) -> Self {
        Self { fault: Fault::NotFound, ..self }
    }

    /// Replaces the field if it has this name.
    #[must_use]
    pub fn rename_field(self, from: &str, to: &str) -> Self {
        if self.field.as_deref() == Some(from) { self.with_field(to) } else { self }
    }

    /// Adds to the hint that the job or the group was submitted nevertheless.
    #[must_use]
    pub fn after_submit(self, submitted: impl Display) -> Self {
        let hint =
            format!("{submitted} was submitted and continues: check it with call_status; {}", self.hint);
        Self { hint, ..self }
    }

    /// Returns the text for the model.
    pub fn text(&self) -> String {
        let place = self.field.as_ref().map(|field| format!(" in `{field}`")).unwrap_or_default();
        format!("error{place}: {}\nhint: {}", self.message, self.hint)
    }

    /// Converts to the protocol error of a resource.
    pub fn to_resource_error(&self, uri: &str) -> ErrorData {
        let data = Some(json!({ "uri": uri, "hint": self.hint }));
        match self.fault {
            Fault::Caller => ErrorData::invalid_params(self.text(), data),
            Fault::NotFound => ErrorData::resource_not_found(self.text(), data),
            Fault::Internal => ErrorData::internal_error(self.text(), data),
        }
    }

    /// Converts to a tool result. It has no structured content, which would have to match the tool's output schema.
    pub fn to_tool_result(&self) -> CallToolResult {
        let mut result = CallToolResult::error(vec![ContentBlock::text(self.text())]);
        let mut error = json!({ "field": self.field, "message": self.message, "hint": self.hint });
        if !self.conflicts.is_empty() {
            error["conflicts"] = json!(self.conflicts);
        }
        let mut meta = MetaObject::default();
        meta.insert(ERROR_META.to_owned(), error);
        result.meta = Some(meta);
        result
    }
}

impl From<CallError> for ToolRejection {
    fn from(error: CallError) -> Self {
        let fault = match &error {
            CallError::NoSuchJob { .. } => Fault::NotFound,
            CallError::Store(_)
            | CallError::Files { .. }
            | CallError::State { .. }
            | CallError::Copied { .. } => Fault::Internal,
            _ => Fault::Caller,
        };
        let mut message = without_flags(&model::error_chain(&error));
        if let CallError::Launch(LaunchError::ValueTooLong { flag, .. } | LaunchError::NulInValue { flag }) =
            &error
        {
            message = message.replace(flag, parameter_of_flag(flag));
        }
        let field = field(&error).map(str::to_owned);
        let conflicts = match &error {
            CallError::Restore(RestoreError::Conflicts(conflicts)) => {
                conflicts.iter().map(conflict).collect()
            }
            _ => Vec::new(),
        };
        Self { field, message, hint: call_error_hint(&error), conflicts, fault }
    }
}

/// Returns a conflict in its machine-readable form.
fn conflict(conflict: &Conflict) -> Value {
    json!({ "path": show_path(&conflict.path), "reason": conflict.reason.to_string() })
}

/// Returns the tool parameter that an error is about.
fn field(error: &CallError) -> Option<&'static str> {
    match error {
        CallError::Launch(
            LaunchError::Unsupported { option, .. }
            | LaunchError::UnsupportedVersion { option, .. }
            | LaunchError::Policy { option, .. }
            | LaunchError::BadLimit { option, .. },
        ) => Some(parameter(option)),
        CallError::Launch(LaunchError::ValueTooLong { flag, .. } | LaunchError::NulInValue { flag }) => {
            Some(parameter_of_flag(flag))
        }
        CallError::Launch(LaunchError::BadSchema { .. }) => Some("output_schema"),
        CallError::Launch(LaunchError::Image { .. } | LaunchError::TooManyImages { .. }) => Some("images"),
        CallError::Launch(
            LaunchError::Name(_)
            | LaunchError::DuplicateServer { .. }
            | LaunchError::VariableClash { .. }
            | LaunchError::VariableForbidden { .. }
            | LaunchError::BadVariable { .. }
            | LaunchError::UnknownVariable { .. },
        ) => Some("mcp_servers"),
        CallError::Launch(LaunchError::NoNetwork { .. }) => Some("network"),
        CallError::Launch(LaunchError::Contradiction { one, .. }) => Some(parameter(one)),
        CallError::Launch(LaunchError::NotReadOnly { .. } | LaunchError::BadTool { .. }) => {
            Some("allowed_tools")
        }
        CallError::Launch(LaunchError::WorkspaceSettings { .. }) => Some("mode"),
        CallError::Launch(
            LaunchError::RelativeDirectory { .. }
            | LaunchError::NotUnicode { .. }
            | LaunchError::CommaInDirectory { .. },
        ) => Some("add_dirs"),
        error => error.field(),
    }
}

/// Returns the tool parameter of a call option.
fn parameter(option: &'static str) -> &'static str {
    if option == "session fork" {
        return "fork_session_id";
    }
    // A value may follow: `mode observe`.
    match option.split(' ').next().unwrap_or(option) {
        "tools" | "allowed_tools" => "allowed_tools",
        "tool_timeout" => "tool_timeout_ms",
        "session" => "resume_session_id",
        option => option,
    }
}

/// Returns the tool parameter behind an agent's flag whose value can be long.
fn parameter_of_flag(flag: &'static str) -> &'static str {
    match flag {
        "--system-prompt" | "--append-system-prompt" | "--config" => "system_prompt",
        "--add-dir" | "--include-directories" => "add_dirs",
        "--cd" => "cwd",
        "--model" => "model",
        _ => "allowed_tools",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_has_text_and_machine_readable_meta() {
        let rejection = ToolRejection::for_field("cwd", "`/x` is not a directory", "give a directory");
        assert_eq!(rejection.text(), "error in `cwd`: `/x` is not a directory\nhint: give a directory");
        let result = serde_json::to_value(rejection.to_tool_result()).unwrap();
        assert_eq!(result["isError"], true);
        assert_eq!(result["_meta"][ERROR_META]["field"], "cwd");
        assert!(result.get("structuredContent").is_none());
    }

    #[test]
    fn agent_flag_is_reported_as_tool_parameter() {
        let error = LaunchError::NulInValue { flag: "--append-system-prompt" };
        assert_eq!(
            ToolRejection::from(CallError::Launch(error)).message,
            "the value of `system_prompt` contains a NUL character"
        );
    }

    #[test]
    fn call_option_is_reported_as_tool_parameter() {
        let error = LaunchError::Unsupported { agent: model::AgentKind::Codex, option: "tools" };
        assert!(
            ToolRejection::from(CallError::Launch(error))
                .text()
                .starts_with("error in `allowed_tools`: codex")
        );
    }
}
