//! Decides the next step of a job: another run, a pause, a requeue, or its end.
//!
//! Pure; the runner carries the decision out.

use std::time::Duration;

use agents::{RunSequence, SequenceStep};
use model::{CallSpec, Deadline, Failure, FailureKind, JobEnd, Outcome, TerminalState, Verdict};

use crate::active::StopReason;

/// The next step of a job.
#[derive(Debug, PartialEq)]
pub(crate) enum NextStep {
    /// The job ends.
    Finish(Box<JobEnd>),
    /// The next run of the sequence starts after a delay.
    Resume { after: Duration },
    /// The job is paused, such as until a quota resets.
    Pause { after: Duration },
    /// The job is queued again after the loss of a run. It ends like this if no attempt is left.
    Requeue(Box<JobEnd>),
    /// The job waits for the next service, at the same point of its sequence.
    Suspend,
    /// The claim stays as it is, and the next service adopts the job.
    Detach,
}

impl NextStep {
    fn finish(end: impl Into<JobEnd>) -> Self {
        Self::Finish(Box::new(end.into()))
    }
}

/// The facts about a job that a decision depends on, besides its runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobFacts<'a> {
    /// The call as it was submitted.
    pub call: &'a CallSpec,
    pub max_resume_attempts: u32,
    pub stop: Option<StopReason>,
}

/// Returns the step that follows a run, and advances the sequence.
pub(crate) fn after_run(outcome: Outcome, sequence: &mut RunSequence, facts: JobFacts<'_>) -> NextStep {
    let kind = outcome.failure().map(|failure| failure.kind.clone());
    match (facts.stop, kind) {
        (Some(StopReason::User | StopReason::CancelAll | StopReason::LostClaim), kind) => {
            after_stopped_run(outcome, kind.as_ref(), sequence)
        }
        (_, Some(FailureKind::SupervisorLost)) => after_lost_run(outcome, sequence),
        (_, Some(FailureKind::RateLimit { retry_after: Some(wait) })) => {
            match sequence.next_after_pause(outcome, wait) {
                SequenceStep::Resume { delay } => NextStep::Pause { after: delay },
                SequenceStep::Done(outcome) => NextStep::finish(outcome),
            }
        }
        (_, Some(FailureKind::SessionNotFound)) if is_rescue_attempt(sequence, facts.call) => {
            let spent = sequence.elapsed() + Duration::from_millis(outcome.duration_ms);
            *sequence = RunSequence::new(facts.call.clone(), facts.max_resume_attempts);
            sequence.add_elapsed(spent);
            NextStep::Resume { after: Duration::ZERO }
        }
        _ => match sequence.next(outcome) {
            SequenceStep::Resume { delay } => NextStep::Resume { after: delay },
            SequenceStep::Done(outcome) => NextStep::finish(outcome),
        },
    }
}

/// Returns the step of a job that is stopped while none of its runs is alive.
pub(crate) fn between_runs(reason: StopReason, sequence: &RunSequence) -> NextStep {
    match reason {
        StopReason::Detach => NextStep::Detach,
        StopReason::Drain => NextStep::Suspend,
        StopReason::User | StopReason::CancelAll | StopReason::LostClaim => {
            NextStep::finish(sequence.combined_outcome().cloned().map_or_else(JobEnd::cancelled, cancelled))
        }
    }
}

/// Adds the outcome of earlier runs to an end that no run has caused.
pub(crate) fn with_earlier_runs(end: JobEnd, sequence: &RunSequence) -> JobEnd {
    let Some(earlier) = sequence.combined_outcome().filter(|_| end.outcome.is_none()) else { return end };
    let verdict = end.failure.clone().map_or_else(|| earlier.verdict.clone(), Verdict::Failed);
    JobEnd { outcome: Some(Outcome { verdict, ..earlier.clone() }), ..end }
}

/// Returns whether the next run was to resume a lost session, which the caller had not asked for.
fn is_rescue_attempt(sequence: &RunSequence, call: &CallSpec) -> bool {
    sequence.combined_outcome().is_none() && sequence.spec().session != call.session
}

