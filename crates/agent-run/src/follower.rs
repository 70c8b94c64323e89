//! Follows a run to its end.

use std::io;
use std::time::Duration;

use agents::{EarlyStop, FinishedRun, Launch, ParseLimits, Parser, StderrTail, Summary, early_stop, judge};
use model::{AgentEvent, AgentKind, ExpectedSession, Limits, Outcome, RunReport, Totals};
use supervisor::{Events, Offsets, Run, RunEvent, StopReply, WaitError};
use tokio::time::{Instant, sleep_until};

/// Reads a run from its start.
#[derive(Debug)]
pub struct RunFollower {
    run: Run,
    events: Events,
    /// None after the end.
    parser: Option<Parser>,
    stderr: StderrTail,
    /// The silence after which an answered agent is stopped; none if this follower only reads.
    linger: Option<Duration>,
    last_output: Instant,
    is_stopping: bool,
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
    /// Is true if the answer must be JSON.
    pub has_schema: bool,
    /// The vendor's totals of the session before this run.
    pub before: Option<Totals>,
    /// The limits of the call.
    pub limits: &'a Limits,
}

impl<'a> Expectation<'a> {
    /// Returns the expectation of a launch, for a call without a schema and a session without earlier runs.
    pub fn from_launch(agent: AgentKind, launch: &'a Launch) -> Self {
        Self {
            agent,
            session: &launch.session,
            model: launch.model.as_deref(),
            has_schema: false,
            before: None,
            limits: &launch.plan.limits,
        }
    }
}

impl RunFollower {
    /// Opens the output of a run. With `linger`, the run is stopped once its agent has nothing left to do ([`early_stop`]).
    pub fn new(run: &Run, agent: AgentKind, linger: Option<Duration>) -> io::Result<Self> {
        Ok(Self {
            events: run.events(Offsets::default())?,
            run: run.clone(),
            parser: Some(Parser::new(agent, ParseLimits::default())),
            stderr: StderrTail::default(),
            linger,
            last_output: Instant::now(),
            is_stopping: false,
        })
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
        let early = self.early_stop();
        let event = tokio::select! {
            biased;
            event = self.events.next() => event?,
            () = sleep_until(self.last_output + early.map_or(Duration::ZERO, |(_, silence)| silence)),
                if early.is_some() =>
            {
                let stopped = self.stop();
                let why = early.map_or(EarlyStop::Answered, |(why, _)| why);
                return Ok(RunStep::StoppedEarly(why, stopped));
            }
        };
        let report = match event {
            Some(RunEvent::Output(bytes)) => {
                self.last_output = Instant::now();
                if let Some(parser) = &mut self.parser {
                    parser.feed(&bytes, observe);
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
        let Some(parser) = self.parser.take() else { return std::future::pending().await };
        let summary = parser.finish(observe);
        Ok(RunStep::Ended(Box::new(RunEnd { summary, report, stderr: self.stderr.text() })))
    }

    /// Returns why the run may be stopped, and after how long a silence.
    fn early_stop(&self) -> Option<(EarlyStop, Duration)> {
        let (parser, linger) = (self.parser.as_ref()?, self.linger?);
        early_stop(parser.summary(), linger).filter(|_| !self.is_stopping)
    }
}

impl RunEnd {
    /// Judges the run.
    pub fn judge(&self, expected: Expectation<'_>) -> Outcome {
        let Expectation { agent, session, model, has_schema, before, limits } = expected;
        judge(&FinishedRun {
            agent,
            summary: &self.summary,
            report: &self.report,
            stderr_tail: &self.stderr,
            session,
            model,
            has_schema,
            totals_before: before,
            limits: Some(limits),
        })
    }
}
