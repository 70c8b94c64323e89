//! Reads settings from the configuration files of git, without includes and without running git.

use std::path::{Path, PathBuf};

use crate::files::read_small;

const LIMIT: u64 = 1024 * 1024;

/// The settings of several files; later ones override earlier ones. Sections with a subsection are left out.
#[derive(Debug, Default)]
pub(crate) struct RepositorySettings {
    entries: Vec<(String, Option<String>)>,
}

impl RepositorySettings {
    /// Adds the settings of a file, if it is readable.
    pub(crate) fn add_file(&mut self, path: &Path) {
        if let Some(bytes) = read_small(path, LIMIT) {
            self.add_text(&String::from_utf8_lossy(&bytes));
        }
    }

    /// Returns the last value of a setting. The key is in lower case. A key without a value is "true".
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let (_, value) = self.entries.iter().rev().find(|(name, _)| name == key)?;
        Some(value.as_deref().unwrap_or("true"))
    }

    /// Returns the last value of a boolean setting, or `None` if it is missing or malformed.
    pub(crate) fn get_bool(&self, key: &str) -> Option<bool> {
        match self.get(key)?.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" | "" => Some(false),
            _ => None,
        }
    }

    fn add_text(&mut self, text: &str) {
        let mut section = None;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let mut line = line.trim();
            if let Some(rest) = line.strip_prefix('[') {
                let (name, rest) = rest.split_once(']').unwrap_or((rest, ""));
                let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
                section = is_plain.then(|| name.to_ascii_lowercase());
                line = rest.trim();
            }
            let key_length = line.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
            let (key, rest) = line.split_at(key_length.count());
            if key.is_empty() {
                continue;
            }
            let value = rest.trim_start().strip_prefix('=').map(|value| parse_value(value, &mut lines));
            if let Some(section) = &section {
                self.entries.push((format!("{section}.{}", key.to_ascii_lowercase()), value));
            }
        }
    }
}

/// Parses a value with quotes, escapes and comments. Takes further lines after a backslash at the end of one.
fn parse_value<'a>(first: &'a str, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let (mut value, mut quoted, mut line) = (String::new(), false, first.trim_start());
    // The length without trailing blanks outside of quotes.
    let mut length = 0;
    loop {
        let mut characters = line.chars();
        let mut continues = false;
        while let Some(character) = characters.next() {
            match character {
                '"' => quoted = !quoted,
                '#' | ';' if !quoted => break,
                '\\' => match characters.next() {
                    Some('n') => value.push('\n'),
                    Some('t') => value.push('\t'),
                    Some('b') => value.push('\u{8}'),
                    Some(escaped) => value.push(escaped),
                    None => continues = true,
                },
                _ => value.push(character),
            }
            if quoted || !character.is_whitespace() {
                length = value.len();
            }
        }
        match continues.then(|| lines.next()).flatten() {
            Some(next) => line = next,
            None => break,
        }
    }
    value.truncate(length);
    value
}

/// The places of the configuration of the user.
#[derive(Debug, Default)]
pub(crate) struct UserConfig {
    home: Option<PathBuf>,
    xdg: Option<PathBuf>,
}

impl UserConfig {
    /// Finds the places as git does.
    #[expect(clippy::disallowed_methods, reason = "git finds its configuration by these variables")]
    pub(crate) fn find() -> Self {
        let directory = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = directory("HOME");
        let xdg = directory("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
        Self { home, xdg: xdg.map(|path| path.join("git")) }
    }

    /// Reads the settings for a repository: of the system, of the user, of the repository and of its worktree.
    pub(crate) fn read_settings(&self, git_dir: &Path, common_dir: &Path) -> RepositorySettings {
        let mut settings = RepositorySettings::default();
        settings.add_file(Path::new("/etc/gitconfig"));
        if let Some(xdg) = &self.xdg {
            settings.add_file(&xdg.join("config"));
        }
        if let Some(home) = &self.home {
            settings.add_file(&home.join(".gitconfig"));
        }
        settings.add_file(&common_dir.join("config"));
        if settings.get_bool("extensions.worktreeconfig") == Some(true) {
            settings.add_file(&git_dir.join("config.worktree"));
        }
        settings
    }

    /// Returns the content of the file that a setting names, or of the default file of the user.
    pub(crate) fn read_named_file(
        &self,
        settings: &RepositorySettings,
        key: &str,
        default: &str,
    ) -> Option<Vec<u8>> {
        let path = match settings.get(key) {
            Some("") => return None,
            Some(path) => match path.strip_prefix("~/") {
                Some(below) => self.home.as_ref()?.join(below),
                None => PathBuf::from(path),
            },
            None => self.xdg.as_ref()?.join(default),
        };
        path.is_absolute().then(|| read_small(&path, LIMIT)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_as_git_parses_them() {
        let mut settings = RepositorySettings::default();
        settings.add_text(concat!(
            "\u{feff}; comment\n[core] bare\n\tautoCRLF = input # why\n\teol=\"lf ; \" \n",
            "[core \"sub\"]\n\tautocrlf = wrong\n",
            "[Extensions]\nobjectFormat = sha\\\n256\n[a.b]\nc = \"x\\\"\\ty\"  \n",
        ));
        assert_eq!(settings.get("core.bare"), Some("true"));
        assert_eq!(settings.get("core.autocrlf"), Some("input"));
        assert_eq!(settings.get("core.eol"), Some("lf ; "));
        assert_eq!(settings.get("extensions.objectformat"), Some("sha256"));
        assert_eq!(settings.get("a.b.c"), Some("x\"\ty"));
        assert_eq!(settings.get_bool("core.autocrlf"), None);
    }

    #[test]
    fn last_value_of_setting_wins() {
        let mut settings = RepositorySettings::default();
        settings.add_text("[core]\nfilemode=true\nfilemode = No\n");
        assert_eq!(settings.get_bool("core.filemode"), Some(false));
    }
}
