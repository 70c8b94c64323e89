//! Speaks the protocol of `codex app-server` (tested with 0.166.0) for one prompt.
//!
//! Opens a thread, starts a turn, and closes the input when the turn has ended. Its items are those of `codex exec`, in another spelling.
//! Token counts are those of the thread, over all its processes.

use model::{AgentEvent, AgentText, TextPart, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::codex_exec::{self, Item};
use super::json::{Read, Reader, check_strict};
use super::json_rpc::{Dialect, RpcMessage};
use super::message_context::MessageContext;
use super::outbox::Outbox;
use super::summary::{self, ReportedError, ReportedErrorCode, ReportedResult, Summary};
use super::{Lost, unknown};

/// The numbers of our requests.
const INITIALIZE: u64 = 1;
const THREAD: u64 = 2;
const TURN: u64 = 100;

/// The parameters of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AppServerSpec {
    /// The thread to open.
    pub thread: AppServerThread,
    /// The parameters of the request that opens it: directory, model, sandbox, approvals, instructions.
    pub options: Map<String, Value>,
    /// The prompt.
    pub prompt: String,
    /// The files of images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// The parameters of the turn: effort, schema of the answer.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub turn: Map<String, Value>,
}

/// The thread of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AppServerThread {
    /// A new one.
    New,
    /// An existing one.
    Resume(String),
    /// A copy of an existing one.
    Fork(String),
}

/// The progress of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Initializing,
    Opening,
    Turn,
    Ended,
}

#[derive(Debug)]
pub(super) struct AppServer {
    spec: AppServerSpec,
    step: Step,
}

impl AppServer {
    /// Starts a conversation and sends its first request.
    pub(super) fn start(spec: &AppServerSpec, summary: &mut Summary, outbox: &mut Outbox) -> Self {
        let client =
            json!({ "name": "switchboard", "title": "Switchboard", "version": env!("CARGO_PKG_VERSION") });
        let params = json!({ "clientInfo": client });
        context(summary, outbox, &mut |_| {}).handshake(INITIALIZE, "initialize", &params);
        Self { spec: spec.clone(), step: Step::Initializing }
    }

    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        summary: &mut Summary,
        outbox: &mut Outbox,
        on_event: &mut impl FnMut(AgentEvent<'_>),
    ) -> Read<()> {
        let (message, bytes) = RpcMessage::find(bytes)?;
        let params = message.params.unwrap_or(b"{}");
        match (message.method, message.id) {
            (Some(method), Some(id)) => {
                context(summary, outbox, on_event).reject_method(id, method);
                on_event(unknown(message.method, bytes));
            }
            (Some(b"turn/completed"), None) if self.step == Step::Turn => {
                check_strict(bytes)?;
                let turn = field(params, b"turn", Reader::raw)?.unwrap_or(b"{}");
                let turn = serde_json::from_slice(turn).unwrap_or_default();
                self.ended(&turn, &mut context(summary, outbox, on_event));
            }
            (Some(method), None) => notification(method, params, bytes, summary, on_event)?,
            (None, _) => self.reply(&message, &mut context(summary, outbox, on_event)),
        }
        Ok(())
    }

    /// Classifies an unreadable line. Without a reply or the end of the turn, the conversation would wait forever.
    pub(super) fn lost(&self, bytes: &[u8], outbox: &mut Outbox) -> Lost {
        let message = RpcMessage::parse_start(bytes);
        match message.method {
            _ if self.step == Step::Ended || !RpcMessage::is_damaged(bytes) => Lost::Other,
            Some(b"turn/completed") => {
                outbox.close();
                Lost::LastWord
            }
            None => {
                outbox.close();
                Lost::ReplyOrText
            }
            Some(b"item/completed" | b"item/agentMessage/delta") => Lost::PerhapsText,
            Some(_) => Lost::Other,
        }
    }

    fn reply(&mut self, message: &RpcMessage<'_>, context: &mut MessageContext<'_>) {
        match (message.replies_to(), self.step, message.outcome()) {
            (Some(INITIALIZE), Step::Initializing, Ok(_)) => {
                context.outbox.send(&context.dialect.notification("initialized", None));
                self.step = Step::Opening;
                let (method, params) = self.open();
                context.handshake(THREAD, method, &params);
            }
            (Some(THREAD), Step::Opening, Ok(result)) => self.opened(&result, context),
            (Some(THREAD), Step::Opening, Err(error)) => {
                let message = error.describe();
                let is_unknown =
                    self.spec.thread != AppServerThread::New && message.contains("no rollout found");
                let code =
                    if is_unknown { ReportedErrorCode::SessionNotFound } else { ReportedErrorCode::Other };
                self.fail(code, None, &message, context);
            }
            (Some(INITIALIZE | TURN), Step::Initializing | Step::Turn, Err(error)) => {
                let message = format!("codex rejected a request: {}", error.describe());
                self.fail(ReportedErrorCode::Protocol, None, &message, context);
            }
            _ => {}
        }
    }

