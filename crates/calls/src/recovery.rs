//! Taking up what an earlier desk of the same folder has left.
//!
//! Whoever opens a desk holds the lock of its folder, so every earlier owner from there is dead, whatever its lease says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::{
    Claim, Failure, FailureKind, Job, JobEnd, JobId, Owner, Placement, StateName, Timestamp, TransitionError,
};
use store::{HeldClaim, JobFilter, PageRequest, RescueRequest, Store, StoreError};

use crate::course::{self, Begin, RunRecord, locks_of, note_of};
use crate::desk::Inner;
use crate::dispatch;
use crate::error::CallError;
use crate::files::{JobFiles, job_directories};
use crate::identity::{self, Identity, Opened};
use crate::settings::Settings;

/// How often it is looked whether an earlier owner is alive.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How many folders are removed before it is looked whether the desk closes.
const AT_A_TIME: usize = 100;

/// What earlier desks of this state directory have left.
pub(crate) struct Predecessors {
    pub identity: Identity,
    owners: Vec<Owner>,
    /// The jobs that they hold.
    jobs: BTreeSet<JobId>,
    /// The homes of all jobs that have not ended, where the store is this directory's own.
    homes: BTreeSet<Placement>,
}

impl Predecessors {
    /// Returns the homes that a desk serves. In a store of its own these are all: a machine that was renamed has no other.
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

/// Finds out which directory this is, and what its earlier desks have left. The caller holds the directory's lock.
pub(crate) async fn find_predecessors(settings: &Settings, store: &Store) -> Result<Predecessors, CallError> {
    let cannot_use = |source| CallError::State { folder: settings.state.clone(), source };
    let Opened { identity, is_in_place } = Identity::open(&settings.state).map_err(cannot_use)?;
    if !is_in_place {
        if !settings.owns_store() {
            no_original_is_alive(&identity, settings, store).await?;
        }
        identity.write(&settings.state).map_err(cannot_use)?;
    }
    let mut found =
        Predecessors { owners: Vec::new(), jobs: BTreeSet::new(), homes: BTreeSet::new(), identity };
    // Those of earlier versions are named after the machine and the path.
    let former = format!("{}:{}#", identity::host_name(), settings.state.display());
    let is_ours = |owner: &Owner, identity: &Identity| {
        let starts = |prefix: &str| owner.as_str().starts_with(prefix);
        settings.owns_store() || starts(&identity.owners()) || starts(&former)
    };
    let mut page = PageRequest::default();
    loop {
        let states = vec![StateName::Queued, StateName::Paused, StateName::Running, StateName::Interrupted];
        let unfinished = store.list(&JobFilter { states, ..JobFilter::default() }, page).await?;
        for line in &unfinished.jobs {
            if settings.owns_store() {
                found.homes.insert(line.home.clone());
            }
            if !matches!(line.state, StateName::Running | StateName::Interrupted) {
                continue;
            }
            let claim = match store.get(line.id).await {
                Ok(job) => job.and_then(|job| job.claim()),
                // One that nobody understands ends with the rescue of what its owner held. It keeps no other from going on.
                Err(error @ StoreError::Unreadable { .. }) => {
                    tracing::warn!(job = %line.id, %error, "cannot tell who holds the job");
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

/// Waits until the leases of all earlier owners are over, and refuses to go on when one of them is renewed: the directory is a copy,
/// and the original shares its store.
async fn no_original_is_alive(
    identity: &Identity,
    settings: &Settings,
    store: &Store,
) -> Result<(), CallError> {
    let until = store.now().plus(settings.lease);
    let mut living = store.live_owners(&identity.owners()).await?;
    if !living.is_empty() {
        tracing::info!(
            "the state directory was moved or copied: waiting until its earlier daemon is known to be gone"
        );
    }
    while !living.is_empty() && store.now() < until {
        tokio::time::sleep(LOOK_AGAIN).await;
        living = store.live_owners(&identity.owners()).await?;
    }
    if living.is_empty() { Ok(()) } else { Err(CallError::Copied { folder: settings.state.clone() }) }
}

/// Takes over the jobs of the desks before, and says how each goes on.
pub(crate) async fn take_over(
    desk: &Arc<Inner>,
    predecessors: Predecessors,
) -> Result<Vec<(Job, Begin)>, CallError> {
    let settings = &desk.settings;
    let Predecessors { owners: dead, jobs: left_here, .. } = predecessors;
    let request =
        RescueRequest { rescuer: desk.owner.clone(), homes: desk.homes.clone(), dead, lease: settings.lease };
    let mut found = Vec::new();
    for job in desk.store.rescue(request).await? {
        let files = desk.files(job.id);
        let Some(claim) = job.claim() else { continue };
        // Of one that was held here, nothing has begun as long as it has no folder.
        if !left_here.contains(&job.id) && !files.folder().exists() {
            queue_again(desk, &claim).await;
            if job.progress.cancel_requested_at.is_some() {
                // It is over instead.
                desk.record(job.id).await;
            }
            continue;
        }
        // Whatever is left of it, this desk goes on with it as the same attempt: alive or not, its run has the last word.
        let claim = match desk.store.adopt(&claim, &desk.owner, settings.lease).await {
            Ok(claim) => claim,
            Err(StoreError::Refused { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let Some(job) = desk.store.get(claim.job).await? else { continue };
        let begin = begin(desk, &job, &claim, &files);
        tracing::info!(job = %job.id, anew = matches!(begin, Begin::Anew), "taken over from an earlier daemon");
        found.push((job, begin));
    }
    Ok(found)
}

/// Takes the jobs of owners elsewhere that have been silent for too long, and queues them again: their files are not here.
pub(crate) async fn rescue_others(desk: &Inner) {
    let request = RescueRequest {
        rescuer: desk.owner.clone(),
        homes: desk.homes.clone(),
        dead: Vec::new(),
        lease: desk.settings.lease,
    };
    match desk.store.rescue(request).await {
        Ok(jobs) => {
            for claim in jobs.iter().filter_map(Job::claim) {
                queue_again(desk, &claim).await;
            }
        }
        Err(error) => tracing::warn!(%error, "cannot look for jobs of silent owners"),
    }
}

async fn queue_again(desk: &Inner, claim: &Claim) {
    tracing::info!(job = %claim.job, "taken from an owner that fell silent");
    let Err(error) = requeue(desk, claim).await else {
        desk.wake.notify_one();
        return;
    };
    let message = "the daemon that ran it fell silent, and it was begun as often as it may be".to_owned();
    let end = JobEnd::failed(Failure { kind: FailureKind::SupervisorLost, message });
    if !has_no_attempt_left(&error) {
        tracing::warn!(job = %claim.job, %error, "cannot queue the job again");
    } else if let Err(error) = desk.store.finish(claim, end).await {
        tracing::warn!(job = %claim.job, %error, "cannot end the job");
    }
}

/// Queues a job again whose run is lost; refused when it has no attempt left.
pub(crate) async fn requeue(desk: &Inner, claim: &Claim) -> Result<(), StoreError> {
    match desk.store.interrupt(claim).await {
        // One that was taken over from a dead owner is interrupted already.
        Err(error) if error.refusal().is_none() => return Err(error),
        _ => {}
    }
    desk.store.requeue(claim).await.map(drop)
}

pub(crate) fn has_no_attempt_left(error: &StoreError) -> bool {
    matches!(error.refusal(), Some(TransitionError::NoAttemptLeft { .. }))
}

/// Lets go of a job that has not begun: a pause that is over, which costs it no attempt.
pub(crate) async fn put_back(desk: &Inner, claim: &Claim) {
    match desk.store.pause_until(claim, desk.store.now()).await {
        Ok(_) => desk.wake.notify_one(),
        Err(error) => tracing::warn!(job = %claim.job, %error, "cannot queue the job again"),
    }
}

/// Takes care of a job that is held in the name of this desk, of which it knows nothing: the word that it has it, or that it has it
/// no longer, was lost on the way.
pub(crate) async fn take_care_of(desk: &Inner, held: &HeldClaim) {
    let HeldClaim { claim, state, .. } = held;
    tracing::warn!(job = %claim.job, "held, and nobody works on it: queueing it again");
    let files = desk.files(claim.job);
    if *state == StateName::Running && files.runs().is_empty() {
        put_back(desk, claim).await;
    } else {
        course::end_last_run(&files).await;
        queue_again(desk, claim).await;
    }
    // It may be over instead.
    if let Ok(Some(record)) = desk.store.get(claim.job).await
        && record.completed_at.is_some()
    {
        desk.write_down(&record);
    }
}

/// How a job goes on: with its newest run, if one was ever to be started; else with a new one, which is then its first.
fn begin(desk: &Inner, job: &Job, claim: &Claim, files: &JobFiles) -> Begin {
    let Some(number) = files.runs().last().copied() else { return Begin::Anew };
    match files.read::<RunRecord>(&note_of(number)) {
        // It was judged, and the desk died before it had begun the next one.
        Some(note) if !note.is_of(claim) => Begin::Anew,
        Some(note) => {
            let guards = locks_of(desk, job, number, &note);
            Begin::With { number, note: Box::new(note), guards }
        }
        // The note is written first: without it nothing was started.
        None => Begin::Anew,
    }
}

/// Writes the results of jobs that ended in the store while the daemon died over their files, however many there are, and the records
/// that are missing.
pub(crate) async fn record_ends(desk: Arc<Inner>) {
    let looking = Arc::clone(&desk);
    let looked = tokio::task::spawn_blocking(move || incomplete(&looking)).await;
    let jobs = looked.map_err(std::io::Error::other).and_then(|jobs| jobs);
    let jobs = jobs.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot look for results that were not written");
        Vec::new()
    });
    for job in jobs {
        if desk.closed.is_cancelled() {
            return;
        }
        match desk.store.get(job).await {
            // Of one that goes on, its course writes: what it says next must not be taken back.
            Ok(Some(record)) if record.completed_at.is_some() && desk.board.get(job).is_none() => {
                desk.write_down(&record);
            }
            Ok(Some(record)) => {
                if let Err(error) = desk.files(job).write_first_record(&record) {
                    tracing::warn!(%job, %error, "cannot write the record of the job");
                }
            }
            _ => {}
        }
    }
}

/// Removes the environments of callers whose jobs have ended, or were never placed because the daemon died first.
pub(crate) async fn remove_environments(desk: Arc<Inner>, opened_at: Timestamp) {
    let jobs = desk.environments.jobs().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list the environments of callers");
        Vec::new()
    });
    // Those of this daemon's own jobs are removed when they end.
    for job in jobs.into_iter().filter(|job| *job < JobId::first_of(opened_at)) {
        match desk.store.get(job).await {
            Ok(Some(record)) if record.completed_at.is_none() => {}
            Ok(_) => desk.environments.remove(job),
            Err(error) => tracing::warn!(%job, %error, "cannot look up the job of a caller's environment"),
        }
    }
}

/// Removes the folders that a desk has left which died over a sweep: nothing else tells that they were to go. Only what would be too
/// old in any case, so that a store which was changed for another takes nothing with it.
pub(crate) async fn remove_forgotten(desk: Arc<Inner>) {
    let Some(max_age) = desk.settings.retention.max_age else { return };
    let now = desk.store.now().as_millis();
    let kept_from = now.saturating_sub(u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX));
    let oldest_kept = JobId::first_of(Timestamp::from_millis(kept_from));
    let looking = Arc::clone(&desk);
    let found = tokio::task::spawn_blocking(move || job_directories(&looking.settings.state)).await;
    let mut forgotten = Vec::new();
    for job in found.ok().and_then(Result::ok).unwrap_or_default() {
        if desk.closing.is_cancelled() {
            return;
        }
        if job < oldest_kept && matches!(desk.store.get(job).await, Ok(None)) {
            forgotten.push(job);
        }
    }
    if !forgotten.is_empty() {
        tracing::info!(
            jobs = forgotten.len(),
            "removing the folders of jobs that an earlier daemon has forgotten"
        );
        for part in forgotten.chunks(AT_A_TIME) {
            if desk.closing.is_cancelled() {
                return;
            }
            dispatch::remove_folders(&desk, part.to_vec()).await;
        }
    }
}

/// The jobs whose folders do not say the last word.
fn incomplete(desk: &Inner) -> std::io::Result<Vec<JobId>> {
    let mut ids = job_directories(&desk.settings.state)?;
    // The newest first: the files that a dead daemon was about to write are among them.
    ids.reverse();
    ids.retain(|id| !desk.files(*id).are_complete());
    Ok(ids)
}
