//! Starts a run, follows it to its end, and judges it.

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use agents::{Driver, EarlyStop, FinishedRun, Launch, Patience, StderrTail, Summary, early_stop, judge};
use model::{
    AgentEvent, AgentKind, ExpectedSession, Limits, Outcome, RunLifetime, RunPlan, RunReport,
    StatusDurability, Totals,
};
use supervisor::{
    Events, Offsets, PreparedRun, Run, RunEvent, RunInput, StartError, StopReply, Supervisor, WaitError,
};
use tokio::time::{Instant, sleep_until};

use crate::replay::{read_driver, replay_input};

/// Starts a run that ends with this process, even if that is killed: nobody else would read its outcome.
pub async fn start(supervisor: &Supervisor, directory: &Path, plan: RunPlan) -> Result<Run, StartError> {
    let plan = RunPlan { lifetime: RunLifetime::BoundToStarter, ..plan };
    supervisor.start(directory, &plan).await
}

/// Prepares a run that outlives this process. Nothing is started yet. The caller stores the outcome durably, so the status file need
/// not survive a power cut.
pub fn prepare<'a>(
    supervisor: &'a Supervisor,
    directory: &Path,
    plan: RunPlan,
) -> Result<PreparedRun<'a>, StartError> {
    let plan = RunPlan { status_durability: StatusDurability::ProcessExit, ..plan };
    supervisor.prepare(directory, &plan)
}

/// Reads a run from its start, and converses with its agent if it owns the run.
#[derive(Debug)]
pub struct RunFollower {
    run: Run,
    events: Events,
    /// None after the end.
    driver: Option<Driver>,
    stderr: StderrTail,
    /// None if this follower only reads.
    owner: Option<RunOwner>,
    last_output: Instant,
    is_stopping: bool,
    early_stop: Option<EarlyStop>,
}

/// The only follower of a run that affects it.
#[derive(Debug)]
struct RunOwner {
    patience: Patience,
    /// None if the input was complete at the start.
    input: Option<RunInput>,
}

/// One step of a run.
#[derive(Debug)]
pub enum RunStep {
    /// The agent printed something; the observer got the events.
    Output,
    /// The agent wrote this to stderr.
    Error(Vec<u8>),
    /// The run was asked to stop although its process is alive: the agent has answered, or its login is refused.
    StoppedEarly(EarlyStop, io::Result<StopReply>),
    /// The run has ended. There is no further step.
    Ended(Box<RunEnd>),
}

/// Everything that a run left behind.
#[derive(Debug)]
pub struct RunEnd {
    /// The parsed output.
    pub summary: Summary,
    /// The report of the supervisor.
    pub report: RunReport,
    /// The end of stderr.
    pub stderr: String,
    /// Why this follower stopped the run before the end of its process.
    pub early_stop: Option<EarlyStop>,
}

/// The facts about a launch that its outcome is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Expectation<'a> {
    /// The agent.
    pub agent: AgentKind,
    /// The session that the run was to use.
    pub session: &'a ExpectedSession,
    /// The requested model.
    pub model: Option<&'a str>,
    /// The output schema of the call.
    pub schema: Option<&'a str>,
    /// The vendor's totals of the session before this run.
    pub before: Option<Totals>,
    /// The limits of the call.
    pub limits: &'a Limits,
}

impl<'a> Expectation<'a> {
    /// Returns the expectation of a launch, for a session without earlier runs.
    pub fn from_launch(agent: AgentKind, launch: &'a Launch) -> Self {
        Self {
            agent,
            session: &launch.session,
            model: launch.model.as_deref(),
            schema: launch.schema.as_deref(),
            before: None,
            limits: &launch.plan.limits,
        }
    }
}

impl RunFollower {
    /// Opens the output of a run. With `patience`, the follower owns the run: it answers the agent, and stops the run once the agent has
    /// nothing left to do ([`early_stop`]). A run has one owner at a time, and each owner continues the conversation of the last.
    pub fn new(run: &Run, agent: AgentKind, patience: Option<Patience>) -> io::Result<Self> {
        let mut driver = read_driver(run.spool(), agent)?;
        let owner = match patience {
            Some(patience) => {
                let input = run.input()?;
                if let Some(input) = &input {
                    replay_input(input, &mut driver)?;
                }
                Some(RunOwner { patience, input })
            }
            None => None,
        };
        let events = run.events(Offsets::default())?;
        let converses = owner.as_ref().is_some_and(|owner| owner.input.is_some());
        Ok(Self {
            events: if converses { events.watching_at_once() } else { events },
            run: run.clone(),
            driver: Some(driver),
            stderr: StderrTail::default(),
            owner,
            last_output: Instant::now(),
            is_stopping: false,
            early_stop: None,
        })
    }

