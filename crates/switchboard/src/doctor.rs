//! `switchboard doctor`: what is here, whether it is ready, and what to do about what is missing.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use agents::Premises;
use agents::doctor::{AgentCheck, Checkup, Finding, Login, Lookup};
use model::{CallPolicy, Ground, Policy, Preset, Proof};
use serde::Serialize;
use supervisor::{ProvenSandbox, Supervisor};

use crate::config::Config;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::home::{Home, HomeError};
use crate::{cli, output, paint};

/// Looks at the machine and says what it found.
pub fn check(order: &cli::Checkup) -> Result<ExitCode, Failure> {
    let environment = Environment::of_this_process();
    let home = home(&environment)?;
    let config = Config::read(home.as_ref(), &environment, &[])?;
    let Looked { checkup, sandbox } = Looking::new(home, environment, &config).look();
    if order.json {
        let (proof, problem) = match &sandbox {
            Ok(proven) => (Some(&proven.proof), None),
            Err(finding) => (None, Some(finding)),
        };
        output::line(&serde_json::to_string_pretty(&Told { checkup: &checkup, proof, problem })?);
    } else {
        tell(&checkup);
        tell_sandbox(&sandbox);
    }
    Ok(if checkup.any_ready() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
}

/// What was found.
#[derive(Debug)]
pub struct Looked {
    /// The agents, and what there is to confine them with.
    pub checkup: Checkup,
    /// What a probe came to that tried to break out.
    pub sandbox: Result<ProvenSandbox, Finding>,
}

impl Looking {
    /// As somebody with this environment and configuration does.
    pub fn new(home: Option<Home>, environment: Environment, config: &Config) -> Self {
        Self { lookup: lookup(&environment, home.as_ref(), config), home, environment }
    }

    /// Looks. Asks programs, so it may take seconds.
    pub fn look(&self) -> Looked {
        let checkup = agents::doctor::check(&self.lookup);
        Looked { checkup, sandbox: prove(self.home.as_ref(), &self.environment) }
    }

    /// The same for who may lose interest; none when that happens.
    pub fn look_while(&self, goes_on: &dyn Fn() -> bool) -> Option<Looked> {
        let checkup = agents::doctor::check_while(&self.lookup, goes_on);
        goes_on().then(|| Looked { checkup, sandbox: prove(self.home.as_ref(), &self.environment) })
    }
}

/// `switchboard agents`: a line for each.
pub fn agents(order: &cli::Checkup) -> Result<ExitCode, Failure> {
    if order.json {
        return check(order);
    }
    let environment = Environment::of_this_process();
    let home = home(&environment)?;
    let config = Config::read(home.as_ref(), &environment, &[])?;
    let checkup = agents::doctor::check(&lookup(&environment, home.as_ref(), &config));
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
        own_folder: env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned())),
        programs: config.programs.clone(),
        cache_file: home.map(Home::agents_cache),
    }
}

/// What is Switchboard's own, and kept from agents that are confined.
pub fn premises(home: &Home, config: &Config) -> Premises {
    Premises {
        state: vec![home.state().to_owned()],
        proofs: Some(home.state().join("proofs")),
        private_state: Some(home.state().join("agents")),
        file_tools: file_tools(),
        ceiling: config.sandbox.ceiling.clone(),
    }
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
    checkup: &'a Checkup,
    #[serde(rename = "sandbox_proof")]
    proof: Option<&'a Proof>,
    #[serde(rename = "sandbox_problem")]
    problem: Option<&'a Finding>,
}

/// Lets a probe loose in the sandbox of the policy `workspace`. Not what was proven earlier: the doctor looks anew.
fn prove(home: Option<&Home>, environment: &Environment) -> Result<ProvenSandbox, Finding> {
    let finding =
        |problem: String, remedy: &str| Finding { problem, remedy: remedy.to_owned(), blocks: false };
    let no_place =
        || finding("there is no place for what a probe needs".to_owned(), "set HOME, or SWITCHBOARD_HOME");
    let scratch = home.ok_or_else(no_place)?.state().to_owned();
    let ground = Ground { own: vec![scratch.clone()], home: environment.folder("HOME"), ..Ground::default() };
    let confinement = match CallPolicy::from(Preset::Workspace).confine(&ground) {
        Ok(Policy::Confined(confinement)) => confinement,
        Ok(Policy::Off) => return Err(finding("there is no policy".to_owned(), "")),
        Err(error) => return Err(finding(error.to_string(), error.hint())),
    };
    let supervisor =
        Supervisor::beside_this_program().map_err(|error| finding(error.to_string(), error.hint()))?;
    supervisor.prove(&confinement, &scratch).map_err(|error| finding(error.to_string(), error.hint()))
}

fn tell_sandbox(sandbox: &Result<ProvenSandbox, Finding>) {
    match sandbox {
        Ok(ProvenSandbox { made_of, counts_processes, proof }) => {
            let tried = proof.escapes.len();
            output::line(&format!("sandbox: holds, by {made_of}; {tried} ways out were tried and stopped"));
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

fn tell(checkup: &Checkup) {
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
        Login::ByFile | Login::ByItsWord => ", logged in",
        Login::LoggedOut => "",
        Login::Unknown => ", login cannot be told",
    }
}

fn tell_finding(finding: &Finding) {
    let mark = if finding.blocks { "missing" } else { "note" };
    output::line(&format!("  {mark}: {}\n    hint: {}", finding.problem, finding.remedy));
}
