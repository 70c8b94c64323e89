//! Verifies the work of the agent: restores protected files, runs the command of the caller, and sends a failure back to the agent.

use std::path::PathBuf;
use std::time::Duration;

use agents::RunSequence;
use changes::{ChangeRecord, ChangesError, Direction, ProtectedFiles, Restoration};
use model::exact_path::show_path;
use model::{
    ChangeSet, Failure, FailureKind, JobEnd, Outcome, TerminalState, Timestamp, VerifySpec, error_chain,
};
use tokio::task::spawn_blocking;

use super::command::ShellCommand;
use super::{Disposition, JobRunner, failed};
use crate::checkouts::JobCheckout;
use crate::decide::{self, NextStep};
use crate::files::JobFiles;
use crate::job_changes::{find_git, protected_root, record};
use crate::settings::Settings;
use crate::verification::{Verification, VerificationState, compile, find_protected};
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
        // Before the command runs: it can write files, too.
        if self.job.order.call.expect_changes && self.count_changed_files().await == Some(0) {
            return Ok(NextStep::Finish(Box::new(decide::with_expected_changes(*end, Some(0)))));
        }
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
        let mut verification = Verification { repairs: sequence.repairs(), ..verification };
        // The files that were restored before an earlier repair are still news to the caller.
        let earlier = self.verification.take().map(|earlier| earlier.restored).unwrap_or_default();
        verification.restored.extend(earlier);
        verification.restored.sort();
        verification.restored.dedup();
        let step = self.decide_after(outcome, &verification, sequence);
        self.verification = Some(verification);
        Ok(match step {
            NextStep::Finish(step) => {
                NextStep::Finish(Box::new(JobEnd { ended_at: ended_at.or(end.ended_at), ..*step }))
            }
            step => step,
        })
    }

    /// Compares the worktree with that before the agent. Returns `None` if the changes are not recorded.
    async fn count_changed_files(&self) -> Option<usize> {
        let (files, settings) = (self.files.clone(), self.context.settings.clone());
        let checkout = self.checkout.clone();
        let compared = spawn_blocking(move || compare(&files, &settings, checkout.as_ref()));
        let (_, changes) = compared.await.ok()?.ok()?;
        let count = changes.files.len();
        Some(if self.has_only_earlier_changes().await { 0 } else { count })
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
        let command = ShellCommand { name: &name, command: &verify.command, at_root: false };
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

    /// Copies the protected files before the first run of the agent.
    pub(super) async fn save_protected(&mut self) -> Result<(), Disposition> {
        let Some(verify) = self.job.order.call.verify.as_ref().filter(|verify| !verify.protect.is_empty())
        else {
            return Ok(());
        };
        if self.flush.is_none() && self.files.newest_run().is_some() {
            return Ok(());
        }
        let (files, settings, patterns) =
            (self.files.clone(), self.context.settings.clone(), verify.protect.clone());
        let root = self.protected_root();
        // The protected files are those from before the first job in the checkout.
        let continued = self.checkout.clone().filter(|checkout| checkout.earlier.is_some());
        let saved = spawn_blocking(move || {
            if let Some(checkout) = continued {
                undo_protected(&files, &settings, &checkout, &patterns)?;
            }
            files.create().map_err(|error| error.to_string())?;
            let globs = compile(&patterns).map_err(|error| error.to_string())?;
            let saved = protected_files(&files).save(&root, &|path| globs.is_match(path));
            saved.map_err(|error| error_chain(&error))
        });
        let saved = saved.await.map_err(|error| error.to_string()).and_then(|saved| saved);
        saved.map_err(|reason: String| {
            let message =
                format!("the agent was not started, since the protected files could not be copied: {reason}");
            failed(Failure { kind: FailureKind::VerificationFailed, message })
        })
    }

    /// Restores the protected files that the agent has changed, and returns their paths. Fails with the reason for which they cannot be.
    async fn restore_protected(&self, verify: &VerifySpec) -> Result<Vec<String>, String> {
        if verify.protect.is_empty() {
            return Ok(Vec::new());
        }
        let (files, patterns, root) = (self.files.clone(), verify.protect.clone(), self.protected_root());
        let restored = spawn_blocking(move || {
            let globs = compile(&patterns).map_err(|error| error.to_string())?;
            let restored = protected_files(&files).restore(&root, &|path| globs.is_match(path));
            restored.map_err(|error| error_chain(&error))
        });
        let restored = restored.await.map_err(|error| error.to_string()).and_then(|restored| restored);
        let restored: Result<Vec<PathBuf>, String> = restored;
        restored
            .map(|paths| paths.iter().map(|path| show_path(path)).collect())
            .map_err(|reason| format!("the protected files could not be restored: {reason}"))
    }

    fn protected_root(&self) -> PathBuf {
        match &self.checkout {
            Some(checkout) => checkout.directory.clone(),
            None => protected_root(&self.job.order.call.cwd),
        }
    }
}

fn protected_files(files: &JobFiles) -> ProtectedFiles {
    ProtectedFiles::at(files.directory().join("protected"))
}

/// Compares the files with those before the agent. The git to run must be outside of the worktree of the user.
fn compare(
    files: &JobFiles,
    settings: &Settings,
    checkout: Option<&JobCheckout>,
) -> Result<(ChangeRecord, ChangeSet), ChangesError> {
    let record = record(files);
    let worktree = match checkout {
        Some(checkout) => checkout.source.worktree().to_owned(),
        None => record.worktree()?.unwrap_or_default(),
    };
    let record = record.with_git(find_git(&settings.lookup, &worktree)?);
    let changes = record.finish(LIMIT, &[])?;
    Ok((record, changes))
}

/// Undoes the changes of earlier jobs in a checkout to protected files.
fn undo_protected(
    files: &JobFiles,
    settings: &Settings,
    checkout: &JobCheckout,
    patterns: &[String],
) -> Result<(), String> {
    let compared = compare(files, settings, Some(checkout));
    let (record, changes) = compared.map_err(|error| error_chain(&error))?;
    let protected = find_protected(&changes, patterns).map_err(|error| error.to_string())?;
    let protected: Vec<PathBuf> = protected.into_iter().map(PathBuf::from).collect();
    if protected.is_empty() {
        return Ok(());
    }
    let restored = record.restore(&Restoration::new(Direction::Undo, &protected));
    match restored.map_err(|error| error_chain(&error))?.files.iter().find(|file| file.reason.is_some()) {
        Some(file) => Err(format!("the content of `{}` is not recorded", show_path(&file.path))),
        None => Ok(()),
    }
}
