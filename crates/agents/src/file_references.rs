//! File references in a prompt for gemini: `@name`.
//!
//! Headless gemini 0.61.0 replaces a reference by the path of any file whose path contains the name, and appends the contents of
//! the file. No flag disables this; a backslash before the `@` does, but the model sees the backslash. So only references that
//! gemini would resolve are escaped. In doubt, a reference is escaped. Reads the file system.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The limit of scanned files, and of distinct names in a prompt. Beyond it every reference counts as resolvable.
const MAX_ENTRIES: usize = 20_000;
const MAX_NAMES: usize = 1000;
/// The longest name that is searched.
const MAX_NAME_BYTES: usize = 200;

/// Directories that gemini does not search.
const SKIPPED: [&str; 5] = ["node_modules", ".git", "bower_components", ".svn", ".hg"];
/// Characters that terminate a name. A dot does so only before whitespace and at the end of the prompt.
const TERMINATORS: &str = " \t\n\r,;!?()[]{}";

/// The references in a prompt that gemini would resolve.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileReferences {
    names: BTreeSet<String>,
    is_too_much: bool,
}

impl FileReferences {
    /// Searches gemini's workspaces for the names in a prompt.
    pub fn find(prompt: &str, directories: &[&Path]) -> Self {
        let names: BTreeSet<&str> =
            prompt.match_indices('@').filter_map(|(at, _)| name_at(prompt, at)).collect();
        let names: Vec<&str> = names.into_iter().filter(|name| is_plain(name)).collect();
        if names.is_empty() {
            return Self::default();
        }
        let mut paths = Vec::new();
        let is_complete = directories.iter().all(|directory| list(directory, "", &mut paths));
        if names.len() > MAX_NAMES || !is_complete {
            return Self { is_too_much: true, ..Self::default() };
        }
        let is_resolved = |name: &&str| {
            let part = name.to_lowercase();
            paths.iter().any(|path| path.contains(&part)) || is_there(name, directories)
        };
        let names = names.into_iter().filter(is_resolved).map(str::to_owned).collect();
        Self { names, is_too_much: false }
    }

    /// Returns the prompt with a backslash before each resolvable reference.
    pub fn escape(&self, prompt: &str) -> String {
        let (mut escaped, mut copied, mut next) = (String::with_capacity(prompt.len()), 0, 0);
        while let Some(at) = prompt[next..].find('@').map(|found| next + found) {
            next = at + 1;
            let Some(name) = name_at(prompt, at) else { continue };
            if self.is_too_much || !is_plain(name) || self.names.contains(name) {
                escaped.push_str(&prompt[copied..at]);
                escaped.push('\\');
                copied = at;
            } else {
                // An `@` inside of a name starts no reference.
                next += name.len();
            }
        }
        escaped.push_str(&prompt[copied..]);
        escaped
    }
}

/// Returns the name of the reference at an `@`, at most one byte longer than the limit.
fn name_at(prompt: &str, at: usize) -> Option<&str> {
    if prompt[..at].ends_with('\\') {
        return None;
    }
    let rest = &prompt[at + 1..];
    let ends_name = |(position, c): (usize, char)| {
        let ends_sentence =
            || rest[position + 1..].chars().next().is_none_or(|next| " \t\n\r".contains(next));
        TERMINATORS.contains(c) || position > MAX_NAME_BYTES || (c == '.' && ends_sentence())
    };
    let end = rest.char_indices().find(|&found| ends_name(found)).map_or(rest.len(), |(end, _)| end);
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

/// Returns whether a name is short and has no quotes, escapes or wildcards.
fn is_plain(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES && !name.contains(['"', '\\', '*']) && !name.contains("...")
}

/// Adds the lower-case paths below a directory. Returns false if the limit was reached.
fn list(directory: &Path, above: &str, paths: &mut Vec<String>) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return true };
    entries.flatten().all(|entry| {
        let name = entry.file_name();
        let path = format!("{above}/{}", name.to_string_lossy().to_lowercase());
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory && SKIPPED.iter().any(|skipped| name == *skipped) {
            return true;
        }
        let is_complete = !is_directory || list(&entry.path(), &path, paths);
        paths.push(path);
        is_complete && paths.len() < MAX_ENTRIES
    })
}

/// Returns whether a name is an existing path relative to one of the directories.
fn is_there(name: &str, directories: &[&Path]) -> bool {
    directories.iter().any(|directory| {
        let path = directory.join(name);
        path.starts_with(directory) && path.symlink_metadata().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_references_that_match_a_file_are_escaped() {
        let workspace = tempfile::tempdir().unwrap();
        fs::create_dir_all(workspace.path().join("node_modules/types")).unwrap();
        for name in ["sup.log", "README.md", "node_modules/types/node.ts"] {
            fs::write(workspace.path().join(name), "").unwrap();
        }
        for (prompt, expected) in [
            ("mail g@g, then me@example.com.", r"mail g\@g, then me@example.com."),
            ("read @README.md.", r"read \@README.md."),
            ("read @readme", r"read \@readme"),
            (r"read \@README.md", r"read \@README.md"),
            ("a@b@sup.log", "a@b@sup.log"),
            ("a@README@sup.log", "a@README@sup.log"),
            ("npm i @types/node @scope/*", r"npm i @types/node \@scope/*"),
            (r#"read @"a b""#, r#"read \@"a b""#),
            ("HEAD@{1}, @ and @.", "HEAD@{1}, @ and @."),
            ("@/etc/hostname", "@/etc/hostname"),
            ("naïve@é.com @", "naïve@é.com @"),
        ] {
            let found = FileReferences::find(prompt, &[workspace.path()]);
            assert_eq!(found.escape(prompt), expected, "{prompt}");
        }
    }

    #[test]
    fn nested_reference_is_escaped() {
        let workspace = tempfile::tempdir().unwrap();
        fs::write(workspace.path().join("a@b"), "").unwrap();
        let prompt = "x@a@b";
        assert_eq!(FileReferences::find(prompt, &[workspace.path()]).escape(prompt), r"x\@a\@b");
    }

    #[test]
    fn long_name_is_escaped() {
        let prompt = "@".repeat(1000);
        let escaped = FileReferences::find(&prompt, &[Path::new("/nowhere")]).escape(&prompt);
        assert!(escaped.starts_with(r"\@\@"), "{}", &escaped[..20]);
    }
}
