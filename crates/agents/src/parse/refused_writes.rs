//! Writes that the sandbox refused, recognized in the output of failed tools.
//!
//! The kernel reports a refused write to the program that tried it and to nobody else, so the program's own message is all
//! there is. Owns the phrases and where they name the path. Whether the run was confined at all is not known here.

use model::ToolOutput;

/// How many different paths are kept.
const MAX_PATHS: usize = 100;
/// How many characters of a tool's output are searched. The message stands near its start or is repeated.
const SEARCHED_CHARS: usize = 64 << 10;
/// The longest path and the longest line that are kept.
const PATH_CHARS: usize = 256;
const LINE_CHARS: usize = 200;

/// The writes that failed as writes in a sandbox do.
#[derive(Debug, Default)]
pub struct RefusedWrites {
    writes: Vec<RefusedWrite>,
}

/// A path that could not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedWrite {
    /// The path as the program named it; none when the message names none.
    pub path: Option<String>,
    /// The first message.
    pub line: String,
    /// What the kernel answered.
    pub errno: WriteErrno,
    /// How many tool calls met it.
    pub count: u32,
}

/// What the kernel answers to a write that a sandbox refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteErrno {
    /// `EROFS`: a read-only mount.
    ReadOnly,
    /// `EACCES`: a Landlock rule, or ordinary permissions.
    Access,
    /// `EBUSY`: a rename onto a mount, as protected files are.
    Busy,
}

impl RefusedWrites {
    /// Returns the refused writes in order.
    pub fn iter(&self) -> impl Iterator<Item = &RefusedWrite> {
        self.writes.iter()
    }

    pub(super) fn held_bytes(&self) -> usize {
        let held =
            |write: &RefusedWrite| write.line.capacity() + write.path.as_ref().map_or(0, String::capacity);
        self.writes.iter().map(held).sum()
    }

    /// Searches the output of a failed tool. A path counts once a call, however often the output repeats it.
    pub(super) fn search(&mut self, output: &ToolOutput<'_>) {
        self.search_for(output, |_| true);
    }

    /// Searches the output of a command that may have failed. A message counts only if the command names its path: others may be part
    /// of a file that the command printed.
    pub(super) fn search_output_of(&mut self, command: &str, output: &ToolOutput<'_>) {
        let is_named =
            |write: &RefusedWrite| write.path.as_deref().is_some_and(|path| command.contains(path));
        self.search_for(output, is_named);
    }

    /// Adds the refusal of a file tool, whose message quotes the path.
    pub(super) fn refused_by_file_tool(&mut self, message: &str) {
        let short = |text: &str, limit: usize| text.chars().take(limit).collect::<String>();
        let path = quoted(message).map(|path| short(path, PATH_CHARS));
        self.add(RefusedWrite {
            path,
            line: short(message, LINE_CHARS),
            errno: WriteErrno::ReadOnly,
            count: 1,
        });
    }

    fn search_for(&mut self, output: &ToolOutput<'_>, counts: impl Fn(&RefusedWrite) -> bool) {
        let text = match output {
            ToolOutput::Text(text) => text.preview(SEARCHED_CHARS),
            ToolOutput::Json(json) => {
                let raw: String = json.text().chars().take(SEARCHED_CHARS).collect();
                raw.replace("\\n", "\n").replace("\\\"", "\"")
            }
            ToolOutput::Nothing => return,
        };
        let mut seen: Vec<RefusedWrite> = Vec::new();
        for write in text.lines().filter_map(refused_write).filter(counts) {
            if seen.len() < MAX_PATHS && !seen.iter().any(|known| known.path == write.path) {
                seen.push(write);
            }
        }
        for write in seen {
            self.add(write);
        }
    }

    fn add(&mut self, write: RefusedWrite) {
        let is_same = |known: &&mut RefusedWrite| known.path == write.path && known.errno == write.errno;
        if let Some(known) = self.writes.iter_mut().find(is_same) {
            known.count = known.count.saturating_add(1);
        } else if self.writes.len() < MAX_PATHS {
            self.writes.push(write);
        }
    }
}

/// Reads one line of output.
fn refused_write(line: &str) -> Option<RefusedWrite> {
    let lower = line.to_ascii_lowercase();
    let phrases = [
        ("read-only file system", WriteErrno::ReadOnly),
        ("permission denied", WriteErrno::Access),
        ("device or resource busy", WriteErrno::Busy),
    ];
    let (at, phrase, errno) =
        phrases.into_iter().find_map(|(phrase, errno)| Some((lower.find(phrase)?, phrase, errno)))?;
    let (before, after) = (&line[..at], &line[at + phrase.len()..]);
    // `Permission denied` is also the answer to a read, to `exec` and to a login; a device is busy for many reasons.
    if errno != WriteErrno::ReadOnly && !speaks_of_a_write(&lower, before, after) {
        return None;
    }
    // Of `symlink 'from' -> 'to'` the latter is written.
    let target = after.split_once(" -> ").and_then(|(_, target)| quoted(target));
    let path =
        target.or_else(|| quoted(after)).or_else(|| last_quoted(before)).or_else(|| last_segment(before));
    let short = |text: &str, limit: usize| text.trim().chars().take(limit).collect::<String>();
    Some(RefusedWrite {
        path: path.map(|path| short(path, PATH_CHARS)),
        line: short(line, LINE_CHARS),
        errno,
        count: 1,
    })
}

