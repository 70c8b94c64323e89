//! No vendor: text for people, and for programs that copy bytes.

use super::{ScriptedFailure, ToolCall, ToolInput, VendorExit, Voice, VoiceSession, line};

pub(super) struct PlainVoice {
    session: VoiceSession,
}

impl PlainVoice {
    pub(super) fn new(session: VoiceSession) -> Self {
        Self { session }
    }
}

impl Voice for PlainVoice {
    fn open(&mut self, _out: &mut String) {}

    fn say(&mut self, text: &str, out: &mut String) {
        line(out, text);
    }

    fn think(&mut self, text: &str, out: &mut String) {
        line(out, &format!("({text})"));
    }

    fn tool(&mut self, call: &ToolCall, out: &mut String) {
        let (ToolInput::Json(input) | ToolInput::Command(input)) = &call.input;
        line(out, &format!("[{} {input}] {}", call.name, call.result));
    }

    fn deny(&mut self, tool: &str, out: &mut String) {
        line(out, &format!("[{tool}] denied"));
    }

    fn piece(&mut self, text: &str, out: &mut String) {
        out.push_str(text);
    }

    fn end_pieces(&mut self, _whole: &str, out: &mut String) {
        out.push('\n');
    }

    fn retry_notice(&mut self, _status: Option<u16>, _out: &mut String) -> Option<String> {
        Some("trying again".to_owned())
    }

    fn finish(&mut self, _text: &str, _out: &mut String) {}

    fn fail(&mut self, failure: &ScriptedFailure, _out: &mut String) -> VendorExit {
        VendorExit::complaining(1, failure.text_or(&format!("the rehearsed {} error", failure.kind.name())))
    }

    fn max_turns(&mut self, _out: &mut String) -> VendorExit {
        let limit = self.session.turn_limit.unwrap_or(1);
        VendorExit::complaining(1, format!("reached the limit of {limit} turns"))
    }
}
