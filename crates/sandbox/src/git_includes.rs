//! Files that the configuration of a repository includes, which git obeys as it obeys the configuration itself.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::beneath::read_ordinary_file;
use crate::link_targets::FollowedPath;

/// How deep git follows includes.
const MAX_DEPTH: usize = 10;
/// How long a configuration may be.
const MAX_BYTES: u64 = 1 << 20;

/// Returns every path that a configuration file includes, directly or through others, whether it exists or not. Conditions are taken to
/// be true: the agent may make them so.
pub(crate) fn included_by(config: &Path, home: Option<&Path>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut next = vec![config.to_owned()];
    for _ in 0..MAX_DEPTH {
        let included: Vec<PathBuf> = next.iter().flat_map(|file| includes(file, home)).collect();
        next = included.into_iter().filter(|path| found.insert(path.clone())).collect();
    }
    found
}

fn includes(file: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let Some(directory) = file.parent() else { return Vec::new() };
    let entries = read_entries(file).into_iter();
    let paths = entries.filter(|entry| entry.section.starts_with("include") && entry.key == "path");
    paths.filter_map(|entry| resolve(&entry.value, directory, home)).collect()
}

/// One setting of a configuration file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfigEntry {
    /// In lower case, without a subsection.
    pub section: String,
    /// In lower case.
    pub key: String,
    pub value: String,
}

/// Reads the settings of a configuration file; none when it is missing or no ordinary file.
pub(crate) fn read_entries(file: &Path) -> Vec<ConfigEntry> {
    let Some(text) = read(file) else { return Vec::new() };
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.replace("\\\n", "").lines() {
        let mut line = line.trim();
        // A section and its first key may share a line.
        while let Some(rest) = line.strip_prefix('[') {
            let name = rest.trim_start().split([' ', '\t', '.', '"', ']']).next().unwrap_or_default();
            section = name.to_ascii_lowercase();
            let end = closing_bracket(rest).unwrap_or(rest.len());
            line = rest.get(end + 1..).unwrap_or_default().trim();
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim().to_ascii_lowercase(), unquote(value.trim()));
        found.push(ConfigEntry { section: section.clone(), key, value });
    }
    found
}

/// Returns the end of a section: a condition may have a bracket in its quotes.
fn closing_bracket(text: &str) -> Option<usize> {
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

/// Resolves a path that is named in a directory, without looking at links.
pub(crate) fn resolve(path: &str, directory: &Path, home: Option<&Path>) -> Option<PathBuf> {
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

/// Reads a configuration by links, as git does, unless it is a pipe that an agent has put there: nobody may ever write into it.
fn read(path: &Path) -> Option<String> {
    let FollowedPath { end, .. } = FollowedPath::of(path);
    Some(String::from_utf8_lossy(&read_ordinary_file(&end, MAX_BYTES)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn includes_are_followed_whatever_their_condition() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join(".git")).unwrap();
        let config = "[core]\n\tpath = not-an-include\n[include] path = ../.gitconfig # shared\n\
                      [includeIf \"gitdir:/a]b/\"]\n\tPATH = \"../tools/git config\"\n[include]\n\tpath = ~/work\n";
        fs::write(root.join(".git/config"), config).unwrap();
        fs::write(root.join(".gitconfig"), "[include]\npath = nested\n[include]\npath = .gitconfig\n")
            .unwrap();
        let expected = [".gitconfig", "home/work", "nested", "tools/git config"].map(|name| root.join(name));
        assert_eq!(included_by(&root.join(".git/config"), Some(&root.join("home"))), expected.into());
    }
}
