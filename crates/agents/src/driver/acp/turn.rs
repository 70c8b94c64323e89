//! The turn of the prompt, from its first update to the reply.

use std::collections::HashMap;

use model::{AgentEvent, AgentText, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::handshake::AUTH_REQUIRED;
use super::terminals::TerminalOutputs;
use super::{UsageReport, failure, usage};
use crate::driver::json::check_strict;
use crate::driver::json_rpc::RpcError;
use crate::driver::message_context::MessageContext;
use crate::driver::summary::{ReportedError, ReportedErrorCode, ReportedResult};

/// The start of a text that reports an error of the model ([`ModelErrorReport::Text`]).
const ERROR_PREFIX: &str = "Error: ";

/// The way in which an agent reports that its request to the model has failed, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelErrorReport {
    /// An error in place of the reply to the prompt.
    #[default]
    Reply,
    /// A last text that starts with `Error: `. The turn ends like a success.
    Text,
    /// None: the turn ends like a success, without an answer after the last tool call.
    Silence,
}

impl ModelErrorReport {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
    pub(super) fn is_reply(&self) -> bool {
        *self == Self::Reply
    }
}

/// The state of the turn.
#[derive(Debug)]
pub(super) struct Turn {
    usage: UsageReport,
    errors: ModelErrorReport,
    /// There was text after the last tool call.
    has_answer: bool,
    /// The last chunk of text, if it may be an error of the model.
    error: Option<String>,
    /// The sum of the counts in updates.
    counted: Option<Usage>,
    /// The message of the last chunk of text.
    pub(super) message: Option<String>,
    /// The tool calls without a result, by id.
    pub(super) tools: HashMap<String, OpenTool>,
    /// The outputs of commands that the agent ran through its client.
    pub(super) terminals: TerminalOutputs,
}

/// A tool call without a result.
#[derive(Debug, Default)]
pub(super) struct OpenTool {
    /// The name, and whether the call was emitted: the arguments may follow in an update.
    pub(super) name: String,
    pub(super) is_emitted: bool,
    /// The arguments so far, of a call that is not emitted.
    pub(super) input: Option<Vec<u8>>,
    /// The command or the file in the arguments.
    pub(super) command: Option<String>,
    pub(super) is_read: bool,
    /// The terminal of the command.
    pub(super) terminal: Option<String>,
}

impl Turn {
    pub(super) fn new(usage: UsageReport, errors: ModelErrorReport) -> Self {
        Self {
            usage,
            errors,
            has_answer: false,
            error: None,
            counted: None,
            message: None,
            tools: HashMap::new(),
            terminals: TerminalOutputs::default(),
        }
    }

    /// Notes a chunk of text. An error is a chunk of its own: a model's answer arrives in smaller ones.
    pub(super) fn note_text(&mut self, text: &AgentText<'_>) {
        self.has_answer = true;
        self.error = (self.errors == ModelErrorReport::Text)
            .then(|| text.decode())
            .and_then(|text| text.strip_prefix(ERROR_PREFIX).map(str::to_owned));
    }

    /// Notes a tool call: an answer follows it.
    pub(super) fn note_tool(&mut self) {
        self.has_answer = false;
        self.error = None;
    }

    /// Returns the failure of a turn that ended like a success.
    fn hidden_failure(&self) -> Option<ReportedError> {
        match (self.errors, &self.error) {
            (ModelErrorReport::Text, Some(message)) => {
                let http_status = leading_status(message);
                Some(ReportedError { http_status, ..failure(ReportedErrorCode::Other, message.trim()) })
            }
            (ModelErrorReport::Silence, _) if !self.has_answer => Some(failure(
                ReportedErrorCode::Other,
                "the agent ended the turn without an answer, as it does after an error of the model",
            )),
            _ => None,
        }
    }

