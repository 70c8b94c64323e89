//! Looks at the machine: which agents are here, in what state, and what is to be done about what is missing.
//!
//! Owns the only part of this crate that touches anything outside: it looks for files and asks programs for their
//! `--version` and `--help`. Spends no call of a model, changes nothing but its own cache, and reads no environment by
//! itself: where to look is a value.

mod cache;
mod find;
mod login;
mod probe;
mod sandbox;
mod workspaces;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::AgentKind;
use serde::Serialize;

pub use cache::ProbeCache;
pub use find::{find_agent, find_in_path};
pub use login::Login;
pub use probe::{Probe, ProbeError};
pub use sandbox::SandboxPrimitives;
pub use workspaces::KnownWorkspaces;

use crate::{Capabilities, TestedRange, Version, VersionSupport};

/// Where and with what to look.
#[derive(Debug, Clone, Default)]
pub struct Lookup {
    /// The environment of the caller: `PATH` is searched, `HOME` and the agents' own variables say where logins are.
    pub inherited: BTreeMap<String, String>,
    /// Programs that the operator named himself, which are taken as they are.
    pub programs: BTreeMap<AgentKind, PathBuf>,
    /// A folder that is searched before `PATH` for our own programs: the one of the running executable.
    pub own_folder: Option<PathBuf>,
    /// Where answers of `--version` and `--help` are kept; none to ask every time.
    pub cache_file: Option<PathBuf>,
    /// The directories of `PATH` that [`Self::outside_of`] left out.
    pub left_out: Vec<PathBuf>,
    /// The directories that agents have worked in, or are about to.
    pub workspaces: KnownWorkspaces,
}

impl Lookup {
    /// Leaves out the directories of `PATH` that lie in workspaces, these and earlier ones: a confined agent may have put a program there,
    /// and programs are asked for their version outside of any sandbox. A program that the operator names is taken wherever it is.
    #[must_use]
    pub fn outside_of<'a>(mut self, workspaces: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let mut known = self.workspaces_file().map(|file| KnownWorkspaces::read(&file)).unwrap_or_default();
        known.extend(self.without_home(workspaces));
        if let Some(path) = self.inherited.get_mut("PATH") {
            let is_inside = |directory: &&str| known.contains(Path::new(directory));
            let (inside, outside): (Vec<&str>, Vec<&str>) = path.split(':').partition(is_inside);
            self.left_out = inside.into_iter().map(PathBuf::from).collect();
            *path = outside.join(":");
        }
        self.workspaces = known;
        self
    }

    /// Remembers the directories that an agent is about to work in, for all later lookups. No call starts with a state that cannot be
    /// written, so an error is left to the next step.
    pub fn remember_workspaces<'a>(&self, workspaces: impl IntoIterator<Item = &'a PathBuf>) {
        if let Some(file) = self.workspaces_file() {
            let _ = workspaces::remember(&file, &self.without_home(workspaces));
        }
    }

    fn workspaces_file(&self) -> Option<PathBuf> {
        self.cache_file.as_ref().map(|file| file.with_file_name("workspaces"))
    }

    /// Leaves out the directories that contain the home directory: no confined agent works there, and most programs of a user lie below.
    fn without_home<'a>(&self, workspaces: impl IntoIterator<Item = &'a PathBuf>) -> Vec<&'a Path> {
        let home = self.inherited.get("HOME").map(|home| real(Path::new(home)));
        let is_above_home = |root: &PathBuf| home.as_ref().is_some_and(|home| home.starts_with(real(root)));
        workspaces.into_iter().filter(|root| !is_above_home(root)).map(PathBuf::as_path).collect()
    }
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// What is known about one agent on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentCheck {
    /// Which one.
    pub agent: AgentKind,
    /// The program that will be started.
    pub program: Option<PathBuf>,
    /// Its version.
    pub version: Option<Version>,
    /// How that stands to the tested ones.
    pub standing: Option<VersionSupport>,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Whether it is logged in, as far as can be told without a call.
    pub login: Login,
    /// Everything that is not as it should be.
    pub findings: Vec<Finding>,
}

impl AgentCheck {
    /// Whether a call can be placed.
    pub fn is_ready(&self) -> bool {
        self.findings.iter().all(|finding| !finding.blocks)
    }
}

