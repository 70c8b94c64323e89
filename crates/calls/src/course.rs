//! The way of one claimed job through its runs, to its end or to a point where it has to wait.
//!
//! Owns the order of things within a job: locks, launch, run, judgement, and what follows from it. Holds the claim all the
//! while; a claim that was lost ends the run and says nothing.

mod concluding;
mod following;
mod next;
mod reported;
mod waiting;
mod words;

use std::sync::Arc;
use std::time::Duration;

use agents::{Launch, ParseLimits, Parser, RunSequence};
use model::{
    Attempt, CallSpec, Claim, ExpectedSession, Failure, FailureKind, Job, JobEnd, Mode, NotStartedReason,
    RunPlan, RunState, SessionChoice, SessionId, StateName, StatusDurability, Timestamp, Totals,
};
use serde::{Deserialize, Serialize};
use store::{FlushTicket, JobFilter, PageRequest};
use supervisor::{AttachError, Run, Spool, SpoolError, StartError};

use crate::desk::Inner;
use crate::files::{JobFiles, PAUSE, RECORD};
use crate::live::{Activity, Live};
use crate::locks::{Guard, Key};
use crate::seats::Place;
use crate::wait_reason::WaitReason;
use next::{cancelled, with_what_was_said};
pub(crate) use reported::MODEL_SPOKE;
use reported::Reported;
use words::{not_followed, not_kept, not_started, not_written, supervisor_gone, taken_up_again};

/// How long a run that cannot be read may take to end.
const GIVEN_UP_WITHIN: Duration = Duration::from_mins(1);
/// How long to wait before a run is looked for again that could not be followed.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// What a run was started for, so that it can be judged by somebody who did not start it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    relay: RunSequence,
    session: ExpectedSession,
    model: Option<String>,
    before: Option<Totals>,
    /// Of which claim of the job it is; 0 in one that an earlier version has written.
    #[serde(default)]
    attempt: u32,
}

impl RunRecord {
    /// Which claim of the job the run belongs to; 0 when an earlier version has not said so.
    pub(crate) fn attempt(&self) -> Attempt {
        Attempt::new(self.attempt)
    }

    /// Whether the run belongs to that claim, as far as is known. One of an earlier claim has ended and was judged.
    pub(crate) fn is_of(&self, claim: &Claim) -> bool {
        self.attempt == 0 || self.attempt >= claim.attempt.number()
    }
}

/// Where the note of a run is, in the folder of its job.
pub(crate) fn note_of(run: u32) -> String {
    format!("runs/{run}.json")
}

/// Where a course begins.
#[derive(Debug)]
pub(crate) enum Begin {
    /// With a run of its own.
    Anew,
    /// The same, and it is on the board already; one that was placed a moment ago, the disk may not have yet.
    Handed { live: Arc<Live>, flush: Option<FlushTicket> },
    /// With a run that an earlier desk has started.
    With { number: u32, note: Box<RunRecord>, guards: Vec<Guard> },
}

/// What a course came to.
enum Conclusion {
    /// The job is over.
    Ended(Box<JobEnd>),
    /// It waits, and is claimed again.
    Paused { until: Timestamp },
    /// The run was lost; this is what was there.
    Interrupted(Box<JobEnd>),
    /// This desk lets go of it; the run goes on.
    Left,
}

/// Why a run was not followed to its end.
enum Unfinished {
    Left,
    Failed(Failure),
}

/// Brings a claimed job as far as it goes.
pub(crate) async fn go(desk: Arc<Inner>, job: Job, begin: Begin, place: Place) {
    let Some(claim) = job.claim() else { return };
    let (live, flush) = match &begin {
        Begin::Handed { live, flush } => (Arc::clone(live), flush.clone()),
        Begin::Anew | Begin::With { .. } => (put_on_the_board(&desk, &claim).await, None),
    };
    let files = desk.files(job.id);
    let mut course = Course {
        desk: &desk,
        live: &live,
        files,
        claim,
        job: &job,
        place,
        flush,
        guards: Vec::new(),
        reported: Reported::default(),
        last_run: 0,
        model_spoke: false,
    };
    let conclusion = course.run(begin).await;
    course.conclude(conclusion).await;
    drop(course);
    desk.board.take_off(&live);
}

