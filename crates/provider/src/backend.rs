//! Finds the agent's program and converts requests to calls.
//!
//! Owns every step before a process starts; `exchange.rs` runs the call.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agents::doctor::{self, AgentCheck, KnownWorkspaces, Lookup, NotReady};
use agents::{HostConfig, LaunchSetup, RunSequence};
use model::{AgentKind, CallPolicy, CallSpec, Policy, SessionChoice, ToolChoice};
use supervisor::{Spool, Supervisor};

use crate::agent_spec::{Access, AgentSpec};
use crate::config::{ProviderConfig, SupervisorProgram, directory_variable, own_directory, state_directory};
use crate::context::Context;
use crate::error::ProviderError;
use crate::request_directory::RequestDirectory;
use crate::session::{Session, SessionRecords};
use crate::{confine, host_config};

/// Set once this program can act as its own supervisor.
static SUPERVISES_ITSELF: AtomicBool = AtomicBool::new(false);

/// Lets this program be the supervisor of its own agents, so that it needs no other executable beside it.
///
/// Call it first in `main`, before anything opens a file or starts a thread, and return the code when there is one:
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = provider::run_if_asked() {
///         return code;
///     }
///     // the program itself
/// #   std::process::ExitCode::SUCCESS
/// }
/// ```
pub fn run_if_asked() -> Option<std::process::ExitCode> {
    SUPERVISES_ITSELF.store(true, Ordering::Relaxed);
    supervisor::run_if_asked()
}

/// One agent program with its settings, shared by all requests of a provider.
#[derive(Debug)]
pub(crate) struct CliBackend {
    pub kind: AgentKind,
    /// [`crate::Provider::name`].
    pub name: String,
    pub config: ProviderConfig,
}

impl CliBackend {
    /// Checks whether a request can run: the agent is installed, works and is logged in, and there is a supervisor.
    pub async fn validate(self: &Arc<Self>) -> Result<(), ProviderError> {
        self.supervisor()?;
        let (kind, lookup) =
            (self.kind, self.lookup(self.config.resolve_environment()).excluding_workspaces(&[]));
        run_blocking(move || doctor::validate_environment(kind, &lookup)).await??;
        Ok(())
    }

    /// Finds the agent outside of its own working directories, and its capabilities. The agent itself reports a missing login.
    pub async fn look_up(
        &self,
        environment: BTreeMap<String, String>,
        workspaces: &[PathBuf],
    ) -> Result<AgentCheck, ProviderError> {
        let (kind, lookup) = (self.kind, self.lookup(environment));
        let outside = lookup.clone().excluding_workspaces(workspaces);
        let check = run_blocking(move || doctor::find_installed(kind, &outside)).await?;
        if check.is_ready() {
            lookup.remember_workspaces(workspaces);
            return Ok(check);
        }
        let findings = check.findings.into_iter().filter(|finding| finding.blocks).collect();
        Err(NotReady { agent: kind, findings }.into())
    }

    fn lookup(&self, environment: BTreeMap<String, String>) -> Lookup {
        Lookup {
            only: None,
            profiles: self.config.profiles.clone(),
            programs: self.config.program.iter().map(|program| (self.kind, program.clone())).collect(),
            own_directory: own_directory(),
            // Shared with the command line: a version check takes up to seconds.
            cache_file: state_directory(&environment).map(|state| state.join("agents.json")),
            excluded: Vec::new(),
            workspaces: KnownWorkspaces::default(),
            inherited: environment,
        }
    }

    pub fn supervisor(&self) -> Result<Supervisor, ProviderError> {
        match &self.config.supervisor {
            SupervisorProgram::At(program) => Ok(Supervisor::at(program)),
            SupervisorProgram::Auto if SUPERVISES_ITSELF.load(Ordering::Relaxed) => {
                Ok(Supervisor::this_program()?)
            }
            SupervisorProgram::Auto => Supervisor::beside_this_program().or_else(|error| {
                let environment = self.config.resolve_environment();
                let path = environment.get("PATH").map_or("", String::as_str);
                doctor::find_in_path(Supervisor::EXECUTABLE, path)
                    .map(Supervisor::at)
                    .ok_or_else(|| error.into())
            }),
        }
    }

    pub fn records(&self) -> SessionRecords {
        SessionRecords::new(&self.config, &self.config.resolve_environment())
    }

    /// Converts a request to a call.
    pub fn call(&self, context: &Context) -> Result<RunSequence, ProviderError> {
        let config = &self.config;
        let tools = match &context.allowed_tools {
            Some(tools) if tools.is_empty() => ToolChoice::None,
            Some(tools) => ToolChoice::Only(tools.clone()),
            None if config.allowed_tools.is_empty() => ToolChoice::Full,
            None => ToolChoice::Only(config.allowed_tools.clone()),
        };
        let spec = CallSpec {
            session: context.session_id.clone().map_or(SessionChoice::New, SessionChoice::Resume),
            tools,
            agent_name: context.agent_name.clone(),
            mcp_servers: context.mcp_servers.clone(),
            max_turns: context.max_turns,
            policy: config.policy.clone(),
            ..self.plain_call(context.to_prompt_string(), self.working_dir()?, context.model.as_ref())
        };
        Ok(self.sequence(spec))
    }

    /// Converts a message of a session to a call.
    pub fn message(
        &self,
        session: &Session,
        text: &str,
        environment: &BTreeMap<String, String>,
    ) -> Result<RunSequence, ProviderError> {
        let agent = session.agent();
        let mut spec = CallSpec {
            session: session.id().map_or(SessionChoice::New, SessionChoice::Resume),
            policy: self.policy(agent)?,
            ..self.plain_call(text.to_owned(), session.workspace().to_owned(), agent.model.as_ref())
        };
        confine::check(self.kind, &agent.access)?;
        confine::apply(agent, environment, &mut spec)?;
        Ok(self.sequence(spec))
    }

    fn plain_call(&self, prompt: String, cwd: PathBuf, model: Option<&String>) -> CallSpec {
        CallSpec {
            model: model.or(self.config.model.as_ref()).cloned(),
            partial_messages: self.config.partial_messages,
            limits: self.config.limits(),
            ..CallSpec::new(self.kind, prompt, cwd)
        }
    }

    fn sequence(&self, spec: CallSpec) -> RunSequence {
        let sequence = RunSequence::new(spec, self.config.max_resume_attempts);
        match self.config.turns_per_run(self.kind) {
            Some(turns) => sequence.with_turns_per_run(turns),
            None => sequence,
        }
    }

    /// Checks that no link in an earlier workspace leads a directory out of it.
    pub fn check_links(&self, directory: &Path) -> Result<(), ProviderError> {
        let directory = std::path::absolute(directory)
            .map_err(|source| ProviderError::directory("cannot work in", directory, source))?;
        let checked = self.lookup(self.config.resolve_environment()).check_links(&directory);
        checked.map_err(|error| ProviderError::environment(error.to_string(), error.hint()))
    }

    fn working_dir(&self) -> Result<PathBuf, ProviderError> {
        let directory = self.config.working_dir.clone().unwrap_or_else(|| PathBuf::from("."));
        self.check_links(&directory)?;
        directory
            .canonicalize()
            .map_err(|source| ProviderError::directory("cannot work in", &directory, source))
    }

    /// Returns the policy of a session's agent.
    pub fn policy(&self, agent: &AgentSpec) -> Result<CallPolicy, ProviderError> {
        confine::policy(&agent.access, agent.policy.as_ref().unwrap_or(&self.config.policy))
    }

    /// Checks whether an agent can run in a workspace as requested: by a trial launch and, if it is confined, by the sandbox
    /// self-test.
    pub async fn check_launch(&self, agent: &AgentSpec, workspace: &Path) -> Result<(), ProviderError> {
        let environment = self.config.resolve_environment();
        let search_path = environment.get("PATH").cloned().unwrap_or_default();
        let session = Session::new(&self.name, agent.clone(), workspace.to_owned());
        let sequence = self.message(&session, "?", &environment)?;
        let check = self.look_up(environment.clone(), &[workspace.to_owned()]).await?;
        let mut directory = RequestDirectory::create(&self.config, &environment)?;
        let spool = directory.next();
        let setup = self.setup(
            sequence.spec(),
            LaunchContext { check, environment, agent: Some(agent), spool: &spool },
        )?;
        let Policy::Confined(confinement) = agents::launch(sequence.spec(), &setup)?.plan.policy else {
            return Ok(());
        };
        let supervisor = self.supervisor()?;
        let scratch = confinement.proofs.clone().unwrap_or_else(|| spool.directory().to_owned());
        let proven =
            run_blocking(move || supervisor.prove(&confinement, &scratch, &search_path).map(drop)).await?;
        proven.map_err(|error| ProviderError::NeedsSandbox { agent: self.kind, missing: error.to_string() })
    }

    /// Collects the inputs of a launch besides the call.
    pub fn setup(&self, spec: &CallSpec, context: LaunchContext<'_>) -> Result<LaunchSetup, ProviderError> {
        let LaunchContext { check, environment, agent, spool } = context;
        let (Some(profile), Some(program)) = (check.profile, check.program) else {
            return Err(NotReady { agent: self.kind, findings: check.findings }.into());
        };
        let mut inherited = environment;
        let host = self.host_config(spec, agent, &program, &mut inherited, spool)?;
        Ok(LaunchSetup {
            profile,
            images: agents::read_images(&spec.images)?,
            program,
            version: check.version,
            capabilities: check.capabilities,
            models: self.config.models.clone(),
            workspace: agents::inspect_workspace(spec, &inherited),
            inherited,
            pass_on: self.config.pass_on.clone(),
            private_directory: spool.private(),
            tool_timeout: None,
            checkout: None,
            new_session: uuid::Uuid::new_v4().into(),
            host,
        })
    }

    /// Returns the directories that a confined agent must not see and the programs that it needs.
    fn host_config(
        &self,
        spec: &CallSpec,
        agent: Option<&AgentSpec>,
        program: &Path,
        inherited: &mut BTreeMap<String, String>,
        spool: &Spool,
    ) -> Result<HostConfig, ProviderError> {
        let terminal_host = confine::find_terminal_host(inherited);
        if spec.policy.is_off() {
            return Ok(HostConfig { terminal_host, ..HostConfig::default() });
        }
        let found = confine::find(agent.unwrap_or(&AgentSpec::default()), inherited);
        let file_tools = match agent.map(|agent| &agent.access) {
            Some(Access::FilesByShell(verbs)) if !verbs.is_empty() => {
                let found = found?;
                confine::prepend_to_path(&found, &spec.cwd, inherited)?;
                Some(found)
            }
            // A launch that needs it reports its absence.
            _ => found.ok(),
        };
        let home = directory_variable(inherited, "HOME");
        let own = [file_tools.as_deref(), terminal_host.as_deref()];
        let needed = [Some(spec.cwd.as_path()), Some(program), home.as_deref()].into_iter().chain(own);
        let needed: Vec<&Path> = needed.flatten().collect();
        let spools = spool.directory().ancestors().nth(2).unwrap_or(Path::new("/"));
        Ok(HostConfig {
            file_tools: file_tools.clone(),
            terminal_host: terminal_host.clone(),
            ..host_config::for_request(&self.config, inherited, spools, &needed)
        })
    }
}

/// The inputs of a launch besides its call.
pub(crate) struct LaunchContext<'a> {
    /// The agent's program.
    pub check: AgentCheck,
    /// The environment from which its variables are selected.
    pub environment: BTreeMap<String, String>,
    /// The spec of a session's agent.
    pub agent: Option<&'a AgentSpec>,
    /// The spool of the run.
    pub spool: &'a Spool,
}