/// A run that finished by itself keeps its outcome. A run that would be resumed, or that was lost, is cancelled instead.
fn after_stopped_run(outcome: Outcome, kind: Option<&FailureKind>, sequence: &mut RunSequence) -> NextStep {
    let was_lost = kind == Some(&FailureKind::SupervisorLost);
    let next = match kind {
        Some(FailureKind::RateLimit { retry_after: Some(wait) }) => {
            sequence.next_after_pause(outcome.clone(), *wait)
        }
        _ => sequence.next(outcome.clone()),
    };
    match next {
        SequenceStep::Done(outcome) if was_lost => NextStep::finish(cancelled(outcome)),
        SequenceStep::Done(outcome) => NextStep::finish(outcome),
        SequenceStep::Resume { .. } => {
            NextStep::finish(cancelled(sequence.combined_outcome().cloned().unwrap_or(outcome)))
        }
    }
}

/// A job whose run is lost is requeued while the call has time left.
fn after_lost_run(outcome: Outcome, sequence: &mut RunSequence) -> NextStep {
    let has_time = sequence.has_time_for(Duration::from_millis(outcome.duration_ms));
    let outcome = match sequence.next(outcome.clone()) {
        SequenceStep::Done(outcome) => outcome,
        SequenceStep::Resume { .. } => sequence.combined_outcome().cloned().unwrap_or(outcome),
    };
    if has_time {
        return NextStep::Requeue(Box::new(outcome.into()));
    }
    let failure = Failure {
        kind: FailureKind::Deadline { which: Deadline::Wall },
        message: "the time limit of the call was reached when its run was lost".to_owned(),
    };
    NextStep::finish(Outcome { verdict: Verdict::Failed(failure), ..outcome })
}

