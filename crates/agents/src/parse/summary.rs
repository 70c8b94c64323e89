//! What the outcome needs to know of a stream, gathered while it is read, in bounded memory.

use model::{AgentText, PermissionDenial, Usage};

use super::background::TaskTracker;
use super::refused_paths::RefusedPaths;

/// How much of stray output is kept, and how many denials.
const STRAY_BYTES: usize = 16 << 10;
const MAX_DENIALS: usize = 100;

/// How much is kept of an id or a name, and of a message. Agents write them, and an agent may write anything.
pub(super) const NAME_BYTES: usize = 256;
const MESSAGE_BYTES: usize = 4 << 10;

/// Stands between the answers of two results.
const BETWEEN_ANSWERS: &str = "\n\n";

/// What an agent's stream came to, in one vocabulary for all agents.
#[derive(Debug, Default)]
pub struct Summary {
    /// The id of the session that the agent named last.
    pub session_id: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// The version of the agent, where it says so.
    pub agent_version: Option<String>,
    /// The agent's own last word; none when the stream ended without one. Of two the newer counts. Whether a further
    /// turn has begun since is [`Summary::is_in_further_turn`].
    pub reported: Option<ReportedResult>,
    /// Tokens of all results, as this agent counts them (see [`crate::judge`]).
    pub usage: Option<Usage>,
    /// Cost, as this agent counts it.
    pub cost_usd: Option<f64>,
    /// Cost of this run alone, where the agent tells it apart.
    pub run_cost_usd: Option<f64>,
    /// Turns of the model, over all results.
    pub turns: Option<u32>,
    /// Tasks that go on in the background.
    pub background: TaskTracker,
    /// Writes that failed as those do that a sandbox refuses.
    pub refused_paths: RefusedPaths,
    /// How many notices in a row say that the login was refused (HTTP 401) and the request is retried.
    pub login_refusals: u32,
    /// Whether the agent's newest request to its model failed and is retried.
    pub is_retrying: bool,
    /// What the agent was not allowed to do. At most 100, each with at most 4 KiB of detail.
    pub denials: Vec<PermissionDenial>,
    /// The answer that the agent says fits the schema, as JSON text. No longer than a line may be.
    pub structured_output: Option<String>,
    /// How often it tried again to reach its model.
    pub retries: u32,
    /// The last thing that went wrong on the way, in the agent's own words.
    pub last_trouble: Option<String>,
    /// When the account's limit is reset, in seconds since 1970, when the agent says that it is reached.
    pub limit_resets_at: Option<u64>,
    /// How many lines were read, of any kind.
    pub lines: u64,
    /// How many of them were over the limit.
    pub oversized: u64,
    /// How many of them were no JSON.
    pub stray_lines: u64,
    /// The calls of file tools and of claude's shell that have no result yet.
    pending_calls: Vec<PendingCall>,
    stray: String,
    /// The answers of earlier results of the same run.
    earlier_answers: Pieces,
    /// How many bytes each of them lacks.
    earlier_cut: u64,
    last_text: LastText,
    loss: Loss,
    /// Whether something was said after the last word, which was not kept.
    spoke_on: bool,
    /// Whether a turn has begun since the last word.
    in_further_turn: bool,
}

/// A call of a tool whose result is searched for refused paths.
#[derive(Debug)]
pub(super) struct PendingCall {
    id: String,
    pub(super) tool: String,
    /// The file or the command that it is given, where the call names one.
    pub(super) target: Option<String>,
}

/// Whether a line that could not be read may have held the answer, or a piece of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Loss {
    #[default]
    None,
    /// It may be of the text that is being said.
    OfThisText,
    /// It is of a text that has ended since; the next one is whole again.
    OfTextBefore,
}

/// An agent's own last word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportedResult {
    /// It is done, and all is well.
    Done,
    /// It failed.
    Failed(ReportedError),
    /// It had a last word, but which it was cannot be told. Says why.
    Unreadable(String),
}

