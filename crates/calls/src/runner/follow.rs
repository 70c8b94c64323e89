//! Follows a run to its end and judges it.

use std::io::ErrorKind;
use std::time::Duration;

use agent_run::{Expectation, RunEnd, RunFollower, RunStep};
use model::{AgentEvent, Outcome, RunReport, SessionId, StateName, Timestamp};
use supervisor::{Run, WaitError};
use tokio::time::{Instant, sleep_until};

use super::messages::cannot_follow;
use super::{CurrentRun, Disposition, JobRunner, failed};
use crate::activity::Activity;
use crate::run_record::RunRecord;
use crate::runs;

/// The number of retries, one second apart, after a transient error while the run is being stopped. A run that is not being stopped is
/// retried without a limit.
const RETRIES_WHEN_STOPPING: u32 = 60;
/// The age at which a run appears in the job's directory. The directory of a shorter run shows only its end: every file that is
/// created and replaced costs, and no reader has seen the directory by then.
const SHOWN_AFTER: Duration = Duration::from_millis(50);
/// The age at which the session of a run is stored. Until then, and after a crash, the session is in the run's files, and most
/// short runs have ended by then.
const SESSION_STORED_AFTER: Duration = Duration::from_secs(1);

impl JobRunner<'_> {
    /// Follows a run to its end and judges it.
    pub(super) async fn follow(&mut self, current: &CurrentRun) -> Result<(Outcome, RunReport), Disposition> {
        self.context.nested.register_run(self.job, &current.run);
        let mut follower = self.open_follower(&current.run).await?;
        let mut activity = initial_activity(&current.record, current.started_at);
        self.active.activity.send_replace(activity.clone());
        // A fire-and-forget caller looks into the directory at once.
        if self.job.order.fire_and_forget {
            self.show_running(current);
        }
        let end = self.read_to_end(current, &mut follower, &mut activity).await?;
        self.model_spoke |= activity.model_spoke;
        let outcome = end.judge(Expectation {
            agent: self.job.order.call.agent,
            session: &current.record.session,
            model: current.record.model.as_deref(),
            schema: self.job.order.call.output_schema.as_deref(),
            before: current.record.before,
            limits: &self.job.order.call.limits,
        });
        Ok((outcome, end.report))
    }

    async fn read_to_end(
        &mut self,
        current: &CurrentRun,
        follower: &mut RunFollower,
        activity: &mut Activity,
    ) -> Result<RunEnd, Disposition> {
        let followed_since = Instant::now();
        let mut is_shown = self.job.order.fire_and_forget;
        let mut stored_session: Option<SessionId> = None;
        let mut retries_left = RETRIES_WHEN_STOPPING;
        loop {
            let known_session = activity.session.clone();
            let is_session_new = activity.model_spoke && stored_session != activity.session;
            let (active, shutdown) = (self.active, &self.context.shutdown);
            let mut log = self.job.order.expose_stream.then_some(&mut self.events);
            let mut observe = |event: AgentEvent<'_>| {
                activity.update(&event);
                if let Some(log) = &mut log {
                    log.push(&event);
                }
            };
            let step = tokio::select! {
                biased;
                reason = active.stop_requested(), if !follower.is_stopping() => {
                    tracing::debug!(job = %self.job.id, ?reason, "stopping the run");
                    let stopped = follower.stop();
                    self.report_stop(stopped);
                    continue;
                }
                () = shutdown.detaching() => return Err(Disposition::Detached),
                step = follower.next(&mut observe) => step,
                () = sleep_until(followed_since + SHOWN_AFTER), if !is_shown => {
                    is_shown = true;
                    self.show_running(current);
                    continue;
                }
                // Before the model speaks, the agent may not have saved the session, so it could not be resumed.
                () = sleep_until(followed_since + SESSION_STORED_AFTER), if is_session_new => {
                    stored_session = known_session;
                    self.store_session(stored_session.as_ref()).await;
                    continue;
                }
            };
            match step {
                Ok(RunStep::Output) => {
                    self.active.activity.send_replace(activity.clone());
                    if let Some(session) = &activity.session
                        && activity.session != known_session
                    {
                        self.lock_session(session);
                    }
                }
                Ok(RunStep::Error(_)) => {}
                Ok(RunStep::StoppedEarly(why, stopped)) => {
                    tracing::info!(job = %self.job.id, ?why, "stopping the agent");
                    self.report_stop(stopped);
                }
                Ok(RunStep::Ended(end)) => return Ok(*end),
                Err(error) => self.retry_or_fail(&error, current, follower, &mut retries_left).await?,
            }
        }
    }

    /// Backs off after a transient local error such as EMFILE, which is not the end of the run, and while the state directory is
    /// elsewhere: the run's files went with it. Stops the run after any other error.
    async fn retry_or_fail(
        &self,
        error: &WaitError,
        current: &CurrentRun,
        follower: &RunFollower,
        retries_left: &mut u32,
    ) -> Result<(), Disposition> {
        let may_pass = error.is_transient() || self.context.records.were_moved();
        if may_pass && *retries_left > 0 {
            *retries_left -= u32::from(follower.is_stopping());
            return self.back_off(error).await;
        }
        runs::stop_unfollowed(&current.run).await;
        Err(failed(cannot_follow(error)))
    }

    /// Opens the output of a run, and retries while the machine lacks resources.
    async fn open_follower(&self, run: &Run) -> Result<RunFollower, Disposition> {
        let patience = Some(self.context.settings.patience);
        loop {
            match RunFollower::new(run, self.job.order.call.agent, patience) {
                Ok(follower) => return Ok(follower),
                Err(error) if is_permanent(&error) && !self.context.records.were_moved() => {
                    runs::stop_unfollowed(run).await;
                    return Err(failed(cannot_follow(&error)));
                }
                Err(error) => self.back_off(&error).await?,
            }
        }
    }

    /// Logs a stop that failed: an ended run keeps its outcome, and an unreachable one hits its deadline.
    pub(super) fn report_stop<T>(&self, stopped: std::io::Result<T>) {
        if let Err(error) = stopped {
            tracing::warn!(job = %self.job.id, %error, "cannot stop the run");
        }
    }

    /// Stores the session of a run, so that it can be resumed even if the run's files are lost.
    async fn store_session(&self, session: Option<&SessionId>) {
        let Some(session) = session else { return };
        if let Err(error) = self.context.store.note_session(&self.claim, session).await {
            tracing::warn!(job = %self.job.id, %error, "cannot store the session of the job");
        }
    }

    /// Shows the run in the job's directory.
    fn show_running(&self, current: &CurrentRun) {
        self.link_run(current.number);
        self.write_first_record();
        let pid = current.run.supervisor().map(|identity| identity.pid);
        if let Err(error) = self.files.write_status(self.job, StateName::Running, pid) {
            tracing::warn!(job = %self.job.id, %error, "cannot write the status file");
        }
    }
}

/// Returns whether an error of opening a run's files stays: a file is missing, is not a regular file, or has a content that no version of
/// this program wrote.
fn is_permanent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput | ErrorKind::InvalidData)
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
