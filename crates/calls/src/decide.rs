//! Decides the next step of a job: another run, a pause, a requeue, or its end.
//!
//! Pure; the runner carries the decision out.

use std::time::Duration;

use agents::{RunSequence, SequenceStep};
use model::{CallSpec, Deadline, Failure, FailureKind, JobEnd, Outcome, TerminalState, Verdict};

use crate::active::StopReason;
use crate::verification::{Verification, VerificationState};

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

/// Returns the step that follows the verification of a successful run, and adds a repair to the sequence.
pub(crate) fn after_verification(
    outcome: Outcome,
    verification: &Verification,
    sequence: &mut RunSequence,
    max_repairs: u32,
    stop: Option<StopReason>,
) -> NextStep {
    if verification.state == VerificationState::Passed {
        return NextStep::finish(outcome);
    }
    if stop.is_some() {
        return NextStep::finish(cancelled(outcome));
    }
    let can_repair = verification.state == VerificationState::Failed && sequence.repairs() < max_repairs;
    if can_repair && sequence.repair(&outcome, repair_prompt(verification)) {
        return NextStep::Resume { after: Duration::ZERO };
    }
    let Verification { command, reason, .. } = verification;
    let reason = reason.as_deref().unwrap_or_default();
    let message = match verification.state {
        VerificationState::NotRun => format!("the work is not verified: {reason}"),
        _ => format!("the verification `{command}` {reason}"),
    };
    let failure = Failure { kind: FailureKind::VerificationFailed, message };
    NextStep::finish(Outcome { verdict: Verdict::Failed(failure), ..outcome })
}

/// Returns the prompt for an agent whose work failed the verification.
fn repair_prompt(verification: &Verification) -> String {
    let Verification { command, reason, output, restored, .. } = verification;
    let reason = reason.as_deref().unwrap_or_default();
    let reverted = match restored.as_slice() {
        [] => String::new(),
        files => format!(
            " These files are protected, and your changes to them were reverted: {}.",
            files.join(", ")
        ),
    };
    let end = output.as_ref().map(|output| format!(" The end of its output:\n\n{output}"));
    let end = end.unwrap_or_default();
    format!("After your work, the command `{command}` {reason}. Fix the cause in your work.{reverted}{end}")
}

/// Returns the end of a job whose caller expects changes, given the number of changed files if it is known.
pub(crate) fn with_expected_changes(end: JobEnd, changed_files: Option<usize>) -> JobEnd {
    if end.how != TerminalState::Completed || changed_files != Some(0) {
        return end;
    }
    let message = "the agent reported success, but changed no file".to_owned();
    let failure = Failure { kind: FailureKind::NoChanges, message };
    let outcome = end.outcome.map(|outcome| Outcome { verdict: Verdict::Failed(failure.clone()), ..outcome });
    JobEnd { how: TerminalState::Failed, failure: Some(failure), outcome, ..end }
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
    match sequence.combined_outcome() {
        Some(earlier) if end.outcome.is_none() => with_outcome(end, earlier),
        _ => end,
    }
}

/// Adds the outcome of the agent to an end that has another cause.
pub(crate) fn with_outcome(end: JobEnd, outcome: &Outcome) -> JobEnd {
    let verdict = end.failure.clone().map_or_else(|| outcome.verdict.clone(), Verdict::Failed);
    JobEnd { outcome: Some(Outcome { verdict, ..outcome.clone() }), has_answer: outcome.has_answer(), ..end }
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

    fn verified(state: VerificationState) -> Verification {
        let spec = model::VerifySpec::new("just test");
        let output = Some("1 failed".to_owned());
        Verification { state, output, ..Verification::not_run(&spec, "ended with exit code 1") }
    }

    #[test]
    fn verification_decides_whether_the_job_is_completed() {
        use VerificationState::{Failed, NotRun, Passed};
        let (completed, failed) = (Some(TerminalState::Completed), Some(TerminalState::Failed));
        // state, repairs that are allowed, stop reason, step
        let table = [
            (Passed, 0, None, ("finish", completed)),
            (Passed, 0, Some(StopReason::User), ("finish", completed)),
            (Failed, 0, None, ("finish", failed)),
            (Failed, 1, None, ("resume", None)),
            (Failed, 1, Some(StopReason::User), ("finish", Some(TerminalState::Cancelled))),
            (NotRun, 1, None, ("finish", failed)),
            (NotRun, 0, Some(StopReason::CancelAll), ("finish", Some(TerminalState::Cancelled))),
        ];
        for (state, repairs, stop, expected) in table {
            let step = after_verification(outcome(None), &verified(state), &mut sequence(), repairs, stop);
            assert_eq!(name(&step), expected, "{state:?}, {repairs}, {stop:?}");
            if let NextStep::Finish(end) = step
                && expected.1 == failed
            {
                assert_eq!(end.failure.unwrap().kind, FailureKind::VerificationFailed);
                assert_eq!(end.outcome.unwrap().text, "text");
            }
        }
    }

    #[test]
    fn repair_resumes_the_session_with_the_output() {
        let mut sequence = sequence();
        let failed = verified(VerificationState::Failed);
        let step = after_verification(outcome(None), &failed, &mut sequence, 1, None);
        assert_eq!(step, NextStep::Resume { after: Duration::ZERO });
        assert_eq!((sequence.repairs(), sequence.elapsed()), (1, Duration::from_secs(1)));
        assert!(sequence.spec().prompt.ends_with("The end of its output:\n\n1 failed"));
        assert!(matches!(sequence.spec().session, model::SessionChoice::Resume(_)));
        let step = after_verification(outcome(None), &failed, &mut sequence, 1, None);
        assert_eq!(name(&step), ("finish", Some(TerminalState::Failed)));
    }

    #[test]
    fn work_without_a_session_is_not_repaired() {
        let failed = verified(VerificationState::Failed);
        let without = Outcome { session: None, ..outcome(None) };
        let step = after_verification(without, &failed, &mut sequence(), 1, None);
        assert_eq!(name(&step), ("finish", Some(TerminalState::Failed)));
    }

    #[test]
    fn success_without_expected_changes_is_a_failure() {
        let end = |kind| JobEnd::from(outcome(kind));
        let kind = |end: JobEnd| end.failure.map(|failure| failure.kind);
        assert_eq!(kind(with_expected_changes(end(None), Some(0))), Some(FailureKind::NoChanges));
        assert_eq!(kind(with_expected_changes(end(None), Some(1))), None);
        assert_eq!(kind(with_expected_changes(end(None), None)), None);
        let failed = with_expected_changes(end(Some(FailureKind::Auth)), Some(0));
        assert_eq!(kind(failed), Some(FailureKind::Auth));
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
