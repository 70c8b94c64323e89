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
use crate::fork_server::{FORK_SERVER_ARG, ForkServer};
use crate::handle::{AttachError, Run};
use crate::locked_spool::LockedSpool;
use crate::os;
use crate::program::SUPERVISOR_ARG;
use crate::recovery::{kill_supervisor, recover};
use crate::spool::Spool;
use crate::status_pipe::{StartupReply, StatusPipe};
use crate::watchdog::{CHECK_EVERY, STRIKES};

/// How long a supervisor may take until the agent runs. Long enough for any machine that is not lost.
const STARTUP_TIMEOUT: Duration = Duration::from_mins(1);

/// Where the supervisor's program is.
#[derive(Debug, Clone)]
pub struct Supervisor {
    program: PathBuf,
    is_embedded: bool,
    startup_timeout: Duration,
    /// Where supervisors come from, when that is to be kept.
    fork_server: Option<Arc<Mutex<Option<ForkServer>>>>,
}

impl Supervisor {
    /// The name of the supervisor's executable, as it is installed beside the others.
    pub const EXECUTABLE: &str = "switchboard-supervisor";

    /// The executable at that path, whose `main` is [`crate::main`].
    pub fn at(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            is_embedded: false,
            startup_timeout: STARTUP_TIMEOUT,
            fork_server: None,
        }
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
        Ok(Self { is_embedded: true, ..Self::at(os::THIS_PROGRAM) })
    }

    /// Keeps a process from which supervisors are forked, so that the second run and all later ones start in less than half
    /// the time. For programs that start many; it ends with the last copy of this value, or with the program. Copies share it.
    #[must_use]
    pub fn with_fork_server(self) -> Self {
        Self { fork_server: Some(Arc::default()), ..self }
    }

    /// Gives a supervisor that long until the agent runs, instead of a minute.
    #[must_use]
    pub fn with_startup_timeout(self, timeout: Duration) -> Self {
        Self { startup_timeout: timeout, ..self }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts a run in a directory of its own, which is made when it is missing.
    ///
    /// Returns when the agent is running or has failed to start; the latter is how the run *ended*
    /// ([`model::End::NotStarted`]) and no error here. The run goes on when this program ends,
    /// unless the plan says otherwise ([`model::RunLifetime`]).
    ///
    /// Dropping the future leaves a run that may have started: [`crate::attach`] finds it. Writes the prompt to a file before
    /// it awaits anything, which takes a moment for a large one.
    pub async fn start(&self, directory: &Path, plan: &RunPlan) -> Result<Run, StartError> {
        self.prepare(directory, plan)?.start().await
    }

    /// Makes everything ready for a run, so that nothing but its start is left to be done. For programs that have to wait for
    /// something else before they may start it.
    pub fn prepare(&self, directory: &Path, plan: &RunPlan) -> Result<PreparedRun<'_>, StartError> {
        plan.check()?;
        let spool = Spool::at(std::path::absolute(directory).map_err(StartError::Directory)?);
        let run_id = RunId::from_random(random_bytes().map_err(StartError::Random)?);
        let (locked, is_new) = prepare(&spool, run_id, plan)?;
        Ok(PreparedRun { supervisor: self, spool, locked: Some(locked), is_new })
    }

    /// Has a supervisor begin on what was laid down, and hears its first word.
    async fn execute(&self, spool: Spool, locked: LockedSpool, is_new: bool) -> Result<Run, StartError> {
        let cannot_spawn = |source| StartError::Spawn { program: self.program.clone(), source };
        let (pipe, child) = self.spawn_supervisor(&spool, &locked).map_err(|error| {
            discard_run(&locked, is_new.then_some(spool.directory()));
            cannot_spawn(error)
        })?;
        // From here on the directory is in the supervisor's hands alone.
        drop(locked);
        let reply = self.wait_for_reply(&pipe, &spool, child.is_none()).await;
        // While the agent begins: the next run will find it ready.
        self.ensure_fork_server();
        let message = match reply {
            Ok(StartupReply::Status(status)) => return Ok(Run::started(spool, &status, pipe, child)?),
            Ok(StartupReply::Ready) => {
                // It runs, whether or not its word can be read.
                let status = spool.status().map_err(AttachError::from)?;
                let status = status.ok_or_else(|| AttachError::NoRun { spool: spool.clone() })?;
                return Ok(Run::started(spool, &status, pipe, child)?);
            }
            Ok(StartupReply::GaveUp(message)) => message,
            Err(error) => return Err(StartError::Listen(error)),
            Ok(StartupReply::Nothing(message)) => {
                self.kill_unresponsive(&spool, child.as_ref()).await;
                message
            }
        };
        // It has closed its stdout or was killed, so it is at its end. It may have started the agent before.
        if let Some(mut child) = child {
            let _ = child.wait().await;
        }
        let directory = spool.directory().to_owned();
        let recovered = tokio::task::spawn_blocking(move || {
            let recovered = recover(&directory);
            if let Ok(Some(locked)) = LockedSpool::try_lock(&directory) {
                // What its supervisor has said may be there, and who counts the runs of something counts this one.
                discard_run(&locked, None);
            }
            recovered
        });
        // Whatever it finds, the supervisor's own words say more.
        let _ = recovered.await;
        Err(StartError::GaveUp { message })
    }

    /// Hears the first word. Continues a supervisor that is suspended before it, and gives one up that is suspended again and
    /// again: an agent that runs already may do that, and would never let it speak.
    async fn wait_for_reply(
        &self,
        pipe: &StatusPipe,
        spool: &Spool,
        is_forked: bool,
    ) -> io::Result<StartupReply> {
        let give_up_at = Instant::now() + self.startup_timeout;
        let mut reply = pin!(pipe.startup_reply());
        let mut strikes = 0;
        loop {
            tokio::select! {
                biased;
                reply = &mut reply => return reply,
                () = tokio::time::sleep(CHECK_EVERY.min(self.startup_timeout)) => {}
            }
            if is_forked && let Some(Some(fork_server)) = self.fork_server().as_deref() {
                fork_server.resume();
            }
            strikes += u32::from(os::resume_supervisor(spool.directory()));
            if strikes > STRIKES {
                return Ok(StartupReply::Nothing("it was suspended again and again".to_owned()));
            }
            if Instant::now() >= give_up_at {
                let seconds = self.startup_timeout.as_secs();
                return Ok(StartupReply::Nothing(format!("it said nothing for {seconds} s")));
            }
        }
    }

    /// Has a supervisor begin on a directory: one from the fork_server, or else one that is a process of ours.
    fn spawn_supervisor(
        &self,
        spool: &Spool,
        locked: &LockedSpool,
    ) -> io::Result<(StatusPipe, Option<Child>)> {
        let (pipe, tx) = StatusPipe::new()?;
        let mut fork_server = self.fork_server();
        if let Some(suspended) =
            fork_server.as_deref_mut().and_then(|fork_server| fork_server.take_if(|it| it.is_suspended()))
        {
            suspended.kill();
        }
        if let Some(running) = fork_server.as_deref().and_then(Option::as_ref) {
            if running.fork_supervisor(locked, spool.directory(), tx.as_fd()).is_ok() {
                return Ok((pipe, None));
            }
            // It is gone, or so far behind that it is of no use.
            fork_server.as_deref_mut().and_then(Option::take);
        }
        drop(fork_server);
        Ok((
            pipe,
            Some(self.command(spool.directory().as_os_str()).stdin(locked.to_stdio()?).stdout(tx).spawn()?),
        ))
    }

    fn fork_server(&self) -> Option<MutexGuard<'_, Option<ForkServer>>> {
        Some(self.fork_server.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Without one, the next run starts as it would have without any of this.
    fn ensure_fork_server(&self) {
        if let Some(mut fork_server) = self.fork_server()
            && fork_server.is_none()
        {
            let spawn = |socket: OwnedFd| {
                self.command(OsStr::new(FORK_SERVER_ARG)).stdin(socket).stdout(Stdio::null()).spawn()
            };
            *fork_server = ForkServer::start(spawn).ok();
        }
    }

    /// Ends a supervisor that says nothing, with the agent that it may have started. It may be suspended, and must not wake up
    /// later with an order that was given to another; and the fork_server may be, with the order in its hands.
    async fn kill_unresponsive(&self, spool: &Spool, child: Option<&Child>) {
        if child.is_none()
            && let Some(fork_server) = self.fork_server().and_then(|mut fork_server| fork_server.take())
        {
            fork_server.kill();
        }
        let directory = spool.directory().to_owned();
        // The recovery finds the processes that cannot be killed here.
        let _ = tokio::task::spawn_blocking(move || kill_supervisor(&directory)).await;
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where a supervisor is started")]
    fn command(&self, argument: &OsStr) -> Command {
        let mut command = Command::new(&self.program);
        if self.is_embedded {
            command.arg(SUPERVISOR_ARG);
        }
        // Nothing of the caller's environment is left to be read in /proc, or to change what the supervisor does.
        command.arg(argument).env_clear().current_dir("/").stderr(Stdio::null());
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
    locked: Option<LockedSpool>,
    /// Whether the directory was made for it.
    is_new: bool,
}

impl PreparedRun<'_> {
    /// Starts it (see [`Supervisor::start`]).
    pub async fn start(mut self) -> Result<Run, StartError> {
        let taken = || SpoolError::Taken { directory: self.spool.directory().to_owned() };
        let locked = self.locked.take().ok_or_else(taken)?;
        self.supervisor.execute(self.spool.clone(), locked, self.is_new).await
    }
}

impl Drop for PreparedRun<'_> {
    fn drop(&mut self) {
        if let Some(locked) = &self.locked {
            discard_run(locked, self.is_new.then_some(self.spool.directory()));
        }
    }
}

