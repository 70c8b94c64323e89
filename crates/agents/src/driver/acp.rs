//! Speaks the Agent Client Protocol (version 1) for one prompt.
//!
//! Opens a session, sets the model, the effort and the mode, sends the prompt, replies to the agent's requests, and closes the input when
//! the turn has ended. Only the stop reason `end_turn` is a success.
//!
//! Reads single fields instead of the types of `agent-client-protocol-schema`: real agents deviate from the schema (missing ids, `null` for
//! optional lists, methods of their own), and a message with an unknown part still has to be understood.

mod handshake;
mod permission;
mod terminals;
mod turn;
mod update;
mod usage;

use std::time::Duration;

use model::{AgentEvent, AgentText};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::json::{Read, Reader, check_strict};
use super::json_rpc::{Dialect, RpcMessage};
use super::message_context::MessageContext;
use super::outbox::Outbox;
use super::summary::{ReportedError, ReportedErrorCode, Summary};
use super::{Lost, unknown};
use handshake::AgentOffer;
use handshake::SessionOption;
pub use permission::PermissionRule;
pub use turn::ModelErrorReport;
use turn::Turn;
pub use usage::UsageReport;

/// The version of the protocol.
const VERSION: u64 = 1;

/// The numbers of our requests.
const INITIALIZE: u64 = 1;
const OPEN: u64 = 2;
const FENCE: u64 = 3;
const CONFIGURE: u64 = 10;
const PROMPT: u64 = 100;

/// The silence after which the replay of a loaded session is over.
const REPLAY_SILENCE: Duration = Duration::from_millis(250);
/// A request that no agent knows: its reply marks the end of a replay.
const FENCE_METHOD: &str = "_switchboard/fence";

/// The parameters of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AcpSpec {
    /// The working directory.
    pub cwd: String,
    /// Additional directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add_dirs: Vec<String>,
    /// The session to open.
    pub session: AcpSession,
    /// The prompt.
    pub prompt: String,
    /// Images, before the prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<AcpImage>,
    /// MCP servers over stdio.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<AcpServer>,
    /// The model, as the agent names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The effort, as the agent names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The mode of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The reply to permission requests.
    pub permissions: PermissionRule,
    /// The agent runs its commands through the client, which a process beside it does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_terminals: bool,
    /// The meaning of the agent's token counts.
    pub usage: UsageReport,
    /// The report of a failed request to the model.
    #[serde(default, skip_serializing_if = "ModelErrorReport::is_reply")]
    pub errors: ModelErrorReport,
}

/// The session of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcpSession {
    /// A new one.
    New,
    /// An existing one.
    Resume(String),
    /// A copy of an existing one.
    Fork(String),
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcpImage {
    /// Its type, such as `image/png`.
    pub mime_type: String,
    /// Its bytes, in base64.
    pub data: String,
}

/// An MCP server over stdio. Secret variables are not passed here: the input of a run is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcpServer {
    /// The name.
    pub name: String,
    /// The executable.
    pub command: String,
    /// The arguments.
    pub args: Vec<String>,
}

/// The progress of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Initializing,
    Opening,
    /// The agent replays a loaded session, also after its reply.
    Settling,
    /// The request for this option was sent.
    Configuring(usize, &'static str),
    Prompting,
    Ended,
}

#[derive(Debug)]
pub(super) struct Acp {
    spec: AcpSpec,
    step: Step,
    offer: AgentOffer,
    session: String,
    /// The fence after a replay was requested.
    has_fence: bool,
    /// The options of the session, as the agent last listed them: an option may depend on the value of another one.
    options: Value,
    turn: Turn,
}

impl Acp {
    /// Starts a conversation and sends its first request.
    pub(super) fn start(spec: &AcpSpec, summary: &mut Summary, outbox: &mut Outbox) -> Self {
        context(summary, outbox, &mut |_| {}).handshake(
            INITIALIZE,
            "initialize",
            &handshake::initialize(spec),
        );
        Self {
            spec: spec.clone(),
            step: Step::Initializing,
            offer: AgentOffer::default(),
            session: String::new(),
            has_fence: false,
            options: Value::Null,
            turn: Turn::new(spec.usage, spec.errors),
        }
    }

