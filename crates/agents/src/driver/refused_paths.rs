//! Recognizes paths that the sandbox rejected in the output of failed tools.
//!
//! The kernel reports a refusal only to the program that caused it, so the program's error message is the only source. Owns the
//! phrases and the positions of the path. Does not know whether the run was sandboxed.

use model::ToolOutput;

/// The limit of distinct paths.
const MAX_PATHS: usize = 100;
/// The limit of missing paths among them, most of which have other causes.
const MAX_MISSING: usize = 20;
/// The limit of searched characters of a tool's output. The message is near the start or is repeated.
const SEARCHED_CHARS: usize = 64 << 10;
/// The longest stored path and line.
const PATH_CHARS: usize = 256;
const LINE_CHARS: usize = 200;

/// Paths that could not be written or read.
#[derive(Debug, Default)]
pub struct RefusedPaths {
    paths: Vec<RefusedPath>,
}

/// A path that could not be written or read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedPath {
    /// The path in the message. `None` if there is none.
    pub path: Option<String>,
    /// The first message.
    pub line: String,
    /// The error.
    pub errno: RefusedErrno,
    /// The number of tool calls with this error.
    pub count: u32,
}

/// The errors that a sandbox causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedErrno {
    /// `EROFS`: a read-only mount.
    ReadOnly,
    /// `EACCES`: a Landlock rule or ordinary permissions.
    Access,
    /// `EBUSY`: a rename onto a mount point, such as a protected file.
    Busy,
    /// `ENOENT`: a missing absolute path, such as the home directory.
    Missing,
    /// `ENOENT` from a program that only reads: a file tool, or git for a repository.
    MissingInput,
    /// Not from the kernel: a file tool of the agent opens only its own directories.
    AgentRule {
        /// The tool writes.
        writes: bool,
    },
}

impl RefusedPaths {
    /// Returns the paths in order.
    pub fn iter(&self) -> impl Iterator<Item = &RefusedPath> {
        self.paths.iter()
    }

    pub(super) fn held_bytes(&self) -> usize {
        let held = |refused: &RefusedPath| {
            refused.line.capacity() + refused.path.as_ref().map_or(0, String::capacity)
        };
        self.paths.iter().map(held).sum()
    }

    /// Searches the output of a failed tool. A path counts once per call.
    pub(super) fn search(&mut self, output: &ToolOutput<'_>) {
        self.search_for(output, |_| true);
    }

    /// Searches the output of a command that may have failed in part. If the command prints files, a message counts only if the
    /// command contains the path: it may be a part of such a file.
    pub(super) fn search_output_of(&mut self, command: &str, output: &ToolOutput<'_>) {
        let prints_files = prints_files(command);
        let is_own = |refused: &RefusedPath| {
            !prints_files || refused.path.as_deref().is_some_and(|path| names(command, path))
        };
        self.search_for(output, is_own);
    }

    /// Searches the output of a failed file tool. The target is the path: the message may contain none, or a temporary file next
    /// to it.
    pub(super) fn search_file_tool(&mut self, target: &str, reads: bool, output: &ToolOutput<'_>) {
        let text = searched_text(output);
        let is_missing = text.lines().next().is_some_and(|line| line.contains("File does not exist"));
        let errno = match text.lines().find_map(refused_path) {
            _ if is_missing => RefusedErrno::MissingInput,
            Some(refused) if !reads => refused.errno,
            Some(RefusedPath { errno: RefusedErrno::Missing | RefusedErrno::Access, .. }) => {
                RefusedErrno::MissingInput
            }
            _ => return,
        };
        self.add(RefusedPath::new(Some(target), &text, errno));
    }

    /// Adds the refusal of a file tool, whose message quotes the path.
    pub(super) fn refused_by_file_tool(&mut self, message: &str, errno: RefusedErrno) {
        self.add(RefusedPath::new(quoted(message), message, errno));
    }

    /// Adds a path that a file tool failed to write for any reason.
    pub(super) fn failed_to_write(&mut self, path: &str) {
        self.add(RefusedPath::new(Some(path), "", RefusedErrno::Access));
    }

    fn search_for(&mut self, output: &ToolOutput<'_>, counts: impl Fn(&RefusedPath) -> bool) {
        let text = searched_text(output);
        let lower = text.to_ascii_lowercase();
        if !PHRASES
            .iter()
            .map(|(phrase, _)| *phrase)
            .chain(REPOSITORY_PHRASES)
            .any(|phrase| lower.contains(phrase))
        {
            return;
        }
        let mut seen: Vec<RefusedPath> = Vec::new();
        for write in refused_paths(&text).filter(counts) {
            if seen.len() < MAX_PATHS && !seen.iter().any(|known| known.path == write.path) {
                seen.push(write);
            }
        }
        for write in seen {
            self.add(write);
        }
    }

