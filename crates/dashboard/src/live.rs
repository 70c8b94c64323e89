//! Live updates: server-sent events for the list and for the pages of jobs and groups.
//!
//! Events contain fragments that the code of the pages renders. A client may disconnect at any time; all streams end at shutdown.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use calls::{CallError, ChangeStream, Follow, Followed, JobFilter, WatchEvent};
use futures_util::stream::{Stream, unfold};
use model::{JobGroup, JobId};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::context::{PageContext, WatcherGuard};
use crate::group::{activity_line, current_activity, find_group};
use crate::list::{self, ListQuery};
use crate::rejection::PageRejection;
use crate::transcript::{JobTranscript, TranscriptEntry, failure, render_entry};

/// Interval of keep-alive comments.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Interval of the reports on the activities in a group. An agent changes its activity with each piece of text.
const ACTIVITY_INTERVAL: Duration = Duration::from_secs(1);

fn stream(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

/// Returns an event. Its JSON contains no newline, so it stays one event.
fn event(name: &str, data: &Value) -> Event {
    Event::default().event(name).data(data.to_string())
}

/// Handles requests for the event stream of the list: its changed rows.
pub(crate) async fn jobs(
    State(context): State<PageContext>,
    Query(query): Query<ListQuery>,
) -> Result<Response, PageRejection> {
    let filter = query.filter()?;
    let changes = context.service().changes().await?;
    let watcher = context.count_watcher();
    let updates = ListStream { context, filter, changes, has_greeted: false, _watcher: watcher };
    Ok(stream(unfold(updates, |mut updates| async move { Some((Ok(updates.next().await?), updates)) })))
}

struct ListStream {
    context: PageContext,
    filter: JobFilter,
    changes: ChangeStream,
    has_greeted: bool,
    _watcher: WatcherGuard,
}

impl ListStream {
    async fn next(&mut self) -> Option<Event> {
        // The page was rendered before the watch started and may lack changes, so its script reloads the list.
        if !std::mem::replace(&mut self.has_greeted, true) {
            return Some(event("hello", &json!({})));
        }
        let shutdown = self.context.shutdown().clone();
        tokio::select! {
            () = shutdown.cancelled() => None,
            change = self.changes.next() => Some(match change? {
                WatchEvent::Changed(change) => self.row(change.job).await,
                WatchEvent::Missed => event("missed", &json!({})),
            }),
        }
    }

    /// Returns the current row of a job, or its removal if it does not match the filter.
    async fn row(&self, job: JobId) -> Event {
        let service = self.context.service();
        let html = match list::find_matching(service, &self.filter, job).await {
            Ok(Some(found)) => {
                let has_open_changes = list::has_open_changes(service, &found).await;
                Some(list::row(service, &found, has_open_changes).into_string())
            }
            Ok(None) | Err(_) => None,
        };
        event("job", &json!({ "id": job, "html": html }))
    }
}

/// The query parameters of a job's event stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FollowQuery {
    /// Number of events that the page already contains.
    #[serde(rename = "told")]
    seen: u64,
}

/// Handles requests for the event stream of a job: the events that its page does not contain.
pub(crate) async fn job(
    State(context): State<PageContext>,
    Path(job): Path<String>,
    Query(query): Query<FollowQuery>,
    headers: HeaderMap,
) -> Result<Response, PageRejection> {
    let job: JobId =
        job.parse().map_err(|_| PageRejection::not_found("Job not found", "all jobs are at `/`"))?;
    let changes = context.service().changes().await?;
    let follow = context.service().follow(job).await?;
    // A browser that reconnects sends the id of its last event.
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let (after, transcript) = (last.unwrap_or(query.seen), JobTranscript::default());
    let watcher = context.count_watcher();
    let followed = JobStream {
        context,
        job,
        follow,
        changes,
        transcript,
        after,
        is_waiting: false,
        has_changed: false,
        has_ended: false,
        _watcher: watcher,
    };
    Ok(stream(unfold(followed, |mut followed| async move { Some((Ok(followed.next().await?), followed)) })))
}

struct JobStream {
    context: PageContext,
    job: JobId,
    follow: Follow,
    changes: ChangeStream,
    transcript: JobTranscript,
    after: u64,
    /// Is true while the job waits.
    is_waiting: bool,
    /// Is true if the page must be reloaded.
    has_changed: bool,
    has_ended: bool,
    _watcher: WatcherGuard,
}

