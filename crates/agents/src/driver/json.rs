//! A JSON reader that skips unneeded values.
//!
//! Owns the hot path: strings are scanned with `memchr`, unneeded values are skipped in place, and needed ones are returned as
//! slices of the line. Not a validator: it rejects lines that it cannot scan (a truncated line, a stray print) and is lenient
//! about the contents of skipped values.
//!
//! With `sonic-rs` 0.5.10 (lazy values, checked) in its place, the streams of `cargo bench -p agents` (claude, codex) are parsed to events at
//! 940 and 602 MB per CPU second instead of 1,447 and 925 (medians of three alternating runs). Alone, this reader walks 2,785 and 2,429 MB/s,
//! lazy values in structs 1,598 and 1,362, and lazy iterators 897 and 951. A library would have to reach 1,000 MB/s with the events. A
//! struct of lazy values also copies every string with escapes.

use std::borrow::Cow;
use std::str::FromStr;

use memchr::{memchr, memrchr};
use model::{AgentText, RawJson, ToolOutput};
use serde::de::IgnoredAny;

/// The structural bytes of a skipped value.
const STRUCTURE: [bool; 256] = {
    let mut table = [false; 256];
    table[b'"' as usize] = true;
    table[b'{' as usize] = true;
    table[b'}' as usize] = true;
    table[b'[' as usize] = true;
    table[b']' as usize] = true;
    table
};

/// The length of a string that is scanned byte by byte.
const SHORT_STRING: usize = 24;

/// The line is not JSON that can be scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

pub(super) type Read<T> = Result<T, Malformed>;

