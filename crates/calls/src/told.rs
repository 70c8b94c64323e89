//! What a desk makes of the word of others that share its store: which jobs are for it, and when it looks for them.
//!
//! Pure: the clock and the chance are passed in. Of a hundred desks that hear of one job, the first few take it. So who hears of a job that
//! others may take, too, looks a moment later, each after another one; and not at all when it hears meanwhile that the job is taken.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{JobId, Placement, StateName};
use store::WatchEvent;
use tokio::time::Instant;

/// Within how long those who heard of a job look for it.
pub(crate) const SPREAD: Duration = Duration::from_millis(250);

/// What was heard and not yet looked for.
#[derive(Debug)]
pub(crate) struct Told {
    /// This machine, for whose jobs nobody else looks.
    own: Placement,
    /// The labels, to which others may answer, too.
    shared: Vec<Placement>,
    waiting: BTreeSet<JobId>,
    /// Something may be there that nobody named.
    missed: bool,
    look_at: Option<Instant>,
}

impl Told {
    pub fn new(own: Placement, shared: Vec<Placement>) -> Self {
        Self { own, shared, waiting: BTreeSet::new(), missed: false, look_at: None }
    }

    /// Takes in what was told. Whether it is to be looked at once; `part` is where within the spread this desk looks for what is not.
    pub fn hear(&mut self, event: &WatchEvent, now: Instant, part: f64) -> bool {
        match event {
            WatchEvent::Changed(change) if change.state != StateName::Queued => {
                self.waiting.remove(&change.job);
                if self.waiting.is_empty() && !self.missed {
                    self.look_at = None;
                }
                return false;
            }
            WatchEvent::Changed(change) => match &change.home {
                Some(home) if *home == self.own => return true,
                Some(home) if !self.shared.contains(home) => return false,
                Some(_) | None => drop(self.waiting.insert(change.job)),
            },
            WatchEvent::Missed => self.missed = true,
        }
        self.look_at.get_or_insert(now + SPREAD.mul_f64(part));
        false
    }

    /// When it is to be looked, if it is.
    pub fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// It is being looked: nothing is open any more.
    pub fn looks(&mut self) {
        (self.missed, self.look_at) = (false, None);
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Timestamp;
    use store::JobChange;

    fn told() -> Told {
        Told::new(Placement::Host("here".into()), vec![Placement::Label("gpu".into())])
    }

    fn change(number: u64, state: StateName, home: Placement) -> WatchEvent {
        let job = JobId::new(Timestamp::from_millis(number), [0; 10]);
        WatchEvent::Changed(JobChange { job, state, revision: 1, home: Some(home) })
    }

    fn shared(number: u64, state: StateName) -> WatchEvent {
        change(number, state, Placement::Label("gpu".into()))
    }

    #[test]
    fn a_job_of_its_own_is_looked_for_at_once_and_one_of_another_machine_never() {
        let (mut told, now) = (told(), Instant::now());
        assert!(told.hear(&change(1, StateName::Queued, Placement::Host("here".into())), now, 0.5));
        for home in [Placement::Host("there".into()), Placement::Label("here".into())] {
            assert!(!told.hear(&change(2, StateName::Queued, home), now, 0.5));
        }
        assert_eq!(told.look_at(), None);
    }

    #[test]
    fn a_shared_job_is_looked_for_after_a_moment_unless_it_is_taken_by_then() {
        let (mut told, now) = (told(), Instant::now());
        assert!(!told.hear(&shared(1, StateName::Queued), now, 0.5));
        assert_eq!(told.look_at(), Some(now + SPREAD / 2));
        // A second one does not put it off.
        told.hear(&shared(2, StateName::Queued), now + SPREAD / 4, 1.0);
        assert_eq!(told.look_at(), Some(now + SPREAD / 2));
        told.hear(&shared(1, StateName::Running), now, 0.5);
        assert!(told.look_at().is_some(), "the second waits");
        told.hear(&shared(2, StateName::Cancelled), now, 0.5);
        assert_eq!(told.look_at(), None);
    }

    #[test]
    fn what_was_missed_is_looked_for_whatever_is_taken() {
        let (mut told, now) = (told(), Instant::now());
        told.hear(&WatchEvent::Missed, now, 0.5);
        told.hear(&shared(1, StateName::Queued), now, 0.5);
        told.hear(&shared(1, StateName::Running), now, 0.5);
        assert_eq!(told.look_at(), Some(now + SPREAD / 2));
        told.looks();
        assert_eq!(told.look_at(), None);
    }
}