    fn open(&self) -> (&'static str, Value) {
        let mut params = self.spec.options.clone();
        let (method, thread) = match &self.spec.thread {
            AppServerThread::New => ("thread/start", None),
            AppServerThread::Resume(id) => ("thread/resume", Some(id)),
            AppServerThread::Fork(id) => ("thread/fork", Some(id)),
        };
        if let Some(id) = thread {
            params.insert("threadId".to_owned(), json!(id));
            // The reply would contain the whole history.
            params.insert("excludeTurns".to_owned(), json!(true));
        }
        (method, Value::Object(params))
    }

    fn opened(&mut self, result: &Value, context: &mut MessageContext<'_>) {
        let Some(thread) = result["thread"]["id"].as_str() else {
            let message = "codex opened a thread without an id";
            return self.fail(ReportedErrorCode::Protocol, None, message, context);
        };
        let model = result["model"].as_str().map(str::to_owned);
        context.summary.session_id = Some(thread.to_owned());
        context.summary.model.clone_from(&model);
        context.summary.unanswered = None;
        context.emit(AgentEvent::SessionStarted {
            session_id: AgentText::from(thread),
            model: model.map(AgentText::from),
            tools: Vec::new(),
            mcp_servers: Vec::new(),
        });
        self.step = Step::Turn;
        let images = self.spec.images.iter().map(|path| json!({ "type": "localImage", "path": path }));
        let text = json!({ "type": "text", "text": self.spec.prompt, "text_elements": [] });
        let mut params = self.spec.turn.clone();
        params.insert("threadId".to_owned(), json!(thread));
        params.insert("input".to_owned(), images.chain([text]).collect());
        context.request(TURN, "turn/start", &Value::Object(params));
    }

    fn ended(&mut self, turn: &Value, context: &mut MessageContext<'_>) {
        context.summary.turns = Some(context.summary.turns.unwrap_or(0).saturating_add(1));
        let error = &turn["error"];
        match turn["status"].as_str() {
            Some("completed") if error.is_null() => {
                self.step = Step::Ended;
                context.end(ReportedResult::Done);
            }
            Some("interrupted") => {
                self.fail(ReportedErrorCode::CutOff, None, "the turn was interrupted", context);
            }
            _ => {
                let (code, status) = classify(&error["codexErrorInfo"]);
                self.fail(code, status, error["message"].as_str().unwrap_or_default(), context);
            }
        }
    }

    fn fail(
        &mut self,
        code: ReportedErrorCode,
        http_status: Option<u16>,
        message: &str,
        context: &mut MessageContext<'_>,
    ) {
        self.step = Step::Ended;
        context.fail(ReportedError { code, http_status, message: summary::message(message) });
    }
}

fn context<'a>(
    summary: &'a mut Summary,
    outbox: &'a mut Outbox,
    on_event: &'a mut dyn FnMut(AgentEvent<'_>),
) -> MessageContext<'a> {
    MessageContext { dialect: Dialect::Bare, summary, outbox, on_event }
}

/// Handles a notification about the thread.
fn notification(
    method: &[u8],
    params: &[u8],
    line: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    match method {
        b"item/started" => codex_exec::started(read_item(params)?, summary, on_event),
        b"item/completed" => {
            note_activity(summary);
            codex_exec::completed(read_item(params)?, line, summary, on_event);
        }
        b"item/agentMessage/delta" => {
            note_activity(summary);
            if let Some(text) = field(params, b"delta", Reader::text)?.flatten() {
                summary.add_delta(&text);
                on_event(AgentEvent::Text { text, part: TextPart::Partial, within: None });
            }
        }
        b"item/reasoning/summaryTextDelta" | b"item/reasoning/textDelta" => {
            if let Some(text) = field(params, b"delta", Reader::text)?.flatten() {
                on_event(AgentEvent::Thinking { text, part: TextPart::Partial });
            }
        }
        b"thread/tokenUsage/updated" => {
            let counts = field(params, b"tokenUsage", Reader::raw)?.unwrap_or(b"{}");
            summary.usage = field(counts, b"total", Reader::raw)?.map(read_usage).transpose()?;
            summary.usage.into_iter().for_each(|usage| on_event(AgentEvent::Usage(usage)));
        }
        b"error" => {
            let error = field(params, b"error", Reader::raw)?.unwrap_or(b"{}");
            let message = field(error, b"message", Reader::text)?.flatten();
            codex_exec::handle_error(message, summary, on_event);
        }
        b"warning" | b"configWarning" | b"deprecationNotice" => {
            let message = field(params, b"message", Reader::text)?.flatten();
            if let Some(message) = message.or(field(params, b"summary", Reader::text)?.flatten()) {
                on_event(AgentEvent::Warning { message });
            }
        }
        // Repeats of items and states.
        _ if is_state(method) => {}
        _ => on_event(unknown(Some(method), line)),
    }
    Ok(())
}

