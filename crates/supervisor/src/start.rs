//! Starting a supervisor. The one place where one is spawned.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::{PlanError, RunId, RunPlan};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::process::{Child, Command};

use crate::error::SpoolError;
use crate::fork_server::{ForkServer, NURSERY};
use crate::handle::{AttachError, Run};
use crate::locked_spool::LockedSpool;
use crate::os;
use crate::program::ASKED;
use crate::recovery::{kill_supervisor, recover};
use crate::spool::Spool;
use crate::status_pipe::{Line, StartupReply};
use crate::watchdog::{CHECK_EVERY, STRIKES};

/// How long a supervisor may take until the agent runs. Long enough for any machine that is not lost.
const FIRST_WORD: Duration = Duration::from_mins(1);

/// Where the supervisor's program is.
#[derive(Debug, Clone)]
pub struct Supervisor {
    program: PathBuf,
    asked: bool,
    first_word: Duration,
    /// Where supervisors come from, when that is to be kept.
    fork_server: Option<Arc<Mutex<Option<ForkServer>>>>,
}

impl Supervisor {
    /// The name of the supervisor's executable, as it is installed beside the others.
    pub const EXECUTABLE: &str = "switchboard-supervisor";

    /// The executable at that path, whose `main` is [`crate::main`].
    pub fn at(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), asked: false, first_word: FIRST_WORD, fork_server: None }
    }

    /// The `switchboard-supervisor` that was installed beside the running program.
    pub fn beside_this_program() -> Result<Self, StartError> {
        let program = this_program()?.with_file_name(Self::EXECUTABLE);
        if program.exists() { Ok(Self::at(program)) } else { Err(StartError::NoSupervisor { program }) }
    }

    /// The running program itself, which must call [`crate::run_if_asked`] first in its `main`. For programs that embed this
    /// library and are shipped as one file.
    pub fn this_program() -> Result<Self, StartError> {
        // Not by its path: the file may have been replaced by a newer version since this program was started.
        Ok(Self { asked: true, ..Self::at(os::THIS_PROGRAM) })
    }

    /// Keeps a process from which supervisors are forked, so that the second run and all later ones start in less than half
    /// the time. For programs that start many; it ends with the last copy of this value, or with the program. Copies share it.
    #[must_use]
    pub fn with_fork_server(self) -> Self {
        Self { fork_server: Some(Arc::default()), ..self }
    }

    /// Gives a supervisor that long until the agent runs, instead of a minute.
    #[must_use]
    pub fn first_word_within(self, patience: Duration) -> Self {
        Self { first_word: patience, ..self }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts a run in a folder of its own, which is made when it is missing.
    ///
    /// Returns when the agent is running or has failed to start; the latter is how the run *ended*
    /// ([`model::End::NotStarted`]) and no error here. The run goes on when this program ends,
    /// unless the plan says otherwise ([`model::RunLifetime`]).
    ///
    /// Dropping the future leaves a run that may have started: [`crate::attach`] finds it. Writes the prompt to a file before
    /// it awaits anything, which takes a moment for a large one.
    pub async fn start(&self, folder: &Path, plan: &RunPlan) -> Result<Run, StartError> {
        self.prepare(folder, plan)?.start().await
    }

    /// Makes everything ready for a run, so that nothing but its start is left to be done. For programs that have to wait for
    /// something else before they may start it.
    pub fn prepare(&self, folder: &Path, plan: &RunPlan) -> Result<PreparedRun<'_>, StartError> {
        plan.check()?;
        let spool = Spool::at(std::path::absolute(folder).map_err(StartError::Folder)?);
        let run_id = RunId::from_random(random_bytes().map_err(StartError::Random)?);
        let (held, is_new) = prepare(&spool, run_id, plan)?;
        Ok(PreparedRun { supervisor: self, spool, held: Some(held), is_new })
    }

    /// Has a supervisor begin on what was laid down, and hears its first word.
    async fn execute(&self, spool: Spool, held: LockedSpool, is_new: bool) -> Result<Run, StartError> {
        let cannot_spawn = |source| StartError::Spawn { program: self.program.clone(), source };
        let (line, child) = self.order(&spool, &held).map_err(|error| {
            forget(&held, is_new.then_some(spool.folder()));
            cannot_spawn(error)
        })?;
        // From here on the folder is in the supervisor's hands alone.
        drop(held);
        let word = self.first_word_of(&line, &spool, child.is_none()).await;
        // While the agent begins: the next run will find it ready.
        self.prepare_nursery();
        let said = match word {
            Ok(StartupReply::Status(status)) => return Ok(Run::started(spool, &status, line, child)?),
            Ok(StartupReply::Ready) => {
                // It runs, whether or not its word can be read.
                let status = spool.status().map_err(AttachError::from)?;
                let status = status.ok_or_else(|| AttachError::NoRun { spool: spool.clone() })?;
                return Ok(Run::started(spool, &status, line, child)?);
            }
            Ok(StartupReply::GaveUp(said)) => said,
            Err(error) => return Err(StartError::Listen(error)),
            Ok(StartupReply::Nothing(why)) => {
                self.end_silent(&spool, child.as_ref()).await;
                why
            }
        };
        // It has closed its stdout or was killed, so it is at its end. It may have started the agent before.
        if let Some(mut child) = child {
            let _ = child.wait().await;
        }
        let folder = spool.folder().to_owned();
        let recovered = tokio::task::spawn_blocking(move || {
            let recovered = recover(&folder);
            if let Ok(Some(held)) = LockedSpool::take(&folder) {
                // What its supervisor has said may be there, and who counts the runs of something counts this one.
                forget(&held, None);
            }
            recovered
        });
        // Whatever it finds, the supervisor's own words say more.
        let _ = recovered.await;
        Err(StartError::GaveUp { said })
    }

    /// Hears the first word. Continues a supervisor that is suspended before it, and gives one up that is suspended again and
    /// again: an agent that runs already may do that, and would never let it speak.
    async fn first_word_of(
        &self,
        line: &Line,
        spool: &Spool,
        from_nursery: bool,
    ) -> io::Result<StartupReply> {
        let give_up_at = Instant::now() + self.first_word;
        let mut word = pin!(line.first_word());
        let mut strikes = 0;
        loop {
            tokio::select! {
                biased;
                word = &mut word => return word,
                () = tokio::time::sleep(CHECK_EVERY.min(self.first_word)) => {}
            }
            if from_nursery && let Some(Some(fork_server)) = self.fork_server().as_deref() {
                fork_server.resume();
            }
            strikes += u32::from(os::resume_supervisor(spool.folder()));
            if strikes > STRIKES {
                return Ok(StartupReply::Nothing("it was suspended again and again".to_owned()));
            }
            if Instant::now() >= give_up_at {
                let seconds = self.first_word.as_secs();
                return Ok(StartupReply::Nothing(format!("it said nothing for {seconds} s")));
            }
        }
    }

    /// Has a supervisor begin on a folder: one from the fork_server, or else one that is a process of ours.
    fn order(&self, spool: &Spool, held: &LockedSpool) -> io::Result<(Line, Option<Child>)> {
        let (line, voice) = Line::new()?;
        let mut fork_server = self.fork_server();
        if let Some(suspended) =
            fork_server.as_deref_mut().and_then(|fork_server| fork_server.take_if(|it| it.is_suspended()))
        {
            suspended.end();
        }
        if let Some(bearing) = fork_server.as_deref().and_then(Option::as_ref) {
            if bearing.fork_supervisor(held, spool.folder(), voice.as_fd()).is_ok() {
                return Ok((line, None));
            }
            // It is gone, or so far behind that it is of no use.
            fork_server.as_deref_mut().and_then(Option::take);
        }
        drop(fork_server);
        Ok((
            line,
            Some(self.command(spool.folder().as_os_str()).stdin(held.hand_over()?).stdout(voice).spawn()?),
        ))
    }

    fn fork_server(&self) -> Option<MutexGuard<'_, Option<ForkServer>>> {
        Some(self.fork_server.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Without one, the next run starts as it would have without any of this.
    fn prepare_nursery(&self) {
        if let Some(mut fork_server) = self.fork_server()
            && fork_server.is_none()
        {
            let spawn =
                |line: OwnedFd| self.command(OsStr::new(NURSERY)).stdin(line).stdout(Stdio::null()).spawn();
            *fork_server = ForkServer::start(spawn).ok();
        }
    }

    /// Ends a supervisor that says nothing, with the agent that it may have started. It may be suspended, and must not wake up
    /// later with an order that was given to another; and the fork_server may be, with the order in its hands.
    async fn end_silent(&self, spool: &Spool, child: Option<&Child>) {
        if child.is_none()
            && let Some(fork_server) = self.fork_server().and_then(|mut fork_server| fork_server.take())
        {
            fork_server.end();
        }
        let folder = spool.folder().to_owned();
        // The recovery finds the processes that cannot be killed here.
        let _ = tokio::task::spawn_blocking(move || kill_supervisor(&folder)).await;
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where a supervisor is started")]
    fn command(&self, what: &OsStr) -> Command {
        let mut command = Command::new(&self.program);
        if self.asked {
            command.arg(ASKED);
        }
        // Nothing of the caller's environment is left to be read in /proc, or to change what the supervisor does.
        command.arg(what).env_clear().current_dir("/").stderr(Stdio::null());
        command
    }
}

/// A run that is ready to be started. Dropped, it is taken back: there was never one.
#[derive(Debug)]
#[must_use = "nothing is started yet"]
pub struct PreparedRun<'a> {
    supervisor: &'a Supervisor,
    spool: Spool,
    /// None once it is in the supervisor's hands.
    held: Option<LockedSpool>,
    /// Whether the folder was made for it.
    is_new: bool,
}