/// From here on, who wants the job to end finds somebody to tell.
async fn put_on_the_board(desk: &Inner, claim: &Claim) -> Arc<Live> {
    let live = desk.board.put(claim);
    // Who wanted it before found nobody. And a claim that comes late may be one no more.
    let found = desk.store.get(claim.job).await.ok().flatten();
    let is_over =
        |job: Job| job.progress.cancel_requested_at.is_some() || job.claim().as_ref() != Some(claim);
    if found.is_some_and(is_over) {
        live.stop.cancel();
    }
    live
}

/// Ends a job whose course broke off by a defect, with all that it may have left running.
pub(crate) async fn give_up(desk: &Inner, claim: &Claim) {
    end_last_run(&desk.files(claim.job)).await;
    let message = "internal error: the job's task panicked; see the daemon's log".to_owned();
    let end = JobEnd::failed(Failure { kind: FailureKind::Internal, message });
    if let Err(error) = desk.store.finish(claim, end).await {
        tracing::warn!(job = %claim.job, %error, "cannot end the job");
    }
    desk.record(claim.job).await;
    if let Some(live) = desk.board.get(claim.job) {
        desk.board.take_off(&live);
    }
}

/// Ends what may be left of the newest run of a job.
pub(crate) async fn end_last_run(files: &JobFiles) {
    if let Some(number) = files.runs().last()
        && let Ok(run) = supervisor::attach(&files.run(*number)).await
    {
        let _ = run.stop();
        let _ = run.wait().await;
    }
}

/// Nothing may go on of a run whose end nobody can read.
async fn end_unreadable(run: &Run) {
    let _ = run.stop();
    let _ = tokio::time::timeout(GIVEN_UP_WITHIN, run.wait()).await;
}

/// What must not be run twice while an earlier desk's run goes on: taken for all of them before anything new begins.
pub(crate) fn locks_of(desk: &Inner, job: &Job, number: u32, note: &RunRecord) -> Vec<Guard> {
    let CallSpec { agent, mode, cwd, .. } = &job.order.call;
    let told = || session_told(&desk.files(job.id), number, *agent);
    let session = note.session.known().cloned().or_else(told);
    let session = session.map(|session| Key::Session(*agent, session));
    let alone = desk.settings.one_writer_per_folder && *mode == Mode::Execute;
    let folder = alone.then(|| folder_key(cwd));
    session.into_iter().chain(folder).filter_map(|key| desk.locks.try_take(key, job.id)).collect()
}

fn folder_key(cwd: &std::path::Path) -> Key {
    Key::Folder(cwd.canonicalize().unwrap_or_else(|_| cwd.to_owned()))
}

/// The conversation that the agent itself has named in a run.
fn session_told(files: &JobFiles, run: u32, agent: model::AgentKind) -> Option<SessionId> {
    let head = files.head_of_run(run).ok()?;
    let mut parser = Parser::new(agent, ParseLimits::default());
    let mut activity = Activity::default();
    parser.feed(&head, &mut |event| activity.take(&event));
    activity.session
}

struct Course<'a> {
    desk: &'a Inner,
    live: &'a Live,
    files: JobFiles,
    claim: Claim,
    job: &'a Job,
    place: Place,
    /// What has to be waited for before anything is started, of a job that was placed a moment ago.
    flush: Option<FlushTicket>,
    guards: Vec<Guard>,
    reported: Reported,
    /// Whether the model said or did anything in a run that was followed.
    model_spoke: bool,
    /// The number of the run that was followed to its end last, when none was begun since; otherwise 0.
    last_run: u32,
}

