//! Where calls are placed and asked about.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agents::Setup;
use agents::doctor::{self, AgentCheck, Lookup, NotReady};
use model::{
    AgentKind, CallSpec, Job, JobId, JobIdPrefix, JobState, NewJob, Owner, SessionChoice, StateName,
    Timestamp,
};
use store::{Found, JobFilter, Page, PageRequest, Stats, StatsRange, Store, Written};
use supervisor::SeenProcess;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answer::Answer;
use crate::caller_environment::{CallerEnvironment, CallerEnvironments};
use crate::dispatch::{self, Handed};
use crate::error::CallError;
use crate::files::{JobFiles, Part, Stream, jobs, make_private};
use crate::live::{Activity, Board, Live};
use crate::locks::Locks;
use crate::recent::Recent;
use crate::recovery;
use crate::seats::Seats;
use crate::settings::Settings;
use crate::wait_reason::WaitReason;

/// How long what is known about an agent's program is believed without another look.
const PROGRAM_KNOWN_FOR: Duration = Duration::from_secs(5);

/// How long the disk may take to keep an end before it is told all the same.
const UNTIL_KEPT: Duration = Duration::from_secs(5);

/// A call, and how it is placed.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// What is asked. With [`SessionChoice::ContinueLatest`] the last session of the task is gone on with.
    pub call: CallSpec,
    /// The tool through which it is asked.
    pub tool: String,
    /// What the caller calls the task; none for the tool's name.
    pub task: Option<String>,
    /// Asked twice with the same key, it is one job.
    pub idempotency_key: Option<String>,
    /// The job on whose behalf it is asked.
    pub parent: Option<JobId>,
    /// Whether the caller goes away instead of waiting.
    pub fire_and_forget: bool,
    /// Whether the caller wants the agent's events with the answer.
    pub expose_stream: bool,
    /// What the caller's environment says about agents; none for the desk's own.
    pub environment: Option<CallerEnvironment>,
}

impl Order {
    /// That call, through that tool, with nothing special about it.
    pub fn new(call: CallSpec, tool: impl Into<String>) -> Self {
        Self {
            call,
            tool: tool.into(),
            task: None,
            idempotency_key: None,
            parent: None,
            fire_and_forget: false,
            expose_stream: false,
            environment: None,
        }
    }
}

/// A call that was placed: from here on it is not lost.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The job.
    pub job: JobId,
    /// When it was placed.
    pub created_at: Timestamp,
    /// Whether this call made it, or an earlier one with the same key.
    pub is_new: bool,
    /// How many secrets were taken out of its texts.
    pub redactions: usize,
    /// Its files.
    pub files: JobFiles,
}

/// Whether the disk has what a job has come to.
#[derive(Debug)]
#[must_use = "the disk may not have it yet"]
pub struct Kept {
    /// None when it has.
    live: Option<Arc<Live>>,
    /// Until when it is waited for at least.
    until: Instant,
}

impl Kept {
    fn of(live: Option<Arc<Live>>) -> Self {
        Self { live, until: Instant::now() + UNTIL_KEPT }
    }

    /// Waits until it has, at least for as long as anybody waits for that, and answers whether. A disk that takes longer is no reason
    /// to say nothing.
    pub async fn by(self, until: Instant) -> bool {
        let Some(live) = self.live else { return true };
        let kept = async {
            match live.end.get() {
                Some((_, on_disk)) if on_disk.reached().await.is_ok() => {}
                // It is brought there again until the disk confirms it.
                _ => live.off.cancelled().await,
            }
        };
        tokio::time::timeout_at(until.max(self.until), kept).await.is_ok()
    }
}

/// What a cancellation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled {
    /// The state before.
    pub previous: StateName,
    /// The state now. One that is still running is being stopped.
    pub now: StateName,
}

/// How a desk closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// What runs is waited for; what is queued stays queued.
    WhenDone,
    /// At once: what runs goes on under its supervisors, and the next desk takes it up.
    Now,
}

