//! The data types of Switchboard, shared by all crates.
//!
//! Owns the types and their serialized forms. No I/O, clock, randomness or async: everything is tested without a process.

mod agent_state;
mod agent_text;
mod caches;
mod call;
mod change_set;
mod confined;
mod error_chain;
mod event;
pub mod exact_path;
mod group;
mod home_view;
mod hosts;
mod job;
mod job_id;
mod job_state;
mod limits;
mod outcome;
mod plan;
mod policy;
mod profile_name;
mod progress;
mod report;
mod run_id;
mod session;
mod stats;
mod status;
mod timestamp;
mod verify;

pub use agent_state::{AgentState, KeptPath};
pub use agent_text::{AgentText, RawJson};
pub use caches::Caches;
pub use call::{
    AgentKind, AgentName, BadName, CallSpec, EffortName, McpServer, Mode, PermissionMode, SettingSource,
    SettingsChoice, ToolChoice,
};
pub use change_set::{ApplyTarget, ChangeExtent, ChangeKind, ChangeSet, FileChange, NotRecorded};
pub use confined::{
    Confined, Enforcement, Escape, Proof, Quarantined, Safeguard, SafeguardName, SandboxReport,
};
pub use error_chain::error_chain;
pub use event::{AgentEvent, Finish, McpServerState, TextPart, ToolOutput, Unreadable};
pub use group::{AgentChoice, GroupId, GroupKind, GroupRole, JobGroup, MAX_CONTENDERS, MIN_CONTENDERS};
pub use home_view::HomeView;
pub use hosts::{HostRule, is_public};
pub use job::{BadPlacement, Exchange, Job, JobEnd, NewExchange, NewJob, Placement};
pub use job_id::{BadJobId, ExchangeId, JobId, JobIdPrefix};
pub use job_state::{BadStateName, JobState, StateName, TerminalState};
pub use limits::{Deadline, Limits};
pub use outcome::{
    BackgroundStatus, BackgroundTask, Failure, FailureKind, MAX_COST_USD, MAX_TOKENS, Outcome,
    PermissionDenial, RefusedAction, RefusedKind, SessionMismatch, Totals, Usage, Verdict,
};
pub use plan::{InputMode, PlanError, RunLifetime, RunPlan, StatusDurability};
pub use policy::{
    Bounds, CallPolicy, CheckoutSource, Confinement, Network, OnCreate, PRIVATE_DIRECTORIES, Policy,
    PolicyContext, PolicyError, PolicyRoot, Preset, Protected, Requirement, RootAccess, is_in_products,
    protected_in,
};
pub use profile_name::ProfileName;
pub use progress::{Attempt, Claim, Lease, Owner, Progress, Transition, TransitionError};
pub use report::{End, Exit, NotStarted, NotStartedReason, RunReport, TreeEnd, TreeUsage};
pub use run_id::{BadRunId, RunId};
pub use session::{BadSessionId, ExpectedSession, SessionChoice, SessionId};
pub use stats::{DailyStats, DurationBucket, JobStats};
pub use status::{LimitClock, ProcessIdentity, RunState, RunStatus, STATUS_VERSION};
pub use timestamp::Timestamp;
pub use verify::{MAX_COMMAND_BYTES, MAX_REPAIRS, VerifySpec};
