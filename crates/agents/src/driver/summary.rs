//! Collects the inputs of the outcome while a stream is parsed, in bounded memory.

use model::{AgentText, PermissionDenial, Usage};

use super::background::TaskTracker;
use super::refused_paths::RefusedPaths;

/// The limits of stray output and of denials.
const STRAY_BYTES: usize = 16 << 10;
const MAX_DENIALS: usize = 100;

/// The limits of a name and of a message. Agents may print anything.
pub(super) const NAME_BYTES: usize = 256;
const MESSAGE_BYTES: usize = 4 << 10;

/// Separates the answers of two results.
const ANSWER_SEPARATOR: &str = "\n\n";

/// The summary of an agent's stream, in one vocabulary for all agents.
#[derive(Debug, Default)]
pub struct Summary {
    /// The last reported session id.
    pub session_id: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// The version of the agent, if it reports it.
    pub agent_version: Option<String>,
    /// The agent's reported result. `None` if the stream ended without one. The last one wins. [`Summary::is_in_further_turn`]
    /// returns whether a further turn has started since.
    pub reported: Option<ReportedResult>,
    /// Tokens of all results, in this agent's way of counting (see [`crate::judge`]).
    pub usage: Option<Usage>,
    /// Cost, in this agent's way of counting.
    pub cost_usd: Option<f64>,
    /// Cost of this run alone, if the agent reports it.
    pub run_cost_usd: Option<f64>,
    /// Turns of the model, over all results.
    pub turns: Option<u32>,
    /// The background tasks.
    pub background: TaskTracker,
    /// Writes that failed with errors that a sandbox causes.
    pub refused_paths: RefusedPaths,
    /// The number of consecutive retries because of a rejected login (HTTP 401).
    pub login_refusals: u32,
    /// The agent's latest request to its model failed and is retried.
    pub is_retrying: bool,
    /// The request of the handshake that the agent has not answered.
    pub unanswered: Option<&'static str>,
    /// The rule for a program without a result of its own, once its output is complete.
    pub exit_rule: Option<ExitRule>,
    /// Denied tools. At most 100, each with at most 4 KiB of detail.
    pub denials: Vec<PermissionDenial>,
    /// The agent's answer to the schema, as JSON. No longer than a line.
    pub structured_output: Option<String>,
    /// The number of retried requests to the model.
    pub retries: u32,
    /// The agent's latest error message.
    pub last_error: Option<String>,
    /// The reset time of an exhausted account limit, in seconds since 1970, if the agent reports it.
    pub limit_resets_at: Option<u64>,
    /// The number of lines.
    pub lines: u64,
    /// The number of lines over the limit.
    pub oversized: u64,
    /// The number of lines that are not JSON.
    pub stray_lines: u64,
    /// Calls of file tools and of claude's shell without a result yet.
    pending_calls: Vec<PendingCall>,
    stray: String,
    /// The answers of earlier results of the run.
    earlier_answers: HeadAndTail,
    /// The number of bytes cut from them.
    earlier_cut: u64,
    last_text: LastText,
    loss: Loss,
    /// Texts after the reported result were dropped.
    has_late_text: bool,
    /// A turn has started since the reported result.
    in_further_turn: bool,
}

/// A tool call whose result is searched for refused paths.
#[derive(Debug)]
pub(super) struct PendingCall {
    id: String,
    pub(super) tool: String,
    /// The file or the command in its arguments, if any.
    pub(super) target: Option<String>,
}

/// Tracks whether an unreadable line may have been a part of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Loss {
    #[default]
    None,
    /// Possibly a part of the current text.
    CurrentText,
    /// A part of a previous text; the current one is complete.
    PreviousText,
}

/// A program that reports no result succeeds with the exit code 0, unless its output has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExitRule {
    /// The reason why there is no answer.
    pub problem: Option<String>,
}

/// The result that an agent reports for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportedResult {
    /// Success.
    Done,
    /// Failure.
    Failed(ReportedError),
    /// A result that cannot be parsed, with the reason.
    Unreadable(String),
}

/// A failure as the agent reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedError {
    /// The agent's classification.
    pub code: ReportedErrorCode,
    /// The HTTP status of the model's API.
    pub http_status: Option<u16>,
    /// The message. At most 4 KiB; longer ones are cut in the middle.
    pub message: String,
}