/// Where calls are placed and asked about. Copies are the same desk. It works until it is closed ([`Desk::close`]).
#[derive(Debug, Clone)]
pub struct Desk(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub settings: Settings,
    pub store: Store,
    pub owner: Owner,
    pub environments: CallerEnvironments,
    pub board: Board,
    pub locks: Locks,
    pub recent: Recent,
    pub seats: Arc<Seats>,
    /// The jobs that were claimed as they were placed.
    pub handed: Handed,
    /// Something may be there to be claimed.
    pub wake: Notify,
    /// No new claims; what runs is waited for.
    pub closing: CancellationToken,
    /// Everything is let go of at once.
    pub leaving: CancellationToken,
    /// Nothing is held any more.
    pub closed: CancellationToken,
    programs: std::sync::Mutex<Vec<KnownProgram>>,
    tasks: Mutex<JoinSet<()>>,
}

/// An agent's program, as it was found in a search path a moment ago.
#[derive(Debug)]
struct KnownProgram {
    agent: AgentKind,
    path: String,
    at: Instant,
    check: AgentCheck,
}

impl Desk {
    /// Opens the store, takes up what an earlier desk has left, and begins to work.
    ///
    /// The caller makes sure that no other desk has the state folder: that is what makes every earlier owner of it a dead one.
    /// Must be called within a tokio runtime.
    pub async fn open(settings: Settings) -> Result<Self, CallError> {
        let settings = Settings { supervisor: settings.supervisor.kept_warm(), ..settings };
        let cannot_use = |source| CallError::State { folder: settings.state.clone(), source };
        make_private(&jobs(&settings.state)).map_err(cannot_use)?;
        let environments = CallerEnvironments::open(&settings.state).map_err(cannot_use)?;
        let store = Store::open(settings.store.clone()).await?;
        let owner = recovery::owner(&settings);
        let desk = Self(Arc::new(Inner {
            seats: Seats::new(settings.at_once, &settings.per_agent),
            settings,
            store,
            owner,
            environments,
            board: Board::default(),
            locks: Locks::default(),
            recent: Recent::default(),
            handed: Handed::default(),
            wake: Notify::new(),
            closing: CancellationToken::new(),
            leaving: CancellationToken::new(),
            closed: CancellationToken::new(),
            programs: std::sync::Mutex::default(),
            tasks: Mutex::default(),
        }));
        let opened_at = desk.0.store.now();
        let found = recovery::take_over(&desk.0).await?;
        let mut tasks = desk.0.tasks.lock().await;
        tasks.spawn(dispatch::work(Arc::clone(&desk.0), found));
        tasks.spawn(dispatch::heartbeat(Arc::clone(&desk.0)));
        tasks.spawn(dispatch::tidy(Arc::clone(&desk.0)));
        tasks.spawn(recovery::record_ends(Arc::clone(&desk.0)));
        tasks.spawn(recovery::remove_environments(Arc::clone(&desk.0), opened_at));
        tasks.spawn(recovery::remove_forgotten(Arc::clone(&desk.0)));
        drop(tasks);
        Ok(desk)
    }

    /// The name under which this desk holds its jobs.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// Places a call. Everything that can be known to be wrong with it is told before; once this answers, the job survives
    /// whatever happens.
    pub async fn place(&self, order: Order) -> Result<Placed, CallError> {
        Ok(self.place_soon(order).await?.kept().await?)
    }

    /// The same, and answers when the job is written. Nobody must be told of it before the disk has it, or has its end.
    pub async fn place_soon(&self, order: Order) -> Result<Written<Placed>, CallError> {
        let (asked, tool, key) = (order.call.clone(), order.tool.clone(), order.idempotency_key.clone());
        let environment = order.environment.clone();
        if let Some(environment) = &environment {
            self.0.store.redact_values(&environment.secrets());
        }
        let Written { value: placed, on_disk } = match self.checked(order).await {
            Ok(order) => self.keep(order, environment).await?,
            // A call that was placed before is the same call, whatever has become of its folder or its agent.
            Err(error) => match self.keyed(key.as_deref()).await? {
                Some(job) => {
                    self.0.store.bring_to_disk().await?;
                    Written::and_kept(store::Placed { job, is_new: false, redactions: 0, claimed: None })
                }
                None => return Err(error),
            },
        };
        let placed = if placed.is_new {
            self.announced(&placed)
        } else {
            self.placed_before(&placed.job, &asked, &tool, &key.unwrap_or_default())?
        };
        Ok(Written { value: placed, on_disk })
    }

