//! Submits calls: validates them, stores them as jobs, and recognizes repeated ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agents::LaunchSetup;
use model::{CallSpec, GroupRole, Job, JobId, NewJob, SessionChoice, Timestamp};
use store::{StoreError, Submitted};

use super::JobService;
use crate::caller_environment::CallerEnvironment;
use crate::checkouts::{PrepareError, find_session_checkout, find_source};
use crate::error::CallError;
use crate::files::JobFiles;
use crate::group::GroupError;
use crate::job_changes::protected_root;
use crate::verification::{self, VerifyError};

/// A call and the options of its submission.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRequest {
    /// The call. With [`SessionChoice::ContinueLatest`] it resumes the last session of the task.
    pub call: CallSpec,
    /// The tool through which it is submitted.
    pub tool: String,
    /// The caller's name for the task; by default the name of the tool.
    pub task: Option<String>,
    /// Two requests with the same key are one job.
    pub idempotency_key: Option<String>,
    /// The job whose agent submits the call.
    pub parent: Option<JobId>,
    /// Is true if the caller does not wait for the job.
    pub fire_and_forget: bool,
    /// Is true if the answer includes the agent's events.
    pub expose_stream: bool,
    /// The caller's environment for agents; by default the service's own.
    pub environment: Option<CallerEnvironment>,
}

impl CallRequest {
    /// Returns a request with default options.
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

/// A job that is durable.
#[derive(Debug, Clone)]
pub struct SubmittedJob {
    /// The job.
    pub job: JobId,
    /// The time of its creation.
    pub created_at: Timestamp,
    /// Is false if an earlier request with the same key created the job.
    pub is_new: bool,
    /// The number of secrets that were redacted in its texts.
    pub redactions: usize,
    /// Its files.
    pub files: JobFiles,
}

/// Rejects a call with a glob that protects nothing.
async fn check_protected(call: &CallSpec) -> Result<(), CallError> {
    let Some(verify) = call.verify.clone().filter(|verify| !verify.protect.is_empty()) else { return Ok(()) };
    let cwd = call.cwd.clone();
    let checked =
        tokio::task::spawn_blocking(move || verification::check_matches(&verify, &protected_root(&cwd)));
    checked.await.unwrap_or(Ok(())).map_err(CallError::from)
}

impl JobService {
    /// Submits a call. Fails if it could not be launched right now; once this returns a job, the job survives a crash.
    pub async fn submit(&self, request: CallRequest) -> Result<SubmittedJob, CallError> {
        self.0.health.check().map_err(StoreError::from)?;
        let (call, tool, key) = (request.call.clone(), request.tool.clone(), request.idempotency_key.clone());
        let environment = request.environment.clone();
        if let Some(environment) = &environment {
            self.0.store.redact_values(&environment.secrets());
        }
        let submitted = match self.validate(request).await {
            Ok((order, setup)) => self.store_job(order, environment, Some(setup)).await?,
            // A repeated request is the same call, even if its directory or its agent is gone by now.
            Err(error) => match self.find_by_key(key.as_deref()).await? {
                Some(job) => {
                    self.0.store.sync().await?;
                    Submitted { job, is_new: false, redactions: 0, claimed: None }
                }
                None => return Err(error),
            },
        };
        if !submitted.is_new && !self.is_same_call(&submitted.job.order, &call, &tool) {
            return Err(CallError::KeyOfAnother { key: key.unwrap_or_default(), job: submitted.job.id });
        }
        Ok(self.submitted_job(&submitted))
    }

    /// Submits an ended job again as a new one, with the environment of the caller.
    pub async fn retry(
        &self,
        job: JobId,
        environment: Option<CallerEnvironment>,
    ) -> Result<SubmittedJob, CallError> {
        if let Some(environment) = &environment {
            self.0.store.redact_values(&environment.secrets());
        }
        let role = self.job(job).await?.order.call.group.and_then(|group| group.role(job));
        if let Some(GroupRole::Reviewer(_)) = role {
            return Err(GroupError::RepeatedReview { job }.into());
        }
        let order = self.0.store.new_job_for_retry(job).await?;
        let submitted = self.store_job(order, environment, None).await?;
        // The caller does not wait for the job, and may look into its directory at once.
        self.files(submitted.job.id).announce(&submitted.job);
        Ok(self.submitted_job(&submitted))
    }

