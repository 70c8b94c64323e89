//! Environment checks: the installed agents, their state, and the remedies.
//!
//! Apart from [`crate::inspect_workspace`], the only part of the crate with I/O: it searches for files and runs `--version` and
//! `--help`. Makes no request to a model, writes only its own files, and reads no environment: the caller passes it in.

mod cache;
mod escaping_link;
mod find;
mod login;
mod outside;
mod probe;
mod sandbox;
mod workspaces;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::AgentKind;
use serde::{Serialize, Serializer};

pub use cache::ProbeCache;
pub use escaping_link::EscapingLink;
pub use find::{find_agent, find_in_path};
pub use login::Login;
pub use outside::ProgramInWorkspace;
pub use probe::{Probe, ProbeError};
pub use sandbox::SandboxPrimitives;
pub use workspaces::KnownWorkspaces;

use crate::{
    AgentFeature, AgentProfile, AgentProfiles, Capabilities, LaunchRules, ProfileSupport, Version,
    VersionSupport,
};

/// The inputs of a check.
#[derive(Debug, Clone, Default)]
pub struct Lookup {
    /// The environment of the caller: `PATH` to search, `HOME` and the variables that locate logins.
    pub inherited: BTreeMap<String, String>,
    /// The known agents.
    pub profiles: AgentProfiles,
    /// Programs that the operator configured, used without a check of their location.
    pub programs: BTreeMap<AgentKind, PathBuf>,
    /// The directory of the running executable, searched before `PATH` for Switchboard's own programs.
    pub own_directory: Option<PathBuf>,
    /// A check of the machine reports only this agent, even if it is not installed.
    pub only: Option<AgentKind>,
    /// The cache of `--version` and `--help` output. `None`: run them every time.
    pub cache_file: Option<PathBuf>,
    /// The directories of `PATH` that [`Self::excluding_workspaces`] removed.
    pub excluded: Vec<PathBuf>,
    /// The directories in which agents have worked, or are about to.
    pub workspaces: KnownWorkspaces,
}

impl Lookup {
    /// Removes the directories of `PATH` inside of workspaces, these and earlier ones: a sandboxed agent may have planted a
    /// program there, and probes run outside of any sandbox. A program that the operator configured is used from anywhere.
    #[must_use]
    pub fn excluding_workspaces<'a>(mut self, workspaces: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let mut known = self.workspaces_file().map(|file| KnownWorkspaces::read(&file)).unwrap_or_default();
        known.extend(self.without_home(workspaces));
        if let Some(path) = self.inherited.get_mut("PATH") {
            let (inside, outside) = known.split_path(path);
            self.excluded = inside.into_iter().map(PathBuf::from).collect();
            *path = outside.join(":");
        }
        self.workspaces = known;
        self
    }

    /// Records the workspaces of a call for all later lookups. Ignores errors: with an unwritable state directory no call starts
    /// anyway.
    pub fn remember_workspaces<'a>(&self, workspaces: impl IntoIterator<Item = &'a PathBuf>) {
        if let Some(file) = self.workspaces_file() {
            let _ = workspaces::remember(&file, &self.without_home(workspaces));
        }
    }

    fn workspaces_file(&self) -> Option<PathBuf> {
        self.cache_file.as_ref().map(|file| file.with_file_name("workspaces"))
    }

    /// Skips workspaces that contain the home directory: no sandboxed agent works there, and most programs of a user are below
    /// it.
    fn without_home<'a>(&self, workspaces: impl IntoIterator<Item = &'a PathBuf>) -> Vec<&'a Path> {
        let home = self.inherited.get("HOME").map(|home| real(Path::new(home)));
        let is_above_home = |root: &PathBuf| home.as_ref().is_some_and(|home| home.starts_with(real(root)));
        workspaces.into_iter().filter(|root| !is_above_home(root)).map(PathBuf::as_path).collect()
    }
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The check of one agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgentCheck {
    /// The agent.
    pub agent: AgentKind,
    /// Its profile. `None` if no profile has that name.
    #[serde(flatten, serialize_with = "serialize_profile")]
    pub profile: Option<Arc<AgentProfile>>,
    /// The program to spawn.
    pub program: Option<PathBuf>,
    /// The version.
    pub version: Option<Version>,
    /// The version compared with the tested range.
    pub standing: Option<VersionSupport>,
    /// The capabilities.
    pub capabilities: Capabilities,
    /// The login state, as far as it is known without a request.
    pub login: Login,
    /// The problems.
    pub findings: Vec<Finding>,
}