/// The kinds of failures for which agents have an error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedErrorCode {
    /// The turn limit was reached.
    MaxTurns,
    /// The budget was used up.
    MaxBudget,
    /// The answer never matched the schema.
    SchemaNotMet,
    /// A login is missing.
    Auth,
    /// The session does not exist.
    SessionNotFound,
    /// An option of the call is not available.
    UnsupportedOption,
    /// The turn ended before the answer was complete.
    CutOff,
    /// The agent canceled the turn, which it also does when it is terminated.
    Canceled,
    /// The agent violated its protocol.
    Protocol,
    /// Any other failure.
    Other,
}

impl Summary {
    pub(super) fn new(text_bytes: usize) -> Self {
        Self { last_text: LastText { cap: text_bytes.max(2), ..LastText::default() }, ..Self::default() }
    }

    /// Returns the answers of all results in order, or the latest text before there is one. Each is cut in the middle if it is
    /// over the limit.
    pub fn text(&self) -> String {
        let (mut text, last) = (self.earlier_answers.text(), self.last_text.bounded().0);
        if !text.is_empty() && !last.is_empty() {
            text.push_str(ANSWER_SEPARATOR);
        }
        text.push_str(&last);
        text
    }

    /// Returns the number of bytes cut from [`Summary::text`].
    pub fn text_cut(&self) -> u64 {
        self.earlier_cut
            .saturating_add(self.earlier_answers.shown().1)
            .saturating_add(self.last_text.bounded().1)
    }

    /// Returns whether a further turn has started since the reported result and has not ended.
    pub fn is_in_further_turn(&self) -> bool {
        self.in_further_turn
    }

    /// Returns whether the agent has reported a result and has no running work.
    pub fn has_answered(&self) -> bool {
        self.reported.is_some() && !self.in_further_turn && self.background.running().next().is_none()
    }

    /// Returns the first 16 KiB of stray output.
    pub fn stray(&self) -> &str {
        &self.stray
    }

    /// Returns whether an unreadable line may have been a part of the answer, so that [`Summary::text`] may be outdated or
    /// incomplete.
    pub fn answer_is_lost(&self) -> bool {
        self.loss != Loss::None
    }

    pub(super) fn held_bytes(&self) -> usize {
        let reported = match &self.reported {
            Some(
                ReportedResult::Failed(ReportedError { message, .. }) | ReportedResult::Unreadable(message),
            ) => message.capacity(),
            Some(ReportedResult::Done) | None => 0,
        };
        let names = [&self.session_id, &self.model, &self.agent_version];
        let texts = [&self.structured_output, &self.last_error];
        let stored = names.into_iter().chain(texts).flatten().map(String::capacity).sum::<usize>();
        let denials = self.denials.iter().map(|denial| {
            let texts = [&denial.tool_use_id, &denial.detail];
            denial.tool.capacity() + texts.into_iter().flatten().map(String::capacity).sum::<usize>()
        });
        let texts = self.earlier_answers.held_bytes() + self.last_text.held_bytes();
        let work = self.background.held_bytes() + self.refused_paths.held_bytes();
        let tools = self.pending_calls.iter().map(|PendingCall { id, tool, target }| {
            id.capacity() + tool.capacity() + target.as_ref().map_or(0, String::capacity)
        });
        let tools = tools.sum::<usize>();
        self.stray.capacity() + texts + reported + stored + denials.sum::<usize>() + work + tools
    }

    pub(super) fn count_line(&mut self) {
        self.lines += 1;
    }

    pub(super) fn count_oversized(&mut self) {
        self.lines += 1;
        self.oversized += 1;
    }

    pub(super) fn add_stray(&mut self, line: &AgentText<'_>) {
        self.stray_lines += 1;
        let room = STRAY_BYTES.saturating_sub(self.stray.len() + 1);
        if room > 0 {
            if !self.stray.is_empty() {
                self.stray.push('\n');
            }
            // A character has at most four bytes.
            self.stray.push_str(&line.preview(room / 4));
        }
    }

    pub(super) fn add_denial(&mut self, denial: PermissionDenial) {
        let is_new =
            |known: &PermissionDenial| known.tool_use_id.is_none() || known.tool_use_id != denial.tool_use_id;
        if self.has_room_for_denials() && self.denials.iter().all(is_new) {
            self.denials.push(denial);
        }
    }