    /// Keeps a job, and before it the environment of its caller: whoever claims the job finds it.
    async fn keep(
        &self,
        order: NewJob,
        environment: Option<CallerEnvironment>,
    ) -> Result<Written<store::Placed>, CallError> {
        let id = self.0.store.new_id()?;
        if let Some(environment) = environment {
            let written = self.0.environments.write(id, &environment);
            written.map_err(|source| CallError::Files { job: id, source })?;
        }
        let kept = dispatch::keep(&self.0, id, order).await;
        let is_placed = match &kept {
            Ok(kept) => kept.value.job.id == id,
            // It may be there all the same.
            Err(error) => matches!(error, store::StoreError::Unconfirmed { .. }),
        };
        if !is_placed {
            self.0.environments.remove(id);
        }
        Ok(kept?)
    }

    /// What is kept of a call that could be launched right now.
    async fn checked(&self, order: Order) -> Result<NewJob, CallError> {
        let Order {
            mut call,
            tool,
            task,
            idempotency_key,
            parent,
            fire_and_forget,
            expose_stream,
            environment,
        } = order;
        if self.0.closing.is_cancelled() {
            return Err(CallError::Closing);
        }
        let task = task.unwrap_or_else(|| tool.clone());
        let home = self.0.settings.home();
        call.cwd = real_folder(&call.cwd)?;
        if call.session == SessionChoice::ContinueLatest {
            let last = self.0.store.last_session(call.agent, &task, &home).await?;
            let last =
                last.ok_or_else(|| CallError::NoEarlierSession { task: task.clone(), agent: call.agent })?;
            // A conversation is about its folder, and most agents find it nowhere else.
            if Path::new(&last.cwd) != call.cwd {
                return Err(CallError::SessionElsewhere { task, agent: call.agent, folder: last.cwd.into() });
            }
            call.session = SessionChoice::Resume(last.session);
        }
        for folder in &mut call.add_dirs {
            *folder = real_folder(folder)?;
        }
        self.0.check(&call, environment.as_ref()).await?;
        Ok(NewJob {
            task,
            idempotency_key,
            parent,
            fire_and_forget,
            expose_stream,
            max_attempts: self.0.settings.max_attempts,
            ..NewJob::new(call, tool, home)
        })
    }

    /// The job of an earlier call with that key.
    async fn keyed(&self, key: Option<&str>) -> Result<Option<Job>, CallError> {
        let Some(key) = key else { return Ok(None) };
        Ok(self.0.store.keyed(&self.0.settings.home(), key).await?)
    }

    /// A job that was placed, with its folder: who goes away instead of waiting may look into it at once. A disk that refuses
    /// is no reason to lose the job: its course will say so.
    fn announced(&self, placed: &store::Placed) -> Placed {
        let (job, files) = (&placed.job, self.files(placed.job.id));
        // The course of one that has begun is about to make it.
        if job.order.fire_and_forget || self.0.board.get(job.id).is_none() {
            files.show(job);
        }
        let (job, created_at) = (job.id, job.created_at);
        Placed { job, created_at, is_new: true, redactions: placed.redactions, files }
    }

    /// The job of an earlier call with the same key, if it asked for the same.
    fn placed_before(&self, job: &Job, call: &CallSpec, tool: &str, key: &str) -> Result<Placed, CallError> {
        if !self.0.asked_for_the_same(&job.order, call, tool) {
            return Err(CallError::KeyOfAnother { key: key.to_owned(), job: job.id });
        }
        let files = self.files(job.id);
        Ok(Placed { job: job.id, created_at: job.created_at, is_new: false, redactions: 0, files })
    }

    /// What a job has come to so far.
    pub async fn answer(&self, job: JobId) -> Result<Answer, CallError> {
        let (answer, kept) = self.answer_soon(job).await?;
        kept.by(Instant::now()).await;
        Ok(answer)
    }

    /// The same, which must not be told before the disk has it.
    pub async fn answer_soon(&self, job: JobId) -> Result<(Answer, Kept), CallError> {
        let (job, kept) = self.find_soon(job).await?;
        let activity = self.activity(job.id).map(|activity| activity.borrow().clone());
        let answer = Answer::of(&job, &self.files(job.id), activity.as_ref(), self.0.store.now());
        Ok((answer.waiting_for(self.wait_reason(&job).as_ref()), kept))
    }

