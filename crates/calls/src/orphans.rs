//! Adopts or requeues jobs whose owners are gone.
//!
//! An opening service holds the lock of its state directory, so every earlier owner from there is dead, whatever its lease says.
//! Owners elsewhere count as dead when their leases expire.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::{Claim, Failure, FailureKind, Job, JobEnd, JobId, Mode, Owner, Placement, StateName};
use store::{HeldClaim, JobFilter, PageRequest, RescueRequest, Store, StoreError};
use tokio::sync::Notify;

use crate::claims;
use crate::error::CallError;
use crate::files::JobFiles;
use crate::identity::{self, Opened, StateIdentity};
use crate::locks::{LockGuard, LockKey, ResourceLocks};
use crate::records::JobRecords;
use crate::recovery::{NewestRun, Orphan, RecoveryPlan, ReleasePlan, plan_recovery, plan_release};
use crate::run_record::RunRecord;
use crate::runner::StartMode;
use crate::runs;
use crate::settings::Settings;

/// The poll interval for the leases of earlier owners.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The jobs that earlier services of this state directory have left.
pub(crate) struct Predecessors {
    pub identity: StateIdentity,
    owners: Vec<Owner>,
    /// The jobs that they hold.
    jobs: BTreeSet<JobId>,
    /// The homes of all unfinished jobs, if the store belongs to this directory alone.
    homes: BTreeSet<Placement>,
}

impl Predecessors {
    /// Reads the identity of the state directory, and lists the unfinished jobs of its earlier owners. The caller holds the
    /// directory's lock.
    pub async fn find(settings: &Settings, store: &Store) -> Result<Self, CallError> {
        let cannot_use = |source| CallError::State { directory: settings.state.clone(), source };
        let Opened { identity, is_in_place } = StateIdentity::open(&settings.state).map_err(cannot_use)?;
        if !is_in_place {
            if !settings.owns_store() {
                refuse_copy_in_use(&identity, settings, store).await?;
            }
            identity.write(&settings.state).map_err(cannot_use)?;
        }
        let mut found = Self { owners: Vec::new(), jobs: BTreeSet::new(), homes: BTreeSet::new(), identity };
        // Earlier versions named their owners after the machine and the path.
        let former = format!("{}:{}#", identity::host_name(), settings.state.display());
        let is_ours = |owner: &Owner, identity: &StateIdentity| {
            let starts = |prefix: &str| owner.as_str().starts_with(prefix);
            settings.owns_store() || starts(&identity.owners()) || starts(&former)
        };
        let mut page = PageRequest::default();
        loop {
            let states =
                vec![StateName::Queued, StateName::Paused, StateName::Running, StateName::Interrupted];
            let unfinished = store.list(&JobFilter { states, ..JobFilter::default() }, page).await?;
            for summary in &unfinished.jobs {
                if settings.owns_store() {
                    found.homes.insert(summary.home.clone());
                }
                if !matches!(summary.state, StateName::Running | StateName::Interrupted) {
                    continue;
                }
                let claim = match store.get(summary.id).await {
                    Ok(job) => job.and_then(|job| job.claim()),
                    // An unreadable record fails when its owner is rescued; it must not block the others.
                    Err(error @ StoreError::Unreadable { .. }) => {
                        tracing::warn!(job = %summary.id, %error, "cannot read the owner of the job");
                        None
                    }
                    Err(error) => return Err(error.into()),
                };
                let Some(Claim { job, owner, .. }) = claim else { continue };
                if is_ours(&owner, &found.identity) {
                    found.jobs.insert(job);
                    if !found.owners.contains(&owner) {
                        found.owners.push(owner);
                    }
                }
            }
            let Some(next) = unfinished.next else { return Ok(found) };
            page.before = Some(next);
        }
    }

    /// Returns the homes to serve. In a store of its own these are all hosts, since a renamed machine has no other daemon.
    pub fn homes(&self, settings: &Settings, home: &Placement) -> Vec<Placement> {
        let labels = settings.labels.iter().cloned().map(Placement::Label);
        let mut homes: Vec<Placement> = std::iter::once(home.clone()).chain(labels).collect();
        for found in &self.homes {
            if matches!(found, Placement::Host(_)) && !homes.contains(found) {
                homes.push(found.clone());
            }
        }
        homes
    }
}

/// Waits until the leases of all earlier owners have expired. Fails if one of them is renewed: then the directory is a copy, and the
/// original shares its store.
async fn refuse_copy_in_use(
    identity: &StateIdentity,
    settings: &Settings,
    store: &Store,
) -> Result<(), CallError> {
    let until = store.now().plus(settings.lease);
    let mut living = store.live_owners(&identity.owners()).await?;
    if !living.is_empty() {
        tracing::info!(
            "the state directory was moved or copied: waiting for the lease of its earlier daemon"
        );
    }
    while !living.is_empty() && store.now() < until {
        tokio::time::sleep(POLL_INTERVAL).await;
        living = store.live_owners(&identity.owners()).await?;
    }
    if living.is_empty() { Ok(()) } else { Err(CallError::Copied { directory: settings.state.clone() }) }
}

/// Takes over jobs in the name of one owner.
#[derive(Debug)]
pub(crate) struct OrphanKeeper {
    pub settings: Arc<Settings>,
    pub store: Store,
    pub owner: Owner,
    pub homes: Vec<Placement>,
    pub records: Arc<JobRecords>,
    pub locks: Arc<ResourceLocks>,
    /// Wakes the scheduler when a job is queued again.
    pub wake: Arc<Notify>,
}