    pub(super) fn has_room_for_denials(&self) -> bool {
        self.denials.len() < MAX_DENIALS
    }

    pub(super) fn add_call(&mut self, id: &AgentText<'_>, tool: &AgentText<'_>, target: Option<String>) {
        if self.pending_calls.len() < MAX_DENIALS {
            self.pending_calls.push(PendingCall { id: name(id), tool: name(tool), target });
        }
    }

    /// Removes and returns the call of a result.
    pub(super) fn take_call(&mut self, id: &AgentText<'_>) -> Option<PendingCall> {
        let at = self.pending_calls.iter().position(|call| *id == *call.id.as_str())?;
        Some(self.pending_calls.remove(at))
    }

    /// Records a complete text, which replaces the previous one.
    pub(super) fn set_text(&mut self, text: &AgentText<'_>) {
        if self.is_over() {
            self.has_late_text = true;
            return;
        }
        self.last_text.replace(text);
        self.loss = Loss::None;
    }

    /// Records a delta.
    pub(super) fn add_delta(&mut self, text: &AgentText<'_>) {
        if self.is_over() {
            self.has_late_text = true;
            return;
        }
        if !self.last_text.open && self.loss == Loss::PreviousText {
            self.loss = Loss::None;
        }
        self.last_text.append(&text.decode());
    }

    /// Ends the current text. Returns whether there was one.
    pub(super) fn end_text(&mut self) -> bool {
        let was_open = std::mem::replace(&mut self.last_text.open, false);
        if self.loss == Loss::CurrentText {
            self.loss = Loss::PreviousText;
        }
        was_open
    }

    /// Records an unreadable line that may have been a part of the answer. After the reported result none is expected.
    pub(super) fn mark_text_lost(&mut self) {
        if self.is_over() {
            self.has_late_text = true;
        } else {
            self.loss = Loss::CurrentText;
        }
    }

    /// Returns whether the agent has reported a result and no further turn has started since.
    fn is_over(&self) -> bool {
        self.reported.is_some() && !self.in_further_turn
    }

    pub(super) fn has_text(&self) -> bool {
        !self.last_text.is_empty()
    }

    /// Withdraws the reported result for a newer one, which also covers the dropped texts in between.
    pub(super) fn withdraw_result(&mut self) -> Option<ReportedResult> {
        if std::mem::take(&mut self.has_late_text) {
            self.loss = Loss::CurrentText;
        }
        self.reported.take()
    }

    /// Starts a further turn after a reported result, unless it has started. Stores the answer so far, but not the text of a
    /// failed turn.
    pub(super) fn start_further_turn(&mut self) {
        if self.reported.is_none() || self.in_further_turn {
            return;
        }
        self.in_further_turn = true;
        if self.reported == Some(ReportedResult::Done) {
            let (answer, cut) = self.last_text.bounded();
            self.earlier_cut = self.earlier_cut.saturating_add(cut);
            let half = self.last_text.cap / 2;
            if !self.earlier_answers.is_empty() && !answer.is_empty() {
                self.earlier_answers.push(ANSWER_SEPARATOR, half);
            }
            self.earlier_answers.push(&answer, half);
        }
        self.last_text.clear();
        self.loss = Loss::None;
    }

    /// Records the result of a turn. The answers of earlier turns are retained.
    pub(super) fn end_turn(&mut self, result: ReportedResult) {
        self.in_further_turn = false;
        self.background.answered();
        self.reported = Some(result);
    }

    /// Starts over: earlier results and answers are dropped.
    pub(super) fn start_turn(&mut self) {
        self.reported = None;
        self.has_late_text = false;
        self.last_text.clear();
        self.loss = Loss::None;
    }
}

/// Returns an id or a name, cut to the limit.
pub(super) fn name(text: &AgentText<'_>) -> String {
    head(text, NAME_BYTES)
}

/// Returns a denial, cut to the limits.
pub(super) fn denial(
    tool: Option<&AgentText<'_>>,
    tool_use_id: Option<&AgentText<'_>>,
    detail: Option<&AgentText<'_>>,
) -> PermissionDenial {
    PermissionDenial {
        tool: tool.map(name).unwrap_or_default(),
        tool_use_id: tool_use_id.map(name),
        detail: detail.map(|detail| head(detail, MESSAGE_BYTES)),
    }
}