    /// Returns why a job waits before its next run; none while an agent runs, and once the job has ended.
    pub fn wait_reason(&self, job: &Job) -> Option<WaitReason> {
        let now = self.0.store.now();
        match job.progress.state {
            JobState::Paused { until } if until > now => {
                Some(WaitReason::Quota { until, left: until.since(now) })
            }
            // A pause that is over leaves the job to the next free slot.
            JobState::Queued | JobState::Paused { .. } => self.0.slot_reason(job.order.call.agent),
            JobState::Running { .. } | JobState::Interrupted { .. } => {
                self.activity(job.id)?.borrow().waiting.clone()
            }
            JobState::Ended { .. } => None,
        }
    }

    /// Returns how long the runs of a job have taken that this desk holds.
    pub fn run_time(&self, job: JobId) -> Option<Duration> {
        let activity = self.activity(job)?;
        let run_time = activity.borrow().run_time(self.0.store.now());
        Some(run_time)
    }

    /// A job, with all that is known of it.
    pub async fn job(&self, job: JobId) -> Result<Job, CallError> {
        let (job, kept) = self.find_soon(job).await?;
        kept.by(Instant::now()).await;
        Ok(Arc::unwrap_or_clone(job))
    }

    async fn find_soon(&self, job: JobId) -> Result<(Arc<Job>, Kept), CallError> {
        if let Some(ended) = self.0.recent.get(job) {
            return Ok((ended, Kept::of(None)));
        }
        if let Some(live) = self.0.board.get(job)
            && let Some((ended, _)) = live.end.get()
        {
            return Ok((Arc::clone(ended), Kept::of(Some(live))));
        }
        let record = self.0.store.get(job).await?.ok_or(CallError::NoSuchJob { job })?;
        let live = self.0.board.get(job).filter(|_| record.completed_at.is_some());
        let kept = Kept::of(live);
        if let Some(live) = &kept.live {
            // Its files are being written.
            let _ = tokio::time::timeout_at(kept.until, live.written.cancelled()).await;
        }
        Ok((Arc::new(record), kept))
    }

    /// The job whose id begins like this.
    pub async fn find(&self, prefix: JobIdPrefix) -> Result<Found, CallError> {
        Ok(self.0.store.find(prefix).await?)
    }

    /// The jobs that fit, the newest first.
    pub async fn list(&self, filter: &JobFilter, page: PageRequest) -> Result<Page, CallError> {
        Ok(self.0.store.list(filter, page).await?)
    }

    /// How many jobs fit.
    pub async fn count(&self, filter: &JobFilter) -> Result<u64, CallError> {
        Ok(self.0.store.count(filter).await?)
    }

    /// Counts, durations, tokens and cost.
    pub async fn stats(&self, range: StatsRange) -> Result<Stats, CallError> {
        Ok(self.0.store.stats(range).await?)
    }

    /// The changes of jobs from now on.
    pub async fn changes(&self) -> Result<store::Watch, CallError> {
        Ok(self.0.store.watch().await?)
    }

    /// What time it is for the jobs.
    pub fn now(&self) -> Timestamp {
        self.0.store.now()
    }

    /// The files of a job, which need not be there.
    pub fn files(&self, job: JobId) -> JobFiles {
        JobFiles::of(&self.0.settings.state, job)
    }

    /// A part of what a job's agent printed.
    pub async fn output(
        &self,
        job: JobId,
        stream: Stream,
        offset: u64,
        limit: usize,
    ) -> Result<Part, CallError> {
        self.job(job).await?;
        let files = self.files(job);
        let read = tokio::task::spawn_blocking(move || files.part(stream, offset, limit)).await;
        let read = read.map_err(std::io::Error::other).and_then(|part| part);
        read.map_err(|source| CallError::Files { job, source })
    }

    /// The processes of a job's newest run that can be seen now; none when nothing of it runs on this machine.
    pub async fn processes(&self, job: JobId) -> Result<Vec<SeenProcess>, CallError> {
        let files = self.files(job);
        let Some(newest) = files.runs().pop() else { return Ok(Vec::new()) };
        // One that is just being made, or was removed, has none either.
        let Ok(run) = supervisor::attach(&files.run(newest)).await else { return Ok(Vec::new()) };
        let seen = tokio::task::spawn_blocking(move || run.processes()).await;
        let seen = seen.map_err(std::io::Error::other).and_then(|seen| seen);
        seen.map_err(|source| CallError::Files { job, source })
    }

    /// What is going on in a job, as long as this desk runs it.
    pub fn activity(&self, job: JobId) -> Option<watch::Receiver<Activity>> {
        Some(self.0.board.get(job)?.activity.subscribe())
    }