#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Checks that only whitespace follows.
    pub(super) fn end(mut self) -> Read<()> {
        if self.peek().is_none() { Ok(()) } else { Err(Malformed) }
    }

    /// Scans an object and calls `field` with each key. The reader is at the value, which `field` must read or skip.
    pub(super) fn object(&mut self, mut field: impl FnMut(&'a [u8], &mut Self) -> Read<()>) -> Read<()> {
        self.expect(b'{')?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let (key, _) = self.string()?;
            self.expect(b':')?;
            field(key, self)?;
            if !self.comma_or(b'}')? {
                return Ok(());
            }
        }
    }

    /// Like [`Reader::object`], but skips a value of another type.
    pub(super) fn object_if(&mut self, field: impl FnMut(&'a [u8], &mut Self) -> Read<()>) -> Read<()> {
        if self.peek() == Some(b'{') { self.object(field) } else { self.skip() }
    }

    /// Scans an array. Skips a value of another type.
    pub(super) fn array_if(&mut self, mut item: impl FnMut(&mut Self) -> Read<()>) -> Read<()> {
        if self.peek() != Some(b'[') {
            return self.skip();
        }
        self.at += 1;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            if !self.comma_or(b']')? {
                return Ok(());
            }
        }
    }

    /// Returns a string to decode later. Skips a value of another type and returns `None`.
    pub(super) fn text(&mut self) -> Read<Option<AgentText<'a>>> {
        if self.peek() != Some(b'"') {
            return self.skip().map(|()| None);
        }
        let (inside, has_escapes) = self.string()?;
        Ok(Some(AgentText::from_json_string(inside, has_escapes)))
    }

    /// Returns the contents of a string without escapes, such as a type. `None` for any other value.
    pub(super) fn plain_string(&mut self) -> Read<Option<&'a [u8]>> {
        if self.peek() != Some(b'"') {
            return self.skip().map(|()| None);
        }
        self.string().map(|(inside, _)| Some(inside))
    }

    /// Returns whether the value is `true`.
    pub(super) fn is_true(&mut self) -> Read<bool> {
        self.raw().map(|raw| raw == b"true")
    }

    /// Returns a boolean. `None` for any other value, including the string "true".
    pub(super) fn boolean(&mut self) -> Read<Option<bool>> {
        Ok(match self.raw()? {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        })
    }

    /// Returns an integer. `None` for any other value.
    pub(super) fn integer<T: FromStr>(&mut self) -> Read<Option<T>> {
        let raw = self.raw()?;
        Ok(std::str::from_utf8(raw).ok().and_then(|raw| raw.parse().ok()))
    }

    /// Returns an integer. 0 for any other value.
    pub(super) fn count(&mut self) -> Read<u64> {
        self.integer().map(Option::unwrap_or_default)
    }

    /// Returns a finite, non-negative number. `None` for any other value.
    pub(super) fn amount(&mut self) -> Read<Option<f64>> {
        let number: Option<f64> = self.integer()?;
        Ok(number.filter(|number| number.is_finite() && *number >= 0.0))
    }

    pub(super) fn raw_json(&mut self) -> Read<RawJson<'a>> {
        self.raw().map(RawJson::from_bytes)
    }

    /// Returns a tool's output: a string as text, any other value as JSON.
    pub(super) fn tool_output(&mut self) -> Read<ToolOutput<'a>> {
        match self.peek() {
            Some(b'"') => Ok(self.text()?.map_or(ToolOutput::Nothing, ToolOutput::Text)),
            Some(b'n') => self.skip().map(|()| ToolOutput::Nothing),
            _ => self.raw_json().map(ToolOutput::Json),
        }
    }

    /// Returns the source of the value.
    pub(super) fn raw(&mut self) -> Read<&'a [u8]> {
        self.peek();
        let start = self.at;
        self.skip()?;
        Ok(&self.bytes[start..self.at])
    }

    /// Skips a value. Not recursive, so nesting depth is unlimited.
    pub(super) fn skip(&mut self) -> Read<()> {
        match self.peek().ok_or(Malformed)? {
            b'"' => self.string().map(drop),
            b'{' | b'[' => self.skip_nested(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            b'-' | b'0'..=b'9' => {
                let rest = &self.bytes[self.at..];
                let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                self.at += rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
                Ok(())
            }
            _ => Err(Malformed),
        }
    }

    /// Skips the rest of the line's object. Checks only that the line is not truncated.
    pub(super) fn skip_rest(&mut self) -> Read<()> {
        match self.bytes.split_last() {
            Some((b'}', rest)) if rest.len() >= self.at => {
                self.at = rest.len();
                Ok(())
            }
            _ => Err(Malformed),
        }
    }

    fn skip_nested(&mut self) -> Read<()> {
        let mut depth = 0_usize;
        loop {
            let rest = self.bytes.get(self.at..).ok_or(Malformed)?;
            let next = rest.iter().position(|&byte| STRUCTURE[usize::from(byte)]).ok_or(Malformed)?;
            self.at += next;
            match rest[next] {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                _ => depth -= 1,
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn literal(&mut self, word: &[u8]) -> Read<()> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    /// Scans a string. Returns its contents and whether it contains escapes.
    fn string(&mut self) -> Read<(&'a [u8], bool)> {
        self.expect(b'"')?;
        let start = self.at;
        // Keys and ids are short and plain; a `memchr` call costs more than it saves.
        let near = &self.bytes[start..self.bytes.len().min(start + SHORT_STRING)];
        match near.iter().position(|&byte| byte == b'"' || byte == b'\\') {
            Some(end) if near[end] == b'"' => {
                self.at = start + end + 1;
                Ok((&near[..end], false))
            }
            _ => self.long_string(start),
        }
    }

    /// Scans a long string by its quotes and counts the backslashes before each: text has many escaped newlines and few quotes.
    fn long_string(&mut self, start: usize) -> Read<(&'a [u8], bool)> {
        let mut from = start;
        loop {
            let quote = from + memchr(b'"', self.bytes.get(from..).ok_or(Malformed)?).ok_or(Malformed)?;
            let inside = &self.bytes[start..quote];
            let backslashes = inside.iter().rev().take_while(|&&byte| byte == b'\\').count();
            from = quote + 1;
            if backslashes % 2 == 0 {
                self.at = from;
                // From the back: a text with escapes usually has one near its end.
                return Ok((inside, memrchr(b'\\', inside).is_some()));
            }
        }
    }

    fn expect(&mut self, byte: u8) -> Read<()> {
        if self.peek() != Some(byte) {
            return Err(Malformed);
        }
        self.at += 1;
        Ok(())
    }

    /// Returns whether another item follows before `close`.
    fn comma_or(&mut self, close: u8) -> Read<bool> {
        let next = self.peek().ok_or(Malformed)?;
        self.at += 1;
        match next {
            b',' => Ok(true),
            next if next == close => Ok(false),
            _ => Err(Malformed),
        }
    }

    /// Returns the next byte that is not whitespace.
    fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            if !byte.is_ascii_whitespace() {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }
}

/// Rejects a line that is not strictly valid JSON. For lines that decide the outcome: the lenient scan does not notice damage in
/// skipped values, and the relevant ones may be damaged as well.
///
/// Accepts lone surrogates and invalid UTF-8: real agents print both, and decoding replaces them. Allocates nothing and does not
/// recurse.
pub(super) fn check_strict(bytes: &[u8]) -> Read<()> {
    serde_json::from_slice::<IgnoredAny>(bytes).map(drop).map_err(|_| Malformed)
}

/// Replaces escapes of lone surrogates by `U+FFFD`.
pub(super) fn replace_lone_surrogates(raw: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(raw);
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return text;
    }
    let mut whole = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        whole.push_str(before);
        let (kept, used) = match (surrogate(escape), escape.get(6..).and_then(surrogate)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => (&escape[..12], 12),
            (Some(_), _) => ("\\ufffd", 6),
            // Copy the escaped character, too, or an escaped backslash would start another escape.
            (None, _) => {
                let used = 1 + escape[1..].chars().next().map_or(0, char::len_utf8);
                (&escape[..used], used)
            }
        };
        whole.push_str(kept);
        rest = &escape[used..];
    }
    whole.push_str(rest);
    Cow::Owned(whole)
}

/// Returns the surrogate escape at the start of a text.
fn surrogate(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok().filter(|unit| (0xD800..=0xDFFF).contains(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Read<Vec<(String, String)>> {
        let mut seen = Vec::new();
        let mut reader = Reader::new(json.as_bytes());
        reader.object(|key, value| {
            let raw = value.raw()?;
            seen.push((String::from_utf8_lossy(key).into(), String::from_utf8_lossy(raw).into()));
            Ok(())
        })?;
        reader.end()?;
        Ok(seen)
    }

    #[test]
    fn every_json_value_is_skipped_exactly() {
        let json = r#" { "a" : "x\"}\\" , "b":[1,{"c":"]"}], "d":-1.5e3,"e":null,"f":true,"g":{} } "#;
        let expected = [
            ("a", r#""x\"}\\""#),
            ("b", r#"[1,{"c":"]"}]"#),
            ("d", "-1.5e3"),
            ("e", "null"),
            ("f", "true"),
            ("g", "{}"),
        ];
        let seen = fields(json).unwrap();
        assert_eq!(seen, expected.map(|(key, raw)| (key.to_owned(), raw.to_owned())));
    }

    #[test]
    fn truncated_json_is_malformed() {
        let json = r#"{"a":"x\n","b":[1,{"c":"]"}],"d":-1,"e":null}"#;
        for end in 0..json.len() {
            assert_eq!(fields(&json[..end]), Err(Malformed), "{}", &json[..end]);
        }
        assert_eq!(fields("{}x"), Err(Malformed));
        assert_eq!(fields("Memory is currently empty."), Err(Malformed));
    }

    #[test]
    fn skip_rest_detects_truncated_line() {
        let first_key = |json: &'static str| {
            let mut reader = Reader::new(json.as_bytes());
            let mut first = None;
            let read = reader.object(|key, value| {
                first = first.or(Some(key));
                value.skip_rest()
            });
            read.and_then(|()| reader.end()).map(|()| first)
        };
        assert_eq!(first_key(r#"{"a":1,"b":{"c":2}}"#), Ok(Some(b"a".as_slice())));
        assert_eq!(first_key(r#"{"a":1,"b":{"c":"#), Err(Malformed));
    }

    #[test]
    fn only_lone_surrogates_are_replaced() {
        for (raw, expected) in [
            (r#""a\ud83d""#, r#""a\ufffd""#),
            (r#""\uDE00\ud83d\ude00!""#, r#""\ufffd\ud83d\ude00!""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\\ud83d \n\"\u00e9""#, r#""\\ud83d \n\"\u00e9""#),
            (r#""\ud83dé""#, r#""\ufffdé""#),
        ] {
            assert_eq!(replace_lone_surrogates(raw.as_bytes()), expected);
            serde_json::from_str::<String>(&replace_lone_surrogates(raw.as_bytes())).unwrap();
        }
    }

    #[test]
    fn strict_check_rejects_leniently_skipped_json() {
        for bad in
            ["{\"a\":\"\t\"}", r#"{"a":1.2.3}"#, r#"{"a":[1}]}"#, r#"{"a":"\q"}"#, r#"{"a":{"b"}}"#, "{}{}"]
        {
            assert_eq!(check_strict(bad.as_bytes()), Err(Malformed), "{bad}");
        }
        for good in [r#"{"a":"\ud83d"}"#, r#"{"a":1e999}"#] {
            assert_eq!(check_strict(good.as_bytes()), Ok(()), "{good}");
        }
        assert_eq!(check_strict(b"{\"a\":\"\xff\"}"), Ok(()));
    }

    #[test]
    fn nesting_depth_uses_no_stack() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
        assert_eq!(check_strict(deep.as_bytes()), Ok(()));
        assert_eq!(fields(&deep).unwrap().len(), 1);
    }
}
