//! The store as its users see it: what is asked in the words of the model, kept by either engine.
//!
//! Owns what is the same for both: the clock, the ids, the redaction of secrets. Refuses queries: nobody outside this crate
//! writes SQL or `SurrealQL`.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use model::{
    AgentKind, Claim, Exchange, Job, JobEnd, JobId, JobIdPrefix, JobState, NewJob, Owner, Placement,
    SessionId, Timestamp, Transition, TransitionError,
};

use crate::clock::Clock;
use crate::committed::Committed;
use crate::credentials::Credentials;
use crate::engine::{Begun, Engine};
use crate::error::{StoreError, SweepError};
use crate::ids::Ids;
use crate::loss::StoreLoss;
use crate::redact::Redactor;
use crate::requests::{
    CancelReply, ClaimRequest, Finished, Found, Held, JobFilter, LastSession, Page, PageRequest,
    RescueRequest, Retention, Submitted,
};
use crate::row::EndRow;
use crate::setting::Setting;
use crate::sqlite::Sqlite;
use crate::stats::{Stats, StatsRange};
use crate::watch::Watch;

/// Which store is opened, and how.
#[derive(Debug, Clone)]
pub struct Opening {
    /// Which one.
    pub setting: Setting,
    /// The file that `sqlite:` stands for.
    pub default_file: PathBuf,
    /// For a server that asks for them.
    pub credentials: Option<Credentials>,
    /// The certificates (PEM) of who may vouch for a `wss://` server, and nobody else; without it, the authorities that
    /// browsers believe.
    pub ca_file: Option<PathBuf>,
    /// Takes the secrets out of all that is stored.
    pub redactor: Redactor,
    /// Tells the time.
    pub clock: Clock,
}

impl Opening {
    /// That store, with the usual redactor and the machine's clock. `default_file` is what `sqlite:` stands for.
    pub fn new(setting: Setting, default_file: impl Into<PathBuf>) -> Self {
        Self {
            setting,
            default_file: default_file.into(),
            credentials: None,
            ca_file: None,
            redactor: Redactor::usual(),
            clock: Clock::system(),
        }
    }
}

/// The durable record of calls and the queue they wait in.
///
/// Copies share one store. It closes with the last of them: what was answered is on the disk by then.
#[derive(Debug, Clone)]
pub struct Store {
    engine: Arc<dyn Engine>,
    clock: Clock,
    redactor: Arc<RwLock<Arc<Redactor>>>,
    ids: Arc<Ids>,
}

impl Store {
    /// Opens the store; makes it, or brings it to this program's version, when necessary.
    ///
    /// Must be called within a tokio runtime.
    pub async fn open(opening: Opening) -> Result<Self, StoreError> {
        let Opening { setting, default_file, credentials, ca_file, redactor, clock } = opening;
        // The store's own password is a secret like any other.
        let redactor = redactor.with_values(credentials.as_ref().map(|own| &own.password).as_slice());
        let engine: Arc<dyn Engine> = match setting {
            Setting::Sqlite { path } => Arc::new(Sqlite::open(path.unwrap_or(default_file)).await?),
            Setting::SqliteMemory => Arc::new(Sqlite::in_memory().await?),
            server => open_surreal(server, credentials, ca_file).await?,
        };
        Ok(Self { engine, clock, redactor: Arc::new(RwLock::new(Arc::new(redactor))), ids: Arc::default() })
    }

    /// Whether [`Self::watch`] also tells of what other processes write.
    pub fn is_shared(&self) -> bool {
        self.engine.is_shared()
    }

    /// What time it is for this store.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Keeps a call as a job that waits to be claimed. Once this answers, the job survives whatever happens.
    ///
    /// The same idempotency key gives the same job, which may have been asked for in other words. When the answer is
    /// [`StoreError::Unconfirmed`], the job may be there: ask again with the same key, or look for the id in the error.
    pub async fn submit(&self, order: NewJob) -> Result<Submitted, StoreError> {
        self.submit_as(self.new_id()?, order, None).await?.flushed().await
    }

