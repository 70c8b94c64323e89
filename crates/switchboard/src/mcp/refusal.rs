//! What a caller is told that can be mended: which field, what is wrong with it, and the remedy.
//!
//! A refusal is the answer of a tool (`isError`) and not an error of the protocol: hosts show the former to the model, which can
//! then do better, and hide the latter.

use agents::LaunchError;
use calls::CallError;
use model::JobId;
use rmcp::model::{CallToolResult, ContentBlock, ErrorData, MetaObject};
use serde_json::json;

/// The key in a result's `_meta` under which a refusal is written for programs.
const META: &str = "switchboard/error";

/// Why a tool did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    field: Option<String>,
    message: String,
    hint: String,
    fault: Fault,
}

/// Whose fault it is. A tool need not say; a resource has an error for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The caller's, who can do better.
    Caller,
    /// Nobody's: what was asked for is not there.
    Missing,
    /// The machine's.
    Ours,
}

impl Refusal {
    /// About one field.
    pub fn of(field: impl Into<String>, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { field: Some(field.into()), message: message.into(), hint: hint.into(), fault: Fault::Caller }
    }

    /// About no field in particular.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { field: None, message: message.into(), hint: hint.into(), fault: Fault::Caller }
    }

    /// The same, about another field.
    #[must_use]
    pub fn about(self, field: &str) -> Self {
        Self { field: Some(field.to_owned()), ..self }
    }

    /// The same, because what was asked for is not there.
    #[must_use]
    pub fn missing(self) -> Self {
        Self { fault: Fault::Missing, ..self }
    }

    /// The same, of a job that was placed all the same.
    #[must_use]
    pub fn after_placing(self, job: JobId) -> Self {
        let hint = format!("job {job} is placed and goes on: ask call_status for it; {}", self.hint);
        Self { hint, ..self }
    }

    /// As a model reads it.
    pub fn text(&self) -> String {
        let place = self.field.as_ref().map(|field| format!(" in `{field}`")).unwrap_or_default();
        format!("error{place}: {}\nhint: {}", self.message, self.hint)
    }

    /// As the answer to who wanted to read a resource.
    pub fn of_resource(&self, uri: &str) -> ErrorData {
        let about = Some(json!({ "uri": uri, "hint": self.hint }));
        match self.fault {
            Fault::Caller => ErrorData::invalid_params(self.text(), about),
            Fault::Missing => ErrorData::resource_not_found(self.text(), about),
            Fault::Ours => ErrorData::internal_error(self.text(), about),
        }
    }

    /// As the result of a tool. It has no structured content: that would have to fit the schema of an answer.
    pub fn result(&self) -> CallToolResult {
        let mut result = CallToolResult::error(vec![ContentBlock::text(self.text())]);
        let about = json!({ "field": self.field, "message": self.message, "hint": self.hint });
        let mut meta = MetaObject::default();
        meta.insert(META.to_owned(), about);
        result.meta = Some(meta);
        result
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        let fault = match &error {
            CallError::NoSuchJob { .. } => Fault::Missing,
            CallError::Store(_)
            | CallError::Files { .. }
            | CallError::State { .. }
            | CallError::Copied { .. } => Fault::Ours,
            _ => Fault::Caller,
        };
        let field = field(&error).map(str::to_owned);
        Self { field, message: model::error_chain(&error), hint: hint(&error), fault }
    }
}

/// Returns the remedy in terms of the tools and their parameters.
fn hint(error: &CallError) -> String {
    match error {
        CallError::NoEarlierSession { .. } => {
            "omit continue_latest to start a session, or name one with resume_session_id".to_owned()
        }
        CallError::SessionElsewhere { .. } => {
            "pass its directory as cwd, name the session with resume_session_id, or use one task_name per directory"
                .to_owned()
        }
        CallError::NoSuchJob { .. } => {
            "list the jobs with call_jobs; old jobs are removed after a while".to_owned()
        }
        CallError::AlreadyEnded { .. } => "read its result with call_status".to_owned(),
        CallError::StoppedUnkept { source, .. } => {
            format!("check it with call_status; then {}", source.hint())
        }
        error => error.hint(),
    }
}

/// The parameter that an error is about, in the words of the tools.
fn field(error: &CallError) -> Option<&'static str> {
    match error {
        CallError::Launch(
            LaunchError::Unsupported { option, .. }
            | LaunchError::UnsupportedVersion { option, .. }
            | LaunchError::Policy { option, .. }
            | LaunchError::BadLimit { option, .. },
        ) => Some(parameter(option)),
        CallError::Launch(LaunchError::ValueTooLong { flag, .. } | LaunchError::NulInValue { flag }) => {
            Some(flagged(flag))
        }
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

/// What a caller calls an option of a call.
fn parameter(option: &'static str) -> &'static str {
    // What was asked of it may follow: `mode observe`.
    match option.split(' ').next().unwrap_or(option) {
        "tools" | "allowed_tools" => "allowed_tools",
        "tool_timeout" => "tool_timeout_ms",
        option => option,
    }
}

/// The parameter behind a flag whose value can be long.
fn flagged(flag: &'static str) -> &'static str {
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
    fn a_refusal_names_the_field_and_the_remedy_for_people_and_for_programs() {
        let refusal = Refusal::of("cwd", "`/x` is not a folder", "give a folder");
        assert_eq!(refusal.text(), "error in `cwd`: `/x` is not a folder\nhint: give a folder");
        let result = serde_json::to_value(refusal.result()).unwrap();
        assert_eq!(result["isError"], true);
        assert_eq!(result["_meta"][META]["field"], "cwd");
        assert!(result.get("structuredContent").is_none());
    }

    #[test]
    fn an_option_of_a_call_is_named_as_the_parameter_it_came_from() {
        let error = LaunchError::Unsupported { agent: model::AgentKind::Codex, option: "tools" };
        assert!(
            Refusal::from(CallError::Launch(error)).text().starts_with("error in `allowed_tools`: codex")
        );
    }
}
