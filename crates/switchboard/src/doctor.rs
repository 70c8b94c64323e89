//! `switchboard doctor`: what is here, whether it is ready, and what to do about what is missing.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agents::HostConfig;
use agents::doctor::{AgentCheck, DoctorReport, Finding, Login, Lookup};
use model::{AgentKind, CallPolicy, Confinement, Policy, PolicyContext, Proof};
use serde::Serialize;
use supervisor::{ProvenSandbox, Supervisor};

use crate::config::Config;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::front::{self, ConfigDrift};
use crate::home::{Home, HomeError};
use crate::wire::Complaint;
use crate::{cli, output, paint, recover};

/// Looks at the machine and says what it found.
pub fn check(order: &cli::Checkup) -> Result<ExitCode, Failure> {
    let environment = Environment::of_this_process();
    let home = home(&environment)?;
    let config = Config::read(home.as_ref(), &environment, &[])?;
    let drift = home.as_ref().and_then(|home| ConfigDrift::find(home, &environment));
    let store_problem = |home: &Home| recover::store_problem(home, &config);
    let daemon_problem =
        home.as_ref().and_then(|home| front::daemon_problem(home).or_else(|| store_problem(home)));
    let Looked { checkup, sandbox } = Looking::new(home, environment, &config).look();
    if order.json {
        let (proof, problem) = match &sandbox {
            Ok(proven) => (Some(&proven.proof), None),
            Err(finding) => (None, Some(finding)),
        };
        output::line(&serde_json::to_string_pretty(&Told {
            checkup: &checkup,
            proof,
            problem,
            drift: drift.as_ref(),
            daemon_problem: daemon_problem.as_ref(),
        })?);
    } else {
        tell(&checkup);
        tell_sandbox(&sandbox);
    }
    if let Some(drift) = drift {
        drift.print();
    }
    if let Some(problem) = &daemon_problem {
        output::aside(&format!("error: the daemon accepts no calls: {}", problem.message));
        output::aside(&format!("  hint: {}", problem.hint));
    }
    Ok(if checkup.any_ready() && daemon_problem.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where Switchboard's files are. Without a place for what they say, the agents are simply asked again.
fn home(environment: &Environment) -> Result<Option<Home>, HomeError> {
    match Home::find(environment) {
        Err(HomeError::None) => Ok(None),
        home => home.map(Some),
    }
}

/// With what the machine is looked at.
#[derive(Debug, Clone)]
pub struct Looking {
    lookup: Lookup,
    home: Option<Home>,
    environment: Environment,
    /// The policy of a call that names none.
    policy: CallPolicy,
}

/// What was found.
#[derive(Debug)]
pub struct Looked {
    /// The agents, and what there is to confine them with.
    pub checkup: DoctorReport,
    /// What a probe came to that tried to break out.
    pub sandbox: Result<ProvenSandbox, Finding>,
}

impl Looking {
    /// As somebody with this environment and configuration does.
    pub fn new(home: Option<Home>, environment: Environment, config: &Config) -> Self {
        let policy = config.sandbox.policy.within(&config.sandbox.ceiling);
        // As a call in this directory finds them.
        let lookup =
            lookup(&environment, home.as_ref(), config).excluding_workspaces(&env::current_dir().ok());
        Self { lookup, home, environment, policy }
    }

    /// Looks. Asks programs, so it may take seconds.
    pub fn look(&self) -> Looked {
        self.with_sandbox(agents::doctor::check(&self.lookup, bubblewrap(&self.lookup)))
    }

    /// The same for who may lose interest; none when that happens.
    pub fn look_while(&self, goes_on: &dyn Fn() -> bool) -> Option<Looked> {
        let checkup = agents::doctor::check_while(&self.lookup, bubblewrap(&self.lookup), goes_on);
        goes_on().then(|| self.with_sandbox(checkup))
    }

    /// Proves the sandbox of a default call, and adds to each agent what such a call would fail on.
    fn with_sandbox(&self, mut checkup: DoctorReport) -> Looked {
        let confinement = self.confinement();
        let sandbox =
            confinement.as_ref().map_err(Finding::clone).and_then(|confinement| self.prove(confinement));
        let is_root = rustix::process::geteuid().is_root();
        let told = self.lookup.inherited.get("IS_SANDBOX").is_some_and(|told| !told.is_empty());
        for agent in &mut checkup.agents {
            if agent.agent == AgentKind::Claude && agent.program.is_some() && is_root && !told {
                agent.findings.extend(refused_as_root(&self.policy, &sandbox));
            }
            if let (Some(program), Ok(confinement), false) =
                (&agent.program, &confinement, self.policy.is_off())
            {
                agent.findings.extend(unreachable(program, confinement));
            }
        }
        Looked { checkup, sandbox }
    }

    /// The sandbox of a default call; of the policy `workspace`, when such a call has none.
    fn confinement(&self) -> Result<Box<Confinement>, Finding> {
        let policy = if self.policy.is_off() { CallPolicy::default() } else { self.policy.clone() };
        let own = self.home.iter().map(|home| home.state().to_owned()).collect();
        let ground = PolicyContext { own, home: self.environment.folder("HOME"), ..PolicyContext::default() };
        match policy.confine(&ground) {
            Ok(Policy::Confined(confinement)) => Ok(confinement),
            Ok(Policy::Off) => Err(note("there is no policy", "")),
            Err(error) => Err(note(error.to_string(), error.hint())),
        }
    }

    /// Runs a probe in the sandbox, without the cached result: the doctor checks anew.
    fn prove(&self, confinement: &Confinement) -> Result<ProvenSandbox, Finding> {
        let no_place = || note("there is no place for what a probe needs", "set HOME, or SWITCHBOARD_HOME");
        let scratch = self.home.as_ref().ok_or_else(no_place)?.state().to_owned();
        let supervisor =
            Supervisor::beside_this_program().map_err(|error| note(error.to_string(), error.hint()))?;
        let search_path = self.lookup.inherited.get("PATH").map_or("", String::as_str);
        supervisor
            .prove(confinement, &scratch, search_path)
            .map_err(|error| note(error.to_string(), error.hint()))
    }
}

fn note(problem: impl Into<String>, remedy: &str) -> Finding {
    Finding { problem: problem.into(), remedy: remedy.to_owned(), blocks: false }
}

/// Predicts that claude refuses to skip its questions as root: it does so only where something confines it.
fn refused_as_root(policy: &CallPolicy, sandbox: &Result<ProvenSandbox, Finding>) -> Option<Finding> {
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

/// Predicts that an agent cannot be started because its program lies in something that is hidden.
fn unreachable(program: &Path, confinement: &Confinement) -> Option<Finding> {
    let program = program.canonicalize().ok()?;
    let hidden = confinement.hidden.iter().find(|hidden| program.starts_with(hidden))?;
    Some(Finding {
        problem: format!(
            "`{}` lies in `{}`, which confined agents do not see",
            program.display(),
            hidden.display()
        ),
        remedy: "install it elsewhere".to_owned(),
        blocks: true,
    })
}

/// `switchboard agents`: a line for each.
pub fn agents(order: &cli::Checkup) -> Result<ExitCode, Failure> {
    if order.json {
        return check(order);
    }
    let environment = Environment::of_this_process();
    let home = home(&environment)?;
    let config = Config::read(home.as_ref(), &environment, &[])?;
    let lookup = lookup(&environment, home.as_ref(), &config).excluding_workspaces(&env::current_dir().ok());
    let checkup = agents::doctor::check(&lookup, bubblewrap(&lookup));
    let row = |agent: &AgentCheck| {
        let first = agent.findings.iter().find(|finding| finding.blocks);
        vec![
            agent.agent.to_string(),
            agent.version.map_or_else(|| "-".to_owned(), |version| version.to_string()),
            if agent.is_ready() { "ready".to_owned() } else { "not ready".to_owned() },
            first.map(|finding| finding.remedy.clone()).unwrap_or_default(),
        ]
    };
    let rows: Vec<Vec<String>> = checkup.agents.iter().map(row).collect();
    let heads = ["AGENT", "VERSION", "READY", "WHAT TO DO"];
    output::line(&paint::table(&heads, &rows, paint::width()).join("\n"));
    Ok(if checkup.any_ready() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where and with what agents are looked for.
pub fn lookup(environment: &Environment, home: Option<&Home>, config: &Config) -> Lookup {
    Lookup {
        inherited: environment.texts(),
        own_directory: env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned())),
        programs: config.programs.clone(),
        cache_file: home.map(Home::agents_cache),
        ..Lookup::default()
    }
}

/// Returns the bubblewrap that confines agents, as the supervisor finds it.
fn bubblewrap(lookup: &Lookup) -> Option<PathBuf> {
    supervisor::find_bubblewrap(lookup.inherited.get("PATH").map_or("", String::as_str))
}

/// What is Switchboard's own, and kept from agents that are confined.
pub fn premises(home: &Home, config: &Config) -> HostConfig {
    HostConfig {
        state: own_directories(home),
        proofs: Some(home.state().join("proofs")),
        private_state: Some(home.state().join("agents")),
        caches: Some(home.state().join("caches")),
        file_tools: file_tools(),
        ceiling: config.sandbox.ceiling.clone(),
        expose: config.sandbox.expose.clone(),
        guarded: own_directories(home),
    }
}

/// The directories of state and configuration.
pub fn own_directories(home: &Home) -> Vec<PathBuf> {
    let config = home.config_file().parent().map(Path::to_owned);
    std::iter::once(home.state().to_owned()).chain(config).collect()
}

/// The `file-tools` beside this program.
pub fn file_tools() -> Option<PathBuf> {
    let beside = env::current_exe().ok()?.with_file_name("file-tools");
    beside.exists().then_some(beside)
}

/// Everything that was found, and whether an agent can be confined here.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    checkup: &'a DoctorReport,
    #[serde(rename = "sandbox_proof")]
    proof: Option<&'a Proof>,
    #[serde(rename = "sandbox_problem")]
    problem: Option<&'a Finding>,
    #[serde(rename = "config_drift", skip_serializing_if = "Option::is_none")]
    drift: Option<&'a ConfigDrift>,
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_problem: Option<&'a Complaint>,
}

fn tell_sandbox(sandbox: &Result<ProvenSandbox, Finding>) {
    match sandbox {
        Ok(ProvenSandbox { made_of, namespaces, counts_processes, proof, .. }) => {
            let stopped = proof.escapes.iter().filter(|escape| escape.stopped).count();
            let holds = if *namespaces { "holds" } else { "holds in part" };
            output::line(&format!(
                "sandbox: {holds}, by {made_of}; {stopped} ways out were tried and stopped"
            ));
            if !namespaces {
                tell_finding(&note(
                    "without namespaces, protected paths can be written, and sockets and other processes can be seen",
                    "install bubblewrap, and let this user make user namespaces; docs/sandbox.md has the table",
                ));
            }
            if !counts_processes {
                tell_finding(&Finding {
                    problem: "it does not bound the number of processes: the kernel does not hold root to one".to_owned(),
                    remedy: "call agents as an ordinary user, or delegate a cgroup (version 2) that counts processes; \
                             `--require` refuses only a number that the configuration names"
                        .to_owned(),
                    blocks: false,
                });
            }
        }
        Err(finding) => {
            output::line("sandbox: agents cannot be confined as policies require");
            tell_finding(finding);
        }
    }
}

fn tell(checkup: &DoctorReport) {
    for agent in &checkup.agents {
        output::line(&headline(agent));
        agent.findings.iter().for_each(tell_finding);
    }
    if !checkup.findings.is_empty() {
        output::line("machine");
        checkup.findings.iter().for_each(tell_finding);
    }
    if !checkup.any_ready() {
        output::line("\nno agent is ready; `switchboard call rehearsal` works without any");
    }
}

fn headline(agent: &AgentCheck) -> String {
    let ready = if agent.is_ready() { "ready" } else { "not ready" };
    let version = agent.version.map(|version| format!(" {version}")).unwrap_or_default();
    let place = agent.program.as_ref().map(|program| format!(", {}", program.display())).unwrap_or_default();
    format!("{}{version}: {ready}{}{place}", agent.agent, login(agent))
}

/// Whether it is logged in, as what follows its name.
pub fn login(agent: &AgentCheck) -> &'static str {
    match agent.login {
        _ if agent.program.is_none() => "",
        Login::ByVariable => ", key in the environment",
        Login::ByFile | Login::Reported => ", logged in",
        Login::LoggedOut => "",
        Login::Unknown => ", login cannot be told",
    }
}

fn tell_finding(finding: &Finding) {
    let mark = if finding.blocks { "missing" } else { "note" };
    output::line(&format!("  {mark}: {}\n    hint: {}", finding.problem, finding.remedy));
}
