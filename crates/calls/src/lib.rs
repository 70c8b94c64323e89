//! The use cases of Switchboard: submit a call, run it, wait for it, follow it, cancel it, recover it after a crash.
//!
//! Owns a job from its submission to its answer. Knows no protocol and no terminal; front ends use a [`JobService`]. Spawns no process
//! itself (see `supervisor`), knows no vendor (see `agents`), and contains no query (see `store`).
//!
//! ```text
//! service ─► store: queued ─► scheduler: claim ─► runner: locks, slot ─► agent-run: start, follow, judge ─► decide
//!                                 ▲                      ▲                                                   │
//!                                 │                      └── resume after max turns ◄────────────────────────┤
//!                                 └── paused (quota) or requeued (run lost) ◄────────────────────────────────┴─► store: ended ─► waiters
//! ```
//!
//! A job is durable before its agent starts, and its end is durable before a waiter sees it. An agent runs under a supervisor, which
//! outlives the service: the next service re-attaches to its runs ([`JobService::open`]). Dependencies between modules point one way:
//! service → scheduler → runner → {decide, recovery, files, store}.

mod active;
mod activity;
mod answer;
mod caller_environment;
mod checkouts;
mod claim_jitter;
mod claims;
mod confinement;
mod decide;
mod direct_runs;
mod error;
mod files;
mod group;
mod heartbeat;
mod identity;
mod janitor;
mod job_changes;
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
mod state_place;
mod store_health;
mod store_loss;
mod verification;
mod wait_reason;

pub use activity::{Activity, describe_wait};
pub use answer::{
    Answer, Denial, JobStatus, ListedRefusal, MAX_RESPONSE_CHARS, Problem, Processes, Tokens, Truncated,
    UnfinishedTask, killed_processes_note,
};
pub use caller_environment::{CallerEnvironment, agent_variables, secret_values};
pub use changes::{Conflict, ConflictReason, Direction, RestoreAction, RestoreError, Restored, RestoredFile};
pub use checkouts::PrepareError;
pub use confinement::{Gap, QuarantinedPath, Sandbox, ceiling_note};
pub use error::CallError;
pub use files::{JobFiles, OutputPart, StatusFile, Stream};
pub use group::{GroupError, GroupVerdict, VerdictState};
pub use job_changes::{ChangedFile, Changes, ChangesState, Collision, PrivateCheckout};
pub use rebuild::{RecoveryReport, SkippedDirectory, recover_store};
pub use service::{
    Applied, ApplyRequest, CallRequest, Cancellation, ClosedJobs, Contender, FileSelection, Follow, Followed,
    GroupMatch, GroupReport, GroupRequest, JobService, OpenChanges, SubmittedGroup, SubmittedJob, Until,
};
pub use settings::{PolicyCeiling, RepositoryOptions, Settings};
// Types of the store that occur in the interface of the service.
pub use shutdown::ShutdownMode;
pub use store::{
    BadPattern, ChangeStream, CredentialSource, Credentials, CredentialsError, JobFilter, JobSummary, Page,
    PageRequest, PrefixMatch, Redactor, RetentionLimits, SettingError, Stats, StatsRange, StoreOptions,
    StoreSetting, WatchEvent,
};
pub use store_loss::{LostJobs, find_lost_jobs};
pub use supervisor::ProcessInfo;
pub use verification::{Verification, VerificationState, VerifyError};
pub use wait_reason::WaitReason;