/// Writes the facts that a user of the check needs.
#[expect(clippy::ref_option, reason = "serde passes the field")]
fn serialize_profile<S: Serializer>(
    profile: &Option<Arc<AgentProfile>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct ProfileFacts<'a> {
        title: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<&'a str>,
        support: ProfileSupport,
        features: &'a BTreeSet<AgentFeature>,
    }
    let facts = profile.as_ref().map(|profile| ProfileFacts {
        title: &profile.title,
        description: profile.description.as_deref(),
        support: profile.support,
        features: &profile.features,
    });
    facts.serialize(serializer)
}

impl AgentCheck {
    /// Returns whether calls are possible.
    pub fn is_ready(&self) -> bool {
        self.findings.iter().all(|finding| !finding.blocks)
    }
}

/// A problem with its remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{problem}")]
pub struct Finding {
    /// The problem.
    pub problem: String,
    /// The remedy, in one line.
    pub remedy: String,
    /// The problem prevents calls.
    pub blocks: bool,
}

impl Finding {
    fn blocking(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into(), blocks: true }
    }

    fn notice(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into(), blocks: false }
    }
}

/// The check of the whole machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DoctorReport {
    /// The agents of the large vendors, and of the others those that are installed or configured.
    pub agents: Vec<AgentCheck>,
    /// The path of `file-tools`.
    pub file_tools: Option<PathBuf>,
    /// The available sandbox mechanisms.
    pub sandbox: SandboxPrimitives,
    /// Problems that concern no single agent.
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    /// Returns whether at least one agent is ready.
    pub fn any_ready(&self) -> bool {
        self.agents.iter().any(AgentCheck::is_ready)
    }
}

/// Checks the agents, `file-tools` and the sandbox mechanisms. The caller passes the bubblewrap that the
/// sandbox would use.
pub fn check(lookup: &Lookup, bubblewrap: Option<PathBuf>) -> DoctorReport {
    check_while(lookup, bubblewrap, &|| true)
}

/// Like [`check`], but stops when `is_wanted` returns false. It is polled before each agent, because an unresponsive one takes
/// seconds. Skipped agents are left out.
pub fn check_while(
    lookup: &Lookup,
    bubblewrap: Option<PathBuf>,
    is_wanted: &dyn Fn() -> bool,
) -> DoctorReport {
    let mut cache = ProbeCache::open(lookup.cache_file.as_deref());
    let agents = lookup
        .profiles
        .iter()
        .filter(|profile| is_reported(profile, lookup))
        .take_while(|_| is_wanted())
        .map(|profile| check_agent_with(profile.agent, lookup, &mut cache))
        .collect();
    cache.save();
    let file_tools = find_own("file-tools", lookup);
    let sandbox = SandboxPrimitives::new(bubblewrap);
    let mut findings = sandbox.findings();
    if file_tools.is_none() {
        findings.push(Finding::notice(
            "`file-tools` is not installed, so agents without a shell (policies `restricted` and `sealed`) cannot be called",
            crate::launch::INSTALL_ALL,
        ));
    }
    DoctorReport { agents, file_tools, sandbox, findings }
}

/// Returns whether a check of the machine reports an agent even if there is nothing to report: most users have few of them.
fn is_reported(profile: &AgentProfile, lookup: &Lookup) -> bool {
    if let Some(only) = lookup.only {
        return profile.agent == only;
    }
    match profile.support {
        ProfileSupport::Own => false,
        ProfileSupport::Custom => true,
        _ if AgentKind::NATIVE.contains(&profile.agent) => true,
        _ => program(profile, lookup).is_some(),
    }
}

/// Checks one agent.
pub fn check_agent(kind: AgentKind, lookup: &Lookup) -> AgentCheck {
    let mut cache = ProbeCache::open(lookup.cache_file.as_deref());
    let check = check_agent_with(kind, lookup, &mut cache);
    cache.save();
    check
}

