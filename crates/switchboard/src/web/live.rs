//! What happens, as it happens: server-sent events for the list and for the page of a job.
//!
//! Everything that is sent is a piece of a page, made by the same code as the page. A watcher may go at any moment, and all are let
//! go when the daemon ends.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use calls::{ChangeStream, Follow, Followed, JobFilter, PageRequest, WatchEvent};
use futures_util::stream::{Stream, unfold};
use model::JobId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::list::{self, Wanted};
use super::refusal::Refusal;
use super::transcript::{Piece, Transcript, failure, render};
use super::{Watching, Web};

/// How often a watcher hears that the daemon is there, when nothing happens.
const ALIVE: Duration = Duration::from_secs(15);

fn stream(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE)).into_response()
}

/// JSON has no line that ends, so whatever is in it stays one event.
fn event(name: &str, data: &Value) -> Event {
    Event::default().event(name).data(data.to_string())
}

/// The rows of the list that change.
pub async fn jobs(State(web): State<Web>, Query(wanted): Query<Wanted>) -> Result<Response, Refusal> {
    let filter = wanted.filter()?;
    let changes = web.desk().changes().await?;
    let watching = web.count_watcher();
    let watched = Watched { web, filter, changes, greeted: false, _watching: watching };
    Ok(stream(unfold(watched, |mut watched| async move { Some((Ok(watched.next().await?), watched)) })))
}

struct Watched {
    web: Web,
    filter: JobFilter,
    changes: ChangeStream,
    greeted: bool,
    _watching: Watching,
}

impl Watched {
    async fn next(&mut self) -> Option<Event> {
        // A page that was made before the watch began may lack something; its script looks once more.
        if !std::mem::replace(&mut self.greeted, true) {
            return Some(event("hello", &json!({})));
        }
        let ended = self.web.0.ended.clone();
        tokio::select! {
            () = ended.cancelled() => None,
            change = self.changes.next() => Some(match change? {
                WatchEvent::Changed(change) => self.row(change.job).await,
                WatchEvent::Missed => event("missed", &json!({})),
            }),
        }
    }

    /// The row of a job as it is now, or that it is not in this list.
    async fn row(&self, job: JobId) -> Event {
        // The newest of those that fit and are not newer than this one: it itself, or it does not fit.
        let page = PageRequest { limit: 1, before: Some(just_after(job)) };
        let desk = self.web.desk();
        let found = desk.list(&self.filter, page).await.ok().and_then(|mut page| page.jobs.pop());
        let html = found.filter(|found| found.id == job).map(|found| list::row(desk, &found).into_string());
        event("job", &json!({ "id": job, "html": html }))
    }
}

fn just_after(job: JobId) -> JobId {
    JobId::from_uuid(uuid::Uuid::from_u128(job.as_uuid().as_u128().saturating_add(1)))
}

/// From where on a job is watched.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct After {
    told: u64,
}

/// What a job tells, from where its page ends.
pub async fn job(
    State(web): State<Web>,
    Path(job): Path<String>,
    Query(after): Query<After>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let job: JobId = job.parse().map_err(|_| Refusal::not_found("There is no such job", "all are at `/`"))?;
    let changes = web.desk().changes().await?;
    let follow = web.desk().follow(job).await?;
    // A browser that lost the connection says itself how far it came.
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let (after, transcript) = (last.unwrap_or(after.told), Transcript::default());
    let watching = web.count_watcher();
    let followed = FollowedJob {
        web,
        job,
        follow,
        changes,
        transcript,
        after,
        waits: false,
        changed: false,
        over: false,
        _watching: watching,
    };
    Ok(stream(unfold(followed, |mut followed| async move { Some((Ok(followed.next().await?), followed)) })))
}

struct FollowedJob {
    web: Web,
    job: JobId,
    follow: Follow,
    changes: ChangeStream,
    transcript: Transcript,
    after: u64,
    /// Whether the job waits.
    waits: bool,
    /// Whether the page is to be looked at again.
    changed: bool,
    over: bool,
    _watching: Watching,
}

impl FollowedJob {
    async fn next(&mut self) -> Option<Event> {
        let ended = self.web.0.ended.clone();
        while !self.over {
            if std::mem::take(&mut self.changed) {
                return Some(event("changed", &json!({})));
            }
            tokio::select! {
                () = ended.cancelled() => return None,
                told = self.follow.next() => match told.ok().flatten() {
                    Some(Followed::Ended(_)) | None => {
                        self.over = true;
                        return Some(self.named(event("ended", &json!({}))));
                    }
                    Some(told) => {
                        // What the job waits for stands on its page, and the store knows nothing of it.
                        let waits = matches!(told, Followed::Waiting(_));
                        self.changed = waits || std::mem::replace(&mut self.waits, waits);
                        let piece = self.transcript.take(&told);
                        let is_new = self.transcript.told > self.after;
                        if let Some(piece) = piece.filter(|_| is_new) {
                            return Some(self.named(told_as(&piece)));
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

    fn named(&self, event: Event) -> Event {
        event.id(self.transcript.told.to_string())
    }
}

fn told_as(piece: &Piece) -> Event {
    let html = render(piece).into_string();
    match piece {
        Piece::Grown(_) => event("grown", &json!({ "html": html })),
        Piece::Stderr(_) => event("stderr", &json!({ "html": html })),
        Piece::Answered { id, .. } => {
            event("answered", &json!({ "tool": id, "html": html, "failure": failure(piece) }))
        }
        _ => event("piece", &json!({ "html": html })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Timestamp;

    #[test]
    fn nothing_is_between_a_job_and_just_after_it() {
        let job = JobId::new(Timestamp::from_millis(7), [255; 10]);
        assert!(just_after(job) > job);
        assert_eq!(just_after(job).as_uuid().as_u128() - job.as_uuid().as_u128(), 1);
    }
}
