//! How many jobs a desk works on at once: in all, and of each agent.
//!
//! A job that only waits, for a conversation or a folder that another has, works on nothing: it gives its place to others and
//! takes one again before anything of it runs. Those that come back go before those that are new.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::AgentKind;
use tokio::sync::{Semaphore, TryAcquireError};

/// The places of a desk.
#[derive(Debug)]
pub(crate) struct Seats {
    all: Arc<Row>,
    /// Only of those agents that have a limit of their own.
    of_agents: BTreeMap<AgentKind, Arc<Row>>,
    /// How many jobs of each agent are claimed and have no place.
    aside: Mutex<BTreeMap<AgentKind, u32>>,
}

impl Seats {
    pub fn new(at_once: u32, per_agent: &BTreeMap<AgentKind, u32>) -> Arc<Self> {
        let of_agents = per_agent.iter().map(|(&agent, &room)| (agent, Row::new(room))).collect();
        Arc::new(Self { all: Row::new(at_once), of_agents, aside: Mutex::default() })
    }

    /// Takes a place for a job that is yet to be found, if one is free.
    pub fn take(&self) -> Option<Seat> {
        self.all.take()
    }

    /// That place, for a job that was found.
    pub fn offered(self: &Arc<Self>, agent: AgentKind, seat: Seat) -> Place {
        Place { seats: Arc::clone(self), agent, of_all: Some(seat), of_agent: None, is_aside: false }
    }

    /// For a job that runs already: it is there, whether or not there is room for it.
    pub fn make_room(self: &Arc<Self>, agent: AgentKind) -> Place {
        let mut place = self.offered(agent, self.all.make_room());
        place.of_agent = self.of_agents.get(&agent).map(Row::make_room);
        place
    }

    /// For a job that is claimed and has to wait for a place.
    pub fn none_yet(self: &Arc<Self>, agent: AgentKind) -> Place {
        let mut place =
            Place { seats: Arc::clone(self), agent, of_all: None, of_agent: None, is_aside: false };
        place.step_aside();
        place
    }

    /// Lends the place of a running job to the calls that are placed on its behalf.
    pub fn lend(self: &Arc<Self>, agent: AgentKind) -> Loan {
        for row in self.rows(agent) {
            row.release();
        }
        *self.lock_aside().entry(agent).or_default() += 1;
        Loan { seats: Arc::clone(self), agent }
    }

    /// The rows in which a job of that agent has a place.
    fn rows(&self, agent: AgentKind) -> impl Iterator<Item = &Arc<Row>> {
        [Some(&self.all), self.of_agents.get(&agent)].into_iter().flatten()
    }

    /// How many jobs of that agent are claimed and have no place.
    pub fn aside(&self, agent: AgentKind) -> u32 {
        self.lock_aside().get(&agent).copied().unwrap_or(0)
    }

    /// Returns how many slots are in use and how many there are, when a job of that agent has to wait for one; and whether they are
    /// the agent's own.
    pub fn full(&self, agent: AgentKind) -> Option<(usize, usize, bool)> {
        let of_agent = self.of_agents.get(&agent).filter(|row| row.used() >= row.room);
        let row = of_agent.or_else(|| Some(&self.all).filter(|row| row.used() >= row.room))?;
        Some((row.used(), row.room, of_agent.is_some() && self.all.room > row.room))
    }

    fn lock_aside(&self) -> std::sync::MutexGuard<'_, BTreeMap<AgentKind, u32>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place that is lent, until this is dropped. The job that has lent it runs all the time, so it takes it back whether or not it is free.
#[derive(Debug)]
pub(crate) struct Loan {
    seats: Arc<Seats>,
    agent: AgentKind,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(aside) = self.seats.lock_aside().get_mut(&self.agent) {
            *aside -= 1;
        }
        for row in self.seats.rows(self.agent) {
            row.occupy();
        }
    }
}

/// The place of one job.
#[derive(Debug)]
pub(crate) struct Place {
    seats: Arc<Seats>,
    agent: AgentKind,
    of_all: Option<Seat>,
    of_agent: Option<Seat>,
    is_aside: bool,
}

impl Place {
    /// Whether something of the job may run: it has a place, or gets one at once.
    pub fn is_taken(&mut self) -> bool {
        let Some(row) = self.seats.of_agents.get(&self.agent) else { return self.of_all.is_some() };
        if self.of_all.is_some() && self.of_agent.is_none() {
            self.of_agent = row.take();
        }
        self.of_all.is_some() && self.of_agent.is_some()
    }

    /// Gives the place to others for as long as the job only waits.
    pub fn step_aside(&mut self) {
        (self.of_all, self.of_agent) = (None, None);
        if !std::mem::replace(&mut self.is_aside, true) {
            *self.seats.lock_aside().entry(self.agent).or_default() += 1;
        }
    }

    /// Waits for a place.
    pub async fn take(&mut self) {
        // The scarcer one first: who has it and waits for the other keeps only its own kind waiting.
        if let (None, Some(row)) = (&self.of_agent, self.seats.of_agents.get(&self.agent)) {
            self.of_agent = Some(row.wait().await);
        }
        if self.of_all.is_none() {
            self.of_all = Some(self.seats.all.wait().await);
        }
        self.come_back();
    }