impl PreparedRun<'_> {
    /// Starts it (see [`Supervisor::start`]).
    pub async fn start(mut self) -> Result<Run, StartError> {
        let taken = || SpoolError::Taken { folder: self.spool.folder().to_owned() };
        let held = self.held.take().ok_or_else(taken)?;
        self.supervisor.execute(self.spool.clone(), held, self.is_new).await
    }
}

impl Drop for PreparedRun<'_> {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            forget(held, self.is_new.then_some(self.spool.folder()));
        }
    }
}

/// Takes the folder and writes down what is to be run. A folder that holds a run already is refused. Answers also whether it was made.
fn prepare(spool: &Spool, run_id: RunId, plan: &RunPlan) -> Result<(LockedSpool, bool), SpoolError> {
    let cannot_write = |source| SpoolError::CannotWrite { path: spool.folder().to_owned(), source };
    let taken = || SpoolError::Taken { folder: spool.folder().to_owned() };
    let is_new = LockedSpool::make(spool.folder()).map_err(cannot_write)?;
    let held = LockedSpool::take(spool.folder()).map_err(cannot_write)?.ok_or_else(taken)?;
    if !is_new {
        if held.is_used() {
            return Err(taken());
        }
        held.shut_out_others().map_err(cannot_write)?;
    }
    if let Err(error) = held.prepare(run_id, plan) {
        forget(&held, is_new.then_some(spool.folder()));
        return Err(cannot_write(error));
    }
    Ok((held, is_new))
}

