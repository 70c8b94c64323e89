//! The job service: submit, query, wait, follow, cancel.
//!
//! Returns nothing to a caller before it is durable: neither a submitted job nor the end of one. Starts no job itself (see
//! `scheduler`).

mod cancel;
mod changes;
mod checkouts;
mod follow;
mod groups;
mod open;
mod query;
mod submit;
mod wait;

use std::sync::Arc;

use agents::{AgentProfile, AgentProfiles, doctor};
use model::{JobId, Owner, Placement};
use store::{Store, StoreLoss};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::active::ActiveJobs;
use crate::caller_environment::CallerEnvironments;
use crate::files::JobFiles;
use crate::launcher::Launcher;
use crate::nesting::NestedCalls;
use crate::recent_jobs::RecentJobs;
use crate::records::JobRecords;
use crate::scheduler::Scheduler;
use crate::settings::Settings;
use crate::shutdown::Shutdown;
use crate::slots::Slots;
use crate::store_health::StoreHealth;

pub use cancel::Cancellation;
pub use changes::FileSelection;
pub use checkouts::{Applied, ApplyRequest, OpenChanges};
pub use follow::{Follow, Followed};
pub use groups::{ClosedJobs, Contender, GroupMatch, GroupReport, GroupRequest, SubmittedGroup};
pub use submit::{CallRequest, SubmittedJob};
pub use wait::Until;

/// The jobs of a state directory. Clones share one service, which works until it is closed ([`JobService::close`]).
#[derive(Debug, Clone)]
pub struct JobService(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    settings: Arc<Settings>,
    store: Store,
    owner: Owner,
    /// The home of submitted jobs.
    home: Placement,
    active: Arc<ActiveJobs>,
    recent: Arc<RecentJobs>,
    slots: Arc<Slots>,
    nested: NestedCalls,
    environments: Arc<CallerEnvironments>,
    launcher: Arc<Launcher>,
    records: Arc<JobRecords>,
    health: Arc<StoreHealth>,
    scheduler: Arc<Scheduler>,
    shutdown: Shutdown,
    background: Mutex<JoinSet<()>>,
    /// Held while a group is submitted.
    group_submissions: Mutex<()>,
}

impl Drop for Parts {
    /// Leaves the tasks running: only a close stops them.
    fn drop(&mut self) {
        self.background.get_mut().detach_all();
    }
}

impl JobService {
    /// Returns the name under which this service holds its jobs.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// Redacts a secret of the daemon from all texts that are stored from now on.
    pub fn redact_secret(&self, secret: &str) {
        self.0.store.redact_values(&[secret]);
    }

    /// Returns how the store was lost, if it was removed, replaced or emptied while this service had it open.
    pub fn store_loss(&self) -> Option<StoreLoss> {
        self.0.health.check().err()
    }

    /// Returns the known agents.
    pub fn profiles(&self) -> &AgentProfiles {
        &self.0.settings.lookup.profiles
    }

    /// Returns the agents whose program is installed.
    pub fn installed_agents(&self) -> Vec<Arc<AgentProfile>> {
        let lookup = &self.0.settings.lookup;
        let is_installed =
            |profile: &&Arc<AgentProfile>| doctor::find_program(profile.agent, lookup, []).is_some();
        lookup.profiles.iter().filter(is_installed).cloned().collect()
    }

    /// Returns the files of a job, which need not exist.
    pub fn files(&self, job: JobId) -> JobFiles {
        self.0.records.files(job)
    }

    /// Returns the jobs that this service holds.
    pub fn held(&self) -> Vec<JobId> {
        self.0.active.all().iter().map(|active| active.claim.job).collect()
    }

    /// Returns the number of jobs that this service holds.
    pub fn running(&self) -> usize {
        self.0.active.len()
    }

    /// Returns the job whose supervisor is among these processes.
    pub fn job_of_processes(&self, processes: &[u32]) -> Option<JobId> {
        self.0.nested.find_parent(processes)
    }
}
