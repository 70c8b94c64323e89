//! The harness of a trial: its own home directory and workspace, one CLI, and the calls.
//!
//! A call takes the same path as in the product. At the end the harness checks that no process of the trial is alive.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_run::{Expectation, RunFollower, RunStep};
use agents::doctor::{self, AgentCheck, Lookup};
use agents::{AgentProfile, Launch, LaunchError, LaunchSetup, ModelTables, Patience};
use model::{AgentEvent, AgentKind, CallPolicy, CallSpec, End, Limits, RunPlan, RunState, Totals, TreeEnd};
use model_api::ModelApi;
use supervisor::{Run, Spool, Supervisor};
use tempfile::TempDir;

use crate::outside;
use crate::pinned::Pinned;
use crate::story::Done;
use testkit::eventually_async;

/// The timeout of a trial, shorter than that of the test runner, so that it can still report its state.
const LONG: Duration = Duration::from_mins(2);

/// The name under which this program is `terminal-host`.
pub const TERMINAL_HOST: &str = "terminal-host";

/// The value of every variable that no agent may see.
pub const CANARY: &str = "canary-of-the-caller";

/// Variables of the caller that would lend an agent a login, run code in it, or report an outer agent. Set in every trial.
const CANARIES: [&str; 6] = [
    "AWS_SECRET_ACCESS_KEY",
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "GIT_SSH_COMMAND",
    "LD_PRELOAD",
    "SOME_SECRET",
];

pub struct Harness {
    cli: Pinned,
    directory: TempDir,
    check: AgentCheck,
    started: Cell<u32>,
}

impl Harness {
    /// Runs a scenario with one CLI, then looks for leftovers.
    pub fn play<F: AsyncFnOnce(&Self)>(cli: &Pinned, scenario: F) {
        let harness = Self::new(cli);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(LONG, scenario(&harness)).await.expect("the scenario hangs");
            let gone = async || harness.processes().is_empty();
            eventually_async("no process of the run is left", gone).await;
        });
    }

    fn new(cli: &Pinned) -> Self {
        // Not below /tmp: codex creates no helpers there and complains on stderr.
        let directory = tempfile::Builder::new().prefix("switchboard-real-").tempdir_in("/var/tmp").unwrap();
        fs::create_dir(directory.path().join("work")).unwrap();
        let program = cli.installed.as_ref().map(|cli| cli.program.clone()).unwrap();
        if cli.needs_terminals() {
            symlink(std::env::current_exe().unwrap(), directory.path().join(TERMINAL_HOST)).unwrap();
        }
        let lookup = Lookup {
            inherited: BTreeMap::from([
                ("HOME".to_owned(), directory.path().join("home").to_str().unwrap().to_owned()),
                ("PATH".to_owned(), std::env::var("PATH").unwrap()),
            ]),
            programs: BTreeMap::from([(cli.kind, program)]),
            own_directory: Some(directory.path().to_owned()),
            // Shared by all trials: probing gemini takes as long as calling it.
            cache_file: Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("probes.json")),
            ..Lookup::default()
        };
        let check = doctor::find_installed(cli.kind, &lookup);
        assert!(check.is_ready() && check.findings.is_empty(), "{check:?}");
        assert_eq!(check.version.map(|version| version.to_string()).as_deref(), Some(cli.version));
        Self { cli: cli.clone(), directory, check, started: Cell::new(0) }
    }

    pub fn kind(&self) -> AgentKind {
        self.cli.kind
    }

    /// Returns the profile of the agent.
    pub fn profile(&self) -> &AgentProfile {
        self.check.profile.as_ref().unwrap()
    }

    /// Returns the directory of the trial.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the workspace.
    pub fn workspace(&self) -> PathBuf {
        self.directory().join("work")
    }

    /// Returns whether the workspace contains a file.
    pub fn has_file(&self, name: &str) -> bool {
        self.workspace().join(name).exists()
    }

    /// Returns the live processes of the trial, from `/proc`.
    pub fn processes(&self) -> Vec<i32> {
        outside::processes_of(self.directory())
    }

    /// Returns a call with short limits, so that a failing trial fails soon.
    pub fn spec(&self, prompt: impl Into<String>) -> CallSpec {
        let limits = Limits {
            wall: Some(Duration::from_secs(90)),
            grace: Duration::from_secs(2),
            ..Limits::default()
        };
        let policy = CallPolicy::off();
        CallSpec { limits, policy, ..CallSpec::new(self.kind(), prompt, self.workspace()) }
    }

    /// Plans a call.
    pub fn launch(&self, api: &ModelApi, spec: &CallSpec, spool: &Spool) -> Result<Launch, LaunchError> {
        let cli = self.cli.installed.as_ref().unwrap();
        let offline = cli.environment(api, &self.directory().join("home")).unwrap();
        // As root, a sandboxed claude needs the variable.
        let offline = offline.into_iter().filter(|(name, _)| name != "IS_SANDBOX" || spec.policy.is_off());
        let canaries = CANARIES.map(|name| (name.to_owned(), CANARY.to_owned()));
        let inherited: BTreeMap<String, String> = offline.into_iter().chain(canaries).collect();
        let setup = LaunchSetup {
            profile: self.check.profile.clone().unwrap(),
            images: agents::read_images(&spec.images)?,
            workspace: agents::inspect_workspace(spec, &inherited),
            tool_timeout: Some(Duration::from_mins(5)),
            program: self.check.program.clone().unwrap(),
            version: self.check.version,
            capabilities: self.check.capabilities.clone(),
            models: ModelTables::default(),
            inherited,
            // The key of the scripted provider, which an operator would pass through.
            pass_on: BTreeSet::from(["SCRIPTED_KEY".to_owned()]),
            private_directory: spool.private(),
            checkout: None,
            new_session: uuid::Uuid::new_v4().into(),
            host: agents::HostConfig {
                terminal_host: Some(self.directory().join(TERMINAL_HOST)),
                private_state: Some(self.directory().join("states")),
                caches: Some(self.directory().join("caches")),
                ..agents::HostConfig::default()
            },
        };
        agents::seed_private_state(spec, &setup).unwrap();
        agents::launch(spec, &setup)
    }

    /// Starts a call.
    pub async fn place(&self, api: &ModelApi, spec: &CallSpec) -> StartedCall {
        self.place_with(api, spec, |_| ()).await
    }

    /// Starts a call with a modified plan.
    pub async fn place_with(
        &self,
        api: &ModelApi,
        spec: &CallSpec,
        change: impl FnOnce(&mut RunPlan),
    ) -> StartedCall {
        let spool = self.new_spool();
        let mut launch = self.launch(api, spec, &spool).unwrap_or_else(|error| panic!("{error}: {spec:?}"));
        change(&mut launch.plan);
        let supervisor = Supervisor::this_program().unwrap();
        let run = supervisor.start(spool.directory(), &launch.plan).await.unwrap().stop_on_drop();
        StartedCall { kind: self.kind(), launch, run }
    }

    /// Runs a call.
    pub async fn ask(&self, api: &ModelApi, spec: &CallSpec) -> Done {
        self.place(api, spec).await.end(None).await
    }

    /// Returns the spool of the next run.
    pub fn new_spool(&self) -> Spool {
        self.started.set(self.started.get() + 1);
        Spool::at(self.directory().join(format!("run-{}", self.started.get())))
    }
}

