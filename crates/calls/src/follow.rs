//! Reading along with a job: the events of all its runs, from the first, as they come.
//!
//! Reads the files, so any number may follow, at any time, also a job that ended long ago; what one of them does or fails to
//! do changes nothing for the others or for the job.

use std::collections::VecDeque;
use std::time::Duration;

use agents::{ParseLimits, Parser};
use model::{AgentEvent, AgentKind, JobId, StateName};
use supervisor::{AttachError, Events, Offsets, RunEvent};

use crate::desk::JobService;
use crate::error::CallError;
use crate::wait_reason::WaitReason;

/// How often it is looked for the next run of a job.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Something that happened in a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Followed {
    /// Nothing of it runs; the reason has changed.
    Waiting(WaitReason),
    /// A run has begun, of that number.
    Run(u32),
    /// The agent said something.
    Event(Box<AgentEvent<'static>>),
    /// It wrote to stderr.
    Error(Vec<u8>),
    /// The job is over; nothing follows.
    Ended(StateName),
}

/// The events of a job. Dropping it ends nothing but itself.
#[derive(Debug)]
pub struct Follow {
    desk: JobService,
    job: JobId,
    agent: AgentKind,
    run: u32,
    reading: Option<(Events, Parser)>,
    told: VecDeque<Followed>,
    /// The reason that was told last.
    waiting: Option<WaitReason>,
    ended: bool,
}

impl JobService {
    /// Follows a job from its beginning.
    pub async fn follow(&self, job: JobId) -> Result<Follow, CallError> {
        let agent = self.job(job).await?.order.call.agent;
        let (told, reading) = (VecDeque::new(), None);
        Ok(Follow { desk: self.clone(), job, agent, run: 0, reading, told, waiting: None, ended: false })
    }
}

impl Follow {
    /// What happened next; none after the end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Followed>, CallError> {
        loop {
            if let Some(told) = self.told.pop_front() {
                return Ok(Some(told));
            }
            if self.ended {
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
        let Some((events, _)) = &mut self.reading else { return Ok(()) };
        let cannot = |error: &dyn std::error::Error| std::io::Error::other(error.to_string());
        let event = events
            .next()
            .await
            .map_err(|error| CallError::Files { job: self.job, source: cannot(&error) })?;
        let told = &mut self.told;
        let mut tell = |event: AgentEvent<'_>| told.push_back(Followed::Event(Box::new(event.into_owned())));
        match event {
            Some(RunEvent::Output(bytes)) => {
                if let Some((_, parser)) = &mut self.reading {
                    parser.feed(&bytes, &mut tell);
                }
            }
            Some(RunEvent::Error(bytes)) => self.told.push_back(Followed::Error(bytes)),
            Some(RunEvent::Ended(_)) | None => {
                if let Some((_, parser)) = self.reading.take() {
                    parser.finish(&mut tell);
                }
            }
        }
        Ok(())
    }

    /// Waits for the next run, or for the end of the job.
    async fn find_run(&mut self) -> Result<(), CallError> {
        // Before the runs are looked for: one that was started before the job ended is then seen.
        let job = self.desk.job(self.job).await?;
        let state = job.progress.state.name();
        let files = self.desk.files(self.job);
        for next in files.runs().into_iter().filter(|run| *run > self.run) {
            let run = match supervisor::attach(&files.run(next)).await {
                Ok(run) => run,
                // It could not be begun, and may be followed by another.
                Err(AttachError::NoRun { .. }) => continue,
                Err(_) => break,
            };
            let events = run
                .events(Offsets::default())
                .map_err(|source| CallError::Files { job: self.job, source })?;
            self.run = next;
            self.reading = Some((events, Parser::new(self.agent, ParseLimits::default())));
            self.waiting = None;
            self.told.push_back(Followed::Run(next));
            return Ok(());
        }
        if state.ended().is_some() {
            self.ended = true;
            self.told.push_back(Followed::Ended(state));
            return Ok(());
        }
        let waiting = self.desk.wait_reason(&job);
        if waiting == self.waiting {
            tokio::time::sleep(LOOK_AGAIN).await;
        } else {
            self.told.extend(waiting.clone().map(Followed::Waiting));
            self.waiting = waiting;
        }
        Ok(())
    }
}
