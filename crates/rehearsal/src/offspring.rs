//! Descendants: processes the agent starts and leaves behind.
//!
//! Owns both sides. The agent starts its own executable again with [`crate::CUE`] and a role, instead of forking: that is
//! safe, and the descendant can have another environment. The parent's call returns once the descendant is set up: the
//! descendant reports it through a pipe, so neither side sleeps.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::CUE;
use crate::signals::Signal;
use crate::wire::StandardStream;

/// The relation of a descendant to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kinship {
    /// A child in the agent's process group.
    SameGroup,
    /// A child that leads its own session.
    OwnSession,
    /// A double fork, in a session whose leader has exited: its parent is the subreaper.
    Daemon,
}

impl Kinship {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "same-group" => Some(Self::SameGroup),
            "setsid" => Some(Self::OwnSession),
            "daemon" => Some(Self::Daemon),
            _ => None,
        }
    }
}

/// A descendant before its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offspring {
    pub(crate) kinship: Kinship,
    pub(crate) ignore_term: bool,
    pub(crate) keep_stdout: bool,
    pub(crate) clear_env: bool,
    pub(crate) life: Duration,
    pub(crate) pid_file: Option<PathBuf>,
}

impl Offspring {
    /// Limits its life to ten minutes, so that a leaked process exits by itself.
    pub(crate) fn new(kinship: Kinship) -> Self {
        Self {
            kinship,
            ignore_term: false,
            keep_stdout: false,
            clear_env: false,
            life: Duration::from_mins(10),
            pid_file: None,
        }
    }

    /// Starts the descendant and waits until it is set up.
    pub(crate) fn start(&self) -> io::Result<()> {
        let (mut told, tells) = io::pipe()?;
        let role = match self.kinship {
            Kinship::SameGroup => Role::Stay,
            Kinship::OwnSession => Role::Leave,
            Kinship::Daemon => Role::Vanish,
        };
        let mut command = itself()?;
        command.args(role.words(self)).stdin(tells);
        if !self.keep_stdout {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        if self.clear_env {
            command.env_clear();
        }
        let mut child = command.spawn()?;
        // Closes our end of the pipe; otherwise we would wait for ourselves.
        drop(command);
        if self.kinship == Kinship::Daemon {
            child.wait()?;
        }
        let mut word = String::new();
        told.read_to_string(&mut word)?;
        match word.as_str() {
            READY => Ok(()),
            "" => Err(io::Error::other("it exited before it was ready")),
            trouble => Err(io::Error::other(trouble.to_owned())),
        }
    }
}

/// The message of a descendant that is set up.
const READY: &str = "ready";

/// The lifetime of one process of a fork bomb before it replaces itself.
const GENERATION: Duration = Duration::from_millis(5);

/// Starts `width` chains of processes, each of which keeps replacing itself until `life` expires.
pub(crate) fn start_bomb(width: u64, life: Duration, pid_file: Option<&Path>) -> io::Result<()> {
    for _ in 0..width {
        start_generation(life, pid_file)?;
    }
    Ok(())
}

fn start_generation(life: Duration, pid_file: Option<&Path>) -> io::Result<Child> {
    let mut command = itself()?;
    command.args([OsString::from("multiply"), millis(life), path_word(pid_file)]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

#[expect(clippy::disallowed_methods, reason = "the one program the scripted agent may start: itself")]
fn itself() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // A binary that recognizes the agent by its name must recognize it again.
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    command.arg(CUE);
    Ok(command)
}

/// The role of a process started by [`Offspring::start`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Stays in the group.
    Stay,
    /// Leads its own session.
    Leave,
    /// Leads a session, starts the descendant in it, and exits.
    Vanish,
}

impl Role {
    const NAMES: [(&'static str, Self); 3] =
        [("stay", Self::Stay), ("leave", Self::Leave), ("vanish", Self::Vanish)];

    fn words(self, offspring: &Offspring) -> [OsString; 4] {
        let name = Self::NAMES.iter().find(|(_, role)| *role == self).map_or("stay", |(name, _)| name);
        let signals = if offspring.ignore_term { "ignore-term" } else { "heed-term" };
        [name.into(), signals.into(), millis(offspring.life), path_word(offspring.pid_file.as_deref())]
    }
}

/// Runs the descendant if `words`, the arguments after the cue, select one.
pub(crate) fn play(words: &[OsString]) -> Option<ExitCode> {
    let word = |at: usize| words.get(at).and_then(|word| word.to_str());
    if word(0)? == "multiply" {
        return Some(exit_code(&multiply(from_millis(word(1)?)?, path(words.get(2)?))));
    }
    let (_, role) = Role::NAMES.into_iter().find(|(name, _)| Some(*name) == word(0))?;
    let life = from_millis(word(2)?)?;
    let pid_file = path(words.get(3)?);
    let ended = if role == Role::Vanish {
        vanish(&words[1..])
    } else {
        settle(role, word(1)? == "ignore-term", pid_file).map(|()| std::thread::sleep(life))
    };
    if let Err(trouble) = &ended {
        // Stdin is the pipe to the agent, which converts this to its own error.
        let _ = StandardStream::Stdin.write(trouble.to_string().as_bytes());
    }
    Some(exit_code(&ended))
}

/// Assumes the role, writes the pid file and notifies the agent.
fn settle(role: Role, ignore_term: bool, pid_file: Option<&Path>) -> io::Result<()> {
    if role == Role::Leave {
        rustix::process::setsid()?;
    }
    // Set explicitly in both cases: ignored signals are inherited.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        if ignore_term { signal.ignore()? } else { signal.restore()? }
    }
    write_pid(pid_file)?;
    StandardStream::Stdin.write(READY.as_bytes())?;
    StandardStream::Stdin.close()
}

/// The middle process of a double fork.
fn vanish(words: &[OsString]) -> io::Result<()> {
    rustix::process::setsid()?;
    let orphan = itself()?.arg("stay").args(words).spawn()?;
    // Not waited for: an orphan is a daemon.
    drop(orphan);
    Ok(())
}

fn multiply(life: Duration, pid_file: Option<&Path>) -> io::Result<()> {
    let born = Instant::now();
    write_pid(pid_file)?;
    std::thread::sleep(GENERATION);
    match life.checked_sub(born.elapsed()) {
        Some(left) if !left.is_zero() => start_generation(left, pid_file).map(drop),
        _ => Ok(()),
    }
}

/// One short append: lines of several processes do not interleave.
fn write_pid(pid_file: Option<&Path>) -> io::Result<()> {
    let Some(path) = pid_file else { return Ok(()) };
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes())
}

fn millis(duration: Duration) -> OsString {
    duration.as_millis().to_string().into()
}

fn from_millis(word: &str) -> Option<Duration> {
    word.parse().ok().map(Duration::from_millis)
}

fn path_word(path: Option<&Path>) -> OsString {
    path.map_or_else(OsString::new, |path| path.as_os_str().to_owned())
}

fn path(word: &OsString) -> Option<&Path> {
    (!word.is_empty()).then(|| Path::new(word))
}

fn exit_code(ended: &io::Result<()>) -> ExitCode {
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
