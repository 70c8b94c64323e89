//! The pinned real CLIs, and one run of one of them.
//!
//! Searches programs only below the given tools directory; never in PATH. Owns the process: when a run ends, or its future is
//! dropped, its whole process group is killed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::home::Environment;
use crate::server::ModelApi;

/// The CLI of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Agent {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// Gemini CLI.
    Gemini,
    /// `OpenCode`.
    OpenCode,
    /// Qwen Code.
    Qwen,
    /// Kimi Code.
    Kimi,
}

impl Agent {
    /// Those with a format of their own.
    pub const OWN_FORMAT: [Self; 3] = [Self::Claude, Self::Codex, Self::Gemini];
    /// Those that speak the Agent Client Protocol.
    pub const ACP: [Self; 3] = [Self::OpenCode, Self::Qwen, Self::Kimi];

    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::OpenCode => "opencode",
            Self::Qwen => "qwen",
            Self::Kimi => "kimi",
        }
    }
}

/// An installed CLI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cli {
    /// The CLI.
    pub agent: Agent,
    /// Its version.
    pub version: String,
    /// Its executable.
    pub program: PathBuf,
}

impl Cli {
    /// Lists the CLIs that `scripts/agents-install` installed below `tools`, by name and version. Empty without such a
    /// directory.
    pub fn installed(tools: &Path) -> Vec<Self> {
        let directories = fs::read_dir(tools.join("agents")).into_iter().flatten().flatten();
        let mut found: Vec<Self> =
            directories.filter_map(|directory| Self::in_directory(&directory.path())).collect();
        found.sort_by(|a, b| (a.agent, &a.version).cmp(&(b.agent, &b.version)));
        found
    }

    fn in_directory(directory: &Path) -> Option<Self> {
        // A name may have a dash, as that of `claude-agent-acp` has.
        let (name, version) = directory.file_name()?.to_str()?.rsplit_once('-')?;
        let mut known = Agent::OWN_FORMAT.into_iter().chain(Agent::ACP);
        let agent = known.find(|agent| agent.name() == name)?;
        let program = fs::canonicalize(directory.join("program")).ok()?;
        Some(Self { agent, version: version.to_owned(), program })
    }

    /// Returns the environment of an isolated `home` in which this CLI uses only `api`.
    pub fn environment(&self, api: &ModelApi, home: &Path) -> io::Result<Environment> {
        match self.agent {
            Agent::Claude => api.claude_env(home),
            Agent::Codex => api.codex_env(home),
            Agent::Gemini => api.gemini_env(home),
            Agent::OpenCode => api.opencode_env(home),
            Agent::Qwen => api.qwen_env(home),
            Agent::Kimi => api.kimi_env(home),
        }
    }
}

/// A command to run.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The whole environment.
    pub environment: Environment,
    /// The working directory.
    pub cwd: PathBuf,
    /// The content of stdin.
    pub stdin: Vec<u8>,
}

/// The exit code and output of a run.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code; a signal `n` is `128 + n`, as in a shell.
    pub exit: i32,
    /// All of stdout.
    pub stdout: String,
    /// All of stderr.
    pub stderr: String,
}

impl Invocation {
    /// Runs to the exit, or returns an error of kind [`io::ErrorKind::TimedOut`] after `limit`.
    pub async fn run(&self, limit: Duration) -> io::Result<Ended> {
        let run = self.start()?;
        timeout(limit, run.end()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Starts the program in a process group of its own.
    #[expect(
        clippy::disallowed_methods,
        reason = "test support: runs the real CLIs with no supervisor in between"
    )]
    pub fn start(&self) -> io::Result<Running> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir(&self.cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or(io::ErrorKind::NotFound)?;
        let stdin = child.stdin.take().map(|pipe| (pipe, self.stdin.clone()));
        Ok(Running { group: Group(Some(pid)), pid, child, stdin })
    }
}

/// A running process. Dropping it kills its process group.
#[derive(Debug)]
pub struct Running {
    // First, so that it is dropped first: the group is signaled before its leader can be reaped.
    group: Group,
    pid: Pid,
    child: Child,
    stdin: Option<(tokio::process::ChildStdin, Vec<u8>)>,
}

/// A process group that has not been killed yet.
#[derive(Debug)]
struct Group(Option<Pid>);

impl Group {
    fn kill(&mut self) {
        if let Some(leader) = self.0.take() {
            // An empty group is the best case, not an error.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Running {
    /// Returns the process id, to send a signal.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends SIGTERM to the program itself, not to its group.
    pub fn terminate(pid: Pid) -> io::Result<()> {
        Ok(kill_process(pid, Signal::TERM)?)
    }

    /// Writes stdin, collects both outputs, and waits for the exit.
    pub async fn end(mut self) -> io::Result<Ended> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let out = self.child.stdout.take();
        let err = self.child.stderr.take();
        let stdin = self.stdin.take();
        let feed = async {
            if let Some((mut pipe, bytes)) = stdin {
                // A program that does not read its stdin reports so by its exit.
                let _ = pipe.write_all(&bytes).await;
            }
            Ok(())
        };
        let read_out = async {
            match out {
                Some(mut pipe) => pipe.read_to_end(&mut stdout).await.map(drop),
                None => Ok(()),
            }
        };
        let read_err = async {
            match err {
                Some(mut pipe) => pipe.read_to_end(&mut stderr).await.map(drop),
                None => Ok(()),
            }
        };
        tokio::try_join!(feed, read_out, read_err)?;
        let leader = WaitId::Pid(self.pid);
        // Waits without reaping: a reaped pid can be reused, and the group still has to be signaled by it.
        let _ = tokio::task::spawn_blocking(move || {
            waitid(leader, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        })
        .await;
        self.group.kill();
        let status = self.child.wait().await?;
        let signal = std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or_default();
        Ok(Ended {
            exit: status.code().unwrap_or(128 + signal),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })
    }
}
