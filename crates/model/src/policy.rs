//! Sandbox policies.
//!
//! A call requests a [`CallPolicy`] (a preset with adjustments); a supervisor enforces a [`Policy`] with absolute paths. Data
//! only: `sandbox` enforces it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{AgentState, BadName, Caches, HomeView, HostRule, SafeguardName};

mod known_paths;

use known_paths::SECRETS;
pub use known_paths::{is_in_products, protected_in};

/// Directories that every sandbox with a mount namespace replaces by private ones.
pub const PRIVATE_DIRECTORIES: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// The sandbox policy of a run.
///
/// A plan with an unknown policy fails to parse, so a run never gets a weaker sandbox than requested.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// No sandbox: the agent has all permissions of the user.
    #[default]
    Off,
    /// A sandbox.
    Confined(Box<Confinement>),
}

/// The complete policy of a sandboxed run. All paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// The preset.
    pub preset: Preset,
    /// The behavior on a machine that cannot enforce the policy completely.
    pub requirement: Requirement,
    /// Safeguards that are required even with `best-effort`, because the agent has no other means to keep its mode.
    pub must_hold: Vec<SafeguardName>,
    /// Writable paths, and readable paths inside of hidden ones.
    pub roots: Vec<PolicyRoot>,
    /// Paths that are invisible to the agent.
    #[serde(with = "crate::exact_path")]
    pub hidden: Vec<PathBuf>,
    /// Read-only paths inside of writable directories.
    pub protected: Vec<Protected>,
    /// The allowed hosts.
    pub network: Network,
    /// Allows Unix sockets with a path. Without it, no such socket of the machine can be reached.
    pub unix_sockets: bool,
    /// Uses namespaces if available. Without them only Landlock and seccomp apply, which enforce less.
    pub namespaces: bool,
    /// The resource limits.
    pub bounds: Bounds,
    /// The directory of self-test results, and of the lists that let concurrent runs see each other's missing paths. `None`: test
    /// every time, and ignore other runs.
    pub proofs: Option<PathBuf>,
    /// Variables that are set only if the sandbox confines writes; they tell the agent that it is sandboxed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_if_held: BTreeMap<String, String>,
    /// Private caches for package managers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches: Option<Caches>,
    /// The agent's state directories.
    #[serde(
        default,
        alias = "state",
        deserialize_with = "crate::agent_state::one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub states: Vec<AgentState>,
    /// The exposed parts of the home directory. `None` if the home directory is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<HomeView>,
    /// The private checkout among the workspaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkout: Option<CheckoutSource>,
    /// The agent's program, if the program of the run starts it. It is exposed in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosted_program: Option<PathBuf>,
}

/// A private checkout and the repository of the user. The files of the checkout are applied there later, so the programs that the
/// configuration of that repository names are protected in the checkout, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckoutSource {
    /// The root of the checkout.
    #[serde(with = "crate::exact_path")]
    pub checkout: PathBuf,
    /// The worktree of the user.
    #[serde(with = "crate::exact_path")]
    pub worktree: PathBuf,
    /// The git directories of the user: of the worktree, and the one that all worktrees share.
    #[serde(with = "crate::exact_path")]
    pub git: Vec<PathBuf>,
}

impl CheckoutSource {
    /// Returns the path in the checkout for one in the worktree of the user. Other paths stay as they are.
    pub fn relocate(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.worktree) {
            Ok(inside) if inside.as_os_str().is_empty() => self.checkout.clone(),
            Ok(inside) => self.checkout.join(inside),
            Err(_) => path.to_owned(),
        }
    }
}

/// A directory or file that an agent may access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRoot {
    /// The path.
    #[serde(with = "crate::exact_path")]
    pub path: PathBuf,
    /// The access mode.
    pub access: RootAccess,
}

impl PolicyRoot {
    /// Returns a read-only root.
    pub fn read_only(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: RootAccess::Read }
    }

    /// Returns a writable root.
    pub fn writable(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: RootAccess::Write }
    }

    /// Returns a writable root that is created with mode 0700 if it is missing.
    pub fn created(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: RootAccess::Create }
    }
}

/// The access mode of a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootAccess {
    /// Read-only.
    Read,
    /// Writable.
    Write,
    /// Writable; the directory is created if it is missing.
    #[serde(rename = "make")]
    Create,
}

/// A path that makes other programs run commands. An existing one is read-only; a new one is moved to quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protected {
    /// The absolute path, which need not exist.
    #[serde(with = "crate::exact_path")]
    pub path: PathBuf,
    /// The reaction to its creation during a run.
    #[serde(rename = "if_created", alias = "kind")]
    pub on_create: OnCreate,
}