/// Leaves no secret of a run that never was, and not its folder if it was made for it; but the words of a supervisor stay. A disk that
/// refuses this has refused more before.
fn forget(held: &LockedSpool, made: Option<&Path>) {
    let _ = held.discard();
    let _ = made.map(std::fs::remove_dir);
}

fn this_program() -> Result<PathBuf, StartError> {
    env::current_exe().map_err(StartError::ThisProgram)
}

fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if filled == bytes.len() {
        Ok(bytes)
    } else {
        Err(io::Error::other("the kernel gave too few random bytes"))
    }
}

/// Why a run could not be started. Nothing is running then, but after [`StartError::Listen`] and [`StartError::Attach`],
/// which leave a run that [`crate::attach`] may find.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No machine could carry the plan out.
    #[error("the plan cannot be carried out")]
    Plan(#[from] PlanError),
    /// The spool cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The folder's name cannot be made absolute.
    #[error("cannot tell where the spool is")]
    Folder(#[source] io::Error),
    /// There was no randomness for a run id.
    #[error("cannot make a run id")]
    Random(#[source] io::Error),
    /// The operating system does not say where this program is.
    #[error("cannot tell where this program is")]
    ThisProgram(#[source] io::Error),
    /// The installation is not whole.
    #[error("there is no supervisor at `{}`", program.display())]
    NoSupervisor {
        /// Where it should be.
        program: PathBuf,
    },
    /// The operating system refused to start the supervisor.
    #[error("cannot start the supervisor `{}`", program.display())]
    Spawn {
        /// The supervisor's executable.
        program: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The supervisor cannot be heard.
    #[error("cannot hear from the supervisor")]
    Listen(#[source] io::Error),
    /// The supervisor ended before it said that all is well; what it may have started has been ended.
    #[error("the supervisor gave up: {}", if said.is_empty() { "it was ended by somebody" } else { said })]
    GaveUp {
        /// Its own words.
        said: String,
    },
    /// The run has started and cannot be watched from here.
    #[error("the run was started but cannot be watched")]
    Attach(#[from] AttachError),
}

impl StartError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Plan(error) => error.hint(),
            Self::Spool(error) => error.hint(),
            Self::Folder(_) => "give the folder as an absolute path",
            Self::Random(_) => "check that the getrandom system call is allowed here",
            Self::ThisProgram(_) => "check that /proc is mounted",
            Self::NoSupervisor { .. } => {
                "install all of Switchboard: `cargo install --path crates/switchboard`"
            }
            Self::Spawn { .. } => {
                "check that the supervisor is executable and that processes can still be started"
            }
            Self::Listen(_) => "check that files can still be opened",
            Self::GaveUp { .. } => "see `supervisor.log` in the spool",
            Self::Attach(error) => error.hint(),
        }
    }
}