    pub(super) fn submitted_job(&self, submitted: &Submitted) -> SubmittedJob {
        let Submitted { job, is_new, redactions, .. } = submitted;
        SubmittedJob {
            job: job.id,
            created_at: job.created_at,
            is_new: *is_new,
            redactions: if *is_new { *redactions } else { 0 },
            files: self.files(job.id),
        }
    }

    async fn store_job(
        &self,
        order: NewJob,
        environment: Option<CallerEnvironment>,
        setup: Option<Box<LaunchSetup>>,
    ) -> Result<Submitted, CallError> {
        let id = self.0.store.new_id()?;
        self.store_job_as(id, order, environment, setup).await
    }

    /// Stores a job. The caller's environment is written before it, so that the claiming service finds it.
    pub(super) async fn store_job_as(
        &self,
        id: JobId,
        order: NewJob,
        environment: Option<CallerEnvironment>,
        setup: Option<Box<LaunchSetup>>,
    ) -> Result<Submitted, CallError> {
        if let Some(environment) = environment {
            let written = self.0.environments.write(id, &environment);
            let directory = &self.0.settings.state;
            written.map_err(|source| CallError::State { directory: directory.clone(), source })?;
        }
        let parent = order.parent;
        self.0.nested.lend_slot(parent, id);
        let submitted = self.0.scheduler.submit(id, order, setup).await;
        let may_exist = match &submitted {
            Ok(submitted) => submitted.job.id == id,
            Err(error) => matches!(error, StoreError::Unconfirmed { .. }),
        };
        if !may_exist {
            self.0.nested.return_slot(parent, id);
            self.0.environments.remove(id);
        }
        Ok(submitted?)
    }

    /// Resolves the directories and the session of a call, and checks that it can be launched. Returns the setup of that launch.
    pub(super) async fn validate(
        &self,
        request: CallRequest,
    ) -> Result<(NewJob, Box<LaunchSetup>), CallError> {
        let CallRequest {
            mut call,
            tool,
            task,
            idempotency_key,
            parent,
            fire_and_forget,
            expose_stream,
            environment,
        } = request;
        if self.0.shutdown.is_draining() {
            return Err(CallError::Closing);
        }
        self.0.nested.check_depth(parent)?;
        // A client cannot make its call part of a group.
        call.group = None;
        let task = task.unwrap_or_else(|| tool.clone());
        let home = self.0.home.clone();
        call.cwd = self.resolve_directory(&call.cwd)?;
        if call.session == SessionChoice::ContinueLatest {
            let last = self.0.store.last_session(call.agent, &task, &home).await?;
            let last =
                last.ok_or_else(|| CallError::NoEarlierSession { task: task.clone(), agent: call.agent })?;
            // A session is about its directory, and most agents find it nowhere else.
            if Path::new(&last.cwd) != call.cwd {
                return Err(CallError::SessionElsewhere {
                    task,
                    agent: call.agent,
                    directory: last.cwd.into(),
                });
            }
            call.session = SessionChoice::Resume(last.session);
        }
        for directory in &mut call.add_dirs {
            *directory = self.resolve_directory(directory)?;
        }
        verification::check(&call)?;
        self.resolve_worktree(&mut call).await?;
        self.check_changes_recorded(&call).await?;
        check_protected(&call).await?;
        let setup = self.0.launcher.check(&call, environment.as_ref()).await?;
        let order = NewJob {
            task,
            idempotency_key,
            parent,
            fire_and_forget,
            expose_stream,
            max_attempts: self.0.settings.max_attempts,
            ..NewJob::new(call, tool, home)
        };
        Ok((order, setup))
    }

