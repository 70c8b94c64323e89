//! The parts of a conversation that a reply to one message may change.

use model::{AgentEvent, Finish};
use serde_json::Value;

use super::json_rpc::Dialect;
use super::outbox::Outbox;
use super::summary::{ReportedError, ReportedResult, Summary};

pub(super) struct MessageContext<'a> {
    pub(super) dialect: Dialect,
    pub(super) summary: &'a mut Summary,
    pub(super) outbox: &'a mut Outbox,
    pub(super) on_event: &'a mut dyn FnMut(AgentEvent<'_>),
}

impl MessageContext<'_> {
    pub(super) fn emit(&mut self, event: AgentEvent<'_>) {
        (self.on_event)(event);
    }

    /// Sends a request.
    pub(super) fn request(&mut self, id: u64, method: &str, params: &Value) {
        self.outbox.send(&self.dialect.request(id, method, params));
    }

    /// Sends a request of the handshake, which the agent has to answer soon.
    pub(super) fn handshake(&mut self, id: u64, method: &'static str, params: &Value) {
        self.summary.unanswered = Some(method);
        self.request(id, method, params);
    }

    /// Rejects a request that this client does not know. The turn continues.
    pub(super) fn reject_method(&mut self, id: &[u8], method: &[u8]) {
        let message = format!("this client has no method `{}`", String::from_utf8_lossy(method));
        self.outbox.send(&self.dialect.method_not_found(id, &message));
    }

    /// Ends the conversation.
    pub(super) fn end(&mut self, result: ReportedResult) {
        self.summary.unanswered = None;
        self.summary.background.abandoned();
        let how = if result == ReportedResult::Done { Finish::Ok } else { Finish::Error };
        self.summary.end_turn(result);
        self.emit(AgentEvent::Finished { how });
        self.outbox.close();
    }

    /// Ends the conversation with a failure.
    pub(super) fn fail(&mut self, failure: ReportedError) {
        self.end(ReportedResult::Failed(failure));
    }
}