    /// Returns the silence to wait for before [`Acp::on_silence`].
    pub(super) fn awaits_silence(&self) -> Option<Duration> {
        (self.step == Step::Settling && !self.has_fence).then_some(REPLAY_SILENCE)
    }

    /// Marks the end of a replay: the prompt follows the reply.
    pub(super) fn on_silence(&mut self, outbox: &mut Outbox) {
        if self.step == Step::Settling {
            self.has_fence = true;
            outbox.send(&Dialect::Standard.request(FENCE, FENCE_METHOD, &json!({})));
        }
    }

    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        summary: &mut Summary,
        outbox: &mut Outbox,
        on_event: &mut impl FnMut(AgentEvent<'_>),
    ) -> Read<()> {
        let (message, bytes) = RpcMessage::find(bytes)?;
        if message.method == Some(b"session/update") {
            return self.update(&message, bytes, summary, on_event);
        }
        if message.method == Some(terminals::OUTPUT_METHOD) && self.spec.has_terminals {
            self.turn.terminals.add(message.params.unwrap_or(b"{}"));
            return Ok(());
        }
        let context = &mut context(summary, outbox, on_event);
        match (message.method, message.id) {
            (Some(b"session/request_permission"), Some(id)) => {
                self.permission(id, message.params.unwrap_or(b"{}"), context);
            }
            (Some(method), Some(id)) => {
                context.reject_method(id, method);
                context.emit(unknown(message.method, bytes));
            }
            (Some(_), None) => context.emit(unknown(message.method, bytes)),
            (None, _) => {
                if message.replies_to() == Some(PROMPT) {
                    check_strict(bytes)?;
                }
                self.reply(&message, context);
            }
        }
        Ok(())
    }

    /// Classifies an unreadable line. Without a reply that is lost, the conversation would wait forever.
    pub(super) fn lost(&self, bytes: &[u8], outbox: &mut Outbox) -> Lost {
        let message = RpcMessage::parse_start(bytes);
        match message.method {
            Some(b"session/update") => update::lost(bytes),
            Some(_) => Lost::Other,
            None if self.step == Step::Ended || !RpcMessage::is_damaged(bytes) => Lost::Other,
            None => {
                outbox.close();
                Lost::ReplyOrText
            }
        }
    }

    /// Handles the reply to a request.
    fn reply(&mut self, message: &RpcMessage<'_>, context: &mut MessageContext<'_>) {
        let outcome = message.outcome();
        match (message.replies_to(), self.step, outcome) {
            (Some(INITIALIZE), Step::Initializing, Ok(result)) => self.initialized(&result, context),
            (Some(INITIALIZE), Step::Initializing, Err(error)) => {
                self.fail(handshake::rejected("initialize", &error), context);
            }
            (Some(OPEN), Step::Opening, Ok(result)) => self.opened(&result, context),
            (Some(OPEN), Step::Opening, Err(error)) => {
                self.fail(handshake::not_opened(&self.spec, &self.offer, &error), context);
            }
            // An error as a rule. Either way, the replay has ended.
            (Some(FENCE), Step::Settling, _) => self.configure(0, context),
            (Some(id), Step::Configuring(at, method), outcome) if id == CONFIGURE + at as u64 => {
                match outcome {
                    Ok(mut result) => {
                        if result["configOptions"].is_array() {
                            self.options["configOptions"] = result["configOptions"].take();
                        }
                        self.configure(at + 1, context);
                    }
                    Err(error) => self.fail(handshake::not_configured(method, &error), context),
                }
            }
            (Some(PROMPT), Step::Prompting, outcome) => {
                self.step = Step::Ended;
                self.turn.answered(&outcome, context);
            }
            _ => {}
        }
    }

