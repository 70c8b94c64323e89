//! What an agent may touch.
//!
//! Owns the two forms of it: what a call asks for ([`CallPolicy`], a preset and its adjustments) and what a supervisor
//! enforces ([`Policy`], with every path filled in). How it is enforced is `sandbox`; this is data.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{AgentState, BadName, Caches, HomeView, HostRule, SafeguardName};

mod known_paths;

use known_paths::SECRETS;
pub use known_paths::{is_in_products, protected_in};

/// Folders that every sandbox with namespaces has its own of.
pub const PRIVATE_DIRECTORIES: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// The confinement a run is carried out with.
///
/// A plan that names a policy which the reading program does not know cannot be parsed, so it is never run with less
/// confinement than it asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// No confinement: the agent has all the rights of the user.
    #[default]
    Off,
    /// The agent touches only what is named here.
    Confined(Box<Confinement>),
}

/// Everything that confines one run. All paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// The preset it was made from.
    pub preset: Preset,
    /// What happens where the machine cannot enforce all of it.
    pub requirement: Requirement,
    /// What must hold even so: the agent has no other means of keeping to what it was asked.
    pub must_hold: Vec<SafeguardName>,
    /// What may be written, and what must be visible although it lies in something hidden.
    pub roots: Vec<PolicyRoot>,
    /// What cannot be read, not even seen.
    #[serde(with = "crate::exact_path")]
    pub hidden: Vec<PathBuf>,
    /// Paths that stay as they are, although they lie in a directory that can be written.
    pub protected: Vec<Protected>,
    /// Whom it may reach.
    pub network: Network,
    /// Whether it may make sockets with a name in the file system. Without, no such socket of the machine can be reached
    /// either, wherever it is.
    pub unix_sockets: bool,
    /// Whether namespaces are used where they can be; without, the kernel's rules alone hold, which is less.
    pub namespaces: bool,
    /// What it may use up.
    pub bounds: Bounds,
    /// The directory of proofs that the sandbox holds, and of the lists by which active runs know each other's missing paths. None to
    /// prove it every time, and to know of no other run.
    pub proofs: Option<PathBuf>,
    /// Variables that the agent gets only where writes are held: they tell it that it is confined.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_if_held: BTreeMap<String, String>,
    /// Caches for package managers, which cannot write to the user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches: Option<Caches>,
    /// The agent's own state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<AgentState>,
    /// The parts of the home directory that are exposed; none where the home directory is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<HomeView>,
}

/// A folder or file that an agent is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRoot {
    /// Where it is.
    #[serde(with = "crate::exact_path")]
    pub path: PathBuf,
    /// What may be done with it.
    pub access: RootAccess,
}

impl PolicyRoot {
    /// To be read only.
    pub fn read_only(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: RootAccess::Read }
    }

    /// To be read and written.
    pub fn writable(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: RootAccess::Write }
    }

    /// To be read and written, and made (for the user alone) when it is missing.
    pub fn created(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), access: RootAccess::Create }
    }
}

/// What may be done with a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootAccess {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
    /// Read and write it; the folder is made when it is missing.
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
    /// What happens when the path does not exist at the start of a run and is created during it.
    #[serde(rename = "if_created", alias = "kind")]
    pub on_create: OnCreate,
}

/// What happens to a protected path that is created during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCreate {
    /// It is quarantined as soon as it appears: a program that the user runs meanwhile would obey it.
    QuarantineAtOnce,
    /// It is quarantined when the run is over.
    #[serde(alias = "file", alias = "folder")]
    QuarantineAtEnd,
    /// It stays.
    #[serde(alias = "if_present")]
    Keep,
}

/// Whom an agent may reach over the network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Everybody, this machine's loopback included.
    #[default]
    Full,
    /// Nobody.
    None,
    /// These hosts only (`api.example.com`, `*.example.com`, `127.0.0.1:8080`), through a proxy that asks no other.
    Hosts(Vec<String>),
}

/// What an agent may use up. A bound that is `None` is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// How many processes and threads. The kernel does not hold root to it.
    pub processes: Option<u64>,
    /// How many bytes of memory all together; needs a cgroup that is delegated to the user.
    pub memory_bytes: Option<u64>,
    /// How long one file may be.
    pub file_bytes: Option<u64>,
}

impl Default for Bounds {
    /// 4096 processes, files of 16 GiB, memory as there is.
    fn default() -> Self {
        Self { processes: Some(4096), memory_bytes: None, file_bytes: Some(16 << 30) }
    }
}

/// What happens on a machine that cannot enforce a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requirement {
    /// Nothing runs, and it is said what is missing.
    #[default]
    Require,
    /// It runs with what there is, and it is said what held.
    BestEffort,
}

