//! Sanitizes text of agents and formats figures.
//!
//! Agent output is hostile input, file names included. Escape sequences are dropped; control characters, bidi overrides and invisible
//! characters are replaced by their names. The terminal prints [`sanitize_for_terminal`] text; the web page shows [`sanitize`] text,
//! which maud escapes.

use std::borrow::Cow;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// The SGR parameter that resets all colors and styles.
const RESET: &str = "0";

/// The SGR parameters that Switchboard and clap print. Agent output may contain them, too: they only color text.
const OWN_STYLES: [&str; 7] = [RESET, "1", "4", "31", "32", "33", "36"];

/// Removes escape sequences and makes invisible characters visible.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    replace_hidden(text, None)
}

/// Sanitizes a text but keeps Switchboard's own colors. A color that is still active at the end of the text is reset there.
pub fn sanitize_for_terminal(text: &str) -> Cow<'_, str> {
    replace_hidden(text, Some(&OWN_STYLES))
}

/// Makes escape characters visible. Unlike [`sanitize`], keeps the rest of each sequence: a reviewer has to see all of a text.
pub fn show_escapes(text: &str) -> String {
    text.replace('\u{1b}', "␛")
}

fn replace_hidden<'a>(text: &'a str, styles: Option<&[&str]>) -> Cow<'a, str> {
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
            // CRLF.
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
        // Before the line feed: a terminal would fill the rest of the line with the color.
        let at = shown.trim_end_matches('\n').len();
        shown.insert_str(at, &format!("\u{1b}[{RESET}m"));
    }
    Cow::Owned(shown)
}

/// Returns whether a character is a control, an invisible line break, a bidi override, zero-width, a space look-alike or a tag character.
/// Zero-width joiners are allowed: scripts and emoji need them.
fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e007f}')
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}')
}

/// Skips an escape sequence and returns its parameters if it is an SGR sequence.
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
        // OSC, DCS, SOS, APC and PM (title, link, clipboard): up to BEL or ST.
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

/// Truncates a text to `max_chars` characters and returns the number of removed ones.
pub fn truncate(text: &str, max_chars: usize) -> (&str, usize) {
    match text.char_indices().nth(max_chars) {
        Some((at, _)) => (&text[..at], text[at..].chars().count()),
        None => (text, 0),
    }
}

/// Sanitizes a text, joins its lines and truncates it to `max_chars` characters.
pub fn to_one_line(text: &str, max_chars: usize) -> String {
    let line = sanitize(text).split_whitespace().collect::<Vec<_>>().join(" ");
    match truncate(&line, max_chars) {
        (_, 0) => line,
        (head, _) => format!("{head}…"),
    }
}

/// Sanitizes a text and replaces line feeds and tabs by spaces. Unlike [`to_one_line`], keeps its length and its spacing.
pub fn strip_control(text: &str) -> String {
    sanitize(text).replace(['\n', '\t'], " ")
}

