//! Waiting for jobs on behalf of a caller, and telling it meanwhile what goes on.
//!
//! Owns patience: how long a request blocks, what it hears in between, and what its end means for the job. A wait ends nothing
//! itself; who called decides.

use std::convert::Infallible;
use std::time::Duration;

use calls::{Activity, CallError, JobService};
use model::{JobId, Timestamp};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::RequestContext;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::capacity::{OWN_WAITS, RequestSlot};
use super::refusal::Refusal;
use super::server::Server;

/// Where a bridge writes what makes a request that it says again, after the daemon died, one with the first.
const REQUEST_META: &str = "switchboard/request";
/// At least this long is between two notifications.
const GAP: Duration = Duration::from_millis(250);
/// How long it may take, on a busy machine, to hear why a request was ended.
const NAMED_WITHIN: Duration = Duration::from_secs(2);
/// How often it is looked whether a job that waits for its turn has begun.
const LOOK: Duration = Duration::from_millis(20);

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Waited {
    /// These jobs have ended, by then or when the time was over.
    Ended(Vec<JobId>),
    /// The caller wants the request to end (`notifications/cancelled`). It gets no answer.
    Cancelled,
    /// Nobody is at the other end any more.
    Gone,
    /// The daemon stops; the jobs go on.
    Shutdown,
    /// Too many requests wait already.
    NotAdmitted,
}

/// What its bridge calls a request, the first time and again.
pub(crate) fn mark(context: &RequestContext<RoleServer>) -> Option<&str> {
    context.meta.get(REQUEST_META)?.as_str()
}

/// When the host asked, which a bridge's mark begins with. The host loses patience by that, however often it is said again.
pub(crate) fn asked_at(context: &RequestContext<RoleServer>) -> Option<Timestamp> {
    let (seconds, nanos) = uuid::Uuid::parse_str(mark(context)?).ok()?.get_timestamp()?.to_unix();
    Some(Timestamp::from_millis(seconds.saturating_mul(1000).saturating_add(u64::from(nanos / 1_000_000))))
}

/// For how long the host has been waiting for its answer already.
pub(crate) fn waited(server: &Server, context: &RequestContext<RoleServer>) -> Duration {
    asked_at(context).map_or(Duration::ZERO, |asked| server.desk.now().since(asked))
}

/// Waits for jobs: for `ended`, which is the desk's word of them. Other requests of the connection are read meanwhile.
pub(crate) async fn wait(
    server: &Server,
    context: &RequestContext<RoleServer>,
    jobs: &[JobId],
    ended: impl Future<Output = Result<Vec<JobId>, CallError>>,
) -> Result<Waited, Refusal> {
    let Some(_admitted) = server.waits.admit() else { return Ok(Waited::NotAdmitted) };
    let slot = context.extensions.get::<RequestSlot>();
    if let Some(slot) = slot {
        slot.release();
    }
    let waited = wait_without_slot(server, context, jobs, ended).await;
    if let Some(slot) = slot {
        tokio::select! {
            () = slot.reacquire() => {}
            // There is no answer to write.
            () = server.gone.cancelled() => {}
            () = context.ct.cancelled() => {}
        }
    }
    waited
}

/// Tells a caller why its request did not wait.
pub(crate) fn not_admitted(server: &Server) -> String {
    format!(
        "not waited for: this client has {OWN_WAITS} requests that wait, and all clients together {} more (`limits.max_waits`)",
        server.options.capacity.max_waits()
    )
}

async fn wait_without_slot(
    server: &Server,
    context: &RequestContext<RoleServer>,
    jobs: &[JobId],
    ended: impl Future<Output = Result<Vec<JobId>, CallError>>,
) -> Result<Waited, Refusal> {
    let ended = tokio::select! {
        biased; // a job that has ended is told, whatever else happened; and a stop of the daemon cancels no job
        ended = ended => ended,
        () = server.shutdown.cancelled() => return Ok(Waited::Shutdown),
        () = server.gone.cancelled() => return Ok(Waited::Gone),
        () = context.ct.cancelled() => return Ok(why_ended(server, context).await),
        never = tell(server, context, jobs) => match never {},
    };
    match ended {
        Ok(ended) => Ok(Waited::Ended(ended)),
        Err(CallError::Closing) => Ok(Waited::Shutdown),
        Err(error) => Err(error.into()),
    }
}

