//! The use cases of Switchboard: place a call, run it, wait for it, watch it, cancel it, take it up again after a crash.
//!
//! Owns the way of a job from the moment it is asked for to its answer, and what is done about everything that can happen in
//! between. Knows no protocol and no terminal: whoever serves one has a [`JobService`]. Starts no process itself (see
//! `supervisor`), knows no vendor (see `agents`), writes no query (see `store`).
//!
//! ```text
//! place ─► store: queued ─► claim ─► course: launch ─► supervisor ─► follow ─► judge ─┬─► store: finish ─► answer
//!                             ▲                  ▲                                    ├─► out of turns: wait, resume
//!                             │                  └────────────────────────────────────┘
//!                             └──── pause until the quota is reset; interrupted: queued again ◄──┘
//! ```
//!
//! A job is in the store before anything of it runs, and its end is in the store before anybody is told. What runs does so
//! under a supervisor, which outlives the desk: a desk that opens again finds the runs of the one before and goes on
//! with them ([`JobService::open`]).

mod answer;
mod caller_environment;
mod confinement;
mod course;
mod desk;
mod direct_runs;
mod dispatch;
mod error;
mod files;
mod follow;
mod identity;
mod job_directory;
mod live;
mod locks;
mod nested;
mod recent;
mod recover;
mod recovery;
mod seats;
mod settings;
mod store_loss;
mod told;
mod wait;
mod wait_reason;

pub use answer::{
    Answer, Denial, JobStatus, ListedRefusal, MAX_RESPONSE_CHARS, Problem, Processes, Tokens, Truncated,
    UnfinishedTask, left_running_note,
};
pub use caller_environment::{CallerEnvironment, agent_variables, secret_values};
pub use confinement::{Gap, QuarantinedPath, Sandbox, ceiling_note};
pub use desk::{CallRequest, Cancelled, JobService, Kept, ShutdownMode, SubmittedJob};
pub use error::CallError;
pub use files::{JobFiles, Part, Status, Stream};
pub use follow::{Follow, Followed};
pub use live::{Activity, describe_wait};
pub use recover::{RecoveryReport, SkippedDirectory, recover_store};
pub use settings::{PolicyCeiling, Settings};
// What a desk is opened, asked and answered with: whoever has a desk needs no store.
pub use store::{
    BadPattern, ChangeStream, Committed, CredentialSource, Credentials, CredentialsError, JobFilter,
    JobSummary, Page, PageRequest, PrefixMatch, Redactor, RetentionLimits, SettingError, Stats, StatsRange,
    StoreOptions, StoreSetting, WatchEvent,
};
pub use store_loss::{LostJobs, find_lost_jobs};
pub use supervisor::ProcessInfo;
pub use wait::Until;
pub use wait_reason::WaitReason;
