//! What follows a run: another one, a pause, another attempt, or the end of the job.

use std::time::Duration;

use agents::{RunSequence, SequenceStep};
use model::{FailureKind, JobEnd, Outcome, TerminalState, Verdict};

use super::words::out_of_time;
use super::{Conclusion, Course};

impl Course<'_> {
    /// How long to wait before the next run; or how the course ends.
    pub(super) fn what_follows(
        &self,
        relay: &mut RunSequence,
        outcome: Outcome,
    ) -> Result<Duration, Conclusion> {
        let kind = outcome.failure().map(|failure| failure.kind.clone());
        if self.live.stop.is_cancelled() {
            return Err(stopped(relay, outcome, kind.as_ref()));
        }
        match kind {
            Some(FailureKind::SupervisorLost) => Err(lost(relay, outcome)),
            Some(FailureKind::RateLimit { retry_after: Some(wait) }) => {
                match relay.next_after_pause(outcome, wait) {
                    SequenceStep::Resume { delay } => Err(self.pause(relay, delay)),
                    SequenceStep::Done(outcome) => Err(Conclusion::Ended(Box::new(outcome.into()))),
                }
            }
            Some(FailureKind::SessionNotFound) if self.was_taken_up(relay) => {
                let spent = relay.elapsed() + Duration::from_millis(outcome.duration_ms);
                *relay =
                    RunSequence::new(self.job.order.call.clone(), self.desk.settings.max_resume_attempts);
                relay.add_elapsed(spent);
                Ok(Duration::ZERO)
            }
            _ => match relay.next(outcome) {
                SequenceStep::Resume { delay } => Ok(delay),
                SequenceStep::Done(outcome) => Err(Conclusion::Ended(Box::new(outcome.into()))),
            },
        }
    }

    /// Whether the session was not the caller's own wish but an attempt to save the work of a lost run.
    fn was_taken_up(&self, relay: &RunSequence) -> bool {
        relay.combined_outcome().is_none() && relay.spec().session != self.job.order.call.session
    }
}

/// What follows a run when somebody wants the job to end. A run that came to its own end keeps it; one that would be gone on with
/// is not, and neither is one that was lost begun again.
fn stopped(relay: &mut RunSequence, outcome: Outcome, kind: Option<&FailureKind>) -> Conclusion {
    let was_lost = kind == Some(&FailureKind::SupervisorLost);
    let next = match kind {
        Some(FailureKind::RateLimit { retry_after: Some(wait) }) => {
            relay.next_after_pause(outcome.clone(), *wait)
        }
        _ => relay.next(outcome.clone()),
    };
    let end = match next {
        SequenceStep::Done(outcome) if was_lost => cancelled(outcome),
        SequenceStep::Done(outcome) => outcome.into(),
        SequenceStep::Resume { .. } => cancelled(relay.combined_outcome().cloned().unwrap_or(outcome)),
    };
    Conclusion::Ended(Box::new(end))
}

/// The end of a job that was cancelled, with what its runs have said.
pub(super) fn cancelled(outcome: Outcome) -> JobEnd {
    JobEnd { how: TerminalState::Cancelled, failure: None, ..outcome.into() }
}

/// An end that no run has brought about, with what the runs before have said.
pub(super) fn with_what_was_said(conclusion: Conclusion, relay: &RunSequence) -> Conclusion {
    let fill = |mut end: Box<JobEnd>| {
        if let (None, Some(said)) = (&end.outcome, relay.combined_outcome()) {
            let verdict = end.failure.clone().map_or_else(|| said.verdict.clone(), Verdict::Failed);
            end.outcome = Some(Outcome { verdict, ..said.clone() });
        }
        end
    };
    match conclusion {
        Conclusion::Ended(end) => Conclusion::Ended(fill(end)),
        Conclusion::Interrupted(end) => Conclusion::Interrupted(fill(end)),
        other => other,
    }
}

/// What follows the loss of a run: another attempt, as long as the call has time for it.
fn lost(relay: &mut RunSequence, outcome: Outcome) -> Conclusion {
    let has_time = relay.has_time_for(Duration::from_millis(outcome.duration_ms));
    let outcome = match relay.next(outcome.clone()) {
        SequenceStep::Done(outcome) => outcome,
        SequenceStep::Resume { .. } => relay.combined_outcome().cloned().unwrap_or(outcome),
    };
    if has_time {
        return Conclusion::Interrupted(Box::new(outcome.into()));
    }
    let verdict = Verdict::Failed(out_of_time());
    Conclusion::Ended(Box::new(Outcome { verdict, ..outcome }.into()))
}
