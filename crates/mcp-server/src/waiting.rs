//! Waits for jobs on behalf of a request, and reports progress meanwhile.
//!
//! Owns the end of a wait: jobs finished, request cancelled, client disconnected, daemon stopping. A wait never cancels a job itself;
//! the caller decides.

use std::convert::Infallible;
use std::time::Duration;

use calls::{Activity, CallError, JobService, WaitReason};
use model::{JobId, Timestamp};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::RequestContext;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::capacity::{OWN_WAITS, RequestSlot};
use crate::context::ClientContext;
use crate::rejection::ToolRejection;

/// `_meta` key of the bridge's idempotency key. A request that is replayed after a daemon crash carries the same key.
const REQUEST_META: &str = "switchboard/request";
/// Minimum interval between two progress notifications.
const MIN_INTERVAL: Duration = Duration::from_millis(250);
/// Time for `notifications/cancelled` to be handled after rmcp has ended its request; generous for a busy machine.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// Poll interval for the start of a queued job.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The end of a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// These jobs finished, before or at the timeout.
    Finished(Vec<JobId>),
    /// The client cancelled the request (`notifications/cancelled`). It gets no response.
    Cancelled,
    /// The client disconnected.
    Disconnected,
    /// The daemon stops. The jobs continue.
    Shutdown,
    /// The limit of waiting requests is reached.
    NotAdmitted,
}

impl WaitEnd {
    /// Returns whether a request that has submitted jobs cancels them now.
    pub fn cancels_jobs(&self, client: &ClientContext) -> bool {
        match self {
            Self::Cancelled => true,
            Self::Disconnected => client.options.cancel_on_disconnect,
            Self::Finished(_) | Self::Shutdown | Self::NotAdmitted => false,
        }
    }
}

/// Returns the idempotency key that a bridge gave the request.
pub(crate) fn request_key(context: &RequestContext<RoleServer>) -> Option<&str> {
    context.meta.get(REQUEST_META)?.as_str()
}

/// Returns the time of the host's request, from the `UUIDv7` in the bridge's key. The host's timeout counts from then, also for replays.
pub(crate) fn requested_at(context: &RequestContext<RoleServer>) -> Option<Timestamp> {
    let (seconds, nanos) = uuid::Uuid::parse_str(request_key(context)?).ok()?.get_timestamp()?.to_unix();
    Some(Timestamp::from_millis(seconds.saturating_mul(1000).saturating_add(u64::from(nanos / 1_000_000))))
}

/// Returns how long the host has been waiting for the response.
pub(crate) fn elapsed_since_request(
    client: &ClientContext,
    context: &RequestContext<RoleServer>,
) -> Duration {
    requested_at(context).map_or(Duration::ZERO, |requested| client.service.now().since(requested))
}

/// Waits for `finished`, the service's future for the jobs. Releases the request slot, so that the connection is read meanwhile.
pub(crate) async fn wait(
    client: &ClientContext,
    context: &RequestContext<RoleServer>,
    jobs: &[JobId],
    finished: impl Future<Output = Result<Vec<JobId>, CallError>>,
) -> Result<WaitEnd, ToolRejection> {
    let Some(_admitted) = client.waits.admit() else { return Ok(WaitEnd::NotAdmitted) };
    let slot = context.extensions.get::<RequestSlot>();
    if let Some(slot) = slot {
        slot.release();
    }
    let end = wait_without_slot(client, context, jobs, finished).await;
    if let Some(slot) = slot {
        tokio::select! {
            () = slot.reacquire() => {}
            // There is no response to write.
            () = client.disconnected.cancelled() => {}
            () = context.ct.cancelled() => {}
        }
    }
    end
}

/// Returns the note for a request that was not admitted.
pub(crate) fn not_admitted(client: &ClientContext) -> String {
    format!(
        "did not wait: this client already has {OWN_WAITS} waiting requests, and all clients together {} more (`limits.max_waits`)",
        client.options.capacity.max_waits()
    )
}

async fn wait_without_slot(
    client: &ClientContext,
    context: &RequestContext<RoleServer>,
    jobs: &[JobId],
    finished: impl Future<Output = Result<Vec<JobId>, CallError>>,
) -> Result<WaitEnd, ToolRejection> {
    let finished = tokio::select! {
        biased; // a finished job wins over every other event, and a shutdown over a cancellation
        finished = finished => finished,
        () = client.shutdown.cancelled() => return Ok(WaitEnd::Shutdown),
        () = client.disconnected.cancelled() => return Ok(WaitEnd::Disconnected),
        () = context.ct.cancelled() => return Ok(cancel_reason(client, context).await),
        never = report_progress(client, context, jobs) => match never {},
    };
    match finished {
        Ok(jobs) => Ok(WaitEnd::Finished(jobs)),
        Err(CallError::Closing) => Ok(WaitEnd::Shutdown),
        Err(error) => Err(error.into()),
    }
}