    /// Returns the number of bytes of the output that were read.
    pub fn output_read(&self) -> u64 {
        self.events.offsets().output
    }

    /// Asks the run to stop. Its end follows as a step.
    pub fn stop(&mut self) -> io::Result<StopReply> {
        self.is_stopping = true;
        self.run.stop()
    }

    /// Returns whether the run was asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Waits for the next step, and passes the agent's events to `observe`. Cancel safe. After a transient error it can be called
    /// again; after the end it never resolves.
    pub async fn next<F>(&mut self, observe: &mut F) -> Result<RunStep, WaitError>
    where
        F: FnMut(AgentEvent<'_>),
    {
        let event = loop {
            self.send().map_err(WaitError::Input)?;
            let early = self.early_stop();
            let awaited_silence = self.driver.as_ref().and_then(Driver::awaits_silence);
            tokio::select! {
                biased;
                event = self.events.next() => break event?,
                () = sleep_until(self.last_output + awaited_silence.unwrap_or_default()),
                    if awaited_silence.is_some() =>
                {
                    if let Some(driver) = &mut self.driver {
                        driver.on_silence();
                    }
                }
                () = sleep_until(self.last_output + early.map_or(Duration::ZERO, |(_, silence)| silence)),
                    if early.is_some() =>
                {
                    let stopped = self.stop();
                    let why = early.map_or(EarlyStop::Answered, |(why, _)| why);
                    self.early_stop = Some(why);
                    return Ok(RunStep::StoppedEarly(why, stopped));
                }
            }
        };
        let report = match event {
            Some(RunEvent::Output(bytes)) => {
                self.last_output = Instant::now();
                if let Some(driver) = &mut self.driver {
                    driver.feed(&bytes, observe);
                }
                return Ok(RunStep::Output);
            }
            Some(RunEvent::Error(bytes)) => {
                self.stderr.push(&bytes);
                return Ok(RunStep::Error(bytes));
            }
            Some(RunEvent::Ended(report)) => report,
            None => self.run.wait().await?,
        };
        let Some(driver) = self.driver.take() else { return std::future::pending().await };
        let summary = driver.finish(observe);
        let (stderr, early_stop) = (self.stderr.text(), self.early_stop);
        Ok(RunStep::Ended(Box::new(RunEnd { summary, report, stderr, early_stop })))
    }

    /// Returns why the run may be stopped, and after how long a silence.
    fn early_stop(&self) -> Option<(EarlyStop, Duration)> {
        let (driver, owner) = (self.driver.as_ref()?, self.owner.as_ref()?);
        let is_closed = owner.input.as_ref().is_some_and(RunInput::is_closed);
        early_stop(driver.summary(), owner.patience, is_closed).filter(|_| !self.is_stopping)
    }

    /// Sends the messages to the agent, and closes its input after the last. A reader has none to send: the owner does.
    fn send(&mut self) -> io::Result<()> {
        let Some(driver) = &mut self.driver else { return Ok(()) };
        let input = self.owner.as_mut().and_then(|owner| owner.input.as_mut());
        let Some(input) = input.filter(|input| !input.is_closed()) else {
            driver.mark_sent(driver.unsent().len());
            return Ok(());
        };
        while !driver.unsent().is_empty() {
            match input.write(driver.unsent())? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => driver.mark_sent(count),
            }
        }
        if driver.closes_input() {
            input.close()?;
        }
        Ok(())
    }
}

impl RunEnd {
    /// Judges the run.
    pub fn judge(&self, expected: Expectation<'_>) -> Outcome {
        let Expectation { agent, session, model, schema, before, limits } = expected;
        judge(&FinishedRun {
            agent,
            summary: &self.summary,
            report: &self.report,
            stderr_tail: &self.stderr,
            session,
            model,
            schema,
            totals_before: before,
            limits: Some(limits),
            early_stop: self.early_stop,
        })
    }
}