    fn missing(&self) -> usize {
        self.paths.iter().filter(|refused| refused.errno.is_missing()).count()
    }

    fn add(&mut self, refused: RefusedPath) {
        let is_same = |known: &&mut RefusedPath| known.path == refused.path && known.errno == refused.errno;
        if let Some(known) = self.paths.iter_mut().find(is_same) {
            known.count = known.count.saturating_add(1);
        } else if self.paths.len() < MAX_PATHS
            && (!refused.errno.is_missing() || self.missing() < MAX_MISSING)
        {
            self.paths.push(refused);
        }
    }
}

/// Commands that print existing texts.
const PRINTERS: [&str; 16] = [
    "awk", "bat", "cat", "diff", "echo", "grep", "head", "jq", "less", "log", "more", "printf", "rg", "sed",
    "show", "tail",
];

/// Returns whether a command prints files, messages or the history of a repository. `npm install | tail` does not: a command
/// after a pipe filters its input.
fn prints_files(command: &str) -> bool {
    let is_printer = |word: &str| word.rsplit('/').next().is_some_and(|name| PRINTERS.contains(&name));
    let is_gap = |c: char| c.is_whitespace() || "()$`'\"".contains(c);
    command.replace("||", ";").split([';', '&', '\n']).any(|pipeline| {
        pipeline.split('|').enumerate().any(|(stage, part)| {
            let words = part.split(is_gap).filter(|word| !word.is_empty());
            words.skip(usize::from(stage > 0)).any(is_printer)
        })
    })
}

/// Returns whether a command contains a path, as it is or relative to the home directory.
fn names(command: &str, path: &str) -> bool {
    let from_home =
        |word: &str| word.strip_prefix("~/").is_some_and(|rest| !rest.is_empty() && path.ends_with(rest));
    let mut words = command.split(|c: char| c.is_whitespace() || ";&|<>()'\"`".contains(c));
    command.contains(path) || words.any(from_home)
}

impl RefusedErrno {
    fn is_missing(self) -> bool {
        matches!(self, Self::Missing | Self::MissingInput)
    }
}

impl RefusedPath {
    /// Returns a path that one tool call met, with the first line of the message.
    pub(crate) fn new(path: Option<&str>, message: &str, errno: RefusedErrno) -> Self {
        let short = |text: &str, limit: usize| text.trim().chars().take(limit).collect::<String>();
        let line = message.trim().lines().next().unwrap_or_default();
        Self {
            path: path.map(|path| short(path, PATH_CHARS)),
            line: short(line, LINE_CHARS),
            errno,
            count: 1,
        }
    }
}

/// Returns the searched part of an output.
fn searched_text(output: &ToolOutput<'_>) -> String {
    match output {
        ToolOutput::Text(text) => text.preview(SEARCHED_CHARS),
        ToolOutput::Json(json) => {
            let raw: String = json.text().chars().take(SEARCHED_CHARS).collect();
            raw.replace("\\n", "\n").replace("\\\"", "\"")
        }
        ToolOutput::Nothing => String::new(),
    }
}

/// Parses each line of a text. A line without a path gives the cause of an error in a preceding line.
fn refused_paths(text: &str) -> impl Iterator<Item = RefusedPath> {
    let mut before: [&str; 3] = [""; 3];
    text.lines().filter_map(move |line| {
        let found = refused_path(line).map(|refused| {
            let path = refused.path.clone().or_else(|| before.iter().find_map(|line| absolute_path(line)));
            RefusedPath { path, ..refused }
        });
        before = [line, before[0], before[1]];
        found
    })
}

/// Returns the path in a message: a quoted one, or the last word.
fn absolute_path(line: &str) -> Option<String> {
    let last_word = line.trim_end_matches([':', '.', ',']).rsplit(' ').next();
    let path = quoted(line).filter(|path| path.starts_with('/')).or(last_word)?;
    path.starts_with('/').then(|| path.chars().take(PATH_CHARS).collect())
}

/// The error messages of the kernel, in lower case.
const PHRASES: [(&str, RefusedErrno); 4] = [
    ("read-only file system", RefusedErrno::ReadOnly),
    ("permission denied", RefusedErrno::Access),
    ("device or resource busy", RefusedErrno::Busy),
    ("no such file or directory", RefusedErrno::Missing),
];

