//! Runs a shell command in the sandbox and the directory of the job's agent: the setup of a checkout, a verification.
//!
//! Its spool is `runs/NAME` in the job's directory. A service that finds one of an earlier service follows it, so that no command runs twice
//! at the same time.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use agents::RunSequence;
use model::{End, Exit, Limits, RunReport};
use regular_file::open_regular;
use supervisor::Run;

use super::messages::{cannot_follow, cannot_start, cannot_write, command_lost, launch_failure};
use super::{Disposition, JobRunner, failed};
use crate::runs;

/// The size of the stored end of the output.
const OUTPUT_BYTES: u64 = 4 * 1024;
/// How often a command is started whose supervisor is killed.
const MAX_STARTS: u32 = 3;
/// The limit for the output of a command.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;

/// A command to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShellCommand<'c> {
    /// The name of its spool.
    pub name: &'c str,
    /// The command, for `sh -c`.
    pub command: &'c str,
    /// Runs it at the root of the private checkout, and not in the directory of the agent.
    pub at_root: bool,
}

/// An ended command.
#[derive(Debug)]
pub(super) struct CommandEnd {
    pub report: RunReport,
    /// The end of its output.
    pub output: String,
}

impl CommandEnd {
    /// Returns how the command failed; none if it succeeded.
    pub fn problem(&self, limit: Duration) -> Option<String> {
        match (&self.report.end, &self.report.exit) {
            (End::Exited, Some(Exit::Code(0))) => None,
            (End::Exited, Some(exit)) => Some(format!("ended with {exit}")),
            (End::Deadline { .. }, _) => Some(format!("did not end within {} s", limit.as_secs())),
            (End::OutputLimit, _) => Some(format!("printed more than {} MiB", MAX_OUTPUT_BYTES >> 20)),
            (End::NotStarted(failure), _) => Some(format!("could not be started: {failure}")),
            (end, _) => Some(format!("was ended: {end}")),
        }
    }

    pub fn exit_code(&self) -> Option<i32> {
        match (&self.report.end, self.report.exit?) {
            (End::Exited, Exit::Code(code)) => Some(code),
            _ => None,
        }
    }
}

impl JobRunner<'_> {
    /// Runs a command to its end, or continues with the one of an earlier service. A job that is stopped stops it, too.
    pub(super) async fn run_command(
        &mut self,
        command: ShellCommand<'_>,
        sequence: &RunSequence,
    ) -> Result<CommandEnd, Disposition> {
        let directory = self.files.command(command.name);
        for _ in 0..MAX_STARTS {
            let run = if let Some(run) = self.find_run(&directory).await? {
                run
            } else {
                // Prepared by a service that was killed before it started the command.
                remove_spool(&directory).map_err(|error| failed(cannot_write(&error)))?;
                self.start_command(command, &directory, sequence).await?
            };
            self.context.nested.register_run(self.job, &run);
            let report = self.await_command(&run).await?;
            if report.end != End::SupervisorLost {
                let output = read_end(&run).map_err(|error| failed(cannot_follow(&error)))?;
                return Ok(CommandEnd { report, output });
            }
            remove_spool(&directory).map_err(|error| failed(cannot_write(&error)))?;
        }
        Err(failed(command_lost(command.command)))
    }

    /// Returns the time limit of a command.
    pub(super) fn command_limit(&self, sequence: &RunSequence) -> Duration {
        let limit = self.context.settings.command_limit;
        sequence.spec().limits.wall.map_or(limit, |left| left.min(limit))
    }

    async fn start_command(
        &mut self,
        command: ShellCommand<'_>,
        directory: &Path,
        sequence: &RunSequence,
    ) -> Result<Run, Disposition> {
        let mut spec = sequence.spec().clone();
        if let Some(checkout) = self.checkout.as_ref().filter(|_| command.at_root) {
            checkout.source.worktree().clone_into(&mut spec.cwd);
        }
        let launch = self.plan_launch(&spec, directory).await;
        let launch = launch.map_err(|error| failed(launch_failure(&error)))?;
        let limits = Limits {
            wall: Some(self.command_limit(sequence)),
            output_bytes: Some(MAX_OUTPUT_BYTES),
            grace: launch.plan.limits.grace,
            ..Limits::default()
        };
        let plan = launch.into_command(command.command, limits);
        self.files.create().map_err(|error| failed(cannot_write(&error)))?;
        let prepared = agent_run::prepare(&self.context.settings.supervisor, directory, plan);
        let prepared = prepared.map_err(|error| failed(cannot_start(&error, error.hint())))?;
        self.flush_row().await?;
        self.start_prepared(prepared, directory).await
    }

    /// Waits for the end of a command, and stops it if the job is to be stopped.
    async fn await_command(&self, run: &Run) -> Result<RunReport, Disposition> {
        let mut is_stopping = false;
        loop {
            let error = tokio::select! {
                biased;
                _ = self.active.stop_requested(), if !is_stopping => {
                    is_stopping = true;
                    self.report_stop(run.stop());
                    continue;
                }
                () = self.context.shutdown.detaching() => return Err(Disposition::Detached),
                ended = run.wait() => match ended {
                    Ok(report) => return Ok(report),
                    Err(error) => error,
                },
            };
            if !error.is_transient() && !self.context.records.were_moved() {
                runs::stop_unfollowed(run).await;
                return Err(failed(cannot_follow(&error)));
            }
            self.back_off(&error).await?;
        }
    }
}

/// Removes the spool of a command that is not running.
fn remove_spool(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Reads the end of the output of a command.
fn read_end(run: &Run) -> io::Result<String> {
    let mut file = match open_regular(&run.spool().output()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        file => file?,
    };
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(OUTPUT_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(OUTPUT_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line is cut.
    let whole =
        if size > OUTPUT_BYTES { text.split_once('\n').map_or(&*text, |(_, rest)| rest) } else { &text };
    Ok(whole.trim_end().to_owned())
}
