//! The review of a group: waits for the contenders, and builds the prompt from their results.

use agents::RunSequence;
use model::exact_path::show_path;
use model::{
    CallSpec, ChangeExtent, ChangeSet, Failure, FailureKind, GroupKind, GroupRole, Job, TerminalState,
};
use tokio::task::spawn_blocking;

use super::{Disposition, JobRunner, failed};
use crate::checkouts::JobCheckout;
use crate::files::JobFiles;
use crate::group::{ReviewCandidate, review_prompt};
use crate::job_changes::{ChangesState, record};
use crate::metadata::read_verification;
use crate::verification::VerificationState;

/// The maximum number of listed files whose contents are not shown to a judge.
const MAX_UNSEEN: usize = 100;

impl JobRunner<'_> {
    /// Returns the runs of a review once the contenders have ended; for any other job, those that were given.
    pub(super) async fn prepare_review(&mut self, sequence: RunSequence) -> Result<RunSequence, Disposition> {
        let call = &self.job.order.call;
        let Some(group) = call.group.clone() else { return Ok(sequence) };
        // Any later run has another prompt than the task.
        let is_first = sequence.spec().prompt == call.prompt;
        let Some(GroupRole::Reviewer(reviewer)) = group.role(self.job.id).filter(|_| is_first) else {
            return Ok(sequence);
        };
        let contenders = self.await_contenders(&group, &sequence).await?;
        let (files, task) = (self.files.clone(), call.prompt.clone());
        let composed = spawn_blocking(move || {
            let results = group.contenders.iter().map(|contender| {
                let job = contenders.iter().find(|job| job.id == *contender)?;
                read_candidate(job, &files.of_job(*contender), group.kind)
            });
            let results: Vec<_> = results.collect();
            review_prompt(&group, reviewer, &task, &results)
        });
        let Some(prompt) = composed.await.unwrap_or_default() else {
            let message = "fewer than two calls of the group have a result to compare".to_owned();
            return Err(failed(Failure { kind: FailureKind::NothingToReview, message }));
        };
        let call = CallSpec { prompt, ..call.clone() };
        Ok(RunSequence::new(call, self.context.settings.max_resume_attempts))
    }
}

/// Reads the result of a contender. Returns `None` if it failed, or has nothing to compare.
fn read_candidate(job: &Job, files: &JobFiles, kind: GroupKind) -> Option<ReviewCandidate> {
    if job.progress.state.name().ended() != Some(TerminalState::Completed) {
        return None;
    }
    let text = match kind {
        GroupKind::Race => {
            let is_discarded = |checkout: JobCheckout| checkout.state == ChangesState::Discarded;
            if JobCheckout::read(files).is_some_and(is_discarded) {
                return None;
            }
            let (changes, patches) = record(files).file_patches().ok()?;
            describe_patch(&changes, &patches)
        }
        GroupKind::Answers => job.outcome.as_ref()?.text.clone(),
    };
    let verification = read_verification(job).filter(|verified| verified.state == VerificationState::Passed);
    let verification = verification.map(|verified| format!("verified: `{}` passed", verified.command));
    (!text.trim().is_empty()).then_some(ReviewCandidate { text, verification })
}

/// Returns the patches of the texts, after the names of the other changed files: their contents would take the room of the texts.
fn describe_patch(changes: &ChangeSet, patches: &[Vec<u8>]) -> String {
    let (mut unseen, mut text) = (Vec::new(), String::new());
    for (file, patch) in changes.files.iter().zip(patches) {
        let reason = match &file.extent {
            ChangeExtent::Text { .. } => {
                text.push_str(&String::from_utf8_lossy(patch));
                continue;
            }
            ChangeExtent::Binary { after: Some(bytes), .. } => format!("binary, {bytes} bytes"),
            ChangeExtent::Binary { after: None, .. } => "binary, deleted".to_owned(),
            ChangeExtent::Submodule { .. } => "submodule".to_owned(),
            ChangeExtent::NotRecorded { .. } => "content unknown".to_owned(),
        };
        unseen.push(format!("{} ({reason})", show_path(&file.path)));
    }
    if unseen.is_empty() {
        return text;
    }
    let others = unseen.len().saturating_sub(MAX_UNSEEN);
    unseen.truncate(MAX_UNSEEN);
    let others = if others > 0 { format!(", and {others} more") } else { String::new() };
    format!("Also changed, but not shown: {}{others}\n\n{text}", unseen.join(", "))
}
