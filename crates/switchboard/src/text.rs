//! Makes text of agents harmless for a person's eye. Everything that an agent writes is hostile input, file names too.
//!
//! Owns which characters are replaced: escape sequences are dropped, other controls and characters that change the direction or the
//! lines of a text are shown by name. Everything that reaches a terminal passes [`for_terminal`], which the command line calls before it prints; a
//! page shows [`visible`] text, and maud keeps it from becoming markup.

use std::borrow::Cow;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// Switches all colors and styles off.
const RESET: &str = "0";

/// The colors and styles of our own that a terminal is sent, clap's among them: all that an agent could ever forge.
const OWN_STYLES: [&str; 7] = [RESET, "1", "4", "31", "32", "33", "36"];

/// Returns a text without anything that hides or pretends.
pub fn visible(text: &str) -> Cow<'_, str> {
    sanitized(text, None)
}

/// Returns what of a text may reach a terminal: the same, and our own colors. A color that a text leaves on is switched off at its end.
pub fn for_terminal(text: &str) -> Cow<'_, str> {
    sanitized(text, Some(&OWN_STYLES))
}

fn sanitized<'a>(text: &'a str, styles: Option<&[&str]>) -> Cow<'a, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text.chars().peekable());
    let mut is_styled = false;
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => match skip_sequence(&mut rest) {
                Some(style) if styles.is_some_and(|own| own.contains(&style.as_str())) => {
                    is_styled = style != RESET;
                    // Writing to a string does not fail.
                    let _ = write!(shown, "\u{1b}[{style}m");
                }
                _ => {}
            },
            // The end of a line as some write it.
            '\r' if rest.peek() == Some(&'\n') => {}
            '\0'..='\u{1f}' if is_hidden(c) => shown.extend(char::from_u32(u32::from(c) + 0x2400)),
            '\u{7f}' => shown.push('␡'),
            c if is_hidden(c) => {
                let _ = write!(shown, "⟨U+{:04X}⟩", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    if is_styled {
        // Before the end of the line, which a terminal would fill with the color.
        let at = shown.trim_end_matches('\n').len();
        shown.insert_str(at, &format!("\u{1b}[{RESET}m"));
    }
    Cow::Owned(shown)
}

/// Whether a character is a control, ends a line unseen, changes the direction in which a line is read, takes no room, looks like a space and
/// is none, or spells words that nobody sees (tags). Not the joiners, without which some scripts and symbols fall apart.
fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e007f}')
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}')
}

/// Passes over an escape sequence, and returns its parameters if it sets a style.
fn skip_sequence(rest: &mut Peekable<Chars<'_>>) -> Option<String> {
    match rest.peek() {
        Some('[') => {
            rest.next();
            let mut parameters = String::new();
            while let Some(c) = rest.next_if(|c| matches!(c, '\u{20}'..='\u{3f}')) {
                parameters.push(c);
            }
            return rest
                .next_if(|c| matches!(c, '\u{40}'..='\u{7e}'))
                .filter(|c| *c == 'm')
                .map(|_| parameters);
        }
        // A title, a link, the clipboard: to its end, which is a bell or another escape.
        Some(']' | 'P' | 'X' | '_' | '^') => {
            while rest.next_if(|c| !matches!(c, '\u{7}' | '\u{1b}' | '\n')).is_some() {}
            if rest.next_if_eq(&'\u{1b}').is_some() {
                rest.next_if_eq(&'\\');
            } else {
                rest.next_if_eq(&'\u{7}');
            }
        }
        Some('\u{20}'..='\u{7e}') => drop(rest.next()),
        _ => {}
    }
    None
}

/// The same text with at most that many characters, and how many are missing.
pub fn cut(text: &str, most: usize) -> (&str, usize) {
    match text.char_indices().nth(most) {
        Some((at, _)) => (&text[..at], text[at..].chars().count()),
        None => (text, 0),
    }
}

/// In one line, at most that long.
pub fn one_line(text: &str, most: usize) -> String {
    let words = visible(text).split_whitespace().collect::<Vec<_>>().join(" ");
    match cut(&words, most) {
        (_, 0) => words,
        (head, _) => format!("{head}…"),
    }
}

/// A word as a shell takes it.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Abbreviates a large number: `12.4k`, `1.3M`.
pub fn brief(number: u64) -> String {
    let in_tenths = |unit: u64| (number * 10 + unit / 2) / unit;
    let (tenths, unit) = match number {
        ..1_000 => return number.to_string(),
        1_000..999_950 => (in_tenths(1_000), "k"),
        _ => (in_tenths(1_000_000), "M"),
    };
    match (tenths / 10, tenths % 10) {
        (whole @ ..100, rest @ 1..) => format!("{whole}.{rest}{unit}"),
        (whole, _) => format!("{whole}{unit}"),
    }
}

