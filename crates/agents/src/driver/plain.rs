//! Reads a command that speaks no protocol: its stdout has the answer, and its exit code tells whether it succeeded.

use model::{AgentEvent, AgentText, TextPart};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::summary::{ExitRule, Summary};

/// The limit of an output from which a field is read.
const MAX_JSON_BYTES: usize = 8 << 20;

/// The parameters of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainSpec {
    /// The part of stdout that is the answer.
    pub answer: AnswerRule,
    /// The pointer to the session id, if stdout is a JSON document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// The part of stdout that is the answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerRule {
    /// All of it.
    #[default]
    Stdout,
    /// Its last line that is not blank.
    LastLine,
    /// A field of a JSON document, by its JSON pointer.
    Json(String),
}

#[derive(Debug)]
pub(super) struct Plain {
    spec: PlainSpec,
    /// The document so far, or `None` once it is over the limit.
    document: Option<Vec<u8>>,
    /// The bytes of a character that is not complete yet.
    incomplete: Vec<u8>,
    line: Vec<u8>,
    last_line: Vec<u8>,
}

impl Plain {
    pub(super) fn new(spec: &PlainSpec) -> Self {
        let document = spec.reads_document().then(Vec::new);
        Self { spec: spec.clone(), document, incomplete: Vec::new(), line: Vec::new(), last_line: Vec::new() }
    }

    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        summary: &mut Summary,
        on_event: &mut impl FnMut(AgentEvent<'_>),
    ) {
        if self.spec.reads_document() {
            match &mut self.document {
                Some(document) if document.len() + bytes.len() <= MAX_JSON_BYTES => {
                    document.extend_from_slice(bytes);
                }
                _ => self.document = None,
            }
            return;
        }
        if self.spec.answer == AnswerRule::LastLine {
            self.note_lines(bytes);
        }
        let mut chunk = std::mem::take(&mut self.incomplete);
        chunk.extend_from_slice(bytes);
        let whole = complete_characters(&chunk);
        self.incomplete = chunk.split_off(whole);
        if !chunk.is_empty() {
            let text = AgentText::from_bytes(&chunk);
            if self.spec.answer == AnswerRule::Stdout {
                summary.add_delta(&text);
            }
            on_event(AgentEvent::Text { text, part: TextPart::Partial, within: None });
        }
    }

    fn note_lines(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = MAX_JSON_BYTES.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.trim_ascii().is_empty() {
            self.last_line = line;
        }
    }

    /// Derives the answer and the session.
    pub(super) fn finish(&mut self, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
        let answer = match &self.spec.answer {
            AnswerRule::Stdout => {
                let rest = std::mem::take(&mut self.incomplete);
                summary.add_delta(&AgentText::from_bytes(&rest));
                Ok(None)
            }
            AnswerRule::LastLine => {
                self.end_line();
                Ok(Some(String::from_utf8_lossy(self.last_line.trim_ascii()).into_owned()))
            }
            AnswerRule::Json(pointer) => self.field(pointer).map(Some),
        };
        if let Ok(Some(answer)) = &answer {
            let text = AgentText::from(answer.as_str());
            summary.set_text(&text);
            on_event(AgentEvent::Text { text, part: TextPart::Whole, within: None });
        }
        if let Some(pointer) = &self.spec.session {
            summary.session_id = self.field(pointer).ok().filter(|id| !id.is_empty());
        }
        summary.exit_rule = Some(ExitRule { problem: answer.err() });
    }

    /// Returns a field of the document as text, or the reason why there is none.
    fn field(&self, pointer: &str) -> Result<String, String> {
        let document = self.document.as_ref().ok_or("the output is over 8 MiB")?;
        let document: Value = serde_json::from_slice(document.trim_ascii())
            .map_err(|error| format!("the output is not JSON: {error}"))?;
        match document.pointer(pointer) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Null) | None => Err(format!("the output has no field `{pointer}`")),
            Some(value) => Ok(value.to_string()),
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        let document = self.document.as_ref().map_or(0, Vec::capacity);
        document + self.incomplete.capacity() + self.line.capacity() + self.last_line.capacity()
    }
}

impl PlainSpec {
    fn reads_document(&self) -> bool {
        self.session.is_some() || matches!(self.answer, AnswerRule::Json(_))
    }
}

/// Returns the length of the bytes without an incomplete character at their end.
fn complete_characters(bytes: &[u8]) -> usize {
    let starts = bytes.iter().rev().take(3).position(|byte| !(0x80..0xC0).contains(byte));
    let Some(back) = starts.map(|position| position + 1) else { return bytes.len() };
    let needed = match bytes[bytes.len() - back] {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF7 => 4,
        _ => 1,
    };
    if needed > back { bytes.len() - back } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(answer: AnswerRule, chunks: &[&[u8]]) -> (String, String, Option<String>) {
        let mut plain = Plain::new(&PlainSpec { answer, session: None });
        let (mut summary, mut streamed) = (Summary::new(1 << 20), String::new());
        let mut on_event = |event: AgentEvent<'_>| {
            if let AgentEvent::Text { text, part: TextPart::Partial, .. } = event {
                streamed.push_str(&text.decode());
            }
        };
        for chunk in chunks {
            plain.feed(chunk, &mut summary, &mut on_event);
        }
        plain.finish(&mut summary, &mut on_event);
        let problem = summary.exit_rule.as_ref().and_then(|rule| rule.problem.clone());
        (summary.text(), streamed, problem)
    }

    #[test]
    fn stdout_is_streamed_without_splitting_characters() {
        let (text, streamed, _) =
            run(AnswerRule::Stdout, &[b"gr\xc3", b"\xbc\xc3\x9fe \xf0\x9f", b"\x98\x80\n"]);
        assert_eq!((text.as_str(), streamed.as_str()), ("grüße 😀\n", "grüße 😀\n"));
        assert_eq!(run(AnswerRule::Stdout, &[b"a\xff\xc3"]).0, "a\u{fffd}\u{fffd}");
    }

    #[test]
    fn last_line_skips_blank_lines() {
        let (text, streamed, _) = run(AnswerRule::LastLine, &[b"working\nthe ans", b"wer\n\n  \n"]);
        assert_eq!((text.as_str(), streamed.as_str()), ("the answer", "working\nthe answer\n\n  \n"));
        assert_eq!(run(AnswerRule::LastLine, &[b"one\ntwo"]).0, "two");
    }

    #[test]
    fn field_of_document_is_the_answer() {
        let rule = || AnswerRule::Json("/result/text".to_owned());
        let (text, streamed, problem) = run(rule(), &[b"{\"result\": {\"te", b"xt\": \"done\"}}\n"]);
        assert_eq!((text.as_str(), streamed.as_str(), problem), ("done", "", None));
        assert_eq!(run(rule(), &[b"{}"]).2.as_deref(), Some("the output has no field `/result/text`"));
        assert!(run(rule(), &[b"oops"]).2.unwrap().starts_with("the output is not JSON: "));
        let document = vec![b' '; MAX_JSON_BYTES + 1];
        assert_eq!(run(rule(), &[&document]).2.as_deref(), Some("the output is over 8 MiB"));
    }
}
