//! A JSON reader that walks over what nobody asked for.
//!
//! Owns the hot path: strings are crossed by `memchr`, values that are not wanted are skipped where they stand, and what
//! is wanted is handed out as a slice of the line. It is not a validator: it refuses what it cannot walk over (a line
//! that was cut, a stray print), and is lenient about the inside of what it skips.

use std::borrow::Cow;
use std::str::FromStr;

use memchr::{memchr, memrchr};
use model::{AgentText, RawJson, ToolOutput};
use serde::de::IgnoredAny;

/// The bytes that matter when a value is skipped.
const STRUCTURE: [bool; 256] = {
    let mut table = [false; 256];
    table[b'"' as usize] = true;
    table[b'{' as usize] = true;
    table[b'}' as usize] = true;
    table[b'[' as usize] = true;
    table[b']' as usize] = true;
    table
};

/// How far a string is searched byte by byte.
const NEAR: usize = 24;

/// The line is no JSON that can be walked over.
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

    /// Nothing but white space may follow.
    pub(super) fn end(mut self) -> Read<()> {
        if self.peek().is_none() { Ok(()) } else { Err(Malformed) }
    }

    /// Walks over an object and shows every key with the reader at its value, which `field` must read or skip.
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

    /// The same, of a value that may be something else, which is skipped.
    pub(super) fn object_if(&mut self, field: impl FnMut(&'a [u8], &mut Self) -> Read<()>) -> Read<()> {
        if self.peek() == Some(b'{') { self.object(field) } else { self.skip() }
    }

    /// Walks over an array, if the value is one.
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

    /// A string as a text to decode later; none of another value, which is skipped.
    pub(super) fn text(&mut self) -> Read<Option<AgentText<'a>>> {
        if self.peek() != Some(b'"') {
            return self.skip().map(|()| None);
        }
        let (inside, has_escapes) = self.string()?;
        Ok(Some(AgentText::from_json_string(inside, has_escapes)))
    }

    /// The inside of a string that needs no decoding, such as a type; none of another value.
    pub(super) fn word(&mut self) -> Read<Option<&'a [u8]>> {
        if self.peek() != Some(b'"') {
            return self.skip().map(|()| None);
        }
        self.string().map(|(inside, _)| Some(inside))
    }

    /// Whether the value is `true`.
    pub(super) fn is_true(&mut self) -> Read<bool> {
        self.raw().map(|raw| raw == b"true")
    }

    /// `true` or `false`; none of another value, the word "true" in quotes included.
    pub(super) fn flag(&mut self) -> Read<Option<bool>> {
        Ok(match self.raw()? {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        })
    }

    /// A whole number; none of another value.
    pub(super) fn whole<T: FromStr>(&mut self) -> Read<Option<T>> {
        let raw = self.raw()?;
        Ok(std::str::from_utf8(raw).ok().and_then(|raw| raw.parse().ok()))
    }

    /// A whole number; 0 of another value.
    pub(super) fn count(&mut self) -> Read<u64> {
        self.whole().map(Option::unwrap_or_default)
    }

    /// An amount, which is neither negative nor beyond all numbers; none of another value.
    pub(super) fn amount(&mut self) -> Read<Option<f64>> {
        let number: Option<f64> = self.whole()?;
        Ok(number.filter(|number| number.is_finite() && *number >= 0.0))
    }

    pub(super) fn raw_json(&mut self) -> Read<RawJson<'a>> {
        self.raw().map(RawJson::from_bytes)
    }

    /// What a tool answered: text as text, everything else as it stands.
    pub(super) fn tool_output(&mut self) -> Read<ToolOutput<'a>> {
        match self.peek() {
            Some(b'"') => Ok(self.text()?.map_or(ToolOutput::Nothing, ToolOutput::Text)),
            Some(b'n') => self.skip().map(|()| ToolOutput::Nothing),
            _ => self.raw_json().map(ToolOutput::Json),
        }
    }

    /// The value as it stands.
    pub(super) fn raw(&mut self) -> Read<&'a [u8]> {
        self.peek();
        let start = self.at;
        self.skip()?;
        Ok(&self.bytes[start..self.at])
    }

    /// Walks over a value. Without recursion, so that depth costs nothing.
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

    /// Leaves out all that is left of the line's own object, when nothing more of it is needed. Looks only whether the
    /// line was cut.
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

    /// Walks over a string: its inside, and whether anything in it is escaped.
    fn string(&mut self) -> Read<(&'a [u8], bool)> {
        self.expect(b'"')?;
        let start = self.at;
        // Keys and ids are short and plain, and end before a search at full width has begun.
        let near = &self.bytes[start..self.bytes.len().min(start + NEAR)];
        match near.iter().position(|&byte| byte == b'"' || byte == b'\\') {
            Some(end) if near[end] == b'"' => {
                self.at = start + end + 1;
                Ok((&near[..end], false))
            }
            _ => self.long_string(start),
        }
    }

    /// Looks for quotes alone, and counts the backslashes before each: text has many escaped newlines and few quotes.
    fn long_string(&mut self, start: usize) -> Read<(&'a [u8], bool)> {
        let mut from = start;
        loop {
            let quote = from + memchr(b'"', self.bytes.get(from..).ok_or(Malformed)?).ok_or(Malformed)?;
            let inside = &self.bytes[start..quote];
            let backslashes = inside.iter().rev().take_while(|&&byte| byte == b'\\').count();
            from = quote + 1;
            if backslashes % 2 == 0 {
                self.at = from;
                // From the back: text that has escapes has most often one near its end.
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

    /// Whether another item follows before `close`.
    fn comma_or(&mut self, close: u8) -> Read<bool> {
        let next = self.peek().ok_or(Malformed)?;
        self.at += 1;
        match next {
            b',' => Ok(true),
            next if next == close => Ok(false),
            _ => Err(Malformed),
        }
    }

    /// The next byte that is no white space.
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

/// Refuses a line that is no JSON to the letter. For the lines that decide what a run came to: the walk is lenient about
/// what it skips, and a line that was damaged there may have been damaged where it counts as well.
///
/// Escapes of lone surrogates and bytes that are not UTF-8 pass: real agents print both, and reading repairs them. Builds
/// nothing and does not recurse.
pub(super) fn strictly(bytes: &[u8]) -> Read<()> {
    serde_json::from_slice::<IgnoredAny>(bytes).map(drop).map_err(|_| Malformed)
}

/// JSON text in which every escape stands for a character: lone surrogates become `U+FFFD`.
pub(super) fn repaired(raw: &[u8]) -> Cow<'_, str> {
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
            // With what it escapes, or an escaped backslash would be taken for the start of another.
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

/// The surrogate that a text begins with, as an escape.
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
    fn every_value_is_walked_over_as_it_stands() {
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
    fn what_was_cut_anywhere_is_malformed() {
        let json = r#"{"a":"x\n","b":[1,{"c":"]"}],"d":-1,"e":null}"#;
        for end in 0..json.len() {
            assert_eq!(fields(&json[..end]), Err(Malformed), "{}", &json[..end]);
        }
        assert_eq!(fields("{}x"), Err(Malformed));
        assert_eq!(fields("Memory is currently empty."), Err(Malformed));
    }

    #[test]
    fn the_rest_of_a_line_is_left_out_unless_it_was_cut() {
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
    fn lone_surrogates_are_repaired_and_nothing_else_is_changed() {
        for (raw, expected) in [
            (r#""a\ud83d""#, r#""a\ufffd""#),
            (r#""\uDE00\ud83d\ude00!""#, r#""\ufffd\ud83d\ude00!""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\\ud83d \n\"\u00e9""#, r#""\\ud83d \n\"\u00e9""#),
            (r#""\ud83dé""#, r#""\ufffdé""#),
        ] {
            assert_eq!(repaired(raw.as_bytes()), expected);
            serde_json::from_str::<String>(&repaired(raw.as_bytes())).unwrap();
        }
    }

    #[test]
    fn strictly_refuses_what_the_walk_is_lenient_about() {
        for bad in
            ["{\"a\":\"\t\"}", r#"{"a":1.2.3}"#, r#"{"a":[1}]}"#, r#"{"a":"\q"}"#, r#"{"a":{"b"}}"#, "{}{}"]
        {
            assert_eq!(strictly(bad.as_bytes()), Err(Malformed), "{bad}");
        }
        for good in [r#"{"a":"\ud83d"}"#, r#"{"a":1e999}"#] {
            assert_eq!(strictly(good.as_bytes()), Ok(()), "{good}");
        }
        assert_eq!(strictly(b"{\"a\":\"\xff\"}"), Ok(()));
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
        assert_eq!(strictly(deep.as_bytes()), Ok(()));
        assert_eq!(fields(&deep).unwrap().len(), 1);
    }
}
