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
use crate::row::Reader;
use crate::surreal::wire::{Pause, Vars, Wire};
use crate::watch::{Change, Watch, WatchEvent};

/// The poll interval.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A change gets its timestamp before it becomes visible, so each poll goes back this far.
const OVERLAP: &str = "5s";

/// The maximum number of events that a slow watcher has not received. Beyond that the task blocks, and the server's
/// stream with it.
const EVENTS_KEPT: usize = 4_096;

/// The maximum number of jobs whose revisions are remembered. A forgotten one can only cause a duplicate event.
const TOLD_KEPT: usize = 10_000;

#[derive(Debug, Clone, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Changed {
    placed: String,
    state: String,
    revision: i64,
    home: String,
}

/// Starts a watch. Returns after the first subscription, so that no later change is missed.
pub async fn watch(wire: Arc<Wire>) -> Result<Watch, StoreError> {
    let (sender, events) = mpsc::channel(EVENTS_KEPT);
    let (ready, subscribed) = tokio::sync::oneshot::channel();
    let mut asking = JoinSet::new();
    let place = wire.place();
    asking.spawn(async move { Asking { wire, sender, told: HashMap::new() }.go_on(ready).await });
    subscribed
        .await
        .map_err(|gone| StoreError::Unreachable { place, source: gone.into() })
        .and_then(|first| first.map(|()| Watch::asked(events, asking)))
}

type Ready = tokio::sync::oneshot::Sender<Result<(), StoreError>>;

struct Asking {
    wire: Arc<Wire>,
    sender: mpsc::Sender<WatchEvent>,
    told: HashMap<JobId, u64>,
}

impl Asking {
    /// Streams and polls until the watcher is dropped.
    async fn go_on(mut self, ready: Ready) {
        let mut since = match self.server_time().await {
            Ok(since) => since,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let mut ready = Some(ready);
        let mut pause = Pause::default();
        while !self.sender.is_closed() {
            let query = "LIVE SELECT placed, state, revision, home FROM agent_jobs";
            let subscribed = self.wire.ask(query, Vars::new()).await;
            let stream = subscribed.and_then(|mut answer| answer.stream::<Notification<Changed>>(0));
            match (stream, ready.take()) {
                (Ok(stream), first) => {
                    pause = Pause::default();
                    match first {
                        Some(first) => drop(first.send(Ok(()))),
                        // Changes during the reconnect were missed.
                        None => drop(self.sender.send(WatchEvent::Missed).await),
                    }
                    since = self.listen(stream, since).await;
                }
                (Err(_), first) => {
                    // The server may not permit live queries: poll only.
                    if let Some(first) = first {
                        drop(first.send(Ok(())));
                    }
                    since = self.look(since).await;
                }
            }
            pause.wait().await;
        }
    }

    async fn server_time(&self) -> Result<Datetime, StoreError> {
        let mut answer = self.wire.read("RETURN time::now();", Vars::new()).await?;
        answer.rows(0)?.pop().ok_or_else(|| StoreError::Engine {
            place: self.wire.place(),
            source: "the server does not tell the time".into(),
        })
    }

    /// Forwards events until the stream ends, and polls periodically.
    async fn listen(
        &mut self,
        mut stream: surrealdb::method::QueryStream<Notification<Changed>>,
        since: Datetime,
    ) -> Datetime {
        let mut since = since;
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.tick().await;
        loop {
            tokio::select! {
                told = stream.next() => match told {
                    Some(Ok(notification)) => self.tell(&notification.data).await,
                    Some(Err(_)) | None => return since,
                },
                _ = looks.tick() => since = self.look(since).await,
            }
            if self.sender.is_closed() {
                return since;
            }
        }
    }

    /// Reads the changes since a time and a little before. Returns the start time of the next poll.
    async fn look(&mut self, since: Datetime) -> Datetime {
        let query = format!(
            "RETURN time::now();
            SELECT placed, state, revision, home, changed_at FROM agent_jobs WHERE changed_at > $since - {OVERLAP} ORDER BY changed_at;"
        );
        let Ok(mut answer) = self.wire.read(&query, Vars::new().with("since", since)).await else {
            return since;
        };
        let now = answer.rows::<Datetime>(0).ok().and_then(|mut rows| rows.pop());
        let Ok(changes) = answer.rows::<Changed>(1) else { return since };
        for changed in changes {
            self.tell(&changed).await;
        }
        now.unwrap_or(since)
    }

    async fn tell(&mut self, changed: &Changed) {
        let Ok(job) = changed.placed.parse::<JobId>() else { return };
        let Ok(state) = Reader(job).parse("state", &changed.state) else { return };
        let revision = changed.revision.unsigned_abs();
        if self.told.get(&job).is_some_and(|told| *told >= revision) {
            return;
        }
        if self.told.len() >= TOLD_KEPT {
            self.told.clear();
        }
        self.told.insert(job, revision);
        // The loop notices a dropped watcher.
        let _ = self
            .sender
            .send(WatchEvent::Changed(Change { job, state, revision, home: changed.home.parse().ok() }))
            .await;
    }
}
