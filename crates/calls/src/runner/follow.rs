//! Follows a run to its end and judges it.

use std::io::ErrorKind;
use std::time::Duration;

use agents::{FinishedRun, ParseLimits, Parser, Summary, early_stop, judge};
use model::{Outcome, RunReport, SessionId, StateName, Timestamp};
use supervisor::{Events, Offsets, Run, RunEvent};
use tokio::time::{Instant, sleep_until};

use super::messages::cannot_follow;
use super::{CurrentRun, Disposition, JobRunner, failed};
use crate::activity::Activity;
use crate::run_record::RunRecord;
use crate::runs;

/// How much of the end of stderr is weighed in the outcome.
const STDERR_TAIL: u64 = 8 * 1024;
/// The number of retries, one second apart, after a transient error while the run is being stopped. A run that is not being stopped is
/// retried without a limit.
const RETRIES_WHEN_STOPPING: u32 = 60;
/// How long a run must last to appear in the job's directory. The directory of a shorter run shows only its end: every file that is
/// created and replaced costs, and no reader has seen the directory by then.
const SHOWN_AFTER: Duration = Duration::from_millis(50);
/// How long a run must last for its session to be stored. Until then, and after a crash, the session is in the run's files, and most
/// short runs have ended by then.
const SESSION_STORED_AFTER: Duration = Duration::from_secs(1);

impl JobRunner<'_> {
    /// Follows a run to its end and judges it.
    pub(super) async fn follow(&mut self, current: &CurrentRun) -> Result<(Outcome, RunReport), Disposition> {
        let CurrentRun { number, run, record, started_at } = current;
        self.context.nested.register_run(self.job, run);
        let agent = self.job.order.call.agent;
        let exposes_stream = self.job.order.expose_stream;
        let mut events = self.open_events(run).await?;
        let mut parser = Parser::new(agent, ParseLimits::default());
        let mut activity = initial_activity(record, *started_at);
        self.active.activity.send_replace(activity.clone());
        let mut is_stopping = false;
        let mut retries_left = RETRIES_WHEN_STOPPING;
        let followed_since = Instant::now();
        let mut last_output = followed_since;
        // A fire-and-forget caller looks into the directory at once.
        let mut is_shown = self.job.order.fire_and_forget;
        if is_shown {
            self.show_running(*number, run);
        }
        let mut stored_session = None;
        let report = loop {
            let early = early_stop(parser.summary(), self.context.settings.lingers).filter(|_| !is_stopping);
            let silence = early.map_or(Duration::ZERO, |(_, silence)| silence);
            let event = tokio::select! {
                biased;
                reason = self.active.stop_requested(), if !is_stopping => {
                    is_stopping = true;
                    tracing::debug!(job = %self.job.id, ?reason, "stopping the run");
                    self.stop_run(run);
                    continue;
                }
                () = self.context.shutdown.detaching() => return Err(Disposition::Detached),
                event = events.next() => event,
                () = sleep_until(last_output + silence), if early.is_some() => {
                    is_stopping = true;
                    tracing::info!(job = %self.job.id, why = ?early.map(|(why, _)| why), "stopping the agent");
                    self.stop_run(run);
                    continue;
                }
                () = sleep_until(followed_since + SHOWN_AFTER), if !is_shown => {
                    is_shown = true;
                    self.show_running(*number, run);
                    continue;
                }
                // Before the model speaks, the agent may not have saved the session, so it could not be resumed.
                () = sleep_until(followed_since + SESSION_STORED_AFTER),
                    if activity.model_spoke && stored_session != activity.session =>
                {
                    stored_session.clone_from(&activity.session);
                    self.store_session(stored_session.as_ref()).await;
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
                // A local error such as EMFILE is not the end of the run.
                Err(error) if error.is_transient() && retries_left > 0 => {
                    retries_left -= u32::from(is_stopping);
                    self.back_off(&error).await?;
                    continue;
                }
                Err(error) => {
                    runs::stop_unfollowed(run).await;
                    return Err(failed(cannot_follow(&error)));
                }
            };
            match event {
                RunEvent::Output(bytes) => {
                    last_output = Instant::now();
                    let known = activity.session.clone();
                    let log = &mut self.events;
                    parser.feed(&bytes, &mut |event| {
                        activity.update(&event);
                        if exposes_stream {
                            log.push(&event);
                        }
                    });
                    self.active.activity.send_replace(activity.clone());
                    if activity.session != known
                        && let Some(session) = &activity.session
                    {
                        self.lock_session(session);
                    }
                }
                RunEvent::Error(_) => {}
                RunEvent::Ended(report) => break report,
            }
        };
        let log = &mut self.events;
        let summary = parser.finish(&mut |event| {
            activity.update(&event);
            if exposes_stream {
                log.push(&event);
            }
        });
        self.model_spoke |= activity.model_spoke;
        Ok((self.judge_run(*number, &summary, &report, record), report))
    }

    /// Opens the output of a run, and retries while the machine lacks resources.
    async fn open_events(&self, run: &Run) -> Result<Events, Disposition> {
        loop {
            match run.events(Offsets::default()) {
                Ok(events) => return Ok(events),
                // A directory or a FIFO in place of a stream.
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    runs::stop_unfollowed(run).await;
                    return Err(failed(cannot_follow(&error)));
                }
                Err(error) => self.back_off(&error).await?,
            }
        }
    }

    /// Stops a run, best effort: an ended run keeps its outcome, and an unreachable one hits its deadline.
    fn stop_run(&self, run: &Run) {
        if let Err(error) = run.stop() {
            tracing::warn!(job = %self.job.id, %error, "cannot stop the run");
        }
    }

    fn judge_run(&self, number: u32, summary: &Summary, report: &RunReport, record: &RunRecord) -> Outcome {
        let stderr = self.files.error_tail(number, STDERR_TAIL).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr);
        judge(&FinishedRun {
            agent: self.job.order.call.agent,
            summary,
            report,
            stderr_tail: &stderr,
            session: &record.session,
            model: record.model.as_deref(),
            has_schema: self.job.order.call.output_schema.is_some(),
            before: record.before,
        })
    }

    /// Stores the session of a run, so that it can be resumed even if the run's files are lost.
    async fn store_session(&self, session: Option<&SessionId>) {
        let Some(session) = session else { return };
        if let Err(error) = self.context.store.note_session(&self.claim, session).await {
            tracing::warn!(job = %self.job.id, %error, "cannot store the session of the job");
        }
    }

    /// Shows the run in the job's directory.
    fn show_running(&self, number: u32, run: &Run) {
        self.link_run(number);
        let pid = run.supervisor().map(|identity| identity.pid);
        if let Err(error) = self.files.write_status(self.job, StateName::Running, pid) {
            tracing::warn!(job = %self.job.id, %error, "cannot write the status file");
        }
    }
}

/// Returns the activity of a run before the first output of its agent.
fn initial_activity(record: &RunRecord, started_at: Timestamp) -> Activity {
    let earlier = record.sequence.combined_outcome();
    Activity {
        session: record.session.known().cloned(),
        ran_before: Duration::from_millis(earlier.map_or(0, |outcome| outcome.duration_ms)),
        run_started_at: Some(started_at),
        ..Activity::default()
    }
}