/// The reaction to the creation of a protected path during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCreate {
    /// Quarantine it immediately: a program that the user runs meanwhile could execute it.
    QuarantineAtOnce,
    /// Quarantine it when the run has finished.
    #[serde(alias = "file", alias = "folder")]
    QuarantineAtEnd,
    /// Keep it.
    #[serde(alias = "if_present")]
    Keep,
}

/// The hosts that an agent may connect to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// All hosts, including loopback.
    #[default]
    Full,
    /// None.
    None,
    /// Only these (`api.example.com`, `*.example.com`, `127.0.0.1:8080`), through a filtering proxy.
    Hosts(Vec<String>),
}

/// Resource limits. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// The number of processes and threads. `RLIMIT_NPROC` does not apply to root.
    pub processes: Option<u64>,
    /// The memory of all processes. Needs a delegated cgroup.
    pub memory_bytes: Option<u64>,
    /// The size of a file.
    pub file_bytes: Option<u64>,
}

impl Default for Bounds {
    /// 4096 processes, 16 GiB per file, no memory limit.
    fn default() -> Self {
        Self { processes: Some(4096), memory_bytes: None, file_bytes: Some(16 << 30) }
    }
}

/// The behavior on a machine that cannot enforce a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requirement {
    /// Refuse to run, and report the missing safeguards.
    #[default]
    Require,
    /// Run with the available safeguards, and report the gaps.
    BestEffort,
}

/// The named policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// No sandbox.
    Off,
    /// The workspaces are writable; everything else except for hidden paths is readable.
    Workspace,
    /// Only temporary files and the agent's state are writable.
    Observe,
    /// Like `workspace`, without a shell: the agent has only file tools.
    Restricted,
    /// `observe` and `restricted` combined.
    Sealed,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 5] = [Self::Off, Self::Workspace, Self::Observe, Self::Restricted, Self::Sealed];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Workspace => "workspace",
            Self::Observe => "observe",
            Self::Restricted => "restricted",
            Self::Sealed => "sealed",
        }
    }

    /// Returns whether the workspaces are writable.
    pub fn writes(self) -> bool {
        matches!(self, Self::Off | Self::Workspace | Self::Restricted)
    }

    /// Returns whether mode `observe` contradicts this preset, because it is a sandbox made for writing.
    pub fn contradicts_observe(self) -> bool {
        self.writes() && self != Self::Off
    }

    /// Returns whether the agent may have a shell.
    pub fn has_shell(self) -> bool {
        matches!(self, Self::Off | Self::Workspace | Self::Observe)
    }

    /// Returns the preset that allows only actions allowed by both.
    #[must_use]
    pub fn within(self, ceiling: Self) -> Self {
        match (self, ceiling) {
            (Self::Off, other) | (other, Self::Off) => other,
            (one, other) => match (one.writes() && other.writes(), one.has_shell() && other.has_shell()) {
                (true, true) => Self::Workspace,
                (false, true) => Self::Observe,
                (true, false) => Self::Restricted,
                (false, false) => Self::Sealed,
            },
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Preset {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|preset| preset.name() == text).ok_or_else(|| {
            BadName::new("policy", text, "use one of: off, workspace, observe, restricted, sealed")
        })
    }
}

/// The policy of a call: a preset with adjustments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallPolicy {
    /// The preset.
    pub preset: Preset,
    /// The behavior on a machine that cannot enforce the policy.
    pub requirement: Requirement,
    /// The allowed hosts.
    pub network: Network,
    /// The resource limits.
    pub bounds: Bounds,
    /// Gives the agent a separate state directory for this policy that contains only its login: no settings, servers or sessions
    /// of the user.
    pub private_state: bool,
    /// Additional hidden paths.
    pub hide: Vec<PathBuf>,
}

impl Default for CallPolicy {
    /// Returns `workspace` with best effort, the policy of calls that name none.
    fn default() -> Self {
        Self { requirement: Requirement::BestEffort, ..Preset::Workspace.into() }
    }
}

impl From<Preset> for CallPolicy {
    /// Returns the preset without adjustments, required.
    fn from(preset: Preset) -> Self {
        Self {
            preset,
            requirement: Requirement::Require,
            network: Network::default(),
            bounds: Bounds::default(),
            private_state: false,
            hide: Vec::new(),
        }
    }
}

impl CallPolicy {
    /// Returns the policy without a sandbox.
    pub fn off() -> Self {
        Preset::Off.into()
    }

    /// Returns whether there is no sandbox.
    pub fn is_off(&self) -> bool {
        self.preset == Preset::Off
    }

