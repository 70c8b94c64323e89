//! Runs one request from its input to its answer: one or more runs, each under a supervisor, and the events of each.
//!
//! Owns the run and its files: dropping the request at any moment stops the run and removes them. Knows no vendor (see
//! `backend.rs`) and does not word the answer (see `answer.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use agent_run::{Expectation, RunEnd, RunFollower, RunStep};
use agents::{Launch, Patience, ReportedResult, RunSequence, SequenceStep, Summary};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use model::{AgentEvent, Limits, Outcome, SessionId, Totals};
use supervisor::{Run, Spool, StartError};

use crate::answer::{FinishedRequest, LastRun, answer};
use crate::backend::{CliBackend, LaunchContext};
use crate::context::Context;
use crate::error::ProviderError;
use crate::message::{OutgoingMessage, ToolUses, Update, Warning};
use crate::request_directory::RequestDirectory;
use crate::session::{Session, SessionLock};

/// The maximum size of plain output in a result.
const PLAIN_TEXT: u64 = 1024 * 1024;

/// The input of a request.
#[derive(Debug)]
pub(crate) enum RequestInput {
    /// A single request without a session of this library.
    Completion(Box<Context>),
    /// A message to a session.
    SessionMessage(Session, String),
}

/// A request in progress.
pub(crate) struct ProviderExchange {
    backend: Arc<CliBackend>,
    input: RequestInput,
    stage: Stage,
    /// `None` before [`Self::prepare`].
    sequence: Option<RunSequence>,
    environment: BTreeMap<String, String>,
    /// Events that the caller has not received yet.
    events: VecDeque<AgentEvent<'static>>,
    tools: ToolUses,
    /// The session id that the agent reported last.
    session_id: Option<SessionId>,
    warnings: Vec<Warning>,
    started: Instant,
    /// The run that is being started. A field, so that a dropped request can still wait for it: its directory must exist until
    /// then.
    starting: Option<BoxFuture<'static, Result<Run, StartError>>>,
    /// The lock on the session, released at the end of the request.
    session_lock: Option<SessionLock>,
    directory: Option<RequestDirectory>,
}

#[expect(clippy::large_enum_variant, reason = "each request has one, in a box")]
enum Stage {
    /// Nothing has been checked or locked.
    New,
    /// The next run can start.
    Ready,
    Running(CurrentRun),
    /// The turn limit was reached; the caller has not received [`Update::Resuming`] yet.
    ResumeDue {
        attempt: u32,
        after: Duration,
    },
    Backoff(Duration),
    /// The result is known. It is returned after all pending events.
    Finished(Result<OutgoingMessage, ProviderError>),
    Closed,
}

/// The run in progress.
struct CurrentRun {
    run: Run,
    follower: RunFollower,
    launch: Launch,
}

/// A run that has ended, before it is judged.
struct EndedRun {
    end: RunEnd,
    launch: Launch,
    plain_text: Option<String>,
}

impl ProviderExchange {
    pub fn new(backend: &Arc<CliBackend>, input: RequestInput) -> Self {
        Self {
            backend: Arc::clone(backend),
            input,
            stage: Stage::New,
            sequence: None,
            environment: backend.config.resolve_environment(),
            events: VecDeque::new(),
            tools: ToolUses::default(),
            session_id: None,
            warnings: Vec::new(),
            started: Instant::now(),
            starting: None,
            session_lock: None,
            directory: None,
        }
    }