/// Returns why rmcp has ended a request: the client cancelled it, or its connection or session closed.
///
/// Another task handles the client's notification a moment later, so this waits for it.
async fn cancel_reason(client: &ClientContext, context: &RequestContext<RoleServer>) -> WaitEnd {
    if is_stateless_http(context) {
        return WaitEnd::Disconnected;
    }
    tokio::select! {
        biased;
        () = client.cancelled.wait_for(&context.id) => WaitEnd::Cancelled,
        () = client.shutdown.cancelled() => WaitEnd::Shutdown,
        () = client.disconnected.cancelled() => WaitEnd::Disconnected,
        () = sleep(CANCEL_GRACE) => WaitEnd::Disconnected,
    }
}

/// Returns whether the request came over HTTP without a session. Only a closed connection ends such a request.
fn is_stateless_http(context: &RequestContext<RoleServer>) -> bool {
    let http = context.extensions.get::<axum::http::request::Parts>();
    http.is_some_and(|request| !request.headers.contains_key("mcp-session-id"))
}

/// Sends progress notifications, if the request has a progress token.
async fn report_progress(
    client: &ClientContext,
    context: &RequestContext<RoleServer>,
    jobs: &[JobId],
) -> Infallible {
    let Some(token) = context.meta.get_progress_token() else { return std::future::pending().await };
    let heartbeat = client.options.heartbeat.max(MIN_INTERVAL);
    let mut reporter = ProgressReporter { service: &client.service, jobs, activity: None };
    // Seconds since the host's request, so that the value keeps increasing across a daemon restart.
    let (elapsed_before, mut number) = (elapsed_since_request(client, context), 0.0);
    let started = Instant::now();
    // `queued` and `starting` are delayed: sent at once, they would hold back the agent's first line for the minimum interval.
    let (mut last, mut at, mut gap) = (None, Instant::now(), heartbeat.min(MIN_INTERVAL));
    loop {
        let line = reporter.latest_line();
        if line != last || at.elapsed() >= gap {
            if number > 0.0 {
                sleep_until(at + MIN_INTERVAL).await;
            }
            // The line may have changed during the sleep.
            last = reporter.latest_line();
            number = round_to_millis(elapsed_before + started.elapsed()).max(number + 0.001);
            let line = match &last {
                Some(line) => line.clone(),
                None => reporter.waiting_line().await,
            };
            if context.peer.notify_progress(notification(&token, number, &line)).await.is_err() {
                // The connection is closed. The transport handles that.
                return std::future::pending().await;
            }
            (at, gap) = (Instant::now(), heartbeat);
        }
        reporter.wait_for_change(at + gap).await;
    }
}

/// Returns seconds with three decimals.
fn round_to_millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

fn notification(token: &ProgressToken, number: f64, line: &str) -> ProgressNotificationParam {
    ProgressNotificationParam::new(token.clone(), number).with_message(line)
}

/// Describes the progress of some jobs in one line.
struct ProgressReporter<'a> {
    service: &'a JobService,
    jobs: &'a [JobId],
    /// Activity of the agent, for a single running job.
    activity: Option<watch::Receiver<Activity>>,
}

impl ProgressReporter<'_> {
    /// Returns the latest line of the agent, or the summary of several jobs.
    fn latest_line(&mut self) -> Option<String> {
        let [job] = self.jobs else { return Some(self.summary()) };
        if self.activity.is_none() {
            self.activity = self.service.activity(*job);
        }
        // Marked as seen, so that `wait_for_change` returns on the next update.
        let activity = self.activity.as_mut()?.borrow_and_update();
        (!activity.line.is_empty()).then(|| activity.line.clone())
    }

    /// Returns the line for a job whose agent has printed nothing yet.
    async fn waiting_line(&self) -> String {
        let [job] = self.jobs else { return self.summary() };
        if self.activity.is_some() {
            return "starting".to_owned();
        }
        let job = self.service.job(*job).await.ok();
        let reason = job.and_then(|job| self.service.wait_reason(&job));
        reason.map_or_else(|| "queued".to_owned(), |reason| reason.to_string())
    }

    fn summary(&self) -> String {
        let active = self.jobs.iter().filter_map(|job| self.service.activity(*job));
        // A judge has no agent before the others have ended.
        let runs = |activity: &Activity| !matches!(activity.waiting, Some(WaitReason::Contenders { .. }));
        let running = active.filter(|activity| runs(&activity.borrow()));
        let lines: Vec<String> = running.map(|activity| activity.borrow().line.clone()).collect();
        let shown: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        format!("{} of {} running: {}", lines.len(), self.jobs.len(), shown.join("; "))
    }

    /// Waits for a change, or until the deadline.
    async fn wait_for_change(&mut self, deadline: Instant) {
        let Some(activity) = &mut self.activity else {
            return sleep(POLL_INTERVAL.min(deadline.saturating_duration_since(Instant::now()))).await;
        };
        tokio::select! {
            changed = activity.changed() => {
                if changed.is_err() {
                    self.activity = None;
                    sleep(POLL_INTERVAL).await;
                }
            }
            () = sleep_until(deadline) => {}
        }
    }
}
