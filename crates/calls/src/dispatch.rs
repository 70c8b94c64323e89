//! The tasks of a desk: claiming what waits, saying that it is alive, tidying up.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use model::{AgentKind, Claim, Job, JobId, NewJob, Placement};
use store::{Capacity, ClaimRequest, Committed, FlushTicket, HeldClaim, StoreError, Submitted, WatchEvent};
use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::TaskTracker;

use crate::course::{self, Begin};
use crate::desk::Inner;
use crate::direct_runs;
use crate::files::jobs;
use crate::live::Live;
use crate::recovery;
use crate::seats::{Place, Seat};
use crate::told::Told;

/// How often it is looked for work that nobody has told of: a pause that is over, a job that another machine has placed.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How often jobs that are kept no longer are removed.
const TIDY_EVERY: Duration = Duration::from_hours(1);

/// The courses of jobs that were claimed as they were placed, by a desk that had room. They are begun by who has placed them.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    courses: TaskTracker,
    /// Held while one is begun, so that none is once the desk closes.
    is_closed: Mutex<bool>,
    /// One has ended.
    ended: Notify,
}

impl Handed {
    /// Whether it was begun.
    fn begin(&self, course: impl Future<Output = ()> + Send + 'static) -> bool {
        let is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_closed {
            self.courses.spawn(course);
        }
        !*is_closed
    }

    fn close(&self) {
        *self.is_closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.courses.close();
    }
}

/// Keeps a new job. When there is room, the next job is begun in the same breath: the usual call needs no second question, and
/// its run is made ready while the disk takes it.
pub(crate) async fn keep(
    desk: &Arc<Inner>,
    id: JobId,
    order: NewJob,
) -> Result<Committed<Submitted>, StoreError> {
    let Some(seat) = desk.seats.take() else {
        let placed = async { desk.store.submit_as(id, order, None).await?.flushed().await }.await;
        // A place may be free again by now, and who left it did not know that somebody waits.
        desk.wake.notify_one();
        return placed.map(Committed::already_flushed);
    };
    let Committed { value: mut placed, flush } = desk.store.submit_as(id, order, Some(request(desk))).await?;
    let begun = placed.claimed.take();
    let is_this = begun.as_ref().map(|job| job.id) == Some(placed.job.id);
    match begun.and_then(|job| Some((job.claim()?, job))) {
        Some((claim, job)) => begin(desk, *job, claim, seat, is_this.then(|| flush.clone())).await,
        None => drop(seat),
    }
    if !is_this {
        // It waits, or a place was kept from one that does.
        desk.wake.notify_one();
    }
    Ok(Committed { value: placed, flush })
}

/// Begins the course of a job at once, instead of having it begun by who sees to all others.
async fn begin(desk: &Arc<Inner>, job: Job, claim: Claim, seat: Seat, flush: Option<FlushTicket>) {
    let live = desk.board.put(&claim);
    let place = desk.seats.offered(job.order.call.agent, seat);
    let handed = Begin::Handed { live: Arc::clone(&live), flush };
    let course = course::go(Arc::clone(desk), job, handed, place);
    if !desk.handed.begin(to_its_end(Arc::clone(desk), claim.clone(), course)) {
        // The desk has closed in between: the job is for the next one.
        desk.board.take_off(&live);
        recovery::put_back(desk, &claim).await;
    }
}

/// Sees a course to its end that runs by itself.
async fn to_its_end(desk: Arc<Inner>, claim: Claim, course: impl Future<Output = ()>) {
    if AssertUnwindSafe(course).catch_unwind().await.is_err() {
        broke_off(&desk, &claim).await;
    }
    desk.handed.ended.notify_one();
}

