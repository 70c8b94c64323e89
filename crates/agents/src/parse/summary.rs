//! What the outcome needs to know of a stream, gathered while it is read, in bounded memory.

use model::{AgentText, PermissionDenial, Usage};

/// How much of stray output is kept, how many denials, and how much of one message.
const STRAY_BYTES: usize = 16 << 10;
const MAX_DENIALS: usize = 100;

/// What an agent's stream came to, in one vocabulary for all agents.
#[derive(Debug, Default)]
pub struct Summary {
    /// The id of the session that the agent named last.
    pub session_id: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// The version of the agent, where it says so.
    pub agent_version: Option<String>,
    /// The agent's own last word; none when the stream ended without one.
    pub said: Option<Said>,
    /// Tokens, as this agent counts them (see [`crate::judge`]).
    pub usage: Option<Usage>,
    /// Cost, as this agent counts it.
    pub cost_usd: Option<f64>,
    /// Cost of this run alone, where the agent tells it apart.
    pub run_cost_usd: Option<f64>,
    /// Turns of the model.
    pub turns: Option<u32>,
    /// What the agent was not allowed to do. At most 100.
    pub denials: Vec<PermissionDenial>,
    /// The answer that fits the schema, as JSON text.
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
    stray: String,
    last_text: LastText,
}

/// An agent's own last word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// It is done, and all is well.
    Done,
    /// It failed.
    Failed(Complaint),
}

/// What an agent says about its failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// What kind of failure the agent itself calls it.
    pub code: ComplaintCode,
    /// The HTTP status of its model's API.
    pub http_status: Option<u16>,
    /// Its own words.
    pub words: String,
}

/// The kinds of failures that an agent tells apart by a code, and not only in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComplaintCode {
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

    /// The agent's last text, with its middle left out when it is over the limit.
    pub fn text(&self) -> String {
        self.last_text.told().0
    }

    /// How many bytes were left out of [`Summary::text`].
    pub fn text_cut(&self) -> u64 {
        self.last_text.told().1
    }

    /// What was no JSON: the first 16 KiB of it.
    pub fn stray(&self) -> &str {
        &self.stray
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.stray.capacity() + self.last_text.held_bytes()
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
        if self.denials.len() < MAX_DENIALS && self.denials.iter().all(is_new) {
            self.denials.push(denial);
        }
    }

    /// A whole text: it takes the place of the one before.
    pub(super) fn saw_text(&mut self, text: &AgentText<'_>) {
        self.last_text.replace(text);
    }

    /// A piece of a text that is not whole yet.
    pub(super) fn saw_piece(&mut self, text: &AgentText<'_>) {
        self.last_text.append(&text.decode());
    }

    /// What comes next is another text.
    pub(super) fn end_text(&mut self) {
        self.last_text.open = false;
    }
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

    fn append(&mut self, text: &str) {
        if !self.open {
            self.whole.clear();
            self.pieces.clear();
            self.open = true;
        }
        self.pieces.push(text, self.cap / 2);
    }

    fn held_bytes(&self) -> usize {
        self.whole.capacity() + self.pieces.head.capacity() + self.pieces.tail.capacity()
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
    fn stray_output_is_kept_up_to_its_limit() {
        let mut summary = Summary::new(1000);
        for _ in 0..1000 {
            summary.saw_stray(&"not json at all ".repeat(10).as_str().into());
        }
        assert!(summary.stray().len() <= STRAY_BYTES);
        assert_eq!(summary.stray_lines, 1000);
    }
}
