//! Turns a call into the launch of an agent: finds its program and combines configuration and environment.

use std::borrow::Cow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agents::doctor::{self, AgentCheck, Lookup, NotReady};
use agents::{CheckoutAccess, Launch, LaunchError, LaunchSetup};
use model::{AgentKind, CallSpec, JobId};
use store::Store;
use supervisor::Spool;
use tokio::time::Instant;

use crate::caller_environment::{CallerEnvironment, CallerEnvironments};
use crate::settings::Settings;

/// The lifetime of a cached check: other files of the program's package may change while its own does not.
const CHECK_VALID_FOR: Duration = Duration::from_secs(5);

/// Why an agent cannot be launched.
#[derive(Debug)]
pub(crate) enum CannotLaunch {
    NotReady(NotReady),
    Launch(LaunchError),
}

impl From<NotReady> for CannotLaunch {
    fn from(error: NotReady) -> Self {
        Self::NotReady(error)
    }
}

impl From<LaunchError> for CannotLaunch {
    fn from(error: LaunchError) -> Self {
        Self::Launch(error)
    }
}

/// Launches agents, and caches the checks of their programs.
#[derive(Debug)]
pub(crate) struct Launcher {
    settings: Arc<Settings>,
    store: Store,
    environments: Arc<CallerEnvironments>,
    checks: Mutex<Vec<CachedCheck>>,
}

/// The check of an agent's program.
#[derive(Debug)]
struct CachedCheck {
    agent: AgentKind,
    file: ProgramFile,
    at: Instant,
    check: AgentCheck,
}

/// The identity of a program file. Differs if the file was replaced or changed, or if a link points to another file.
#[derive(Debug, PartialEq, Eq)]
struct ProgramFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    modified: (i64, i64),
    bytes: u64,
}

impl ProgramFile {
    fn find(spec: &CallSpec, lookup: &Lookup) -> Option<Self> {
        let path = doctor::find_program(spec.agent, lookup, workspaces(spec))?;
        let file = std::fs::metadata(&path).ok()?;
        let modified = (file.mtime(), file.mtime_nsec());
        Some(Self { path, device: file.dev(), inode: file.ino(), modified, bytes: file.len() })
    }
}

impl Launcher {
    pub fn new(settings: Arc<Settings>, store: Store, environments: Arc<CallerEnvironments>) -> Self {
        Self { settings, store, environments, checks: Mutex::default() }
    }

    /// Fails if the call could not be launched right now. Returns the setup for a run that starts at once.
    pub async fn check(
        &self,
        call: &CallSpec,
        environment: Option<&CallerEnvironment>,
    ) -> Result<Box<LaunchSetup>, CannotLaunch> {
        let setup = self.setup(call, environment, PathBuf::from("/nonexistent/private")).await?;
        agents::launch(&*resolve(call, environment, &setup)?, &setup)?;
        Ok(Box::new(setup))
    }

    /// Returns the launch of a job's next run, whose spool is `directory`. A run that starts right after [`Self::check`] reuses its
    /// setup; any other one gathers it again, since programs, workspace and configuration may have changed.
    pub async fn launch(
        &self,
        job: JobId,
        spec: &CallSpec,
        directory: &Path,
        checked: Option<LaunchSetup>,
        checkout: Option<CheckoutAccess>,
    ) -> Result<Launch, CannotLaunch> {
        let private_directory = Spool::at(directory).private();
        let environment = self.environments.read(job);
        let setup = match checked {
            Some(setup) => LaunchSetup { private_directory, ..setup },
            None => self.setup_for_job(spec, environment.as_ref(), private_directory).await?,
        };
        let spec = &*resolve(spec, environment.as_ref(), &setup)?;
        let mut setup = LaunchSetup { checkout, ..setup };
        let limited = spec.within(&setup.host.ceiling);
        if let Some(checkout) = setup.checkout.as_ref().filter(|_| !limited.policy.is_off()) {
            agents::protect_programs_of_checkout(&mut setup.workspace, &checkout.source, &setup.inherited);
        }
        // Without a login the agent itself reports the error.
        if let Err(error) = agents::seed_private_state(&limited, &setup) {
            tracing::warn!(%job, %error, "cannot seed the private state of the policy");
        }
        Ok(agents::launch(spec, &setup)?)
    }