fn head(text: &AgentText<'_>, limit: usize) -> String {
    let mut kept = text.preview(limit);
    kept.truncate(kept.floor_char_boundary(limit));
    kept.shrink_to_fit();
    kept
}

/// Returns a message, cut in the middle: agents print the cause first and the waiting time last.
pub(super) fn message(text: &str) -> String {
    const GAP: &str = " … ";
    if text.len() <= MESSAGE_BYTES {
        return text.to_owned();
    }
    let half = (MESSAGE_BYTES - GAP.len()) / 2;
    let (first, last) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    [&text[..first], GAP, &text[last..]].concat()
}

/// The latest text. Most texts are replaced by the next, so a complete one is stored undecoded.
#[derive(Debug, Default)]
struct LastText {
    cap: usize,
    whole: Vec<u8>,
    whole_is_escaped: bool,
    pieces: HeadAndTail,
    /// The next delta belongs to the stored ones.
    open: bool,
}

impl LastText {
    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.pieces.is_empty()
    }

    fn replace(&mut self, text: &AgentText<'_>) {
        let (raw, is_escaped) = text.raw();
        self.pieces.clear();
        self.whole.clear();
        if raw.len() > self.cap {
            self.whole.shrink_to(0);
            self.pieces.push(&text.decode(), self.cap / 2);
        } else {
            self.whole.extend_from_slice(raw);
        }
        self.whole_is_escaped = is_escaped;
        self.open = false;
    }

    fn clear(&mut self) {
        self.whole.clear();
        self.pieces.clear();
        self.open = false;
    }

    fn append(&mut self, text: &str) {
        if !self.open {
            self.clear();
            self.open = true;
        }
        self.pieces.push(text, self.cap / 2);
    }

    fn held_bytes(&self) -> usize {
        self.whole.capacity() + self.pieces.held_bytes()
    }

    /// Returns the text and the number of cut bytes.
    fn bounded(&self) -> (String, u64) {
        if self.whole.is_empty() {
            return (self.pieces.text(), self.pieces.shown().1);
        }
        let whole = AgentText::from_json_string(&self.whole, self.whole_is_escaped);
        (whole.decode().into_owned(), 0)
    }
}

/// The head and the tail of an unbounded text, each at most `half` long.
#[derive(Debug, Default)]
struct HeadAndTail {
    head: String,
    tail: String,
    cut: u64,
}

impl HeadAndTail {
    fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    fn held_bytes(&self) -> usize {
        self.head.capacity() + self.tail.capacity()
    }

    fn clear(&mut self) {
        self.head.clear();
        self.tail.clear();
        self.cut = 0;
    }

    fn push(&mut self, text: &str, half: usize) {
        let in_head = self.tail.is_empty() && self.cut == 0;
        let room = if in_head { half.saturating_sub(self.head.len()) } else { 0 };
        let (first, rest) = text.split_at(text.floor_char_boundary(room.min(text.len())));
        self.head.push_str(first);
        self.push_tail(rest, half);
    }

    fn push_tail(&mut self, rest: &str, half: usize) {
        // Copies at most half of the limit, however long the rest is.
        let skipped = rest.ceil_char_boundary(rest.len().saturating_sub(half));
        if skipped > 0 {
            self.cut += (self.tail.len() + skipped) as u64;
            self.tail.clear();
        }
        let rest = &rest[skipped..];
        let over = (self.tail.len() + rest.len()).saturating_sub(half);
        if over > 0 {
            // Drop the front in large steps, or each delta would move the whole tail.
            let drop = self.tail.ceil_char_boundary((over + half / 4).min(self.tail.len()));
            self.cut += drop as u64;
            self.tail.drain(..drop);
        }
        self.tail.push_str(rest);
    }

    fn text(&self) -> String {
        match self.shown() {
            (head, 0, tail) => format!("{head}{tail}"),
            (head, cut, tail) => format!("{head}\n[… {cut} bytes left out …]\n{tail}"),
        }
    }

