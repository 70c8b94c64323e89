//! Acquires the exclusive resources of a run: its session, its directory, a slot.

use std::time::Duration;

use agents::RunSequence;
use model::{Job, JobGroup, Mode, SessionChoice, SessionId};

use super::messages::{locked_too_long, session_of_ancestor};
use super::{Disposition, JobRunner, failed, interrupted};
use crate::active::any_ready;
use crate::decide;
use crate::locks::LockKey;
use crate::wait_reason::WaitReason;

/// The poll interval for contenders that are queued, paused or run by another service.
const CONTENDER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The poll interval for the holder of a lock.
const HOLDER_POLL_INTERVAL: Duration = Duration::from_secs(1);

impl JobRunner<'_> {
    /// Acquires the session and, if configured, the directory.
    pub(super) async fn acquire_locks(&mut self, sequence: &RunSequence) -> Result<(), Disposition> {
        let spec = sequence.spec();
        let mut keys = Vec::new();
        if let SessionChoice::Resume(session) = &spec.session {
            keys.push(LockKey::Session(spec.agent, session.clone()));
        }
        let has_directory = self.checkout.is_none() && spec.worktree != Some(true);
        if has_directory && self.context.settings.one_writer_per_directory && spec.mode == Mode::Execute {
            keys.push(LockKey::directory(&spec.cwd));
        }
        for key in keys {
            self.acquire_lock(key, sequence).await?;
        }
        Ok(())
    }

    pub(super) async fn acquire_lock(
        &mut self,
        key: LockKey,
        sequence: &RunSequence,
    ) -> Result<(), Disposition> {
        if self.holds(&key) {
            return Ok(());
        }
        let locks = &self.context.locks;
        if let Some(guard) = locks.try_acquire(key.clone(), self.job.id) {
            self.guards.push(guard);
            return Ok(());
        }
        // An ancestor waits for this very job, so waiting for its lock would be a deadlock.
        if locks.holder(&key).is_some_and(|holder| self.context.nested.is_ancestor(holder, self.job)) {
            return match key {
                LockKey::Directory(_) => Ok(()),
                LockKey::Session(..) => Err(failed(session_of_ancestor())),
            };
        }
        let mut reason = self.lock_wait_reason(&key);
        self.show_waiting(reason.clone());
        self.release_slot();
        let mut locked = std::pin::pin!(locks.acquire(key.clone(), self.job.id));
        let timeout = sequence.spec().limits.wall.unwrap_or(Duration::MAX);
        let mut timed_out = std::pin::pin!(tokio::time::sleep(timeout));
        let guard = loop {
            tokio::select! {
                biased;
                stop = interrupted(self.context, self.active) => {
                    return Err(self.leave(decide::between_runs(stop, sequence), sequence));
                }
                guard = &mut locked => break guard,
                () = &mut timed_out => return Err(failed(locked_too_long(&key))),
                // Another waiter may have got the lock first.
                () = tokio::time::sleep(HOLDER_POLL_INTERVAL) => {
                    let now = self.lock_wait_reason(&key);
                    if now != reason {
                        self.active.set_waiting(now.clone(), self.context.store.now());
                        reason = now;
                    }
                }
            }
        };
        self.guards.push(guard);
        Ok(())
    }

    /// Waits until all contenders of a group have ended and their ends are durable, and returns them. Occupies no slot meanwhile.
    pub(super) async fn await_contenders(
        &mut self,
        group: &JobGroup,
        sequence: &RunSequence,
    ) -> Result<Vec<Job>, Disposition> {
        let (context, active) = (self.context, self.active);
        let mut shown = None;
        loop {
            let (mut ended, mut running, mut unfinished) = (Vec::new(), Vec::new(), 0);
            for contender in &group.contenders {
                // Before the record: an end in between is then noticed.
                let runner = context.active.get(*contender);
                match context.store.get(*contender).await {
                    Ok(Some(job)) if job.completed_at.is_some() && runner.is_none() => ended.push(job),
                    // Removed by retention, or never submitted: its client and the daemon died in between.
                    Ok(None) => {}
                    Ok(Some(_)) | Err(_) => unfinished += 1,
                }
                running.extend(runner);
            }
            if unfinished == 0 {
                return Ok(ended);
            }
            if shown.replace(unfinished) != Some(unfinished) {
                self.show_waiting(WaitReason::Contenders { unfinished });
                self.release_slot();
            }
            tokio::select! {
                biased;
                stop = interrupted(context, active) => {
                    return Err(self.leave(decide::between_runs(stop, sequence), sequence));
                }
                () = any_ready(running.iter().map(|runner| runner.released())) => {}
                () = tokio::time::sleep(CONTENDER_POLL_INTERVAL) => {}
            }
        }
    }

    /// Acquires a slot, unless the job holds one.
    pub(super) async fn acquire_slot(&mut self, sequence: &RunSequence) -> Result<(), Disposition> {
        if self.slot.try_complete() {
            return Ok(());
        }
        let agent = self.job.order.call.agent;
        if let Some(reason) = WaitReason::for_slot(&self.context.slots, agent) {
            self.show_waiting(reason);
        }
        self.release_slot();
        let (context, active) = (self.context, self.active);
        tokio::select! {
            biased;
            stop = interrupted(context, active) => {
                Err(self.leave(decide::between_runs(stop, sequence), sequence))
            }
            () = self.slot.acquire() => Ok(()),
        }
    }

    /// Locks a session that has just become known, if it is free.
    pub(super) fn lock_session(&mut self, session: &SessionId) {
        let key = LockKey::Session(self.job.order.call.agent, session.clone());
        if !self.holds(&key) {
            self.guards.extend(self.context.locks.try_acquire(key, self.job.id));
        }
    }

    pub(super) fn holds(&self, key: &LockKey) -> bool {
        self.guards.iter().any(|guard| guard.key() == key)
    }

    /// Releases the slot while the job is blocked, so that another one can run.
    fn release_slot(&mut self) {
        self.checked_setup = None;
        self.slot.release();
        self.context.wake.notify_one();
    }

    /// Publishes why the job waits, also in its directory.
    fn show_waiting(&self, reason: WaitReason) {
        self.active.set_waiting(reason, self.context.store.now());
        self.files.announce(self.job);
    }

    fn lock_wait_reason(&self, key: &LockKey) -> WaitReason {
        let holder = self.context.locks.holder(key);
        match key {
            LockKey::Session(_, session) => WaitReason::Session { session: session.clone(), holder },
            LockKey::Directory(directory) => WaitReason::Directory { directory: directory.clone(), holder },
        }
    }
}