/// Why rmcp has ended a request: its caller wants it, or the connection is over (a session that was deleted, a line that was closed).
/// The caller's word is told by another task than this one, a moment later.
async fn why_ended(server: &Server, context: &RequestContext<RoleServer>) -> Waited {
    if is_of_its_own_connection(context) {
        return Waited::Gone;
    }
    tokio::select! {
        biased;
        () = server.cancelled.names(&context.id) => Waited::Cancelled,
        () = server.shutdown.cancelled() => Waited::Shutdown,
        () = server.gone.cancelled() => Waited::Gone,
        () = sleep(NAMED_WITHIN) => Waited::Gone,
    }
}

/// Whether the request came alone, by HTTP without a session: then nothing but the end of the connection ends it.
fn is_of_its_own_connection(context: &RequestContext<RoleServer>) -> bool {
    let http = context.extensions.get::<axum::http::request::Parts>();
    http.is_some_and(|request| !request.headers.contains_key("mcp-session-id"))
}

/// Tells the caller what goes on, if it wants to know.
async fn tell(server: &Server, context: &RequestContext<RoleServer>, jobs: &[JobId]) -> Infallible {
    let Some(token) = context.meta.get_progress_token() else { return std::future::pending().await };
    let heartbeat = server.options.heartbeat.max(GAP);
    let mut teller = Teller { desk: &server.desk, jobs, watched: None };
    // The seconds since the host asked: they go on where another daemon has left off.
    let (asked, mut number) = (waited(server, context), 0.0);
    let began = Instant::now();
    // That it waits or begins is told only when it takes a moment: what the agent says first would have to wait for the gap.
    let (mut last, mut at, mut gap) = (None, Instant::now(), heartbeat.min(GAP));
    loop {
        let line = teller.line();
        if line != last || at.elapsed() >= gap {
            if number > 0.0 {
                sleep_until(at + GAP).await;
            }
            // What was said meanwhile is newer.
            last = teller.line();
            number = thousandths(asked + began.elapsed()).max(number + 0.001);
            let line = match &last {
                Some(line) => line.clone(),
                None => teller.meanwhile().await,
            };
            if context.peer.notify_progress(notification(&token, number, &line)).await.is_err() {
                // Nobody listens; whether that ends anything is decided by those who watch the connection.
                return std::future::pending().await;
            }
            (at, gap) = (Instant::now(), heartbeat);
        }
        teller.stir(at + gap).await;
    }
}

/// Seconds, as exactly as somebody wants to read them.
fn thousandths(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

fn notification(token: &ProgressToken, number: f64, line: &str) -> ProgressNotificationParam {
    ProgressNotificationParam::new(token.clone(), number).with_message(line)
}

/// What goes on in some jobs, in a line.
struct Teller<'a> {
    desk: &'a JobService,
    jobs: &'a [JobId],
    /// For one job: what its agent does, as long as it runs.
    watched: Option<watch::Receiver<Activity>>,
}

impl Teller<'_> {
    /// What was said last, when something was.
    fn line(&mut self) -> Option<String> {
        let [job] = self.jobs else { return Some(self.summary()) };
        if self.watched.is_none() {
            self.watched = self.desk.activity(*job);
        }
        // Taken as seen: a change from here on is told by `stir`.
        let activity = self.watched.as_mut()?.borrow_and_update();
        (!activity.line.is_empty()).then(|| activity.line.clone())
    }

    /// What is to be said while nothing was said.
    async fn meanwhile(&self) -> String {
        let [job] = self.jobs else { return self.summary() };
        if self.watched.is_some() {
            return "starting".to_owned();
        }
        let job = self.desk.job(*job).await.ok();
        let reason = job.and_then(|job| self.desk.wait_reason(&job));
        reason.map_or_else(|| "queued".to_owned(), |reason| reason.to_string())
    }

    fn summary(&self) -> String {
        let running = self.jobs.iter().filter_map(|job| self.desk.activity(*job));
        let lines: Vec<String> = running.map(|activity| activity.borrow().line.clone()).collect();
        format!("{} of {} running: {}", lines.len(), self.jobs.len(), lines.join("; "))
    }

    /// Waits until there may be something new, at most until then.
    async fn stir(&mut self, latest: Instant) {
        let Some(activity) = &mut self.watched else {
            return sleep(LOOK.min(latest.saturating_duration_since(Instant::now()))).await;
        };
        tokio::select! {
            changed = activity.changed() => {
                if changed.is_err() {
                    self.watched = None;
                    sleep(LOOK).await;
                }
            }
            () = sleep_until(latest) => {}
        }
    }
}
