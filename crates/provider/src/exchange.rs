//! Runs one request from the call to the answer: as many runs as it needs, each under a supervisor, with their events passed
//! on.
//!
//! Dropping it at any moment stops the run and removes its files.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use agent_run::{Expectation, RunEnd, RunFollower, RunStep};
use agents::{LINGER, Launch, ReportedResult, RunSequence, SequenceStep, Summary};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use model::{AgentEvent, Limits, Outcome, SessionId, Totals};
use supervisor::{Run, Spool, StartError};

use crate::answer::{LastRun, Told, answer};
use crate::context::Context;
use crate::error::ProviderError;
use crate::message::{OutgoingMessage, ToolUses, Update, Warning};
use crate::operator::{Operator, Site};
use crate::session::{Session, SessionLock};
use crate::spool_folder::SpoolFolder;

/// The maximum size of plain output in a result.
const PLAIN_TEXT: u64 = 1024 * 1024;

/// The input of a request.
#[derive(Debug)]
pub(crate) enum Question {
    /// A single request.
    Of(Box<Context>),
    /// A message to a session.
    In(Session, String),
}

/// A request in progress.
pub(crate) struct ProviderExchange {
    operator: Arc<Operator>,
    question: Question,
    stage: Stage,
    relay: Option<RunSequence>,
    surroundings: BTreeMap<String, String>,
    heard: VecDeque<AgentEvent<'static>>,
    tools: ToolUses,
    /// The session id of the agent.
    speaking_as: Option<SessionId>,
    warnings: Vec<Warning>,
    started: Instant,
    /// The start of a run, while it lasts. Polled here only, so that the directory exists before it can be dropped.
    starting: Option<BoxFuture<'static, Result<Run, StartError>>>,
    /// The lock on the session, released with the request.
    turn: Option<SessionLock>,
    folder: Option<SpoolFolder>,
}

#[expect(clippy::large_enum_variant, reason = "there is one of it, in a box")]
enum Stage {
    Asked,
    /// The next run can start.
    Ready,
    Running(Leg),
    /// The caller must learn that the session is resumed later.
    Pausing {
        attempt: u32,
        after: Duration,
    },
    Pause(Duration),
    /// The result is known, and is returned after all pending events.
    Ended(Result<OutgoingMessage, ProviderError>),
    Over,
}

/// One run of the request.
struct Leg {
    run: Run,
    follower: RunFollower,
    launch: Launch,
}

/// A finished leg.
struct Arrived {
    end: RunEnd,
    launch: Launch,
    plain_text: Option<String>,
}

impl ProviderExchange {
    pub fn new(operator: &Arc<Operator>, question: Question) -> Self {
        Self {
            operator: Arc::clone(operator),
            question,
            stage: Stage::Asked,
            relay: None,
            surroundings: operator.config.surroundings(),
            heard: VecDeque::new(),
            tools: ToolUses::default(),
            speaking_as: None,
            warnings: Vec::new(),
            started: Instant::now(),
            starting: None,
            turn: None,
            folder: None,
        }
    }

