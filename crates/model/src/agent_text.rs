//! Strings and JSON values of an agent's stream, decoded on demand.
//!
//! The lazy forms let an event borrow from the line that it was parsed from. Decoding never fails: invalid UTF-8 and invalid
//! escapes are replaced for display.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A string of an agent's stream: plain bytes, or the undecoded contents of a JSON string.
///
/// Equality compares the decoded forms. Serializes and displays as the decoded string.
#[derive(Clone)]
pub struct AgentText<'a>(Form<'a>);

#[derive(Clone)]
enum Form<'a> {
    /// No escapes; may still contain invalid UTF-8.
    Plain(Cow<'a, [u8]>),
    /// The contents of a JSON string, without its quotes.
    Escaped(Cow<'a, [u8]>),
}

impl<'a> AgentText<'a> {
    /// Borrows the contents of a JSON string, without its quotes.
    pub fn from_json_string(inside: &'a [u8], has_escapes: bool) -> Self {
        let inside = Cow::Borrowed(inside);
        Self(if has_escapes { Form::Escaped(inside) } else { Form::Plain(inside) })
    }

    /// Borrows bytes without escapes.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Self(Form::Plain(Cow::Borrowed(bytes)))
    }

    /// Returns the decoded text, with `U+FFFD` in place of invalid UTF-8. Borrows if it can.
    pub fn decode(&self) -> Cow<'_, str> {
        match &self.0 {
            Form::Plain(bytes) => String::from_utf8_lossy(bytes),
            Form::Escaped(bytes) => Cow::Owned(repaired(unescape(bytes, usize::MAX))),
        }
    }

    /// Returns the first `max_chars` characters and decodes no more than those.
    pub fn preview(&self, max_chars: usize) -> String {
        // A character has at most four bytes.
        let enough = max_chars.saturating_mul(4);
        let mut text = match &self.0 {
            Form::Plain(bytes) => String::from_utf8_lossy(&bytes[..bytes.len().min(enough)]).into_owned(),
            Form::Escaped(bytes) => repaired(unescape(bytes, enough)),
        };
        if let Some((cut, _)) = text.char_indices().nth(max_chars) {
            text.truncate(cut);
        }
        text
    }

    /// Returns the raw bytes of the stream, and whether they contain JSON escapes.
    pub fn raw(&self) -> (&[u8], bool) {
        match &self.0 {
            Form::Plain(bytes) => (bytes, false),
            Form::Escaped(bytes) => (bytes, true),
        }
    }

    /// Returns the length in the stream. The decoded text is at most as long, except for replacement characters.
    pub fn raw_len(&self) -> usize {
        self.raw().0.len()
    }

    /// Returns whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.raw_len() == 0
    }

    /// Returns a copy that does not borrow from the line.
    pub fn into_owned(self) -> AgentText<'static> {
        AgentText(match self.0 {
            Form::Plain(bytes) => Form::Plain(Cow::Owned(bytes.into_owned())),
            Form::Escaped(bytes) => Form::Escaped(Cow::Owned(bytes.into_owned())),
        })
    }
}

impl<'a> From<&'a str> for AgentText<'a> {
    fn from(text: &'a str) -> Self {
        Self::from_bytes(text.as_bytes())
    }
}

impl From<String> for AgentText<'_> {
    fn from(text: String) -> Self {
        Self(Form::Plain(Cow::Owned(text.into_bytes())))
    }
}

impl PartialEq for AgentText<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.decode() == other.decode()
    }
}

impl Eq for AgentText<'_> {}

impl PartialEq<str> for AgentText<'_> {
    fn eq(&self, other: &str) -> bool {
        self.decode() == other
    }
}

impl PartialEq<&str> for AgentText<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.decode() == *other
    }
}

impl fmt::Debug for AgentText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.decode(), f)
    }
}

impl fmt::Display for AgentText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.decode())
    }
}

impl Serialize for AgentText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.decode())
    }
}

impl<'de> Deserialize<'de> for AgentText<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// A JSON value in its source form. Serializes as a string that contains JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawJson<'a>(AgentText<'a>);

impl<'a> RawJson<'a> {
    /// Borrows a value from the stream.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Self(AgentText::from_bytes(bytes))
    }

    /// Returns the JSON source.
    pub fn text(&self) -> Cow<'_, str> {
        self.0.decode()
    }

    /// Returns a copy that does not borrow from the line.
    pub fn into_owned(self) -> RawJson<'static> {
        RawJson(self.0.into_owned())
    }
}

impl From<String> for RawJson<'_> {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for RawJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for RawJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        AgentText::deserialize(deserializer).map(Self)
    }
}

