//! Starting the daemon. The one place where one is spawned.
//!
//! Front-ends that find none take the lock of starting in turn; the first starts it, the others find it. The new daemon says on a
//! pipe that it answers, or why it never will.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use model::RunId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::connect::{ConnectError, Connection, connect};
use super::inside;
use crate::cli;
use crate::config::Config;
use crate::daemon::{DaemonError, Holder, READY, exclusive};
use crate::environment::Environment;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::home::{Home, HomeError};
use crate::wire::Role;

/// The exit code of a daemon that found another.
const TAKEN: Option<i32> = Some(ExitStatus::DaemonRunning as i32);
/// How long it may take until a daemon answers, another's end or start included.
const WITHIN: Duration = Duration::from_secs(30);
/// How long to wait before looking again for what somebody else is doing.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(300);
/// More words than that are no explanation.
const LONGEST_WORDS: u64 = 64 * 1024;

/// Finds the daemon, or starts it. Remembers those that it started, so that none stays behind as a zombie.
#[derive(Debug)]
pub struct Starter {
    home: Home,
    environment: Environment,
    /// The variables that calls carry.
    carried: BTreeMap<String, String>,
    started: Vec<Child>,
}

impl Starter {
    /// For the home that the environment says.
    pub fn new(environment: Environment) -> Result<Self, HomeError> {
        let home = Home::find(&environment)?;
        // A configuration that cannot be read is told by the command that needs it.
        let pass_env = Config::read(Some(&home), &environment, &[]).map(|config| config.pass_env);
        let carried = calls::agent_variables(&environment.texts(), &pass_env.unwrap_or_default());
        Ok(Self { home, environment, carried, started: Vec::new() })
    }

    /// Where everything is.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Connects to the daemon, and starts one when there is none. However many front-ends do this at once, there is one daemon.
    pub fn connect_or_start(&mut self, role: Role) -> Result<Connection, FrontError> {
        self.started.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let give_up_at = Instant::now() + WITHIN;
        let mut pause = PAUSE;
        loop {
            match connect(&self.home, role, Some(&self.carried)) {
                Err(ConnectError::Nobody) => {}
                connection => return Ok(connection?),
            }
            refuse_inside_a_call(&self.environment)?;
            if let Some(_turn) = self.turn_to_start()? {
                match connect(&self.home, role, Some(&self.carried)) {
                    Err(ConnectError::Nobody) => {}
                    connection => return Ok(connection?),
                }
                match self.start(&[], give_up_at) {
                    // Another's last moment, or its first: its lock is taken, and it does not listen.
                    Err(FrontError::GaveUp { code: TAKEN, .. }) => pause = (pause * 2).min(LONGEST_PAUSE),
                    // Killed before its first word: that is nobody's refusal.
                    Err(FrontError::GaveUp { said, .. }) if said.is_empty() => {}
                    other => other?,
                }
            }
            if Instant::now() > give_up_at {
                return Err(FrontError::Late { holder: Holder::last(self.home.state()) });
            }
            sleep(pause);
        }
    }

    /// The lock of starting; none while somebody else starts.
    fn turn_to_start(&self) -> Result<Option<File>, FrontError> {
        self.home.make()?;
        exclusive(&self.home.state().join("start.lock")).map_err(FrontError::Turn)
    }

    /// Starts a daemon and waits until it answers.
    fn start(&mut self, options: &[String], give_up_at: Instant) -> Result<(), FrontError> {
        let (mut heard, said) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| FrontError::Turn(errno.into()))?;
        let program = this_program().map_err(FrontError::Turn)?;
        let cannot = |source| FrontError::Spawn { program: program.clone(), source };
        let child = detached(&program, options, said).map_err(cannot)?;
        self.started.push(child);
        let words = words(&mut heard, give_up_at).map_err(FrontError::Turn)?;
        match words {
            None => Err(FrontError::Late { holder: Holder::last(self.home.state()) }),
            Some(words) if words.starts_with(READY) => Ok(()),
            Some(words) => {
                // It has closed its pipe, so it is at its end.
                let code = self.started.pop().and_then(|mut child| child.wait().ok()?.code());
                let words = words.trim();
                let said = words.strip_prefix("error: ").unwrap_or(words).to_owned();
                Err(FrontError::GaveUp { said, code })
            }
        }
    }
}

