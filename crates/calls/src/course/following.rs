//! Reading along with a run, to its end.

use std::io::ErrorKind;
use std::time::Duration;

use agents::{FinishedRun, ParseLimits, Parser, Summary, early_stop, judge};
use model::{Outcome, RunReport, SessionId, Timestamp};
use supervisor::{Events, Offsets, Run, RunEvent};
use tokio::time::{Instant, sleep_until};

use super::words::unreadable;
use super::{Course, RunRecord, Unfinished, end_unreadable};
use crate::live::Activity;

/// How much of the end of stderr is weighed in the outcome.
const STDERR_TAIL: u64 = 8 * 1024;
/// How often a run that is to end is looked for again, one second apart, when it cannot be followed. One that nobody wants to end is
/// looked for until it can be.
const TRIES_WHEN_STOPPED: u32 = 60;
/// After how long a run shows in the folder of its job. The folder of one that ends sooner tells of its end alone: every file
/// that is made and replaced costs, and nobody has seen the folder by then.
const SHOWN_AFTER: Duration = Duration::from_millis(50);
/// After how long the session of a run is kept in the store. Until then, and after a crash, its files tell it; most short runs
/// have ended by then, and their end tells it, too.
const SESSION_KEPT_AFTER: Duration = Duration::from_secs(1);

impl Course<'_> {
    /// Reads along until the run is over, and judges it.
    pub(super) async fn follow(
        &mut self,
        number: u32,
        run: &Run,
        note: &RunRecord,
        started_at: Timestamp,
    ) -> Result<(Outcome, RunReport), Unfinished> {
        self.desk.note_run(self.job, run);
        let agent = self.job.order.call.agent;
        let exposes_stream = self.job.order.expose_stream;
        let mut events = self.open_events(run).await?;
        let mut parser = Parser::new(agent, ParseLimits::default());
        let mut activity = first_activity(note, started_at);
        // Whatever the job waited for before, it runs now.
        self.live.activity.send_replace(activity.clone());
        let mut told_to_stop = false;
        let mut tries_left = TRIES_WHEN_STOPPED;
        let begun = Instant::now();
        let mut heard = begun;
        // Who goes away instead of waiting looks into the folder at once.
        let mut shown = self.job.order.fire_and_forget;
        if shown {
            self.say_running(number, run);
        }
        let mut kept = None;
        let report = loop {
            let over = early_stop(parser.summary(), self.desk.settings.lingers).filter(|_| !told_to_stop);
            let silence = over.map_or(Duration::ZERO, |(_, silence)| silence);
            let event = tokio::select! {
                biased;
                () = self.live.stop.cancelled(), if !told_to_stop => {
                    told_to_stop = true;
                    self.stop(run);
                    continue;
                }
                () = self.desk.leaving.cancelled() => return Err(Unfinished::Left),
                event = events.next() => event,
                () = sleep_until(heard + silence), if over.is_some() => {
                    told_to_stop = true;
                    tracing::info!(job = %self.job.id, why = ?over.map(|(why, _)| why), "stopping the agent");
                    self.stop(run);
                    continue;
                }
                () = sleep_until(begun + SHOWN_AFTER), if !shown => {
                    shown = true;
                    self.say_running(number, run);
                    continue;
                }
                // Before the model speaks, the agent may not have kept the session, and nobody could resume it.
                () = sleep_until(begun + SESSION_KEPT_AFTER), if activity.model_spoke && kept != activity.session => {
                    kept.clone_from(&activity.session);
                    self.keep_session(kept.as_ref()).await;
                    continue;
                }
            };
            let event = match event {
                Ok(None) => run.wait().await.map(RunEvent::Ended),
                Ok(Some(event)) => Ok(event),
                Err(error) => Err(error),
            };
            let event = match event {
                Ok(event) => event,
                // Trouble of ours, such as too many open files, is no end of the run.
                Err(error) if error.is_transient() && tries_left > 0 => {
                    tries_left -= u32::from(told_to_stop);
                    self.breathe(&error).await?;
                    continue;
                }
                Err(error) => {
                    end_unreadable(run).await;
                    return Err(unreadable(&error));
                }
            };
            match event {
                RunEvent::Output(bytes) => {
                    heard = Instant::now();
                    let known = activity.session.clone();
                    let reported = &mut self.reported;
                    parser.feed(&bytes, &mut |event| {
                        activity.take(&event);
                        if exposes_stream {
                            reported.keep(&event);
                        }
                    });
                    self.live.activity.send_replace(activity.clone());
                    if activity.session != known
                        && let Some(session) = activity.session.clone()
                    {
                        self.hold_if_free(&session);
                    }
                }
                RunEvent::Error(_) => {}
                RunEvent::Ended(report) => break report,
            }
        };
        let reported = &mut self.reported;
        let summary = parser.finish(&mut |event| {
            activity.take(&event);
            if exposes_stream {
                reported.keep(&event);
            }
        });
        self.model_spoke |= activity.model_spoke;
        Ok((self.judged(number, &summary, &report, note), report))
    }

    /// Opens the streams of a run, and tries again while the machine lacks something.
    async fn open_events(&self, run: &Run) -> Result<Events, Unfinished> {
        loop {
            match run.events(Offsets::default()) {
                Ok(events) => return Ok(events),
                // A directory or a FIFO in place of a stream does not become one.
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    end_unreadable(run).await;
                    return Err(unreadable(&error));
                }
                Err(error) => self.breathe(&error).await?,
            }
        }
    }

    /// One that has ended keeps its outcome; one that cannot be told is told by its deadline.
    fn stop(&self, run: &Run) {
        if let Err(error) = run.stop() {
            tracing::warn!(job = %self.job.id, %error, "cannot stop the run");
        }
    }

    fn judged(&self, number: u32, summary: &Summary, report: &RunReport, note: &RunRecord) -> Outcome {
        let stderr = self.files.error_tail(number, STDERR_TAIL).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr);
        judge(&FinishedRun {
            agent: self.job.order.call.agent,
            summary,
            report,
            stderr_tail: &stderr,
            session: &note.session,
            model: note.model.as_deref(),
            has_schema: self.job.order.call.output_schema.is_some(),
            totals_before: note.before,
        })
    }

    /// The session of a run is kept, so that others can go on with it even when its files are lost.
    async fn keep_session(&self, session: Option<&SessionId>) {
        let Some(session) = session else { return };
        if let Err(error) = self.desk.store.note_session(&self.claim, session).await {
            tracing::warn!(job = %self.job.id, %error, "cannot keep the session of the job");
        }
    }
}

/// The facts about a run before the first output of its agent.
fn first_activity(note: &RunRecord, started_at: Timestamp) -> Activity {
    let so_far = note.relay.combined_outcome();
    Activity {
        session: note.session.known().cloned(),
        ran_before: Duration::from_millis(so_far.map_or(0, |outcome| outcome.duration_ms)),
        run_started_at: Some(started_at),
        ..Activity::default()
    }
}
