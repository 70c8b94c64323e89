//! `switchboard agents`: lists the known agents with their versions, logins and features.

use std::env;
use std::process::ExitCode;

use agents::doctor::{AgentCheck, Finding};
use agents::{AgentFeature, AgentProfile, LaunchRules, ProfileSupport, TestedRange, VersionSupport};
use protocol::ProcessEnvironment;
use serde::Serialize;

use crate::config::Config;
use crate::failure::CommandFailure;
use crate::machine::{self, describe_login};
use crate::{cli, doctor, output};

/// The list as JSON.
#[derive(Serialize)]
struct AgentsJson<'a> {
    agents: &'a [AgentCheck],
    /// The names of the other known agents.
    not_installed: Vec<&'a str>,
}

/// Prints the installed agents, or one agent.
pub fn run(args: &cli::AgentList) -> Result<ExitCode, CommandFailure> {
    let environment = ProcessEnvironment::current();
    let home = doctor::find_home(&environment)?;
    let config = Config::read(home.as_ref(), &environment, &[])?;
    if let Some(agent) = args.agent {
        config.profiles.require(agent)?;
    }
    let mut lookup = machine::agent_lookup(&environment, home.as_ref(), &config)
        .excluding_workspaces(&env::current_dir().ok());
    lookup.only = args.agent;
    let checkup = agents::doctor::check(&lookup, machine::bubblewrap(&lookup));
    let is_listed = |profile: &AgentProfile| {
        args.agent.is_some()
            || profile.support == ProfileSupport::Own
            || checkup.agents.iter().any(|check| check.agent == profile.agent)
    };
    let others = lookup.profiles.iter().filter(|profile| !is_listed(profile));
    let not_installed: Vec<&str> = others.map(|profile| profile.agent.name()).collect();
    if args.json {
        let list = AgentsJson { agents: &checkup.agents, not_installed };
        output::line(&serde_json::to_string_pretty(&list)?);
    } else {
        checkup.agents.iter().for_each(print_agent);
        if !not_installed.is_empty() {
            output::line(&format!("not installed: {}", not_installed.join(", ")));
        }
    }
    Ok(if checkup.any_ready() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_agent(check: &AgentCheck) {
    let version = check.version.map(|version| format!(" {version}")).unwrap_or_default();
    let ready = if check.is_ready() { "ready" } else { "not ready" };
    output::line(&format!("{}{version}: {ready}{}", check.agent, describe_login(check)));
    let Some(profile) = &check.profile else { return };
    if let Some(description) = &profile.description {
        output::line(&format!("  {description}"));
    }
    if let Some(Finding { problem, remedy, .. }) = check.findings.iter().find(|finding| finding.blocks) {
        output::line(&format!("  missing: {problem}\n    hint: {remedy}"));
    }
    let support = describe_support(profile.support, check.standing);
    // An agent of the operator has no other name.
    let is_named = profile.title == check.agent.name();
    output::line(&if is_named { format!("  {support}") } else { format!("  {}: {support}", profile.title) });
    if profile.support == ProfileSupport::Custom && matches!(profile.launch, LaunchRules::Acp(_)) {
        return output::line("  features: those that the agent offers when it starts");
    }
    let features: Vec<&str> = profile.features.iter().copied().map(AgentFeature::name).collect();
    if !features.is_empty() {
        output::line(&format!("  features: {}", features.join(", ")));
    }
}

/// Describes the evidence for a profile.
fn describe_support(support: ProfileSupport, standing: Option<VersionSupport>) -> String {
    let versions = |TestedRange { oldest, newest }| {
        if oldest == newest { newest.to_string() } else { format!("{oldest} to {newest}") }
    };
    let note = match standing {
        Some(VersionSupport::Newer) => "; this version is newer",
        Some(VersionSupport::Older) => "; this version is older",
        Some(VersionSupport::Tested) | None => "",
    };
    match support {
        ProfileSupport::Tested(range) => format!("tested with {}{note}", versions(range)),
        ProfileSupport::Measured(range) => {
            format!("measured with {}, but not in every run of the tests{note}", versions(range))
        }
        ProfileSupport::Untested => "not tested, from its documentation".to_owned(),
        ProfileSupport::Custom => "from the configuration, not tested".to_owned(),
        ProfileSupport::Own => "part of Switchboard".to_owned(),
    }
}
