//! Reacts to change notifications from a shared store: selects the jobs to claim, and adds jitter.
//!
//! Pure: the clock and the random number are passed in. If a hundred daemons are notified of one job, a few claims are enough. So a
//! daemon claims a job that others may claim, too, after a random delay, and not at all if the job is claimed meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{JobId, Placement, StateName};
use store::WatchEvent;
use tokio::time::Instant;

/// The upper bound of the random delay.
pub(crate) const CLAIM_JITTER: Duration = Duration::from_millis(250);

/// The jobs that were announced and not claimed yet.
#[derive(Debug)]
pub(crate) struct ClaimJitter {
    /// This machine. No other daemon claims its jobs.
    own: Placement,
    /// The labels, which other daemons may serve, too.
    shared: Vec<Placement>,
    announced: BTreeSet<JobId>,
    /// Is set if notifications were lost, so that any job may be queued.
    has_missed: bool,
    claim_at: Option<Instant>,
}

impl ClaimJitter {
    pub fn new(own: Placement, shared: Vec<Placement>) -> Self {
        Self { own, shared, announced: BTreeSet::new(), has_missed: false, claim_at: None }
    }

    /// Handles a notification and returns whether to claim at once. `fraction` is the position of a later claim within the jitter.
    pub fn on_change(&mut self, event: &WatchEvent, now: Instant, fraction: f64) -> bool {
        match event {
            WatchEvent::Changed(change) if change.state != StateName::Queued => {
                self.announced.remove(&change.job);
                if self.announced.is_empty() && !self.has_missed {
                    self.claim_at = None;
                }
                return false;
            }
            WatchEvent::Changed(change) => match &change.home {
                Some(home) if *home == self.own => return true,
                Some(home) if !self.shared.contains(home) => return false,
                Some(_) | None => drop(self.announced.insert(change.job)),
            },
            WatchEvent::Missed => self.has_missed = true,
        }
        self.claim_at.get_or_insert(now + CLAIM_JITTER.mul_f64(fraction));
        false
    }

    /// Returns the time of the next claim.
    pub fn claim_at(&self) -> Option<Instant> {
        self.claim_at
    }

    /// Forgets all announcements, since a claim is on its way.
    pub fn clear(&mut self) {
        (self.has_missed, self.claim_at) = (false, None);
        self.announced.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Timestamp;
    use store::JobChange;

    fn jitter() -> ClaimJitter {
        ClaimJitter::new(Placement::Host("here".into()), vec![Placement::Label("gpu".into())])
    }

    fn change(number: u64, state: StateName, home: Placement) -> WatchEvent {
        let job = JobId::new(Timestamp::from_millis(number), [0; 10]);
        WatchEvent::Changed(JobChange { job, state, revision: 1, home: Some(home) })
    }

    fn shared(number: u64, state: StateName) -> WatchEvent {
        change(number, state, Placement::Label("gpu".into()))
    }

    #[test]
    fn own_job_is_claimed_at_once() {
        let (mut jitter, now) = (jitter(), Instant::now());
        assert!(jitter.on_change(&change(1, StateName::Queued, Placement::Host("here".into())), now, 0.5));
        assert_eq!(jitter.claim_at(), None);
    }

    #[test]
    fn job_of_another_machine_is_ignored() {
        let (mut jitter, now) = (jitter(), Instant::now());
        for home in [Placement::Host("there".into()), Placement::Label("here".into())] {
            assert!(!jitter.on_change(&change(2, StateName::Queued, home), now, 0.5));
        }
        assert_eq!(jitter.claim_at(), None);
    }

    #[test]
    fn shared_job_is_claimed_later_unless_another_owner_has_it() {
        let (mut jitter, now) = (jitter(), Instant::now());
        assert!(!jitter.on_change(&shared(1, StateName::Queued), now, 0.5));
        assert_eq!(jitter.claim_at(), Some(now + CLAIM_JITTER / 2));
        // A second job does not delay the first.
        jitter.on_change(&shared(2, StateName::Queued), now + CLAIM_JITTER / 4, 1.0);
        assert_eq!(jitter.claim_at(), Some(now + CLAIM_JITTER / 2));
        jitter.on_change(&shared(1, StateName::Running), now, 0.5);
        assert!(jitter.claim_at().is_some(), "the second is still queued");
        jitter.on_change(&shared(2, StateName::Cancelled), now, 0.5);
        assert_eq!(jitter.claim_at(), None);
    }

    #[test]
    fn missed_notifications_cause_a_claim() {
        let (mut jitter, now) = (jitter(), Instant::now());
        jitter.on_change(&WatchEvent::Missed, now, 0.5);
        jitter.on_change(&shared(1, StateName::Queued), now, 0.5);
        jitter.on_change(&shared(1, StateName::Running), now, 0.5);
        assert_eq!(jitter.claim_at(), Some(now + CLAIM_JITTER / 2));
        jitter.clear();
        assert_eq!(jitter.claim_at(), None);
    }
}