/// What an agent says about its failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedError {
    /// What kind of failure the agent itself calls it.
    pub code: ReportedErrorCode,
    /// The HTTP status of its model's API.
    pub http_status: Option<u16>,
    /// Its own words: at most 4 KiB, with the middle left out of longer ones.
    pub words: String,
}

/// The kinds of failures that an agent tells apart by a code, and not only in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedErrorCode {
    /// The turns are used up.
    MaxTurns,
    /// The budget is used up.
    MaxBudget,
    /// The answer never fitted the schema.
    SchemaNotMet,
    /// Anything else.
    Other,
}

impl Summary {
    pub(super) fn new(text_bytes: usize) -> Self {
        Self { last_text: LastText { cap: text_bytes.max(2), ..LastText::default() }, ..Self::default() }
    }

    /// The answers of all results in order, or the last text before there is one, each with its middle left out when it
    /// is over the limit.
    pub fn text(&self) -> String {
        let (mut text, last) = (self.earlier_answers.text(), self.last_text.told().0);
        if !text.is_empty() && !last.is_empty() {
            text.push_str(BETWEEN_ANSWERS);
        }
        text.push_str(&last);
        text
    }

    /// How many bytes were left out of [`Summary::text`].
    pub fn text_cut(&self) -> u64 {
        self.earlier_cut.saturating_add(self.earlier_answers.cut).saturating_add(self.last_text.told().1)
    }

    /// Whether the agent has begun a further turn since its last word, and has not ended it.
    pub fn is_in_further_turn(&self) -> bool {
        self.in_further_turn
    }

    /// What was no JSON: the first 16 KiB of it.
    pub fn stray(&self) -> &str {
        &self.stray
    }

    /// Whether a line that could not be read may have held the answer, so that [`Summary::text`] may be an older text
    /// or have a hole.
    pub fn answer_is_lost(&self) -> bool {
        self.loss != Loss::None
    }

    pub(super) fn held_bytes(&self) -> usize {
        let said = match &self.reported {
            Some(ReportedResult::Failed(ReportedError { words, .. }) | ReportedResult::Unreadable(words)) => {
                words.capacity()
            }
            Some(ReportedResult::Done) | None => 0,
        };
        let names = [&self.session_id, &self.model, &self.agent_version];
        let texts = [&self.structured_output, &self.last_trouble];
        let kept = names.into_iter().chain(texts).flatten().map(String::capacity).sum::<usize>();
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
        self.stray.capacity() + texts + said + kept + denials.sum::<usize>() + work + tools
    }

    pub(super) fn saw_line(&mut self) {
        self.lines += 1;
    }

    pub(super) fn saw_oversized(&mut self) {
        self.lines += 1;
        self.oversized += 1;
    }