/// Runs blocking work on a thread of the blocking pool.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ProviderError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| ProviderError::Environment {
        problem: "the check of the environment was aborted".to_owned(),
        remedy: "try again".to_owned(),
        source: Some(error.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn backend(kind: AgentKind, config: ProviderConfig) -> CliBackend {
        CliBackend {
            kind,
            name: "x".to_owned(),
            config: ProviderConfig { working_dir: Some("/tmp".into()), ..config },
        }
    }

    fn spec(config: ProviderConfig, context: &Context) -> CallSpec {
        backend(AgentKind::Claude, config).call(context).unwrap().spec().clone()
    }

    #[test]
    fn bare_request_uses_provider_settings_in_a_new_session() {
        let config = ProviderConfig {
            model: Some("opus".to_owned()),
            timeout: Duration::from_mins(1),
            ..ProviderConfig::default()
        };
        let spec = spec(config, &Context::new("Hello."));
        assert_eq!((spec.prompt.as_str(), spec.cwd.to_str()), ("Hello.", Some("/tmp")));
        assert_eq!((spec.tools, spec.session), (ToolChoice::Full, SessionChoice::New));
        assert_eq!((spec.max_turns, spec.model.as_deref()), (Some(25), Some("opus")));
        assert_eq!(spec.limits.wall, Some(Duration::from_mins(1)));
    }

    #[test]
    fn request_options_override_provider_settings() {
        let config = ProviderConfig {
            model: Some("opus".to_owned()),
            allowed_tools: vec!["Read".to_owned()],
            ..ProviderConfig::default()
        };
        let own = spec(config.clone(), &Context::new("Hello."));
        assert_eq!(own.tools, ToolChoice::Only(vec!["Read".to_owned()]));
        let context = Context {
            model: Some("haiku".to_owned()),
            max_turns: Some(3),
            allowed_tools: Some(vec!["Grep".to_owned()]),
            session_id: "abc".parse().ok(),
            ..Context::new("Hello.")
        };
        let asked = spec(config.clone(), &context);
        assert_eq!((asked.model.as_deref(), asked.max_turns), (Some("haiku"), Some(3)));
        assert_eq!(asked.tools, ToolChoice::Only(vec!["Grep".to_owned()]));
        assert_eq!(asked.session, SessionChoice::Resume("abc".parse().unwrap()));
        let none = Context { allowed_tools: Some(vec![]), ..Context::new("Hello.") };
        assert_eq!(spec(config, &none).tools, ToolChoice::None);
    }

    #[test]
    fn session_message_uses_its_workspace_and_model() {
        let backend = backend(AgentKind::Claude, ProviderConfig::default());
        let agent = AgentSpec {
            model: Some("sonnet".to_owned()),
            file_tools: Some("/bin/true".into()),
            ..AgentSpec::new("Be brief.")
        };
        let session = Session::new("x", agent, "/ws".into());
        let first = backend.message(&session, "Hi.", &BTreeMap::new()).unwrap().spec().clone();
        assert_eq!((first.cwd.to_str(), first.model.as_deref()), (Some("/ws"), Some("sonnet")));
        assert_eq!(first.session, SessionChoice::New);
        session.set_id(&"abc".parse().unwrap());
        let second = backend.message(&session, "Go on.", &BTreeMap::new()).unwrap().spec().clone();
        assert_eq!(second.session, SessionChoice::Resume("abc".parse().unwrap()));
        assert_eq!(second.system_prompt.as_deref(), Some("Be brief."), "it is not kept by the agent");
        assert_eq!(second.available_tools, Some(vec![]), "every message is as confined as the first");
    }

    #[test]
    fn missing_supervisor_is_reported_with_a_hint() {
        let nowhere = ProviderConfig { environment: Some(BTreeMap::new()), ..ProviderConfig::default() };
        let error = backend(AgentKind::Claude, nowhere).supervisor().unwrap_err();
        assert!(error.to_string().starts_with("there is no supervisor at `"), "{error}");
        assert!(error.hint().contains("provider::run_if_asked()"), "{}", error.hint());
    }

    #[test]
    fn supervisor_is_found_in_path() {
        use std::os::unix::fs::PermissionsExt;
        let bin = tempfile::tempdir().unwrap();
        let program = bin.path().join(Supervisor::EXECUTABLE);
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = BTreeMap::from([("PATH".to_owned(), bin.path().to_str().unwrap().to_owned())]);
        let config = ProviderConfig { environment: Some(path), ..ProviderConfig::default() };
        assert!(backend(AgentKind::Claude, config).supervisor().is_ok());
    }

    #[test]
    fn missing_working_directory_is_reported() {
        let config = ProviderConfig { working_dir: Some("/nowhere".into()), ..ProviderConfig::default() };
        let backend = CliBackend { kind: AgentKind::Claude, name: "x".to_owned(), config };
        let error = backend.call(&Context::new("Hello.")).unwrap_err();
        assert_eq!(error.to_string(), "cannot work in `/nowhere`");
    }
}
