//! The deadlines of a run. Pure: the clock is passed in.

use std::time::Instant;

use model::{Deadline, Limits};

/// The deadlines of one run.
#[derive(Debug)]
pub struct Deadlines {
    started: Instant,
    last_byte: Option<Instant>,
    limits: Limits,
}

impl Deadlines {
    /// Starts all deadlines.
    pub fn start(limits: Limits, now: Instant) -> Self {
        Self { started: now, last_byte: None, limits }
    }

    /// Records output of the agent.
    pub fn byte_seen(&mut self, now: Instant) {
        self.last_byte = Some(now);
    }

    /// Returns the next deadline and its time, if any. A deadline beyond the range of the clock never expires.
    pub fn next(&self) -> Option<(Instant, Deadline)> {
        let Limits { start, idle, .. } = self.limits;
        let silence = match (self.last_byte, start) {
            (None, Some(start)) => (self.started.checked_add(start), Deadline::Start),
            // Without a start limit, the time before the first byte counts as idle.
            (last, _) => {
                (idle.and_then(|idle| last.unwrap_or(self.started).checked_add(idle)), Deadline::Idle)
            }
        };
        let wall = (self.limits.wall.and_then(|limit| self.started.checked_add(limit)), Deadline::Wall);
        [silence, wall].into_iter().filter_map(|(at, which)| Some((at?, which))).min_by_key(|(at, _)| *at)
    }

    /// Returns the deadline that has expired, if any.
    pub fn passed(&self, now: Instant) -> Option<Deadline> {
        self.next().filter(|(at, _)| *at <= now).map(|(_, which)| which)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Limits {
        Limits {
            start: Some(2 * SECOND),
            idle: Some(3 * SECOND),
            wall: Some(10 * SECOND),
            ..Limits::default()
        }
    }

    #[test]
    fn silence_before_first_byte_meets_start_deadline() {
        let now = Instant::now();
        let deadlines = Deadlines::start(limits(), now);
        assert_eq!(deadlines.passed(now + SECOND), None);
        assert_eq!(deadlines.passed(now + 2 * SECOND), Some(Deadline::Start));
    }

    #[test]
    fn first_byte_replaces_start_by_idle_deadline() {
        let now = Instant::now();
        let mut deadlines = Deadlines::start(limits(), now);
        deadlines.byte_seen(now + SECOND);
        assert_eq!(deadlines.passed(now + 3 * SECOND), None);
        assert_eq!(deadlines.passed(now + 4 * SECOND), Some(Deadline::Idle));
    }

    #[test]
    fn idle_limit_replaces_missing_start_limit() {
        let now = Instant::now();
        let deadlines = Deadlines::start(Limits { start: None, ..limits() }, now);
        assert_eq!(deadlines.passed(now + 2 * SECOND), None);
        assert_eq!(deadlines.passed(now + 3 * SECOND), Some(Deadline::Idle));
    }

    #[test]
    fn start_limit_may_exceed_idle_limit() {
        let now = Instant::now();
        let deadlines = Deadlines::start(Limits { start: Some(5 * SECOND), ..limits() }, now);
        assert_eq!(deadlines.passed(now + 4 * SECOND), None);
        assert_eq!(deadlines.passed(now + 5 * SECOND), Some(Deadline::Start));
    }

    #[test]
    fn output_does_not_extend_wall_deadline() {
        let now = Instant::now();
        let mut deadlines = Deadlines::start(limits(), now);
        deadlines.byte_seen(now + 9 * SECOND);
        assert_eq!(deadlines.passed(now + 10 * SECOND), Some(Deadline::Wall));
    }

    #[test]
    fn run_without_limits_has_no_deadline() {
        let none = Limits { start: None, idle: None, wall: None, ..Limits::default() };
        assert_eq!(Deadlines::start(none, Instant::now()).next(), None);
        let endless = Limits { wall: Some(Duration::MAX), ..Limits::default() };
        assert_eq!(Deadlines::start(endless, Instant::now()).next(), None);
    }
}