/// A started call.
pub struct StartedCall {
    kind: AgentKind,
    pub launch: Launch,
    pub run: Run,
}

impl StartedCall {
    /// Returns the pid of the agent.
    pub fn agent(&self) -> i32 {
        match self.run.spool().status().unwrap().unwrap().state {
            RunState::Running { agent, .. } => agent.pid,
            RunState::Ended(report) => panic!("it has ended: {report:?}"),
        }
    }

    /// Follows the run to its end and judges it; `before` is the usage of the session before it.
    pub async fn end(self, before: Option<Totals>) -> Done {
        let mut follower = RunFollower::new(&self.run, self.kind, Some(Patience::default())).unwrap();
        let (mut said, mut stderr) = (Vec::new(), Vec::new());
        let end = loop {
            match follower.next(&mut |event| said.push(event.into_owned())).await.unwrap() {
                RunStep::Output => {}
                RunStep::Error(bytes) => stderr.extend(bytes),
                RunStep::StoppedEarly(_, stopped) => drop(stopped.unwrap()),
                RunStep::Ended(end) => break end,
            }
        };
        let expected = Expectation { before, ..Expectation::from_launch(self.kind, &self.launch) };
        let outcome = end.judge(expected);
        let report = end.report;
        let stdout = fs::read(self.run.spool().output()).unwrap();
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        let done = Done { launch: self.launch, outcome, report, events: said, stdout, stderr };
        assert_eq!(done.report.tree, TreeEnd::ProvenEmpty, "{done}");
        // The output of a killed agent may end in the middle of a line.
        let unreadable = done.events.iter().any(|event| matches!(event, AgentEvent::Unreadable { .. }));
        assert!(!unreadable || done.report.end != End::Exited, "{done}");
        assert!(!self.run.spool().private().exists(), "private files are left: {done}");
        done
    }
}