/// Returns the newest run of a job with its record, and how it relates to the claim.
fn find_newest_run(files: &JobFiles, claim: &Claim) -> (Option<(u32, RunRecord)>, NewestRun) {
    let Some(run) = files.runs().last().copied() else { return (None, NewestRun::Missing) };
    match files.read::<RunRecord>(&RunRecord::file_name(run)) {
        None => (None, NewestRun::WithoutRecord),
        Some(record) if !record.belongs_to(claim) => (None, NewestRun::EarlierAttempt),
        Some(record) => (Some((run, record)), NewestRun::Current),
    }
}

impl OrphanKeeper {
    /// Adopts the jobs of earlier services, and returns how each of them continues. Their locks are held before any other job starts.
    pub async fn adopt_orphans(
        &self,
        predecessors: Predecessors,
    ) -> Result<Vec<(Job, StartMode)>, CallError> {
        let Predecessors { owners, jobs: local, .. } = predecessors;
        let mut adopted = Vec::new();
        for job in self.store.rescue(self.rescue_request(owners)).await? {
            let files = self.records.files(job.id);
            let Some(claim) = job.claim() else { continue };
            let (run, newest_run) = find_newest_run(&files, &claim);
            let plan = plan_recovery(Orphan {
                is_local: local.contains(&job.id),
                has_directory: files.directory().exists(),
                newest_run,
            });
            if plan == RecoveryPlan::Requeue {
                self.requeue_or_fail(&claim).await;
                if job.progress.cancel_requested_at.is_some() {
                    // The requeue has cancelled it instead.
                    self.records.refresh(job.id).await;
                }
                continue;
            }
            // Adopted as the same attempt: its run decides the outcome, alive or not.
            let claim = match self.store.adopt(&claim, &self.owner, self.settings.lease).await {
                Ok(claim) => claim,
                Err(StoreError::Refused { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let Some(job) = self.store.get(claim.job).await? else { continue };
            let start = match (plan, run) {
                (RecoveryPlan::Reattach, Some((run, record))) => {
                    let guards = self.lock_resources(&job, &files, run, &record);
                    StartMode::Reattach { run, record: Box::new(record), guards }
                }
                _ => StartMode::Fresh,
            };
            let reattached = matches!(start, StartMode::Reattach { .. });
            tracing::info!(job = %job.id, reattached, "adopted from an earlier daemon");
            adopted.push((job, start));
        }
        Ok(adopted)
    }

    /// Acquires the locks of a run that may still be alive.
    fn lock_resources(&self, job: &Job, files: &JobFiles, run: u32, record: &RunRecord) -> Vec<LockGuard> {
        let call = &job.order.call;
        let session =
            record.session.known().cloned().or_else(|| runs::reported_session(files, run, call.agent));
        let session = session.map(|session| LockKey::Session(call.agent, session));
        let is_exclusive = self.settings.one_writer_per_directory && call.mode == Mode::Execute;
        let directory = is_exclusive.then(|| LockKey::directory(&call.cwd));
        let keys = session.into_iter().chain(directory);
        keys.filter_map(|key| self.locks.try_acquire(key, job.id)).collect()
    }

    /// Requeues the jobs of owners elsewhere whose leases have expired: their files are not here.
    pub async fn rescue_expired(&self) {
        match self.store.rescue(self.rescue_request(Vec::new())).await {
            Ok(jobs) => {
                for claim in jobs.iter().filter_map(Job::claim) {
                    self.requeue_or_fail(&claim).await;
                }
            }
            Err(error) => tracing::warn!(%error, "cannot rescue the jobs of expired owners"),
        }
    }

    /// Gives up a job that the store says this service holds although no task runs it: the reply to a claim or to a release was lost.
    pub async fn requeue_orphan(&self, held: &HeldClaim) {
        let HeldClaim { claim, state, .. } = held;
        tracing::warn!(job = %claim.job, "the job is claimed and not running: requeueing it");
        let files = self.records.files(claim.job);
        match plan_release(*state, !files.runs().is_empty() || !files.commands().is_empty()) {
            ReleasePlan::Release => self.release(claim).await,
            ReleasePlan::StopAndRequeue => {
                runs::stop_all(&files).await;
                self.requeue_or_fail(claim).await;
            }
        }
        // A cancelled job ends instead of being queued.
        if let Ok(Some(record)) = self.store.get(claim.job).await
            && record.completed_at.is_some()
        {
            self.records.write(&record, None);
        }
    }

    /// Releases a job that has not started.
    pub async fn release(&self, claim: &Claim) {
        match claims::release(&self.store, claim).await {
            Ok(()) => self.wake.notify_one(),
            Err(error) => tracing::warn!(job = %claim.job, %error, "cannot release the job"),
        }
    }

    async fn requeue_or_fail(&self, claim: &Claim) {
        tracing::info!(job = %claim.job, "rescued from an expired owner");
        let Err(error) = claims::requeue(&self.store, claim).await else {
            self.wake.notify_one();
            return;
        };
        let message = "the daemon that ran the job is gone, and the job has no attempt left".to_owned();
        let end = JobEnd::failed(Failure { kind: FailureKind::SupervisorLost, message });
        if !claims::is_out_of_attempts(&error) {
            tracing::warn!(job = %claim.job, %error, "cannot requeue the job");
        } else if let Err(error) = self.store.finish(claim, end).await {
            tracing::warn!(job = %claim.job, %error, "cannot fail the job");
        }
    }

    fn rescue_request(&self, dead: Vec<Owner>) -> RescueRequest {
        RescueRequest {
            rescuer: self.owner.clone(),
            homes: self.homes.clone(),
            dead,
            lease: self.settings.lease,
        }
    }
}