/// Returns the program that a call in these workspaces would spawn, without running it: the one that [`find_installed`] finds
/// after [`Lookup::excluding_workspaces`].
pub fn find_program<'a>(
    kind: AgentKind,
    lookup: &Lookup,
    workspaces: impl IntoIterator<Item = &'a PathBuf>,
) -> Option<PathBuf> {
    let variable = |name: &str| Some((name.to_owned(), lookup.inherited.get(name)?.clone()));
    let mut inherited: BTreeMap<String, String> = ["HOME", "PATH"].into_iter().filter_map(variable).collect();
    if let Some(path) = inherited.get_mut("PATH") {
        // The other directories do not matter, and resolving and comparing a directory takes many system calls.
        let profile = lookup.profiles.get(kind)?;
        *path = find::directories_with(&profile.program, path);
    }
    let lookup = Lookup {
        inherited,
        cache_file: lookup.cache_file.clone(),
        programs: lookup.programs.clone(),
        own_directory: lookup.own_directory.clone(),
        profiles: lookup.profiles.clone(),
        ..Lookup::default()
    };
    program(lookup.profiles.get(kind)?, &lookup.clone().excluding_workspaces(workspaces))
}

/// Finds an agent and its capabilities for a call. Skips the login check: the agent reports a missing login itself.
pub fn find_installed(kind: AgentKind, lookup: &Lookup) -> AgentCheck {
    let mut cache = ProbeCache::open(lookup.cache_file.as_deref());
    let check = find_agent_with(kind, lookup, &mut cache);
    cache.save();
    check
}

/// Returns the check of an agent that is ready, or the problems that prevent calls.
pub fn validate_environment(kind: AgentKind, lookup: &Lookup) -> Result<AgentCheck, NotReady> {
    let check = check_agent(kind, lookup);
    if check.is_ready() {
        return Ok(check);
    }
    let findings = check.findings.into_iter().filter(|finding| finding.blocks).collect();
    Err(NotReady { agent: kind, findings })
}

/// An agent that cannot be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", findings.iter().map(|finding| finding.problem.as_str()).collect::<Vec<_>>().join("; "))]
pub struct NotReady {
    /// The agent.
    pub agent: AgentKind,
    /// The problems.
    pub findings: Vec<Finding>,
}

impl NotReady {
    /// Returns the first remedy.
    pub fn hint(&self) -> &str {
        self.findings.first().map_or("run `switchboard doctor`", |finding| &finding.remedy)
    }
}

fn check_agent_with(agent: AgentKind, lookup: &Lookup, cache: &mut ProbeCache) -> AgentCheck {
    let mut check = find_agent_with(agent, lookup, cache);
    let (Some(program), Some(profile)) = (&check.program, &check.profile) else { return check };
    if profile.support == ProfileSupport::Own {
        return check;
    }
    check.login = Login::query(profile, program, &lookup.inherited);
    if check.login == Login::LoggedOut {
        let remedy = profile.login.remedy.clone();
        check.findings.push(Finding::blocking(format!("{agent} is not logged in"), remedy));
    }
    check
}

fn find_agent_with(agent: AgentKind, lookup: &Lookup, cache: &mut ProbeCache) -> AgentCheck {
    let mut check = AgentCheck {
        agent,
        profile: lookup.profiles.get(agent).cloned(),
        program: None,
        version: None,
        standing: None,
        capabilities: Capabilities::NotAsked,
        login: Login::Unknown,
        findings: Vec::new(),
    };
    let profile = match lookup.profiles.require(agent) {
        Ok(profile) => profile.clone(),
        Err(unknown) => {
            check.findings.push(Finding::blocking(unknown.to_string(), unknown.hint()));
            return check;
        }
    };
    check.program = program(&profile, lookup);
    let Some(program) = &check.program else {
        check.findings.push(not_found(&profile, lookup));
        return check;
    };
    if matches!(&profile.launch, LaunchRules::Acp(rules) if rules.needs_terminals)
        && find_own("terminal-host", lookup).is_none()
    {
        let problem = format!("`terminal-host` is not installed, and {agent} needs it to run commands");
        check.findings.push(Finding::blocking(problem, crate::launch::INSTALL_ALL));
    }
    if profile.version_args.is_empty() {
        return check;
    }
    match cache.probe(&profile, program, &lookup.inherited) {
        Ok(probe) => add_probe(&mut check, &profile, &probe),
        Err(error) => check.findings.push(Finding::blocking(error.to_string(), error.hint(agent))),
    }
    check
}