    pub(super) fn saw_stray(&mut self, line: &AgentText<'_>) {
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

    pub(super) fn saw_denial(&mut self, denial: PermissionDenial) {
        let is_new =
            |known: &PermissionDenial| known.tool_use_id.is_none() || known.tool_use_id != denial.tool_use_id;
        if self.has_room_for_denials() && self.denials.iter().all(is_new) {
            self.denials.push(denial);
        }
    }

    pub(super) fn has_room_for_denials(&self) -> bool {
        self.denials.len() < MAX_DENIALS
    }

    pub(super) fn saw_call(&mut self, id: &AgentText<'_>, tool: &AgentText<'_>, target: Option<String>) {
        if self.pending_calls.len() < MAX_DENIALS {
            self.pending_calls.push(PendingCall { id: name(id), tool: name(tool), target });
        }
    }

    /// Returns the call that a result is of.
    pub(super) fn take_call(&mut self, id: &AgentText<'_>) -> Option<PendingCall> {
        let at = self.pending_calls.iter().position(|call| *id == *call.id.as_str())?;
        Some(self.pending_calls.remove(at))
    }

    /// A whole text: it takes the place of the one before.
    pub(super) fn saw_text(&mut self, text: &AgentText<'_>) {
        if self.is_over() {
            self.spoke_on = true;
            return;
        }
        self.last_text.replace(text);
        self.loss = Loss::None;
    }

    /// A piece of a text that is not whole yet.
    pub(super) fn saw_piece(&mut self, text: &AgentText<'_>) {
        if self.is_over() {
            self.spoke_on = true;
            return;
        }
        if !self.last_text.open && self.loss == Loss::OfTextBefore {
            self.loss = Loss::None;
        }
        self.last_text.append(&text.decode());
    }

    /// What comes next is another text.
    pub(super) fn end_text(&mut self) {
        self.last_text.open = false;
        if self.loss == Loss::OfThisText {
            self.loss = Loss::OfTextBefore;
        }
    }

    /// A line that may have held the answer could not be read. After the agent's last word none is expected.
    pub(super) fn lost_text(&mut self) {
        if self.is_over() {
            self.spoke_on = true;
        } else {
            self.loss = Loss::OfThisText;
        }
    }

    /// Whether the agent has had its last word, and no further turn has begun since.
    fn is_over(&self) -> bool {
        self.reported.is_some() && !self.in_further_turn
    }

    pub(super) fn has_text(&self) -> bool {
        !self.last_text.is_empty()
    }

    /// Another last word comes, which takes the place of the one before. It is about what was said in between, too, and
    /// that was not kept.
    pub(super) fn take_back_said(&mut self) -> Option<ReportedResult> {
        if std::mem::take(&mut self.spoke_on) {
            self.loss = Loss::OfThisText;
        }
        self.reported.take()
    }

    /// Begins a further turn after a last word, unless that has happened. An answer that was given is kept; text of a turn
    /// that failed is not.
    pub(super) fn begin_further_turn(&mut self) {
        if self.reported.is_none() || self.in_further_turn {
            return;
        }
        self.in_further_turn = true;
        if self.reported == Some(ReportedResult::Done) {
            let (answer, cut) = self.last_text.told();
            self.earlier_cut = self.earlier_cut.saturating_add(cut);
            let half = self.last_text.cap / 2;
            if !self.earlier_answers.is_empty() && !answer.is_empty() {
                self.earlier_answers.push(BETWEEN_ANSWERS, half);
            }
            self.earlier_answers.push(&answer, half);
        }
        self.last_text.clear();
        self.loss = Loss::None;
    }

    /// Takes the last word of a turn. The answers of the turns before it are kept.
    pub(super) fn end_turn(&mut self, said: ReportedResult) {
        self.in_further_turn = false;
        self.background.answered();
        self.reported = Some(said);
    }

    /// The agent begins anew: what it said before is neither its last word nor its answer.
    pub(super) fn begin_turn(&mut self) {
        self.reported = None;
        self.spoke_on = false;
        self.last_text.clear();
        self.loss = Loss::None;
    }
}

/// An id or a name, as far as it is kept.
pub(super) fn name(text: &AgentText<'_>) -> String {
    head(text, NAME_BYTES)
}

/// A tool that was denied, as far as it is kept.
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

/// What an agent says of a trouble, as far as it is kept. Both ends of it: agents name what happened first, and how long
/// to wait last.
pub(super) fn words(text: &str) -> String {
    const GAP: &str = " … ";
    if text.len() <= MESSAGE_BYTES {
        return text.to_owned();
    }
    let half = (MESSAGE_BYTES - GAP.len()) / 2;
    let (first, last) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    [&text[..first], GAP, &text[last..]].concat()
}

/// The newest text. Most texts are replaced by the next, so a whole one is kept as it stood and decoded at the end.
#[derive(Debug, Default)]
struct LastText {
    cap: usize,
    whole: Vec<u8>,
    whole_is_escaped: bool,
    pieces: Pieces,
    /// Whether a piece that comes now belongs to the pieces that are kept.
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

