//! Runs git commands in a private git directory and an environment without the configuration of the user.
//!
//! Commands that write objects never see the objects of the user as an alternate: git would set the modification times of
//! objects there that it finds instead of writing them again.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::ChangesError;
use crate::process::{ExitCause, communicate};

/// The part of the environment that git inherits: to find its libraries, and nothing that changes its behavior.
const INHERITED: [&str; 4] = ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DEVELOPER_DIR", "TMPDIR"];
const FIXED: [(&str, &str); 10] = [
    ("HOME", "/nonexistent"),
    ("XDG_CONFIG_HOME", "/nonexistent"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("LC_ALL", "C"),
];
const OPTIONS: [&str; 10] = [
    "--no-optional-locks",
    "--no-pager",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.untrackedCache=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "protocol.allow=never",
];

/// The objects of the user that a private git directory keeps, relative to it. They are read together with those of the user.
pub(crate) const KEPT_OBJECTS: &str = "kept/objects";

/// The git to run. It runs outside of any sandbox, so it must not be in a directory where an agent may have planted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitProgram {
    /// The executable.
    pub program: PathBuf,
    /// The `PATH` for it, under the same condition. A wrapper script finds its interpreter there.
    pub path: OsString,
}

/// The program and the time for one step of a record. A FIFO in place of a `.gitignore` would block git forever.
#[derive(Debug, Clone)]
pub(crate) struct GitSession {
    program: GitProgram,
    limit: Duration,
    deadline: Instant,
}

impl GitSession {
    pub(crate) fn start(program: GitProgram, limit: Duration) -> Self {
        Self { program, limit, deadline: Instant::now() + limit }
    }
}

/// A private git directory, combined with the worktree and the objects of the user.
#[derive(Debug, Clone)]
#[expect(clippy::struct_field_names, reason = "a git directory is a term of git")]
pub(crate) struct Git {
    pub(crate) git_dir: PathBuf,
    pub(crate) worktree: PathBuf,
    /// The object directory of the user, for commands that only read.
    pub(crate) user_objects: PathBuf,
    /// The length of an object id: 40 for SHA-1, 64 for SHA-256.
    pub(crate) id_length: usize,
    pub(crate) session: GitSession,
}

/// One command of git.
#[derive(Debug, Clone)]
#[must_use]
pub(crate) struct GitCommand<'a> {
    git: &'a Git,
    name: &'static str,
    args: Vec<OsString>,
    index: Option<PathBuf>,
    reads_user_objects: bool,
    objects: Option<PathBuf>,
    author: Option<(String, String)>,
    input: Vec<u8>,
}

impl Git {
    pub(crate) fn command(&self, name: &'static str) -> GitCommand<'_> {
        let (args, input) = (Vec::new(), Vec::new());
        let (index, objects, author) = (None, None, None);
        GitCommand { git: self, name, args, index, reads_user_objects: false, objects, author, input }
    }

    /// Fails if the time is up. For the work between two commands, on a slow file system.
    pub(crate) fn check_time(&self) -> Result<(), ChangesError> {
        let GitSession { limit, deadline, .. } = &self.session;
        if Instant::now() < *deadline {
            return Ok(());
        }
        Err(ChangesError::TimedOut { worktree: self.worktree.clone(), limit: *limit })
    }
}

impl GitCommand<'_> {
    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets the index file. Without one, the command sees an empty index.
    pub(crate) fn index(mut self, index: &Path) -> Self {
        self.index = Some(index.to_owned());
        self
    }

    /// Lets the command read the objects of the user. Must not be used for a command that writes objects.
    pub(crate) fn with_user_objects(mut self) -> Self {
        self.reads_user_objects = true;
        self
    }

    /// Lets the command write objects to another directory, and read only those there.
    pub(crate) fn writing_to(mut self, objects: &Path) -> Self {
        self.objects = Some(objects.to_owned());
        self
    }

    /// Sets the author and committer of a commit.
    pub(crate) fn author(mut self, name: &str, email: &str) -> Self {
        self.author = Some((name.to_owned(), email.to_owned()));
        self
    }

    pub(crate) fn input(mut self, input: Vec<u8>) -> Self {
        self.input = input;
        self
    }

    /// Runs the command and returns its standard output. Any exit status but 0 is an error.
    pub(crate) fn run(self) -> Result<Vec<u8>, ChangesError> {
        self.run_accepting(|code| code == 0).map(|(_, stdout)| stdout)
    }