    /// Returns the policy limited by the operator's ceiling. No request can exceed the ceiling.
    #[must_use]
    pub fn within(&self, ceiling: &Self) -> Self {
        if ceiling.is_off() {
            return self.clone();
        }
        if self.is_off() {
            return ceiling.clone();
        }
        let mut hide = ceiling.hide.clone();
        hide.extend(self.hide.iter().filter(|path| !ceiling.hide.contains(path)).cloned());
        let required = [self.requirement, ceiling.requirement].contains(&Requirement::Require);
        Self {
            preset: self.preset.within(ceiling.preset),
            requirement: if required { Requirement::Require } else { Requirement::BestEffort },
            network: self.network.within(&ceiling.network),
            bounds: self.bounds.within(ceiling.bounds),
            private_state: self.private_state || ceiling.private_state,
            hide,
        }
    }
}

impl FromStr for Network {
    type Err = BadName;

    /// Parses `full`, `none` or a comma-separated list of hosts.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "full" => Ok(Self::Full),
            "none" => Ok(Self::None),
            list => {
                let hosts: Vec<String> = list.split(',').map(|host| host.trim().to_owned()).collect();
                hosts.iter().try_for_each(|host| host.parse::<HostRule>().map(drop))?;
                Ok(Self::Hosts(hosts))
            }
        }
    }
}

impl Network {
    /// Returns the hosts that both allow.
    #[must_use]
    pub fn within(&self, ceiling: &Self) -> Self {
        match (self, ceiling) {
            (Self::None, _) | (_, Self::None) => Self::None,
            (Self::Full, other) | (other, Self::Full) => other.clone(),
            (Self::Hosts(asked), Self::Hosts(allowed)) => {
                // Keep a pattern only if the ceiling contains it literally: comparing two patterns is error-prone.
                Self::Hosts(asked.iter().filter(|host| allowed.contains(host)).cloned().collect())
            }
        }
    }
}

impl Bounds {
    /// Returns the lower limit of each.
    #[must_use]
    pub fn within(self, ceiling: Self) -> Self {
        let least = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            processes: least(self.processes, ceiling.processes),
            memory_bytes: least(self.memory_bytes, ceiling.memory_bytes),
            file_bytes: least(self.file_bytes, ceiling.file_bytes),
        }
    }
}

/// The directories of a call on a machine, from which [`CallPolicy::confine`] builds a policy.
#[derive(Debug, Clone, Default)]
pub struct PolicyContext {
    /// The workspaces of the call.
    pub workspaces: Vec<PathBuf>,
    /// The agent's state directories.
    pub states: Vec<AgentState>,
    /// The state directories of other agents, with their logins.
    pub foreign_state: Vec<PathBuf>,
    /// The user's home directory.
    pub home: Option<PathBuf>,
    /// Paths in the home directory that the operator exposes or the agent needs ([`HomeView::exposed`]).
    pub exposed: Vec<PathBuf>,
    /// Programs in the home directory that run besides the agent ([`HomeView::programs`]).
    pub programs: Vec<PathBuf>,
    /// Replacement files for the home directory ([`HomeView::copies`]).
    pub copies: Vec<(PathBuf, PathBuf)>,
    /// Files in the workspaces that a command in the user's agent settings refers to.
    pub settings_programs: Vec<PathBuf>,
    /// Switchboard's own paths: job files, database, configuration.
    pub own: Vec<PathBuf>,
    /// The directory of private checkouts: the only one among Switchboard's own paths with workspaces inside.
    pub checkouts: Option<PathBuf>,
    /// The private checkout among the workspaces.
    pub checkout: Option<CheckoutSource>,
    /// Existing files in the workspaces that stay as they are.
    pub fixed: Vec<PathBuf>,
    /// Directories that no workspace may contain: a call could rewrite the configuration that limits it.
    pub guarded: Vec<PathBuf>,
    /// Paths that are visible nevertheless.
    pub visible: Vec<PathBuf>,
    /// Safeguards that are required even with `best-effort`.
    pub must_hold: Vec<SafeguardName>,
    /// The directory of self-test results ([`Confinement::proofs`]).
    pub proofs: Option<PathBuf>,
    /// Variables for a sandbox that confines writes ([`Confinement::env_if_held`]).
    pub env_if_held: BTreeMap<String, String>,
    /// Private caches for package managers.
    pub caches: Option<Caches>,
    /// The agent's program, if another one starts it ([`Confinement::hosted_program`]).
    pub hosted_program: Option<PathBuf>,
}

