//! The slots that bound how many jobs run at once: in total and per agent.
//!
//! A job that is blocked on a session or a directory releases its slot and acquires one again before its agent starts. Jobs that
//! acquire again are served before new ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::AgentKind;
use tokio::sync::{Semaphore, TryAcquireError};

/// The slots of this service.
#[derive(Debug)]
pub(crate) struct Slots {
    total: Arc<Pool>,
    /// Only the agents that have a limit of their own.
    per_agent: BTreeMap<AgentKind, Arc<Pool>>,
    /// The number of claimed jobs of each agent that hold no slot.
    unslotted: Mutex<BTreeMap<AgentKind, u32>>,
}

/// A full pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FullPool {
    pub used: usize,
    pub capacity: usize,
    /// Is true if the limit is the agent's own and stricter than the total.
    pub is_per_agent: bool,
}

impl Slots {
    pub fn new(total: u32, per_agent: &BTreeMap<AgentKind, u32>) -> Arc<Self> {
        let per_agent = per_agent.iter().map(|(&agent, &capacity)| (agent, Pool::new(capacity))).collect();
        Arc::new(Self { total: Pool::new(total), per_agent, unslotted: Mutex::default() })
    }

    /// Acquires a permit for a job that is yet to be claimed.
    pub fn try_acquire(&self) -> Option<Permit> {
        self.total.try_acquire()
    }

    /// Turns a permit into the slot of a claimed job.
    pub fn assign(self: &Arc<Self>, agent: AgentKind, permit: Permit) -> JobSlot {
        JobSlot { slots: Arc::clone(self), agent, total: Some(permit), own: None, is_unslotted: false }
    }

    /// Returns a slot for a job whose agent is already running, even beyond the capacity.
    pub fn overcommit(self: &Arc<Self>, agent: AgentKind) -> JobSlot {
        let mut slot = self.assign(agent, self.total.overcommit());
        slot.own = self.per_agent.get(&agent).map(Pool::overcommit);
        slot
    }

    /// Returns the empty slot of a claimed job that has to wait.
    pub fn unassigned(self: &Arc<Self>, agent: AgentKind) -> JobSlot {
        let mut slot =
            JobSlot { slots: Arc::clone(self), agent, total: None, own: None, is_unslotted: false };
        slot.release();
        slot
    }

    /// Lends the slot of a running job to the calls that its agent places.
    pub fn lend(self: &Arc<Self>, agent: AgentKind) -> SlotLoan {
        for pool in self.pools(agent) {
            pool.release();
        }
        *self.lock_unslotted().entry(agent).or_default() += 1;
        SlotLoan { slots: Arc::clone(self), agent }
    }

    fn pools(&self, agent: AgentKind) -> impl Iterator<Item = &Arc<Pool>> {
        [Some(&self.total), self.per_agent.get(&agent)].into_iter().flatten()
    }

    /// Returns the number of claimed jobs of an agent that hold no slot.
    pub fn unslotted(&self, agent: AgentKind) -> u32 {
        self.lock_unslotted().get(&agent).copied().unwrap_or(0)
    }

    /// Returns the full pool that a job of this agent has to wait for.
    pub fn full_pool(&self, agent: AgentKind) -> Option<FullPool> {
        let own = self.per_agent.get(&agent).filter(|pool| pool.is_full());
        let pool = own.or_else(|| Some(&self.total).filter(|pool| pool.is_full()))?;
        let is_per_agent = own.is_some() && self.total.capacity > pool.capacity;
        Some(FullPool { used: pool.used(), capacity: pool.capacity, is_per_agent })
    }

    fn lock_unslotted(&self) -> MutexGuard<'_, BTreeMap<AgentKind, u32>> {
        self.unslotted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot that is lent until this is dropped. The lender's agent keeps running, so the slot is taken back even beyond the capacity.
#[derive(Debug)]
pub(crate) struct SlotLoan {
    slots: Arc<Slots>,
    agent: AgentKind,
}

impl Drop for SlotLoan {
    fn drop(&mut self) {
        if let Some(unslotted) = self.slots.lock_unslotted().get_mut(&self.agent) {
            *unslotted -= 1;
        }
        for pool in self.slots.pools(self.agent) {
            pool.occupy();
        }
    }
}

/// The slot of one job: a permit of the total and, for an agent with a limit, one of its own.
#[derive(Debug)]
pub(crate) struct JobSlot {
    slots: Arc<Slots>,
    agent: AgentKind,
    total: Option<Permit>,
    own: Option<Permit>,
    is_unslotted: bool,
}

impl JobSlot {
    /// Acquires a missing per-agent permit if one is free, and returns whether the job may run.
    pub fn try_complete(&mut self) -> bool {
        let Some(pool) = self.slots.per_agent.get(&self.agent) else { return self.total.is_some() };
        if self.total.is_some() && self.own.is_none() {
            self.own = pool.try_acquire();
        }
        self.total.is_some() && self.own.is_some()
    }

    /// Releases the permits while the job is blocked.
    pub fn release(&mut self) {
        (self.total, self.own) = (None, None);
        if !std::mem::replace(&mut self.is_unslotted, true) {
            *self.slots.lock_unslotted().entry(self.agent).or_default() += 1;
        }
    }

    /// Waits for the missing permits.
    pub async fn acquire(&mut self) {
        // The per-agent permit first: holding it while waiting for the other blocks only jobs of the same agent.
        if let (None, Some(pool)) = (&self.own, self.slots.per_agent.get(&self.agent)) {
            self.own = Some(pool.acquire().await);
        }
        if self.total.is_none() {
            self.total = Some(self.slots.total.acquire().await);
        }
        self.mark_slotted();
    }