/// Converts bytes that are almost always valid UTF-8.
fn repaired(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned())
}

/// Decodes the contents of a JSON string, up to `enough` bytes.
fn unescape(bytes: &[u8], enough: usize) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len().min(enough));
    let mut rest = bytes;
    while !rest.is_empty() && decoded.len() < enough {
        let plain = backslash(rest).unwrap_or(rest.len());
        let taken = plain.min(enough - decoded.len());
        decoded.extend_from_slice(&rest[..taken]);
        rest = &rest[taken..];
        if taken == plain && !rest.is_empty() {
            let (character, used) = escape(&rest[1..]);
            decoded.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            rest = &rest[(1 + used).min(rest.len())..];
        }
    }
    decoded
}

/// Returns the position of the next backslash. Scans eight bytes at a time: tool results are long.
fn backslash(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let (words, _) = bytes.as_chunks::<8>();
    let has_one = |word: &[u8; 8]| {
        let zeros = u64::from_ne_bytes(*word) ^ u64::from_ne_bytes([b'\\'; 8]);
        zeros.wrapping_sub(ONES) & !zeros & HIGHS != 0
    };
    let from = words.iter().position(has_one).unwrap_or(words.len()) * 8;
    bytes[from..].iter().position(|&byte| byte == b'\\').map(|at| from + at)
}

/// Decodes an escape. Returns the character and the number of bytes read after the backslash.
fn escape(after: &[u8]) -> (char, usize) {
    let Some(&first) = after.first() else { return (char::REPLACEMENT_CHARACTER, 0) };
    match first {
        b'n' => ('\n', 1),
        b't' => ('\t', 1),
        b'r' => ('\r', 1),
        b'b' => ('\u{8}', 1),
        b'f' => ('\u{c}', 1),
        b'"' | b'\\' | b'/' => (first.into(), 1),
        b'u' => unicode_escape(after),
        // Invalid JSON. Replace only the backslash, so that a multi-byte character after it survives.
        _ => (char::REPLACEMENT_CHARACTER, 0),
    }
}

fn unicode_escape(after: &[u8]) -> (char, usize) {
    let Some(unit) = hex4(after.get(1..5)) else { return (char::REPLACEMENT_CHARACTER, 1) };
    if let Some(character) = char::from_u32(unit) {
        return (character, 5);
    }
    let low = if after.get(5..7) == Some(b"\\u") { hex4(after.get(7..11)) } else { None };
    match low {
        Some(low @ 0xDC00..=0xDFFF) if unit < 0xDC00 => {
            let point = 0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER), 11)
        }
        _ => (char::REPLACEMENT_CHARACTER, 5),
    }
}

fn hex4(digits: Option<&[u8]>) -> Option<u32> {
    let digits = digits?;
    digits.iter().try_fold(0, |sum, &digit| Some(sum * 16 + char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(inside: &str) -> String {
        AgentText::from_json_string(inside.as_bytes(), true).decode().into_owned()
    }

    #[test]
    fn escapes_decode_like_serde_json() {
        for inside in [
            "",
            "plain",
            r"a\nb\tc\rd\be\ff",
            r#"\"quoted\" \\ \/"#,
            r"\u00e9\u4e2d",
            r"\ud83d\ude00!",
            "héllo \\n 中",
        ] {
            let json = format!("\"{inside}\"");
            assert_eq!(decoded(inside), serde_json::from_str::<String>(&json).unwrap(), "{inside}");
        }
    }

    #[test]
    fn invalid_escapes_are_replaced_without_further_loss() {
        assert_eq!(decoded(r"a\qb"), "a\u{fffd}qb");
        assert_eq!(decoded("tail\\"), "tail\u{fffd}");
        assert_eq!(decoded(r"\ud83dx"), "\u{fffd}x");
        assert_eq!(decoded(r"\u12"), "\u{fffd}12");
        assert_eq!(AgentText::from_bytes(b"a\xffb").decode(), "a\u{fffd}b");
    }

    #[test]
    fn preview_counts_characters_not_bytes() {
        let text = AgentText::from_json_string("中中\\n中中".as_bytes(), true);
        assert_eq!(text.preview(3), "中中\n");
        assert_eq!(text.preview(99), text.decode());
        assert_eq!(AgentText::from("abc").preview(0), "");
    }

    #[test]
    fn agent_text_round_trips_decoded() {
        let text = AgentText::from_json_string(br"a\nb", true);
        let json = serde_json::to_string(&text).unwrap();
        assert_eq!(json, r#""a\nb""#);
        assert_eq!(serde_json::from_str::<AgentText<'_>>(&json).unwrap(), text);
    }
}