    /// Decides whether a call works in a private checkout, and checks that it can have one.
    async fn resolve_worktree(&self, call: &mut CallSpec) -> Result<(), CallError> {
        let settings = &self.0.settings;
        let writes = call.requested_preset().writes();
        if call.worktree.is_none() && call.session == SessionChoice::New && writes {
            let options = settings.repository_options(&call.cwd);
            call.worktree = options.filter(|options| options.worktree).map(|_| true);
        }
        if let SessionChoice::Resume(session) | SessionChoice::Fork(session) = &call.session
            && call.worktree != Some(false)
        {
            let files_of = |job| self.files(job);
            let found = find_session_checkout(&self.0.store, session, &call.cwd, files_of).await?;
            if found.is_none() && call.worktree == Some(true) {
                return Err(PrepareError::SessionOutside { session: session.clone() }.into());
            }
            return Ok(());
        }
        if call.worktree != Some(true) {
            return Ok(());
        }
        if !writes {
            return Err(PrepareError::ReadOnly.into());
        }
        let (settings, cwd) = (Arc::clone(settings), call.cwd.clone());
        let found = tokio::task::spawn_blocking(move || find_source(&settings, &cwd)).await;
        found.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))?;
        Ok(())
    }

    /// Rejects a call with an option that needs its recorded changes, if they cannot be recorded.
    async fn check_changes_recorded(&self, call: &CallSpec) -> Result<(), CallError> {
        let Some(what) = verification::needs_changes(call) else { return Ok(()) };
        if call.worktree == Some(true) {
            return Ok(());
        }
        let reason = if !self.0.settings.record_changes {
            Some("`record_changes` is off in the configuration".to_owned())
        } else if !call.requested_preset().writes() {
            Some("the call is read-only".to_owned())
        } else {
            let (settings, cwd) = (Arc::clone(&self.0.settings), call.cwd.clone());
            let found = tokio::task::spawn_blocking(move || find_source(&settings, &cwd)).await;
            let found = found.unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
            found.err().map(|error| error.to_string())
        };
        reason.map_or(Ok(()), |reason| Err(VerifyError::NotRecorded { what, reason }.into()))
    }

    /// Resolves a directory, unless a link that an agent may have planted leads to it.
    fn resolve_directory(&self, directory: &Path) -> Result<PathBuf, CallError> {
        let resolved = resolve_directory(directory)?;
        // A path that is its own canonical form contains no link.
        if resolved != directory {
            self.0.settings.lookup.check_links(directory)?;
        }
        Ok(resolved)
    }

    pub(super) async fn find_by_key(&self, key: Option<&str>) -> Result<Option<Job>, CallError> {
        let Some(key) = key else { return Ok(None) };
        Ok(self.0.store.find_by_key(&self.0.home, key).await?)
    }

    /// Returns whether a job is the result of the same call, as far as its caller can tell.
    pub(super) fn is_same_call(&self, job: &NewJob, call: &CallSpec, tool: &str) -> bool {
        let mut prompt = call.prompt.clone();
        // The stored prompt is redacted.
        self.0.store.redact(&mut prompt);
        // A directory that is gone existed when the call was submitted.
        let same_directory = call.cwd.canonicalize().map_or(true, |cwd| cwd == job.call.cwd);
        let same_session = call.session == SessionChoice::ContinueLatest || call.session == job.call.session;
        job.tool == tool
            && job.call.agent == call.agent
            && job.call.prompt == prompt
            && job.call.model == call.model
            && job.call.mode == call.mode
            && same_directory
            && same_session
    }
}

/// Resolves the symbolic links of a directory: the sandbox must not depend on a link that may change later.
fn resolve_directory(directory: &Path) -> Result<PathBuf, CallError> {
    let named = || directory.to_owned();
    if !directory.is_absolute() {
        return Err(CallError::CwdIsRelative { directory: named() });
    }
    let resolved =
        directory.canonicalize().map_err(|source| CallError::Cwd { directory: named(), source })?;
    if resolved.is_dir() { Ok(resolved) } else { Err(CallError::CwdIsNoDirectory { directory: named() }) }
}