    /// Wants a job to end: durable first, signalled second. One that runs is stopped with everything that it has started. Asked
    /// again, it is the same; a job that has ended otherwise is an error.
    pub async fn cancel(&self, job: JobId) -> Result<Cancelled, CallError> {
        let reply = match self.0.store.request_cancel(job).await {
            Ok(reply) => reply,
            Err(store::StoreError::NoSuchJob { job }) => return Err(CallError::NoSuchJob { job }),
            Err(source) => {
                let Some(live) = self.0.board.get(job) else { return Err(source.into()) };
                // Nobody has to watch an agent go on because the disk that it fills cannot keep the wish. Whoever judges the run finds
                // that it was stopped.
                live.stop.cancel();
                return Err(CallError::StoppedUnkept { job, source });
            }
        };
        if reply.previous.ended().is_some() && reply.previous != StateName::Cancelled {
            return Err(CallError::AlreadyEnded { job, state: reply.previous });
        }
        if let Some(live) = self.0.board.get(job).filter(|_| reply.needs_stop()) {
            live.stop.cancel();
        } else if reply.now == StateName::Cancelled && reply.previous != StateName::Cancelled {
            self.0.record(job).await;
        }
        Ok(Cancelled { previous: reply.previous, now: reply.now })
    }

    /// Takes no more calls, and wants everything to end that this desk holds, also what it is just beginning.
    pub async fn cancel_all(&self) {
        let held = self.held();
        // First: what only waits would be left to the next desk by a close, and not be ended.
        self.0.board.stop_all();
        self.0.closing.cancel();
        for job in held {
            match self.cancel(job).await {
                // One that has just ended need not be cancelled.
                Ok(_) | Err(CallError::AlreadyEnded { .. } | CallError::NoSuchJob { .. }) => {}
                Err(error) => tracing::warn!(%job, error = model::in_full(&error), "it is stopped"),
            }
        }
    }

    /// Places an ended job again, as a new one, with the environment of the caller.
    pub async fn retry(
        &self,
        job: JobId,
        environment: Option<CallerEnvironment>,
    ) -> Result<Placed, CallError> {
        if let Some(environment) = &environment {
            self.0.store.redact_values(&environment.secrets());
        }
        let order = self.0.store.order_of_retry(job).await?;
        let Written { value: placed, on_disk } = self.keep(order, environment).await?;
        let announced = self.announced(&placed);
        on_disk.reached().await?;
        Ok(announced)
    }

    /// The jobs that this desk holds.
    pub fn held(&self) -> Vec<JobId> {
        self.0.board.all().iter().map(|live| live.claim.job).collect()
    }

    /// How many jobs this desk holds.
    pub fn running(&self) -> usize {
        self.0.board.len()
    }

    /// Closes the desk. Afterwards every job is in the store or under a supervisor.
    pub async fn close(&self, how: Leave) {
        self.0.closing.cancel();
        if how == Leave::Now {
            self.0.leaving.cancel();
        }
        let mut tasks = self.0.tasks.lock().await;
        while tasks.join_next().await.is_some() {}
    }
}

impl Inner {
    /// Returns which slots are all in use, when a job of that agent has to wait for one.
    pub fn slot_reason(&self, agent: AgentKind) -> Option<WaitReason> {
        let (used, limit, is_own) = self.seats.full(agent)?;
        Some(WaitReason::Slot { used, limit, agent: is_own.then_some(agent) })
    }

    pub fn files(&self, job: JobId) -> JobFiles {
        JobFiles::of(&self.settings.state, job)
    }

    /// What is to be known about an agent to launch it.
    pub async fn setup(
        &self,
        spec: &CallSpec,
        environment: Option<&CallerEnvironment>,
        private_folder: PathBuf,
    ) -> Result<Setup, NotReady> {
        let mut lookup = self.settings.lookup.clone();
        if let Some(environment) = environment {
            lookup.inherited = environment.applied_to(&lookup.inherited, &self.settings.pass_on);
        }
        let inherited = lookup.inherited.clone();
        let AgentCheck { program, version, capabilities, findings, agent, .. } =
            self.program(spec.agent, lookup).await;
        let Some(program) = program else { return Err(NotReady { agent, findings }) };
        Ok(Setup {
            program,
            version,
            capabilities,
            models: self.settings.models.clone(),
            inherited,
            pass_on: self.settings.pass_on.clone(),
            private_folder,
            workspace: agents::inspect_workspace(spec, &self.settings.lookup.inherited),
            tool_timeout: self.settings.tool_timeout,
            new_session: uuid::Uuid::new_v4().into(),
            premises: self.settings.premises(),
        })
    }

