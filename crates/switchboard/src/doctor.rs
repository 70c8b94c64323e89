//! `switchboard doctor`: prints the installed agents, the sandbox, and how to fix problems.

use std::ffi::OsString;
use std::process::ExitCode;
use std::{fs, io};

use agents::doctor::{AgentCheck, DoctorReport, Finding};
use clap::Parser;
use model::{AgentKind, Proof};
use protocol::{ErrorReply, HomeError, ProcessEnvironment, SwitchboardHome};
use serde::Serialize;
use supervisor::ProvenSandbox;

use crate::cli::{Command, CommandLine};
use crate::config::Config;
use crate::drift::ConfigDrift;
use crate::exit_status::ExitStatus;
use crate::failure::{CommandError, CommandFailure};
use crate::machine::{MachineCheck, MachineReport, describe_login, note};
use crate::{cli, daemon_commands, direct, output, recover};

/// The prompt of a test call.
const TEST_PROMPT: &str =
    "This is a test of the connection. Use no tool. Reply with the word ready and nothing else.";

/// Checks this machine and prints the findings.
pub fn run(args: &cli::Checkup) -> Result<ExitCode, CommandFailure> {
    let environment = ProcessEnvironment::current();
    let home = find_home(&environment)?;
    let config = Config::read(home.as_ref(), &environment, &[])?;
    if let Some(agent) = args.agent {
        config.profiles.require(agent)?;
    }
    let drift = home.as_ref().and_then(|home| ConfigDrift::find(home, &environment));
    let store_problem = |home: &SwitchboardHome| recover::store_problem(home, &config);
    let daemon_problem =
        home.as_ref().and_then(|home| daemon_commands::daemon_problem(home).or_else(|| store_problem(home)));
    let MachineReport { checkup, sandbox } =
        MachineCheck::new(home, environment, &config).only(args.agent).run();
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
    if let (Some(agent), true) = (args.agent.filter(|_| args.call), checkup.any_ready()) {
        return test_call(agent);
    }
    Ok(if checkup.any_ready() && daemon_problem.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The directory of a test call could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create a temporary directory")]
struct ScratchError(#[source] io::Error);

impl CommandError for ScratchError {
    fn hint(&self) -> Option<String> {
        Some("check TMPDIR and the free space of its file system".to_owned())
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::Failed
    }
}

/// Calls an agent with a harmless prompt in an empty directory, as a user would.
fn test_call(agent: AgentKind) -> Result<ExitCode, CommandFailure> {
    let scratch = tempfile::tempdir().map_err(ScratchError)?;
    let work = scratch.path().join("work");
    fs::create_dir(&work).map_err(ScratchError)?;
    let options = ["--direct", "--policy=observe", "--timeout=2m", "--cwd"];
    let call = ["switchboard", "call", agent.name(), TEST_PROMPT].into_iter().chain(options);
    let words = call.map(OsString::from).chain([work.into()]);
    match CommandLine::try_parse_from(words).map(|line| line.command) {
        Ok(Command::Call(args)) => {
            output::line("test call:");
            direct::test(&args, &scratch.path().join("run"))
        }
        // The words above are a call.
        _ => Ok(ExitCode::FAILURE),
    }
}

/// Finds the installation. The check also works without one; lookups are then not cached.
pub fn find_home(environment: &ProcessEnvironment) -> Result<Option<SwitchboardHome>, HomeError> {
    match SwitchboardHome::from_environment(environment) {
        Err(HomeError::NotFound) => Ok(None),
        home => home.map(Some),
    }
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
    // A check of one agent says so above.
    if !checkup.any_ready() && checkup.agents.len() != 1 {
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