/// Claims what waits, as long as there is room, and sees every course to its end.
pub(crate) async fn work(desk: Arc<Inner>, found: Vec<(Job, Begin)>) {
    let mut courses = Courses::default();
    for (job, begin) in found {
        let agent = job.order.call.agent;
        let place = match begin {
            Begin::With { .. } => desk.seats.make_room(agent),
            // Nothing of it runs: it waits like all others.
            Begin::Anew | Begin::Handed { .. } => desk.seats.none_yet(agent),
        };
        courses.begin(&desk, job, begin, place);
    }
    let mut look = true;
    // Nothing waits; with limits for each agent, something may that is not seen.
    let mut nothing_waits = false;
    loop {
        let closing = desk.closing.is_cancelled();
        if closing {
            desk.handed.close();
        }
        while look
            && !desk.closing.is_cancelled()
            && desk.store_loss.get().is_none()
            && let Some(seat) = desk.seats.take()
        {
            match desk.store.claim(request(&desk)).await {
                Ok(Some(job)) => {
                    let place = desk.seats.offered(job.order.call.agent, seat);
                    courses.begin(&desk, job, Begin::Anew, place);
                }
                Ok(None) => (look, nothing_waits) = (false, !desk.settings.holds_an_agent_back()),
                Err(error) => {
                    tracing::warn!(%error, hint = error.hint(), "cannot claim a job");
                    look = false;
                }
            }
        }
        if closing && courses.tasks.is_empty() {
            desk.handed.courses.wait().await;
            desk.closed.cancel();
            return;
        }
        tokio::select! {
            Some(ended) = courses.tasks.join_next_with_id() => {
                courses.ended(&desk, ended).await;
                // A place is free again, for one that may have waited for it.
                look |= !nothing_waits;
            }
            () = desk.handed.ended.notified() => look |= !nothing_waits,
            () = desk.wake.notified() => (look, nothing_waits) = (true, false),
            () = desk.closing.cancelled(), if !closing => {}
            () = sleep(LOOK_AGAIN) => look = true,
        }
    }
}

/// A course that ended as it should has said all there is to say. One that broke off is a defect of ours: its job must not look as if
/// somebody worked on it.
async fn broke_off(desk: &Inner, claim: &Claim) {
    tracing::error!(job = %claim.job, "the course of a job broke off");
    course::give_up(desk, claim).await;
}

/// The jobs that are under way.
#[derive(Default)]
struct Courses {
    tasks: JoinSet<()>,
    claims: HashMap<Id, Claim>,
}

impl Courses {
    fn begin(&mut self, desk: &Arc<Inner>, job: Job, begin: Begin, place: Place) {
        let Some(claim) = job.claim() else { return };
        let task = self.tasks.spawn(course::go(Arc::clone(desk), job, begin, place));
        self.claims.insert(task.id(), claim);
    }

    async fn ended(&mut self, desk: &Inner, ended: Result<(Id, ()), JoinError>) {
        match ended {
            Ok((id, ())) => drop(self.claims.remove(&id)),
            Err(error) => {
                if let Some(claim) = self.claims.remove(&error.id()) {
                    broke_off(desk, &claim).await;
                }
            }
        }
    }
}

fn request(desk: &Inner) -> ClaimRequest {
    let settings = &desk.settings;
    // Those that only wait are held, too, and take no place.
    let capacity = |agent: AgentKind| {
        let at_once = settings.per_agent.get(&agent).copied().unwrap_or(settings.at_once);
        Capacity { agent, at_once: at_once.saturating_add(desk.seats.aside(agent)) }
    };
    ClaimRequest {
        owner: desk.owner.clone(),
        homes: desk.homes.clone(),
        agents: AgentKind::ALL.into_iter().map(capacity).collect(),
        lease: settings.lease,
    }
}

/// Says that this desk is alive, and hears what it has lost and what it is to stop.
pub(crate) async fn heartbeat(desk: Arc<Inner>) {
    let mut unknown: Vec<Claim> = Vec::new();
    let mut has_renewed = false;
    loop {
        tokio::select! {
            () = desk.closed.cancelled() => return,
            () = sleep(desk.settings.lease / 3) => {}
        }
        check_store(&desk, has_renewed).await;
        recovery::rescue_others(&desk).await;
        let held = match desk.store.renew(&desk.owner, desk.settings.lease).await {
            Ok(held) => held,
            Err(error) => {
                tracing::warn!(%error, "cannot renew the lease");
                continue;
            }
        };
        has_renewed = true;
        for live in desk.board.all() {
            match held.iter().find(|held| held.claim == live.claim) {
                Some(held) if !held.cancel_requested => {}
                Some(_) => live.stop.cancel(),
                None => stop_if_lost(&desk, &live).await,
            }
        }
        let is_known = |claim: &Claim| desk.board.get(claim.job).is_some_and(|live| live.claim == *claim);
        let now_unknown: Vec<HeldClaim> = held.into_iter().filter(|held| !is_known(&held.claim)).collect();
        // What is unknown for the first time may be on its way here, or have ended since.
        let is_forgotten =
            |claim: &Claim| !desk.closing.is_cancelled() && unknown.contains(claim) && !is_known(claim);
        for held in now_unknown.iter().filter(|held| is_forgotten(&held.claim)) {
            recovery::take_care_of(&desk, held).await;
        }
        unknown = now_unknown.into_iter().map(|held| held.claim).collect();
    }
}

