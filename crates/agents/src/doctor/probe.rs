//! Asks a program what it is: the one place of this crate that starts a process.
//!
//! Bounded in every way: an empty environment with the agent's own allow-list, no stdin, ten seconds, 256 KiB of output.
//! Only a descendant that leaves its process group outlives it; the supervisor, which holds those too, starts agents.

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

use crate::environment;

const PATIENCE: Duration = Duration::from_secs(10);
const MAX_OUTPUT: usize = 256 * 1024;

/// What a program says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What `--version` printed.
    pub version: String,
    /// What `--help` printed (for codex: `exec --help`).
    pub help: String,
}

/// A program that does not say what it is.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It cannot be started.
    #[error("cannot start `{}`", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// It did not come to an end.
    #[error("`{} {}` did not end within {} s", program.display(), args.join(" "), PATIENCE.as_secs())]
    TooSlow {
        /// The program.
        program: PathBuf,
        /// What it was asked.
        args: Vec<String>,
    },
    /// It failed.
    #[error("`{} {}` failed: {}", program.display(), args.join(" "), said.lines().next().unwrap_or_default())]
    Failed {
        /// The program.
        program: PathBuf,
        /// What it was asked.
        args: Vec<String>,
        /// What it said.
        said: String,
    },
}

impl ProbeError {
    /// What to do about it.
    pub fn hint(&self, kind: AgentKind) -> String {
        match self {
            Self::Start { program, source } => {
                format!("{source}: check `{}`, or install {kind} anew", program.display())
            }
            Self::TooSlow { .. } => format!("start `{kind}` once by hand and see what it waits for"),
            Self::Failed { .. } => format!("install {kind} anew; it may need another version of Node.js"),
        }
    }
}

impl Probe {
    /// Asks a program.
    pub fn ask(
        kind: AgentKind,
        program: &Path,
        inherited: &BTreeMap<String, String>,
    ) -> Result<Self, ProbeError> {
        let mut env = environment(kind, inherited);
        let home = (kind == AgentKind::Gemini).then(|| ScratchHome::create(inherited)).flatten();
        if let Some(ScratchHome(home)) = &home {
            env.insert("GEMINI_CLI_HOME".to_owned(), home.to_string_lossy().into_owned());
        }
        let help: &[&str] = if kind == AgentKind::Codex { &["exec", "--help"] } else { &["--help"] };
        Ok(Self { version: run(program, &["--version"], &env)?, help: run(program, help, &env)? })
    }
}

/// A home for gemini, which leaves temporary files there even when it only prints its version. Removed when it is dropped.
struct ScratchHome(PathBuf);

impl ScratchHome {
    /// Returns none where no directory can be created: then the user's home has to do.
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
        // The group of the program was killed, so nothing writes there any more.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program to its end, or until it has had its time or said too much. What it leaves in its group ends with it.
pub(super) fn run(
    program: &Path,
    args: &[&str],
    env: &BTreeMap<String, String>,
) -> Result<String, ProbeError> {
    let cannot_start = |source| ProbeError::Start { program: program.to_owned(), source };
    let mut child = command(program, args, env).spawn().map_err(cannot_start)?;
    let mut streams = [ReportedResult::new(child.stdout.take()), ReportedResult::new(child.stderr.take())];
    let ended = listen(&child, &mut streams);
    // Before it is waited for, its id is not given out again, and neither is its group's.
    if let Some(group) = pid(&child) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().map_err(cannot_start)?;
    streams.iter_mut().for_each(ReportedResult::read);
    let [stdout, stderr] = streams.map(ReportedResult::text);
    let (program, args) = (program.to_owned(), args.iter().map(|arg| (*arg).to_owned()).collect());
    match ended {
        false => Err(ProbeError::TooSlow { program, args }),
        true if status.success() => Ok(stdout),
        true => {
            let said = if stderr.trim().is_empty() { stdout } else { stderr };
            Err(ProbeError::Failed { program, args, said: said.trim().chars().take(2000).collect() })
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
        // The launcher in front of gemini's real process costs a second.
        .env("GEMINI_CLI_NO_RELAUNCH", "true")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    // SAFETY: one system call, which neither allocates nor locks.
    unsafe {
        // In a group of its own, Ctrl-C does not reach it.
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Hears it out. True: it has ended by itself.
fn listen(child: &Child, streams: &mut [ReportedResult; 2]) -> bool {
    let give_up_at = Instant::now() + PATIENCE;
    while Instant::now() < give_up_at && streams.iter().all(|said| said.bytes.len() < MAX_OUTPUT) {
        streams.iter_mut().for_each(ReportedResult::read);
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match pid(child).map(|pid| waitid(WaitId::Pid(pid), peek)) {
            Some(Ok(None)) => {}
            _ => return true,
        }
        let pipes = streams.iter().filter_map(|said| said.pipe.as_ref());
        let mut files: Vec<PollFd<'_>> =
            pipes.map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)).collect();
        // An exit makes no pipe readable while a grandchild holds it, so it is looked for now and then.
        let _ = poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 }));
    }
    false
}

/// What came out of one pipe so far.
struct ReportedResult {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
}

impl ReportedResult {
    fn new(pipe: Option<impl Into<OwnedFd>>) -> Self {
        let pipe = pipe.map(Into::into).filter(|pipe: &OwnedFd| ioctl_fionbio(pipe, true).is_ok());
        Self { pipe, bytes: Vec::new() }
    }

    /// Takes what is there, up to the limit, without waiting.
    fn read(&mut self) {
        let mut piece = [0; 16 * 1024];
        while let Some(pipe) = self.pipe.as_ref().filter(|_| self.bytes.len() < MAX_OUTPUT) {
            match rustix::io::read(pipe, &mut piece) {
                Ok(0) => self.pipe = None,
                Ok(count) => self.bytes.extend_from_slice(&piece[..count]),
                Err(_) => return,
            }
        }
    }

    fn text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
