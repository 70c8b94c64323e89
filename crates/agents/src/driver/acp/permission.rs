//! Replies to permission requests. Options are selected by their kind: their ids differ between agents.

use model::{AgentEvent, AgentText};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Acp;
use crate::driver::message_context::MessageContext;
use crate::driver::summary;

/// The kinds of tools that change nothing.
const READING: [&str; 3] = ["read", "search", "think"];

/// The reply to permission requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionRule {
    /// Allow everything: the sandbox is the limit.
    Allow,
    /// Allow tools that only read.
    ReadOnly,
}

impl PermissionRule {
    fn allows(self, kind: &str) -> bool {
        match self {
            Self::Allow => true,
            Self::ReadOnly => READING.contains(&kind),
        }
    }
}

impl Acp {
    pub(super) fn permission(&self, id: &[u8], params: &[u8], context: &mut MessageContext<'_>) {
        let params: Value = serde_json::from_slice(params).unwrap_or_default();
        let tool = &params["toolCall"];
        let kind = tool["kind"].as_str().unwrap_or_default();
        let is_allowed = self.spec.permissions.allows(kind);
        // A lasting permission could become a setting of the user.
        let wanted =
            if is_allowed { ["allow_once", "allow_always"] } else { ["reject_once", "reject_always"] };
        let chosen = wanted.iter().find_map(|kind| option_of(&params, kind));
        let outcome = match chosen {
            Some(option) => json!({ "outcome": "selected", "optionId": option }),
            None => json!({ "outcome": "cancelled" }),
        };
        if !is_allowed || chosen.is_none() {
            let name = tool["title"].as_str().unwrap_or(kind);
            let id = tool["toolCallId"].as_str().map(AgentText::from);
            let input = (!tool["rawInput"].is_null()).then(|| AgentText::from(tool["rawInput"].to_string()));
            let denial = summary::denial(Some(&name.into()), id.as_ref(), input.as_ref());
            context.summary.add_denial(denial.clone());
            context.emit(AgentEvent::PermissionDenied(denial));
        }
        context.outbox.send(&context.dialect.result(id, &json!({ "outcome": outcome })));
    }
}

fn option_of<'a>(params: &'a Value, kind: &str) -> Option<&'a str> {
    let mut options = params["options"].as_array().into_iter().flatten();
    options.find(|option| option["kind"] == kind)?["optionId"].as_str()
}
