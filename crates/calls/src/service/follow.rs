//! Follows a job: the events of all its runs, from the first.
//!
//! Reads the files, so that any number of readers can follow at any time, even after the job has ended. A reader affects neither the
//! job nor other readers.

use std::collections::VecDeque;
use std::time::Duration;

use agent_run::{RunFollower, RunStep};
use model::{AgentEvent, AgentKind, JobId, StateName};
use supervisor::AttachError;

use super::JobService;
use crate::error::CallError;
use crate::wait_reason::WaitReason;

/// The poll interval for the next run of a job.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Something that happened in a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Followed {
    /// No run is alive, and the reason has changed.
    Waiting(WaitReason),
    /// The run of this number has started.
    Run(u32),
    /// An event of the agent.
    Event(Box<AgentEvent<'static>>),
    /// Bytes that the agent wrote to stderr.
    Error(Vec<u8>),
    /// The job has ended; nothing follows.
    Ended(StateName),
}

/// A reader of a job's events.
#[derive(Debug)]
pub struct Follow {
    service: JobService,
    job: JobId,
    agent: AgentKind,
    run: u32,
    reading: Option<RunFollower>,
    queue: VecDeque<Followed>,
    /// The reason that was returned last.
    waiting: Option<WaitReason>,
    /// Ends at the output so far.
    until_now: bool,
    /// The length of the current run's output when its reading began.
    so_far: u64,
    has_ended: bool,
}

impl JobService {
    /// Follows a job from its start.
    pub async fn follow(&self, job: JobId) -> Result<Follow, CallError> {
        let agent = self.job(job).await?.order.call.agent;
        Ok(Follow {
            service: self.clone(),
            job,
            agent,
            run: 0,
            reading: None,
            queue: VecDeque::new(),
            waiting: None,
            until_now: false,
            so_far: 0,
            has_ended: false,
        })
    }
}

impl Follow {
    /// Ends at the output so far, even if the job is still running.
    #[must_use]
    pub fn until_now(self) -> Self {
        Self { until_now: true, ..self }
    }

    /// Returns the next event; none after the end. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Followed>, CallError> {
        loop {
            if let Some(followed) = self.queue.pop_front() {
                return Ok(Some(followed));
            }
            if self.has_ended {
                return Ok(None);
            }
            if self.reading.is_some() {
                self.read().await?;
            } else {
                self.find_run().await?;
            }
        }
    }

    async fn read(&mut self) -> Result<(), CallError> {
        let Some(follower) = &mut self.reading else { return Ok(()) };
        if self.until_now && follower.output_read() >= self.so_far {
            self.reading = None;
            return Ok(());
        }
        let queue = &mut self.queue;
        let mut push = |event: AgentEvent<'_>| queue.push_back(Followed::Event(Box::new(event.into_owned())));
        match follower.next(&mut push).await {
            Ok(RunStep::Error(bytes)) => self.queue.push_back(Followed::Error(bytes)),
            Ok(RunStep::Ended(_)) => self.reading = None,
            Ok(RunStep::Output | RunStep::StoppedEarly(..)) => {}
            Err(error) => {
                let source = std::io::Error::other(error.to_string());
                return Err(CallError::Files { job: self.job, source });
            }
        }
        Ok(())
    }

    /// Waits for the next run, or for the end of the job.
    async fn find_run(&mut self) -> Result<(), CallError> {
        // Read before the runs are listed: a run that was started before the job ended is then seen.
        let job = self.service.job(self.job).await?;
        let state = job.progress.state.name();
        let files = self.service.files(self.job);
        for next in files.runs().into_iter().filter(|run| *run > self.run) {
            let run = match supervisor::attach(&files.run(next)).await {
                Ok(run) => run,
                // It could not be started, and another may follow.
                Err(AttachError::NoRun { .. }) => continue,
                Err(_) => break,
            };
            let follower = RunFollower::new(&run, self.agent, None)
                .map_err(|source| CallError::Files { job: self.job, source })?;
            self.run = next;
            self.so_far = std::fs::metadata(run.spool().output()).map_or(0, |file| file.len());
            self.reading = Some(follower);
            self.waiting = None;
            self.queue.push_back(Followed::Run(next));
            return Ok(());
        }
        if state.ended().is_some() {
            self.has_ended = true;
            self.queue.push_back(Followed::Ended(state));
            return Ok(());
        }
        if self.until_now {
            self.has_ended = true;
            return Ok(());
        }
        let waiting = self.service.wait_reason(&job);
        if waiting == self.waiting {
            tokio::time::sleep(POLL_INTERVAL).await;
        } else {
            self.queue.extend(waiting.clone().map(Followed::Waiting));
            self.waiting = waiting;
        }
        Ok(())
    }
}
