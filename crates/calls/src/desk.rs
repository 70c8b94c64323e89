//! Owns what everything else in this crate shares: the store, the slots, the running jobs and the tasks of an open desk.
//!
//! Placing, answering and ending are modules of their own; none of them knows another.

mod answering;
mod ending;
mod placing;
mod programs;

use std::sync::{Arc, OnceLock};

use model::{AgentKind, Job, JobId, Owner, Placement};
use store::{Store, StoreLoss};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::programs::KnownProgram;
use crate::answer::Answer;
use crate::caller_environment::CallerEnvironments;
use crate::dispatch::{self, Handed};
use crate::error::CallError;
use crate::files::{JobFiles, RECORD, jobs, make_private};
use crate::live::Board;
use crate::locks::Locks;
use crate::recent::Recent;
use crate::recovery;
use crate::seats::Seats;
use crate::settings::Settings;
use crate::store_loss;
use crate::wait_reason::WaitReason;

pub use answering::Kept;
pub use ending::{Cancelled, ShutdownMode};
pub use placing::{CallRequest, SubmittedJob};

/// Where calls are placed and asked about. Copies are the same desk. It works until it is closed ([`JobService::close`]).
#[derive(Debug, Clone)]
pub struct JobService(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub settings: Settings,
    pub store: Store,
    pub owner: Owner,
    /// The home of a job that is placed here.
    pub home: Placement,
    /// All homes that are served here, that one first.
    pub homes: Vec<Placement>,
    pub environments: CallerEnvironments,
    /// Set for good once the store was found lost: no call is accepted and no job is claimed any more.
    pub store_loss: OnceLock<StoreLoss>,
    pub board: Board,
    pub locks: Locks,
    pub recent: Recent,
    pub seats: Arc<Seats>,
    /// The jobs that were claimed as they were placed.
    pub handed: Handed,
    /// Something may be there to be claimed.
    pub wake: Notify,
    /// No new claims; what runs is waited for.
    pub closing: CancellationToken,
    /// Everything is let go of at once.
    pub leaving: CancellationToken,
    /// Nothing is held any more.
    pub closed: CancellationToken,
    programs: std::sync::Mutex<Vec<KnownProgram>>,
    tasks: Mutex<JoinSet<()>>,
}

impl JobService {
    /// Opens the store, takes up what an earlier desk has left, and begins to work.
    ///
    /// The caller makes sure that no other desk has the state folder: that is what makes every earlier owner of it a dead one.
    /// Must be called within a tokio runtime.
    pub async fn open(settings: Settings) -> Result<Self, CallError> {
        let settings = Settings { supervisor: settings.supervisor.with_fork_server(), ..settings };
        let cannot_use = |source| CallError::State { folder: settings.state.clone(), source };
        make_private(&jobs(&settings.state)).map_err(cannot_use)?;
        let environments = CallerEnvironments::open(&settings.state).map_err(cannot_use)?;
        // A database that cannot be read is reported by its opening.
        if let Ok(Some(lost)) = store_loss::find_lost_jobs(&settings.state, &settings.store) {
            tracing::error!(error = %lost, hint = lost.hint(&settings.state), "cannot use the store");
            return Err(CallError::JobsLost { folder: settings.state, lost });
        }
        let store = Store::open(settings.store.clone()).await?;
        let predecessors = recovery::find_predecessors(&settings, &store).await?;
        let owner = predecessors.identity.new_owner();
        let home = settings.host.clone().map_or_else(|| predecessors.identity.home(), Placement::Host);
        let homes = predecessors.homes(&settings, &home);
        let desk = Self(Arc::new(Inner {
            seats: Seats::new(settings.at_once, &settings.per_agent),
            settings,
            store,
            owner,
            home,
            homes,
            environments,
            store_loss: OnceLock::new(),
            board: Board::default(),
            locks: Locks::default(),
            recent: Recent::default(),
            handed: Handed::default(),
            wake: Notify::new(),
            closing: CancellationToken::new(),
            leaving: CancellationToken::new(),
            closed: CancellationToken::new(),
            programs: std::sync::Mutex::default(),
            tasks: Mutex::default(),
        }));
        let opened_at = desk.0.store.now();
        let found = recovery::take_over(&desk.0, predecessors).await?;
        // Its heartbeat is in the store by now.
        store_loss::note_owner(&desk.0.settings.state, &desk.0.settings.store, &desk.0.owner);
        let mut tasks = desk.0.tasks.lock().await;
        tasks.spawn(dispatch::work(Arc::clone(&desk.0), found));
        tasks.spawn(dispatch::heartbeat(Arc::clone(&desk.0)));
        tasks.spawn(dispatch::tidy(Arc::clone(&desk.0)));
        tasks.spawn(recovery::record_ends(Arc::clone(&desk.0)));
        tasks.spawn(recovery::remove_environments(Arc::clone(&desk.0), opened_at));
        tasks.spawn(recovery::remove_forgotten(Arc::clone(&desk.0)));
        drop(tasks);
        Ok(desk)
    }

    /// The name under which this desk holds its jobs.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// Returns how the store was lost, if it was removed, replaced or emptied while this desk had it open.
    pub fn store_loss(&self) -> Option<StoreLoss> {
        self.0.check_store().err()
    }

    /// The files of a job, which need not be there.
    pub fn files(&self, job: JobId) -> JobFiles {
        JobFiles::of(&self.0.settings.state, job)
    }

    /// The jobs that this desk holds.
    pub fn held(&self) -> Vec<JobId> {
        self.0.board.all().iter().map(|live| live.claim.job).collect()
    }

    /// How many jobs this desk holds.
    pub fn running(&self) -> usize {
        self.0.board.len()
    }
}

impl Inner {
    /// Refuses to go on with a store that is no longer the one that was opened.
    pub fn check_store(&self) -> Result<(), StoreLoss> {
        match self.store_loss.get() {
            Some(loss) => Err(loss.clone()),
            None => self.store.verify_files(),
        }
    }

    /// Returns which slots are all in use, when a job of that agent has to wait for one.
    pub fn slot_reason(&self, agent: AgentKind) -> Option<WaitReason> {
        let (used, limit, is_own) = self.seats.full(agent)?;
        Some(WaitReason::Slot { used, limit, agent: is_own.then_some(agent) })
    }

    pub fn files(&self, job: JobId) -> JobFiles {
        JobFiles::of(&self.settings.state, job)
    }

    /// Writes the files of a job as the store has it now.
    pub async fn record(&self, job: JobId) {
        if let Ok(Some(record)) = self.store.get(job).await {
            self.write_down(&record);
        }
    }

    /// Writes the files of a job. The store is what counts, so a failure is only told.
    pub fn write_down(&self, record: &Job) {
        let files = self.files(record.id);
        if let Err(error) = files.point_at_newest() {
            tracing::warn!(job = %record.id, %error, "cannot lead to what the run has printed");
        }
        let write = || {
            if record.completed_at.is_some() {
                self.return_slot(record.order.parent, record.id);
                self.environments.remove(record.id);
                files.replace("result.json", &Answer::of(record, &files, None, self.store.now()))?;
            }
            // A disk that has no room for the record may have some for the status.
            let recorded = files.replace(RECORD, record);
            files.write_status(record, record.progress.state.name(), None)?;
            recorded
        };
        let written = match write() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => files.make().and_then(|()| write()),
            written => written,
        };
        if let Err(error) = written {
            tracing::warn!(job = %record.id, %error, "cannot write the files of the job");
        }
    }
}