/// A policy by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// No confinement at all.
    Off,
    /// The folders of the call can be written, all else but hidden things can be read.
    Workspace,
    /// Nothing can be written but temporary files and the agent's own state.
    Observe,
    /// As `workspace`, and the agent has no shell: file tools on its folders and nothing else.
    Restricted,
    /// As `observe` and `restricted` together.
    Sealed,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Off, Self::Workspace, Self::Observe, Self::Restricted, Self::Sealed];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Workspace => "workspace",
            Self::Observe => "observe",
            Self::Restricted => "restricted",
            Self::Sealed => "sealed",
        }
    }

    /// Whether the folders of the call can be written.
    pub fn writes(self) -> bool {
        matches!(self, Self::Off | Self::Workspace | Self::Restricted)
    }

    /// Returns whether a caller who asks for mode `observe` cannot mean this preset: it is a sandbox made for writing.
    pub fn contradicts_observe(self) -> bool {
        self.writes() && self != Self::Off
    }

    /// Whether the agent may have a shell.
    pub fn has_shell(self) -> bool {
        matches!(self, Self::Off | Self::Workspace | Self::Observe)
    }

    /// The preset that allows only what both allow.
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

/// The policy of a call: a preset and what is changed about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallPolicy {
    /// Which one.
    pub preset: Preset,
    /// What happens where the machine cannot enforce it.
    pub requirement: Requirement,
    /// Whom it may reach.
    pub network: Network,
    /// What it may use up.
    pub bounds: Bounds,
    /// Whether the agent gets a state folder of its own for this policy, with nothing in it but the login: no setting, no
    /// server and no session of the user.
    pub private_state: bool,
    /// Further paths that it cannot see.
    pub hide: Vec<PathBuf>,
}

impl Default for CallPolicy {
    /// `workspace`, as far as the machine can enforce it: the policy of every call that names none.
    fn default() -> Self {
        Self { requirement: Requirement::BestEffort, ..Preset::Workspace.into() }
    }
}

impl From<Preset> for CallPolicy {
    /// Returns the preset unchanged, and required.
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
    /// Returns the policy that confines nothing.
    pub fn off() -> Self {
        Preset::Off.into()
    }

    /// Whether nothing is confined.
    pub fn is_off(&self) -> bool {
        self.preset == Preset::Off
    }

    /// This policy, with nothing in it that the operator's ceiling does not allow. A caller cannot lift it: whatever is
    /// asked, the result is at most the ceiling.
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

    /// `full`, `none`, or hosts with commas between them.
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
    /// Those whom both may reach.
    #[must_use]
    pub fn within(&self, ceiling: &Self) -> Self {
        match (self, ceiling) {
            (Self::None, _) | (_, Self::None) => Self::None,
            (Self::Full, other) | (other, Self::Full) => other.clone(),
            (Self::Hosts(asked), Self::Hosts(allowed)) => {
                // A pattern is kept only if the other side has it literally: to compare two patterns is to be wrong once.
                Self::Hosts(asked.iter().filter(|host| allowed.contains(host)).cloned().collect())
            }
        }
    }
}

