//! Writes JSON: objects field by field, escaped strings, and foreign JSON after a check.
//!
//! Guarantees that every event line is valid JSON. There is no value type and no parser.

use std::fmt::{Display, Write as _};

/// An object under construction; every field is appended to one buffer.
pub(crate) struct Object {
    text: String,
}

impl Object {
    pub(crate) fn new() -> Self {
        let mut text = String::with_capacity(256);
        text.push('{');
        Self { text }
    }

    pub(crate) fn string(mut self, key: &str, value: &str) -> Self {
        self.key(key);
        quote_into(&mut self.text, value);
        self
    }

    /// A value that is already JSON: a nested object, an array, `null`, or anything that prints as a number.
    pub(crate) fn json(mut self, key: &str, value: impl Display) -> Self {
        self.key(key);
        // Writing to a `String` cannot fail.
        let _ = write!(self.text, "{value}");
        self
    }

    pub(crate) fn done(mut self) -> String {
        self.text.push('}');
        self.text
    }

    fn key(&mut self, key: &str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        quote_into(&mut self.text, key);
        self.text.push(':');
    }
}

/// `text` as a JSON string, quotes included.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quote_into(&mut quoted, text);
    quoted
}

/// The strings as a JSON array.
pub(crate) fn array_of_strings<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    array(texts.into_iter().map(quote))
}

/// The values, which are JSON already, as a JSON array.
pub(crate) fn array(values: impl IntoIterator<Item = String>) -> String {
    let mut text = String::from("[");
    for value in values {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&value);
    }
    text.push(']');
    text
}

fn quote_into(out: &mut String, text: &str) {
    out.push('"');
    // Long runs without anything to escape are the rule, so they are copied whole.
    let mut copied = 0;
    for (at, byte) in text.bytes().enumerate() {
        let short = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0x08 => "\\b",
            0x0c => "\\f",
            // DEL is legal in JSON, but a terminal that shows the line should not act on it.
            0x00..=0x1f | 0x7f => "",
            _ => continue,
        };
        out.push_str(&text[copied..at]);
        copied = at + 1;
        if short.is_empty() {
            let _ = write!(out, "\\u{byte:04x}");
        } else {
            out.push_str(short);
        }
    }
    out.push_str(&text[copied..]);
    out.push('"');
}

/// Whether `text` is exactly one JSON object.
pub(crate) fn is_object(text: &str) -> bool {
    let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
    reader.blank();
    reader.peek() == Some(b'{') && reader.value(0) && {
        reader.blank();
        reader.at == reader.bytes.len()
    }
}

/// Deeper input is rejected instead of recursing.
const MAX_DEPTH: usize = 64;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return false;
        }
        match self.peek() {
            Some(b'{') => self.members(b'}', depth, true),
            Some(b'[') => self.members(b']', depth, false),
            Some(b'"') => self.string(),
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn members(&mut self, close: u8, depth: usize, keyed: bool) -> bool {
        self.at += 1;
        self.blank();
        if self.take(close) {
            return true;
        }
        loop {
            self.blank();
            if keyed {
                if self.peek() != Some(b'"') || !self.string() {
                    return false;
                }
                self.blank();
                if !self.take(b':') {
                    return false;
                }
                self.blank();
            }
            if !self.value(depth + 1) {
                return false;
            }
            self.blank();
            if self.take(close) {
                return true;
            }
            if !self.take(b',') {
                return false;
            }
        }
    }

    fn string(&mut self) -> bool {
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'"' => return true,
                b'\\' if !self.escape() => return false,
                0x00..=0x1f => return false,
                _ => {}
            }
        }
        false
    }

    fn escape(&mut self) -> bool {
        let Some(kind) = self.peek() else { return false };
        self.at += 1;
        match kind {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => true,
            b'u' => self.code_point(),
            _ => false,
        }
    }

    /// A lone surrogate is refused: it is grammar, but no reader can make a string of it.
    fn code_point(&mut self) -> bool {
        match self.four_hex_digits() {
            Some(0xd800..=0xdbff) => {
                self.take(b'\\') && self.take(b'u') && matches!(self.four_hex_digits(), Some(0xdc00..=0xdfff))
            }
            Some(0xdc00..=0xdfff) | None => false,
            Some(_) => true,
        }
    }

    fn four_hex_digits(&mut self) -> Option<u16> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        self.at += 4;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    fn word(&mut self, word: &[u8]) -> bool {
        let found = self.bytes[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn number(&mut self) -> bool {
        self.take(b'-');
        let whole = if self.take(b'0') { true } else { self.digits() };
        if !whole || (self.take(b'.') && !self.digits()) {
            return false;
        }
        if self.take(b'e') || self.take(b'E') {
            let _ = self.take(b'+') || self.take(b'-');
            return self.digits();
        }
        true
    }

    fn digits(&mut self) -> bool {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at > start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_character_survives_quoting() {
        let all: String = ('\u{0}'..='\u{ffff}').chain(['😀', '\u{10ffff}']).collect();
        let read: String = serde_json::from_str(&quote(&all)).unwrap();
        assert_eq!(read, all);
    }

    #[test]
    fn control_characters_never_appear_raw() {
        let all: String = ('\u{0}'..='\u{1f}').chain(['\u{7f}']).collect();
        assert!(quote(&all).bytes().all(|byte| (0x20..0x7f).contains(&byte)));
        assert_eq!(quote("a\"\\\n\u{1}z"), r#""a\"\\\n\u0001z""#);
    }

    #[test]
    fn lone_bytes_become_replacement_characters() {
        let text = String::from_utf8_lossy(b"a\xffb\xc3(");
        let read: String = serde_json::from_str(&quote(&text)).unwrap();
        assert_eq!(read, "a\u{fffd}b\u{fffd}(");
    }

    #[test]
    fn an_object_is_what_a_json_reader_reads() {
        let inner = Object::new().string("q\"", "x").done();
        let text = Object::new().string("a", "b").json("n", 1).json("o", inner).json("z", "null").done();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, serde_json::json!({"a": "b", "n": 1, "o": {"q\"": "x"}, "z": null}));
        assert_eq!(Object::new().done(), "{}");
        assert_eq!(array_of_strings(["a", "b"]), r#"["a","b"]"#);
    }

    #[test]
    fn the_check_agrees_with_a_json_reader() {
        let cases = [
            "{}",
            r#"{"a":1}"#,
            r#" {"a" : [1, -0.5e+3, true, false, null, "x\u00e9\ud83d\ude00"] } "#,
            r#"{"a":{"b":{"c":[[[]]]}}}"#,
            "",
            "{",
            "{a:1}",
            r#"{"a":01}"#,
            r#"{"a":1,}"#,
            r#"{"a":.5}"#,
            r#"{"a":1.}"#,
            r#"{"a":1e}"#,
            r#"{"a":"\x"}"#,
            r#"{"a":"\ud83d"}"#,
            r#"{"a":"\ude00"}"#,
            r#"{"a":"\u12"}"#,
            "{\"a\":\"\u{1}\"}",
            r#"{"a":tru}"#,
            r#"{"a":1} x"#,
            r#"{"a" 1}"#,
            r#"{"a":-}"#,
        ];
        for case in cases {
            assert_eq!(is_object(case), serde_json::from_str::<Value>(case).is_ok(), "{case}");
        }
        assert!(!is_object("[1]") && !is_object("1"), "other values are no object");
        assert!(!is_object(&format!("{}1{}", "{\"a\":".repeat(9999), "}".repeat(9999))));
    }
}
