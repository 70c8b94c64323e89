//! Splits one line of a script into words.
//!
//! Owns quoting: a word or text in double quotes may contain blanks and the escapes `\n`, `\t`, `\"`, `\\`.

use std::path::PathBuf;
use std::time::Duration;

use crate::measure;
use crate::mistake::Mistake;

/// The rest of a step's line, and its usage for error messages.
pub(crate) struct Words<'a> {
    rest: &'a str,
    usage: &'static str,
}

impl<'a> Words<'a> {
    pub(crate) fn new(line: &'a str) -> Self {
        Self { rest: line.trim(), usage: "" }
    }

    /// Sets the usage for later mistakes.
    pub(crate) fn expect_usage(&mut self, usage: &'static str) {
        self.usage = usage;
    }

    /// Creates a mistake in this step.
    pub(crate) fn mistake(&self, what: impl Into<String>) -> Mistake {
        Mistake::new(what, format!("write `{}`", self.usage))
    }

    /// Returns the next word, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<String>, Mistake> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        if self.rest.starts_with('"') {
            let (word, rest) = unquote(self.rest).ok_or_else(|| self.mistake("a quoted word has no end"))?;
            self.rest = rest.trim_start();
            return Ok(Some(word));
        }
        let (word, rest) = self.rest.split_once(char::is_whitespace).unwrap_or((self.rest, ""));
        self.rest = rest.trim_start();
        Ok(Some(word.to_owned()))
    }

    /// Returns the next word; `what` names it in the error.
    pub(crate) fn word(&mut self, what: &str) -> Result<String, Mistake> {
        self.next()?.ok_or_else(|| self.mistake(format!("{what} is missing")))
    }

    /// Returns the rest of the line, unquoted if it is one quoted text.
    pub(crate) fn text(&mut self) -> String {
        let rest = std::mem::take(&mut self.rest);
        match unquote(rest) {
            Some((text, "")) => text,
            _ => rest.to_owned(),
        }
    }

    /// Returns the rest of the line, which must not be empty; `what` names it in the error.
    pub(crate) fn some_text(&mut self, what: &str) -> Result<String, Mistake> {
        if self.rest.is_empty() {
            return Err(self.mistake(format!("{what} is missing")));
        }
        Ok(self.text())
    }

    /// Splits the rest of the line at the first ` => `.
    pub(crate) fn split_at_arrow(&mut self) -> Option<Self> {
        let (before, after) = self.rest.split_once(" => ")?;
        let after = Self { rest: after.trim(), usage: self.usage };
        self.rest = before.trim();
        Some(after)
    }

    pub(crate) fn path(&mut self, what: &str) -> Result<PathBuf, Mistake> {
        self.word(what).map(PathBuf::from)
    }

    pub(crate) fn number(&mut self, what: &str, max: u64) -> Result<u64, Mistake> {
        let word = self.word(what)?;
        match word.parse() {
            Ok(number) if number <= max => Ok(number),
            _ => Err(self.mistake(format!("{what} `{word}` is not a number from 0 to {max}"))),
        }
    }

    pub(crate) fn size(&mut self, what: &str) -> Result<u64, Mistake> {
        let word = self.word(what)?;
        measure::size(&word).ok_or_else(|| self.mistake(format!("{what} `{word}` is not a size like `64kB`")))
    }

    pub(crate) fn duration(&mut self, what: &str) -> Result<Duration, Mistake> {
        let word = self.word(what)?;
        measure::duration(&word)
            .ok_or_else(|| self.mistake(format!("{what} `{word}` is not a duration like `200ms`")))
    }

    /// Rejects remaining words.
    pub(crate) fn end(&self) -> Result<(), Mistake> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.mistake(format!("unexpected `{}`", self.rest))) }
    }
}

/// Returns the quoted text at the start of `line`, and the rest.
fn unquote(line: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut chars = line.strip_prefix('"')?.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((text, &line[at + 2..])),
            '\\' => match chars.next()?.1 {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                c @ ('"' | '\\') => text.push(c),
                c => text.extend(['\\', c]),
            },
            c => text.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_word_may_contain_blanks_and_escapes() {
        let mut words = Words::new(r#"  a "b \"c\"\n" d  "#);
        assert_eq!(words.next().unwrap().as_deref(), Some("a"));
        assert_eq!(words.next().unwrap().as_deref(), Some("b \"c\"\n"));
        assert_eq!(words.next().unwrap().as_deref(), Some("d"));
        assert_eq!(words.next().unwrap(), None);
        assert!(Words::new("\"open").next().is_err());
    }

    #[test]
    fn text_is_verbatim_unless_fully_quoted() {
        assert_eq!(Words::new(r#""a\tb""#).text(), "a\tb");
        assert_eq!(Words::new(r#""a" and "b""#).text(), r#""a" and "b""#);
        assert_eq!(Words::new(r"back\slash  stays").text(), r"back\slash  stays");
    }

    #[test]
    fn trailing_words_are_rejected() {
        let mut words = Words::new("5 more");
        assert_eq!(words.number("N", 9), Ok(5));
        assert_eq!(words.end().unwrap_err().what, "unexpected `more`");
    }
}
