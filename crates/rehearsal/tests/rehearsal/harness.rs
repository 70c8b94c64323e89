//! Starts agents and observes them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Names a function as a test by its own name.
macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
            vec![$(crate::harness::trial(concat!(module_path!(), "::", stringify!($name)), $name)),+]
        }
    };
}
pub(crate) use tests;

pub(crate) fn trial(path: &str, test: fn()) -> Trial {
    let name = path.trim_start_matches("rehearsal::").to_owned();
    Trial::test(name, move || {
        test();
        Ok::<(), Failed>(())
    })
}

/// Returns the command of the agent.
#[expect(clippy::disallowed_methods, reason = "the tests start the agent they test")]
pub(crate) fn agent(args: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(rehearsal::CUE).args(args.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The result of a run.
pub(crate) struct Played {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Runs the agent to its exit with this prompt.
pub(crate) fn play(args: &str, prompt: impl AsRef<[u8]>) -> Played {
    play_command(agent(args), prompt.as_ref())
}

pub(crate) fn play_command(mut command: Command, prompt: &[u8]) -> Played {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // An agent that rejects its script exits before it has read all of it.
            let _ = stdin.write_all(prompt);
        });
        child.wait_with_output().unwrap()
    });
    Played {
        status: output.status,
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs the agent with these steps in the prompt.
pub(crate) fn play_steps(args: &str, steps: &[&str]) -> Played {
    play(args, prompt_of(steps))
}

pub(crate) fn prompt_of(steps: &[&str]) -> String {
    steps.iter().flat_map(|step| ["@rehearse ", *step, "\n"]).collect()
}

impl Played {
    /// Parses all lines as events.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.stdout).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "the last line has no end: {text}");
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    pub(crate) fn last(&self) -> Value {
        self.events().pop().expect("there is no event")
    }

    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by {}: {}", self.status, self.stderr))
    }

    /// Returns the text of claude's result.
    pub(crate) fn text(&self) -> String {
        self.last()["result"].as_str().expect("the last event has no text").to_owned()
    }
}

/// A running agent; killed on drop.
pub(crate) struct Live {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Live {
    pub(crate) fn start(args: &str, steps: &[&str]) -> Self {
        let mut child = agent(args).spawn().unwrap();
        child.stdin.take().unwrap().write_all(prompt_of(steps).as_bytes()).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Reads up to the event that contains `text`.
    pub(crate) fn read_to(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream ended before `{text}`");
        }
    }

    /// Reads to the end of the stream.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.lines.read_to_end(&mut rest).unwrap();
        rest
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Returns whether any process still holds the other end of stdout, once everything is read.
    pub(crate) fn stream_is_open(&self) -> bool {
        self.comes_within(Duration::ZERO) == 0
    }

    fn comes_within(&self, time: Duration) -> usize {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        assert!(self.lines.buffer().is_empty(), "not everything is read");
        let time = Timespec::try_from(time).unwrap();
        poll(&mut [PollFd::new(self.lines.get_ref(), PollFlags::IN)], Some(&time)).unwrap()
    }

    /// Asserts that the process lives without output and CPU time for a while.
    pub(crate) fn assert_silent(&mut self) {
        let before = cpu_ticks(self.pid());
        assert_eq!(self.comes_within(Duration::from_millis(300)), 0, "something came");
        assert!(self.is_running());
        assert!(cpu_ticks(self.pid()) - before <= 1, "it is busy");
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Descendants by the pid files of a test; killed on drop.
pub(crate) struct Descendants {
    directory: tempfile::TempDir,
}

impl Descendants {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// Returns the step that records them here.
    pub(crate) fn pidfile(&self) -> String {
        format!("pidfile \"{}\"", self.path().display())
    }

    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("pids")
    }

    pub(crate) fn all(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.path()).unwrap_or_default();
        text.lines().map(|line| Pid::from_raw(line.parse().unwrap()).unwrap()).collect()
    }

    /// Returns the only one.
    pub(crate) fn one(&self) -> Pid {
        let all = self.all();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }
}

impl Drop for Descendants {
    fn drop(&mut self) {
        for pid in self.all() {
            // The pid may have been reused.
            if is_alive(pid) && is_ours(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn is_ours(pid: Pid) -> bool {
    let exe = format!("/proc/{}/exe", pid.as_raw_nonzero());
    fs::read_link(exe).ok() == fs::read_link("/proc/self/exe").ok()
}

/// Returns whether the process exists and is not a zombie.
pub(crate) fn is_alive(pid: Pid) -> bool {
    stat(pid).is_some_and(|stat| stat[0] != "Z" && stat[0] != "X")
}

/// Returns the fields of `/proc/PID/stat` from the state on: state, parent, group, session, …
pub(crate) fn stat(pid: Pid) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may contain anything.
    let rest = text.get(text.rfind(')')? + 2..)?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Returns the CPU time in hundredths of a second.
pub(crate) fn cpu_ticks(pid: Pid) -> u64 {
    let stat = stat(pid).unwrap();
    stat[11].parse::<u64>().unwrap() + stat[12].parse::<u64>().unwrap()
}

/// Looks again and again until it is so, or fails after ten seconds.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes a script file.
pub(crate) fn write_script(directory: &Path, text: &str) -> String {
    let path = directory.join("script");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}
