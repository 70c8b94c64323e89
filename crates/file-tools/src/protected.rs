//! Protects file names that other programs execute or load.
//!
//! A process that can write `.git/config` runs commands at the next `git status`. So no part of a path that is written,
//! created, moved or deleted may have one of these names, in any position and spelling. Reading them is allowed.

/// The protected names; comments list the programs that load them.
pub const NAMES: [&str; 7] = [
    // git: hooks, `core.fsmonitor`, filters; as a file it names another directory that has them.
    ".git",
    // Agents: settings, hooks, MCP servers.
    ".claude",
    ".codex",
    ".gemini",
    ".mcp.json",
    // direnv, and editors that open the directory.
    ".envrc",
    ".vscode",
];

/// git treats any directory with `HEAD`, `objects` and `refs` as a repository and loads its `config`. Case-sensitive, since
/// `head` is an ordinary name.
const BARE_REPOSITORY: &[u8] = b"HEAD";

/// The prefixes of these names in file systems with short names: `GIT~1`.
const SHORT: [&str; 7] = ["git", "claude", "codex", "gemini", "mcp", "envrc", "vscode"];

/// Returns whether any file system treats the name as a protected one.
///
/// Folds case, zero-width characters, trailing dots and spaces, streams (`.git::$DATA`) and short names.
pub fn is_protected(name: &[u8]) -> bool {
    let folded = fold(name);
    name == BARE_REPOSITORY || NAMES.contains(&folded.as_str()) || is_short(&folded)
}

fn fold(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let visible = text.chars().filter(|letter| !is_ignorable(*letter));
    let folded: String = visible
        .flat_map(char::to_lowercase)
        .map(|letter| match letter {
            // The only character besides case pairs that folds to a letter of these names.
            'ſ' => 's',
            other => other,
        })
        .collect();
    let stream = folded.split(':').next().unwrap_or_default();
    stream.trim_end_matches(['.', ' ']).to_owned()
}

/// Returns whether Unicode case folding of a file system ignores a character.
fn is_ignorable(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn is_short(folded: &str) -> bool {
    let Some((stem, number)) = folded.split_once('~') else { return false };
    let known = SHORT.iter().any(|name| stem == *name || (stem.len() >= 2 && name.starts_with(stem)));
    known && number.starts_with(|digit: char| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn case_folded_spellings_are_protected() {
        for name in [
            ".git",
            ".GIT",
            ".Git",
            ".git.",
            ".git ",
            ".git. .",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".git::$INDEX_ALLOCATION",
            "git~1",
            "GIT~12",
            "CLAUDE~1",
            "MCP~1.JSO",
            "ENVRC~1",
            "vscode~1",
            ".mcp.JSON",
            ".mcp.json",
            ".vſcode",
            ".vſCODE",
            ".CLAUDE",
            ".Codex",
            ".gemini",
            ".ENVRC",
            "HEAD",
        ] {
            assert!(is_protected(name.as_bytes()), "{name:?}");
        }
    }

    #[test]
    fn ordinary_name_is_not_protected() {
        for name in [
            ".gitignore",
            ".gitattributes",
            ".github",
            "git",
            "claude",
            "CLAUDE.md",
            ".env",
            "mcp.json",
            "HEAD.txt",
            "head.rs",
            "a~1",
            "notes~1.txt",
            "..",
            "head",
            "header",
            ".claude-notes",
        ] {
            assert!(!is_protected(name.as_bytes()), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn protection_ignores_case(which in 0..NAMES.len(), upper in any::<u64>()) {
            let name: String = NAMES[which].chars().enumerate()
                .map(|(at, letter)| if upper >> at & 1 == 1 { letter.to_ascii_uppercase() } else { letter })
                .collect();
            prop_assert!(is_protected(name.as_bytes()));
        }
    }
}
