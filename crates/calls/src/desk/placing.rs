//! Places calls: checks them, stores them as jobs, and recognizes calls that were placed before.

use std::path::{Path, PathBuf};

use model::{CallSpec, Job, JobId, NewJob, SessionChoice, Timestamp};
use store::{Committed, StoreError};

use super::{Inner, JobService};
use crate::caller_environment::CallerEnvironment;
use crate::dispatch;
use crate::error::CallError;
use crate::files::JobFiles;

/// A call, and how it is placed.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRequest {
    /// What is asked. With [`SessionChoice::ContinueLatest`] the last session of the task is gone on with.
    pub call: CallSpec,
    /// The tool through which it is asked.
    pub tool: String,
    /// What the caller calls the task; none for the tool's name.
    pub task: Option<String>,
    /// Asked twice with the same key, it is one job.
    pub idempotency_key: Option<String>,
    /// The job on whose behalf it is asked.
    pub parent: Option<JobId>,
    /// Whether the caller goes away instead of waiting.
    pub fire_and_forget: bool,
    /// Whether the caller wants the agent's events with the answer.
    pub expose_stream: bool,
    /// What the caller's environment says about agents; none for the desk's own.
    pub environment: Option<CallerEnvironment>,
}

impl CallRequest {
    /// That call, through that tool, with nothing special about it.
    pub fn new(call: CallSpec, tool: impl Into<String>) -> Self {
        Self {
            call,
            tool: tool.into(),
            task: None,
            idempotency_key: None,
            parent: None,
            fire_and_forget: false,
            expose_stream: false,
            environment: None,
        }
    }
}

/// A call that was placed: from here on it is not lost.
#[derive(Debug, Clone)]
pub struct SubmittedJob {
    /// The job.
    pub job: JobId,
    /// When it was placed.
    pub created_at: Timestamp,
    /// Whether this call made it, or an earlier one with the same key.
    pub is_new: bool,
    /// How many secrets were taken out of its texts.
    pub redactions: usize,
    /// Its files.
    pub files: JobFiles,
}

impl JobService {
    /// Places a call. Everything that can be known to be wrong with it is told before; once this answers, the job survives
    /// whatever happens.
    pub async fn submit(&self, order: CallRequest) -> Result<SubmittedJob, CallError> {
        Ok(self.submit_unflushed(order).await?.flushed().await?)
    }

    /// The same, and answers when the job is written. Nobody must be told of it before the disk has it, or has its end.
    pub async fn submit_unflushed(&self, order: CallRequest) -> Result<Committed<SubmittedJob>, CallError> {
        self.0.check_store().map_err(StoreError::from)?;
        let (asked, tool, key) = (order.call.clone(), order.tool.clone(), order.idempotency_key.clone());
        let environment = order.environment.clone();
        if let Some(environment) = &environment {
            self.0.store.redact_values(&environment.secrets());
        }
        let Committed { value: placed, flush } = match self.checked(order).await {
            Ok(order) => self.keep(order, environment).await?,
            // A call that was placed before is the same call, whatever has become of its folder or its agent.
            Err(error) => match self.keyed(key.as_deref()).await? {
                Some(job) => {
                    self.0.store.sync().await?;
                    Committed::already_flushed(store::Submitted {
                        job,
                        is_new: false,
                        redactions: 0,
                        claimed: None,
                    })
                }
                None => return Err(error),
            },
        };
        let placed = if placed.is_new {
            self.announced(&placed)
        } else {
            self.placed_before(&placed.job, &asked, &tool, &key.unwrap_or_default())?
        };
        Ok(Committed { value: placed, flush })
    }

    /// Places an ended job again, as a new one, with the environment of the caller.
    pub async fn retry(
        &self,
        job: JobId,
        environment: Option<CallerEnvironment>,
    ) -> Result<SubmittedJob, CallError> {
        if let Some(environment) = &environment {
            self.0.store.redact_values(&environment.secrets());
        }
        let order = self.0.store.new_job_for_retry(job).await?;
        let Committed { value: placed, flush } = self.keep(order, environment).await?;
        let announced = self.announced(&placed);
        flush.flushed().await?;
        Ok(announced)
    }

    /// Keeps a job, and before it the environment of its caller: whoever claims the job finds it.
    async fn keep(
        &self,
        order: NewJob,
        environment: Option<CallerEnvironment>,
    ) -> Result<Committed<store::Submitted>, CallError> {
        let id = self.0.store.new_id()?;
        if let Some(environment) = environment {
            let written = self.0.environments.write(id, &environment);
            let folder = &self.0.settings.state;
            written.map_err(|source| CallError::State { folder: folder.clone(), source })?;
        }
        let parent = order.parent;
        self.0.lend_slot(parent, id);
        let kept = dispatch::keep(&self.0, id, order).await;
        let is_placed = match &kept {
            Ok(kept) => kept.value.job.id == id,
            // It may be there all the same.
            Err(error) => matches!(error, StoreError::Unconfirmed { .. }),
        };
        if !is_placed {
            self.0.return_slot(parent, id);
            self.0.environments.remove(id);
        }
        Ok(kept?)
    }

