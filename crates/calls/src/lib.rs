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

mod active;
mod activity;
mod answer;
mod caller_environment;
mod claim_jitter;
mod claims;
mod confinement;
mod decide;
mod direct_runs;
mod error;
mod files;
mod heartbeat;
mod identity;
mod janitor;
mod job_directory;
mod launcher;
mod locks;
mod metadata;
mod nesting;
mod orphans;
mod rebuild;
mod recent_jobs;
mod records;
mod recovery;
mod run_record;
mod runner;
mod runs;
mod scheduler;
mod service;
mod settings;
mod shutdown;
mod slots;
mod store_health;
mod store_loss;
mod wait_reason;

pub use activity::{Activity, describe_wait};
pub use answer::{
    Answer, Denial, JobStatus, ListedRefusal, MAX_RESPONSE_CHARS, Problem, Processes, Tokens, Truncated,
    UnfinishedTask, left_running_note,
};
pub use caller_environment::{CallerEnvironment, agent_variables, secret_values};
pub use confinement::{Gap, QuarantinedPath, Sandbox, ceiling_note};
pub use error::CallError;
pub use files::{JobFiles, Part, Status, Stream};
pub use rebuild::{RecoveryReport, SkippedDirectory, recover_store};
pub use service::{CallRequest, Cancelled, Follow, Followed, JobService, SubmittedJob, Until};
pub use settings::{PolicyCeiling, Settings};
// What a desk is opened, asked and answered with: whoever has a desk needs no store.
pub use shutdown::ShutdownMode;
pub use store::{
    BadPattern, CredentialSource, Credentials, CredentialsError, Found, JobFilter, JobSummary, Opening, Page,
    PageRequest, Redactor, Retention, Setting, SettingError, Stats, StatsRange, Watch, WatchEvent,
};
pub use store_loss::{LostJobs, find_lost_jobs};
pub use supervisor::SeenProcess;
pub use wait_reason::WaitReason;