    /// The text, and how many bytes are left out of it.
    fn told(&self) -> (String, u64) {
        if self.whole.is_empty() {
            return (self.pieces.text(), self.pieces.cut);
        }
        let whole = AgentText::from_json_string(&self.whole, self.whole_is_escaped);
        (whole.decode().into_owned(), 0)
    }
}

/// The head and the tail of a text that may grow for ever, each at most `half` long.
#[derive(Debug, Default)]
struct Pieces {
    head: String,
    tail: String,
    cut: u64,
}

impl Pieces {
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
        // No more than half a cap is ever copied, however long the rest is.
        let skipped = rest.ceil_char_boundary(rest.len().saturating_sub(half));
        if skipped > 0 {
            self.cut += (self.tail.len() + skipped) as u64;
            self.tail.clear();
        }
        let rest = &rest[skipped..];
        let over = (self.tail.len() + rest.len()).saturating_sub(half);
        if over > 0 {
            // The front is dropped a good piece at a time, or each piece would move the whole tail.
            let drop = self.tail.ceil_char_boundary((over + half / 4).min(self.tail.len()));
            self.cut += drop as u64;
            self.tail.drain(..drop);
        }
        self.tail.push_str(rest);
    }

    fn text(&self) -> String {
        if self.cut == 0 {
            return format!("{}{}", self.head, self.tail);
        }
        format!("{}\n[… {} bytes left out …]\n{}", self.head, self.cut, self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_over_the_cap_keeps_head_and_tail_and_names_the_cut() {
        let mut summary = Summary::new(20);
        summary.saw_text(&"0123456789abcdefghijklmnopqrstuvwxyz".into());
        assert_eq!(summary.text(), "0123456789\n[… 16 bytes left out …]\nqrstuvwxyz");
        assert_eq!(summary.text_cut(), 16);
        summary.saw_text(&"short".into());
        assert_eq!((summary.text().as_str(), summary.text_cut()), ("short", 0));
    }

    #[test]
    fn pieces_add_up_and_never_hold_more_than_the_cap() {
        let mut summary = Summary::new(1000);
        for _ in 0..10_000 {
            summary.saw_piece(&"héllo ".into());
            assert!(summary.held_bytes() <= 4000, "{}", summary.held_bytes());
        }
        let kept = summary.text().replace(|c: char| !c.is_ascii_alphabetic(), "").len();
        assert!(kept > 500, "{kept}");
        let kept = (summary.last_text.pieces.head.len() + summary.last_text.pieces.tail.len()) as u64;
        assert_eq!(kept + summary.text_cut(), 70_000);
    }

    #[test]
    fn a_new_text_begins_after_the_old_one_was_ended() {
        let mut summary = Summary::new(1000);
        summary.saw_piece(&"I will ".into());
        summary.saw_piece(&"look.".into());
        summary.end_text();
        assert_eq!(summary.text(), "I will look.");
        summary.saw_piece(&"Done.".into());
        assert_eq!(summary.text(), "Done.");
    }

    #[test]
    fn what_is_kept_is_cut_between_characters() {
        let long = "é".repeat(10_000);
        assert_eq!(name(&format!("x{long}").as_str().into()).len(), NAME_BYTES - 1);
        let told = words(&format!("first {long} last"));
        assert!(told.len() <= MESSAGE_BYTES, "{}", told.len());
        assert!(told.starts_with("first é") && told.ends_with("é last"), "{told}");
    }

    #[test]
    fn a_lost_piece_is_made_good_by_the_next_text_but_not_by_the_rest_of_its_own() {
        let mut summary = Summary::new(1000);
        summary.saw_piece(&"a".into());
        summary.lost_text();
        summary.saw_piece(&"b".into());
        assert!(summary.answer_is_lost());
        summary.end_text();
        assert!(summary.answer_is_lost(), "nothing was said since");
        summary.saw_piece(&"c".into());
        assert!(!summary.answer_is_lost());
    }

    #[test]
    fn stray_output_is_kept_up_to_its_limit() {
        let mut summary = Summary::new(1000);
        for _ in 0..1000 {
            summary.saw_stray(&"not json at all ".repeat(10).as_str().into());
        }
        assert!(summary.stray().len() <= STRAY_BYTES);
        assert_eq!(summary.stray_lines, 1000);
    }
}
