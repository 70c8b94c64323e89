//! A home of its own for a test, the programs in it, and nothing left of them afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use model_api::cli::{Agent, Cli};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long a test waits for something.
const LONGEST_WAIT: Duration = Duration::from_mins(2);

/// Longer than anything takes on a busy machine; a test that needs it has failed.
pub const AT_MOST: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

pub struct Bed {
    root: TempDir,
    pub home: PathBuf,
}

impl Bed {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("home");
        Self { root, home }
    }

    /// With a home so deep that no socket's address could name it.
    pub fn deep() -> Self {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("x".repeat(120)).join("y".repeat(120));
        Self { root, home }
    }

    pub fn scratch(&self) -> &Path {
        self.root.path()
    }

    /// A directory for agents. Beside the state and not around it: without namespaces such a workspace is refused.
    pub fn work(&self) -> PathBuf {
        let work = self.scratch().join("work");
        fs::create_dir_all(&work).unwrap();
        work
    }

    pub fn state(&self) -> PathBuf {
        self.home.join("state")
    }

    pub fn configure(&self, text: &str) {
        fs::create_dir_all(&self.home).unwrap();
        fs::write(self.home.join("config.toml"), text).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_switchboard"));
        command.env_clear().env("SWITCHBOARD_HOME", &self.home).args(args).stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The daemon that runs, started here when there is none.
    pub fn daemon(&self) -> Daemon {
        let output = self.run(&["serve", "--background"]);
        assert!(output.status.success(), "{output:?}");
        self.running().unwrap()
    }

    /// The daemon that holds the lock now.
    pub fn running(&self) -> Option<Daemon> {
        let mut lock = OpenOptions::new().read(true).open(self.state().join("daemon.lock")).ok()?;
        if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
            return None;
        }
        let mut text = String::new();
        lock.read_to_string(&mut text).unwrap();
        let holder: Value = serde_json::from_str(&text).ok()?;
        let pid = Pid::from_raw(holder["pid"].as_i64()?.try_into().unwrap())?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Daemon { pid, process, socket: holder["socket"].as_str().map(PathBuf::from) })
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.state().join("logs/daemon.log")).unwrap_or_default()
    }

    /// How many daemons of this home have said that they are ready.
    pub fn ready(&self) -> usize {
        self.log().matches("INFO switchboard::daemon: ready").count()
    }

    pub fn bridge(&self) -> Host {
        Host::start(self.command(&["mcp"]))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(daemon) = self.running() {
            daemon.signal(Signal::KILL);
            daemon.wait();
        }
    }
}

pub struct Daemon {
    pub pid: Pid,
    process: OwnedFd,
    pub socket: Option<PathBuf>,
}

impl Daemon {
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Waits until it is gone.
    pub fn wait(&self) {
        assert_eq!(
            poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&AT_MOST)),
            Ok(1),
            "it is still there"
        );
    }

    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.wait();
    }
}

/// An MCP host that has started a bridge.
pub struct Host {
    pub child: Child,
    pub input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Host {
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), output, child }
    }

    pub fn say_bytes(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub fn say(&mut self, message: &Value) {
        self.say_bytes(format!("{message}\n").as_bytes());
    }

    pub fn ask(&mut self, id: impl Into<Value>, method: &str, params: &Value) {
        self.say(&json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}));
    }

    /// The next line, which is JSON: nothing else is ever on stdout.
    pub fn hear(&mut self) -> Value {
        let mut line = Vec::new();
        self.output.read_until(b'\n', &mut line).unwrap();
        serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line)))
    }

    /// Whether nothing is said to it for so long.
    pub fn is_silent_for(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).unwrap();
        let said = PollFd::new(self.output.get_ref(), PollFlags::IN);
        self.output.buffer().is_empty() && poll(&mut [said], Some(&time)) == Ok(0)
    }

    /// Greets as hosts do.
    pub fn greet(&mut self) {
        let client = json!({"name": "a test", "version": "1"});
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        self.ask(0, "initialize", &params);
        let answer = self.hear();
        assert!(answer["id"] == 0 && answer["result"].is_object(), "{answer}");
        self.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    /// Closes all its ends at once, as the kernel does for a host that is killed, and waits until the bridge has ended by itself.
    pub fn hang_up(mut self) {
        drop(self.input.take());
        drop(self.child.stderr.take());
        self.output = BufReader::new(ChildStdout::from(OwnedFd::from(File::open("/dev/null").unwrap())));
        self.child.wait().unwrap();
    }

    pub fn ping(&mut self, id: u64) -> Value {
        self.ask(id, "ping", &json!({}));
        self.hear()
    }

    /// Closes its end; what the bridge said besides, on stdout and on stderr.
    pub fn end(mut self) -> (String, String) {
        drop(self.input.take());
        let (mut rest, mut aside) = (String::new(), String::new());
        self.output.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut aside).unwrap();
        assert!(self.child.wait().unwrap().success());
        (rest, aside)
    }
}

/// Waits until something holds, longer than anything takes on a busy machine; a test that needs all of it has failed.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up_at = Instant::now() + LONGEST_WAIT;
    while !holds() {
        assert!(Instant::now() < give_up_at, "{what}: not within {LONGEST_WAIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Holds the daemon's lock as a daemon that a test plays does.
pub fn hold_lock(bed: &Bed) -> File {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(bed.state()).unwrap();
    let lock = File::create(bed.state().join("daemon.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    lock
}

/// Returns the newest installed version of an agent; prints that the test is skipped when there is none.
pub fn newest(agent: Agent) -> Option<Cli> {
    let named = std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    let tools = named.or_else(|| Some(std::env::home_dir()?.join(".cache/switchboard-tools")))?;
    let found = Cli::installed(&tools).into_iter().rfind(|cli| cli.agent == agent);
    if found.is_none() {
        println!("SKIPPED: {} is not installed; scripts/agents-install does that", agent.name());
    }
    found
}