impl CallPolicy {
    /// Returns the policy with all its paths, or the reason why the call cannot have it there.
    pub fn confine(&self, context: &PolicyContext) -> Result<Policy, PolicyError> {
        if self.is_off() {
            return Ok(Policy::Off);
        }
        if let Network::Hosts(hosts) = &self.network {
            for host in hosts {
                host.parse::<HostRule>().map_err(PolicyError::Host)?;
            }
        }
        let hidden = self.hidden(context);
        let is_checkout = |path: &Path| {
            let inside = context.checkouts.as_ref().and_then(|checkouts| path.strip_prefix(checkouts).ok());
            // `JOB/NAME`: the directory of a job has other files, too.
            inside.is_some_and(|inside| inside.components().count() >= 2)
        };
        for workspace in &context.workspaces {
            let around = hidden.iter().find(|hidden| workspace.starts_with(hidden));
            if let Some(hidden) = around.filter(|_| !is_checkout(workspace)) {
                let (directory, hidden) = (workspace.clone(), hidden.clone());
                return Err(PolicyError::HiddenWorkspace { directory, hidden });
            }
            // Checked before Switchboard's own files, which usually are in the home directory: moving them would not help.
            let has_home = context.home.as_ref().is_some_and(|home| home.starts_with(workspace));
            if has_home || (self.preset.writes() && workspace.parent().is_none()) {
                let is_home = context.home.as_ref() == Some(workspace);
                return Err(PolicyError::TooMuch { directory: workspace.clone(), is_home });
            }
            if let Some(own) = context.guarded.iter().find(|own| own.starts_with(workspace)) {
                let (directory, own) = (workspace.clone(), own.clone());
                return Err(PolicyError::AboveOwnFiles { directory, own });
            }
        }
        let workspace = |path: &PathBuf| {
            if self.preset.writes() { PolicyRoot::writable(path) } else { PolicyRoot::read_only(path) }
        };
        let roots = context.workspaces.iter().map(workspace);
        let caches = context.caches.iter().filter_map(|caches| caches.directory.as_ref());
        let roots = roots.chain(caches.map(PolicyRoot::created));
        let roots = roots.chain(context.visible.iter().map(PolicyRoot::read_only)).collect();
        let protected = context.workspaces.iter().filter(|_| self.preset.writes());
        let protected = protected.flat_map(|workspace| protected_in(workspace));
        let kept = context.settings_programs.iter().chain(&context.fixed);
        let kept = kept.filter(|_| self.preset.writes()).cloned();
        let protected = protected.chain(kept.map(|path| Protected { path, on_create: OnCreate::Keep }));
        Ok(Policy::Confined(Box::new(Confinement {
            preset: self.preset,
            requirement: self.requirement,
            must_hold: context.must_hold.clone(),
            roots,
            hidden,
            protected: protected.collect(),
            network: self.network.clone(),
            unix_sockets: self.preset == Preset::Workspace,
            namespaces: true,
            bounds: self.bounds,
            proofs: context.proofs.clone(),
            env_if_held: context.env_if_held.clone(),
            caches: context.caches.clone(),
            states: context.states.clone(),
            home: context.home.clone().map(|directory| HomeView {
                directory,
                exposed: context.exposed.clone(),
                programs: context.programs.clone(),
                copies: context.copies.clone(),
            }),
            checkout: context.checkout.clone(),
            hosted_program: context.hosted_program.clone(),
        })))
    }

    fn hidden(&self, context: &PolicyContext) -> Vec<PathBuf> {
        let secrets = context.home.iter().flat_map(|home| SECRETS.iter().map(|name| home.join(name)));
        let is_its_own =
            |path: &PathBuf| context.states.iter().any(|state| state.directory.starts_with(path));
        let foreign = context.foreign_state.iter().filter(|path| !is_its_own(path)).cloned();
        secrets.chain(foreign).chain(context.own.iter().cloned()).chain(self.hide.iter().cloned()).collect()
    }
}

/// A policy that a call cannot have in its workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The workspace is in a hidden directory.
    #[error("`{}` is inside `{}`, which is hidden from agents", directory.display(), hidden.display())]
    HiddenWorkspace {
        /// The workspace.
        directory: PathBuf,
        /// The hidden directory.
        hidden: PathBuf,
    },
    /// The workspace contains Switchboard's state or configuration.
    #[error("`{}` contains `{}`, the state or configuration of Switchboard", directory.display(), own.display())]
    AboveOwnFiles {
        /// The workspace.
        directory: PathBuf,
        /// The directory of state or configuration.
        own: PathBuf,
    },
    /// A malformed host rule.
    #[error(transparent)]
    Host(BadName),
    /// The workspace contains the home directory, or is the root directory.
    #[error("`{}` {} your home directory, which agents cannot see", directory.display(), if *is_home { "is" } else { "contains" })]
    TooMuch {
        /// The workspace.
        directory: PathBuf,
        /// Is true if the workspace is the home directory itself.
        is_home: bool,
    },
}

impl PolicyError {
    /// Returns the remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::HiddenWorkspace { .. } => "work in another directory",
            Self::AboveOwnFiles { .. } => {
                "work in another directory, or set SWITCHBOARD_HOME to one outside of it"
            }
            Self::Host(error) => error.hint(),
            Self::TooMuch { .. } => {
                "run in a project directory, or set the policy to `off` (`--policy off`) to run without a sandbox"
            }
        }
    }
}

#[cfg(test)]
mod tests;
