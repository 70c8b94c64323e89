//! Checks the agents and the sandbox of this machine, and builds the settings that depend on both.
//!
//! Shared by `doctor`, the daemon, the web page and direct calls.

use std::env;
use std::path::{Path, PathBuf};

use agents::HostConfig;
use agents::doctor::{AgentCheck, DoctorReport, Finding, Login, Lookup};
use dashboard::{MachineHealth, SandboxCheck};
use model::{AgentKind, CallPolicy, Confinement, Policy, PolicyContext};
use protocol::{ProcessEnvironment, SwitchboardHome};
use supervisor::{ProvenSandbox, Supervisor};

use crate::config::Config;

/// The inputs of a check of this machine.
#[derive(Debug, Clone)]
pub struct MachineCheck {
    lookup: Lookup,
    home: Option<SwitchboardHome>,
    environment: ProcessEnvironment,
    /// The policy of a call that names none.
    policy: CallPolicy,
}

/// The result of a check of this machine.
#[derive(Debug)]
pub struct MachineReport {
    /// The agents and the sandbox mechanisms.
    pub checkup: DoctorReport,
    /// The result of the sandbox self-test.
    pub sandbox: Result<ProvenSandbox, Finding>,
}

impl MachineCheck {
    /// Creates a check for an environment and a configuration.
    pub fn new(home: Option<SwitchboardHome>, environment: ProcessEnvironment, config: &Config) -> Self {
        let policy = config.sandbox.policy.within(&config.sandbox.ceiling);
        // Programs in the working directory are ignored, as they are by a call.
        let lookup =
            agent_lookup(&environment, home.as_ref(), config).excluding_workspaces(&env::current_dir().ok());
        Self { lookup, home, environment, policy }
    }

    /// Restricts the check to one agent.
    #[must_use]
    pub fn only(mut self, agent: Option<AgentKind>) -> Self {
        self.lookup.only = agent;
        self
    }

    /// Runs the check. Starts programs, so it may take seconds.
    pub fn run(&self) -> MachineReport {
        self.with_sandbox(agents::doctor::check(&self.lookup, bubblewrap(&self.lookup)))
    }

    /// Runs the check for the web page while `is_wanted` returns true; `None` if it was abandoned.
    pub fn run_while(&self, is_wanted: &dyn Fn() -> bool) -> Option<MachineHealth> {
        let checkup = agents::doctor::check_while(&self.lookup, bubblewrap(&self.lookup), is_wanted);
        if !is_wanted() {
            return None;
        }
        let MachineReport { checkup, sandbox } = self.with_sandbox(checkup);
        let sandbox = sandbox.map(|proven| SandboxCheck {
            mechanisms: proven.made_of,
            blocked_escapes: proven.proof.escapes.len(),
        });
        Some(MachineHealth { checkup, sandbox })
    }

    /// Runs the self-test of a default call's sandbox, and adds the findings that such a call would fail on.
    fn with_sandbox(&self, mut checkup: DoctorReport) -> MachineReport {
        let confinement = self.confinement();
        let sandbox =
            confinement.as_ref().map_err(Finding::clone).and_then(|confinement| self.self_test(confinement));
        let is_root = rustix::process::geteuid().is_root();
        let is_declared = self.lookup.inherited.get("IS_SANDBOX").is_some_and(|value| !value.is_empty());
        for agent in &mut checkup.agents {
            if agent.agent == AgentKind::Claude && agent.program.is_some() && is_root && !is_declared {
                agent.findings.extend(find_root_rejection(&self.policy, &sandbox));
            }
            if let (Some(program), Ok(confinement), false) =
                (&agent.program, &confinement, self.policy.is_off())
            {
                agent.findings.extend(find_hidden_program(program, confinement));
            }
        }
        MachineReport { checkup, sandbox }
    }

    /// Returns the sandbox of a default call, or that of the policy `workspace` if a default call has none.
    fn confinement(&self) -> Result<Box<Confinement>, Finding> {
        let policy = if self.policy.is_off() { CallPolicy::default() } else { self.policy.clone() };
        let own = self.home.iter().map(|home| home.state().to_owned()).collect();
        let ground =
            PolicyContext { own, home: self.environment.directory("HOME"), ..PolicyContext::default() };
        match policy.confine(&ground) {
            Ok(Policy::Confined(confinement)) => Ok(confinement),
            Ok(Policy::Off) => Err(note("there is no policy", "")),
            Err(error) => Err(note(error.to_string(), error.hint())),
        }
    }