fn cancelled(outcome: Outcome) -> JobEnd {
    JobEnd { how: TerminalState::Cancelled, failure: None, ..outcome.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::AgentKind;

    const MAX_RESUMES: u32 = 5;

    fn call() -> CallSpec {
        CallSpec::new(AgentKind::Rehearsal, "task", "/")
    }

    fn sequence() -> RunSequence {
        RunSequence::new(call(), MAX_RESUMES)
    }

    /// Returns the outcome of a run of one second, failed if a kind is given.
    fn outcome(kind: Option<FailureKind>) -> Outcome {
        let failure = |kind| Failure { kind, message: "message".to_owned() };
        Outcome {
            agent: AgentKind::Rehearsal,
            verdict: kind.map_or(Verdict::Success, |kind| Verdict::Failed(failure(kind))),
            text: "text".to_owned(),
            text_cut: 0,
            structured_output: None,
            session: "session".parse().ok(),
            session_mismatch: None,
            model: None,
            usage: None,
            cost_usd: None,
            session_totals: None,
            turns: None,
            duration_ms: 1_000,
            permission_denials: Vec::new(),
            background: Vec::new(),
            refusals: Vec::new(),
            implausible: Vec::new(),
            retries: 0,
            exit: None,
        }
    }

    /// Returns the name of a step and, of a job that ends, how.
    fn name(step: &NextStep) -> (&'static str, Option<TerminalState>) {
        match step {
            NextStep::Finish(end) => ("finish", Some(end.how)),
            NextStep::Requeue(end) => ("requeue", Some(end.how)),
            NextStep::Resume { .. } => ("resume", None),
            NextStep::Pause { .. } => ("pause", None),
            NextStep::Suspend => ("suspend", None),
            NextStep::Detach => ("detach", None),
        }
    }

    fn decide(kind: Option<FailureKind>, stop: Option<StopReason>) -> NextStep {
        let facts = JobFacts { call: &call(), max_resume_attempts: MAX_RESUMES, stop };
        after_run(outcome(kind), &mut sequence(), facts)
    }

    #[test]
    fn outcome_and_stop_reason_decide_the_next_step() {
        use StopReason::{CancelAll, Detach, Drain, LostClaim, User};
        let quota = |hours| FailureKind::RateLimit { retry_after: Some(Duration::from_hours(hours)) };
        let soon = || FailureKind::RateLimit { retry_after: Some(Duration::from_mins(1)) };
        let lost = || Some(FailureKind::SupervisorLost);
        let (completed, failed) = (Some(TerminalState::Completed), Some(TerminalState::Failed));
        let cancelled = Some(TerminalState::Cancelled);
        let table = [
            // A run that ends by itself ends the job.
            (None, None, ("finish", completed)),
            (Some(FailureKind::Auth), None, ("finish", failed)),
            (Some(FailureKind::SessionNotFound), None, ("finish", failed)),
            // A run without turns or quota is continued.
            (Some(FailureKind::MaxTurns), None, ("resume", None)),
            (Some(soon()), None, ("pause", None)),
            (Some(quota(48)), None, ("finish", failed)),
            (Some(FailureKind::RateLimit { retry_after: None }), None, ("finish", failed)),
            // A lost run costs an attempt.
            (lost(), None, ("requeue", failed)),
            // A shutdown changes nothing after a run.
            (None, Some(Drain), ("finish", completed)),
            (Some(FailureKind::MaxTurns), Some(Drain), ("resume", None)),
            (lost(), Some(Detach), ("requeue", failed)),
            // A stopped job keeps an outcome that it has, and starts no further run.
            (None, Some(User), ("finish", completed)),
            (Some(FailureKind::Auth), Some(User), ("finish", failed)),
            (Some(FailureKind::MaxTurns), Some(User), ("finish", cancelled)),
            (Some(soon()), Some(CancelAll), ("finish", cancelled)),
            (Some(quota(48)), Some(CancelAll), ("finish", failed)),
            (lost(), Some(User), ("finish", cancelled)),
            (lost(), Some(LostClaim), ("finish", cancelled)),
        ];
        for (kind, stop, expected) in table {
            let step = decide(kind.clone(), stop);
            assert_eq!(name(&step), expected, "{kind:?}, {stop:?}");
        }
    }

    #[test]
    fn lost_run_beyond_the_time_limit_is_a_timeout() {
        let mut limited = call();
        limited.limits.wall = Some(Duration::from_millis(500));
        let facts = JobFacts { call: &limited, max_resume_attempts: MAX_RESUMES, stop: None };
        let mut sequence = RunSequence::new(limited.clone(), MAX_RESUMES);
        let step = after_run(outcome(Some(FailureKind::SupervisorLost)), &mut sequence, facts);
        assert_eq!(name(&step), ("finish", Some(TerminalState::Timeout)));
    }

    #[test]
    fn unknown_session_of_a_rescue_restarts_the_call() {
        let call = call();
        let facts = JobFacts { call: &call, max_resume_attempts: MAX_RESUMES, stop: None };
        let mut rescue = sequence();
        rescue.resume_lost_run("continue".to_owned(), "lost".parse().unwrap());
        let step = after_run(outcome(Some(FailureKind::SessionNotFound)), &mut rescue, facts);
        assert_eq!(step, NextStep::Resume { after: Duration::ZERO });
        assert_eq!((rescue.spec().prompt.as_str(), &rescue.spec().session), ("task", &call.session));
        assert_eq!(rescue.elapsed(), Duration::from_secs(1));
    }

    #[test]
    fn stop_reason_decides_what_happens_between_runs() {
        for (reason, expected) in [
            (StopReason::User, ("finish", Some(TerminalState::Cancelled))),
            (StopReason::CancelAll, ("finish", Some(TerminalState::Cancelled))),
            (StopReason::LostClaim, ("finish", Some(TerminalState::Cancelled))),
            (StopReason::Drain, ("suspend", None)),
            (StopReason::Detach, ("detach", None)),
        ] {
            assert_eq!(name(&between_runs(reason, &sequence())), expected, "{reason:?}");
        }
    }

    #[test]
    fn cancelled_job_keeps_the_text_of_its_earlier_runs() {
        let mut sequence = sequence();
        assert!(matches!(sequence.next(outcome(Some(FailureKind::MaxTurns))), SequenceStep::Resume { .. }));
        let NextStep::Finish(end) = between_runs(StopReason::User, &sequence) else { panic!("it ends") };
        assert_eq!(end.outcome.map(|outcome| outcome.text).as_deref(), Some("text"));
        let failure = Failure { kind: FailureKind::SpoolFailed, message: "full".to_owned() };
        let end = with_earlier_runs(JobEnd::failed(failure.clone()), &sequence);
        assert_eq!(end.outcome.unwrap().verdict, Verdict::Failed(failure));
    }
}
