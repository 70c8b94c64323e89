//! The state of a session: ids, model, and the figures of a result.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::rand::GetRandomFlags;

/// One conversation.
pub(crate) struct VoiceSession {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) cwd: String,
    /// The turn limit given on the command line.
    pub(crate) turn_limit: Option<u32>,
    /// The part of the prompt that is plain text.
    pub(crate) prompt: String,
    pub(crate) turns: u32,
    pub(crate) tool_calls: u32,
    spoken: usize,
    prompt_bytes: usize,
    started: Instant,
    seed: u128,
    serial: u128,
}

/// The parameters of a session.
pub(crate) struct SessionOpening {
    pub(crate) id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) turn_limit: Option<u32>,
    pub(crate) cwd: String,
    pub(crate) prompt: String,
    pub(crate) prompt_bytes: usize,
}

impl VoiceSession {
    pub(crate) fn new(opening: SessionOpening) -> Self {
        let seed = random();
        Self {
            id: opening.id.unwrap_or_else(|| uuid(seed)),
            // Not a name of any vendor: a rehearsal must not pass for a real model.
            model: opening.model.unwrap_or_else(|| "rehearsal".to_owned()),
            cwd: opening.cwd,
            turn_limit: opening.turn_limit,
            prompt: opening.prompt,
            turns: 1,
            tool_calls: 0,
            spoken: 0,
            prompt_bytes: opening.prompt_bytes,
            started: Instant::now(),
            seed,
            serial: 0,
        }
    }

    /// Returns an id that is unique over all sessions.
    pub(super) fn next_uuid(&mut self) -> String {
        self.serial += 1;
        // An odd multiplier spreads the serial over all bits and keeps ids distinct.
        uuid(self.seed ^ self.serial.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    /// Returns a short id such as `toolu_…`.
    pub(super) fn next_id(&mut self, prefix: &str) -> String {
        let mut id = prefix.to_owned();
        id.extend(self.next_uuid().chars().filter(|c| *c != '-').take(24));
        id
    }

    pub(super) fn count_words(&mut self, text: &str) {
        self.spoken += text.len();
    }

    pub(super) fn count_tool(&mut self) {
        self.turns += 1;
        self.tool_calls += 1;
    }

    /// Returns an estimate of four bytes per token.
    pub(super) fn input_tokens(&self) -> usize {
        self.prompt_bytes / 4 + 1
    }

    pub(super) fn output_tokens(&self) -> usize {
        self.spoken / 4 + 1
    }

    /// Returns the cost in millionths of a dollar, at three dollars per million input tokens and fifteen per million output
    /// tokens.
    pub(super) fn cost(&self) -> String {
        let micros = self.input_tokens() * 3 + self.output_tokens() * 15;
        format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }

    pub(super) fn milliseconds(&self) -> u128 {
        self.started.elapsed().as_millis()
    }
}

/// Returns the id of a new session.
pub(crate) fn new_session_id() -> String {
    uuid(random())
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    if rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()) == Ok(bytes.len()) {
        return u128::from_ne_bytes(bytes);
    }
    // A sandbox may deny even this; ids only have to differ between runs on one machine.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() << 32 | u128::from(std::process::id())
}

/// Formats the bits as a version 4 UUID.
fn uuid(bits: u128) -> String {
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_uuid_has_version_four() {
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[test]
    fn generated_ids_are_unique() {
        let mut session = VoiceSession::new(SessionOpening {
            id: None,
            model: None,
            turn_limit: None,
            cwd: String::new(),
            prompt: String::new(),
            prompt_bytes: 0,
        });
        let mut ids: Vec<_> = (0..1000).map(|_| session.next_uuid()).collect();
        ids.push(session.id.clone());
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 1001);
    }
}