    /// Adds the counts of one request to the model.
    pub(super) fn count(&mut self, counts: &[u8]) {
        if self.usage == UsageReport::PerRequest
            && let Some(more) = serde_json::from_slice(counts).ok().as_ref().and_then(usage::read)
        {
            self.counted = Some(self.counted.map_or(more, |so_far| so_far.plus(more)));
        }
    }

    /// Returns the usage of the turn, which is the first of its process.
    fn total(&self, result: &Value) -> Option<Usage> {
        match self.usage {
            UsageReport::Unknown => None,
            UsageReport::PerRequest => self.counted,
            UsageReport::PerPrompt | UsageReport::PerProcess => usage::read(&result["usage"])
                .or_else(|| usage::read(&result["_meta"]["quota"]["token_count"])),
        }
    }

    /// Handles the reply to the prompt.
    pub(super) fn answered(&mut self, outcome: &Result<Value, RpcError>, context: &mut MessageContext<'_>) {
        let result = outcome.as_ref().unwrap_or(&Value::Null);
        context.summary.end_text();
        context.summary.usage = self.total(result);
        if let Some(usage) = context.summary.usage {
            context.emit(AgentEvent::Usage(usage));
        }
        if let Some(model) = result["_meta"]["quota"]["model_usage"][0]["model"].as_str() {
            context.summary.model = Some(model.to_owned());
        }
        context.end(match outcome {
            Ok(result) => match (judge_stop(result["stopReason"].as_str()), self.hidden_failure()) {
                (ReportedResult::Done, Some(failure)) => ReportedResult::Failed(failure),
                (result, _) => result,
            },
            Err(error) => ReportedResult::Failed(model_failure(error)),
        });
    }
}

/// Returns the failure of a prompt. The status of the model's API may be in the error's code, its data or its message.
fn model_failure(error: &RpcError) -> ReportedError {
    let status = |code: i64| u16::try_from(code).ok().filter(|code| (400..600).contains(code));
    let in_data = error.data.as_ref().filter(|data| check_strict(data.as_bytes()).is_ok());
    let in_data = in_data.and_then(|data| serde_json::from_str::<Value>(data).ok()).and_then(|data| {
        ["status", "statusCode", "httpStatus", "code"].iter().find_map(|name| status(data[*name].as_i64()?))
    });
    let in_text = || {
        let details = error.data.as_deref().and_then(leading_status);
        details.or_else(|| leading_status(&error.message))
    };
    let http_status = status(error.code).or(in_data).or_else(in_text);
    let code = if error.code == AUTH_REQUIRED { ReportedErrorCode::Auth } else { ReportedErrorCode::Other };
    ReportedError { http_status, ..failure(code, error.describe()) }
}

/// Returns the HTTP status at the start of a message, as in `401 Incorrect API key provided`.
fn leading_status(message: &str) -> Option<u16> {
    let (digits, _) = message.trim_start().split_once(' ')?;
    digits.parse().ok().filter(|status| digits.len() == 3 && (400..600).contains(status))
}

/// Returns the result for a stop reason. Only the end of the turn is a success.
fn judge_stop(reason: Option<&str>) -> ReportedResult {
    let (code, message) = match reason {
        Some("end_turn") => return ReportedResult::Done,
        Some("max_tokens") => {
            (ReportedErrorCode::CutOff, "the answer was cut off at the model's token limit".to_owned())
        }
        Some("max_turn_requests") => {
            (ReportedErrorCode::MaxTurns, "the agent reached its limit of requests in a turn".to_owned())
        }
        Some("refusal") => (ReportedErrorCode::Other, "the model refused to answer".to_owned()),
        Some("cancelled") => (ReportedErrorCode::Canceled, "the agent canceled the turn".to_owned()),
        Some(other) => {
            (ReportedErrorCode::Protocol, format!("the turn ended with the unknown stop reason `{other}`"))
        }
        None => (ReportedErrorCode::Protocol, "the reply to the prompt has no stop reason".to_owned()),
    };
    ReportedResult::Failed(failure(code, message))
}