    /// Takes these values out of everything that is kept from now on.
    pub fn redact_values(&self, values: &[&str]) {
        let known = self.redactor();
        if values.iter().all(|value| known.knows(value)) {
            return;
        }
        let mut redactor = self.redactor.write().unwrap_or_else(PoisonError::into_inner);
        let more = Redactor::clone(&redactor).with_values(values);
        *redactor = Arc::new(more);
    }

    /// Redacts a text in the same way as stored texts.
    pub fn redact(&self, text: &mut String) -> usize {
        self.redactor().redact(text)
    }

    fn redactor(&self) -> Arc<Redactor> {
        Arc::clone(&self.redactor.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns an id for a job that is to be placed ([`Self::submit_as`]), newer than all before it.
    pub fn new_id(&self) -> Result<JobId, StoreError> {
        self.ids.job(self.now())
    }

    /// Like [`Self::place`], by an owner that has room: it may get its next job, this one or an older one, in the same breath
    /// ([`Submitted::claimed`]). When it gets none, there may be one all the same: ask [`Self::claim`].
    ///
    /// Answers when it is written, so that the owner can get ready to run it. What is to last must not be begun, and the caller
    /// not be answered, before the disk has it ([`Committed::flush`]).
    pub async fn place_and_claim(
        &self,
        order: NewJob,
        request: ClaimRequest,
    ) -> Result<Committed<Submitted>, StoreError> {
        self.submit_as(self.new_id()?, order, Some(request)).await
    }

    /// Places a job under an id of [`Self::new_id`], with or without a claim. Of a call that was placed before under its key, the id
    /// is that of the earlier job.
    pub async fn submit_as(
        &self,
        id: JobId,
        mut order: NewJob,
        request: Option<ClaimRequest>,
    ) -> Result<Committed<Submitted>, StoreError> {
        refuse_empty(&order)?;
        let redactions = self.redactor().clean_order(&mut order)?;
        let now = self.now();
        let job = Job::new(id, order, now);
        let placed = |Begun { job, is_new, claimed }| {
            let claimed = claimed.map(Box::new);
            Submitted { job, is_new, redactions, claimed }
        };
        Ok(self.engine.submit(job, request).await?.map(placed))
    }

    /// Takes the oldest job that the owner can serve; none when there is none, or when the owner has as many as it can run.
    /// No job is ever given to two. Also counts as a heartbeat.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Option<Job>, StoreError> {
        self.engine.claim(request, self.now()).await
    }

    /// The heartbeat: the owner is alive, and counts as alive for that long. Answers all that it holds, so that it sees what
    /// it has lost and what it is to stop.
    pub async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Vec<Held>, StoreError> {
        self.engine.renew(owner.clone(), self.now().plus(lease)).await
    }

    /// Notes that the owner is about to close the store and writes nothing more. Without it, a write-ahead log that is missing later
    /// was lost ([`crate::DatabaseFile::find_loss`]).
    pub async fn release(&self, owner: &Owner) -> Result<(), StoreError> {
        self.engine.release(owner.clone()).await
    }

    /// Returns the owners that count as alive and whose names begin like this.
    pub async fn living_owners(&self, prefix: &str) -> Result<Vec<Owner>, StoreError> {
        self.engine.owners(prefix.to_owned(), self.now()).await
    }

    /// Remembers the vendor's conversation as soon as it is known, so that the work can be taken up after a crash.
    pub async fn note_session(&self, claim: &Claim, session: &SessionId) -> Result<(), StoreError> {
        self.redactor().check_session(session)?;
        self.engine.note_session(claim.clone(), session.clone(), self.now()).await
    }

    /// Brings a job to its end, which was when its last run was over, if that is told. Refused when the claim no longer holds it; the
    /// first end stays. Answers the job as it is kept.
    pub async fn finish(&self, claim: &Claim, end: JobEnd) -> Result<Finished, StoreError> {
        self.write_end(claim, end).await?.flushed().await
    }

    /// Like [`Self::finish`], and answers when it is written, so that whatever else follows from the end can be done while the
    /// disk takes it. Who waits for the job must not be answered before the disk has it.
    pub async fn write_end(&self, claim: &Claim, end: JobEnd) -> Result<Committed<Finished>, StoreError> {
        let mut end = end;
        let redactions = self.redactor().clean_end(&mut end);
        let step = Transition::Finish { claim: claim.clone(), how: end.how };
        let now = self.now();
        // A run may end while nobody is there to say so. A clock that was ahead is not believed.
        let ended_at = end.ended_at.map_or(now, |ended_at| ended_at.min(now));
        let end = EndRow::new(end, self.ids.exchange(now)?)?;
        let written = self.engine.finish(claim.job, step, end, ended_at).await?;
        Ok(written.map(|job| Finished { job, redactions }))
    }

    /// Wants a job to end. One that nobody holds is cancelled at once; for one that runs the wish is kept, and its holder has
    /// to be told ([`CancelReply::needs_stop`]). May be asked any number of times; an ended job stays as it is.
    pub async fn request_cancel(&self, job: JobId) -> Result<CancelReply, StoreError> {
        match self.engine.step(job, Transition::Cancel, None, self.now()).await {
            Ok(taken) => {
                Ok(CancelReply { previous: taken.before.state.name(), now: taken.after.state.name() })
            }
            Err(StoreError::Refused { refusal: TransitionError::Ended(how), .. }) => {
                Ok(CancelReply { previous: how.name(), now: how.name() })
            }
            Err(error) => Err(error),
        }
    }

    /// Lets a job wait for a moment, such as the reset of a quota; it is claimed again afterwards. One that is to be cancelled
    /// is, instead.
    pub async fn pause_until(&self, claim: &Claim, until: Timestamp) -> Result<JobState, StoreError> {
        self.step(claim, Transition::Pause { claim: claim.clone(), until }).await
    }

    /// Says that the run of a job was lost while its owner lives. The owner goes on holding it until nothing is left.
    pub async fn interrupt(&self, claim: &Claim) -> Result<JobState, StoreError> {
        self.step(claim, Transition::Interrupt { claim: claim.clone() }).await
    }

    /// Queues an interrupted job again, of whose run nothing is left. Refused when it was begun often enough: it is to be
    /// finished, then. One that is to be cancelled is, instead.
    pub async fn requeue(&self, claim: &Claim) -> Result<JobState, StoreError> {
        self.step(claim, Transition::Requeue { claim: claim.clone() }).await
    }

    /// Goes on with a run that is alive though its owner is not, as the same attempt. The old claim is the proof: whoever
    /// calls this knows that its owner is dead. `lease` is for the new owner.
    pub async fn adopt(&self, claim: &Claim, owner: &Owner, lease: Duration) -> Result<Claim, StoreError> {
        // The heartbeat first: a job must not have an owner that looks dead.
        self.renew(owner, lease).await?;
        self.step(claim, Transition::Adopt { claim: claim.clone(), owner: owner.clone() }).await?;
        Ok(Claim { owner: owner.clone(), ..claim.clone() })
    }

    /// Takes over the jobs of owners that are proven dead or whose leases are out. They become interrupted, held by the
    /// rescuer, who ends what is left of their runs and then queues them again, finishes or adopts them. A rescuer that dies
    /// over it is rescued in turn.
    pub async fn rescue(&self, request: RescueRequest) -> Result<Vec<Job>, StoreError> {
        self.engine.rescue(request, self.now()).await
    }

    /// Places an ended job again as a new one, whose parent it is. The secrets that were taken out of it stay out.
    pub async fn retry(&self, job: JobId) -> Result<Submitted, StoreError> {
        self.submit(self.order_of_retry(job).await?).await
    }

    /// Returns the order for running an ended job again.
    pub async fn order_of_retry(&self, job: JobId) -> Result<NewJob, StoreError> {
        let old = self.get(job).await?.ok_or(StoreError::NoSuchJob { job })?;
        if old.completed_at.is_none() {
            let refusal =
                TransitionError::NoSuchTransition { from: old.progress.state.name(), step: "retry" };
            return Err(StoreError::Refused { job, refusal });
        }
        Ok(NewJob { idempotency_key: None, parent: Some(job), ..old.order })
    }

    /// A job, with all that is known of it.
    pub async fn get(&self, job: JobId) -> Result<Option<Job>, StoreError> {
        self.engine.get(job).await
    }

    /// The job that a call at this home with this idempotency key has placed.
    pub async fn keyed(&self, home: &Placement, key: &str) -> Result<Option<Job>, StoreError> {
        self.engine.keyed(home.clone(), key.to_owned()).await
    }

    /// The job whose id begins like this.
    pub async fn find(&self, prefix: JobIdPrefix) -> Result<Found, StoreError> {
        self.engine.find(prefix).await
    }

    /// The jobs that fit, the newest first.
    pub async fn list(&self, filter: &JobFilter, page: PageRequest) -> Result<Page, StoreError> {
        self.engine.list(filter.clone(), page).await
    }

    /// How many jobs fit.
    pub async fn count(&self, filter: &JobFilter) -> Result<u64, StoreError> {
        self.engine.count(filter.clone()).await
    }

    /// What was said in a job that has ended.
    pub async fn exchange(&self, job: JobId) -> Result<Option<Exchange>, StoreError> {
        self.engine.exchange(job).await
    }

    /// The last conversation of a task: with this agent, and at this home, since no agent has the conversations of another and
    /// no machine those of another.
    pub async fn last_session(
        &self,
        agent: AgentKind,
        task: &str,
        home: &Placement,
    ) -> Result<Option<LastSession>, StoreError> {
        self.engine.last_session(agent, task.to_owned(), home.clone()).await
    }

    /// Counts, durations, tokens and cost.
    pub async fn stats(&self, range: StatsRange) -> Result<Stats, StoreError> {
        self.engine.stats(range).await
    }

    /// The changes from now on.
    pub async fn watch(&self) -> Result<Watch, StoreError> {
        self.engine.watch().await
    }

    /// Removes ended jobs that are kept no longer, and answers which, so that their spool folders can be removed
    /// ([`crate::remove_job_folders`]). An error, too, says which were removed before it.
    pub async fn sweep(&self, retention: Retention) -> Result<Vec<JobId>, SweepError> {
        self.engine.sweep(retention, self.now()).await
    }

    /// Brings all that was written to the disk. For those who were told that it did not confirm something
    /// ([`Committed::flush`]): once this answers, it has that, too.
    pub async fn sync(&self) -> Result<(), StoreError> {
        self.engine.sync().await
    }

    /// Checks that the files of the store are still those that were opened: not removed, replaced or truncated. Costs some
    /// microseconds.
    pub fn verify_files(&self) -> Result<(), StoreLoss> {
        self.engine.verify_files()
    }

    /// Checks the files, and that the heartbeat of an owner that has renewed its lease is still there.
    pub async fn verify(&self, owner: &Owner) -> Result<(), StoreError> {
        self.engine.verify_files()?;
        self.engine.verify_heartbeat(owner.clone()).await
    }

    /// Reads the whole store and says whether it is sound.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.engine.check().await
    }

