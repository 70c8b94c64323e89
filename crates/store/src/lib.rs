//! The durable record of calls and their queue.
//!
//! Owns all database code of Switchboard. Knows no process and no vendor: callers describe jobs, owners and outcomes
//! with the types of `model`. Two engines store the same records behind one [`Store`]:
//!
//! | setting | engine |
//! | --- | --- |
//! | `sqlite:`, `sqlite:/path` | `SQLite` in a file of the user; nothing to install |
//! | `ws://host:port/namespace/database`, `wss://…` | a `SurrealDB` server, which several machines can share |
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use model::{AgentKind, CallSpec, Placement, JobEnd, NewJob, Owner};
//! use store::{Capacity, ClaimRequest, StoreOptions, Store};
//!
//! let store = Store::open(StoreOptions::new("sqlite::memory:".parse()?, "unused")).await?;
//! let here = Placement::Host("this-machine".into());
//! let call = CallSpec::new(AgentKind::Rehearsal, "What is 2 + 2?", "/tmp");
//! let submitted = store.submit(NewJob::new(call, "call", here.clone())).await?;
//!
//! let request = ClaimRequest {
//!     owner: Owner::new("daemon-1"),
//!     homes: vec![here],
//!     agents: vec![Capacity { agent: AgentKind::Rehearsal, at_once: 4 }],
//!     lease: Duration::from_secs(30),
//! };
//! let job = store.claim(request).await?.ok_or("nothing to do")?;
//! assert_eq!(job.id, submitted.job.id);
//! store.finish(&job.claim().ok_or("not ours")?, JobEnd::cancelled()).await?;
//! # Ok(()) }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Durability
//!
//! A write that [`Store::submit`], [`Store::finish`] or [`Store::request_cancel`] has confirmed survives SIGKILL of this
//! process and of the server, and a power failure if the disk honors fsync. A [`Store::claim`] survives SIGKILL. Errors
//! distinguish *not applied* from *outcome unknown* ([`StoreError::certainty`]).

mod clock;
mod committed;
mod credentials;
mod engine;
mod error;
mod ids;
mod job_directories;
mod loss;
mod options;
mod redact;
mod requests;
mod row;
mod setting;
mod sqlite;
mod stats;
mod store;
#[cfg(feature = "surreal")]
mod surreal;
mod token_formats;
mod watch;

pub use clock::{Clock, ManualClock};
pub use committed::{Committed, FlushTicket};
pub use credentials::{
    CredentialLevel, CredentialSource, Credentials, CredentialsError, FILE_VARIABLE, LEVEL_VARIABLE,
    PASSWORD_VARIABLE, USER_VARIABLE,
};
pub use error::{Cause, Certainty, StoreError, SweepError};
pub use job_directories::remove_job_directories;
pub use loss::{Loss, StoreLoss};
pub use options::StoreOptions;
pub use redact::{BadPattern, REPLACEMENT as REDACTED, Redactor};
pub use requests::{
    CancelReply, Capacity, ClaimRequest, Finished, HeldClaim, JobFilter, JobSummary, LastSession, Page,
    PageRequest, PrefixMatch, RescueRequest, RetentionLimits, Submitted,
};
pub use setting::{SettingError, StoreSetting};
pub use sqlite::{DatabaseFile, RejectedJob, RestoredJob};
pub use stats::{Stats, StatsRange, StatsRow};
pub use store::Store;
pub use watch::{ChangeStream, JobChange, WatchEvent};
