//! How many jobs a desk works on at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The places of a desk.
#[derive(Debug)]
pub(crate) struct Seats {
    room: usize,
    taken: AtomicUsize,
}

/// A place that is taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Seats>);

impl Seats {
    pub fn new(room: usize) -> Arc<Self> {
        Arc::new(Self { room: room.max(1), taken: AtomicUsize::new(0) })
    }

    /// Takes a place, if one is free.
    pub fn take(self: &Arc<Self>) -> Option<Seat> {
        let one_more = |taken| (taken < self.room).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Seat(Arc::clone(self)))
    }

    /// For a job that runs already: it is there, whether or not there is room for it.
    pub fn make_room(self: &Arc<Self>) -> Seat {
        self.taken.fetch_add(1, Ordering::AcqRel);
        Seat(Arc::clone(self))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_job_has_left_it() {
        let seats = Seats::new(2);
        let (first, second) = (seats.take(), seats.take());
        assert!(first.is_some() && second.is_some() && seats.take().is_none());
        drop(first);
        assert!(seats.take().is_some());
    }

    #[test]
    fn those_that_were_found_running_count_even_beyond_the_room() {
        let seats = Seats::new(1);
        let (found, more) = (seats.make_room(), seats.make_room());
        drop(found);
        assert!(seats.take().is_none());
        drop(more);
        assert!(seats.take().is_some());
    }
}
