//! Verifies the work of the agent: restores protected files, runs the command of the caller, and sends a failure back to the agent.

use std::path::PathBuf;
use std::time::Duration;

use agents::RunSequence;
use changes::{Direction, Restoration};
use model::exact_path::show_path;
use model::{JobEnd, Outcome, TerminalState, Timestamp, VerifySpec, error_chain};
use tokio::task::spawn_blocking;

use super::command::ShellCommand;
use super::{Disposition, JobRunner};
use crate::decide::{self, NextStep};
use crate::job_changes::{find_git, record};
use crate::verification::{Verification, VerificationState, find_protected};
use crate::wait_reason::WaitReason;

/// Why a verification of a stopped job did not run.
const STOPPED: &str = "the job was stopped";
/// The time for the comparison that finds protected files.
const LIMIT: Duration = Duration::from_secs(30);

impl JobRunner<'_> {
    /// Verifies the work of the last run, if it was successful and the caller wants that. Returns the step that follows.
    pub(super) async fn verify(
        &mut self,
        end: Box<JobEnd>,
        sequence: &mut RunSequence,
    ) -> Result<NextStep, Disposition> {
        let (verify, outcome) = match (&self.job.order.call.verify, &end.outcome) {
            (Some(verify), Some(outcome)) if end.how == TerminalState::Completed => (verify, outcome.clone()),
            _ => return Ok(NextStep::Finish(end)),
        };
        let (verification, ended_at) = match self.active.stop_reason() {
            Some(_) => (Verification::not_run(verify, STOPPED), None),
            None => match self.run_verification(verify, sequence).await {
                Ok(ended) => ended,
                Err(Disposition::Finished(end)) => {
                    let reason = end.failure.as_ref().map_or(STOPPED, |failure| &failure.message);
                    self.verification = Some(Verification::not_run(verify, reason));
                    return Ok(NextStep::Finish(Box::new(decide::with_outcome(*end, &outcome))));
                }
                Err(disposition) => return Err(disposition),
            },
        };
        sequence.add_elapsed(Duration::from_millis(verification.duration_ms.unwrap_or_default()));
        let verification = Verification { repairs: sequence.repairs(), ..verification };
        let step = self.decide_after(outcome, &verification, sequence);
        self.verification = Some(verification);
        Ok(match step {
            NextStep::Finish(step) => {
                NextStep::Finish(Box::new(JobEnd { ended_at: ended_at.or(end.ended_at), ..*step }))
            }
            step => step,
        })
    }

    fn decide_after(
        &self,
        outcome: Outcome,
        verification: &Verification,
        sequence: &mut RunSequence,
    ) -> NextStep {
        let max_repairs = self.job.order.call.verify.as_ref().map_or(0, |verify| verify.repairs);
        decide::after_verification(outcome, verification, sequence, max_repairs, self.active.stop_reason())
    }

    /// Runs the command. Returns the time of its end, too.
    async fn run_verification(
        &mut self,
        verify: &VerifySpec,
        sequence: &RunSequence,
    ) -> Result<(Verification, Option<Timestamp>), Disposition> {
        let restored = match self.restore_protected(verify).await {
            Ok(restored) => restored,
            Err(reason) => return Ok((Verification::not_run(verify, reason), None)),
        };
        let limit = self.command_limit(sequence);
        self.active.set_waiting(
            WaitReason::Verification { command: verify.command.clone() },
            self.context.store.now(),
        );
        let number = self.last_run.as_ref().map_or(0, |last| last.number);
        let name = format!("verify-{number}");
        let command = ShellCommand { name: &name, command: &verify.command };
        let ended = self.run_command(command, sequence).await?;
        let problem = ended.problem(limit);
        let is_started = !matches!(ended.report.end, model::End::NotStarted(_));
        let state = match &problem {
            None => VerificationState::Passed,
            Some(_) if is_started => VerificationState::Failed,
            Some(_) => VerificationState::NotRun,
        };
        let verification = Verification {
            state,
            command: verify.command.clone(),
            exit_code: ended.exit_code(),
            reason: problem,
            duration_ms: Some(ended.report.duration_ms),
            output: Some(ended.output).filter(|output| !output.is_empty()),
            repairs: 0,
            restored,
        };
        Ok((verification, Some(Timestamp::from_millis(ended.report.ended_at_ms))))
    }

    /// Restores the protected files that the agent has changed, and returns their paths. Fails with the reason for which they cannot be.
    async fn restore_protected(&mut self, verify: &VerifySpec) -> Result<Vec<String>, String> {
        if verify.protect.is_empty() {
            return Ok(Vec::new());
        }
        let (files, settings, patterns) =
            (self.files.clone(), self.context.settings.clone(), verify.protect.clone());
        let source = self.checkout.as_ref().map(|checkout| checkout.source.worktree().to_owned());
        let restored = spawn_blocking(move || {
            let record = record(&files);
            let worktree = record.worktree().map_err(|error| error_chain(&error))?;
            let worktree = worktree.ok_or("the files before the call are not recorded")?;
            let git = find_git(&settings.lookup, source.as_ref().unwrap_or(&worktree));
            let record = record.with_git(git.map_err(|error| error_chain(&error))?);
            let changes = record.finish(LIMIT, &[]).map_err(|error| error_chain(&error))?;
            let protected = find_protected(&changes, &patterns).map_err(|error| error.to_string())?;
            let protected: Vec<PathBuf> = protected.into_iter().map(PathBuf::from).collect();
            if !protected.is_empty() {
                let restoration = Restoration::new(Direction::Undo, &protected);
                let restored = record.restore(&restoration).map_err(|error| error_chain(&error))?;
                if let Some(file) = restored.files.iter().find(|file| file.reason.is_some()) {
                    return Err(format!("the content of `{}` is not recorded", show_path(&file.path)));
                }
            }
            Ok(protected.iter().map(|path| show_path(path)).collect())
        });
        let restored = restored.await.map_err(|error| error.to_string()).and_then(|restored| restored);
        restored.map_err(|reason: String| format!("the protected files could not be restored: {reason}"))
    }
}
