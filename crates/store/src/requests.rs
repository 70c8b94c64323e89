//! What is asked of the store, and what it answers, where a word is not enough.

use std::time::Duration;

use model::{
    AgentKind, Claim, Failure, Job, JobId, Owner, Placement, SessionId, StateName, Timestamp, Usage,
};

use crate::row::LineRow;

/// What an owner can take on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Who asks.
    pub owner: Owner,
    /// The homes that it serves: its host and its labels.
    pub homes: Vec<Placement>,
    /// The agents that it can run, and how many of each at once.
    pub agents: Vec<Capacity>,
    /// For how long the owner counts as alive from now on, without a further word.
    pub lease: Duration,
}

/// How many jobs of an agent an owner runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Which agent.
    pub agent: AgentKind,
    /// How many.
    pub at_once: u32,
}

/// Whose jobs are to be taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RescueRequest {
    /// Who takes over.
    pub rescuer: Owner,
    /// The homes that it serves.
    pub homes: Vec<Placement>,
    /// Owners that are proven dead, whatever their leases say.
    pub dead: Vec<Owner>,
    /// For how long the rescuer counts as alive from now on.
    pub lease: Duration,
}

impl RescueRequest {
    /// The latest end of a lease that is believed. One beyond it is of a clock that was ahead, and would hold for ever.
    pub(crate) fn latest_lease(&self, now: Timestamp) -> Timestamp {
        now.plus(self.lease).plus(Duration::from_hours(24))
    }
}

/// What became of a call that was placed.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    /// The job, new or of an earlier call with the same key.
    pub job: Job,
    /// Whether this call made it.
    pub is_new: bool,
    /// How many secrets were taken out of its texts. What the agent will be given lacks them, too.
    pub redactions: usize,
    /// What the owner that placed it is to work on now, if it asked for that.
    pub claimed: Option<Box<Job>>,
}

/// A job that has come to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// As it is kept.
    pub job: Job,
    /// How many secrets were taken out of what the agent said.
    pub redactions: usize,
}

/// A job that an owner holds, as its heartbeat finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The owner's right. A run whose claim is not among those that are held has lost its job.
    pub claim: Claim,
    /// Its state: running, or interrupted while it is cleared up.
    pub state: StateName,
    /// Whether somebody wants it to end.
    pub cancel_requested: bool,
}

/// What a request to cancel found, and what it came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelReply {
    /// The state before.
    pub previous: StateName,
    /// The state after. One that is still running will end by its holder, who has to be told.
    pub now: StateName,
}

impl CancelReply {
    /// Whether somebody has to stop a run now.
    pub fn needs_stop(self) -> bool {
        matches!(self.now, StateName::Running | StateName::Interrupted)
    }
}

/// Which jobs are meant. What is empty or none leaves nothing out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobFilter {
    /// In one of these states.
    pub states: Vec<StateName>,
    /// Of this agent.
    pub agent: Option<AgentKind>,
    /// Through this tool.
    pub tool: Option<String>,
    /// Of this task.
    pub task: Option<String>,
    /// With this home.
    pub home: Option<Placement>,
    /// On behalf of this job.
    pub parent: Option<JobId>,
    /// In this conversation.
    pub session: Option<SessionId>,
    /// Placed at that moment or later.
    pub since: Option<Timestamp>,
    /// Placed before that moment.
    pub until: Option<Timestamp>,
    /// With these words in the name of the task or in the prompt, in capitals or not (of the letters of ASCII, at least).
    pub words: Option<String>,
}

/// Which part of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// How many at most; at most 1,000.
    pub limit: u32,
    /// Only jobs older than this one: the [`Page::next`] of the page before.
    pub before: Option<JobId>,
}

impl Default for PageRequest {
    fn default() -> Self {
        Self { limit: 100, before: None }
    }
}

impl PageRequest {
    /// The longest page.
    pub const MAX: u32 = 1_000;

    pub(crate) fn rows(self) -> u32 {
        self.limit.clamp(1, Self::MAX)
    }
}

/// A part of a list, the newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The jobs.
    pub jobs: Vec<JobSummary>,
    /// Those whose records make no sense; [`crate::Store::get`] says why.
    pub unreadable: Vec<JobId>,
    /// Where the next page begins; none when this is the last.
    pub next: Option<JobId>,
}

impl Page {
    /// Cuts a list that was read one longer than the page, to see whether more follows. A line that could not be read at all
    /// is there by its id.
    pub(crate) fn cut(mut lines: Vec<Result<LineRow, JobId>>, rows: u32) -> Self {
        let rows = rows as usize;
        let id = |line: &Result<LineRow, JobId>| line.as_ref().map_or_else(|job| *job, LineRow::job);
        let more = lines.len() > rows;
        lines.truncate(rows);
        let next = lines.last().filter(|_| more).map(id);
        let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
        for line in lines {
            let job = id(&line);
            match line.ok().and_then(|line| line.summary().ok()) {
                Some(line) => jobs.push(line),
                None => unreadable.push(job),
            }
        }
        Self { jobs, unreadable, next }
    }
}

/// A job in a list: what fits in a line, without its texts.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSummary {
    /// Its name.
    pub id: JobId,
    /// Where it stands.
    pub state: StateName,
    /// How often it was claimed.
    pub attempt: u32,
    /// Who was called.
    pub agent: AgentKind,
    /// The model that was asked for, or that answered.
    pub model: Option<String>,
    /// Through which tool.
    pub tool: String,
    /// For which task.
    pub task: String,
    /// Where it can be run.
    pub home: Placement,
    /// Its folder.
    pub cwd: String,
    /// The conversation.
    pub session: Option<SessionId>,
    /// On behalf of which job.
    pub parent: Option<JobId>,
    /// When it was placed.
    pub created_at: Timestamp,
    /// When it was first claimed.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// How long its runs took, once it has ended.
    pub duration: Option<Duration>,
    /// Until when it waits.
    pub paused_until: Option<Timestamp>,
    /// Whether somebody wants it to end.
    pub cancel_requested: bool,
    /// What went wrong.
    pub failure: Option<Failure>,
    /// Its tokens.
    pub usage: Option<Usage>,
    /// Its cost.
    pub cost_usd: Option<f64>,
    /// How its prompt begins, in one line.
    pub prompt_head: String,
}

/// What the beginning of an id names.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// No job.
    Nothing,
    /// This one.
    One(Box<Job>),
    /// Several; these are the first of them.
    Several(Vec<JobId>),
}

/// The last conversation of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastSession {
    /// Which conversation.
    pub session: SessionId,
    /// The folder it belongs to.
    pub cwd: String,
    /// The job that had it.
    pub job: JobId,
    /// When.
    pub at: Timestamp,
}

/// Which ended jobs are kept. A job is removed when either says so; a limit that is none removes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// How long after its end.
    pub max_age: Option<Duration>,
    /// How many, the newest of them.
    pub max_count: Option<u64>,
}