impl Course<'_> {
    async fn run(&mut self, begin: Begin) -> Conclusion {
        let (mut relay, mut found) = match begin {
            Begin::With { number, note, guards } => {
                self.guards.extend(guards);
                self.files.remove(PAUSE);
                match self.find(number).await {
                    Ok(Some(run)) => (note.relay.clone(), Some((number, run, *note))),
                    Ok(None) => {
                        // Nothing of it runs after all.
                        self.place.step_aside();
                        (note.relay, None)
                    }
                    Err(conclusion) => return conclusion,
                }
            }
            Begin::Anew | Begin::Handed { .. } => (self.relay(), None),
        };
        let goes_on_with = found.as_ref().map(|(number, ..)| *number);
        self.hear_earlier_runs(goes_on_with).await;
        loop {
            let ((number, run, note), started_at) = match found.take() {
                Some(found) => {
                    self.desk.resume_nesting(self.job, &found.1).await;
                    let status = found.1.spool().status().ok().flatten();
                    (found, status.map(|status| Timestamp::from_millis(status.started_at_ms)))
                }
                None => match self.begin(&relay).await {
                    Ok(started) => (started, None),
                    Err(conclusion) => return with_what_was_said(conclusion, &relay),
                },
            };
            let started_at = started_at.unwrap_or_else(|| self.desk.store.now());
            let (outcome, report) = match self.follow(number, &run, &note, started_at).await {
                Ok(ended) => ended,
                Err(Unfinished::Left) => return Conclusion::Left,
                Err(Unfinished::Failed(failure)) => return with_what_was_said(self.failed(failure), &relay),
            };
            let ended_at = Timestamp::from_millis(report.ended_at_ms);
            self.reported.report = Some(report);
            self.last_run = number;
            let wait = match self.what_follows(&mut relay, outcome) {
                Ok(wait) => wait,
                Err(Conclusion::Ended(end)) => {
                    return Conclusion::Ended(Box::new(JobEnd { ended_at: Some(ended_at), ..*end }));
                }
                Err(conclusion) => return conclusion,
            };
            self.lead_to(number);
            self.live.wait_for(WaitReason::Backoff { delay: wait }, self.desk.store.now());
            tokio::select! {
                biased;
                () = self.desk.leaving.cancelled() => return self.leave(&relay),
                () = self.live.stop.cancelled() => return self.ended_between_runs(&relay),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Keeps the events of the runs before, of which this course has heard nothing, when the caller wants them.
    async fn hear_earlier_runs(&mut self, goes_on_with: Option<u32>) {
        if !self.job.order.expose_stream || self.is_untouched() {
            return;
        }
        let mut runs = self.files.runs();
        runs.retain(|run| Some(*run) != goes_on_with);
        if runs.is_empty() {
            return;
        }
        let (files, agent) = (self.files.clone(), self.job.order.call.agent);
        let heard = tokio::task::spawn_blocking(move || {
            let mut reported = Reported::default();
            for run in runs {
                reported.keep_all_of(&Spool::at(files.run(run)).output(), agent)?;
            }
            Ok(reported)
        });
        match heard.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(reported) => self.reported = reported,
            Err(error) => {
                tracing::warn!(job = %self.job.id, %error, "cannot read the events of an earlier run");
            }
        }
    }

    /// Finds a run that an earlier desk has started; none when it never was. Whoever cannot tell tries again: a run that may be
    /// there must not be begun a second time.
    async fn find(&self, number: u32) -> Result<Option<Run>, Conclusion> {
        loop {
            match supervisor::attach(&self.files.run(number)).await {
                Ok(run) => return Ok(Some(run)),
                Err(AttachError::NoRun { .. }) => return Ok(None),
                // What nobody writes to any more does not become readable.
                Err(AttachError::Spool(
                    error @ (SpoolError::Damaged { .. } | SpoolError::OtherVersion { .. }),
                )) if matches!(Spool::at(self.files.run(number)).is_locked(), Ok(false)) => {
                    return Err(self.failed(not_followed(&error)));
                }
                // Nor does a FIFO or a directory in place of a file. Its supervisor can still be found.
                Err(
                    error @ (AttachError::Spool(SpoolError::Unreadable { .. }) | AttachError::Directory(_)),
                ) if !error.is_transient() => {
                    self.end_unreadable(number).await?;
                    return Err(self.failed(not_followed(&error)));
                }
                Err(error) => self.breathe(&error).await.map_err(|_| Conclusion::Left)?,
            }
        }
    }

    /// Ends a run that can only be found by its directory. Repeated until it is known to be gone.
    async fn end_unreadable(&self, number: u32) -> Result<(), Conclusion> {
        loop {
            let folder = self.files.run(number);
            let ended = tokio::task::spawn_blocking(move || supervisor::stop_unreadable_run(&folder)).await;
            match ended.map_err(std::io::Error::other).and_then(|ended| ended) {
                Ok(()) => return Ok(()),
                Err(error) => self.breathe(&error).await.map_err(|_| Conclusion::Left)?,
            }
        }
    }

    /// Waits a moment for trouble of our own to pass; over when this desk lets go of everything.
    async fn breathe(&self, trouble: &(dyn std::error::Error + Send + Sync)) -> Result<(), Unfinished> {
        tracing::warn!(job = %self.job.id, %trouble, "cannot follow the run; trying again");
        tokio::select! {
            () = self.desk.leaving.cancelled() => Err(Unfinished::Left),
            () = tokio::time::sleep(TRY_AGAIN) => Ok(()),
        }
    }

    /// Whether there is no run of it yet, and nothing of one.
    fn is_untouched(&self) -> bool {
        self.flush.is_some()
    }

    /// What the job is to do now: what it was asked, or what is left of it.
    fn relay(&self) -> RunSequence {
        let call = &self.job.order.call;
        let afresh = || RunSequence::new(call.clone(), self.desk.settings.max_resume_attempts);
        if self.is_untouched() {
            return afresh();
        }
        // It stays until the next run is about to start: whoever dies before leaves it to the next desk.
        if let Some(relay) = self.files.read::<RunSequence>(PAUSE) {
            return relay;
        }
        let Some(lost) = self.files.runs().last().copied() else { return afresh() };
        // What the runs before the lost one have said and spent stands in its note.
        let note = self.files.read::<RunRecord>(&note_of(lost));
        let mut relay = note.map_or_else(afresh, |note| note.relay);
        relay.add_elapsed(self.time_of(lost));
        if let Some(session) = session_told(&self.files, lost, call.agent)
            && relay.spec().agent_name.is_none()
        {
            relay.resume_lost_run(taken_up_again(&call.prompt), session);
        }
        relay
    }

    /// How long a run took, as far as it is known.
    fn time_of(&self, number: u32) -> Duration {
        match Spool::at(self.files.run(number)).status().ok().flatten().map(|status| status.state) {
            Some(RunState::Ended(report)) => Duration::from_millis(report.duration_ms),
            _ => Duration::ZERO,
        }
    }

    /// Starts the next run, or says why there is none.
    async fn begin(&mut self, relay: &RunSequence) -> Result<(u32, Run, RunRecord), Conclusion> {
        self.last_run = 0;
        self.take_locks(relay).await?;
        self.take_place(relay).await?;
        let is_untouched = self.is_untouched();
        let last = if is_untouched { None } else { self.files.runs().pop() };
        let number = last.map_or(1, |last| last + 1);
        let folder = self.files.run(number);
        let Launch { plan, session, model } = self.launch(relay.spec(), &folder).await?;
        if let ExpectedSession::Assigned(id) = &session {
            self.hold_if_free(id);
        }
        let before = self.totals_before(relay).await;
        let attempt = self.claim.attempt.number();
        let note = RunRecord { relay: relay.clone(), session, model, before, attempt };
        // Nobody looks at the note of a run that has no folder yet.
        let written = self.files.make().and_then(|()| {
            if !self.files.has_record() {
                self.files.replace(RECORD, self.job)?;
            }
            self.files.write(&note_of(number), &note)
        });
        written.map_err(|error| self.failed(not_written(&error)))?;
        // What a job comes to is kept by the store, which outlives the power.
        let plan = RunPlan { status_durability: StatusDurability::ProcessExit, ..plan };
        let laid = self.desk.settings.supervisor.prepare(&folder, &plan);
        let laid = laid.map_err(|error| self.failed(not_started(&error, error.hint())))?;
        self.until_it_is_kept().await?;
        if self.desk.leaving.is_cancelled() {
            return Err(Conclusion::Left);
        }
        if self.live.stop.is_cancelled() {
            return Err(self.ended_between_runs(relay));
        }
        if !is_untouched {
            // Not before: of a run that is taken back, the next desk finds nothing else.
            self.files.remove(PAUSE);
        }
        let started = tokio::select! {
            // First of all: it is to be there before it is left.
            biased;
            started = laid.start() => started,
            // The next desk finds it, if it came to be.
            () = self.desk.leaving.cancelled() => return Err(Conclusion::Left),
        };
        let run = match started {
            Ok(run) => run,
            // It may be running all the same.
            Err(error @ (StartError::Listen(_) | StartError::Attach(_))) => {
                let found = self.find(number).await?;
                found.ok_or_else(|| self.failed(not_started(&error, error.hint())))?
            }
            Err(error @ StartError::GaveUp { .. }) => {
                let end = JobEnd::failed(supervisor_gone(&error));
                return Err(Conclusion::Interrupted(Box::new(end)));
            }
            Err(error) => return Err(self.failed(not_started(&error, error.hint()))),
        };
        if let Some(session) = note.session.known() {
            self.hold_if_free(&session.clone());
        }
        Ok((number, run, note))
    }

    /// Waits until the disk has the call: nothing is started that a power cut could make forgotten.
    async fn until_it_is_kept(&mut self) -> Result<(), Conclusion> {
        let Some(flush) = self.flush.take() else { return Ok(()) };
        flush.flushed().await.map_err(|error| self.failed(not_kept(&error)))
    }

    async fn launch(&self, spec: &CallSpec, folder: &std::path::Path) -> Result<Launch, Conclusion> {
        let private = Spool::at(folder).private();
        let environment = self.desk.environments.read(self.job.id);
        if let Some(environment) = &environment {
            // Another daemon may have placed it.
            self.desk.store.redact_values(&environment.secrets());
        }
        let setup = self.desk.setup(spec, environment.as_ref(), private).await.map_err(|error| {
            let kind = FailureKind::NotStarted { reason: NotStartedReason::ProgramMissing };
            self.failed(Failure { kind, message: format!("{error}; {}", error.hint()) })
        })?;
        // Without the login there, the agent itself says what is missing.
        if let Err(error) = agents::seed_private_state(spec, &setup) {
            tracing::warn!(job = %self.job.id, %error, "cannot seed the private state of the policy");
        }
        agents::launch(spec, &setup).map_err(|error| self.failed(not_started(&error, &error.hint())))
    }

    /// What the vendor had counted for the session before this run.
    async fn totals_before(&self, relay: &RunSequence) -> Option<Totals> {
        if relay.combined_outcome().is_some() {
            return relay.totals_before();
        }
        let SessionChoice::Resume(session) = &relay.spec().session else { return None };
        let filter = JobFilter { session: Some(session.clone()), ..JobFilter::default() };
        let page = self.desk.store.list(&filter, PageRequest { limit: 10, before: None }).await.ok()?;
        let earlier = page.jobs.iter().find(|job| job.completed_at.is_some() && job.id != self.job.id)?;
        self.desk.store.get(earlier.id).await.ok()??.outcome?.session_totals
    }

    fn say_running(&self, number: u32, run: &Run) {
        self.lead_to(number);
        let pid = run.supervisor().map(|identity| identity.pid);
        if let Err(error) = self.files.write_status(self.job, StateName::Running, pid) {
            tracing::warn!(job = %self.job.id, %error, "cannot write the status file");
        }
    }

    /// Lets the files of the job's folder be those of that run.
    fn lead_to(&self, number: u32) {
        if let Err(error) = self.files.point_at(number) {
            tracing::warn!(job = %self.job.id, %error, "cannot lead to what the run prints");
        }
    }

    /// A conversation that is new is ours as soon as its id is known.
    fn hold_if_free(&mut self, session: &SessionId) {
        let key = Key::Session(self.job.order.call.agent, session.clone());
        if !self.guards.iter().any(|guard| *guard.key() == key) {
            self.guards.extend(self.desk.locks.try_take(key, self.job.id));
        }
    }

    /// Somebody ended the job while nothing of it ran; what its runs have said so far is kept.
    #[expect(clippy::unused_self, reason = "reads like the others")]
    fn ended_between_runs(&self, relay: &RunSequence) -> Conclusion {
        Conclusion::Ended(Box::new(
            relay.combined_outcome().cloned().map_or_else(JobEnd::cancelled, cancelled),
        ))
    }

    fn pause(&self, relay: &RunSequence, wait: Duration) -> Conclusion {
        match self.files.replace(PAUSE, relay) {
            Ok(()) => Conclusion::Paused { until: self.desk.store.now().plus(wait) },
            Err(error) => with_what_was_said(self.failed(not_written(&error)), relay),
        }
    }

    /// Leaves a job of which nothing runs to the next desk. Where that cannot be written down, it finds the job as it was.
    fn leave(&self, relay: &RunSequence) -> Conclusion {
        match self.pause(relay, Duration::ZERO) {
            paused @ Conclusion::Paused { .. } => paused,
            _not_written => Conclusion::Left,
        }
    }

    #[expect(clippy::unused_self, reason = "reads like the others")]
    fn failed(&self, failure: Failure) -> Conclusion {
        let mut end = JobEnd::failed(failure);
        if let Some(Failure { kind: FailureKind::Deadline { .. }, .. }) = &end.failure {
            end.how = model::TerminalState::Timeout;
        }
        Conclusion::Ended(Box::new(end))
    }
}
