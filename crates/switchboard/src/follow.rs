//! Follows a job of the daemon until it ends, the wait is over, or the user presses Ctrl-C.
//!
//! The job belongs to the daemon and continues if this program exits. After a daemon restart, the follower reconnects and skips the
//! events that it has already shown.

use std::process::ExitCode;
use std::time::Duration;

use calls::Answer;
use protocol::{
    ClientRole, DaemonConnector, DaemonRequest, MAX_DAEMONS, ReplyLine, RequestError, is_waiting_event,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::client::JobReply;
use crate::exit_status::ExitStatus;
use crate::failure::{CommandFailure, RuntimeError};
use crate::output::{self, ResultCopy, UnwrittenError};
use crate::view::{View, redraw_timer};

/// Returns an error if the output of a job could not be written to stdout.
pub fn check_job_output(job: &str) -> Result<(), UnwrittenError> {
    output::check_written(ResultCopy::Job(job.to_owned()))
}

/// The effect of the first Ctrl-C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtrlC {
    /// It cancels the job, and the second detaches: the caller submitted the job.
    Cancels,
    /// It detaches: the caller only watches.
    Detaches,
}

/// The end of following, if the job does not end before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowLimit {
    /// None.
    JobEnd,
    /// The end of a wait.
    Wait(Duration),
    /// The output so far.
    Now,
}

/// Follows a job until it ends, or to the limit.
pub fn follow(
    connector: DaemonConnector,
    job: &str,
    view: View,
    limit: FollowLimit,
    ctrl_c: CtrlC,
) -> Result<ExitCode, CommandFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let job = job.to_owned();
    let deadline = if let FollowLimit::Wait(wait) = limit { Some(Instant::now() + wait) } else { None };
    let until_now = limit == FollowLimit::Now;
    let follower =
        Follower { connector, job, view, until_now, deadline, ctrl_c, is_cancelled: false, events_shown: 0 };
    runtime.map_err(RuntimeError::from)?.block_on(follower.follow())
}

struct Follower {
    connector: DaemonConnector,
    job: String,
    view: View,
    until_now: bool,
    deadline: Option<Instant>,
    ctrl_c: CtrlC,
    is_cancelled: bool,
    /// The number of replies received so far. The next daemon repeats them from the start, in the same order.
    events_shown: u64,
}

/// The reason why reading from a daemon stopped.
enum StreamEnd {
    Answer(Box<Answer>),
    /// The daemon is gone; the job is not.
    Disconnected,
    /// The user detached, or the wait is over.
    Detached,
}

impl Follower {
    async fn follow(mut self) -> Result<ExitCode, CommandFailure> {
        let mut attempts = 0;
        loop {
            let shown_before = self.events_shown;
            let end = self.read_events().await.inspect_err(|_| self.view.lose_track(&self.job))?;
            match end {
                StreamEnd::Answer(answer) => {
                    self.view.finish(&answer)?;
                    check_job_output(&self.job)?;
                    return Ok(ExitStatus::from_answer(&answer).into());
                }
                StreamEnd::Detached => {
                    self.view.detach(&self.job, self.is_cancelled);
                    check_job_output(&self.job)?;
                    return Ok(ExitStatus::StillRunning.into());
                }
                StreamEnd::Disconnected if self.events_shown > shown_before => attempts = 0,
                StreamEnd::Disconnected => attempts += 1,
            }
            if attempts == MAX_DAEMONS {
                self.view.close(false);
                let job = Some(self.job.clone());
                return Err(RequestError::DaemonUnavailable { attempts, job }.into());
            }
        }
    }

    /// Reads the events of the job from one daemon.
    async fn read_events(&mut self) -> Result<StreamEnd, CommandFailure> {
        let connection = self.connector.connect_or_start(ClientRole::Control)?;
        // The daemon sends nothing before a request, so the reader has no buffered bytes.
        let stream = connection.writer;
        stream.set_nonblocking(true).map_err(RuntimeError::from)?;
        let (reader, mut writer) = UnixStream::from_std(stream).map_err(RuntimeError::from)?.into_split();
        let mut request =
            serde_json::to_vec(&DaemonRequest::Follow { job: self.job.clone(), until_now: self.until_now })?;
        request.push(b'\n');
        if writer.write_all(&request).await.is_err() {
            return Ok(StreamEnd::Disconnected);
        }
        let mut lines = BufReader::new(reader).lines();
        // Registered once: a signal between two polls is not lost.
        let mut interrupted = signal(SignalKind::interrupt()).map_err(RuntimeError::from)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(RuntimeError::from)?;
        let mut timer = redraw_timer();
        let far_future = Instant::now() + Duration::from_hours(24 * 365);
        let mut to_skip = self.events_shown;
        loop {
            let line = tokio::select! {
                biased; // a busy agent must not starve Ctrl-C
                _ = interrupted.recv() => { if self.interrupt() { return Ok(StreamEnd::Detached) } continue }
                _ = terminated.recv() => { if self.interrupt() { return Ok(StreamEnd::Detached) } continue }
                () = sleep_until(self.deadline.unwrap_or(far_future)) => return Ok(StreamEnd::Detached),
                line = lines.next_line() => line,
                _ = timer.tick() => { self.view.redraw(); continue }
            };
            let Ok(Some(line)) = line else { return Ok(StreamEnd::Disconnected) };
            // A daemon that is killed may leave a partial line.
            let Ok(ReplyLine { reply, .. }) = serde_json::from_str::<ReplyLine<Answer>>(&line) else {
                return Ok(StreamEnd::Disconnected);
            };
            match reply {
                JobReply::Answer(answer) => return Ok(StreamEnd::Answer(answer)),
                JobReply::Rejected { category, error } => {
                    return Err(RequestError::Rejected { category, error }.into());
                }
                // Not counted: the chunks of stderr depend on timing.
                JobReply::Stderr { .. } => {}
                // Not counted: the next daemon does not repeat a wait that is over.
                JobReply::Event { event } if is_waiting_event(&event) => self.view.show_event(&event),
                _ if to_skip > 0 => to_skip -= 1,
                JobReply::Run { checkout: Some(checkout), .. } => {
                    self.events_shown += 1;
                    self.view.set_directory(checkout.into());
                }
                JobReply::Event { event } => {
                    self.events_shown += 1;
                    self.view.show_event(&event);
                    // A watcher has nothing left to wait for once stdout fails.
                    if self.ctrl_c == CtrlC::Detaches && !self.is_cancelled {
                        check_job_output(&self.job)?;
                    }
                }
                _ => self.events_shown += 1,
            }
        }
    }

    /// Handles Ctrl-C. Returns whether to detach.
    fn interrupt(&mut self) -> bool {
        if self.ctrl_c == CtrlC::Detaches {
            return true;
        }
        self.ctrl_c = CtrlC::Detaches;
        self.is_cancelled = true;
        self.view.aside("cancelling; press Ctrl-C again to leave it to the daemon");
        let cancel = DaemonRequest::Cancel { job: self.job.clone() };
        if let Err(error) = protocol::request::<Answer>(&mut self.connector, &cancel) {
            // Most likely the job has just ended, which the next event reports.
            self.view.aside(&format!("not cancelled: {error}"));
        }
        false
    }
}