/// Git's messages about a repository that it cannot find.
const REPOSITORY_PHRASES: [&str; 2] = ["' does not appear to be a git repository", "' does not exist"];

/// Parses git's message about a repository that it cannot find: `fatal: repository '/srv/lib' does not exist`.
fn missing_repository(line: &str) -> Option<RefusedPath> {
    let message = line.strip_prefix("fatal: ")?;
    let [no_repository, missing] = REPOSITORY_PHRASES;
    let names_repository = message.ends_with(no_repository)
        || (message.starts_with("repository '") && message.ends_with(missing));
    let path = quoted(message).filter(|path| names_repository && path.starts_with('/'))?;
    Some(RefusedPath::new(Some(path), line, RefusedErrno::MissingInput))
}

/// Parses one line of output.
fn refused_path(line: &str) -> Option<RefusedPath> {
    if let Some(missing) = missing_repository(line) {
        return Some(missing);
    }
    let lower = line.to_ascii_lowercase();
    let (at, phrase, errno) =
        PHRASES.into_iter().find_map(|(phrase, errno)| Some((lower.find(phrase)?, phrase, errno)))?;
    let (before, after) = (&line[..at], &line[at + phrase.len()..]);
    // `Permission denied` also results from reads, `exec` and logins; a device is busy for many reasons.
    let is_clear = matches!(errno, RefusedErrno::ReadOnly | RefusedErrno::Missing);
    if !is_clear && !speaks_of_a_write(&lower, before, after) {
        return None;
    }
    // `symlink 'from' -> 'to'` writes the latter.
    let target = after.split_once(" -> ").and_then(|(_, target)| quoted(target));
    let path =
        target.or_else(|| quoted(after)).or_else(|| last_quoted(before)).or_else(|| last_segment(before));
    if errno == RefusedErrno::Missing && !path.is_some_and(|path| path.starts_with('/')) {
        return None;
    }
    Some(RefusedPath::new(path, line, errno))
}

fn speaks_of_a_write(line: &str, before: &str, after: &str) -> bool {
    let verbs = [
        "creat",
        "touch",
        "write",
        "mkdir",
        "remove",
        "unlink",
        "rename",
        "move",
        "delet",
        "overwrite",
        "could not lock",
    ];
    // Node prints the system call: `EACCES: permission denied, open '/etc/x'`.
    let node = before.trim_end().ends_with("EACCES:") && after.starts_with(", open ");
    // A failed shell redirection: `bash: line 1: /etc/x: Permission denied`.
    let redirection =
        before.contains(": line ") && last_segment(before).is_some_and(|path| path.starts_with('/'));
    node || redirection || verbs.iter().any(|verb| line.contains(verb))
}

const QUOTES: [(char, char); 5] = [('\'', '\''), ('"', '"'), ('‘', '’'), ('`', '`'), ('`', '\'')];

/// Returns the first quoted part of a text.
fn quoted(text: &str) -> Option<&str> {
    let (at, open) = text.char_indices().find(|(_, c)| QUOTES.iter().any(|(open, _)| open == c))?;
    let rest = &text[at + open.len_utf8()..];
    let closes = |c: char| QUOTES.contains(&(open, c));
    rest.find(closes).map(|end| &rest[..end]).filter(|inside| !inside.is_empty())
}

/// Returns the last quoted part of a text.
fn last_quoted(text: &str) -> Option<&str> {
    let (end, close) = text.char_indices().rev().find(|(_, c)| QUOTES.iter().any(|(_, close)| close == c))?;
    let before = &text[..end];
    let opens = |c: char| QUOTES.contains(&(c, close));
    let at = before.rfind(opens)?;
    let inside = &before[at..];
    let inside = &inside[inside.chars().next().map_or(0, char::len_utf8)..];
    (!inside.is_empty()).then_some(inside)
}