    /// Gathers the setup of a job, with the environment of its caller.
    async fn setup_for_job(
        &self,
        spec: &CallSpec,
        environment: Option<&CallerEnvironment>,
        private_directory: PathBuf,
    ) -> Result<LaunchSetup, CannotLaunch> {
        if let Some(environment) = environment {
            // Another daemon may have accepted the call, so its secrets may be unknown here.
            self.store.redact_values(&environment.secrets());
        }
        self.setup(spec, environment, private_directory).await
    }

    async fn setup(
        &self,
        spec: &CallSpec,
        environment: Option<&CallerEnvironment>,
        private_directory: PathBuf,
    ) -> Result<LaunchSetup, CannotLaunch> {
        let settings = &self.settings;
        let host = settings.host_config();
        // A call without a policy is confined by the ceiling.
        let spec = &*spec.within(&host.ceiling);
        let mut lookup = settings.lookup.clone();
        if let Some(environment) = environment {
            lookup.inherited = environment.applied_to(&lookup.profiles, &lookup.inherited, &settings.pass_on);
        }
        let AgentCheck { profile, program, version, capabilities, findings, agent, .. } =
            self.check_program(spec, &lookup).await;
        let (Some(profile), Some(program)) = (profile, program) else {
            return Err(NotReady { agent, findings }.into());
        };
        let images = agents::read_images(&spec.images)?;
        if spec.writes_confined() {
            lookup.remember_workspaces(workspaces(spec));
        }
        Ok(LaunchSetup {
            profile,
            images,
            program,
            version,
            capabilities,
            models: settings.models.clone(),
            inherited: lookup.inherited,
            pass_on: settings.pass_on.clone(),
            private_directory,
            workspace: agents::inspect_workspace(spec, &settings.lookup.inherited),
            tool_timeout: settings.tool_timeout,
            new_session: uuid::Uuid::new_v4().into(),
            host,
            checkout: None,
        })
    }

    /// Checks an agent's program. `PATH` is searched for every call, since the program may be installed, replaced or removed at any
    /// time; only the answers of an unchanged file are cached.
    async fn check_program(&self, spec: &CallSpec, lookup: &Lookup) -> AgentCheck {
        let agent = spec.agent;
        let file = ProgramFile::find(spec, lookup);
        if let Some(check) = self.cached_check(agent, file.as_ref()) {
            return check;
        }
        let lookup = lookup.clone().excluding_workspaces(workspaces(spec));
        let checked = tokio::task::spawn_blocking(move || doctor::find_installed(agent, &lookup)).await;
        // The check does not panic. If it did, the agent counts as missing, and the next call checks again.
        let Ok(check) = checked else {
            return doctor::find_installed(agent, &Lookup::default());
        };
        let mut checks = self.lock_checks();
        checks.retain(|cached| cached.at.elapsed() < CHECK_VALID_FOR && Some(&cached.file) != file.as_ref());
        if let Some(file) = file.filter(|file| check.program.as_ref() == Some(&file.path)) {
            checks.push(CachedCheck { agent, file, at: Instant::now(), check: check.clone() });
        }
        check
    }

    fn cached_check(&self, agent: AgentKind, file: Option<&ProgramFile>) -> Option<AgentCheck> {
        let checks = self.lock_checks();
        let cached = checks.iter().find(|cached| cached.agent == agent && Some(&cached.file) == file)?;
        (cached.at.elapsed() < CHECK_VALID_FOR).then(|| cached.check.clone())
    }

    fn lock_checks(&self) -> MutexGuard<'_, Vec<CachedCheck>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the call with the values that its MCP servers refer to: from the caller's shell, or from the operator's environment, of which
/// every caller may use what agents get anyway.
fn resolve<'a>(
    call: &'a CallSpec,
    environment: Option<&CallerEnvironment>,
    setup: &LaunchSetup,
) -> Result<Cow<'a, CallSpec>, LaunchError> {
    agents::resolve_variables(call, |name| {
        let own = environment.and_then(|environment| environment.server_variable(name));
        own.or_else(|| setup.inherited.get(name).filter(|_| setup.pass_on.contains(name)).cloned())
    })
}

/// Returns the directories in which the agent of a call works.
fn workspaces(spec: &CallSpec) -> impl Iterator<Item = &PathBuf> {
    [&spec.cwd].into_iter().chain(&spec.add_dirs)
}
