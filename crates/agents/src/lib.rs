//! Everything specific to a coding-agent CLI: discovery, launch, stream parsing and judgment.
//!
//! Owns every fact about a vendor: flags, variables, event formats, exit codes, error messages. Pure, except for [`doctor`] and
//! [`inspect_workspace`], which read the machine. Spawns no agent (see `supervisor`) and stores nothing (see `store`).
//!
//! The path of a call through this crate:
//! ```text
//! CallSpec ──launch──► RunPlan ──(supervisor)──► stdout ──Parser──► AgentEvent …
//!                                                   │                   └──► Summary ─┐
//!                                                   └─ RunReport, tail of stderr ─────┴─judge─► Outcome
//! ```
//! A call that reaches its turn limit takes several runs: [`RunSequence`] plans the next run and combines their outcomes.

pub mod doctor;
mod early_stop;
mod environment;
mod file_references;
mod git_settings;
mod hosts;
mod launch;
mod models;
mod outcome;
mod parse;
mod private_state;
mod sequence;
mod settings_programs;
mod setup;
mod state;
mod stderr;
mod user_configuration;
mod version;
mod workspace;

pub use early_stop::{EarlyStop, LINGER, early_stop};
pub use environment::{DefaultVariables, default_variables, environment, forbidden_variable};
pub use file_references::FileReferences;
pub use git_settings::GitSettings;
pub use launch::{
    Launch, LaunchError, MAX_PROMPT_BYTES, MAX_PROMPT_BYTES_GEMINI, MAX_PROMPT_CHARS_CODEX, PromptLimit,
    launch,
};
pub use models::{BadModelName, ModelTable, ModelTables};
pub use outcome::{FinishedRun, judge};
pub use parse::{
    ParseLimits, Parser, RefusedErrno, RefusedPath, RefusedPaths, ReportedError, ReportedErrorCode,
    ReportedResult, Summary, TaskTracker,
};
pub use private_state::seed_private_state;
pub use sequence::{CONTINUE_PROMPT, MAX_RESUME_ATTEMPTS, RunSequence, SequenceStep};
pub use setup::{Capabilities, Capability, CheckoutAccess, HostConfig, LaunchSetup};
pub use stderr::StderrTail;
pub use version::{TestedRange, Version, VersionSupport};
pub use workspace::{AgentDefinition, WorkspaceFiles, inspect_workspace, protect_programs_of_checkout};