/// Something that is not as it should be, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{problem}")]
pub struct Finding {
    /// What it is.
    pub problem: String,
    /// What to do, in one line.
    pub remedy: String,
    /// Whether no call can be placed before it is mended.
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

/// What is known about the whole machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// Every agent that a call can name, but our own.
    pub agents: Vec<AgentCheck>,
    /// Where `file-tools` is.
    pub file_tools: Option<PathBuf>,
    /// What an agent can be confined with.
    pub sandbox: SandboxPrimitives,
    /// What is not as it should be, beside the agents.
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    /// Whether a call can be placed to at least one agent.
    pub fn any_ready(&self) -> bool {
        self.agents.iter().any(AgentCheck::is_ready)
    }
}

/// Checks the three vendors' agents, `file-tools` and what there is to confine them with. The caller names the bubblewrap that the
/// sandbox would use.
pub fn check(lookup: &Lookup, bubblewrap: Option<PathBuf>) -> DoctorReport {
    check_while(lookup, bubblewrap, &|| true)
}

/// The same, for who may lose interest: it is asked before each agent, since one that does not answer takes its time. Agents that
/// it does not come to are left out.
pub fn check_while(lookup: &Lookup, bubblewrap: Option<PathBuf>, goes_on: &dyn Fn() -> bool) -> DoctorReport {
    let mut cache = ProbeCache::open(lookup.cache_file.as_deref());
    let agents = [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini]
        .into_iter()
        .take_while(|_| goes_on())
        .map(|kind| check_with(kind, lookup, &mut cache))
        .collect();
    cache.save();
    let file_tools = find_own("file-tools", lookup);
    let sandbox = SandboxPrimitives::new(bubblewrap);
    let mut findings = sandbox.findings();
    if file_tools.is_none() {
        findings.push(Finding::notice(
            "`file-tools` is not there, so agents without a shell (policies `restricted` and `sealed`) cannot be called",
            crate::launch::WITH_FILE_TOOLS,
        ));
    }
    DoctorReport { agents, file_tools, sandbox, findings }
}

/// Checks one agent.
pub fn check_agent(kind: AgentKind, lookup: &Lookup) -> AgentCheck {
    let mut cache = ProbeCache::open(lookup.cache_file.as_deref());
    let check = check_with(kind, lookup, &mut cache);
    cache.save();
    check
}

/// Finds the program that a call would start, without asking it anything.
pub fn find_program(kind: AgentKind, lookup: &Lookup) -> Option<PathBuf> {
    program(kind, lookup)
}

/// Finds one agent and what it can do, for a call: whether it is logged in is left to its own word.
pub fn look_up(kind: AgentKind, lookup: &Lookup) -> AgentCheck {
    let mut cache = ProbeCache::open(lookup.cache_file.as_deref());
    let check = find_with(kind, lookup, &mut cache);
    cache.save();
    check
}

/// The agent, ready for calls; or everything that stands in the way.
pub fn validate_environment(kind: AgentKind, lookup: &Lookup) -> Result<AgentCheck, NotReady> {
    let check = check_agent(kind, lookup);
    if check.is_ready() {
        return Ok(check);
    }
    let findings = check.findings.into_iter().filter(|finding| finding.blocks).collect();
    Err(NotReady { agent: kind, findings })
}

/// An agent to which no call can be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", findings.iter().map(|finding| finding.problem.as_str()).collect::<Vec<_>>().join("; "))]
pub struct NotReady {
    /// Which one.
    pub agent: AgentKind,
    /// What stands in the way.
    pub findings: Vec<Finding>,
}

impl NotReady {
    /// What to do first.
    pub fn hint(&self) -> &str {
        self.findings.first().map_or("run `switchboard doctor`", |finding| &finding.remedy)
    }
}

fn check_with(kind: AgentKind, lookup: &Lookup, cache: &mut ProbeCache) -> AgentCheck {
    let mut check = find_with(kind, lookup, cache);
    let Some(program) = check.program.as_ref().filter(|_| kind != AgentKind::Rehearsal) else { return check };
    check.login = Login::ask(kind, program, &lookup.inherited);
    if check.login == Login::LoggedOut {
        let remedy = model::FailureKind::Auth.hint(kind);
        check.findings.push(Finding::blocking(format!("{kind} is not logged in"), remedy));
    }
    check
}