    fn initialized(&mut self, result: &Value, context: &mut MessageContext<'_>) {
        self.offer = AgentOffer::read(result);
        context.summary.agent_version.clone_from(&self.offer.version);
        match handshake::open(&self.spec, &self.offer) {
            Ok((method, params)) => {
                self.step = Step::Opening;
                context.handshake(OPEN, method, &params);
            }
            Err(failure) => self.fail(failure, context),
        }
    }

    fn opened(&mut self, result: &Value, context: &mut MessageContext<'_>) {
        let session = result["sessionId"].as_str().map(str::to_owned);
        let session = session.or_else(|| match &self.spec.session {
            AcpSession::Resume(id) => Some(id.clone()),
            AcpSession::New | AcpSession::Fork(_) => None,
        });
        let Some(session) = session else {
            return self.fail(handshake::without_session(), context);
        };
        let model = handshake::current_model(result);
        context.summary.session_id = Some(session.clone());
        context.summary.model = self.spec.model.clone().or_else(|| model.clone());
        context.emit(AgentEvent::SessionStarted {
            session_id: AgentText::from(session.clone()),
            model: model.map(AgentText::from),
            tools: Vec::new(),
            mcp_servers: Vec::new(),
        });
        self.session = session;
        self.options = result.clone();
        if self.offer.replays(&self.spec.session) {
            // The agent may go on replaying. The request for the fence follows a silence.
            self.step = Step::Settling;
        } else {
            self.configure(0, context);
        }
    }

    /// Sets the next option from this one on that has another value, or sends the prompt.
    fn configure(&mut self, from: usize, context: &mut MessageContext<'_>) {
        match self.next_option(from) {
            Ok(None) => {}
            Ok(Some((at, method, params))) => {
                self.step = Step::Configuring(at, method);
                return context.handshake(CONFIGURE + at as u64, method, &params);
            }
            Err(failure) => return self.fail(failure, context),
        }
        self.step = Step::Prompting;
        context.summary.unanswered = None;
        let images = self
            .spec
            .images
            .iter()
            .map(|image| json!({ "type": "image", "mimeType": image.mime_type, "data": image.data }));
        let text = json!({ "type": "text", "text": self.spec.prompt });
        let prompt: Vec<Value> = images.chain([text]).collect();
        context.request(PROMPT, "session/prompt", &json!({ "sessionId": self.session, "prompt": prompt }));
    }

    /// Returns the request for the next option that has another value, and the number of that option.
    fn next_option(&self, from: usize) -> Result<Option<(usize, &'static str, Value)>, ReportedError> {
        let AcpSpec { mode, model, effort, .. } = &self.spec;
        let wanted =
            [(&SessionOption::MODE, mode), (&SessionOption::MODEL, model), (&SessionOption::EFFORT, effort)];
        for (at, (choice, value)) in wanted.into_iter().enumerate().skip(from) {
            let Some(value) = value else { continue };
            match handshake::choose(&self.session, &self.options, choice, value) {
                Ok(Some((method, params))) => return Ok(Some((at, method, params))),
                Ok(None) => {}
                // A preference of the profile and not of the caller: in any other mode the agent asks, and is allowed.
                Err(_) if at == 0 => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(None)
    }

    fn fail(&mut self, failure: ReportedError, context: &mut MessageContext<'_>) {
        self.step = Step::Ended;
        context.fail(failure);
    }
}

fn context<'a>(
    summary: &'a mut Summary,
    outbox: &'a mut Outbox,
    on_event: &'a mut dyn FnMut(AgentEvent<'_>),
) -> MessageContext<'a> {
    MessageContext { dialect: Dialect::Standard, summary, outbox, on_event }
}

/// Returns a failure without a status of the model's API.
fn failure(code: ReportedErrorCode, message: impl Into<String>) -> ReportedError {
    ReportedError { code, http_status: None, message: super::summary::message(&message.into()) }
}

/// Returns a text field of a JSON object.
fn text_field<'a>(raw: &'a [u8], name: &[u8]) -> Option<AgentText<'a>> {
    let mut found = None;
    let read = Reader::new(raw).object_if(|key, value| {
        if key == name {
            found = value.text()?;
            return Ok(());
        }
        value.skip()
    });
    read.ok().and(found)
}
