//! A harness for one trial: a home, a workspace, and a provider for one CLI that uses a scripted model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model_api::{ModelApi, Script};
use provider::{
    AgentKind, ClaudeCodeProvider, CodexProvider, GeminiProvider, Provider, ProviderConfig, RehearsalProvider,
};
use tempfile::TempDir;

use crate::outside;
use crate::pinned::Pinned;
use testkit::eventually_async;

/// The timeout of a trial.
const LONG: Duration = Duration::from_mins(2);

pub struct Harness {
    cli: Pinned,
    directory: TempDir,
    pub api: ModelApi,
}

impl Harness {
    /// Runs a scenario with one CLI and one script, and then checks that nothing is left.
    pub fn run<F: AsyncFnOnce(&Self)>(cli: &Pinned, script: Script, scenario: F) {
        // Not below /tmp: codex creates no helpers there and complains on stderr.
        Self::run_in(Path::new("/var/tmp"), cli, script, scenario);
    }

    /// Runs it in a directory created in this one.
    pub fn run_in<F: AsyncFnOnce(&Self)>(parent: &Path, cli: &Pinned, script: Script, scenario: F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let harness = Self::new(parent, cli, script).await;
            tokio::time::timeout(LONG, scenario(&harness)).await.expect("the scenario hangs");
            let gone = async || outside::processes_of(harness.directory()).is_empty();
            eventually_async("no process is left", gone).await;
            assert_eq!(
                fs::read_dir(harness.directory().join("spools")).unwrap().count(),
                0,
                "files are left"
            );
        });
    }

    async fn new(parent: &Path, cli: &Pinned, script: Script) -> Self {
        let directory = tempfile::Builder::new().prefix("provider-real-").tempdir_in(parent).unwrap();
        for name in ["work", "spools"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { cli: cli.clone(), directory, api: ModelApi::start(script).await }
    }

    pub fn kind(&self) -> AgentKind {
        self.cli.kind
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn workspace(&self) -> PathBuf {
        self.directory().join("work")
    }

    pub fn program(&self) -> &Path {
        &self.cli.installed.as_ref().unwrap().program
    }

    /// Returns the environment for the scripted model.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let cli = self.cli.installed.as_ref().unwrap();
        let offline = cli.environment(&self.api, &self.directory().join("home")).unwrap();
        // Versions of the CLIs are cached for all trials.
        let state = (env!("CARGO_TARGET_TMPDIR").to_owned()) + "/state";
        offline.into_iter().chain([("XDG_STATE_HOME".to_owned(), state)]).collect()
    }

    pub fn config(&self) -> ProviderConfig {
        ProviderConfig {
            program: Some(self.program().to_owned()),
            working_dir: Some(self.workspace()),
            environment: Some(self.environment()),
            // The key of the scripted provider, which the user of a custom provider would pass on.
            pass_on: BTreeSet::from(["SCRIPTED_KEY".to_owned()]),
            spools: Some(self.directory().join("spools")),
            sessions: Some(self.directory().join("sessions")),
            timeout: Duration::from_secs(90),
            policy: provider::CallPolicy::off(),
            ..ProviderConfig::default()
        }
    }

    pub fn provider(&self) -> Box<dyn Provider> {
        of_kind(self.kind(), self.config())
    }

    /// Returns the name of the CLI's shell tool.
    pub fn shell(&self) -> &'static str {
        match self.kind() {
            AgentKind::Claude => "Bash",
            _ => "run_shell_command",
        }
    }
}

pub fn of_kind(kind: AgentKind, config: ProviderConfig) -> Box<dyn Provider> {
    match kind {
        AgentKind::Claude => Box::new(ClaudeCodeProvider::from_config(config)),
        AgentKind::Codex => Box::new(CodexProvider::from_config(config)),
        AgentKind::Gemini => Box::new(GeminiProvider::from_config(config)),
        AgentKind::Rehearsal => Box::new(RehearsalProvider::from_config(config)),
        agent @ AgentKind::Profiled(_) => Box::new(provider::AgentProvider::new(agent, config)),
    }
}