/// Formats an amount of money with as many digits as it needs.
pub fn dollars(sum: f64) -> String {
    match sum {
        100.0.. => format!("${sum:.0}"),
        1.0.. => format!("${sum:.2}"),
        0.01.. => format!("${sum:.3}"),
        0.0001.. => format!("${sum:.4}"),
        _ if sum > 0.0 => "<$0.0001".to_owned(),
        _ => "$0".to_owned(),
    }
}

/// Formats a count with its noun.
pub fn counted(number: u32, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Returns the note about secrets that were taken out of a prompt, for a call that has not ended.
pub fn redactions_note(redactions: usize) -> String {
    let was = if redactions == 1 { "secret was" } else { "secrets were" };
    format!("{redactions} {was} taken out of the prompt before it was kept or passed on")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_gone_and_what_hides_is_shown() {
        assert_eq!(visible("plain\n\ttext äöü 👩‍🔧"), "plain\n\ttext äöü 👩‍🔧");
        assert_eq!(visible("\u{1b}[31;1mred\u{1b}[0m \u{1b}]0;title\u{7}x\u{1b}]8;;u\u{1b}\\y"), "red xy");
        assert_eq!(visible("a\r\nb\rc\0\u{8}\u{7f}\u{9b}"), "a\nb␍c␀␈␡⟨U+009B⟩");
        assert_eq!(visible("user\u{202e}nimda\u{2028}x"), "user⟨U+202E⟩nimda⟨U+2028⟩x");
        assert_eq!(visible("a\u{e0041}b"), "a⟨U+E0041⟩b");
        for unseen in "\u{ad}\u{34f}\u{115f}\u{180e}\u{200b}\u{2060}\u{3164}\u{feff}".chars() {
            assert_eq!(visible(&format!("a{unseen}b")), format!("a⟨U+{:04X}⟩b", u32::from(unseen)));
        }
    }

    #[test]
    fn terminal_gets_own_colors_and_no_other_sequence() {
        assert_eq!(for_terminal("\u{1b}[32mok\u{1b}[0m"), "\u{1b}[32mok\u{1b}[0m");
        assert_eq!(for_terminal("\u{1b}[0m \u{1b}[1mloud\n"), "\u{1b}[0m \u{1b}[1mloud\u{1b}[0m\n");
        for hostile in
            ["\u{1b}[8m", "\u{1b}[1;31m", "\u{1b}[2J", "\u{1b}]52;c;eA==\u{7}", "\u{1b}Pq\u{1b}\\", "\u{1b}c"]
        {
            assert_eq!(for_terminal(&format!("a{hostile}b")), "ab", "{hostile:?}");
        }
        assert_eq!(for_terminal("\u{9b}2J\u{9d}52;c;eA==\u{9c}"), "⟨U+009B⟩2J⟨U+009D⟩52;c;eA==⟨U+009C⟩");
    }

    #[test]
    fn a_sequence_that_never_ends_takes_no_more_than_its_line() {
        assert_eq!(visible("\u{1b}]0;no end\nnext"), "\nnext");
        assert_eq!(visible("\u{1b}["), "");
        assert_eq!(visible("\u{1b}"), "");
    }

    #[test]
    fn a_cut_falls_between_characters() {
        assert_eq!(cut("äöü", 3), ("äöü", 0));
        assert_eq!(cut("äöü", 1), ("ä", 2));
        assert_eq!(one_line("a\n\n b\u{1b}[2J c", 3), "a b…");
    }

    #[test]
    fn a_folder_with_anything_in_its_name_is_one_word_of_a_shell() {
        assert_eq!(shell_word("/home/ana/shop"), "/home/ana/shop");
        assert_eq!(shell_word("/a b/it's $(x)"), r"'/a b/it'\''s $(x)'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn numbers_are_short_and_small_sums_are_not_rounded_to_nothing() {
        assert_eq!(
            [999, 1_000, 1_250, 99_949, 123_456, 1_250_000].map(brief),
            ["999", "1k", "1.3k", "99.9k", "123k", "1.3M"]
        );
        assert_eq!(
            [250.4, 1.5, 0.042, 0.0012, 0.000_066, 0.0].map(dollars),
            ["$250", "$1.50", "$0.042", "$0.0012", "<$0.0001", "$0"]
        );
        assert_eq!([0, 1, 2].map(|turns| counted(turns, "turn", "turns")), ["0 turns", "1 turn", "2 turns"]);
    }
}
