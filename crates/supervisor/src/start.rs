//! Starts supervisors. The only place where one is spawned.

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

/// The default time from the spawn of a supervisor to its startup reply. Generous, for slow machines.
const STARTUP_TIMEOUT: Duration = Duration::from_mins(1);

/// Starts runs, each under its own supervisor process.
#[derive(Debug, Clone)]
pub struct Supervisor {
    program: PathBuf,
    is_embedded: bool,
    startup_timeout: Duration,
    /// Forks supervisors; `None` inside until it is started, or after it was lost.
    fork_server: Option<Arc<Mutex<Option<ForkServer>>>>,
}

impl Supervisor {
    /// The file name of the supervisor's executable.
    pub const EXECUTABLE: &str = "switchboard-supervisor";

    /// Uses the executable at a path. Its `main` is [`crate::main`].
    pub fn at(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            is_embedded: false,
            startup_timeout: STARTUP_TIMEOUT,
            fork_server: None,
        }
    }

    /// Uses the `switchboard-supervisor` that is installed beside the running program.
    pub fn beside_this_program() -> Result<Self, StartError> {
        let this_program = env::current_exe().map_err(StartError::ThisProgram)?;
        let program = this_program.with_file_name(Self::EXECUTABLE);
        if program.exists() { Ok(Self::at(program)) } else { Err(StartError::NoSupervisor { program }) }
    }

    /// Uses the running program itself, which must call [`crate::run_if_asked`] first in its `main`. For programs that
    /// embed this library and ship as one file.
    pub fn this_program() -> Result<Self, StartError> {
        // `/proc/self/exe` instead of the path: an upgrade may have replaced the file since this program started.
        Ok(Self { is_embedded: true, ..Self::at(os::THIS_PROGRAM) })
    }

    /// Forks supervisors from a fork server, so that the second and every later run start in less than half the time.
    /// For programs that start many runs. The fork server exits with the last clone of this value, or with the program.
    /// Clones share it.
    #[must_use]
    pub fn with_fork_server(self) -> Self {
        Self { fork_server: Some(Arc::default()), ..self }
    }

    /// Replaces the startup timeout of one minute.
    #[must_use]
    pub fn with_startup_timeout(self, timeout: Duration) -> Self {
        Self { startup_timeout: timeout, ..self }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts a run in its own directory, which is created if it is missing.
    ///
    /// Returns when the agent is running or has failed to start. The latter is an outcome of the run
    /// ([`model::End::NotStarted`]) and not an error here. The run continues after this program exits, unless the plan
    /// forbids it ([`model::RunLifetime`]).
    ///
    /// If the future is dropped, the run may have started; [`crate::attach`] finds it. Writes the prompt to a file
    /// before the first await point, which blocks briefly for a large prompt.
    pub async fn start(&self, directory: &Path, plan: &RunPlan) -> Result<Run, StartError> {
        self.prepare(directory, plan)?.start().await
    }

    /// Prepares a run, so that only its start remains. For programs that must wait for something else in between.
    pub fn prepare(&self, directory: &Path, plan: &RunPlan) -> Result<PreparedRun<'_>, StartError> {
        plan.check()?;
        let spool = Spool::at(std::path::absolute(directory).map_err(StartError::Directory)?);
        let run_id = RunId::from_random(random_bytes().map_err(StartError::Random)?);
        let (locked, is_new) = prepare(&spool, run_id, plan)?;
        Ok(PreparedRun { supervisor: self, spool, locked: Some(locked), is_new })
    }

    /// Spawns a supervisor for a prepared run and waits for its startup reply.
    async fn execute(&self, spool: Spool, locked: LockedSpool, is_new: bool) -> Result<Run, StartError> {
        let cannot_spawn = |source| StartError::Spawn { program: self.program.clone(), source };
        let (pipe, child) = self.spawn_supervisor(&spool, &locked).map_err(|error| {
            discard_run(&locked, is_new.then_some(spool.directory()));
            cannot_spawn(error)
        })?;
        // From here on only the supervisor holds the lock.
        drop(locked);
        let reply = self.wait_for_reply(&pipe, &spool, child.is_none()).await;
        // While the agent starts: this costs the caller no time, and the next run finds the fork server ready.
        self.ensure_fork_server();
        let message = match reply {
            Ok(StartupReply::Status(status)) => {
                return Ok(Run::from_status(spool, &status, Some(pipe), child)?);
            }
            Ok(StartupReply::Ready) => {
                // The status was too long for the pipe. The run has started even if its status cannot be read.
                let status = spool.status().map_err(AttachError::from)?;
                let status = status.ok_or_else(|| AttachError::NoRun { spool: spool.clone() })?;
                return Ok(Run::from_status(spool, &status, Some(pipe), child)?);
            }
            Ok(StartupReply::GaveUp(message)) => message,
            Err(error) => return Err(StartError::Listen(error)),
            Ok(StartupReply::Nothing(message)) => {
                self.kill_unresponsive(&spool, child.as_ref()).await;
                message
            }
        };
        // Its stdout is closed or it was killed, so it is about to exit. It may have started the agent before.
        if let Some(mut child) = child {
            let _ = child.wait().await;
        }
        let directory = spool.directory().to_owned();
        let recovered = tokio::task::spawn_blocking(move || {
            let recovered = recover(&directory);
            if let Ok(Some(locked)) = LockedSpool::try_lock(&directory) {
                // Keep the directory: it may contain `supervisor.log`, and callers that number their runs count this
                // one.
                discard_run(&locked, None);
            }
            recovered
        });
        // The supervisor's own message is more specific than any result of the recovery.
        let _ = recovered.await;
        Err(StartError::GaveUp { message })
    }

    /// Waits for the startup reply. Continues a suspended supervisor, and gives up on one that is suspended repeatedly:
    /// a hostile agent that already runs can do that to prevent the reply.
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
                return Ok(StartupReply::Nothing("it was suspended repeatedly".to_owned()));
            }
            if Instant::now() >= give_up_at {
                let seconds = self.startup_timeout.as_secs();
                return Ok(StartupReply::Nothing(format!("it did not reply within {seconds} s")));
            }
        }
    }

    /// Spawns a supervisor, through the fork server if there is one, and otherwise as a child of this process.
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
            // It has exited, or its socket is full.
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

    /// Starts the fork server if it is not running. On failure, the next supervisor is spawned as a child.
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

    /// Kills an unresponsive supervisor and the agent that it may have started. A suspended one must not resume later
    /// with a spool that belongs to another run; the same holds for a suspended fork server with an unread request.
    async fn kill_unresponsive(&self, spool: &Spool, child: Option<&Child>) {
        if child.is_none()
            && let Some(fork_server) = self.fork_server().and_then(|mut fork_server| fork_server.take())
        {
            fork_server.kill();
        }
        let directory = spool.directory().to_owned();
        // Best effort: the recovery finds remaining processes.
        let _ = tokio::task::spawn_blocking(move || kill_supervisor(&directory)).await;
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where a supervisor is started")]
    fn command(&self, argument: &OsStr) -> Command {
        let mut command = Command::new(&self.program);
        if self.is_embedded {
            command.arg(SUPERVISOR_ARG);
        }
        // The caller's environment must neither be readable in /proc nor influence the supervisor.
        command.arg(argument).env_clear().current_dir("/").stderr(Stdio::null());
        command
    }
}

