//! Probes a program for its version and flags: the only place in this crate that spawns a process.
//!
//! Bounded: the agent's allowlisted environment, no stdin, ten seconds, 256 KiB of output. Only a descendant that leaves the
//! process group survives. Agents themselves are spawned by the supervisor, which also tracks those.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use model::AgentKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, set_parent_process_death_signal, waitid,
};
use serde::{Deserialize, Serialize};

use crate::{AgentProfile, LaunchRules, environment};

const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_OUTPUT: usize = 256 * 1024;

/// The output of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The output of `--version`.
    pub version: String,
    /// The output of `--help` (for codex: `exec --help`). Empty for an agent without flags that matter.
    pub help: String,
}

/// A failed probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The program cannot be spawned.
    #[error("cannot start `{}`", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The program did not exit in time.
    #[error("`{} {}` did not end within {} s", program.display(), args.join(" "), TIMEOUT.as_secs())]
    TooSlow {
        /// The program.
        program: PathBuf,
        /// The arguments.
        args: Vec<String>,
    },
    /// The program failed.
    #[error("`{} {}` failed: {}", program.display(), args.join(" "), output.lines().next().unwrap_or_default())]
    Failed {
        /// The program.
        program: PathBuf,
        /// The arguments.
        args: Vec<String>,
        /// Its output.
        output: String,
    },
}

impl ProbeError {
    /// Returns the remedy.
    pub fn hint(&self, kind: AgentKind) -> String {
        match self {
            Self::Start { program, source } => {
                format!("{source}: check `{}`, or install {kind} anew", program.display())
            }
            Self::TooSlow { .. } => format!("start `{kind}` once by hand to see what it waits for"),
            Self::Failed { .. } => format!("reinstall {kind}; it may need another version of Node.js"),
        }
    }
}

impl Probe {
    /// Runs the probe commands of a program.
    pub fn run(
        profile: &AgentProfile,
        program: &Path,
        inherited: &BTreeMap<String, String>,
    ) -> Result<Self, ProbeError> {
        let mut env = environment(&profile.variables, inherited);
        let home = (profile.agent == AgentKind::Gemini).then(|| ScratchHome::create(inherited)).flatten();
        if let Some(ScratchHome(home)) = &home {
            env.insert("GEMINI_CLI_HOME".to_owned(), home.to_string_lossy().into_owned());
        }
        let version: Vec<&str> = profile.version_args.iter().map(String::as_str).collect();
        let version = run_bounded(program, &version, &env)?;
        // The options of a protocol are negotiated, not flags.
        let help: &[&str] = match &profile.launch {
            LaunchRules::Claude | LaunchRules::Gemini => &["--help"],
            LaunchRules::Codex => &["exec", "--help"],
            LaunchRules::Acp(_) | LaunchRules::Plain(_) => return Ok(Self { version, help: String::new() }),
        };
        Ok(Self { version, help: run_bounded(program, help, &env)? })
    }
}

/// A temporary home directory for gemini, which leaves files there even for `--version`. Removed on drop.
struct ScratchHome(PathBuf);

impl ScratchHome {
    /// Returns `None` if no directory can be created; gemini then uses the user's home directory.
    fn create(inherited: &BTreeMap<String, String>) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = inherited.get("TMPDIR").filter(|path| path.starts_with('/'));
        let directory = directory.map_or("/tmp", String::as_str);
        let home = Path::new(directory).join(format!("switchboard-probe-{}-{number}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&home).ok()?;
        Some(Self(home))
    }
}

impl Drop for ScratchHome {
    fn drop(&mut self) {
        // The process group was killed, so no process writes there.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program until it exits, times out or exceeds the output limit, then kills its process group.
pub(super) fn run_bounded(
    program: &Path,
    args: &[&str],
    env: &BTreeMap<String, String>,
) -> Result<String, ProbeError> {
    let cannot_start = |source| ProbeError::Start { program: program.to_owned(), source };
    let mut child = command(program, args, env).spawn().map_err(cannot_start)?;
    let mut streams = [PipeOutput::new(child.stdout.take()), PipeOutput::new(child.stderr.take())];
    let ended = drain(&child, &mut streams);
    // Signal the group before reaping its leader: until then neither id can be reused.
    if let Some(group) = pid(&child) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().map_err(cannot_start)?;
    streams.iter_mut().for_each(PipeOutput::read);
    let [stdout, stderr] = streams.map(PipeOutput::text);
    let (program, args) = (program.to_owned(), args.iter().map(|arg| (*arg).to_owned()).collect());
    match ended {
        false => Err(ProbeError::TooSlow { program, args }),
        true if status.success() => Ok(stdout),
        true => {
            let output = if stderr.trim().is_empty() { stdout } else { stderr };
            Err(ProbeError::Failed { program, args, output: output.trim().chars().take(2000).collect() })
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that asks a program for its version; no agent is run here"
)]
#[expect(unsafe_code, reason = "a death signal can only be asked for by the child itself")]
fn command(program: &Path, args: &[&str], env: &BTreeMap<String, String>) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(env)
        // The relaunch of gemini's process takes a second.
        .env("GEMINI_CLI_NO_RELAUNCH", "true")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    // SAFETY: one system call, which neither allocates nor locks.
    unsafe {
        // Ctrl-C does not reach the new process group, so the child has to die with its parent.
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Reads the output until the child exits. Returns whether it exited by itself.
fn drain(child: &Child, streams: &mut [PipeOutput; 2]) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline && streams.iter().all(|stream| stream.bytes.len() < MAX_OUTPUT) {
        streams.iter_mut().for_each(PipeOutput::read);
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match pid(child).map(|pid| waitid(WaitId::Pid(pid), peek)) {
            Some(Ok(None)) => {}
            _ => return true,
        }
        let pipes = streams.iter().filter_map(|stream| stream.pipe.as_ref());
        let mut files: Vec<PollFd<'_>> =
            pipes.map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)).collect();
        // A pipe held open by a grandchild hides the exit of the child, so poll with a timeout.
        let _ = poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 }));
    }
    false
}

/// The output of a pipe so far.
struct PipeOutput {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
}

impl PipeOutput {
    fn new(pipe: Option<impl Into<OwnedFd>>) -> Self {
        let pipe = pipe.map(Into::into).filter(|pipe: &OwnedFd| ioctl_fionbio(pipe, true).is_ok());
        Self { pipe, bytes: Vec::new() }
    }

    /// Reads the available bytes, up to the limit, without blocking.
    fn read(&mut self) {
        let mut chunk = [0; 16 * 1024];
        while let Some(pipe) = self.pipe.as_ref().filter(|_| self.bytes.len() < MAX_OUTPUT) {
            match rustix::io::read(pipe, &mut chunk) {
                Ok(0) => self.pipe = None,
                Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
                Err(_) => return,
            }
        }
    }

    fn text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