    /// Returns the updates of the request as a stream, which drives the request while it is polled.
    pub fn updates<T: Send + 'static>(
        self,
        finish: fn(ToolUses, OutgoingMessage) -> T,
    ) -> BoxStream<'static, Result<Update<T>, ProviderError>> {
        let steps = stream::unfold(Box::new(self), |mut exchange| async {
            let update = exchange.next().await?;
            Some((update.map(|update| (update, exchange.tools_if_closed())), exchange))
        });
        steps
            .map(move |step| {
                step.map(|(update, tools)| match update {
                    Update::Event(event) => Update::Event(event),
                    Update::Resuming { attempt, after } => Update::Resuming { attempt, after },
                    Update::Done(message) => Update::Done(finish(tools, message)),
                })
            })
            .fuse()
            .boxed()
    }

    /// Returns the used tools after the last update, and none before.
    fn tools_if_closed(&mut self) -> ToolUses {
        if matches!(self.stage, Stage::Closed) {
            std::mem::take(&mut self.tools)
        } else {
            ToolUses::default()
        }
    }

    async fn next(&mut self) -> Option<Result<Update<OutgoingMessage>, ProviderError>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(Ok(Update::Event(event)));
            }
            let step = match self.stage {
                Stage::Closed => return None,
                Stage::Finished(_) => {
                    let Stage::Finished(end) = std::mem::replace(&mut self.stage, Stage::Closed) else {
                        return None;
                    };
                    return Some(end.map(Update::Done));
                }
                Stage::ResumeDue { attempt, after } => {
                    self.stage = Stage::Backoff(after);
                    return Some(Ok(Update::Resuming { attempt, after }));
                }
                Stage::Backoff(after) => {
                    tokio::time::sleep(after).await;
                    self.stage = Stage::Ready;
                    continue;
                }
                Stage::New => self.prepare().await.map(|()| None),
                Stage::Ready => self.start_run().await.map(|()| None),
                Stage::Running(_) => self.follow_run().await,
            };
            match step {
                Ok(None) => {}
                Ok(Some(message)) => self.finish(Ok(message)),
                Err(error) => self.finish(Err(error)),
            }
        }
    }

    /// Finishes the request. Removes its files before the caller receives the result; after an answer no process is left.
    fn finish(&mut self, result: Result<OutgoingMessage, ProviderError>) {
        self.abandon_run();
        self.stage = Stage::Finished(result);
        self.directory = None;
        self.session_lock = None;
    }

    /// Hands the run in progress to the session, whose next message waits until it has stopped. Without a session there is no
    /// waiter: dropping the handle and removing the directory both stop the run.
    fn abandon_run(&mut self) {
        let Some(session_lock) = &mut self.session_lock else { return };
        if let Stage::Running(current) = &self.stage {
            session_lock.adopt_run(stop_run(current.run.clone()));
        } else if let Some(starting) = self.starting.take() {
            // The directory must outlive the start: without it the run could not be found, and would stop only at its next
            // check of the directory.
            let directory = self.directory.take();
            session_lock.adopt_run(async {
                let started = starting.await;
                drop(directory);
                if let Ok(run) = started {
                    stop_run(run).await;
                }
            });
        }
    }

    /// Converts the input to a call, with the session locked.
    async fn prepare(&mut self) -> Result<(), ProviderError> {
        let sequence = match &self.input {
            RequestInput::Completion(context) => self.backend.call(context)?,
            RequestInput::SessionMessage(session, text) => {
                // The previous message may have changed the session id.
                self.session_lock = Some(session.lock().await);
                self.backend.message(session, text, &self.environment)?
            }
        };
        self.sequence = Some(sequence);
        self.stage = Stage::Ready;
        Ok(())
    }

    /// Starts the next run.
    async fn start_run(&mut self) -> Result<(), ProviderError> {
        let Some(sequence) = &self.sequence else { return Ok(()) };
        let (backend, spec) = (&self.backend, sequence.spec());
        let supervisor = backend.supervisor()?;
        let workspaces = [std::slice::from_ref(&spec.cwd), &spec.add_dirs].concat();
        let check = backend.look_up(self.environment.clone(), &workspaces).await?;
        let directory = match &mut self.directory {
            Some(directory) => directory,
            none => none.insert(RequestDirectory::create(&backend.config, &self.environment)?),
        };
        let spool = directory.next();
        let agent = match &self.input {
            RequestInput::SessionMessage(session, _) => Some(session.agent()),
            RequestInput::Completion(_) => None,
        };
        let environment = self.environment.clone();
        let setup = backend.setup(spec, LaunchContext { check, environment, agent, spool: &spool })?;
        // Without the login there, the agent reports the missing login.
        let _ = agents::seed_private_state(spec, &setup);
        let launch = agents::launch(spec, &setup)?;
        let (spool_directory, plan) = (spool.directory().to_owned(), launch.plan.clone());
        let start =
            async move { agent_run::start(&supervisor, &spool_directory, plan).await.map(Run::stop_on_drop) };
        let started = self.starting.insert(Box::pin(start)).await;
        self.starting = None;
        let run = started?;
        let follower = RunFollower::new(&run, backend.kind, Some(Patience::default()));
        let follower = follower.map_err(supervisor::WaitError::Watch)?;
        self.stage = Stage::Running(CurrentRun { run, follower, launch });
        Ok(())
    }

    /// Follows the run until there is an update.
    async fn follow_run(&mut self) -> Result<Option<OutgoingMessage>, ProviderError> {
        let Stage::Running(current) = &mut self.stage else { return Ok(None) };
        let from = self.events.len();
        let ended = current.step(&mut self.events).await?;
        for position in from..self.events.len() {
            self.record_event(position);
        }
        let Some(ended) = ended else { return Ok(None) };
        // The run has ended: `finish` must not abandon it.
        self.stage = Stage::Closed;
        self.judge_run(&ended)
    }

    /// Records the facts of an event that are needed before the result.
    fn record_event(&mut self, position: usize) {
        let event = &self.events[position];
        self.tools.record(event);
        match event {
            AgentEvent::SessionStarted { session_id, .. } => {
                self.session_id = session_id.decode().parse().ok();
            }
            // The model has answered: from now on the session can be resumed, even if this program dies.
            AgentEvent::Text { .. } | AgentEvent::Thinking { .. } | AgentEvent::ToolUse { .. } => {
                self.record_session();
            }
            _ => {}
        }
    }

    /// Stores the session id, if it is new.
    fn record_session(&mut self) {
        let (RequestInput::SessionMessage(session, _), Some(id)) = (&self.input, &self.session_id) else {
            return;
        };
        if session.set_id(id) {
            let session = session.clone();
            self.save_session(&session);
        }
    }

    /// Writes the session record. A failure is a warning: the answer does not depend on it.
    fn save_session(&mut self, session: &Session) {
        if let Err(error) = self.backend.records().save(session) {
            let warning = Warning::SessionNotKept { message: error.to_string() };
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }

    /// Judges a finished run, and decides the next step.
    fn judge_run(&mut self, ended: &EndedRun) -> Result<Option<OutgoingMessage>, ProviderError> {
        let before = self.totals_before();
        let Some(sequence) = &mut self.sequence else { return Ok(None) };
        let expected = Expectation::from_launch(self.backend.kind, &ended.launch);
        let outcome = ended.end.judge(Expectation { before, ..expected });
        let next = sequence.next(outcome);
        let attempt = sequence.resumes();
        match next {
            SequenceStep::Resume { delay } => {
                self.stage = Stage::ResumeDue { attempt, after: delay };
                Ok(None)
            }
            SequenceStep::Done(outcome) => self.build_answer(outcome, ended, attempt).map(Some),
        }
    }

    /// Returns the agent's cumulative counts before this run.
    fn totals_before(&self) -> Option<Totals> {
        let session_totals = || match &self.input {
            RequestInput::SessionMessage(session, _) => session.totals(),
            RequestInput::Completion(_) => None,
        };
        self.sequence.as_ref().and_then(RunSequence::totals_before).or_else(session_totals)
    }

    /// Updates the session and returns the answer or error of the request.
    fn build_answer(
        &mut self,
        outcome: Outcome,
        ended: &EndedRun,
        resumes: u32,
    ) -> Result<OutgoingMessage, ProviderError> {
        if let RequestInput::SessionMessage(session, _) = &self.input {
            let session = session.clone();
            if let Some(id) = outcome.session.as_ref().filter(|_| outcome.is_success()) {
                session.set_id(id);
            }
            session.set_totals(outcome.session_totals);
            self.save_session(&session);
        }
        answer(FinishedRequest {
            provider: self.backend.name.clone(),
            outcome,
            last: LastRun {
                has_result: ended.end.summary.reported.is_some(),
                refused_by_api: matches!(&ended.end.summary.reported, Some(ReportedResult::Failed(error)) if error.http_status.is_some()),
                plain_text: ended.plain_text.clone(),
                plain_text_cut: ended.end.report.output_bytes.saturating_sub(PLAIN_TEXT),
                stderr: ended.end.stderr.clone(),
                sandbox: ended.end.report.sandbox.clone(),
            },
            limits: self.limits(),
            resumes,
            processing_time: self.started.elapsed(),
            now: SystemTime::now(),
            warnings: std::mem::take(&mut self.warnings),
        })
    }

    /// Returns the limits of the whole request: a resumed run has the rest of them.
    fn limits(&self) -> Limits {
        self.backend.config.limits()
    }
}

