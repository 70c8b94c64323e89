//! An installation of Switchboard, as a user would have it: a home with a configuration, a daemon started on demand, bridges.
//!
//! Owns the daemon, and stops it on drop.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Failure;
use crate::census::{self, Mark};
use crate::client::BenchHost;
use crate::executables::Executables;

/// The default number of concurrent calls.
pub const AT_ONCE: usize = 32;
/// The maximum number of concurrent calls.
pub const MOST_AT_ONCE: usize = 64;
/// The prompt of every agent.
pub const PROMPT: &str = "Say hello.";
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const TIMEOUT: Duration = Duration::from_secs(30);

/// A home directory and the programs that use it.
#[derive(Debug)]
pub struct Installation {
    switchboard: PathBuf,
    home: PathBuf,
    workspace: PathBuf,
    mark: Option<Mark>,
}

impl Installation {
    /// Sets up the stub in place of `claude`, without a sandbox by default, because the baseline has none. No daemon runs yet.
    pub fn with_stub(executables: &Executables, work: &Path) -> Result<Self, Failure> {
        let stub = quoted(&executables.stub)?;
        let config = format!(
            "[limits]\nat_once = {MOST_AT_ONCE}\n\n[retention]\nmax_count = \"off\"\n\n[sandbox]\npolicy = \"off\"\n\n[programs]\nclaude = {stub}\n\n[agents.stub]\nacp = [{stub}, \"--acp\"]\n"
        );
        Self::install(executables, work, &config)
    }

    /// Writes a configuration. No daemon runs yet.
    pub fn install(executables: &Executables, work: &Path, config: &str) -> Result<Self, Failure> {
        let work = work.canonicalize()?;
        let (home, workspace) = (work.join("home"), work.join("workspace"));
        fs::create_dir_all(&home)?;
        fs::create_dir_all(&workspace)?;
        fs::write(home.join("config.toml"), config)?;
        Ok(Self { switchboard: executables.switchboard.clone(), home, workspace, mark: None })
    }

    /// Marks every started process except the agents, which get selected variables only.
    pub fn marked(mut self, mark: &Mark) -> Self {
        self.mark = Some(mark.clone());
        self
    }

    /// Returns the working directory of the agents.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// A bridge, as a host starts it.
    pub fn bridge(&self) -> Command {
        self.command("mcp")
    }

    /// A host that has been greeted.
    pub fn host(&self) -> Result<BenchHost, Failure> {
        let mut client = BenchHost::start(self.bridge())?;
        client.initialize()?;
        Ok(client)
    }

    /// Returns a call with that prompt, and a progress token if progress is requested.
    pub fn call(&self, prompt: &str, token: Option<u64>) -> Value {
        let mut params =
            json!({ "name": "call_cc", "arguments": { "prompt": prompt, "cwd": self.workspace } });
        if let Some(token) = token {
            params["_meta"] = json!({ "progressToken": token });
        }
        params
    }

    /// The short call.
    pub fn hello(&self) -> Value {
        self.call(PROMPT, None)
    }

    /// The short call to the stub as an agent that speaks the Agent Client Protocol.
    pub fn hello_over_acp(&self) -> Value {
        let arguments = json!({ "agent": "stub", "prompt": PROMPT, "cwd": self.workspace });
        json!({ "name": "call_agent", "arguments": arguments })
    }

    /// Returns the state directory.
    pub fn state(&self) -> PathBuf {
        self.home.join("state")
    }

    /// The process of the daemon, as long as it lives. The lock of one that was killed still names it, and its number may by now be
    /// another's.
    pub fn daemon(&self) -> Result<u32, Failure> {
        let lock: Value = serde_json::from_slice(&fs::read(self.lock())?)?;
        let pid = lock["pid"].as_u64().ok_or("the daemon's lock contains no pid")?;
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
        if program != self.switchboard.canonicalize().ok() {
            return Err("the daemon is gone".into());
        }
        Ok(u32::try_from(pid)?)
    }

    /// Ends the daemon, and waits until it is gone.
    pub fn stop(&self) -> Result<(), Failure> {
        let Ok(daemon) = self.daemon() else { return Ok(()) };
        let stopped =
            self.command("stop").arg("--cancel").stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        let give_up_at = Instant::now() + TIMEOUT;
        while is_there(daemon) {
            if Instant::now() > give_up_at {
                return Err(format!("the daemon does not exit: `switchboard stop` printed {stopped}").into());
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn lock(&self) -> PathBuf {
        self.state().join("daemon.lock")
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.switchboard);
        command
            .arg(verb)
            .env_clear()
            .env("SWITCHBOARD_HOME", &self.home)
            .env("HOME", &self.home)
            .env("PATH", "/usr/bin:/bin")
            .envs(self.mark.iter().map(|mark| (census::VARIABLE, mark.text())))
            .current_dir(&self.workspace);
        command
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// A path as TOML has it: a string of JSON is one of TOML.
pub fn quoted(path: &Path) -> Result<Value, Failure> {
    Ok(Value::from(path.to_str().ok_or_else(|| format!("`{}` is not UTF-8", path.display()))?))
}

/// Returns whether the daemon runs. It is not a child of this process, so it leaves no zombie.
pub fn is_there(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}

/// A call that failed fast must not pass for a fast call.
pub fn check(result: &Value) -> Result<(), Failure> {
    let answer = &result["structuredContent"];
    if answer["status"] == "completed" && answer["output"] == "Hello." {
        Ok(())
    } else {
        Err(format!("unexpected result of a call: {result}").into())
    }
}
