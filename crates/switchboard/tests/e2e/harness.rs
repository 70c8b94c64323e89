//! A private Switchboard home for a test, with its daemon and hosts. Kills the daemon on drop.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use model_api::cli::{Agent, Cli};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Bounds every wait for a process. Longer than any step takes on a busy machine.
pub const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

pub struct Harness {
    root: TempDir,
    pub home: PathBuf,
}

impl Harness {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("home");
        Self { root, home }
    }

    /// Creates a home whose path exceeds `sun_path`.
    pub fn with_deep_home() -> Self {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("x".repeat(120)).join("y".repeat(120));
        Self { root, home }
    }

    pub fn scratch(&self) -> &Path {
        self.root.path()
    }

    /// Creates a working directory for agents. It does not contain the state directory: without namespaces, that would be rejected.
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

    /// Returns the running daemon, and starts one if there is none.
    pub fn daemon(&self) -> Daemon {
        let output = self.run(&["serve", "--background"]);
        assert!(output.status.success(), "{output:?}");
        self.running_daemon().unwrap()
    }

    /// Returns the daemon that holds the lock.
    pub fn running_daemon(&self) -> Option<Daemon> {
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

    /// Returns how many daemons of this home became ready.
    pub fn ready_count(&self) -> usize {
        self.log().matches("INFO switchboard::daemon: ready").count()
    }

    pub fn bridge(&self) -> TestHost {
        TestHost::start(self.command(&["mcp"]))
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if let Some(daemon) = self.running_daemon() {
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

    /// Waits until the daemon has exited.
    pub fn wait(&self) {
        assert_eq!(
            poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&EXIT_TIMEOUT)),
            Ok(1),
            "still running"
        );
    }

    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.wait();
    }
}

/// An MCP host with a bridge.
pub struct TestHost {
    pub child: Child,
    pub input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl TestHost {
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), output, child }
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub fn send(&mut self, message: &Value) {
        self.send_bytes(format!("{message}\n").as_bytes());
    }

    pub fn request(&mut self, id: impl Into<Value>, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}));
    }

    /// Receives the next message. stdout contains nothing but JSON lines.
    pub fn receive(&mut self) -> Value {
        let mut line = Vec::new();
        self.output.read_until(b'\n', &mut line).unwrap();
        serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line)))
    }

    /// Returns whether no message arrives within a time.
    pub fn receives_nothing_for(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).unwrap();
        let output = PollFd::new(self.output.get_ref(), PollFlags::IN);
        self.output.buffer().is_empty() && poll(&mut [output], Some(&time)) == Ok(0)
    }

    /// Sends `initialize` and `notifications/initialized`.
    pub fn initialize(&mut self) {
        let client = json!({"name": "a test", "version": "1"});
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        self.request(0, "initialize", &params);
        let answer = self.receive();
        assert!(answer["id"] == 0 && answer["result"].is_object(), "{answer}");
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    /// Closes all pipes at once, as the kernel does for a killed host, and waits until the bridge exits.
    pub fn disconnect(mut self) {
        drop(self.input.take());
        drop(self.child.stderr.take());
        self.output = BufReader::new(ChildStdout::from(OwnedFd::from(File::open("/dev/null").unwrap())));
        self.child.wait().unwrap();
    }

    pub fn ping(&mut self, id: u64) -> Value {
        self.request(id, "ping", &json!({}));
        self.receive()
    }

    /// Closes stdin and returns the remaining stdout and the stderr of the bridge.
    pub fn finish(mut self) -> (String, String) {
        drop(self.input.take());
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.output.read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(self.child.wait().unwrap().success());
        (stdout, stderr)
    }
}

impl Drop for TestHost {
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

/// Holds the daemon's lock for a fake daemon.
pub fn hold_lock(harness: &Harness) -> File {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(harness.state()).unwrap();
    let lock = File::create(harness.state().join("daemon.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    lock
}

/// Returns the newest installed version of an agent; reports a skip if there is none.
pub fn newest(agent: Agent) -> Option<Cli> {
    let named = std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    let tools = named.or_else(|| Some(std::env::home_dir()?.join(".cache/switchboard-tools")))?;
    let found = Cli::installed(&tools).into_iter().rfind(|cli| cli.agent == agent);
    if found.is_none() {
        println!("SKIPPED: {} is not installed; scripts/agents-install does that", agent.name());
    }
    found
}