    fn mark_slotted(&mut self) {
        if std::mem::replace(&mut self.is_unslotted, false)
            && let Some(unslotted) = self.slots.lock_unslotted().get_mut(&self.agent)
        {
            *unslotted -= 1;
        }
    }
}

impl Drop for JobSlot {
    fn drop(&mut self) {
        self.mark_slotted();
    }
}

/// A counting semaphore that can be overcommitted. Waiters are served before `try_acquire`.
#[derive(Debug)]
struct Pool {
    capacity: usize,
    free: Semaphore,
    /// The number of permits beyond the capacity.
    overcommitted: Mutex<usize>,
}

impl Pool {
    fn new(capacity: u32) -> Arc<Self> {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self { capacity, free: Semaphore::new(capacity), overcommitted: Mutex::default() })
    }

    /// Returns the number of permits in use, at most the capacity.
    fn used(&self) -> usize {
        self.capacity - self.free.available_permits().min(self.capacity)
    }

    fn is_full(&self) -> bool {
        self.used() >= self.capacity
    }

    fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        match self.free.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => return None,
        }
        Some(Permit(Arc::clone(self)))
    }

    async fn acquire(self: &Arc<Self>) -> Permit {
        match self.free.acquire().await {
            Ok(permit) => permit.forget(),
            // The semaphore is never closed.
            Err(_) => return self.overcommit(),
        }
        Permit(Arc::clone(self))
    }

    fn overcommit(self: &Arc<Self>) -> Permit {
        self.occupy();
        Permit(Arc::clone(self))
    }

    /// Counts one more permit as used, even beyond the capacity.
    fn occupy(&self) {
        let mut overcommitted = self.lock_overcommitted();
        match self.free.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => *overcommitted += 1,
        }
    }

    /// Counts one permit less as used. Overcommitted permits are given up first.
    fn release(&self) {
        let mut overcommitted = self.lock_overcommitted();
        match overcommitted.checked_sub(1) {
            Some(fewer) => *overcommitted = fewer,
            None => self.free.add_permits(1),
        }
    }

    fn lock_overcommitted(&self) -> MutexGuard<'_, usize> {
        self.overcommitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One permit of a pool, until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Pool>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    const AGENT: AgentKind = AgentKind::Rehearsal;

    fn slots(total: u32, own: Option<u32>) -> Arc<Slots> {
        Slots::new(total, &own.map(|capacity| (AGENT, capacity)).into_iter().collect())
    }

    fn full(used: usize, capacity: usize, is_per_agent: bool) -> FullPool {
        FullPool { used, capacity, is_per_agent }
    }

    #[test]
    fn dropped_permit_is_free_again() {
        let slots = slots(2, None);
        let (first, second) = (slots.try_acquire(), slots.try_acquire());
        assert!(first.is_some() && second.is_some() && slots.try_acquire().is_none());
        drop(first);
        assert!(slots.try_acquire().is_some());
    }

    #[test]
    fn running_jobs_count_beyond_the_capacity() {
        let slots = slots(1, Some(1));
        let (found, more) = (slots.overcommit(AGENT), slots.overcommit(AGENT));
        assert_eq!(slots.full_pool(AGENT), Some(full(1, 1, false)));
        drop(found);
        assert!(slots.try_acquire().is_none());
        drop(more);
        assert_eq!(slots.full_pool(AGENT), None);
        let permit = slots.try_acquire().unwrap();
        assert!(slots.assign(AGENT, permit).try_complete());
    }

    #[test]
    fn slot_is_incomplete_without_a_permit_of_its_agent() {
        let slots = slots(3, Some(1));
        let mut first = slots.assign(AGENT, slots.try_acquire().unwrap());
        let mut second = slots.assign(AGENT, slots.try_acquire().unwrap());
        assert!(first.try_complete() && first.try_complete() && !second.try_complete());
        assert_eq!(slots.full_pool(AGENT), Some(full(1, 1, true)));
        assert_eq!(slots.full_pool(AgentKind::Claude), None);
        drop(first);
        assert!(second.try_complete());
    }

    #[test]
    fn lent_slot_is_free_until_it_is_returned() {
        let slots = slots(1, Some(1));
        let mut parent = slots.assign(AGENT, slots.try_acquire().unwrap());
        assert!(parent.try_complete() && slots.try_acquire().is_none());
        let loan = slots.lend(AGENT);
        assert_eq!(slots.unslotted(AGENT), 1);
        let mut nested = slots.assign(AGENT, slots.try_acquire().unwrap());
        assert!(nested.try_complete() && slots.try_acquire().is_none());
        drop(loan);
        assert_eq!(slots.unslotted(AGENT), 0);
        drop(nested);
        assert!(slots.try_acquire().is_none(), "the parent has its slot back");
        drop(parent);
        assert!(slots.try_acquire().is_some());
    }

    #[tokio::test]
    async fn returning_job_is_served_before_new_ones() {
        let slots = slots(1, None);
        let mut blocked = slots.assign(AGENT, slots.try_acquire().unwrap());
        assert!(blocked.try_complete());
        blocked.release();
        blocked.release();
        assert_eq!(slots.unslotted(AGENT), 1);
        let mut other = slots.assign(AGENT, slots.try_acquire().unwrap());
        assert!(other.try_complete());
        {
            let mut acquiring = std::pin::pin!(blocked.acquire());
            let polled = std::future::poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context)));
            assert!(polled.await.is_pending());
            drop(other);
            assert!(slots.try_acquire().is_none(), "it is reserved for the waiter");
            acquiring.await;
        }
        assert_eq!(slots.unslotted(AGENT), 0);
        assert!(blocked.try_complete());
        blocked.release();
        drop(blocked);
        assert_eq!(slots.unslotted(AGENT), 0);
    }
}