    /// Runs the self-test of a sandbox without its cache.
    fn self_test(&self, confinement: &Confinement) -> Result<ProvenSandbox, Finding> {
        let no_directory = || note("no directory for the sandbox self-test", "set HOME, or SWITCHBOARD_HOME");
        let scratch = self.home.as_ref().ok_or_else(no_directory)?.state().to_owned();
        let supervisor =
            Supervisor::beside_this_program().map_err(|error| note(error.to_string(), error.hint()))?;
        let search_path = self.lookup.inherited.get("PATH").map_or("", String::as_str);
        supervisor
            .prove(confinement, &scratch, search_path)
            .map_err(|error| note(error.to_string(), error.hint()))
    }
}

/// Creates a finding that does not block calls.
pub fn note(problem: impl Into<String>, remedy: &str) -> Finding {
    Finding { problem: problem.into(), remedy: remedy.to_owned(), blocks: false }
}

/// Predicts that claude rejects a call: as root, it skips permission prompts only inside a sandbox.
fn find_root_rejection(policy: &CallPolicy, sandbox: &Result<ProvenSandbox, Finding>) -> Option<Finding> {
    let (why, remedy) = match sandbox {
        _ if policy.is_off() => {
            ("the policy is `off`", "set `[sandbox] policy = \"workspace\"`, or run as an unprivileged user")
        }
        Ok(proven) if proven.holds_writes => return None,
        _ => ("there is none", "install bubblewrap, or run as an unprivileged user"),
    };
    Some(Finding {
        problem: format!("as root, claude runs only in a sandbox, and {why}"),
        remedy: format!("{remedy}; in a container that confines it, set IS_SANDBOX=1"),
        blocks: true,
    })
}

/// Predicts that an agent cannot be started because its program is in a hidden directory.
fn find_hidden_program(program: &Path, confinement: &Confinement) -> Option<Finding> {
    let program = program.canonicalize().ok()?;
    let hidden = confinement.hidden.iter().find(|hidden| program.starts_with(hidden))?;
    Some(Finding {
        problem: format!(
            "`{}` is in `{}`, which is hidden from sandboxed agents",
            program.display(),
            hidden.display()
        ),
        remedy: "install it elsewhere".to_owned(),
        blocks: true,
    })
}

/// Returns the parameters of the search for agents.
pub fn agent_lookup(
    environment: &ProcessEnvironment,
    home: Option<&SwitchboardHome>,
    config: &Config,
) -> Lookup {
    Lookup {
        inherited: environment.utf8_variables(),
        own_directory: env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned())),
        profiles: config.profiles.clone(),
        programs: config.programs.clone(),
        cache_file: home.map(SwitchboardHome::agents_cache),
        ..Lookup::default()
    }
}

/// Returns the lookup of programs other than agents, outside of the current directory and of all workspaces.
pub fn program_lookup(environment: &ProcessEnvironment) -> Lookup {
    let home = SwitchboardHome::from_environment(environment).ok();
    let lookup = Lookup {
        inherited: environment.utf8_variables(),
        cache_file: home.as_ref().map(SwitchboardHome::agents_cache),
        ..Lookup::default()
    };
    lookup.excluding_workspaces(&env::current_dir().ok())
}

/// Finds bubblewrap like the supervisor does.
pub fn bubblewrap(lookup: &Lookup) -> Option<PathBuf> {
    supervisor::find_bubblewrap(lookup.inherited.get("PATH").map_or("", String::as_str))
}

/// Returns the paths that are hidden from sandboxed agents or prepared for them.
pub fn premises(home: &SwitchboardHome, config: &Config) -> HostConfig {
    HostConfig {
        state: own_directories(home),
        proofs: Some(home.state().join("proofs")),
        private_state: Some(home.state().join("agents")),
        caches: Some(home.state().join("caches")),
        file_tools: own_program("file-tools"),
        terminal_host: own_program("terminal-host"),
        ceiling: config.sandbox.ceiling.clone(),
        expose: config.sandbox.expose.clone(),
        guarded: own_directories(home),
        checkouts: Some(home.state().join("checkouts")),
    }
}

/// Returns the directories of state and configuration.
pub fn own_directories(home: &SwitchboardHome) -> Vec<PathBuf> {
    let config = home.config_file().parent().map(Path::to_owned);
    std::iter::once(home.state().to_owned()).chain(config).collect()
}

/// Returns the program of Switchboard with this name, beside this one.
pub fn own_program(name: &str) -> Option<PathBuf> {
    let beside = env::current_exe().ok()?.with_file_name(name);
    beside.exists().then_some(beside)
}

/// Describes the login of an agent, as a suffix of its headline.
pub fn describe_login(agent: &AgentCheck) -> &'static str {
    match agent.login {
        _ if agent.program.is_none() => "",
        Login::ByVariable => ", key in the environment",
        Login::ByFile | Login::Reported => ", logged in",
        Login::LoggedOut => "",
        Login::Unknown => " (login not checked)",
    }
}