fn speaks_of_a_write(line: &str, before: &str, after: &str) -> bool {
    let verbs =
        ["creat", "touch", "write", "mkdir", "remove", "unlink", "rename", "move", "delet", "overwrite"];
    // Node names the system call: `EACCES: permission denied, open '/etc/x'`.
    let node = before.trim_end().ends_with("EACCES:") && after.starts_with(", open ");
    // A shell that cannot redirect: `bash: line 1: /etc/x: Permission denied`.
    let redirection =
        before.contains(": line ") && last_segment(before).is_some_and(|path| path.starts_with('/'));
    node || redirection || verbs.iter().any(|verb| line.contains(verb))
}

const QUOTES: [(char, char); 5] = [('\'', '\''), ('"', '"'), ('‘', '’'), ('`', '`'), ('`', '\'')];

/// The first quoted part of a text.
fn quoted(text: &str) -> Option<&str> {
    let (at, open) = text.char_indices().find(|(_, c)| QUOTES.iter().any(|(open, _)| open == c))?;
    let rest = &text[at + open.len_utf8()..];
    let closes = |c: char| QUOTES.contains(&(open, c));
    rest.find(closes).map(|end| &rest[..end]).filter(|inside| !inside.is_empty())
}

/// The last quoted part of a text.
fn last_quoted(text: &str) -> Option<&str> {
    let (end, close) = text.char_indices().rev().find(|(_, c)| QUOTES.iter().any(|(_, close)| close == c))?;
    let before = &text[..end];
    let opens = |c: char| QUOTES.contains(&(c, close));
    let at = before.rfind(opens)?;
    let inside = &before[at..];
    let inside = &inside[inside.chars().next().map_or(0, char::len_utf8)..];
    (!inside.is_empty()).then_some(inside)
}

/// `/etc/x` in `bash: line 1: /etc/x: `; none when what stands there is prose.
fn last_segment(before: &str) -> Option<&str> {
    let before = before.trim_end().strip_suffix(':')?;
    // Git: `could not lock config file .git/config: `.
    if let Some((_, path)) = before.split_once(" config file ") {
        return Some(path).filter(|path| !path.is_empty());
    }
    let segment = before.rsplit(": ").next()?.trim();
    // A shell that cannot redirect names the file as it was written: `bash: line 1: notes: `.
    let by_shell = before.contains(": line ") && !segment.starts_with("line ");
    let is_path = by_shell || segment.contains('/') || segment.contains('.');
    (is_path && !segment.contains(' ')).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_paths_are_found_in_messages_of_common_programs() {
        use WriteErrno::{Access, Busy, ReadOnly};
        let table = [
            ("/bin/bash: line 1: /etc/x: Read-only file system", ReadOnly, Some("/etc/x")),
            ("touch: cannot touch '/etc/x y': Read-only file system", ReadOnly, Some("/etc/x y")),
            ("mkdir: cannot create directory ‘/opt/a’: Permission denied", Access, Some("/opt/a")),
            (
                "fatal: Unable to create '/w/.git/index.lock': Read-only file system",
                ReadOnly,
                Some("/w/.git/index.lock"),
            ),
            ("EROFS: read-only file system, open '/etc/x'", ReadOnly, Some("/etc/x")),
            ("Error: EACCES: permission denied, open '/etc/x'", Access, Some("/etc/x")),
            ("OSError: [Errno 30] Read-only file system: '/etc/x'", ReadOnly, Some("/etc/x")),
            (
                "error: failed to write `/opt/t`: Read-only file system (os error 30)",
                ReadOnly,
                Some("/opt/t"),
            ),
            ("sh: 1: cannot create /etc/x: Permission denied", Access, None),
            ("bash: line 3: /etc/x: Permission denied", Access, Some("/etc/x")),
            ("/bin/bash: line 1: notes: Read-only file system", ReadOnly, Some("notes")),
            (
                "npm error EROFS: read-only file system, symlink '../w/lib' -> '/usr/lib/node_modules/lib'",
                ReadOnly,
                Some("/usr/lib/node_modules/lib"),
            ),
            ("something failed: Read-only file system", ReadOnly, None),
            (
                "error: could not lock config file .git/config: Read-only file system",
                ReadOnly,
                Some(".git/config"),
            ),
            (
                "error: could not write config file .git/config: Device or resource busy",
                Busy,
                Some(".git/config"),
            ),
        ];
        for (line, errno, path) in table {
            let found = refused_write(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((found.errno, found.path.as_deref()), (errno, path), "{line}");
        }
    }

    #[test]
    fn other_permission_errors_are_not_refused_writes() {
        for line in [
            "cat: /etc/shadow: Permission denied",
            "git@example.com: Permission denied (publickey).",
            "bash: ./run.sh: Permission denied",
            "ls: cannot open directory '/root': Permission denied",
            "umount: /mnt: Device or resource busy",
            "all is well",
        ] {
            assert_eq!(refused_write(line), None, "{line}");
        }
    }

    #[test]
    fn path_counts_once_per_tool_call() {
        let mut writes = RefusedWrites::default();
        let line = "touch: cannot touch '/etc/x': Read-only file system\n";
        writes.search(&ToolOutput::Text(line.repeat(3).as_str().into()));
        writes.search(&ToolOutput::Text(line.into()));
        let found: Vec<_> = writes.iter().map(|write| (write.path.as_deref(), write.count)).collect();
        assert_eq!(found, [(Some("/etc/x"), 2)]);
    }

    #[test]
    fn kept_paths_are_bounded() {
        let mut writes = RefusedWrites::default();
        for number in 0..1000 {
            let line =
                format!("touch: cannot touch '/{number}{}': Read-only file system", "x".repeat(10_000));
            writes.search(&ToolOutput::Text(line.as_str().into()));
        }
        assert_eq!(writes.iter().count(), MAX_PATHS);
        assert!(writes.held_bytes() < MAX_PATHS * 3000, "{}", writes.held_bytes());
    }
}