    /// Runs the command and returns its exit status and standard output, if the exit status is accepted.
    pub(crate) fn run_accepting(self, accept: impl Fn(i32) -> bool) -> Result<(i32, Vec<u8>), ChangesError> {
        self.exchange(accept, &mut |_| true)
    }

    /// Runs the command with a receiver, which looks at the standard output whenever it grows, and can remove a part of it. If the receiver
    /// returns false, the command is stopped. Returns the rest of the output.
    pub(crate) fn run_receiving(
        self,
        receive: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<Vec<u8>, ChangesError> {
        self.exchange(|code| code == 0, receive).map(|(_, stdout)| stdout)
    }

    fn exchange(
        self,
        accept: impl Fn(i32) -> bool,
        receive: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<(i32, Vec<u8>), ChangesError> {
        let (command, worktree) = (self.name, self.git.worktree.clone());
        let GitSession { limit, deadline, .. } = self.git.session;
        let child = self.spawn().map_err(|source| match source.kind() {
            // A missing working directory is reported as ENOENT, too.
            ErrorKind::NotFound | ErrorKind::NotADirectory if !worktree.is_dir() => {
                ChangesError::WorktreeMissing { path: worktree.clone() }
            }
            _ => ChangesError::GitMissing { source },
        })?;
        let output = communicate(child, &self.input, deadline, receive);
        let output = output.map_err(|source| ChangesError::GitMissing { source })?;
        match (output.cause, output.status.code()) {
            (ExitCause::TimedOut, _) => Err(ChangesError::TimedOut { worktree, limit }),
            (ExitCause::Stopped, _) => Ok((0, output.stdout)),
            (ExitCause::Finished, Some(code)) if accept(code) => Ok((code, output.stdout)),
            (ExitCause::Finished, _) => {
                let message = format!("{} ({})", join_lines(&output.stderr), output.status);
                Err(ChangesError::GitFailed { command, worktree, message })
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the only place that starts git")]
    fn spawn(&self) -> io::Result<Child> {
        let GitProgram { program, path } = &self.git.session.program;
        let mut command = Command::new(program);
        command.env_clear().env("PATH", path);
        for name in INHERITED {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs(FIXED);
        command.env("GIT_DIR", &self.git.git_dir).env("GIT_WORK_TREE", &self.git.worktree);
        // A missing index is an empty one. Without the variable, git would use the one in its directory.
        let no_index = self.git.git_dir.join("no-index");
        command.env("GIT_INDEX_FILE", self.index.as_deref().unwrap_or(&no_index));
        if self.reads_user_objects {
            let mut alternates = quote_alternate(&self.git.user_objects);
            let kept = self.git.git_dir.join(KEPT_OBJECTS);
            if kept.is_dir() {
                alternates.push(":");
                alternates.push(quote_alternate(&kept));
            }
            command.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternates);
        }
        if let Some(objects) = &self.objects {
            command.env("GIT_OBJECT_DIRECTORY", objects);
        }
        if let Some((name, email)) = &self.author {
            command.env("GIT_AUTHOR_NAME", name).env("GIT_AUTHOR_EMAIL", email);
            command.env("GIT_COMMITTER_NAME", name).env("GIT_COMMITTER_EMAIL", email);
        }
        command.args(OPTIONS).arg(self.name).args(&self.args).current_dir(&self.git.worktree);
        let stdin = if self.input.is_empty() { Stdio::null() } else { Stdio::piped() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    }
}

/// Quotes a path for a list of alternates: a colon would separate two of them.
pub(crate) fn quote_alternate(path: &Path) -> OsString {
    let mut quoted = vec![b'"'];
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', byte]),
            b' '..=b'~' => quoted.push(byte),
            _ => quoted.extend(format!("\\{byte:03o}").into_bytes()),
        }
    }
    quoted.push(b'"');
    OsString::from_vec(quoted)
}

/// Joins the messages of git to one line of printable characters, at most 400 of them.
fn join_lines(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().map(|c| if c.is_control() { '?' } else { c }).take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_joined_to_one_printable_line() {
        assert_eq!(join_lines(b"error: a\x1b[31m\n\n  fatal: b\r\n"), "error: a?[31m; fatal: b");
        assert_eq!(join_lines(&[b'x'; 1000]).len(), 400);
    }

    #[test]
    fn alternate_with_special_bytes_is_quoted() {
        let path = Path::new(OsStr::from_bytes(b"/a:b\"c\\\n\xff"));
        assert_eq!(quote_alternate(path), OsStr::new(r#""/a:b\"c\\\012\377""#));
    }
}
