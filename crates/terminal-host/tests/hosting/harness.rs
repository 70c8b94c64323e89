//! Starts the program with an agent, and plays its client.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, test_kill_process};
use serde_json::{Value, json};

/// The first argument of the program under test.
pub const CUE: &str = "--terminal-host";

/// Functions of an agent in shell: `ask METHOD PARAMS` sends a request and sets `reply`.
const PRELUDE: &str = r#"
number=0
request() { number=$((number + 1)); printf '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}\n' "$number" "$1" "$2"; }
ask() { request "$1" "$2"; IFS= read -r reply; }
create() { ask terminal/create "$1"; id=${reply#*\"terminalId\":\"}; id=${id%%\"*}; this="{\"sessionId\":\"s\",\"terminalId\":\"$id\"}"; }
tell() { printf '%s\n' "$reply"; }
"#;

/// The program with its agent; killed on drop.
pub struct Host {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Host {
    /// Starts an agent that is a shell script.
    pub fn start(script: &str) -> Self {
        Self::start_program("/bin/sh", &["-c", &format!("{PRELUDE}\n{script}")])
    }

    pub fn start_program(program: &str, args: &[&str]) -> Self {
        Self::start_with(&[&[program], args].concat())
    }

    /// Starts the program with these arguments.
    #[expect(clippy::disallowed_methods, reason = "the tests start the program they test")]
    pub fn start_with(args: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(CUE).args(args).env("FROM_THE_AGENT", "inherited");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, lines }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stdin.as_mut().unwrap().write_all(bytes.as_ref()).unwrap();
    }

    pub fn take_stdin(&mut self) -> ChildStdin {
        self.stdin.take().unwrap()
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Reads the next line without its line feed.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.lines.read_until(b'\n', &mut line).unwrap();
        assert_eq!(line.pop(), Some(b'\n'), "the stream has ended");
        String::from_utf8(line).unwrap()
    }

    /// Reads the next reply that the agent printed.
    pub fn json(&mut self) -> Value {
        let line = self.line_of_the_agent();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Reads the next line that is no notification of the program itself.
    pub fn line_of_the_agent(&mut self) -> String {
        loop {
            let line = self.line();
            if !line.contains("_switchboard/terminal_output") {
                return line;
            }
        }
    }

    /// Reads the next line as a number.
    pub fn pid(&mut self) -> Pid {
        Pid::from_raw(self.line_of_the_agent().parse().unwrap()).unwrap()
    }

    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.lines.read_to_end(&mut rest).unwrap();
        rest
    }

    pub fn own_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a request of an agent, for a shell script.
pub fn create(command: &str) -> String {
    create_with(json!({ "command": "/bin/sh", "args": ["-c", command] }))
}

/// Returns the step that creates a terminal with these parameters.
pub fn create_with(params: Value) -> String {
    let mut params = params;
    params["sessionId"] = json!("s");
    format!("create '{}'\n", params.to_string().replace('\'', r"'\''"))
}

/// Returns whether a process exists.
pub fn exists(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

/// Blocks until a process that is no child of this one has exited.
pub fn wait_until_dead(pid: Pid) {
    // An error means that it is gone. A zombie is readable, too.
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
    }
}

pub fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

/// Continues a process once it is stopped.
pub fn wake(pid: Pid) {
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
    kill_process(pid, Signal::CONT).unwrap();
}

pub fn terminate(pid: Pid) {
    kill_process(pid, Signal::TERM).unwrap();
}