/// Returns the code and the status of a failed turn.
fn classify(info: &Value) -> (ReportedErrorCode, Option<u16>) {
    let status = match info.as_str() {
        Some("unauthorized") => return (ReportedErrorCode::Auth, None),
        Some("usageLimitExceeded" | "rateLimitExceeded") => Some(429),
        Some("serverOverloaded") => Some(529),
        Some("internalServerError") => Some(500),
        _ => info.as_object().and_then(|info| {
            info.values().find_map(|value| u16::try_from(value["httpStatusCode"].as_u64()?).ok())
        }),
    };
    (ReportedErrorCode::Other, status)
}

fn note_activity(summary: &mut Summary) {
    // The model has answered, so its API accepts the login.
    summary.login_refusals = 0;
    summary.is_retrying = false;
}

/// Returns whether a notification only reports a state.
fn is_state(method: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 8] = [
        b"thread/",
        b"turn/",
        b"account/",
        b"remoteControl/",
        b"serverRequest/",
        b"mcpServer/",
        b"hook/",
        b"item/",
    ];
    PREFIXES.iter().any(|prefix| method.starts_with(prefix))
}

/// Reads one field of a JSON object.
fn field<'a, T>(raw: &'a [u8], name: &[u8], read: impl Fn(&mut Reader<'a>) -> Read<T>) -> Read<Option<T>> {
    let mut found = None;
    Reader::new(raw).object_if(|key, value| {
        if key == name {
            found = Some(read(value)?);
            return Ok(());
        }
        value.skip()
    })?;
    Ok(found)
}

fn read_item(params: &[u8]) -> Read<Item<'_>> {
    let raw = field(params, b"item", Reader::raw)?.unwrap_or(b"{}");
    let mut item = Item::default();
    Reader::new(raw).object_if(|key, value| {
        match key {
            b"type" => item.kind = value.plain_string()?.map(exec_kind),
            b"id" => item.id = value.text()?,
            b"text" => item.text = value.text()?,
            b"summary" => item.text = first_text(value.raw()?).or(item.text.take()),
            b"command" | b"arguments" | b"query" | b"changes" => item.input = Some(value.raw()?),
            b"server" => item.server = value.text()?,
            b"tool" => item.tool = value.text()?,
            b"aggregatedOutput" | b"result" => item.output = Some(value.tool_output()?),
            b"error" => item.set_failure(value.tool_output()?),
            b"exitCode" => item.exit_code = value.integer()?,
            b"status" => item.status = value.plain_string()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(item)
}

/// Returns the first text of a list.
fn first_text(raw: &[u8]) -> Option<AgentText<'_>> {
    let mut first = None;
    let read = Reader::new(raw).array_if(|item| {
        first = first.take().or(item.text()?);
        Ok(())
    });
    read.ok().and(first)
}

/// Returns the type of an item as `codex exec` spells it.
fn exec_kind(kind: &[u8]) -> &[u8] {
    match kind {
        b"agentMessage" => b"agent_message",
        b"commandExecution" => b"command_execution",
        b"fileChange" => b"file_change",
        b"mcpToolCall" => b"mcp_tool_call",
        b"webSearch" => b"web_search",
        b"collabToolCall" | b"collabAgentToolCall" => b"collab_tool_call",
        // Not from the model, or without a result.
        b"userMessage" | b"todoList" | b"plan" | b"contextCompaction" => b"todo_list",
        kind => kind,
    }
}

fn read_usage(raw: &[u8]) -> Read<Usage> {
    let mut usage = Usage::default();
    Reader::new(raw).object_if(|key, value| {
        match key {
            b"inputTokens" => usage.input = value.count()?,
            b"outputTokens" => usage.output = value.count()?,
            b"cachedInputTokens" => usage.cached = value.count()?,
            b"reasoningOutputTokens" => usage.reasoning = value.count()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(usage)
}
