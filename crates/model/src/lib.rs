//! The nouns of Switchboard, shared by every crate.
//!
//! Owns what things are and how they are written down (serde). Refuses I/O, clocks, randomness and async: a value here is
//! made from other values, so that all of it is tested without a process.

mod limits;
mod plan;
mod policy;
mod report;
mod run_id;
mod status;

pub use limits::{Deadline, Limits};
pub use plan::{PlanError, RunPlan};
pub use policy::Policy;
pub use report::{End, Exit, NotStarted, NotStartedReason, RunReport, TreeEnd, TreeUsage};
pub use run_id::{BadRunId, RunId};
pub use status::{ProcessIdentity, RunState, RunStatus, STATUS_VERSION};