    /// What is kept of a call that could be launched right now.
    async fn checked(&self, order: CallRequest) -> Result<NewJob, CallError> {
        let CallRequest {
            mut call,
            tool,
            task,
            idempotency_key,
            parent,
            fire_and_forget,
            expose_stream,
            environment,
        } = order;
        if self.0.closing.is_cancelled() {
            return Err(CallError::Closing);
        }
        self.0.check_nesting(parent)?;
        let task = task.unwrap_or_else(|| tool.clone());
        let home = self.0.home.clone();
        call.cwd = real_folder(&call.cwd)?;
        if call.session == SessionChoice::ContinueLatest {
            let last = self.0.store.last_session(call.agent, &task, &home).await?;
            let last =
                last.ok_or_else(|| CallError::NoEarlierSession { task: task.clone(), agent: call.agent })?;
            // A conversation is about its folder, and most agents find it nowhere else.
            if Path::new(&last.cwd) != call.cwd {
                return Err(CallError::SessionElsewhere { task, agent: call.agent, folder: last.cwd.into() });
            }
            call.session = SessionChoice::Resume(last.session);
        }
        for folder in &mut call.add_dirs {
            *folder = real_folder(folder)?;
        }
        self.0.check(&call, environment.as_ref()).await?;
        Ok(NewJob {
            task,
            idempotency_key,
            parent,
            fire_and_forget,
            expose_stream,
            max_attempts: self.0.settings.max_attempts,
            ..NewJob::new(call, tool, home)
        })
    }

    /// The job of an earlier call with that key.
    async fn keyed(&self, key: Option<&str>) -> Result<Option<Job>, CallError> {
        let Some(key) = key else { return Ok(None) };
        Ok(self.0.store.find_by_key(&self.0.home, key).await?)
    }

    /// A job that was placed, with its folder: who goes away instead of waiting may look into it at once. A disk that refuses
    /// is no reason to lose the job: its course will say so.
    fn announced(&self, placed: &store::Submitted) -> SubmittedJob {
        let (job, files) = (&placed.job, self.files(placed.job.id));
        // The course of one that has begun is about to make it.
        if job.order.fire_and_forget || self.0.board.get(job.id).is_none() {
            files.show(job);
        }
        let (job, created_at) = (job.id, job.created_at);
        SubmittedJob { job, created_at, is_new: true, redactions: placed.redactions, files }
    }

    /// The job of an earlier call with the same key, if it asked for the same.
    fn placed_before(
        &self,
        job: &Job,
        call: &CallSpec,
        tool: &str,
        key: &str,
    ) -> Result<SubmittedJob, CallError> {
        if !self.0.asked_for_the_same(&job.order, call, tool) {
            return Err(CallError::KeyOfAnother { key: key.to_owned(), job: job.id });
        }
        let files = self.files(job.id);
        Ok(SubmittedJob { job: job.id, created_at: job.created_at, is_new: false, redactions: 0, files })
    }
}

impl Inner {
    /// Whether a job is what a call asks for, as far as its caller could tell.
    fn asked_for_the_same(&self, job: &NewJob, call: &CallSpec, tool: &str) -> bool {
        let mut prompt = call.prompt.clone();
        // As it was kept.
        self.store.redact(&mut prompt);
        // A folder that is gone was there when the call was placed.
        let same_folder = call.cwd.canonicalize().map_or(true, |cwd| cwd == job.call.cwd);
        let same_session = call.session == SessionChoice::ContinueLatest || call.session == job.call.session;
        job.tool == tool
            && job.call.agent == call.agent
            && job.call.prompt == prompt
            && job.call.model == call.model
            && job.call.mode == call.mode
            && same_folder
            && same_session
    }

    /// Everything that would keep the call from being launched right now.
    async fn check(&self, call: &CallSpec, environment: Option<&CallerEnvironment>) -> Result<(), CallError> {
        let setup = self.setup(call, environment, PathBuf::from("/nonexistent/private")).await?;
        agents::launch(call, &setup)?;
        Ok(())
    }
}

/// A directory without links in its path: the bounds of an agent must not depend on a link that may change later.
fn real_folder(folder: &Path) -> Result<PathBuf, CallError> {
    if !folder.is_absolute() {
        return Err(CallError::CwdIsRelative { folder: folder.to_owned() });
    }
    let real =
        folder.canonicalize().map_err(|source| CallError::Cwd { folder: folder.to_owned(), source })?;
    if real.is_dir() { Ok(real) } else { Err(CallError::CwdIsNoFolder { folder: folder.to_owned() }) }
}
