//! The turn of the prompt, from its first update to the reply.

use std::collections::HashMap;

use model::{AgentEvent, Usage};
use serde_json::Value;

use super::terminals::TerminalOutputs;
use super::{UsageReport, failure, usage};
use crate::driver::json::check_strict;
use crate::driver::json_rpc::RpcError;
use crate::driver::message_context::MessageContext;
use crate::driver::summary::{ReportedError, ReportedErrorCode, ReportedResult};

/// The state of the turn.
#[derive(Debug)]
pub(super) struct Turn {
    usage: UsageReport,
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
    /// The command or the file in the arguments.
    pub(super) command: Option<String>,
    pub(super) is_read: bool,
    /// The terminal of the command.
    pub(super) terminal: Option<String>,
}

impl Turn {
    pub(super) fn new(usage: UsageReport) -> Self {
        Self {
            usage,
            counted: None,
            message: None,
            tools: HashMap::new(),
            terminals: TerminalOutputs::default(),
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
            Ok(result) => judge_stop(result["stopReason"].as_str()),
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
    let http_status = status(error.code).or(in_data);
    ReportedError { http_status, ..failure(ReportedErrorCode::Other, error.describe()) }
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
        Some("cancelled") => (ReportedErrorCode::CutOff, "the agent cancelled the turn".to_owned()),
        Some(other) => {
            (ReportedErrorCode::Protocol, format!("the turn ended with the unknown stop reason `{other}`"))
        }
        None => (ReportedErrorCode::Protocol, "the reply to the prompt has no stop reason".to_owned()),
    };
    ReportedResult::Failed(failure(code, message))
}
