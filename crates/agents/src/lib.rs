//! Everything specific to a coding-agent CLI: discovery, launch, stream parsing and judgment.
//!
//! Owns every fact about a vendor: flags, variables, event formats, exit codes, error messages. Pure, except for [`doctor`] and
//! [`inspect_workspace`], which read the machine. Spawns no agent (see `supervisor`) and stores nothing (see `store`).
//!
//! The path of a call through this crate:
//! ```text
//! CallSpec ──launch──► RunPlan ──(supervisor)──► stdout ──Driver──► AgentEvent …
//!                                                   │                   └──► Summary ─┐
//!                                                   └─ RunReport, tail of stderr ─────┴─judge─► Outcome
//! ```
//! A call that reaches its turn limit takes several runs: [`RunSequence`] plans the next run and combines their outcomes.

pub mod doctor;
mod driver;
mod early_stop;
mod environment;
mod file_references;
mod git_settings;
mod hosts;
mod images;
mod launch;
mod models;
mod outcome;
mod private_state;
mod profile;
mod profiles;
mod prompt_limit;
mod sequence;
mod server_variables;
mod settings_programs;
mod setup;
mod state;
mod stderr;
mod user_configuration;
mod version;
mod workspace;

pub use driver::{
    AcpImage, AcpServer, AcpSession, AcpSpec, AnswerRule, AppServerSpec, AppServerThread, Driver, DriverSpec,
    ExitRule, ModelErrorReport, ParseLimits, PermissionRule, PlainSpec, RefusedErrno, RefusedPath,
    RefusedPaths, ReportedError, ReportedErrorCode, ReportedResult, Summary, TaskTracker, UsageReport,
};
pub use early_stop::{EarlyStop, Patience, early_stop};
pub use environment::{DefaultVariables, environment, forbidden_variable};
pub use file_references::FileReferences;
pub use git_settings::GitSettings;
pub use images::{ImageFile, read_images};
pub use launch::{Launch, LaunchError, launch};
pub use models::{BadModelName, ModelTable, ModelTables};
pub use outcome::{FinishedRun, judge};
pub use private_state::seed_private_state;
pub use profile::{
    AcpRules, AgentFeature, AgentProfile, KeptRule, LaunchRules, LoginRule, NativeProgram, PlainRules,
    ProfileSupport, StateRule, StateVariable,
};
pub use profiles::{AgentProfiles, UnknownAgent};
pub use prompt_limit::{MAX_PROMPT_BYTES, PromptLimit};
pub use sequence::{CONTINUE_PROMPT, MAX_RESUME_ATTEMPTS, RunSequence, SequenceStep};
pub use server_variables::{named_variables, resolve_variables};
pub use setup::{Capabilities, Capability, CheckoutAccess, HostConfig, LaunchSetup};
pub use stderr::StderrTail;
pub use version::{TestedRange, Version, VersionSupport};
pub use workspace::{AgentDefinition, WorkspaceFiles, inspect_workspace, protect_programs_of_checkout};