    async fn step(&self, claim: &Claim, step: Transition) -> Result<JobState, StoreError> {
        Ok(self.engine.step(claim.job, step, None, self.now()).await?.after.state)
    }
}

/// What would not be read back as it was given.
fn refuse_empty(order: &NewJob) -> Result<(), StoreError> {
    let (Placement::Host(home) | Placement::Label(home)) = &order.home;
    if home.is_empty() {
        return Err(StoreError::Empty { field: "home" });
    }
    if order.idempotency_key.as_deref() == Some("") {
        return Err(StoreError::Empty { field: "idempotency key" });
    }
    Ok(())
}

#[cfg(feature = "surreal")]
async fn open_surreal(
    setting: Setting,
    credentials: Option<Credentials>,
    ca_file: Option<PathBuf>,
) -> Result<Arc<dyn Engine>, StoreError> {
    let trust = crate::surreal::Trust { credentials, ca_file };
    Ok(Arc::new(crate::surreal::Surreal::open(setting, trust).await?))
}

#[cfg(not(feature = "surreal"))]
#[expect(clippy::unused_async, reason = "the same signature as with the engine")]
async fn open_surreal(
    _: Setting,
    _: Option<Credentials>,
    _: Option<PathBuf>,
) -> Result<Arc<dyn Engine>, StoreError> {
    Err(crate::SettingError::NotBuiltIn { engine: "SurrealDB" }.into())
}