impl Bounds {
    /// The smaller of each.
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

/// What a policy is about: the folders of one call on one machine.
#[derive(Debug, Clone, Default)]
pub struct PolicyContext {
    /// The folders that the call works in.
    pub workspaces: Vec<PathBuf>,
    /// The agent's own state.
    pub state: Option<AgentState>,
    /// The state of other agents, with their logins.
    pub foreign_state: Vec<PathBuf>,
    /// The user's home.
    pub home: Option<PathBuf>,
    /// Paths in the home directory that the operator exposes or the agent needs ([`HomeView::exposed`]).
    pub exposed: Vec<PathBuf>,
    /// Programs in the home directory that run besides the agent ([`HomeView::programs`]).
    pub programs: Vec<PathBuf>,
    /// Files that stand in for those of the home directory ([`HomeView::copies`]).
    pub copies: Vec<(PathBuf, PathBuf)>,
    /// Files in the workspaces that the user's settings of agents name in a command.
    pub settings_programs: Vec<PathBuf>,
    /// What is ours and not the agent's: job files, database, configuration.
    pub own: Vec<PathBuf>,
    /// Directories that no workspace may contain either: a call could write the configuration that bounds it.
    pub guarded: Vec<PathBuf>,
    /// What it must see in spite of that.
    pub visible: Vec<PathBuf>,
    /// What must hold, whatever else the machine cannot enforce.
    pub must_hold: Vec<SafeguardName>,
    /// The directory of proofs and lists ([`Confinement::proofs`]).
    pub proofs: Option<PathBuf>,
    /// Variables for where writes are held ([`Confinement::env_if_held`]).
    pub env_if_held: BTreeMap<String, String>,
    /// Caches for package managers.
    pub caches: Option<Caches>,
}

impl CallPolicy {
    /// The policy with all its paths, or why the call cannot have it there.
    pub fn confine(&self, ground: &PolicyContext) -> Result<Policy, PolicyError> {
        if self.is_off() {
            return Ok(Policy::Off);
        }
        if let Network::Hosts(hosts) = &self.network {
            for host in hosts {
                host.parse::<HostRule>().map_err(PolicyError::Host)?;
            }
        }
        let hidden = self.hidden(ground);
        for workspace in &ground.workspaces {
            if let Some(hidden) = hidden.iter().find(|hidden| workspace.starts_with(hidden)) {
                let (folder, hidden) = (workspace.clone(), hidden.clone());
                return Err(PolicyError::HiddenWorkspace { folder, hidden });
            }
            // Before our own files, which usually lie in the home directory: moving them elsewhere would not help.
            let is_home = ground.home.as_ref().is_some_and(|home| home.starts_with(workspace));
            if is_home || (self.preset.writes() && workspace.parent().is_none()) {
                return Err(PolicyError::TooMuch { folder: workspace.clone() });
            }
            if let Some(own) = ground.guarded.iter().find(|own| own.starts_with(workspace)) {
                let (folder, own) = (workspace.clone(), own.clone());
                return Err(PolicyError::AboveOwnFiles { folder, own });
            }
        }
        let workspace = |path: &PathBuf| {
            if self.preset.writes() { PolicyRoot::writable(path) } else { PolicyRoot::read_only(path) }
        };
        let roots = ground.workspaces.iter().map(workspace);
        let caches = ground.caches.iter().filter_map(|caches| caches.directory.as_ref());
        let roots = roots.chain(caches.map(PolicyRoot::created));
        let roots = roots.chain(ground.visible.iter().map(PolicyRoot::read_only)).collect();
        let protected = ground.workspaces.iter().filter(|_| self.preset.writes());
        let protected = protected.flat_map(|workspace| protected_in(workspace));
        let programs = ground.settings_programs.iter().filter(|_| self.preset.writes()).cloned();
        let protected = protected.chain(programs.map(|path| Protected { path, on_create: OnCreate::Keep }));
        Ok(Policy::Confined(Box::new(Confinement {
            preset: self.preset,
            requirement: self.requirement,
            must_hold: ground.must_hold.clone(),
            roots,
            hidden,
            protected: protected.collect(),
            network: self.network.clone(),
            unix_sockets: self.preset == Preset::Workspace,
            namespaces: true,
            bounds: self.bounds,
            proofs: ground.proofs.clone(),
            env_if_held: ground.env_if_held.clone(),
            caches: ground.caches.clone(),
            state: ground.state.clone(),
            home: ground.home.clone().map(|directory| HomeView {
                directory,
                exposed: ground.exposed.clone(),
                programs: ground.programs.clone(),
                copies: ground.copies.clone(),
            }),
        })))
    }

    fn hidden(&self, ground: &PolicyContext) -> Vec<PathBuf> {
        let secrets = ground.home.iter().flat_map(|home| SECRETS.iter().map(|name| home.join(name)));
        let is_its_own = |path: &PathBuf| ground.state.iter().any(|state| state.directory.starts_with(path));
        let foreign = ground.foreign_state.iter().filter(|path| !is_its_own(path)).cloned();
        secrets.chain(foreign).chain(ground.own.iter().cloned()).chain(self.hide.iter().cloned()).collect()
    }
}

/// A policy that a call cannot have where it is to work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The workspace is one of the places that agents do not see.
    #[error("`{}` lies in `{}`, which is kept from agents", folder.display(), hidden.display())]
    HiddenWorkspace {
        /// The workspace.
        folder: PathBuf,
        /// What is hidden.
        hidden: PathBuf,
    },
    /// The workspace contains Switchboard's own state or configuration.
    #[error("`{}` contains `{}`, the state or configuration of Switchboard", folder.display(), own.display())]
    AboveOwnFiles {
        /// The workspace.
        folder: PathBuf,
        /// The directory of state or configuration.
        own: PathBuf,
    },
    /// Something in the list of hosts that is none.
    #[error(transparent)]
    Host(BadName),
    /// A workspace that holds the whole home, or all there is.
    #[error("`{}` contains the home directory, which is kept from agents", folder.display())]
    TooMuch {
        /// The workspace.
        folder: PathBuf,
    },
}

impl PolicyError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::HiddenWorkspace { .. } => "work in another directory",
            Self::AboveOwnFiles { .. } => {
                "work in another directory, or set SWITCHBOARD_HOME to one outside of it"
            }
            Self::Host(error) => error.hint(),
            Self::TooMuch { .. } => {
                "work in a directory below the home directory, or set the policy to `off`, which confines nothing"
            }
        }
    }
}

#[cfg(test)]
mod tests;