impl JobStream {
    async fn next(&mut self) -> Option<Event> {
        let shutdown = self.context.shutdown().clone();
        while !self.has_ended {
            if std::mem::take(&mut self.has_changed) {
                return Some(event("changed", &json!({})));
            }
            tokio::select! {
                () = shutdown.cancelled() => return None,
                followed = self.follow.next() => match followed.ok().flatten() {
                    Some(Followed::Ended(_)) | None => {
                        self.has_ended = true;
                        return Some(self.with_id(event("ended", &json!({}))));
                    }
                    Some(followed) => {
                        // The page shows the wait reason, which is not in the store.
                        let is_waiting = matches!(followed, Followed::Waiting(_));
                        self.has_changed = is_waiting || std::mem::replace(&mut self.is_waiting, is_waiting);
                        let entry = self.transcript.add(&followed);
                        let is_new = self.transcript.seen > self.after;
                        if let Some(entry) = entry.filter(|_| is_new) {
                            return Some(self.with_id(entry_event(&entry)));
                        }
                    }
                },
                change = self.changes.next() => match change {
                    Some(WatchEvent::Changed(change)) if change.job != self.job => {}
                    Some(_) => return Some(event("changed", &json!({}))),
                    None => return None,
                },
            }
        }
        None
    }

    fn with_id(&self, event: Event) -> Event {
        event.id(self.transcript.seen.to_string())
    }
}

/// Handles requests for the event stream of a group: that its page has changed, and the current activities of its jobs.
pub(crate) async fn group(
    State(context): State<PageContext>,
    Path(group): Path<String>,
) -> Result<Response, PageRejection> {
    let (_, group) = find_group(context.service(), &group).await?;
    let changes = context.service().changes().await?;
    let watcher = context.count_watcher();
    let mut ticks = interval(ACTIVITY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let updates = GroupStream {
        context,
        group,
        changes,
        ticks,
        shown: BTreeMap::new(),
        // The page was rendered before the watch started.
        has_changed: true,
        has_ended: false,
        _watcher: watcher,
    };
    Ok(stream(unfold(updates, |mut updates| async move { Some((Ok(updates.next().await?), updates)) })))
}

struct GroupStream {
    context: PageContext,
    group: JobGroup,
    changes: ChangeStream,
    ticks: Interval,
    /// The activities that were sent.
    shown: BTreeMap<JobId, String>,
    /// Is true if the page must be reloaded.
    has_changed: bool,
    has_ended: bool,
    _watcher: WatcherGuard,
}

impl GroupStream {
    async fn next(&mut self) -> Option<Event> {
        let shutdown = self.context.shutdown().clone();
        while !self.has_ended {
            if std::mem::take(&mut self.has_changed) {
                self.has_ended = self.is_finished().await;
                return Some(event(if self.has_ended { "ended" } else { "changed" }, &json!({})));
            }
            tokio::select! {
                () = shutdown.cancelled() => return None,
                _ = self.ticks.tick() => {
                    if let Some(lines) = self.changed_activities() {
                        return Some(event("activity", &json!({ "lines": lines })));
                    }
                }
                change = self.changes.next() => match change? {
                    WatchEvent::Changed(change) if self.group.jobs().all(|job| job != change.job) => {}
                    _ => self.has_changed = true,
                },
            }
        }
        None
    }

    /// Returns whether all jobs of the group have ended. One that retention has removed had ended.
    async fn is_finished(&self) -> bool {
        for job in self.group.jobs() {
            match self.context.service().job(job).await {
                Ok(job) if job.completed_at.is_some() => {}
                Err(CallError::NoSuchJob { .. }) => {}
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }

    /// Returns the activities that differ from those that were sent.
    fn changed_activities(&mut self) -> Option<BTreeMap<JobId, String>> {
        let service = self.context.service();
        let mut changed = BTreeMap::new();
        for job in self.group.jobs() {
            let Some(line) = current_activity(service, job) else { continue };
            if self.shown.get(&job) != Some(&line) {
                changed.insert(job, activity_line(&line).into_string());
                self.shown.insert(job, line);
            }
        }
        (!changed.is_empty()).then_some(changed)
    }
}

fn entry_event(entry: &TranscriptEntry) -> Event {
    let html = render_entry(entry).into_string();
    match entry {
        TranscriptEntry::Continued(_) => event("grown", &json!({ "html": html })),
        TranscriptEntry::Stderr(_) => event("stderr", &json!({ "html": html })),
        TranscriptEntry::ToolResult { id, .. } => {
            event("answered", &json!({ "tool": id, "html": html, "failure": failure(entry) }))
        }
        _ => event("piece", &json!({ "html": html })),
    }
}