    fn come_back(&mut self) {
        if std::mem::replace(&mut self.is_aside, false)
            && let Some(aside) = self.seats.lock_aside().get_mut(&self.agent)
        {
            *aside -= 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.come_back();
    }
}

/// Places of one kind. Who waits for one is served before those who only look whether one is free.
#[derive(Debug)]
struct Row {
    room: usize,
    free: Semaphore,
    /// How many more are taken than there are.
    beyond: Mutex<usize>,
}

impl Row {
    fn new(room: u32) -> Arc<Self> {
        let room = usize::try_from(room).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self { room, free: Semaphore::new(room), beyond: Mutex::default() })
    }

    /// How many are taken, at most as many as there are.
    fn used(&self) -> usize {
        self.room - self.free.available_permits().min(self.room)
    }

    fn take(self: &Arc<Self>) -> Option<Seat> {
        match self.free.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => return None,
        }
        Some(Seat(Arc::clone(self)))
    }

    async fn wait(self: &Arc<Self>) -> Seat {
        match self.free.acquire().await {
            Ok(permit) => permit.forget(),
            // Nobody ever closes it.
            Err(_) => return self.make_room(),
        }
        Seat(Arc::clone(self))
    }

    fn make_room(self: &Arc<Self>) -> Seat {
        self.occupy();
        Seat(Arc::clone(self))
    }

    /// Counts one more as taken, whether or not there is one.
    fn occupy(&self) {
        let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        match self.free.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => *beyond += 1,
        }
    }

    /// Counts one less as taken.
    fn release(&self) {
        let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was beyond the room has it now.
        match beyond.checked_sub(1) {
            Some(fewer) => *beyond = fewer,
            None => self.free.add_permits(1),
        }
    }
}

/// A place that is taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Row>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    const AGENT: AgentKind = AgentKind::Rehearsal;

    fn seats(at_once: u32, of_agent: Option<u32>) -> Arc<Seats> {
        Seats::new(at_once, &of_agent.map(|room| (AGENT, room)).into_iter().collect())
    }

    #[test]
    fn a_place_is_free_again_when_its_job_has_left_it() {
        let seats = seats(2, None);
        let (first, second) = (seats.take(), seats.take());
        assert!(first.is_some() && second.is_some() && seats.take().is_none());
        drop(first);
        assert!(seats.take().is_some());
    }

    #[test]
    fn those_that_were_found_running_count_even_beyond_the_room() {
        let seats = seats(1, Some(1));
        let (found, more) = (seats.make_room(AGENT), seats.make_room(AGENT));
        assert_eq!(seats.full(AGENT), Some((1, 1, false)));
        drop(found);
        assert!(seats.take().is_none());
        drop(more);
        assert_eq!(seats.full(AGENT), None);
        let seat = seats.take().unwrap();
        assert!(seats.offered(AGENT, seat).is_taken());
    }

    #[test]
    fn a_place_is_not_taken_while_its_agent_has_none() {
        let seats = seats(3, Some(1));
        let mut first = seats.offered(AGENT, seats.take().unwrap());
        let mut second = seats.offered(AGENT, seats.take().unwrap());
        assert!(first.is_taken() && first.is_taken() && !second.is_taken());
        assert_eq!(seats.full(AGENT), Some((1, 1, true)));
        assert_eq!(seats.full(AgentKind::Claude), None);
        drop(first);
        assert!(second.is_taken());
    }

    #[test]
    fn lent_place_is_free_until_it_is_returned() {
        let seats = seats(1, Some(1));
        let mut parent = seats.offered(AGENT, seats.take().unwrap());
        assert!(parent.is_taken() && seats.take().is_none());
        let loan = seats.lend(AGENT);
        assert_eq!(seats.aside(AGENT), 1);
        let mut nested = seats.offered(AGENT, seats.take().unwrap());
        assert!(nested.is_taken() && seats.take().is_none());
        drop(loan);
        assert_eq!(seats.aside(AGENT), 0);
        drop(nested);
        assert!(seats.take().is_none(), "the parent has its place back");
        drop(parent);
        assert!(seats.take().is_some());
    }

    #[tokio::test]
    async fn who_steps_aside_lets_others_in_and_comes_back_before_new_ones() {
        let seats = seats(1, None);
        let mut waits = seats.offered(AGENT, seats.take().unwrap());
        assert!(waits.is_taken());
        waits.step_aside();
        waits.step_aside();
        assert_eq!(seats.aside(AGENT), 1);
        let mut other = seats.offered(AGENT, seats.take().unwrap());
        assert!(other.is_taken());
        {
            let mut back = std::pin::pin!(waits.take());
            let looked = std::future::poll_fn(|context| Poll::Ready(back.as_mut().poll(context)));
            assert!(looked.await.is_pending());
            drop(other);
            assert!(seats.take().is_none(), "it is for the one that waited");
            back.await;
        }
        assert_eq!(seats.aside(AGENT), 0);
        assert!(waits.is_taken());
        waits.step_aside();
        drop(waits);
        assert_eq!(seats.aside(AGENT), 0);
    }
}
