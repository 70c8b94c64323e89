//! The parameters and results of the store's operations.

use std::time::Duration;

use model::{
    AgentKind, Claim, Failure, Job, JobId, Owner, Placement, SessionId, StateName, Timestamp, Usage,
};

/// Describes the jobs that an owner can claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The claiming owner.
    pub owner: Owner,
    /// The homes that it serves: its host and its labels.
    pub homes: Vec<Placement>,
    /// The agents that it can run, with their capacities.
    pub agents: Vec<Capacity>,
    /// The time until the owner's lease expires without a heartbeat.
    pub lease: Duration,
}

/// The number of jobs of an agent that an owner runs concurrently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The agent.
    pub agent: AgentKind,
    /// The maximum number of concurrent jobs.
    pub at_once: u32,
}

/// Selects the owners whose jobs are taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RescueRequest {
    /// The owner that takes over.
    pub rescuer: Owner,
    /// The homes that it serves.
    pub homes: Vec<Placement>,
    /// Owners that are proven dead, even if their leases are valid.
    pub dead: Vec<Owner>,
    /// The lease of the rescuer.
    pub lease: Duration,
}

impl RescueRequest {
    /// Returns the latest plausible expiry of a lease. A later one comes from a wrong clock and would never expire.
    pub(crate) fn latest_lease(&self, now: Timestamp) -> Timestamp {
        now.plus(self.lease).plus(Duration::from_hours(24))
    }
}

/// The result of a submit.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    /// The job, new or of an earlier call with the same key.
    pub job: Job,
    /// Is true if this call created the job.
    pub is_new: bool,
    /// The number of secrets that were redacted from its texts. The agent receives the redacted texts.
    pub redactions: usize,
    /// The next job of the submitting owner, if it requested a claim.
    pub claimed: Option<Box<Job>>,
}

/// A finished job.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The job as stored.
    pub job: Job,
    /// The number of secrets that were redacted from the agent's output.
    pub redactions: usize,
}

/// A claim of an owner, as its heartbeat returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldClaim {
    /// The claim. A run whose claim is not in the list has lost its job.
    pub claim: Claim,
    /// The state of the job: running, or interrupted during cleanup.
    pub state: StateName,
    /// Is true if the cancellation of the job was requested.
    pub cancel_requested: bool,
}

/// The result of a cancellation request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelReply {
    /// The state before.
    pub previous: StateName,
    /// The state after. A job that is still running is stopped by its owner, which must be signaled.
    pub now: StateName,
}

impl CancelReply {
    /// Returns whether a run must be stopped now.
    pub fn needs_stop(self) -> bool {
        matches!(self.now, StateName::Running | StateName::Interrupted)
    }
}

/// Selects jobs. An empty or missing field matches every job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobFilter {
    /// The job is in one of these states.
    pub states: Vec<StateName>,
    /// The job runs this agent.
    pub agent: Option<AgentKind>,
    /// The job was submitted through this tool.
    pub tool: Option<String>,
    /// The job belongs to this task.
    pub task: Option<String>,
    /// The job has this home.
    pub home: Option<Placement>,
    /// The job is a child of this job.
    pub parent: Option<JobId>,
    /// The job uses this session.
    pub session: Option<SessionId>,
    /// The job was submitted at or after this time.
    pub since: Option<Timestamp>,
    /// The job was submitted before this time.
    pub until: Option<Timestamp>,
    /// The task name or the prompt contains this text, ignoring the case of ASCII letters.
    pub text: Option<String>,
}

/// Selects a page of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// The maximum number of jobs, up to 1,000.
    pub limit: u32,
    /// Returns only jobs older than this one: the [`Page::next`] of the previous page.
    pub before: Option<JobId>,
}

impl Default for PageRequest {
    fn default() -> Self {
        Self { limit: 100, before: None }
    }
}

impl PageRequest {
    /// The maximum size of a page.
    pub const MAX: u32 = 1_000;

    pub(crate) fn clamped_limit(self) -> u32 {
        self.limit.clamp(1, Self::MAX)
    }
}

/// A page of a list, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The jobs.
    pub jobs: Vec<JobSummary>,
    /// Jobs with unreadable records; [`crate::Store::get`] returns the error.
    pub unreadable: Vec<JobId>,
    /// The start of the next page; `None` on the last page.
    pub next: Option<JobId>,
}

/// A job in a list, without its long texts.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSummary {
    /// The id.
    pub id: JobId,
    /// The state.
    pub state: StateName,
    /// The number of claims so far.
    pub attempt: u32,
    /// The agent.
    pub agent: AgentKind,
    /// The requested model, or the one that was used.
    pub model: Option<String>,
    /// The tool that submitted the job.
    pub tool: String,
    /// The task.
    pub task: String,
    /// The home: a host or a label.
    pub home: Placement,
    /// The working directory.
    pub cwd: String,
    /// The session.
    pub session: Option<SessionId>,
    /// The parent job.
    pub parent: Option<JobId>,
    /// The time of the submit.
    pub created_at: Timestamp,
    /// The time of the first claim.
    pub started_at: Option<Timestamp>,
    /// The end time.
    pub completed_at: Option<Timestamp>,
    /// The duration of its runs, once finished.
    pub duration: Option<Duration>,
    /// The end of its pause.
    pub paused_until: Option<Timestamp>,
    /// Is true if its cancellation was requested.
    pub cancel_requested: bool,
    /// The failure.
    pub failure: Option<Failure>,
    /// The tokens used.
    pub usage: Option<Usage>,
    /// The cost.
    pub cost_usd: Option<f64>,
    /// The start of the prompt, on one line.
    pub prompt_head: String,
}

/// The result of a search by id prefix.
#[derive(Debug, Clone, PartialEq)]
pub enum PrefixMatch {
    /// No job matches.
    Nothing,
    /// Exactly one job matches.
    One(Box<Job>),
    /// Several jobs match; these are the first ones.
    Several(Vec<JobId>),
}

/// The last session of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastSession {
    /// The session.
    pub session: SessionId,
    /// Its working directory.
    pub cwd: String,
    /// Its last job.
    pub job: JobId,
    /// The time of its last use.
    pub at: Timestamp,
}

/// Limits the finished jobs that are stored. A job is removed if it exceeds either limit; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionLimits {
    /// The maximum age since the end of a job.
    pub max_age: Option<Duration>,
    /// The maximum number of jobs; the newest are retained.
    pub max_count: Option<u64>,
}
