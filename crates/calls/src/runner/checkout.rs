//! The private checkout of a job: created before the first run, published after the last one.

use std::time::Duration;

use agents::RunSequence;
use model::{JobId, SessionChoice};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::command::ShellCommand;
use super::messages::setup_failed;
use super::{Disposition, JobRunner, failed};
use crate::checkouts::{self, JobCheckout, PrepareError};
use crate::decide;
use crate::job_changes::{JobChanges, PrivateCheckout};
use crate::locks::{LockGuard, LockKey};
use crate::wait_reason::WaitReason;

/// The time after which a file system counts as hung.
const LIMIT: Duration = Duration::from_mins(5);

impl JobRunner<'_> {
    /// Loads the checkout of a job that was started before.
    pub(super) fn load_checkout(&mut self) {
        if self.flush.is_none() {
            self.checkout = JobCheckout::read(&self.files);
        }
        if let Some(checkout) = &self.checkout {
            self.guards.extend(self.context.locks.try_acquire(lock_key(checkout), self.job.id));
        }
    }

    /// Creates the private checkout of a job that wants one, or continues in that of its session.
    pub(super) async fn prepare_checkout(&mut self, sequence: &RunSequence) -> Result<(), Disposition> {
        if self.checkout.is_some() {
            return Ok(());
        }
        let call = &self.job.order.call;
        let earlier = match (&call.session, call.worktree) {
            (_, Some(false)) | (SessionChoice::New | SessionChoice::ContinueLatest, None) => return Ok(()),
            (SessionChoice::Resume(session) | SessionChoice::Fork(session), wanted) => {
                let files_of = |job| self.files.of_job(job);
                let store = &self.context.store;
                let found = checkouts::find_session_checkout(store, session, &call.cwd, files_of).await;
                let found = found.map_err(|error| failed(error.into()))?;
                match (&found, wanted) {
                    (None, Some(true)) => {
                        let session = session.clone();
                        return Err(failed(PrepareError::SessionOutside { session }.into()));
                    }
                    (None, _) => return Ok(()),
                    (Some((earlier, _)), _) => {
                        self.acquire_lock(lock_key(earlier), sequence).await?;
                        // It is released while the job waits for the lock.
                        self.acquire_slot(sequence).await?;
                    }
                }
                found
            }
            (SessionChoice::New | SessionChoice::ContinueLatest, Some(true)) => None,
        };
        let (settings, files) = (self.context.settings.clone(), self.files.clone());
        let (job, call) = (self.job.id, call.clone());
        let _turn = self.await_group_turn().await;
        let others = self.other_contenders().await;
        let prepared = spawn_blocking(move || -> Result<_, PrepareError> {
            // Another contender may have created it meanwhile.
            if let Some(checkout) = JobCheckout::read(&files).filter(|_| call.group.is_some()) {
                return Ok(checkout);
            }
            let checkout = checkouts::prepare(&settings, &files, job, &call, earlier)?;
            // Now, so that all contenders start from the same files.
            checkouts::prepare_others(&settings, &files, &call, &others);
            Ok(checkout)
        });
        let prepared = match timeout(LIMIT, prepared).await {
            Ok(prepared) => prepared.unwrap_or_else(|error| Err(std::io::Error::other(error).into())),
            Err(error) => Err(std::io::Error::from(error).into()),
        };
        let checkout = prepared.map_err(|error| failed(error.into()))?;
        let key = lock_key(&checkout);
        if !self.holds(&key) {
            self.guards.extend(self.context.locks.try_acquire(key, job));
        }
        self.checkout = Some(checkout);
        Ok(())
    }

    /// Excludes the other contenders of the group: the first one creates the checkouts of all.
    async fn await_group_turn(&self) -> Option<LockGuard> {
        let id = self.job.order.call.group.as_ref()?.id()?;
        let key = LockKey::Directory(self.context.settings.checkouts().join(id.to_string()));
        Some(self.context.locks.acquire(key, self.job.id).await)
    }

    /// Returns the contenders of the group that still need a checkout.
    async fn other_contenders(&self) -> Vec<JobId> {
        let contenders = self.job.order.call.group.iter().flat_map(|group| &group.contenders);
        let mut others = Vec::new();
        for contender in contenders.copied().filter(|contender| *contender != self.job.id) {
            let has_ended = match self.context.store.get(contender).await {
                Ok(Some(job)) => job.completed_at.is_some(),
                // The next moment it is submitted, unless the daemon dies.
                Ok(None) => false,
                Err(_) => true,
            };
            if !has_ended && JobCheckout::read(&self.files.of_job(contender)).is_none() {
                others.push(contender);
            }
        }
        others
    }

    /// Runs the operator's command in a new checkout, and takes the snapshot before the agent.
    pub(super) async fn set_up_checkout(&mut self, sequence: &RunSequence) -> Result<(), Disposition> {
        let Some(checkout) = self.checkout.clone().filter(|checkout| checkout.belongs_to(self.job.id)) else {
            return Ok(());
        };
        if self.files.newest_run().is_some() {
            return Ok(());
        }
        let options = self.context.settings.repository_options(checkout.source.worktree());
        let command = options.and_then(|options| options.worktree_setup.clone());
        if let Some(command) = command.filter(|_| checkout.earlier.is_none()) {
            let reason = WaitReason::Setup { command: command.clone() };
            self.active.set_waiting(reason, self.context.store.now());
            let limit = self.command_limit(sequence);
            let setup = ShellCommand { name: "setup", command: &command, at_root: true };
            let ended = self.run_command(setup, sequence).await?;
            if let Some(reason) = self.active.stop_reason() {
                return Err(self.leave(decide::between_runs(reason, sequence), sequence));
            }
            if let Some(problem) = ended.problem(limit) {
                return Err(failed(setup_failed(&command, &problem, &ended.output)));
            }
        }
        let (settings, files) = (self.context.settings.clone(), self.files.clone());
        let begun = spawn_blocking(move || checkouts::begin_record(&settings, &files, &checkout));
        let begun = match timeout(LIMIT, begun).await {
            Ok(begun) => begun.unwrap_or_else(|error| Err(std::io::Error::other(error).into())),
            Err(error) => Err(std::io::Error::from(error).into()),
        };
        begun.map_err(|error| failed(error.into()))
    }

    /// Publishes the changes of a job in its own checkout.
    pub(super) async fn publish_checkout(&self, changes: Option<JobChanges>) -> Option<JobChanges> {
        let Some(checkout) = self.checkout.clone().filter(|checkout| checkout.belongs_to(self.job.id)) else {
            return changes;
        };
        let directory = checkout.directory.clone();
        let (settings, files) = (self.context.settings.clone(), self.files.clone());
        let job = self.job.clone();
        match changes {
            Some(JobChanges::Recorded(changes, _)) => {
                let published = spawn_blocking(move || {
                    let published = checkouts::publish(&checkout, &settings, &files, &job, &changes);
                    (changes, published)
                });
                let hung = || JobChanges::NotRecorded {
                    reason: format!(
                        "publishing them took more than {} s; they are in `{}`",
                        LIMIT.as_secs(),
                        directory.display()
                    ),
                };
                let published = timeout(LIMIT, published).await.ok().and_then(Result::ok);
                Some(published.map_or_else(hung, |(changes, published): (_, PrivateCheckout)| {
                    JobChanges::Recorded(changes, Some(published))
                }))
            }
            Some(JobChanges::NotRecorded { reason }) => {
                let reason = format!("{reason}; they are in `{}`", directory.display());
                Some(JobChanges::NotRecorded { reason })
            }
            // No agent has run.
            None => {
                let removed = spawn_blocking(move || checkouts::remove_unused(&checkout, &files)).await;
                if let Ok(Err(error)) = removed {
                    tracing::warn!(job = %self.job.id, %error, "cannot remove the unused checkout");
                }
                None
            }
        }
    }
}

/// Returns the lock of a checkout, which excludes other jobs, apply and discard.
fn lock_key(checkout: &JobCheckout) -> LockKey {
    LockKey::Directory(checkout.directory.clone())
}
