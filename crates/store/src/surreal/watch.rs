//! Watches a server for changes, by LIVE SELECT and by polling.
//!
//! A live stream ends when the server restarts, and in a cluster it only has the writes of its own node. It is
//! therefore restarted when it ends, and recently changed jobs are polled as well.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use model::JobId;
use surrealdb::Notification;
use surrealdb::types::{Datetime, SurrealValue};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::error::StoreError;
use crate::row::FieldReader;
use crate::surreal::client::{Backoff, SurrealClient, Vars};
use crate::watch::{ChangeStream, JobChange, WatchEvent};

/// The poll interval.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A change gets its timestamp before it becomes visible, so each poll goes back this far.
const OVERLAP: &str = "5s";

/// The maximum number of events that a slow watcher has not received. Beyond that the task blocks, and the server's
/// stream with it.
const EVENT_CAPACITY: usize = 4_096;

/// The maximum number of jobs whose revisions are remembered. A forgotten one can only cause a duplicate event.
const MAX_REVISIONS: usize = 10_000;

#[derive(Debug, Clone, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Changed {
    placed: String,
    state: String,
    revision: i64,
    home: String,
}

/// Starts a watch. Returns after the first subscription, so that no later change is missed.
pub async fn watch(client: Arc<SurrealClient>) -> Result<ChangeStream, StoreError> {
    let (sender, events) = mpsc::channel(EVENT_CAPACITY);
    let (ready, subscribed) = tokio::sync::oneshot::channel();
    let mut task = JoinSet::new();
    let location = client.location();
    task.spawn(async move { Watcher { client, sender, revisions: HashMap::new() }.run(ready).await });
    subscribed
        .await
        .map_err(|error| StoreError::Unreachable { location, source: error.into() })
        .and_then(|first| first.map(|()| ChangeStream::remote(events, task)))
}

type Ready = tokio::sync::oneshot::Sender<Result<(), StoreError>>;

struct Watcher {
    client: Arc<SurrealClient>,
    sender: mpsc::Sender<WatchEvent>,
    revisions: HashMap<JobId, u64>,
}

impl Watcher {
    /// Streams and polls until the watcher is dropped.
    async fn run(mut self, ready: Ready) {
        let mut since = match self.server_time().await {
            Ok(since) => since,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let mut ready = Some(ready);
        let mut backoff = Backoff::default();
        while !self.sender.is_closed() {
            let query = "LIVE SELECT placed, state, revision, home FROM agent_jobs";
            let subscribed = self.client.query(query, Vars::new()).await;
            let stream = subscribed.and_then(|mut reply| reply.stream::<Notification<Changed>>(0));
            match (stream, ready.take()) {
                (Ok(stream), first) => {
                    backoff = Backoff::default();
                    match first {
                        Some(first) => drop(first.send(Ok(()))),
                        // Changes during the reconnect were missed.
                        None => drop(self.sender.send(WatchEvent::Missed).await),
                    }
                    since = self.forward(stream, since).await;
                }
                (Err(_), first) => {
                    // The server may not permit live queries: poll only.
                    if let Some(first) = first {
                        drop(first.send(Ok(())));
                    }
                    since = self.poll(since).await;
                }
            }
            backoff.wait().await;
        }
    }

    async fn server_time(&self) -> Result<Datetime, StoreError> {
        let mut reply = self.client.run("RETURN time::now();", Vars::new()).await?;
        reply.rows(0)?.pop().ok_or_else(|| StoreError::Engine {
            location: self.client.location(),
            source: "the server did not return its time".into(),
        })
    }

    /// Forwards events until the stream ends, and polls periodically.
    async fn forward(
        &mut self,
        mut stream: surrealdb::method::QueryStream<Notification<Changed>>,
        since: Datetime,
    ) -> Datetime {
        let mut since = since;
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            tokio::select! {
                event = stream.next() => match event {
                    Some(Ok(notification)) => self.send(&notification.data).await,
                    Some(Err(_)) | None => return since,
                },
                _ = ticks.tick() => since = self.poll(since).await,
            }
            if self.sender.is_closed() {
                return since;
            }
        }
    }

    /// Reads the changes since a time and a little before. Returns the start time of the next poll.
    async fn poll(&mut self, since: Datetime) -> Datetime {
        let query = format!(
            "RETURN time::now();
            SELECT placed, state, revision, home, changed_at FROM agent_jobs WHERE changed_at > $since - {OVERLAP} ORDER BY changed_at;"
        );
        let Ok(mut reply) = self.client.run(&query, Vars::new().with("since", since)).await else {
            return since;
        };
        let now = reply.rows::<Datetime>(0).ok().and_then(|mut rows| rows.pop());
        let Ok(changes) = reply.rows::<Changed>(1) else { return since };
        for changed in changes {
            self.send(&changed).await;
        }
        now.unwrap_or(since)
    }

    async fn send(&mut self, changed: &Changed) {
        let Ok(job) = changed.placed.parse::<JobId>() else { return };
        let Ok(state) = FieldReader(job).parse("state", &changed.state) else { return };
        let revision = changed.revision.unsigned_abs();
        if self.revisions.get(&job).is_some_and(|sent| *sent >= revision) {
            return;
        }
        if self.revisions.len() >= MAX_REVISIONS {
            self.revisions.clear();
        }
        self.revisions.insert(job, revision);
        // The loop notices a dropped watcher.
        let _ = self
            .sender
            .send(WatchEvent::Changed(JobChange { job, state, revision, home: changed.home.parse().ok() }))
            .await;
    }
}