    /// An agent's program, looked for again from time to time: it may be installed or replaced while the desk is open.
    async fn program(&self, kind: AgentKind, lookup: Lookup) -> AgentCheck {
        let path = lookup.inherited.get("PATH").cloned().unwrap_or_default();
        let known = |programs: &Vec<KnownProgram>| {
            let is_this = |known: &&KnownProgram| known.agent == kind && known.path == path;
            let found = programs.iter().find(is_this).filter(|known| known.at.elapsed() < PROGRAM_KNOWN_FOR);
            found.map(|known| known.check.clone())
        };
        if let Some(check) = known(&self.lock_programs()) {
            return check;
        }
        let looked = tokio::task::spawn_blocking(move || doctor::look_up(kind, &lookup)).await;
        // The look itself does not panic; were it to, the agent counts as not found, and the next call looks again.
        let Ok(check) = looked else {
            return doctor::look_up(kind, &Lookup::default());
        };
        let mut programs = self.lock_programs();
        programs.retain(|known| {
            known.at.elapsed() < PROGRAM_KNOWN_FOR && (known.agent != kind || known.path != path)
        });
        // One that is missing is looked for every time: it may be installed any moment.
        if check.program.is_some() {
            programs.push(KnownProgram { agent: kind, path, at: Instant::now(), check: check.clone() });
        }
        check
    }

    fn lock_programs(&self) -> std::sync::MutexGuard<'_, Vec<KnownProgram>> {
        self.programs.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether a job is what a call asks for, as far as its caller could tell.
    fn asked_for_the_same(&self, job: &NewJob, call: &CallSpec, tool: &str) -> bool {
        let mut prompt = call.prompt.clone();
        // As it was kept.
        self.store.redact(&mut prompt);
        // A folder that is gone was there when the call was placed.
        let same_folder = call.cwd.canonicalize().map_or(true, |cwd| cwd == job.call.cwd);
        let same_session = call.session == SessionChoice::ContinueLatest || call.session == job.call.session;
        job.tool == tool
            && job.call.agent == call.agent
            && job.call.prompt == prompt
            && job.call.model == call.model
            && job.call.mode == call.mode
            && same_folder
            && same_session
    }

    /// Everything that would keep the call from being launched right now.
    async fn check(&self, call: &CallSpec, environment: Option<&CallerEnvironment>) -> Result<(), CallError> {
        let setup = self.setup(call, environment, PathBuf::from("/nonexistent/private")).await?;
        agents::launch(call, &setup)?;
        Ok(())
    }

    /// Writes the files of a job as the store has it now.
    pub async fn record(&self, job: JobId) {
        if let Ok(Some(record)) = self.store.get(job).await {
            self.write_down(&record);
        }
    }

    /// Writes the files of a job. The store is what counts, so a failure is only told.
    pub fn write_down(&self, record: &Job) {
        let files = self.files(record.id);
        if let Err(error) = files.point_at_newest() {
            tracing::warn!(job = %record.id, %error, "cannot lead to what the run has printed");
        }
        let write = || {
            if record.completed_at.is_some() {
                self.environments.remove(record.id);
                files.replace("result.json", &Answer::of(record, &files, None, self.store.now()))?;
            }
            files.write_status(record, record.progress.state.name(), None)
        };
        let written = match write() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => files.make().and_then(|()| write()),
            written => written,
        };
        if let Err(error) = written {
            tracing::warn!(job = %record.id, %error, "cannot write the files of the job");
        }
    }
}

/// A folder without links in its path: what an agent is confined to must not depend on where a link leads later.
fn real_folder(folder: &Path) -> Result<PathBuf, CallError> {
    if !folder.is_absolute() {
        return Err(CallError::CwdIsRelative { folder: folder.to_owned() });
    }
    let real =
        folder.canonicalize().map_err(|source| CallError::Cwd { folder: folder.to_owned(), source })?;
    if real.is_dir() { Ok(real) } else { Err(CallError::CwdIsNoFolder { folder: folder.to_owned() }) }
}