/// A prepared run. Dropping it discards the files, as if there had never been a run.
#[derive(Debug)]
#[must_use = "the run is not started yet"]
pub struct PreparedRun<'a> {
    supervisor: &'a Supervisor,
    spool: Spool,
    /// `None` once the supervisor has taken over.
    locked: Option<LockedSpool>,
    /// Set if the directory was created for this run.
    is_new: bool,
}

impl PreparedRun<'_> {
    /// Starts the run (see [`Supervisor::start`]).
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

/// Locks the directory and writes the files of the run. Rejects a directory that already contains a run. Also returns
/// whether the directory was created.
fn prepare(spool: &Spool, run_id: RunId, plan: &RunPlan) -> Result<(LockedSpool, bool), SpoolError> {
    let cannot_write = |source| SpoolError::CannotWrite { path: spool.directory().to_owned(), source };
    let taken = || SpoolError::Taken { directory: spool.directory().to_owned() };
    let is_new = LockedSpool::create_directory(spool.directory()).map_err(cannot_write)?;
    let locked = LockedSpool::try_lock(spool.directory());
    if locked.is_err() && is_new {
        // EMFILE, for example. It is empty, or it would not be removed.
        let _ = std::fs::remove_dir(spool.directory());
    }
    let locked = locked.map_err(cannot_write)?.ok_or_else(taken)?;
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

/// Removes the secrets of a run that never started, and its directory if it was created for it. A log of the supervisor
/// stays. Best effort: a disk that fails here has already failed before.
fn discard_run(locked: &LockedSpool, made: Option<&Path>) {
    let _ = locked.discard();
    let _ = made.map(std::fs::remove_dir);
}

fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if filled == bytes.len() {
        Ok(bytes)
    } else {
        Err(io::Error::other("the kernel returned too few random bytes"))
    }
}

/// An error of a start. No process is left running, except after [`StartError::Listen`] and [`StartError::Attach`]:
/// then [`crate::attach`] may find the run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The plan is invalid.
    #[error("the plan cannot be executed")]
    Plan(#[from] PlanError),
    /// The spool cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The path of the directory cannot be made absolute.
    #[error("cannot resolve the path of the spool")]
    Directory(#[source] io::Error),
    /// There is no randomness for a run id.
    #[error("cannot create a run id")]
    Random(#[source] io::Error),
    /// The path of this program is unknown.
    #[error("cannot determine the path of this program")]
    ThisProgram(#[source] io::Error),
    /// The installation is incomplete.
    #[error("there is no supervisor at `{}`", program.display())]
    NoSupervisor {
        /// The expected path.
        program: PathBuf,
    },
    /// The supervisor cannot be spawned.
    #[error("cannot start the supervisor `{}`", program.display())]
    Spawn {
        /// The supervisor's executable.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The startup reply cannot be read.
    #[error("cannot read the supervisor's reply")]
    Listen(#[source] io::Error),
    /// The supervisor exited before its startup reply. Processes that it may have started have been killed.
    #[error("the supervisor gave up: {}", if message.is_empty() { "it was killed" } else { message })]
    GaveUp {
        /// The error message of the supervisor.
        message: String,
    },
    /// The run has started but cannot be watched.
    #[error("the run was started but cannot be watched")]
    Attach(#[from] AttachError),
}

impl StartError {
    /// Returns a remedy for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Plan(error) => error.hint(),
            Self::Spool(error) => error.hint(),
            Self::Directory(_) => "specify the directory by an absolute path",
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
