//! Removes expired jobs and leftovers, and completes the files of jobs.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::{JobId, Timestamp};
use store::Store;
use tokio::time::{Instant, sleep_until};

use crate::active::ActiveJobs;
use crate::caller_environment::CallerEnvironments;
use crate::checkouts::{self, JobCheckout};
use crate::direct_runs;
use crate::files::{job_directories, jobs_directory};
use crate::job_changes::ChangesState;
use crate::locks::{LockKey, ResourceLocks};
use crate::recent_jobs::RecentJobs;
use crate::records::JobRecords;
use crate::settings::Settings;
use crate::shutdown::Shutdown;

const FIRST_SWEEP_AFTER: Duration = Duration::from_mins(1);
/// The age at which a job with a checkout counts as never submitted.
const UNSUBMITTED_FOR: Duration = Duration::from_hours(1);
const SWEEP_INTERVAL: Duration = Duration::from_hours(1);
/// The number of directories removed between two checks for a shutdown.
const BATCH: usize = 100;

/// Cleans up a state directory.
#[derive(Debug)]
pub(crate) struct Janitor {
    pub settings: Arc<Settings>,
    pub store: Store,
    pub records: Arc<JobRecords>,
    pub active: Arc<ActiveJobs>,
    pub recent: Arc<RecentJobs>,
    pub environments: Arc<CallerEnvironments>,
    pub locks: Arc<ResourceLocks>,
    pub shutdown: Shutdown,
}

impl Janitor {
    /// Applies the retention limits from time to time, until the service has stopped.
    pub async fn sweep_regularly(&self) {
        let mut next = Instant::now() + FIRST_SWEEP_AFTER;
        loop {
            tokio::select! {
                () = self.shutdown.stopped() => return,
                () = sleep_until(next) => next = Instant::now() + SWEEP_INTERVAL,
            }
            self.sweep_jobs().await;
            self.sweep_checkouts().await;
            self.sweep_caches().await;
        }
    }

    async fn sweep_jobs(&self) {
        let retention = self.settings.retention;
        if retention.max_age.is_none() && retention.max_count.is_none() {
            return;
        }
        let removed = match self.store.sweep(retention).await {
            Ok(removed) => removed,
            Err(error) => {
                tracing::warn!(%error, "cannot remove old jobs");
                let mut removed = error.removed;
                // No later sweep reports jobs that were removed after all, so their directories would stay forever.
                for job in error.unconfirmed {
                    if matches!(self.store.get(job).await, Ok(None)) {
                        removed.push(job);
                    }
                }
                removed
            }
        };
        self.recent.remove(&removed);
        self.remove_checkouts_of(&removed).await;
        self.remove_directories(removed).await;
        if let Some(max_count) = retention.max_count {
            self.sweep_direct_runs(max_count).await;
        }
    }

    /// Removes old directories of `call --direct`, which count like those of jobs.
    async fn sweep_direct_runs(&self, max_count: u64) {
        let directory = jobs_directory(&self.settings.state);
        let outdated =
            tokio::task::spawn_blocking(move || direct_runs::outdated(&directory, max_count)).await;
        match outdated {
            Ok(Ok(runs)) if !runs.is_empty() => self.remove_directories(runs).await,
            Ok(Err(error)) => tracing::warn!(%error, "cannot list old runs without a job"),
            _ => {}
        }
    }

    /// Removes the private checkouts of expired jobs. The branches with the changes stay in the repositories of the user; a checkout with
    /// changes that could not be published stays, too.
    async fn remove_checkouts_of(&self, expired: &[JobId]) {
        for checkout in self.list_checkouts().await.into_iter().flatten() {
            if !expired.contains(&checkout.job) {
                continue;
            }
            if checkout.state == ChangesState::Open && !checkout.is_published() {
                tracing::warn!(job = %checkout.job, directory = %checkout.directory.display(), "keeping the changes of an expired job: they are in no branch");
            } else {
                tracing::info!(job = %checkout.job, branch = ?checkout.branch, "removing the private checkout of an expired job");
                self.remove_checkout(checkout.directory.clone(), move || checkout.remove()).await;
            }
        }
    }

    /// Removes private checkouts whose changes are applied or discarded, and incomplete ones of ended jobs: an earlier daemon may have
    /// died in between. One with open changes stays until its job expires.
    async fn sweep_checkouts(&self) {
        for found in self.list_checkouts().await {
            match found {
                Ok(checkout) if checkout.state != ChangesState::Open => {
                    let (files, settings) = (self.records.files(checkout.job), Arc::clone(&self.settings));
                    let directory = checkout.directory.clone();
                    let remove = move || {
                        checkouts::delete_branch(&checkout, &files, &settings);
                        checkout.remove()
                    };
                    self.remove_checkout(directory, remove).await;
                }
                Ok(checkout) if self.is_unused(&checkout).await => {
                    let files = self.records.files(checkout.job);
                    let directory = checkout.directory.clone();
                    self.remove_checkout(directory, move || checkouts::remove_unused(&checkout, &files))
                        .await;
                }
                Ok(_) => {}
                Err(place) => {
                    let job = place.file_name().and_then(|name| name.to_str()?.parse().ok());
                    let Some(job) = job else { continue };
                    let has_ended = match self.store.get(job).await {
                        Ok(Some(record)) => record.completed_at.is_some(),
                        Ok(None) => self.is_expired(job),
                        Err(_) => false,
                    };
                    if has_ended && self.active.get(job).is_none() {
                        let directory = checkouts::find_directory(&place).unwrap_or_else(|| place.clone());
                        self.remove_checkout(directory, move || checkouts::remove_place(&place)).await;
                    }
                }
            }
        }
    }