/// Returns `/etc/x` of `bash: line 1: /etc/x: `. `None` if the segment is prose.
fn last_segment(before: &str) -> Option<&str> {
    let before = before.trim_end().strip_suffix(':')?;
    // Git: `could not lock config file .git/config: `.
    if let Some((_, path)) = before.split_once(" config file ") {
        return Some(path).filter(|path| !path.is_empty());
    }
    let segment = before.rsplit(": ").next()?.trim();
    // A failed shell redirection prints the file as written: `bash: line 1: notes: `.
    let by_shell = before.contains(": line ") && !segment.starts_with("line ");
    let is_path = by_shell || segment.contains('/') || segment.contains('.');
    if is_path && !segment.contains(' ') {
        return Some(segment);
    }
    // `sh: 1: cannot create /etc/x: `.
    segment.rsplit(' ').next().filter(|word| word.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_paths_are_found_in_messages_of_common_programs() {
        use RefusedErrno::{Access, Busy, Missing, MissingInput, ReadOnly};
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
            ("sh: 1: cannot create /etc/x: Permission denied", Access, Some("/etc/x")),
            ("bash: line 3: /etc/x: Permission denied", Access, Some("/etc/x")),
            ("/bin/bash: line 1: notes: Read-only file system", ReadOnly, Some("notes")),
            (
                "npm error EROFS: read-only file system, symlink '../w/lib' -> '/usr/lib/node_modules/lib'",
                ReadOnly,
                Some("/usr/lib/node_modules/lib"),
            ),
            ("something failed: Read-only file system", ReadOnly, None),
            ("cat: /home/ana/notes: No such file or directory", Missing, Some("/home/ana/notes")),
            ("Error: ENOENT: no such file or directory, open '/home/ana/x'", Missing, Some("/home/ana/x")),
            (
                "FileNotFoundError: [Errno 2] No such file or directory: '/home/ana/y'",
                Missing,
                Some("/home/ana/y"),
            ),
            (
                "error: could not lock config file .git/config: Read-only file system",
                ReadOnly,
                Some(".git/config"),
            ),
            (
                "error: could not lock config file /run/gitconfig: Permission denied",
                Access,
                Some("/run/gitconfig"),
            ),
            (
                "error: could not write config file .git/config: Device or resource busy",
                Busy,
                Some(".git/config"),
            ),
            ("fatal: repository '/home/ana/lib' does not exist", MissingInput, Some("/home/ana/lib")),
            (
                "fatal: '/home/ana/lib.git' does not appear to be a git repository",
                MissingInput,
                Some("/home/ana/lib.git"),
            ),
        ];
        for (line, errno, path) in table {
            let found = refused_path(line).unwrap_or_else(|| panic!("{line}"));
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
            "fatal: 'origin' does not appear to be a git repository",
            "fatal: path 'src/x' does not exist in 'HEAD'",
            "all is well",
        ] {
            assert_eq!(refused_path(line), None, "{line}");
        }
    }

    #[test]
    fn command_path_relative_to_home_is_recognized() {
        for command in
            ["cat ~/x/key", "echo x > ~/x/key; echo y", "echo x >~/x/key", "(cat '/home/ana/x/key')"]
        {
            assert!(names(command, "/home/ana/x/key"), "{command}");
        }
        for command in ["cat ~/", "cat ~/x/keys", "cat key"] {
            assert!(!names(command, "/home/ana/x/key"), "{command}");
        }
    }

    #[test]
    fn printing_commands_differ_from_filters() {
        for command in [
            "cat x",
            "npm test; cat log",
            "git log | head",
            "find . | xargs cat",
            "a || tail x",
            "bash -c 'cat x'",
        ] {
            assert!(prints_files(command), "{command}");
        }
        for command in
            ["npm install 2>&1 | tail -5", "cargo build | grep -v warning | head", "touch /etc/x || true"]
        {
            assert!(!prints_files(command), "{command}");
        }
    }

    #[test]
    fn error_cause_belongs_to_preceding_path() {
        for text in [
            "error: cannot use the directory `/home/ana/.state`\n  because: Read-only file system (os error 30)",
            "error: failed to write /home/ana/.state\n\nCaused by:\n  Read-only file system (os error 30)",
        ] {
            let found: Vec<_> = refused_paths(text).map(|refused| refused.path).collect();
            assert_eq!(found, [Some("/home/ana/.state".to_owned())], "{text}");
        }
    }

    #[test]
    fn path_counts_once_per_tool_call() {
        let mut writes = RefusedPaths::default();
        let line = "touch: cannot touch '/etc/x': Read-only file system\n";
        writes.search(&ToolOutput::Text(line.repeat(3).as_str().into()));
        writes.search(&ToolOutput::Text(line.into()));
        let found: Vec<_> = writes.iter().map(|write| (write.path.as_deref(), write.count)).collect();
        assert_eq!(found, [(Some("/etc/x"), 2)]);
    }

    #[test]
    fn stored_paths_are_bounded() {
        let mut writes = RefusedPaths::default();
        for number in 0..1000 {
            let line =
                format!("touch: cannot touch '/{number}{}': Read-only file system", "x".repeat(10_000));
            writes.search(&ToolOutput::Text(line.as_str().into()));
        }
        assert_eq!(writes.iter().count(), MAX_PATHS);
        assert!(writes.held_bytes() < MAX_PATHS * 3000, "{}", writes.held_bytes());
    }
}