    /// Returns the updates of the request as a stream, which drives the request while it is polled.
    pub fn updates<T: Send + 'static>(
        self,
        finish: fn(ToolUses, OutgoingMessage) -> T,
    ) -> BoxStream<'static, Result<Update<T>, ProviderError>> {
        let steps = stream::unfold(Box::new(self), |mut exchange| async {
            let update = exchange.next().await?;
            Some((update.map(|update| (update, exchange.tools_if_over())), exchange))
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

    /// Returns the used tools with the last update.
    fn tools_if_over(&mut self) -> ToolUses {
        if matches!(self.stage, Stage::Over) { std::mem::take(&mut self.tools) } else { ToolUses::default() }
    }

    async fn next(&mut self) -> Option<Result<Update<OutgoingMessage>, ProviderError>> {
        loop {
            if let Some(event) = self.heard.pop_front() {
                return Some(Ok(Update::Event(event)));
            }
            let step = match self.stage {
                Stage::Over => return None,
                Stage::Ended(_) => {
                    let Stage::Ended(end) = std::mem::replace(&mut self.stage, Stage::Over) else {
                        return None;
                    };
                    return Some(end.map(Update::Done));
                }
                Stage::Pausing { attempt, after } => {
                    self.stage = Stage::Pause(after);
                    return Some(Ok(Update::Resuming { attempt, after }));
                }
                Stage::Pause(after) => {
                    tokio::time::sleep(after).await;
                    self.stage = Stage::Ready;
                    continue;
                }
                Stage::Asked => self.place().await.map(|()| None),
                Stage::Ready => self.start().await.map(|()| None),
                Stage::Running(_) => self.follow().await,
            };
            match step {
                Ok(None) => {}
                Ok(Some(message)) => self.end(Ok(message)),
                Err(error) => self.end(Err(error)),
            }
        }
    }

    /// Ends the request. The files are removed before the caller learns the result, and after an answer no process is left.
    fn end(&mut self, end: Result<OutgoingMessage, ProviderError>) {
        self.let_go();
        self.stage = Stage::Ended(end);
        self.folder = None;
        self.turn = None;
    }

    /// Hands a running run to the session, so that the next message waits until it has stopped. Without a session nothing
    /// waits: dropping the handle and removing the directory both stop the run.
    fn let_go(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        if let Stage::Running(leg) = &self.stage {
            turn.give_up(end(leg.run.clone()));
        } else if let Some(starting) = self.starting.take() {
            // Without its directory a starting run could not be found, and would only stop by itself later.
            let folder = self.folder.take();
            turn.give_up(async {
                let started = starting.await;
                drop(folder);
                if let Ok(run) = started {
                    end(run).await;
                }
            });
        }
    }

    /// Converts the input to a call.
    async fn place(&mut self) -> Result<(), ProviderError> {
        let relay = match &self.question {
            Question::Of(context) => self.operator.call(context)?,
            Question::In(session, text) => {
                // The previous message may have changed the session id.
                self.turn = Some(session.take_turn().await);
                self.operator.message(session, text, &self.surroundings)?
            }
        };
        self.relay = Some(relay);
        self.stage = Stage::Ready;
        Ok(())
    }

    /// Starts the next run.
    async fn start(&mut self) -> Result<(), ProviderError> {
        let Some(relay) = &self.relay else { return Ok(()) };
        let (operator, spec) = (&self.operator, relay.spec());
        let supervisor = operator.supervisor()?;
        let workspaces = [std::slice::from_ref(&spec.cwd), &spec.add_dirs].concat();
        let check = operator.look_up(self.surroundings.clone(), &workspaces).await?;
        let folder = match &mut self.folder {
            Some(folder) => folder,
            none => none.insert(SpoolFolder::make(&operator.config, &self.surroundings)?),
        };
        let spool = folder.next();
        let agent = match &self.question {
            Question::In(session, _) => Some(session.agent()),
            Question::Of(_) => None,
        };
        let surroundings = self.surroundings.clone();
        let setup = operator.setup(spec, Site { check, surroundings, agent, spool: &spool })?;
        // Without the login there, the agent reports the missing login.
        let _ = agents::seed_private_state(spec, &setup);
        let launch = agents::launch(spec, &setup)?;
        let (place, plan) = (spool.directory().to_owned(), launch.plan.clone());
        let start = async move { agent_run::start(&supervisor, &place, plan).await.map(Run::stop_on_drop) };
        let started = self.starting.insert(Box::pin(start)).await;
        self.starting = None;
        let run = started?;
        let follower = RunFollower::new(&run, operator.kind, Some(LINGER));
        let follower = follower.map_err(supervisor::WaitError::Watch)?;
        self.stage = Stage::Running(Leg { run, follower, launch });
        Ok(())
    }

    /// Follows the run until there is an update.
    async fn follow(&mut self) -> Result<Option<OutgoingMessage>, ProviderError> {
        let Stage::Running(leg) = &mut self.stage else { return Ok(None) };
        let from = self.heard.len();
        let arrived = leg.step(&mut self.heard).await?;
        for position in from..self.heard.len() {
            self.note(position);
        }
        let Some(arrived) = arrived else { return Ok(None) };
        // The run has ended: there is nothing to release.
        self.stage = Stage::Over;
        self.arrive(&arrived)
    }

    /// Records the facts of an event that are needed before the result.
    fn note(&mut self, position: usize) {
        let event = &self.heard[position];
        self.tools.hear(event);
        match event {
            AgentEvent::SessionStarted { session_id, .. } => {
                self.speaking_as = session_id.decode().parse().ok();
            }
            // The model has answered: from now on the session can be resumed, even if this program dies.
            AgentEvent::Text { .. } | AgentEvent::Thinking { .. } | AgentEvent::ToolUse { .. } => {
                self.begun();
            }
            _ => {}
        }
    }

    fn begun(&mut self) {
        let (Question::In(session, _), Some(id)) = (&self.question, &self.speaking_as) else { return };
        if session.speaks_as(id) {
            let session = session.clone();
            self.keep(&session);
        }
    }

    fn keep(&mut self, session: &Session) {
        if let Err(error) = self.operator.records().keep(session) {
            let warning = Warning::SessionNotKept { message: error.to_string() };
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }

    /// Judges a finished run, and decides the next step.
    fn arrive(&mut self, arrived: &Arrived) -> Result<Option<OutgoingMessage>, ProviderError> {
        let before = self.totals_before();
        let Some(relay) = &mut self.relay else { return Ok(None) };
        let expected = Expectation::from_launch(self.operator.kind, &arrived.launch);
        let outcome = arrived.end.judge(Expectation { before, ..expected });
        let next = relay.next(outcome);
        let attempt = relay.resumes();
        match next {
            SequenceStep::Resume { delay } => {
                self.stage = Stage::Pausing { attempt, after: delay };
                Ok(None)
            }
            SequenceStep::Done(outcome) => self.tell(outcome, arrived, attempt).map(Some),
        }
    }

    fn totals_before(&self) -> Option<Totals> {
        let of_session = || match &self.question {
            Question::In(session, _) => session.totals(),
            Question::Of(_) => None,
        };
        self.relay.as_ref().and_then(RunSequence::totals_before).or_else(of_session)
    }

    fn tell(
        &mut self,
        outcome: Outcome,
        arrived: &Arrived,
        resumes: u32,
    ) -> Result<OutgoingMessage, ProviderError> {
        if let Question::In(session, _) = &self.question {
            let session = session.clone();
            if let Some(id) = outcome.session.as_ref().filter(|_| outcome.is_success()) {
                session.speaks_as(id);
            }
            session.counted(outcome.session_totals);
            self.keep(&session);
        }
        answer(Told {
            provider: self.operator.name,
            outcome,
            last: LastRun {
                spoke: arrived.end.summary.reported.is_some(),
                refused_by_api: matches!(&arrived.end.summary.reported, Some(ReportedResult::Failed(complaint)) if complaint.http_status.is_some()),
                plain_text: arrived.plain_text.clone(),
                plain_text_cut: arrived.end.report.output_bytes.saturating_sub(PLAIN_TEXT),
                stderr: arrived.end.stderr.clone(),
                sandbox: arrived.end.report.sandbox.clone(),
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
        self.operator.config.limits()
    }
}

impl Drop for ProviderExchange {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Stops an abandoned run. Its directory is gone, so there is no report.
fn end(run: Run) -> impl Future<Output = ()> + Send + 'static {
    let _ = run.stop();
    async move {
        let _ = run.wait().await;
    }
}

impl Leg {
    /// Waits for the next step of the run. A run that cannot be stopped early hits its limits.
    async fn step(
        &mut self,
        heard: &mut VecDeque<AgentEvent<'static>>,
    ) -> Result<Option<Arrived>, ProviderError> {
        let mut push = |event: AgentEvent<'_>| heard.push_back(event.into_owned());
        let RunStep::Ended(end) = self.follower.next(&mut push).await? else { return Ok(None) };
        let plain_text = plain_text(&end.summary, self.run.spool());
        Ok(Some(Arrived { end: *end, launch: self.launch.clone(), plain_text }))
    }
}

/// Returns the whole output, if none of it was JSON.
fn plain_text(summary: &Summary, spool: &Spool) -> Option<String> {
    if summary.lines == 0 || summary.stray_lines < summary.lines {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(spool.output()).ok()?.take(PLAIN_TEXT).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