fn find_with(kind: AgentKind, lookup: &Lookup, cache: &mut ProbeCache) -> AgentCheck {
    let mut check = AgentCheck {
        agent: kind,
        program: program(kind, lookup),
        version: None,
        standing: None,
        capabilities: Capabilities::NotAsked,
        login: Login::Unknown,
        findings: Vec::new(),
    };
    let Some(program) = check.program.clone() else {
        check.findings.push(not_found(kind, lookup));
        return check;
    };
    if kind == AgentKind::Rehearsal {
        return check;
    }
    match cache.probe(kind, &program, &lookup.inherited) {
        Ok(probe) => take_probe(&mut check, &probe),
        Err(error) => check.findings.push(Finding::blocking(error.to_string(), error.hint(kind))),
    }
    check
}

fn not_found(kind: AgentKind, lookup: &Lookup) -> Finding {
    let left_out = lookup.left_out.iter().map(|directory| directory.join(kind.name()));
    let linked = lookup.inherited.get("PATH").and_then(|path| find_in_path(kind.name(), path));
    match left_out.chain(linked.map(|link| real(&link))).find(|program| find::is_program(program)) {
        Some(program) => Finding::blocking(
            format!(
                "{kind} is only at `{}`, where agents have worked and can have replaced it",
                program.display()
            ),
            format!(
                "install it elsewhere, or name it in the configuration: `[programs] {kind} = \"{}\"`",
                program.display()
            ),
        ),
        None => Finding::blocking(format!("{kind} CLI not found in PATH"), install_remedy(kind)),
    }
}

fn take_probe(check: &mut AgentCheck, probe: &Probe) {
    let kind = check.agent;
    check.capabilities = Capabilities::from_help(kind, &probe.help);
    check.version = Version::find(&probe.version);
    check.findings.extend(lacking(kind, &check.capabilities));
    let Some(version) = check.version else {
        let said: String = probe.version.trim().chars().take(80).collect();
        let problem = format!("{kind} says its version is `{said}`");
        check.findings.push(Finding::notice(problem, install_remedy(kind)));
        return;
    };
    let Some(range) = TestedRange::of(kind) else { return };
    let standing = range.standing(version);
    check.standing = Some(standing);
    match standing {
        VersionSupport::Tested => {}
        VersionSupport::Older => check.findings.push(Finding::notice(
            format!("{kind} {version} is older than {}, the oldest that was tested", range.oldest),
            install_remedy(kind),
        )),
        VersionSupport::Newer => check.findings.push(Finding::notice(
            format!("{kind} {version} is newer than {}, the newest that was tested", range.newest),
            "nothing, as long as calls work; what is new in its output is kept as it is",
        )),
    }
}

/// What the installed version cannot do, before a call is refused for it.
fn lacking(kind: AgentKind, capabilities: &Capabilities) -> Option<Finding> {
    let lacks = capabilities.lacks(kind);
    if lacks.is_empty() {
        return None;
    }
    let list: Vec<String> =
        lacks.into_iter().map(|(flag, needed_for)| format!("`{flag}` ({needed_for})")).collect();
    let problem = format!("its `--help` does not name {}: calls that need them are refused", list.join(", "));
    Some(Finding::notice(problem, format!("update {kind}, or {}", install_remedy(kind))))
}

fn program(kind: AgentKind, lookup: &Lookup) -> Option<PathBuf> {
    if let Some(named) = lookup.programs.get(&kind) {
        return Some(named.clone());
    }
    if kind == AgentKind::Rehearsal {
        return find_own(kind.name(), lookup);
    }
    let program = find_agent(kind, lookup.inherited.get("PATH")?)?;
    // A link in `PATH` may lead to a directory that agents write to.
    (!lookup.workspaces.contains(&program)).then_some(program)
}

fn find_own(name: &str, lookup: &Lookup) -> Option<PathBuf> {
    let beside = lookup.own_folder.as_ref().map(|folder| folder.join(name));
    let path = lookup.inherited.get("PATH").map_or("", String::as_str);
    beside.filter(|program| find::is_program(program)).or_else(|| find_in_path(name, path))
}

fn install_remedy(kind: AgentKind) -> &'static str {
    match kind {
        AgentKind::Claude => "install it with `npm install -g @anthropic-ai/claude-code`",
        AgentKind::Codex => "install it with `npm install -g @openai/codex`",
        AgentKind::Gemini => "install it with `npm install -g @google/gemini-cli`",
        AgentKind::Rehearsal => "install all of Switchboard: `cargo install --path crates/switchboard`",
    }
}