/// Quotes a text as one word of a POSIX shell.
pub fn shell_quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Abbreviates a large number: `12.4k`, `1.3M`.
pub fn abbreviate(number: u64) -> String {
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
pub fn format_dollars(sum: f64) -> String {
    match sum {
        100.0.. => format!("${sum:.0}"),
        1.0.. => format!("${sum:.2}"),
        0.01.. => format!("${sum:.3}"),
        0.0001.. => format!("${sum:.4}"),
        _ if sum > 0.0 => "<$0.0001".to_owned(),
        _ => "$0".to_owned(),
    }
}

/// Formats a size in bytes: `512 B`, `1.2 MB`.
pub fn format_bytes(number: u64) -> String {
    let tenths = |unit: u64| format!("{}.{}", number / unit, number % unit * 10 / unit);
    match number {
        ..1_000 => format!("{number} B"),
        1_000..1_000_000 => format!("{} kB", tenths(1_000)),
        1_000_000..1_000_000_000 => format!("{} MB", tenths(1_000_000)),
        _ => format!("{} GB", tenths(1_000_000_000)),
    }
}

/// Formats a count with its noun in the singular or plural.
pub fn format_count(number: u32, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Returns the note that secrets were removed from a prompt, for a call that is still running.
pub fn redactions_note(redactions: usize) -> String {
    let was = if redactions == 1 { "secret was" } else { "secrets were" };
    format!("{redactions} {was} taken out of the prompt before it was kept or passed on")
}

/// The maximum number of prefixes in a list of ids.
const MAX_LISTED_IDS: usize = 5;

/// Returns the length of the shortest unique prefixes of these job ids. Ids start with a timestamp, so jobs of one moment need more.
pub fn unique_prefix_length(mut ids: Vec<&str>) -> usize {
    const MIN_LENGTH: usize = 13;
    ids.sort_unstable();
    let shared = |pair: &[&str]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
    ids.windows(2).map(|pair| shared(pair) + 1).max().unwrap_or(0).max(MIN_LENGTH)
}

/// Lists the first of these job ids by unique prefixes.
pub fn list_id_prefixes(ids: &[String]) -> String {
    let length = unique_prefix_length(ids.iter().map(String::as_str).collect());
    let shown: Vec<String> =
        ids.iter().take(MAX_LISTED_IDS).map(|id| id.chars().take(length).collect()).collect();
    let others = if ids.len() > MAX_LISTED_IDS { " and others" } else { "" };
    format!("{}{others}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_has_a_unit() {
        assert_eq!([12, 12_340_000].map(format_bytes), ["12 B", "12.3 MB"]);
    }

    #[test]
    fn sequence_of_shown_escape_stays_visible() {
        let text = "x=1 \u{1b}Pq; hidden\u{1b}[2K\u{7}";
        assert_eq!(sanitize(&show_escapes(text)), "x=1 ␛Pq; hidden␛[2K␇");
    }

    #[test]
    fn escape_sequences_are_dropped_and_invisible_chars_named() {
        assert_eq!(sanitize("plain\n\ttext äöü 👩‍🔧"), "plain\n\ttext äöü 👩‍🔧");
        assert_eq!(sanitize("\u{1b}[31;1mred\u{1b}[0m \u{1b}]0;title\u{7}x\u{1b}]8;;u\u{1b}\\y"), "red xy");
        assert_eq!(sanitize("a\r\nb\rc\0\u{8}\u{7f}\u{9b}"), "a\nb␍c␀␈␡⟨U+009B⟩");
        assert_eq!(sanitize("user\u{202e}nimda\u{2028}x"), "user⟨U+202E⟩nimda⟨U+2028⟩x");
        assert_eq!(sanitize("a\u{e0041}b"), "a⟨U+E0041⟩b");
        for unseen in "\u{ad}\u{34f}\u{115f}\u{180e}\u{200b}\u{2060}\u{3164}\u{feff}".chars() {
            assert_eq!(sanitize(&format!("a{unseen}b")), format!("a⟨U+{:04X}⟩b", u32::from(unseen)));
        }
    }

    #[test]
    fn terminal_text_keeps_only_own_colors() {
        assert_eq!(sanitize_for_terminal("\u{1b}[32mok\u{1b}[0m"), "\u{1b}[32mok\u{1b}[0m");
        assert_eq!(sanitize_for_terminal("\u{1b}[0m \u{1b}[1mloud\n"), "\u{1b}[0m \u{1b}[1mloud\u{1b}[0m\n");
        for hostile in
            ["\u{1b}[8m", "\u{1b}[1;31m", "\u{1b}[2J", "\u{1b}]52;c;eA==\u{7}", "\u{1b}Pq\u{1b}\\", "\u{1b}c"]
        {
            assert_eq!(sanitize_for_terminal(&format!("a{hostile}b")), "ab", "{hostile:?}");
        }
        assert_eq!(
            sanitize_for_terminal("\u{9b}2J\u{9d}52;c;eA==\u{9c}"),
            "⟨U+009B⟩2J⟨U+009D⟩52;c;eA==⟨U+009C⟩"
        );
    }

    #[test]
    fn unterminated_sequence_ends_with_its_line() {
        assert_eq!(sanitize("\u{1b}]0;no end\nnext"), "\nnext");
        assert_eq!(sanitize("\u{1b}["), "");
        assert_eq!(sanitize("\u{1b}"), "");
    }

    #[test]
    fn strip_control_keeps_one_line() {
        assert_eq!(strip_control("a\x1b[2Jb\nc\u{202e}"), "ab c⟨U+202E⟩");
    }

    #[test]
    fn truncation_respects_char_boundaries() {
        assert_eq!(truncate("äöü", 3), ("äöü", 0));
        assert_eq!(truncate("äöü", 1), ("ä", 2));
        assert_eq!(to_one_line("a\n\n b\u{1b}[2J c", 3), "a b…");
    }

    #[test]
    fn shell_quote_handles_spaces_and_quotes() {
        assert_eq!(shell_quote("/home/ana/shop"), "/home/ana/shop");
        assert_eq!(shell_quote("/a b/it's $(x)"), r"'/a b/it'\''s $(x)'");
        assert_eq!(shell_quote(""), "''");
    }

    #[test]
    fn figures_are_short_and_small_sums_are_not_zero() {
        assert_eq!(
            [999, 1_000, 1_250, 99_949, 123_456, 1_250_000].map(abbreviate),
            ["999", "1k", "1.3k", "99.9k", "123k", "1.3M"]
        );
        assert_eq!(
            [250.4, 1.5, 0.042, 0.0012, 0.000_066, 0.0].map(format_dollars),
            ["$250", "$1.50", "$0.042", "$0.0012", "<$0.0001", "$0"]
        );
        assert_eq!(
            [0, 1, 2].map(|turns| format_count(turns, "turn", "turns")),
            ["0 turns", "1 turn", "2 turns"]
        );
    }

    #[test]
    fn ids_are_listed_by_unique_prefixes() {
        let ids = |count: u32| (0..count).map(|n| format!("01a1dde2-0000-700{n}-8000")).collect::<Vec<_>>();
        assert_eq!(list_id_prefixes(&ids(2)), "01a1dde2-0000-7000, 01a1dde2-0000-7001");
        assert!(list_id_prefixes(&ids(6)).ends_with(", 01a1dde2-0000-7004 and others"));
    }
}