/// Notes for good that the store was lost. Whatever else fails is told by the next write.
async fn check_store(desk: &Inner, has_renewed: bool) {
    let checked = if has_renewed {
        desk.store.verify(&desk.owner).await
    } else {
        desk.store.verify_files().map_err(StoreError::from)
    };
    let Err(error @ StoreError::Lost(_)) = checked else { return };
    let hint = error.hint();
    if let StoreError::Lost(loss) = error
        && desk.store_loss.set(loss.clone()).is_ok()
    {
        tracing::error!(%loss, hint, "no call is accepted any more");
    }
}

/// A job that is not held may have ended a moment ago; one that somebody else holds must not be run here any more.
async fn stop_if_lost(desk: &Inner, live: &Live) {
    let Ok(Some(job)) = desk.store.get(live.claim.job).await else { return };
    if job.claim().is_some_and(|claim| claim != live.claim) {
        tracing::warn!(job = %job.id, "another owner has the job: stopping the run");
        live.stop.cancel();
    }
}

/// Removes jobs that are kept no longer, with their files; hears of jobs that other machines have placed.
pub(crate) async fn tidy(desk: Arc<Inner>) {
    // Of a store that nobody else writes to, this desk knows what it has written.
    let mut changes = if desk.store.is_shared() { desk.store.watch().await.ok() } else { None };
    let labels = desk.settings.labels.iter().cloned().map(Placement::Label).collect();
    let mut told = Told::new(desk.home.clone(), labels);
    let mut next = Instant::now() + Duration::from_mins(1);
    loop {
        let look_at = told.look_at();
        tokio::select! {
            () = desk.closed.cancelled() => return,
            () = sleep_until(next) => {
                next = Instant::now() + TIDY_EVERY;
                sweep(&desk).await;
                sweep_caches(&desk).await;
            }
            () = sleep_until(look_at.unwrap_or(next)), if look_at.is_some() => {
                told.looks();
                desk.wake.notify_one();
            }
            change = next_change(&mut changes) => match change {
                // Placed by somebody else, or its pause is over.
                Some(event) => if told.hear(&event, Instant::now(), part()) {
                    desk.wake.notify_one();
                }
                None => changes = None,
            },
        }
    }
}

/// A part of one, by chance.
fn part() -> f64 {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

async fn next_change(changes: &mut Option<store::ChangeStream>) -> Option<WatchEvent> {
    match changes {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn sweep(desk: &Inner) {
    let retention = desk.settings.retention;
    if retention.max_age.is_none() && retention.max_count.is_none() {
        return;
    }
    let removed = match desk.store.sweep(retention).await {
        Ok(removed) => removed,
        Err(error) => {
            tracing::warn!(%error, "cannot remove old jobs");
            let mut removed = error.removed;
            // No later sweep finds those that are gone after all: their folders would stay for good.
            for job in error.unconfirmed {
                if matches!(desk.store.get(job).await, Ok(None)) {
                    removed.push(job);
                }
            }
            removed
        }
    };
    desk.recent.forget(&removed);
    remove_folders(desk, removed).await;
    if let Some(max_count) = retention.max_count {
        sweep_direct_runs(desk, max_count).await;
    }
}

/// Removes old directories of `call --direct`, which count like those of jobs.
async fn sweep_direct_runs(desk: &Inner, max_count: u64) {
    let folder = jobs(&desk.settings.state);
    let outdated = tokio::task::spawn_blocking(move || direct_runs::outdated(&folder, max_count)).await;
    match outdated {
        Ok(Ok(runs)) if !runs.is_empty() => remove_folders(desk, runs).await,
        Ok(Err(error)) => tracing::warn!(%error, "cannot look for old runs without a job"),
        _ => {}
    }
}

/// Removes the least recently used caches of confined runs where all of them take up too much.
async fn sweep_caches(desk: &Inner) {
    let Some(max_bytes) = desk.settings.cache_bytes else { return };
    let caches = desk.settings.caches();
    match tokio::task::spawn_blocking(move || supervisor::sweep_caches(&caches, max_bytes)).await {
        Ok(Ok(swept)) if !swept.removed.is_empty() => {
            tracing::info!(removed = ?swept.removed, left = swept.bytes, "removed caches of package managers");
        }
        Ok(Err(error)) => tracing::warn!(%error, "cannot remove caches of package managers"),
        _ => {}
    }
}

pub(crate) async fn remove_folders(desk: &Inner, removed: Vec<JobId>) {
    let folder = jobs(&desk.settings.state);
    let done = tokio::task::spawn_blocking(move || store::remove_job_directories(&folder, &removed)).await;
    if let Ok(Err(error)) = done {
        tracing::warn!(%error, "cannot remove the folder of an old job");
    }
}
