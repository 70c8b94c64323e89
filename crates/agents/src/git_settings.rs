//! The git settings that a sandboxed agent inherits from the user: identity and text conversion.
//!
//! The user's configuration file is hidden, because it may contain credential helpers, tokens in URLs, and commands. Includes are
//! not followed. Reads the file system.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

use regular_file::open_linked;

/// The inherited settings. None of them runs a command or contains a secret.
const PASSED_ON: &[&str] = &[
    "core.autocrlf",
    "core.eol",
    "core.excludesfile",
    "core.quotepath",
    "core.safecrlf",
    "diff.algorithm",
    "fetch.prune",
    "init.defaultbranch",
    "merge.conflictstyle",
    "merge.ff",
    "pull.ff",
    "pull.rebase",
    "push.default",
    "rebase.autosquash",
    "safe.directory",
    "user.email",
    "user.name",
];

/// The size limit of a configuration file.
const MAX_BYTES: u64 = 1 << 20;

/// The user's git settings for a sandboxed agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GitSettings {
    /// The settings in order; names may repeat.
    settings: Vec<(String, String)>,
}

impl GitSettings {
    /// Reads the configuration of the user with this environment.
    pub fn read(inherited: &BTreeMap<String, String>) -> Self {
        let given = |name: &str| inherited.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let Some(home) = given("HOME") else { return Self::default() };
        let config = given("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
        let mut found = Self::default();
        for path in [config.join("git/config"), home.join(".gitconfig")] {
            found.settings.extend(parse(&read_text(&path).unwrap_or_default()));
        }
        found.resolve_excludes(&home);
        found
    }

    /// Resolves the path of the user's ignore file.
    fn resolve_excludes(&mut self, home: &Path) {
        for (name, value) in &mut self.settings {
            if let Some(rest) = value.strip_prefix("~/").filter(|_| name == "core.excludesfile") {
                *value = home.join(rest).display().to_string();
            }
        }
    }

    /// Returns the user's ignore file. The agent needs it, or it would commit files that the user ignores globally.
    pub fn excludes_file(&self) -> Option<PathBuf> {
        let named = self.settings.iter().rev().find(|(name, _)| name == "core.excludesfile");
        named.map(|(_, path)| PathBuf::from(path)).filter(|path| path.is_absolute())
    }

    /// Returns the settings in the format of a configuration file.
    pub fn to_config(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.settings {
            let Some((section, key)) = name.split_once('.') else { continue };
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "[{section}]\n\t{key} = \"{value}\"");
        }
        text
    }
}

fn read_text(path: &Path) -> Option<String> {
    let file = open_linked(path).ok()?;
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Parses the inherited settings.
fn parse(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut section = String::new();
    for line in text.replace("\\\n", "").lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix('[') {
            // A subsection contains a quote and matches no inherited setting.
            section = rest.split(']').next().unwrap_or_default().trim().to_ascii_lowercase();
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let name = format!("{section}.{}", key.trim().to_ascii_lowercase());
        let value = unquote(value.trim());
        if PASSED_ON.contains(&name.as_str()) && !value.chars().any(char::is_control) {
            found.push((name, value));
        }
    }
    found
}

/// Removes quotes, escapes and comments from a value.
fn unquote(value: &str) -> String {
    let (mut plain, mut is_quoted) = (String::new(), false);
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => is_quoted = !is_quoted,
            '\\' => plain.extend(chars.next()),
            '#' | ';' if !is_quoted => break,
            c => plain.push(c),
        }
    }
    if is_quoted || value.ends_with('"') { plain } else { plain.trim_end().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
[user]
	name = Ana \"the \\\"first\\\"\" # me
	email = ana@example.com
	signingkey = ABC
[core]
	excludesFile = ~/.gitignore
	sshCommand = evil
	pager = evil
[credential]
	helper = store
[credential \"https://example.com\"]
	helper = !evil
[url \"https://token@example.com/\"]
	insteadOf = https://example.com/
[include]
	path = ~/.gitconfig-work
[alias]
	st = !evil
[safe]
	directory = /srv/a
	directory = /srv/b
";

    #[test]
    fn git_identity_passes_without_credentials() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(".gitconfig"), CONFIG).unwrap();
        let home = directory.path().display().to_string();
        let settings = GitSettings::read(&BTreeMap::from([("HOME".to_owned(), home)]));
        assert_eq!(settings.excludes_file(), Some(directory.path().join(".gitignore")));
        let config = settings.to_config();
        for leaked in ["evil", "store", "token", "include", "ABC"] {
            assert!(!config.contains(leaked), "{config}");
        }
        assert_eq!(parse(&config), settings.settings);
        assert_eq!(settings.settings[0], ("user.name".to_owned(), "Ana the \"first\"".to_owned()));
        assert_eq!(settings.settings.iter().filter(|(name, _)| name == "safe.directory").count(), 2);
    }
}
