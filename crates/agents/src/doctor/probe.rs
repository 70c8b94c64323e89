//! Asks a program what it is: the one place of this crate that starts a process.
//!
//! Bounded: an empty environment with the agent's own allow-list, no stdin, ten seconds; 256 KiB of what it prints are read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use model::AgentKind;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::environment;

const PATIENCE: Duration = Duration::from_secs(10);
const MAX_OUTPUT: u64 = 256 * 1024;

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
        let env = environment(kind, inherited);
        let help: &[&str] = if kind == AgentKind::Codex { &["exec", "--help"] } else { &["--help"] };
        Ok(Self { version: run(program, &["--version"], &env)?, help: run(program, help, &env)? })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that asks a program for its version; no agent is run here"
)]
pub(super) fn run(
    program: &Path,
    args: &[&str],
    env: &BTreeMap<String, String>,
) -> Result<String, ProbeError> {
    let cannot_start = |source| ProbeError::Start { program: program.to_owned(), source };
    // Into files and not into pipes: a grandchild that keeps them open keeps nobody waiting.
    let (mut stdout, mut stderr) =
        tempfile::tempfile().and_then(|out| Ok((out, tempfile::tempfile()?))).map_err(cannot_start)?;
    let to = |file: &File| file.try_clone().map(Stdio::from).map_err(cannot_start);
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .envs(env)
        .stdin(Stdio::null())
        .stdout(to(&stdout)?)
        .stderr(to(&stderr)?)
        .process_group(0)
        .spawn()
        .map_err(cannot_start)?;
    let named = || (program.to_owned(), args.iter().map(|arg| (*arg).to_owned()).collect());
    match wait(&mut child) {
        Some(true) => Ok(head(&mut stdout)),
        Some(false) => {
            let (program, args) = named();
            let said = Some(head(&mut stderr)).filter(|said| !said.trim().is_empty());
            let said = said.unwrap_or_else(|| head(&mut stdout)).trim().chars().take(2000).collect();
            Err(ProbeError::Failed { program, args, said })
        }
        None => {
            let (program, args) = named();
            Err(ProbeError::TooSlow { program, args })
        }
    }
}

fn head(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is still worth showing.
    let _ = file.rewind().and_then(|()| file.take(MAX_OUTPUT).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether it succeeded; none when it had to be ended.
fn wait(child: &mut Child) -> Option<bool> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    while start.elapsed() < PATIENCE {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status.success());
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    // Its group and not it alone; its id is not given out again before the wait.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    None
}
