//! Decides when the limits of a run are enforced from outside, because its supervisor does not.
//!
//! A supervisor enforces the limits itself and reports the end. While it is suspended (SIGSTOP, a debugger) it cannot,
//! so every program that waits for the run checks the limits as well. It first continues the supervisor, which suffices
//! after an accident. A supervisor that is suspended repeatedly is killed with its process tree. Pure: the clock is
//! passed in.

use std::time::{Duration, Instant};

use model::{End, LimitClock, Limits};

use crate::deadlines::Deadlines;

/// The time between two checks.
pub const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The time for a working supervisor to handle a deadline or a stop request itself.
const REACTION: Duration = Duration::from_secs(1);
/// The number of checks that may find an overdue supervisor suspended before it is killed.
pub const STRIKES: u32 = 3;
/// The time for an overdue supervisor that is not suspended to end the tree, beyond the grace period of the plan.
const OVERTIME: Duration = Duration::from_mins(1);

/// The limits of one run, seen from outside.
#[derive(Debug)]
pub struct Watchdog {
    deadlines: Deadlines,
    grace: Duration,
    printed: u64,
    stop_requested: Option<Instant>,
    strikes: u32,
    next_check: Instant,
}

/// The state of a run at one check.
#[derive(Debug, Clone, Copy)]
pub struct Observed {
    /// The bytes in the files of both streams.
    pub printed: u64,
    /// Set if the supervisor is suspended.
    pub suspended: bool,
}

/// The action that a check requires.
#[derive(Debug, PartialEq, Eq)]
pub enum Measure {
    /// Nothing is overdue.
    Wait,
    /// Continue the supervisor, so that it can enforce the limit itself.
    Continue,
    /// Kill the supervisor and the process tree; the run ends with this outcome.
    Kill(End),
}

impl Watchdog {
    /// Starts at the supervisor's own start time, if it is known; earlier versions do not record it.
    pub fn new(clock: Option<&LimitClock>, monotonic_ms: u64, now: Instant) -> Self {
        let unlimited = Limits { start: None, idle: None, wall: None, ..Limits::default() };
        let limits = clock.map_or(unlimited, |clock| clock.limits.clone());
        let started_ms = clock.map_or(monotonic_ms, |clock| clock.started_monotonic_ms);
        let elapsed = Duration::from_millis(monotonic_ms.saturating_sub(started_ms));
        Self {
            grace: limits.grace,
            deadlines: Deadlines::start(limits, now.checked_sub(elapsed).unwrap_or(now)),
            printed: 0,
            stop_requested: None,
            strikes: 0,
            next_check: now + CHECK_EVERY,
        }
    }

    /// Records a stop request.
    pub fn request_stop(&mut self, now: Instant) {
        self.stop_requested.get_or_insert(now);
    }

    /// Returns when the next check is due.
    pub fn next_check(&self) -> Instant {
        self.next_check
    }

    /// Checks the run once.
    pub fn check(&mut self, seen: Observed, now: Instant) -> Measure {
        self.next_check = now + CHECK_EVERY;
        if seen.printed > self.printed {
            self.printed = seen.printed;
            self.deadlines.byte_seen(now);
        }
        let stop = self.stop_requested.map(|at| (at, End::Stopped));
        let due = stop.or_else(|| self.deadlines.next().map(|(at, which)| (at, End::Deadline { which })));
        let Some((at, end)) = due.filter(|(at, _)| now >= *at + REACTION) else { return Measure::Wait };
        if seen.suspended && self.strikes < STRIKES {
            self.strikes += 1;
            Measure::Continue
        } else if seen.suspended || now >= at + self.grace + OVERTIME {
            Measure::Kill(end)
        } else {
            Measure::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Deadline;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn watchdog(now: Instant) -> Watchdog {
        let limits = Limits { wall: Some(5 * SECOND), idle: Some(3 * SECOND), ..Limits::default() };
        Watchdog::new(Some(&LimitClock { limits, started_monotonic_ms: 7_000 }), 7_000, now)
    }

    fn seen(printed: u64, suspended: bool) -> Observed {
        Observed { printed, suspended }
    }

    #[test]
    fn suspended_supervisor_within_limits_is_left_alone() {
        let now = Instant::now();
        assert_eq!(watchdog(now).check(seen(0, true), now + 3 * SECOND), Measure::Wait);
    }

    #[test]
    fn overdue_supervisor_is_continued_then_killed() {
        let now = Instant::now();
        let mut watchdog = watchdog(now);
        for second in 4..7 {
            assert_eq!(watchdog.check(seen(0, true), now + second * SECOND), Measure::Continue);
        }
        let idle = End::Deadline { which: Deadline::Idle };
        assert_eq!(watchdog.check(seen(0, true), now + 7 * SECOND), Measure::Kill(idle));
    }

    #[test]
    fn output_extends_only_idle_deadline() {
        let now = Instant::now();
        let mut watchdog = watchdog(now);
        assert_eq!(watchdog.check(seen(1, true), now + 3 * SECOND), Measure::Wait);
        assert_eq!(watchdog.check(seen(2, true), now + 5 * SECOND), Measure::Wait);
        assert_eq!(watchdog.check(seen(3, true), now + 6 * SECOND), Measure::Continue);
    }

    #[test]
    fn working_supervisor_gets_grace_and_overtime() {
        let now = Instant::now();
        let mut watchdog = watchdog(now);
        assert_eq!(watchdog.check(seen(0, false), now + 60 * SECOND), Measure::Wait);
        let idle = End::Deadline { which: Deadline::Idle };
        assert_eq!(watchdog.check(seen(0, false), now + 68 * SECOND), Measure::Kill(idle));
    }

    #[test]
    fn stop_request_is_enforced_without_any_limit() {
        let now = Instant::now();
        let mut watchdog = Watchdog::new(None, 0, now);
        assert_eq!(watchdog.check(seen(0, true), now + 3600 * SECOND), Measure::Wait);
        watchdog.request_stop(now);
        watchdog.strikes = STRIKES;
        assert_eq!(watchdog.check(seen(0, true), now + SECOND), Measure::Kill(End::Stopped));
    }

    #[test]
    fn time_before_attach_counts() {
        let now = Instant::now();
        let limits = Limits { wall: Some(5 * SECOND), ..Limits::default() };
        let clock = LimitClock { limits, started_monotonic_ms: 1_000 };
        let mut watchdog = Watchdog::new(Some(&clock), 7_500, now);
        assert_eq!(watchdog.check(seen(0, true), now), Measure::Continue);
    }
}
