//! The choice of a driver, and its parameters.

use model::AgentKind;
use serde::{Deserialize, Serialize};

use super::{AcpSpec, AppServerSpec, PlainSpec};

/// The protocol of a run, with the parameters of the conversation. Kept beside the output of the run, for every later reader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "protocol", rename_all = "kebab-case")]
pub enum DriverSpec {
    /// Claude's stream of JSON lines, for one prompt. The rehearsal agent speaks it, too.
    Claude,
    /// Claude's streams of JSON lines in both directions.
    ClaudeLive,
    /// The stream of `codex exec --json`.
    CodexExec,
    /// The protocol of `codex app-server`.
    CodexAppServer(AppServerSpec),
    /// Gemini's stream of JSON lines.
    Gemini,
    /// The Agent Client Protocol.
    Acp(AcpSpec),
    /// No protocol: the output of a command.
    Plain(PlainSpec),
}

impl DriverSpec {
    /// Returns the content of the file beside the output.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Cannot fail: the parameters are text and numbers.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the driver for a single prompt to an agent with a format of its own. Its run needs no file with the spec.
    pub fn one_shot(agent: AgentKind) -> Option<Self> {
        match agent {
            AgentKind::Claude | AgentKind::Rehearsal => Some(Self::Claude),
            AgentKind::Codex => Some(Self::CodexExec),
            AgentKind::Gemini => Some(Self::Gemini),
            AgentKind::Profiled(_) => None,
        }
    }
}