    /// Returns whether an open checkout belongs to a contender that ended before its agent started, or was never submitted.
    async fn is_unused(&self, checkout: &JobCheckout) -> bool {
        let job = checkout.job;
        if self.active.get(job).is_some() || self.records.files(job).newest_run().is_some() {
            return false;
        }
        match self.store.get(job).await {
            Ok(Some(record)) => record.completed_at.is_some(),
            Ok(None) => job < JobId::first_of(self.store.now().minus(UNSUBMITTED_FOR)),
            Err(_) => false,
        }
    }

    async fn list_checkouts(&self) -> Vec<Result<JobCheckout, PathBuf>> {
        let settings = Arc::clone(&self.settings);
        let listed = tokio::task::spawn_blocking(move || checkouts::list(&settings)).await;
        listed.map_err(io::Error::other).and_then(|listed| listed).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the private checkouts");
            Vec::new()
        })
    }

    /// Removes a checkout that no job uses.
    async fn remove_checkout(
        &self,
        directory: PathBuf,
        remove: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) {
        let key = LockKey::Directory(directory.clone());
        let Some(guard) = self.locks.try_acquire(key, JobId::first_of(self.store.now())) else { return };
        let removed = tokio::task::spawn_blocking(remove).await;
        drop(guard);
        if let Err(error) = removed.map_err(io::Error::other).and_then(|removed| removed) {
            tracing::warn!(directory = %directory.display(), %error, "cannot remove a private checkout");
        }
    }

    /// Returns whether a job that the store does not contain is older than the retention. The configured store may be another one than
    /// before, and must not cause newer directories to be removed.
    fn is_expired(&self, job: JobId) -> bool {
        self.settings.retention.max_age.is_some_and(|max_age| {
            let now = self.store.now().as_millis();
            let kept_from = now.saturating_sub(u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX));
            job < JobId::first_of(Timestamp::from_millis(kept_from))
        })
    }

    /// Removes the least recently used caches of confined runs until the rest is below the limit.
    async fn sweep_caches(&self) {
        let Some(max_bytes) = self.settings.cache_bytes else { return };
        let caches = self.settings.caches();
        match tokio::task::spawn_blocking(move || supervisor::sweep_caches(&caches, max_bytes)).await {
            Ok(Ok(swept)) if !swept.removed.is_empty() => {
                tracing::info!(removed = ?swept.removed, left = swept.bytes, "removed caches of package managers");
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot remove caches of package managers"),
            _ => {}
        }
    }

    async fn remove_directories(&self, jobs: Vec<JobId>) {
        let directory = jobs_directory(&self.settings.state);
        let removed =
            tokio::task::spawn_blocking(move || store::remove_job_directories(&directory, &jobs)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "cannot remove the directory of an old job");
        }
    }

    /// Writes missing results and records: an earlier daemon may have died between the store and the files.
    pub async fn complete_files(&self) {
        let (state, records) = (self.settings.state.clone(), Arc::clone(&self.records));
        let incomplete = tokio::task::spawn_blocking(move || -> io::Result<Vec<JobId>> {
            let mut jobs = job_directories(&state)?;
            // The newest first: they include those that the dead daemon was about to write.
            jobs.reverse();
            jobs.retain(|job| !records.files(*job).are_complete());
            Ok(jobs)
        });
        let incomplete = incomplete.await.map_err(io::Error::other).and_then(|jobs| jobs);
        let incomplete = incomplete.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list jobs without results");
            Vec::new()
        });
        for job in incomplete {
            if self.shutdown.is_stopped() {
                return;
            }
            match self.store.get(job).await {
                // The runner of an active job writes its files; an older record must not replace a newer one.
                Ok(Some(record)) if record.completed_at.is_some() && self.active.get(job).is_none() => {
                    self.records.write(&record, None);
                }
                Ok(Some(record)) => {
                    if let Err(error) = self.records.files(job).write_first_record(&record) {
                        tracing::warn!(%job, %error, "cannot write the record of the job");
                    }
                }
                _ => {}
            }
        }
    }

    /// Removes the caller environments of jobs that have ended, or were never stored because the daemon died first.
    pub async fn remove_stale_environments(&self, opened_at: Timestamp) {
        let jobs = self.environments.jobs().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the environments of callers");
            Vec::new()
        });
        // The environments of newer jobs are removed when those end.
        for job in jobs.into_iter().filter(|job| *job < JobId::first_of(opened_at)) {
            match self.store.get(job).await {
                Ok(Some(record)) if record.completed_at.is_none() => {}
                Ok(_) => self.environments.remove(job),
                Err(error) => tracing::warn!(%job, %error, "cannot read the job of a caller's environment"),
            }
        }
    }

    /// Removes the directories left by an interrupted sweep, and the checkouts left by a killed daemon.
    pub async fn remove_leftovers(&self) {
        self.sweep_checkouts().await;
        let state = self.settings.state.clone();
        let found = tokio::task::spawn_blocking(move || job_directories(&state)).await;
        let mut leftovers = Vec::new();
        for job in found.ok().and_then(Result::ok).unwrap_or_default() {
            if self.shutdown.is_draining() {
                return;
            }
            if self.is_expired(job) && matches!(self.store.get(job).await, Ok(None)) {
                leftovers.push(job);
            }
        }
        if leftovers.is_empty() {
            return;
        }
        self.remove_checkouts_of(&leftovers).await;
        tracing::info!(jobs = leftovers.len(), "removing directories left by an interrupted sweep");
        for batch in leftovers.chunks(BATCH) {
            if self.shutdown.is_draining() {
                return;
            }
            self.remove_directories(batch.to_vec()).await;
        }
    }
}