fn not_found(profile: &AgentProfile, lookup: &Lookup) -> Finding {
    if let Some(unreadable) = lookup.workspaces.unreadable() {
        return unreadable.clone();
    }
    let (agent, name) = (profile.agent, profile.program.as_str());
    let excluded = lookup.excluded.iter().map(|directory| directory.join(name));
    let linked = lookup.inherited.get("PATH").and_then(|path| find_in_path(name, path));
    match excluded.chain(linked.map(|link| real(&link))).find(|program| find::is_program(program)) {
        Some(program) => Finding::blocking(
            format!(
                "{agent} is only at `{}`, where agents have worked and can have replaced it",
                program.display()
            ),
            format!(
                "install it elsewhere, or name it in the configuration: `[programs] {agent} = \"{}\"`",
                program.display()
            ),
        ),
        None if name == agent.name() => {
            Finding::blocking(format!("{agent} CLI not found in PATH"), profile.install.clone())
        }
        None if Path::new(name).is_absolute() => Finding::blocking(
            format!("`{name}`, the program of {agent}, is not an executable file"),
            profile.install.clone(),
        ),
        None => Finding::blocking(
            format!("`{name}`, the program of {agent}, not found in PATH"),
            profile.install.clone(),
        ),
    }
}

fn add_probe(check: &mut AgentCheck, profile: &AgentProfile, probe: &Probe) {
    let agent = check.agent;
    check.capabilities = Capabilities::from_help(agent, &probe.help);
    check.version = Version::find(&probe.version);
    check.findings.extend(missing_flags(profile, &check.capabilities));
    let Some(version) = check.version else {
        let printed: String = probe.version.trim().chars().take(80).collect();
        let problem = format!("{agent} reports the version `{printed}`");
        check.findings.push(Finding::notice(problem, profile.install.clone()));
        return;
    };
    let Some(range) = profile.tested() else { return };
    let standing = range.classify(version);
    check.standing = Some(standing);
    match standing {
        VersionSupport::Tested => {}
        VersionSupport::Older => check.findings.push(Finding::notice(
            format!("{agent} {version} is older than {}, the oldest that was tested", range.oldest),
            profile.install.clone(),
        )),
        VersionSupport::Newer => check.findings.push(Finding::notice(
            format!("{agent} {version} is newer than {}, the newest that was tested", range.newest),
            "none needed while calls work; unknown output is stored unchanged",
        )),
    }
}

/// Returns a finding for the flags that the installed version lacks, before a call is rejected for them.
fn missing_flags(profile: &AgentProfile, capabilities: &Capabilities) -> Option<Finding> {
    let agent = profile.agent;
    let lacks = capabilities.lacks(agent);
    if lacks.is_empty() {
        return None;
    }
    let list: Vec<String> =
        lacks.into_iter().map(|(flag, needed_for)| format!("`{flag}` ({needed_for})")).collect();
    let problem =
        format!("its `--help` does not list {}: calls that need them are rejected", list.join(", "));
    Some(Finding::notice(problem, format!("update {agent}, or {}", profile.install)))
}

fn program(profile: &AgentProfile, lookup: &Lookup) -> Option<PathBuf> {
    if lookup.workspaces.unreadable().is_some() {
        return None;
    }
    if let Some(named) = lookup.programs.get(&profile.agent) {
        return Some(named.clone());
    }
    if profile.support == ProfileSupport::Own {
        return find_own(&profile.program, lookup);
    }
    let path = lookup.inherited.get("PATH").map_or("", String::as_str);
    let found = find_agent(profile, path)?;
    // A link in `PATH` may point into a workspace. A path that the operator configured is used from anywhere.
    let is_configured = Path::new(&profile.program).is_absolute();
    (is_configured || !lookup.workspaces.contains(&found)).then_some(found)
}

fn find_own(name: &str, lookup: &Lookup) -> Option<PathBuf> {
    let beside = lookup.own_directory.as_ref().map(|directory| directory.join(name));
    let path = lookup.inherited.get("PATH").map_or("", String::as_str);
    beside.filter(|program| find::is_program(program)).or_else(|| find_in_path(name, path))
}
