//! A workspace to attack, with secrets around it.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The first argument that turns this binary into the program under test.
pub const CUE: &str = "--file-tools";
/// The text that must never be read.
pub const SECRET: &str = "the-secret-outside";

pub struct Harness {
    directory: TempDir,
}

/// The result of one run of the program.
#[derive(Debug)]
pub struct CommandResult {
    pub output: Output,
}

impl Harness {
    /// Creates `outside/secret.txt` beside the workspace `ws`, which contains `a.txt`.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        fs::create_dir(directory.path().join("ws")).unwrap();
        let harness = Self { directory };
        fs::write(harness.secret(), SECRET).unwrap();
        harness.put("a.txt", "one\ntwo\nthree\n");
        harness
    }

    pub fn workspace(&self) -> PathBuf {
        self.directory.path().join("ws")
    }

    pub fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    pub fn secret(&self) -> PathBuf {
        self.outside().join("secret.txt")
    }

    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.workspace().join(path)
    }

    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    /// Returns the command without arguments.
    pub fn program() -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .arg(CUE)
            .env_remove("FILE_TOOLS_ROOT")
            .env_remove("FILE_TOOLS_HARDLINKS")
            .stdin(Stdio::null());
        command
    }

    pub fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Self::program();
        command.arg(self.workspace()).args(args);
        command
    }

    pub fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> CommandResult {
        CommandResult { output: self.command(args).output().unwrap() }
    }

    /// Runs the program with content on stdin.
    pub fn feed(&self, args: &[&str], stdin: &[u8]) -> CommandResult {
        let mut command = self.command(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may reject the request before it has read all of stdin.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        CommandResult { output: child.wait_with_output().unwrap() }
    }

    pub fn json(&self, request: &Value) -> CommandResult {
        self.run([request.to_string()])
    }

    /// Lists everything in the workspace by path, to detect changes and leftovers.
    pub fn inventory(&self) -> Vec<String> {
        let listed =
            Command::new("find").arg(self.workspace()).args(["-printf", "%P %y %s\n"]).output().unwrap();
        let mut lines: Vec<_> = String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

impl CommandResult {
    /// Returns the reply: one object on stdout, nothing on stderr, exit code 0.
    #[track_caller]
    pub fn answer(&self) -> Value {
        self.check_secret();
        assert_eq!(self.output.status.code(), Some(0), "{self}");
        assert!(self.output.stderr.is_empty(), "{self}");
        serde_json::from_slice(&self.output.stdout).unwrap()
    }

    /// Returns the code of the rejection: one object on stderr, nothing on stdout, exit code 1.
    #[track_caller]
    pub fn refused(&self) -> String {
        self.check_secret();
        assert_eq!(self.output.status.code(), Some(1), "{self}");
        assert!(self.output.stdout.is_empty(), "{self}");
        let refusal: Value = serde_json::from_slice(&self.output.stderr).unwrap();
        let error = &refusal["error"];
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{self}");
        assert!(error["hint"].as_str().is_some_and(|text| !text.is_empty()), "{self}");
        assert_eq!(error.as_object().unwrap().len(), 3, "{self}");
        error["code"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn check_secret(&self) {
        for stream in [&self.output.stdout, &self.output.stderr] {
            assert!(!String::from_utf8_lossy(stream).contains(SECRET), "the secret is out: {self}");
        }
    }
}

impl std::fmt::Display for CommandResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Output { status, stdout, stderr } = &self.output;
        write!(f, "{status}\n{}\n{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
    }
}

/// Returns `count` lines, each a number between two brackets.
pub fn numbered(count: u32, open: char, close: char) -> String {
    let lines: Vec<String> = (0..count).map(|number| format!("{open}{number}{close}\n")).collect();
    lines.concat()
}
