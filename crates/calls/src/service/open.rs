//! Opens and closes the service.

use std::sync::Arc;

use model::{Job, Placement, Timestamp};
use store::Store;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;

use super::{JobService, Parts};
use crate::active::ActiveJobs;
use crate::caller_environment::CallerEnvironments;
use crate::error::CallError;
use crate::files::{create_private, jobs_directory};
use crate::heartbeat::Heartbeat;
use crate::janitor::Janitor;
use crate::launcher::Launcher;
use crate::locks::ResourceLocks;
use crate::nesting::NestedCalls;
use crate::orphans::{OrphanKeeper, Predecessors};
use crate::recent_jobs::RecentJobs;
use crate::records::JobRecords;
use crate::runner::{RunnerContext, StartMode};
use crate::scheduler::{JobTasks, Scheduler};
use crate::settings::Settings;
use crate::shutdown::{Shutdown, ShutdownMode};
use crate::slots::Slots;
use crate::state_place::StatePlace;
use crate::store_health::StoreHealth;
use crate::store_loss;

impl JobService {
    /// Opens the store, adopts the jobs of earlier services, and starts to work.
    ///
    /// The caller ensures that no other service uses the state directory, so that every earlier owner from there is dead. Must be called
    /// within a tokio runtime.
    #[expect(clippy::too_many_lines, reason = "it only connects the parts")]
    pub async fn open(settings: Settings) -> Result<Self, CallError> {
        let settings = Arc::new(Settings { supervisor: settings.supervisor.with_fork_server(), ..settings });
        let cannot_use = |source| CallError::State { directory: settings.state.clone(), source };
        create_private(&jobs_directory(&settings.state)).map_err(cannot_use)?;
        let environments = Arc::new(CallerEnvironments::open(&settings.state).map_err(cannot_use)?);
        reject_lost_store(&settings)?;
        let store = Store::open(settings.store.clone()).await?;
        let predecessors = Predecessors::find(&settings, &store).await?;
        let owner = predecessors.identity.new_owner();
        let home = settings.host.clone().map_or_else(|| predecessors.identity.home(), Placement::Host);
        let homes = predecessors.homes(&settings, &home);

        let (shutdown, wake) = (Shutdown::default(), Arc::new(Notify::new()));
        let (active, recent) = (Arc::new(ActiveJobs::default()), Arc::new(RecentJobs::default()));
        let slots = Slots::new(settings.at_once, &settings.per_agent);
        let locks = Arc::new(ResourceLocks::default());
        let nested = NestedCalls::new(Arc::clone(&active), Arc::clone(&slots));
        let launcher =
            Arc::new(Launcher::new(Arc::clone(&settings), store.clone(), Arc::clone(&environments)));
        let health = Arc::new(StoreHealth::new(store.clone(), owner.clone()));
        let place = StatePlace::new(settings.state.clone()).map_err(cannot_use)?;
        let records = JobRecords::new(place, store.clone(), Arc::clone(&environments), nested.clone());
        let records = Arc::new(records);
        let orphans = Arc::new(OrphanKeeper {
            settings: Arc::clone(&settings),
            store: store.clone(),
            owner: owner.clone(),
            homes: homes.clone(),
            records: Arc::clone(&records),
            locks: Arc::clone(&locks),
            wake: Arc::clone(&wake),
        });
        let runners = Arc::new(RunnerContext {
            settings: Arc::clone(&settings),
            store: store.clone(),
            launcher: Arc::clone(&launcher),
            records: Arc::clone(&records),
            active: Arc::clone(&active),
            recent: Arc::clone(&recent),
            slots: Arc::clone(&slots),
            locks: Arc::clone(&locks),
            worktrees: Arc::default(),
            nested: nested.clone(),
            health: Arc::clone(&health),
            shutdown: shutdown.clone(),
            wake: Arc::clone(&wake),
        });
        let scheduler = Arc::new(Scheduler {
            settings: Arc::clone(&settings),
            store: store.clone(),
            owner: owner.clone(),
            homes,
            active: Arc::clone(&active),
            slots: Arc::clone(&slots),
            records: Arc::clone(&records),
            health: Arc::clone(&health),
            orphans: Arc::clone(&orphans),
            runners,
            shutdown: shutdown.clone(),
            wake,
            tasks: JobTasks::default(),
        });
        let janitor = Arc::new(Janitor {
            settings: Arc::clone(&settings),
            store: store.clone(),
            records: Arc::clone(&records),
            active: Arc::clone(&active),
            recent: Arc::clone(&recent),
            environments: Arc::clone(&environments),
            locks,
            shutdown: shutdown.clone(),
        });
        let heartbeat = Heartbeat {
            store: store.clone(),
            owner: owner.clone(),
            lease: settings.lease,
            active: Arc::clone(&active),
            health: Arc::clone(&health),
            orphans: Arc::clone(&orphans),
            shutdown: shutdown.clone(),
        };

        let (opened_at, adopted) = (store.now(), orphans.adopt_orphans(predecessors).await?);
        // The rescue has written the heartbeat of this owner.
        store_loss::note_owner(&settings.state, &settings.store, &owner);
        let background = spawn_background(&scheduler, &janitor, heartbeat, adopted, opened_at);
        Ok(Self(Arc::new(Parts {
            settings,
            store,
            owner,
            home,
            active,
            recent,
            slots,
            nested,
            environments,
            launcher,
            records,
            health,
            scheduler,
            shutdown,
            background: Mutex::new(background),
            group_submissions: Mutex::default(),
        })))
    }

    /// Closes the service. Afterwards every job is in the store or under a supervisor.
    pub async fn close(&self, mode: ShutdownMode) {
        self.0.shutdown.start(mode);
        let mut background = self.0.background.lock().await;
        while background.join_next().await.is_some() {}
        if let Err(error) = self.0.store.release(&self.0.owner).await {
            tracing::warn!(%error, "cannot record that the store was closed");
        }
    }
}

/// Rejects a store that lacks jobs which the job directories contain. An unreadable database is reported when it is opened.
fn reject_lost_store(settings: &Settings) -> Result<(), CallError> {
    let Ok(Some(lost)) = store_loss::find_lost_jobs(&settings.state, &settings.store) else { return Ok(()) };
    tracing::error!(error = %lost, hint = lost.hint(&settings.state), "cannot use the store");
    Err(CallError::JobsLost { directory: settings.state.clone(), lost })
}

/// Starts the tasks that last until the service is closed.
fn spawn_background(
    scheduler: &Arc<Scheduler>,
    janitor: &Arc<Janitor>,
    heartbeat: Heartbeat,
    adopted: Vec<(Job, StartMode)>,
    opened_at: Timestamp,
) -> JoinSet<()> {
    let (claiming, watching) = (Arc::clone(scheduler), Arc::clone(scheduler));
    let [sweeping, completing, stale, leftovers] = std::array::from_fn(|_| Arc::clone(janitor));
    let mut background = JoinSet::new();
    background.spawn(async move { claiming.run(adopted).await });
    background.spawn(async move { watching.watch_changes().await });
    background.spawn(async move { heartbeat.run().await });
    background.spawn(async move { sweeping.sweep_regularly().await });
    background.spawn(async move { completing.complete_files().await });
    background.spawn(async move { stale.remove_stale_environments(opened_at).await });
    background.spawn(async move { leftovers.remove_leftovers().await });
    background
}
