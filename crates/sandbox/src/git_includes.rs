//! Parses git configuration files and follows their includes.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::beneath::read_regular_file;
use crate::link_targets::FollowedPath;

/// The maximum depth of includes in git.
const MAX_DEPTH: usize = 10;
/// The maximum size of a configuration file.
const MAX_BYTES: u64 = 1 << 20;

/// Returns every path that a configuration file includes, directly or indirectly, even if it is missing. All conditions count as true: the
/// agent may make them so.
pub(crate) fn find_included(config: &Path, home: Option<&Path>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut next = vec![config.to_owned()];
    for _ in 0..MAX_DEPTH {
        let included: Vec<PathBuf> = next.iter().flat_map(|file| read_includes(file, home)).collect();
        next = included.into_iter().filter(|path| found.insert(path.clone())).collect();
    }
    found
}

fn read_includes(file: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let Some(directory) = file.parent() else { return Vec::new() };
    let entries = read_entries(file).into_iter();
    let paths = entries.filter(|entry| entry.section.starts_with("include") && entry.key == "path");
    paths.filter_map(|entry| resolve_path(&entry.value, directory, home)).collect()
}

/// One setting of a configuration file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfigEntry {
    /// The section in lower case, without a subsection.
    pub section: String,
    /// The key in lower case.
    pub key: String,
    pub value: String,
}

/// Reads the settings of a configuration file. Empty if the file is missing or not a regular file.
pub(crate) fn read_entries(file: &Path) -> Vec<ConfigEntry> {
    let Some(text) = read_config(file) else { return Vec::new() };
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.replace("\\\n", "").lines() {
        let mut line = line.trim();
        // A section and its first key may share a line.
        while let Some(rest) = line.strip_prefix('[') {
            let name = rest.trim_start().split([' ', '\t', '.', '"', ']']).next().unwrap_or_default();
            section = name.to_ascii_lowercase();
            let end = find_closing_bracket(rest).unwrap_or(rest.len());
            line = rest.get(end + 1..).unwrap_or_default().trim();
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim().to_ascii_lowercase(), unquote(value.trim()));
        found.push(ConfigEntry { section: section.clone(), key, value });
    }
    found
}

/// Returns the position of the closing bracket of a section, which is not the one in a quoted condition.
fn find_closing_bracket(text: &str) -> Option<usize> {
    let mut is_quoted = false;
    text.char_indices().find_map(|(at, c)| {
        is_quoted ^= c == '"';
        (c == ']' && !is_quoted).then_some(at)
    })
}

fn unquote(value: &str) -> String {
    let (mut plain, mut is_quoted) = (String::new(), false);
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => is_quoted = !is_quoted,
            '\\' => plain.extend(chars.next().map(|c| if matches!(c, 'n' | 't') { ' ' } else { c })),
            '#' | ';' if !is_quoted => break,
            c => plain.push(c),
        }
    }
    plain.trim().to_owned()
}

/// Resolves `~` and `..` in a path relative to a directory, without following links.
pub(crate) fn resolve_path(path: &str, directory: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let path = match path.strip_prefix("~/") {
        Some(rest) => home?.join(rest),
        None => directory.join(path),
    };
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    Some(plain)
}

/// Reads a configuration file through links, as git does. Skips a FIFO that an agent may have created, which would block.
fn read_config(path: &Path) -> Option<String> {
    let FollowedPath { target, .. } = FollowedPath::follow(path);
    Some(String::from_utf8_lossy(&read_regular_file(&target, MAX_BYTES)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn conditional_includes_are_always_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join(".git")).unwrap();
        let config = "[core]\n\tpath = not-an-include\n[include] path = ../.gitconfig # shared\n\
                      [includeIf \"gitdir:/a]b/\"]\n\tPATH = \"../tools/git config\"\n[include]\n\tpath = ~/work\n";
        fs::write(root.join(".git/config"), config).unwrap();
        fs::write(root.join(".gitconfig"), "[include]\npath = nested\n[include]\npath = .gitconfig\n")
            .unwrap();
        let expected = [".gitconfig", "home/work", "nested", "tools/git config"].map(|name| root.join(name));
        assert_eq!(find_included(&root.join(".git/config"), Some(&root.join("home"))), expected.into());
    }
}
