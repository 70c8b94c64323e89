//! `switchboard doctor` and `switchboard agents`: print the installed agents, the sandbox, and how to fix problems.

use std::env;
use std::process::ExitCode;

use agents::doctor::{AgentCheck, DoctorReport, Finding};
use model::Proof;
use protocol::{ErrorReply, HomeError, ProcessEnvironment, SwitchboardHome};
use serde::Serialize;
use supervisor::ProvenSandbox;

use crate::config::Config;
use crate::drift::ConfigDrift;
use crate::failure::CommandFailure;
use crate::machine::{self, MachineCheck, MachineReport, describe_login, note};
use crate::{cli, daemon_commands, output, recover, style};

/// Checks this machine and prints the findings.
pub fn run(args: &cli::Checkup) -> Result<ExitCode, CommandFailure> {
    let environment = ProcessEnvironment::current();
    let home = find_home(&environment)?;
    let config = Config::read(home.as_ref(), &environment, &[])?;
    let drift = home.as_ref().and_then(|home| ConfigDrift::find(home, &environment));
    let store_problem = |home: &SwitchboardHome| recover::store_problem(home, &config);
    let daemon_problem =
        home.as_ref().and_then(|home| daemon_commands::daemon_problem(home).or_else(|| store_problem(home)));
    let MachineReport { checkup, sandbox } = MachineCheck::new(home, environment, &config).run();
    if args.json {
        let (proof, problem) = match &sandbox {
            Ok(proven) => (Some(&proven.proof), None),
            Err(finding) => (None, Some(finding)),
        };
        output::line(&serde_json::to_string_pretty(&DoctorJson {
            checkup: &checkup,
            proof,
            problem,
            drift: drift.as_ref(),
            daemon_problem: daemon_problem.as_ref(),
        })?);
    } else {
        print_agents(&checkup);
        print_sandbox(&sandbox);
    }
    if let Some(drift) = drift {
        drift.print();
    }
    if let Some(problem) = &daemon_problem {
        output::aside(&format!("error: the daemon rejects calls: {}", problem.message));
        output::aside(&format!("  hint: {}", problem.hint));
    }
    Ok(if checkup.any_ready() && daemon_problem.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Finds the installation. The check also works without one; lookups are then not cached.
fn find_home(environment: &ProcessEnvironment) -> Result<Option<SwitchboardHome>, HomeError> {
    match SwitchboardHome::from_environment(environment) {
        Err(HomeError::NotFound) => Ok(None),
        home => home.map(Some),
    }
}

/// Prints one line per agent.
pub fn list_agents(args: &cli::Checkup) -> Result<ExitCode, CommandFailure> {
    if args.json {
        return run(args);
    }
    let environment = ProcessEnvironment::current();
    let home = find_home(&environment)?;
    let config = Config::read(home.as_ref(), &environment, &[])?;
    let lookup = machine::agent_lookup(&environment, home.as_ref(), &config)
        .excluding_workspaces(&env::current_dir().ok());
    let checkup = agents::doctor::check(&lookup, machine::bubblewrap(&lookup));
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
    let heads = ["AGENT", "VERSION", "READY", "HINT"];
    output::line(&style::table(&heads, &rows, style::stdout_width()).join("\n"));
    Ok(if checkup.any_ready() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The findings as JSON.
#[derive(Serialize)]
struct DoctorJson<'a> {
    #[serde(flatten)]
    checkup: &'a DoctorReport,
    #[serde(rename = "sandbox_proof")]
    proof: Option<&'a Proof>,
    #[serde(rename = "sandbox_problem")]
    problem: Option<&'a Finding>,
    #[serde(rename = "config_drift", skip_serializing_if = "Option::is_none")]
    drift: Option<&'a ConfigDrift>,
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_problem: Option<&'a ErrorReply>,
}

fn print_sandbox(sandbox: &Result<ProvenSandbox, Finding>) {
    match sandbox {
        Ok(ProvenSandbox { made_of, namespaces, counts_processes, proof, .. }) => {
            let (attempts, blocked) =
                (proof.escapes.len(), proof.escapes.iter().filter(|escape| escape.stopped).count());
            let enforced = if *namespaces { "enforced" } else { "partly enforced" };
            output::line(&format!(
                "sandbox: {enforced} by {made_of}; self-test: {blocked} of {attempts} escape attempts blocked"
            ));
            if !namespaces {
                print_finding(&note(
                    "without namespaces, protected paths are writable, and sockets and other processes are visible",
                    "install bubblewrap and enable user namespaces for this user; see docs/sandbox.md",
                ));
            }
            if !counts_processes {
                print_finding(&Finding {
                    problem: "the process limit is not enforced: RLIMIT_NPROC does not apply to root".to_owned(),
                    remedy: "call agents as an ordinary user, or delegate a cgroup (v2) with the pids controller; \
                             `--require` rejects a call only if the configuration sets a limit"
                        .to_owned(),
                    blocks: false,
                });
            }
        }
        Err(finding) => {
            output::line("sandbox: policies cannot be enforced");
            print_finding(finding);
        }
    }
}

fn print_agents(checkup: &DoctorReport) {
    for agent in &checkup.agents {
        output::line(&headline(agent));
        agent.findings.iter().for_each(print_finding);
    }
    if !checkup.findings.is_empty() {
        output::line("machine");
        checkup.findings.iter().for_each(print_finding);
    }
    if !checkup.any_ready() {
        output::line("\nno agent is ready; `switchboard call rehearsal` needs none");
    }
}

fn headline(agent: &AgentCheck) -> String {
    let ready = if agent.is_ready() { "ready" } else { "not ready" };
    let version = agent.version.map(|version| format!(" {version}")).unwrap_or_default();
    let place = agent.program.as_ref().map(|program| format!(", {}", program.display())).unwrap_or_default();
    format!("{}{version}: {ready}{}{place}", agent.agent, describe_login(agent))
}

fn print_finding(finding: &Finding) {
    let mark = if finding.blocks { "missing" } else { "note" };
    output::line(&format!("  {mark}: {}\n    hint: {}", finding.problem, finding.remedy));
}