/// `switchboard serve --background`: starts one and returns when it answers.
pub fn in_background(order: &cli::Serve) -> Result<Connection, Failure> {
    let environment = Environment::of_this_process();
    refuse_inside_a_call(&environment)?;
    let mut starter = Starter::new(environment)?;
    starter.home.make()?;
    let options = order.http.iter().flat_map(|address| ["--http".to_owned(), address.clone()]);
    match starter.start(&options.collect::<Vec<_>>(), Instant::now() + WITHIN) {
        // Said as `switchboard serve` says it, and not as what somebody else has said.
        Err(FrontError::GaveUp { code: TAKEN, .. }) => {
            let state = starter.home.state().to_owned();
            let holder = Holder::last(&state);
            return Err(DaemonError::Taken { state, holder }.into());
        }
        other => other?,
    }
    Ok(connect(&starter.home, Role::Control, None)?)
}

/// This program's file. An update may have put another in its place, which is the one to start then.
fn this_program() -> io::Result<PathBuf> {
    let path = env::current_exe()?.into_os_string().into_vec();
    let path = path.strip_suffix(b" (deleted)").map(<[u8]>::to_vec).unwrap_or(path);
    Ok(OsString::from_vec(path).into())
}

/// The daemon leaves this process's session by itself. It gets the user's environment, since agents do.
#[expect(clippy::disallowed_methods, reason = "the one place where a daemon is started")]
fn detached(program: &PathBuf, options: &[String], said: rustix::fd::OwnedFd) -> io::Result<Child> {
    Command::new(program)
        .args(["serve", "--detached"])
        .args(options)
        .env_remove(RunId::VARIABLE)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said)
        .spawn()
}

/// What the daemon says until it says that it is ready, or no more; none when it does neither in time.
fn words(heard: &mut rustix::fd::OwnedFd, give_up_at: Instant) -> io::Result<Option<String>> {
    let mut pipe = File::from(heard.try_clone()?);
    let (mut words, mut buffer) = (Vec::new(), [0; 4096]);
    while !words.starts_with(READY.as_bytes()) && (words.len() as u64) < LONGEST_WORDS {
        let left = give_up_at.saturating_duration_since(Instant::now());
        let left =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(0), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&heard, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match pipe.read(&mut buffer)? {
            0 => break,
            length => words.extend_from_slice(&buffer[..length]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&words).into_owned()))
}

/// Refuses to start a daemon inside a call.
fn refuse_inside_a_call(environment: &Environment) -> Result<(), FrontError> {
    if inside::a_confined_call(environment) {
        Err(FrontError::InsideAConfinedCall)
    } else if inside::a_call(environment).is_some() {
        Err(FrontError::InsideACall)
    } else {
        Ok(())
    }
}

/// Why there is no daemon to talk to.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the daemon cannot be reached from inside a sandboxed call")]
    InsideAConfinedCall,
    #[error("no daemon is running, and none can be started inside a call")]
    InsideACall,
    #[error("`switchboard stop` would wait for the call it runs in")]
    StopInsideACall,
    #[error("cannot start the daemon `{}`", program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("cannot prepare to start the daemon")]
    Turn(#[source] io::Error),
    #[error("the daemon failed to start: {}", if said.is_empty() { "it was killed" } else { said })]
    GaveUp { said: String, code: Option<i32> },
    #[error("the daemon did not become ready in time{}", holder.as_ref().map(|holder| format!(" (last known pid {})", holder.pid)).unwrap_or_default())]
    Late { holder: Option<Holder> },
}

impl FrontError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::Home(error) => error.hint(),
            Self::Connect(error) => error.hint(),
            Self::InsideAConfinedCall => {
                "place the call outside, or run the outer call with policy `off`".to_owned()
            }
            Self::InsideACall => {
                "start one outside the call with `switchboard serve --background`; a daemon started here would be killed when the call ends"
                    .to_owned()
            }
            Self::StopInsideACall => {
                "run it outside the call, or use `switchboard stop --now`, which leaves running jobs to the next daemon"
                    .to_owned()
            }
            Self::Spawn { .. } => "check the limits on processes and memory".to_owned(),
            Self::Turn(_) => "check the limit on open files and the free disk space".to_owned(),
            // It has said itself what to do.
            Self::GaveUp { said, .. } if said.contains("hint: ") => String::new(),
            Self::GaveUp { .. } => {
                "fix that and retry; `switchboard serve` runs in the foreground and shows the error".to_owned()
            }
            Self::Late { .. } => "see the daemon log (`switchboard config` prints its path)".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_a_file_that_can_be_started() {
        let program = this_program().unwrap();
        assert!(program.is_file());
    }
}
