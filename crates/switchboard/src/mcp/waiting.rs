//! Waiting for jobs on behalf of a caller, and telling it meanwhile what goes on.
//!
//! Owns patience: how long a request blocks, what it hears in between, and what its end means for the job. A wait ends nothing
//! itself; who called decides.

use std::time::Duration;

use calls::{Activity, CallError, Desk, Until};
use model::JobId;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::RequestContext;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::refusal::Refusal;
use super::server::Server;

/// At least this long is between two notifications.
const GAP: Duration = Duration::from_millis(250);
/// How often it is looked whether a job that waits for its turn has begun.
const LOOK: Duration = Duration::from_millis(50);

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
}

/// Waits for jobs.
pub(crate) async fn wait(
    server: &Server,
    context: &RequestContext<RoleServer>,
    jobs: &[JobId],
    until: Until,
    time: Duration,
) -> Result<Waited, Refusal> {
    let ended = tokio::select! {
        biased; // a job that has ended is told, whatever else happened; and a stop of the daemon cancels no job
        ended = server.desk.wait(jobs, until, time) => ended,
        () = server.shutdown.cancelled() => return Ok(Waited::Shutdown),
        () = server.gone.cancelled() => return Ok(Waited::Gone),
        () = context.ct.cancelled() => {
            return Ok(if is_of_its_own_connection(context) { Waited::Gone } else { Waited::Cancelled });
        }
        () = tell(server, context, jobs) => return Ok(Waited::Gone),
    };
    match ended {
        Ok(ended) => Ok(Waited::Ended(ended)),
        Err(CallError::Closing) => Ok(Waited::Shutdown),
        Err(error) => Err(error.into()),
    }
}

/// Whether the request came alone, by HTTP without a session: then its token means that the connection is gone. Everywhere
/// else it means that the caller has said so.
fn is_of_its_own_connection(context: &RequestContext<RoleServer>) -> bool {
    let http = context.extensions.get::<axum::http::request::Parts>();
    http.is_some_and(|request| !request.headers.contains_key("mcp-session-id"))
}

/// Tells the caller what goes on, if it wants to know. Never ends as long as there is somebody to tell.
async fn tell(server: &Server, context: &RequestContext<RoleServer>, jobs: &[JobId]) {
    let Some(token) = context.meta.get_progress_token() else { return std::future::pending().await };
    let heartbeat = server.options.heartbeat.max(GAP);
    let mut teller = Teller::new(&server.desk, jobs);
    let mut number = 0.0;
    let mut told: Option<(String, Instant)> = None;
    loop {
        let line = teller.line();
        let is_news = told.as_ref().is_none_or(|(last, at)| *last != line || at.elapsed() >= heartbeat);
        if is_news {
            if let Some((_, at)) = &told {
                sleep_until(*at + GAP).await;
            }
            // What was said meanwhile is newer.
            let line = teller.line();
            number += 1.0;
            if context.peer.notify_progress(notification(&token, number, &line)).await.is_err() {
                // Nobody listens; whether that ends anything is decided by those who watch the connection.
                return std::future::pending().await;
            }
            told = Some((line, Instant::now()));
        }
        let latest = told.as_ref().map_or_else(Instant::now, |(_, at)| *at + heartbeat);
        teller.stir(latest).await;
    }
}

fn notification(token: &ProgressToken, number: f64, line: &str) -> ProgressNotificationParam {
    ProgressNotificationParam::new(token.clone(), number).with_message(line)
}

/// What goes on in some jobs, in a line.
struct Teller<'a> {
    desk: &'a Desk,
    jobs: &'a [JobId],
    /// For one job: what its agent does, as long as it runs.
    watched: Option<watch::Receiver<Activity>>,
}

impl<'a> Teller<'a> {
    fn new(desk: &'a Desk, jobs: &'a [JobId]) -> Self {
        Self { desk, jobs, watched: None }
    }

    fn line(&mut self) -> String {
        let [job] = self.jobs else { return self.summary() };
        if self.watched.is_none() {
            self.watched = self.desk.activity(*job);
        }
        // Taken as seen: a change from here on is told by `stir`.
        match &mut self.watched {
            None => "waiting for its turn".to_owned(),
            Some(activity) => said(&activity.borrow_and_update()),
        }
    }

    fn summary(&self) -> String {
        let running = self.jobs.iter().filter_map(|job| self.desk.activity(*job));
        let lines: Vec<String> = running.map(|activity| said(&activity.borrow())).collect();
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

fn said(activity: &Activity) -> String {
    if activity.line.is_empty() { "starting".to_owned() } else { activity.line.clone() }
}