    /// Returns the head, the number of cut bytes and the tail. Words at the cut are left out as a whole: the rest of a cut secret would not
    /// be recognized and redacted.
    fn shown(&self) -> (&str, u64, &str) {
        if self.cut == 0 {
            return (&self.head, 0, &self.tail);
        }
        let (head, tail) = (without_last_word(&self.head), without_first_word(&self.tail));
        let dropped = self.head.len() - head.len() + self.tail.len() - tail.len();
        (head, self.cut + dropped as u64, tail)
    }
}

/// The maximum length of a word that may be a secret. A longer one is not dropped: a text without blanks would be lost.
const LONGEST_SECRET: usize = 512;

/// Returns the text without its last word, which was cut.
pub(crate) fn without_last_word(text: &str) -> &str {
    let rest = text.trim_end_matches(is_in_word);
    if rest.is_empty() || text.len() - rest.len() > LONGEST_SECRET { text } else { rest }
}

fn without_first_word(text: &str) -> &str {
    let rest = text.trim_start_matches(is_in_word);
    if rest.is_empty() || text.len() - rest.len() > LONGEST_SECRET { text } else { rest }
}

/// Returns whether a secret may contain the character.
fn is_in_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_-.+/=~:".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_keeps_head_and_tail() {
        let mut summary = Summary::new(20);
        summary.set_text(&"0123456789abcdefghijklmnopqrstuvwxyz".into());
        assert_eq!(summary.text(), "0123456789\n[… 16 bytes left out …]\nqrstuvwxyz");
        assert_eq!(summary.text_cut(), 16);
        summary.set_text(&"short".into());
        assert_eq!((summary.text().as_str(), summary.text_cut()), ("short", 0));
    }

    #[test]
    fn deltas_are_joined_within_the_limit() {
        let mut summary = Summary::new(1000);
        for _ in 0..10_000 {
            summary.add_delta(&"héllo ".into());
            assert!(summary.held_bytes() <= 4000, "{}", summary.held_bytes());
        }
        let kept = summary.text().replace(|c: char| !c.is_ascii_alphabetic(), "").len();
        assert!(kept > 500, "{kept}");
        let (head, _, tail) = summary.last_text.pieces.shown();
        assert_eq!((head.len() + tail.len()) as u64 + summary.text_cut(), 70_000);
    }

    #[test]
    fn words_at_the_cut_are_left_out() {
        let secret = "sk-0123456789abcdef";
        for padding in 0..secret.len() {
            let mut summary = Summary::new(200);
            summary.set_text(
                &format!("{}{}", "x".repeat(padding), format!(" {secret}").repeat(40)).as_str().into(),
            );
            let text = summary.text();
            let others = text.replace(secret, "");
            assert!(!others.contains("0123") && !others.contains("cdef"), "{text}");
            assert!(text.contains(secret) && text.contains("bytes left out"), "{text}");
        }
    }

    #[test]
    fn new_text_replaces_ended_text() {
        let mut summary = Summary::new(1000);
        summary.add_delta(&"I will ".into());
        summary.add_delta(&"look.".into());
        summary.end_text();
        assert_eq!(summary.text(), "I will look.");
        summary.add_delta(&"Done.".into());
        assert_eq!(summary.text(), "Done.");
    }

    #[test]
    fn texts_are_cut_at_character_boundaries() {
        let long = "é".repeat(10_000);
        assert_eq!(name(&format!("x{long}").as_str().into()).len(), NAME_BYTES - 1);
        let told = message(&format!("first {long} last"));
        assert!(told.len() <= MESSAGE_BYTES, "{}", told.len());
        assert!(told.starts_with("first é") && told.ends_with("é last"), "{told}");
    }

    #[test]
    fn lost_delta_is_recovered_from_next_full_message() {
        let mut summary = Summary::new(1000);
        summary.add_delta(&"a".into());
        summary.mark_text_lost();
        summary.add_delta(&"b".into());
        assert!(summary.answer_is_lost());
        summary.end_text();
        assert!(summary.answer_is_lost(), "nothing was said since");
        summary.add_delta(&"c".into());
        assert!(!summary.answer_is_lost());
    }

    #[test]
    fn stray_output_is_bounded() {
        let mut summary = Summary::new(1000);
        for _ in 0..1000 {
            summary.add_stray(&"not json at all ".repeat(10).as_str().into());
        }
        assert!(summary.stray().len() <= STRAY_BYTES);
        assert_eq!(summary.stray_lines, 1000);
    }
}