/// Takes the directory and writes down what is to be run. A directory that holds a run already is refused. Answers also whether it was made.
fn prepare(spool: &Spool, run_id: RunId, plan: &RunPlan) -> Result<(LockedSpool, bool), SpoolError> {
    let cannot_write = |source| SpoolError::CannotWrite { path: spool.directory().to_owned(), source };
    let taken = || SpoolError::Taken { directory: spool.directory().to_owned() };
    let is_new = LockedSpool::create_directory(spool.directory()).map_err(cannot_write)?;
    let locked = LockedSpool::try_lock(spool.directory()).map_err(cannot_write)?.ok_or_else(taken)?;
    if !is_new {
        if locked.has_run() {
            return Err(taken());
        }
        locked.restrict_permissions().map_err(cannot_write)?;
    }
    if let Err(error) = locked.prepare(run_id, plan) {
        discard_run(&locked, is_new.then_some(spool.directory()));
        return Err(cannot_write(error));
    }
    Ok((locked, is_new))
}

/// Leaves no secret of a run that never was, and not its directory if it was made for it; but the words of a supervisor stay. A disk that
/// refuses this has refused more before.
fn discard_run(locked: &LockedSpool, made: Option<&Path>) {
    let _ = locked.discard();
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
    /// The directory's name cannot be made absolute.
    #[error("cannot tell where the spool is")]
    Directory(#[source] io::Error),
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
    #[error("the supervisor gave up: {}", if message.is_empty() { "it was ended by somebody" } else { message })]
    GaveUp {
        /// Its own words.
        message: String,
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
            Self::Directory(_) => "give the directory as an absolute path",
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
