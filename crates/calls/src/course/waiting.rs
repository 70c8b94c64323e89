//! Waiting of a job for what other jobs have: a conversation, a directory, a slot.

use std::time::Duration;

use agents::RunSequence;
use model::{Mode, SessionChoice};

use super::words::{held_by_parent, never_free};
use super::{Conclusion, Course, folder_key};
use crate::locks::Key;
use crate::wait_reason::WaitReason;

/// How often a waiting job checks which job has the lock.
const HOLDER_CHECKED_EVERY: Duration = Duration::from_secs(1);

impl Course<'_> {
    /// Publishes why the job waits. The job's directory shows it, too, for the caller.
    fn say_waiting(&self, reason: WaitReason) {
        self.live.wait_for(reason, self.desk.store.now());
        self.files.show(self.job);
    }

    fn lock_reason(&self, key: &Key) -> WaitReason {
        let holder = self.desk.locks.holder(key);
        match key {
            Key::Session(_, session) => WaitReason::Session { session: session.clone(), holder },
            Key::Folder(folder) => WaitReason::Directory { directory: folder.clone(), holder },
        }
    }

    /// Waits until nobody else has the conversation, and, if the operator wants that, the folder.
    pub(super) async fn take_locks(&mut self, relay: &RunSequence) -> Result<(), Conclusion> {
        let spec = relay.spec();
        let mut keys = Vec::new();
        if let SessionChoice::Resume(session) = &spec.session {
            keys.push(Key::Session(spec.agent, session.clone()));
        }
        if self.desk.settings.one_writer_per_folder && spec.mode == Mode::Execute {
            keys.push(folder_key(&spec.cwd));
        }
        let patience = spec.limits.wall.unwrap_or(Duration::MAX);
        for key in keys {
            if self.guards.iter().any(|guard| *guard.key() == key) {
                continue;
            }
            if let Some(guard) = self.desk.locks.try_take(key.clone(), self.job.id) {
                self.guards.push(guard);
                continue;
            }
            // A parent waits for this very job, so there is no use in waiting for the parent.
            if self.desk.locks.holder(&key).is_some_and(|holder| self.desk.is_above(holder, self.job)) {
                match key {
                    Key::Folder(_) => continue,
                    Key::Session(..) => return Err(self.failed(held_by_parent())),
                }
            }
            let mut reason = self.lock_reason(&key);
            self.say_waiting(reason.clone());
            // A job that only waits needs no slot.
            self.place.step_aside();
            self.desk.wake.notify_one();
            let mut locked = std::pin::pin!(self.desk.locks.take(key.clone(), self.job.id));
            let mut out_of_patience = std::pin::pin!(tokio::time::sleep(patience));
            let guard = loop {
                tokio::select! {
                    biased;
                    // First of all: a desk that leaves releases its locks, and its runs go on. A desk that closes starts nothing.
                    () = self.desk.leaving.cancelled() => return Err(Conclusion::Left),
                    () = self.live.stop.cancelled() => return Err(self.ended_between_runs(relay)),
                    () = self.desk.closing.cancelled() => return Err(self.leave(relay)),
                    guard = &mut locked => break guard,
                    () = &mut out_of_patience => return Err(self.failed(never_free(&key))),
                    // Another waiter may have got it first.
                    () = tokio::time::sleep(HOLDER_CHECKED_EVERY) => {
                        let now = self.lock_reason(&key);
                        if now != reason {
                            self.live.wait_for(now.clone(), self.desk.store.now());
                            reason = now;
                        }
                    }
                }
            };
            self.guards.push(guard);
        }
        Ok(())
    }

    /// Waits for a slot, if the job has none or has given it away.
    pub(super) async fn take_place(&mut self, relay: &RunSequence) -> Result<(), Conclusion> {
        if self.place.is_taken() {
            return Ok(());
        }
        let agent = self.job.order.call.agent;
        if let Some(reason) = self.desk.slot_reason(agent) {
            self.say_waiting(reason);
        }
        self.place.step_aside();
        self.desk.wake.notify_one();
        tokio::select! {
            biased;
            () = self.desk.leaving.cancelled() => Err(Conclusion::Left),
            () = self.live.stop.cancelled() => Err(self.ended_between_runs(relay)),
            () = self.desk.closing.cancelled() => Err(self.leave(relay)),
            () = self.place.take() => Ok(()),
        }
    }
}
