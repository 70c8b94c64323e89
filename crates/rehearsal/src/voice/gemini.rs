//! `gemini --output-format stream-json`.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{ScriptedFailure, ScriptedFailureKind, ToolCall, VendorExit, Voice, VoiceSession, line};
use crate::json::Object;

pub(super) struct GeminiVoice {
    session: VoiceSession,
}

/// Exit codes of the program itself; the others are an HTTP status modulo 256.
const BAD_RESUME: u8 = 42;
const TURN_LIMIT: u8 = 53;

impl GeminiVoice {
    pub(super) fn new(session: VoiceSession) -> Self {
        Self { session }
    }

    fn message(&mut self, text: &str, out: &mut String) {
        self.session.count_words(text);
        let event = event("message").string("role", "assistant").string("content", text).json("delta", true);
        line(out, &event.done());
    }

    fn tool_use(&mut self, name: &str, parameters: &str, out: &mut String) -> String {
        self.session.count_tool();
        let id = format!("{name}-{}-{}", self.session.milliseconds(), self.session.tool_calls);
        let event = event("tool_use")
            .string("tool_name", name)
            .string("tool_id", &id)
            .json("parameters", parameters)
            .done();
        line(out, &event);
        id
    }

    fn result(&self, error: Option<(&str, &str)>, out: &mut String) {
        let input = self.session.input_tokens();
        let output = self.session.output_tokens();
        let stats = Object::new()
            .json("total_tokens", input + output)
            .json("input_tokens", input)
            .json("output_tokens", output)
            .json("cached", 0)
            .json("input", input)
            .json("duration_ms", self.session.milliseconds())
            .json("tool_calls", self.session.tool_calls)
            .done();
        let mut result = event("result");
        result = match error {
            None => result.string("status", "success"),
            Some((kind, text)) => result
                .string("status", "error")
                .json("error", Object::new().string("type", kind).string("message", text).done()),
        };
        line(out, &result.json("stats", stats).done());
    }
}

impl Voice for GeminiVoice {
    fn open(&mut self, out: &mut String) {
        let init =
            event("init").string("session_id", &self.session.id).string("model", &self.session.model).done();
        line(out, &init);
        let prompt = event("message").string("role", "user").string("content", &self.session.prompt).done();
        line(out, &prompt);
    }

    fn say(&mut self, text: &str, out: &mut String) {
        self.message(text, out);
    }

    /// Thoughts are not part of gemini's stream.
    fn think(&mut self, text: &str, _out: &mut String) {
        self.session.count_words(text);
    }

    fn tool(&mut self, call: &ToolCall, out: &mut String) {
        let id = self.tool_use(&call.name, &call.input.as_object(), out);
        let result = event("tool_result").string("tool_id", &id);
        let result = if call.failed {
            failed(result, "TOOL_EXECUTION_ERROR", &call.result)
        } else {
            result.string("status", "success").string("output", &call.result)
        };
        line(out, &result.done());
    }

    fn deny(&mut self, tool: &str, out: &mut String) {
        let id = self.tool_use(tool, "{}", out);
        let text = format!("Tool execution for {tool} denied by policy.");
        let result = failed(event("tool_result").string("tool_id", &id), "policy_violation", &text);
        line(out, &result.done());
    }

    fn piece(&mut self, text: &str, out: &mut String) {
        self.message(text, out);
    }

    fn end_pieces(&mut self, _whole: &str, _out: &mut String) {}

    /// Prints nothing: gemini reports a retry on stderr only.
    fn retry_notice(&mut self, status: Option<u16>, _out: &mut String) -> Option<String> {
        Some(format!("Attempt 1 failed with status {}. Retrying with backoff...", status.unwrap_or(503)))
    }

    fn finish(&mut self, _text: &str, out: &mut String) {
        self.result(None, out);
    }

    fn fail(&mut self, failure: &ScriptedFailure, out: &mut String) -> VendorExit {
        let (code, text) = match failure.kind {
            ScriptedFailureKind::Auth => (status(401), "API key not valid. Please pass a valid API key."),
            ScriptedFailureKind::RateLimit => {
                (status(429), "Resource has been exhausted (e.g. check quota).")
            }
            ScriptedFailureKind::Overloaded => {
                (status(503), "The model is overloaded. Please try again later.")
            }
            ScriptedFailureKind::Network => (1, "fetch failed"),
            ScriptedFailureKind::Budget => {
                (status(429), "You have exhausted your daily quota on this model.")
            }
            ScriptedFailureKind::SessionNotFound => {
                let text =
                    format!("Error resuming session: Invalid session identifier \"{}\".", self.session.id);
                return VendorExit::complaining(BAD_RESUME, failure.text_or(&text));
            }
            ScriptedFailureKind::Other => (status(500), "the rehearsed error"),
        };
        let text = failure.text_or(text);
        self.result(Some(("Error", &text)), out);
        VendorExit::complaining(code, text)
    }

    fn max_turns(&mut self, out: &mut String) -> VendorExit {
        let text = "Reached max session turns for this session.";
        self.result(Some(("FatalTurnLimitedError", text)), out);
        VendorExit::complaining(TURN_LIMIT, text)
    }
}

fn failed(result: Object, kind: &str, text: &str) -> Object {
    let error = Object::new().string("type", kind).string("message", text).done();
    result.string("status", "error").string("output", text).json("error", error)
}

/// Returns the exit code of an HTTP status: `process.exit` keeps its low byte.
fn status(http: u16) -> u8 {
    http.to_le_bytes()[0]
}

fn event(kind: &str) -> Object {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Object::new().string("type", kind).string("timestamp", &timestamp(now.as_secs(), now.subsec_millis()))
}

/// Formats seconds since 1970 as `2026-01-31T12:00:00.000Z`.
fn timestamp(seconds: u64, millis: u32) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from March, so that the leap day is the last of its year; 719,468 days lie between 1 March of year 0
    // and 1970.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_the_http_status_mod_256() {
        assert_eq!([401, 429, 500, 503].map(status), [145, 173, 244, 247]);
    }

    #[test]
    fn timestamp_handles_leap_years() {
        assert_eq!(timestamp(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(951_782_400, 7), "2000-02-29T00:00:00.007Z");
        assert_eq!(timestamp(1_735_689_599, 999), "2024-12-31T23:59:59.999Z");
        assert_eq!(timestamp(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }
}