impl Drop for ProviderExchange {
    fn drop(&mut self) {
        self.abandon_run();
    }
}

/// Stops an abandoned run. Its directory is gone, so there is no report.
fn stop_run(run: Run) -> impl Future<Output = ()> + Send + 'static {
    let _ = run.stop();
    async move {
        let _ = run.wait().await;
    }
}

impl CurrentRun {
    /// Waits for the next step of the run. A run that cannot be stopped early hits its limits.
    async fn step(
        &mut self,
        events: &mut VecDeque<AgentEvent<'static>>,
    ) -> Result<Option<EndedRun>, ProviderError> {
        let mut push = |event: AgentEvent<'_>| events.push_back(event.into_owned());
        let RunStep::Ended(end) = self.follower.next(&mut push).await? else { return Ok(None) };
        let plain_text = plain_text(&end.summary, self.run.spool());
        Ok(Some(EndedRun { end: *end, launch: self.launch.clone(), plain_text }))
    }
}

/// Returns the whole output, if none of it was JSON.
fn plain_text(summary: &Summary, spool: &Spool) -> Option<String> {
    if summary.lines == 0 || summary.stray_lines < summary.lines {
        return None;
    }
    let mut bytes = Vec::new();
    regular_file::open_regular(&spool.output()).ok()?.take(PLAIN_TEXT).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
