//! Plans the recovery of an orphaned job: one whose owner is gone.
//!
//! Pure; `orphans` and the runner gather the evidence and carry the plan out.

use model::StateName;
use supervisor::{AttachError, SpoolError};

/// The evidence about an orphaned job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Orphan {
    /// Is true if its owner was a daemon of this state directory, which is dead: this one holds the directory's lock.
    pub is_local: bool,
    pub has_directory: bool,
    pub newest_run: NewestRun,
}

/// The newest run of an orphaned job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewestRun {
    /// The job has no run.
    Missing,
    /// The run has no record, so it was never started.
    WithoutRecord,
    /// The run belongs to an earlier attempt, so it was judged.
    EarlierAttempt,
    /// The run belongs to the current attempt.
    Current,
}

/// The continuation of an orphaned job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecoveryPlan {
    /// Follow the run to its end, as the same attempt.
    Reattach,
    /// Start a run, as the same attempt.
    Restart,
    /// Queue the job again, which costs an attempt.
    Requeue,
}

/// Returns how an orphaned job continues.
pub(crate) fn plan_recovery(orphan: Orphan) -> RecoveryPlan {
    // Another machine has its files.
    if !orphan.is_local && !orphan.has_directory {
        return RecoveryPlan::Requeue;
    }
    if orphan.newest_run == NewestRun::Current { RecoveryPlan::Reattach } else { RecoveryPlan::Restart }
}

/// The reason why a run could not be attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttachFailure {
    /// The spool holds no run.
    NeverStarted,
    /// The status is damaged or of another version. A supervisor that is still alive may repair it.
    Damaged { has_supervisor: bool },
    /// A FIFO, a device or a directory stands in place of a file.
    Unreadable,
    /// A lack of resources, such as EMFILE.
    Transient,
}

impl AttachFailure {
    /// Classifies an error of attaching. `has_supervisor` tells whether a process holds the spool's lock.
    pub fn from_error(error: &AttachError, has_supervisor: impl FnOnce() -> bool) -> Self {
        match error {
            AttachError::NoRun { .. } => Self::NeverStarted,
            AttachError::Spool(SpoolError::Damaged { .. } | SpoolError::OtherVersion { .. }) => {
                Self::Damaged { has_supervisor: has_supervisor() }
            }
            AttachError::Spool(SpoolError::Unreadable { .. }) | AttachError::Directory(_)
                if !error.is_transient() =>
            {
                Self::Unreadable
            }
            _ => Self::Transient,
        }
    }
}

/// The continuation of a job whose run could not be attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttachPlan {
    /// Start a run, as the same attempt.
    Restart,
    /// Attach again later: a run that may be alive must not be started twice.
    Retry,
    /// Fail the job, after its process tree was stopped if `stop` is set.
    Fail { stop: bool },
}

/// Returns how a job continues whose run could not be attached to.
pub(crate) fn plan_attach(failure: AttachFailure) -> AttachPlan {
    match failure {
        AttachFailure::NeverStarted => AttachPlan::Restart,
        AttachFailure::Damaged { has_supervisor: true } | AttachFailure::Transient => AttachPlan::Retry,
        AttachFailure::Damaged { has_supervisor: false } => AttachPlan::Fail { stop: false },
        AttachFailure::Unreadable => AttachPlan::Fail { stop: true },
    }
}

/// The way to give up a claim that the store attributes to this service although no task runs the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleasePlan {
    /// Release the claim, which costs no attempt: nothing was started.
    Release,
    /// Stop the newest run, then requeue.
    StopAndRequeue,
}

/// Returns how to give up an unknown claim.
pub(crate) fn plan_release(state: StateName, has_runs: bool) -> ReleasePlan {
    if state == StateName::Running && !has_runs { ReleasePlan::Release } else { ReleasePlan::StopAndRequeue }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_decides_how_an_orphan_continues() {
        use NewestRun::{Current, EarlierAttempt, Missing, WithoutRecord};
        use RecoveryPlan::{Reattach, Requeue, Restart};
        // is_local, has_directory, newest_run, plan
        let table = [
            (false, false, Missing, Requeue),
            (false, true, Missing, Restart),
            (true, false, Missing, Restart),
            (true, true, Missing, Restart),
            (true, true, WithoutRecord, Restart),
            (true, true, EarlierAttempt, Restart),
            (true, true, Current, Reattach),
            (false, true, Current, Reattach),
        ];
        for (is_local, has_directory, newest_run, expected) in table {
            let orphan = Orphan { is_local, has_directory, newest_run };
            assert_eq!(plan_recovery(orphan), expected, "{orphan:?}");
        }
    }

    #[test]
    fn possibly_live_run_is_never_started_twice() {
        let table = [
            (AttachFailure::NeverStarted, AttachPlan::Restart),
            (AttachFailure::Damaged { has_supervisor: true }, AttachPlan::Retry),
            (AttachFailure::Damaged { has_supervisor: false }, AttachPlan::Fail { stop: false }),
            (AttachFailure::Unreadable, AttachPlan::Fail { stop: true }),
            (AttachFailure::Transient, AttachPlan::Retry),
        ];
        for (failure, expected) in table {
            assert_eq!(plan_attach(failure), expected, "{failure:?}");
        }
    }

    #[test]
    fn unknown_claim_costs_an_attempt_only_after_a_run() {
        let table = [
            (StateName::Running, false, ReleasePlan::Release),
            (StateName::Running, true, ReleasePlan::StopAndRequeue),
            (StateName::Interrupted, false, ReleasePlan::StopAndRequeue),
            (StateName::Interrupted, true, ReleasePlan::StopAndRequeue),
        ];
        for (state, has_runs, expected) in table {
            assert_eq!(plan_release(state, has_runs), expected, "{state:?} {has_runs}");
        }
    }
}
