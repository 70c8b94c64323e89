//! The tasks of a desk: claiming what waits, saying that it is alive, tidying up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use model::{AgentKind, Claim, Job, StateName};
use store::{Capacity, ClaimRequest, WatchEvent};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::sleep;

use crate::course::{self, Begin};
use crate::desk::Inner;
use crate::files::jobs;
use crate::recovery;

/// How often it is looked for work that nobody has told of: a pause that is over, a job that another machine has placed.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How often jobs that are kept no longer are removed.
const TIDY_EVERY: Duration = Duration::from_hours(1);

/// Claims what waits, as long as there is room, and sees every course to its end.
pub(crate) async fn work(desk: Arc<Inner>, found: Vec<(Job, Begin)>) {
    let mut courses = Courses::default();
    for (job, begin) in found {
        courses.begin(&desk, job, begin);
    }
    let room = usize::try_from(desk.settings.at_once.max(1)).unwrap_or(usize::MAX);
    let mut look = true;
    loop {
        let closing = desk.closing.is_cancelled();
        while look && !closing && courses.tasks.len() < room {
            match desk.store.claim(request(&desk)).await {
                Ok(Some(job)) => courses.begin(&desk, job, Begin::Anew),
                Ok(None) => look = false,
                Err(error) => {
                    tracing::warn!(%error, hint = error.hint(), "cannot claim a job");
                    look = false;
                }
            }
        }
        if closing && courses.tasks.is_empty() {
            desk.closed.cancel();
            return;
        }
        tokio::select! {
            Some(ended) = courses.tasks.join_next_with_id() => {
                courses.ended(&desk, ended).await;
                // A place is free again, for one that may have waited for it.
                look = true;
            }
            () = desk.wake.notified() => look = true,
            () = desk.closing.cancelled(), if !closing => {}
            () = sleep(LOOK_AGAIN) => look = true,
        }
    }
}

/// The jobs that are under way.
#[derive(Default)]
struct Courses {
    tasks: JoinSet<()>,
    claims: HashMap<Id, Claim>,
}

impl Courses {
    fn begin(&mut self, desk: &Arc<Inner>, job: Job, begin: Begin) {
        let Some(claim) = job.claim() else { return };
        let task = self.tasks.spawn(course::go(Arc::clone(desk), job, begin));
        self.claims.insert(task.id(), claim);
    }

    /// A course that ended as it should has said all there is to say. One that broke off is a defect of ours: its job must
    /// not look as if somebody worked on it.
    async fn ended(&mut self, desk: &Inner, ended: Result<(Id, ()), JoinError>) {
        match ended {
            Ok((id, ())) => drop(self.claims.remove(&id)),
            Err(error) => {
                tracing::error!(%error, "the course of a job broke off");
                if let Some(claim) = self.claims.remove(&error.id()) {
                    course::give_up(desk, &claim).await;
                }
            }
        }
    }
}

fn request(desk: &Inner) -> ClaimRequest {
    let settings = &desk.settings;
    let capacity = |agent: AgentKind| Capacity {
        agent,
        at_once: settings.per_agent.get(&agent).copied().unwrap_or(settings.at_once),
    };
    ClaimRequest {
        owner: desk.owner.clone(),
        homes: settings.homes(),
        agents: AgentKind::ALL.into_iter().map(capacity).collect(),
        lease: settings.lease,
    }
}

/// Says that this desk is alive, and hears what it has lost and what it is to stop.
pub(crate) async fn heartbeat(desk: Arc<Inner>) {
    loop {
        tokio::select! {
            () = desk.closed.cancelled() => return,
            () = sleep(desk.settings.lease / 3) => {}
        }
        recovery::rescue_others(&desk).await;
        let held = match desk.store.renew(&desk.owner, desk.settings.lease).await {
            Ok(held) => held,
            Err(error) => {
                tracing::warn!(%error, "cannot renew the lease");
                continue;
            }
        };
        for live in desk.board.all() {
            match held.iter().find(|held| held.claim == live.claim) {
                Some(held) if !held.cancel_requested => {}
                Some(_) => live.stop.cancel(),
                None => stop_if_lost(&desk, &live).await,
            }
        }
    }
}

/// A job that is not held may have ended a moment ago; one that somebody else holds must not be run here any more.
async fn stop_if_lost(desk: &Inner, live: &crate::live::Live) {
    let Ok(Some(job)) = desk.store.get(live.claim.job).await else { return };
    if job.claim().is_some_and(|claim| claim != live.claim) {
        tracing::warn!(job = %job.id, "another owner has the job: stopping the run");
        live.stop.cancel();
    }
}

/// Removes jobs that are kept no longer, with their files; hears of cancellations that other machines have asked for.
pub(crate) async fn tidy(desk: Arc<Inner>) {
    let mut changes = desk.store.watch().await.ok();
    let mut next = tokio::time::Instant::now() + Duration::from_mins(1);
    loop {
        tokio::select! {
            () = desk.closed.cancelled() => return,
            () = tokio::time::sleep_until(next) => {
                next = tokio::time::Instant::now() + TIDY_EVERY;
                sweep(&desk).await;
            }
            change = next_change(&mut changes) => match change {
                // Placed by somebody else, or its pause is over.
                Some(WatchEvent::Changed(change)) if change.state == StateName::Queued => desk.wake.notify_one(),
                Some(WatchEvent::Changed(_)) => {}
                Some(WatchEvent::Missed) => desk.wake.notify_one(),
                None => changes = None,
            },
        }
    }
}

async fn next_change(changes: &mut Option<store::Watch>) -> Option<WatchEvent> {
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
            error.removed
        }
    };
    let folder = jobs(&desk.settings.state);
    let done = tokio::task::spawn_blocking(move || store::remove_job_folders(&folder, &removed)).await;
    if let Ok(Err(error)) = done {
        tracing::warn!(%error, "cannot remove the folder of an old job");
    }
}
