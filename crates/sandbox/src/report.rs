//! The report of a sandbox: for each safeguard, whether it is enforced and by which mechanism.

use std::path::PathBuf;

use model::exact_path::show_path;
use model::{Confined, Confinement, Enforcement, Network, Proof, Safeguard, SafeguardName};

use crate::launcher_protocol::AppliedRules;
use crate::mechanisms::{Mechanisms, Tier};

/// The facts about a confined process that its report is derived from.
pub(crate) struct ReportInputs<'a> {
    pub tier: Tier,
    pub applied: AppliedRules,
    pub confinement: &'a Confinement,
    pub mechanisms: &'a Mechanisms,
    pub unprotected: &'a [PathBuf],
    /// Is true if the missing paths of other active runs were known at the start.
    pub knows_others: bool,
    /// Is true if its temporary files are in the directories of all programs.
    pub shares_temporary: bool,
    pub git_read_only: Option<&'a str>,
    pub exposed: &'a [PathBuf],
}

type SafeguardResult = (SafeguardName, Enforcement, String);

impl ReportInputs<'_> {
    /// Builds the report.
    pub fn build(&self, proof: Proof) -> Confined {
        let files = [self.writes(), self.hidden_paths(), self.protected_paths()];
        let others = [self.processes(), self.lifetime(), self.network(), self.unix_sockets()];
        let privileges = [
            (SafeguardName::SystemCalls, full_if(self.applied.seccomp), "seccomp".to_owned()),
            (
                SafeguardName::Privileges,
                full_if(self.applied.privileges),
                "no capabilities, no new privileges".to_owned(),
            ),
            (SafeguardName::OpenFiles, Enforcement::Full, "closed when the agent starts".to_owned()),
        ];
        let all = files.into_iter().chain(others).chain(privileges).chain(self.bounds());
        let safeguards = all.map(|(name, enforcement, why)| Safeguard { name, enforcement, why }).collect();
        Confined {
            policy: self.confinement.clone(),
            safeguards,
            proof: Some(proof),
            refused_hosts: Vec::new(),
            quarantined: Vec::new(),
            git_read_only: self.git_read_only.map(str::to_owned),
            exposed: self.exposed.to_vec(),
            commits_without_hooks: 0,
            unsigned_commits: 0,
        }
    }

    fn has_namespaces(&self) -> bool {
        self.tier == Tier::Namespaces
    }

    fn writes(&self) -> SafeguardResult {
        let (enforcement, why) = match (self.has_namespaces(), self.applied.files) {
            (true, true) => (Enforcement::Full, "read-only mounts, Landlock"),
            (true, false) => (Enforcement::Full, "read-only mounts"),
            (false, true) if self.shares_temporary => (
                Enforcement::Partial,
                "Landlock; permissions and times of files can be changed, temporary directories and terminals are shared",
            ),
            (false, true) => (
                Enforcement::Partial,
                "Landlock; permissions and times of files can be changed, terminals are shared",
            ),
            (false, false) => (Enforcement::None, "needs bubblewrap or Landlock"),
        };
        (SafeguardName::Writes, enforcement, why.to_owned())
    }

    fn hidden_paths(&self) -> SafeguardResult {
        let (enforcement, why) = match (self.has_namespaces(), self.applied.files) {
            (true, _) => (Enforcement::Full, "empty mounts"),
            (false, true) => (Enforcement::Partial, "Landlock; the names of hidden files can be seen"),
            (false, false) => (Enforcement::None, "needs bubblewrap or Landlock"),
        };
        (SafeguardName::HiddenPaths, enforcement, why.to_owned())
    }

    fn protected_paths(&self) -> SafeguardResult {
        let (enforcement, why) = match (self.has_namespaces(), self.unprotected) {
            _ if self.confinement.protected.is_empty() => (Enforcement::Full, "no path is protected".to_owned()),
            (true, []) if !self.knows_others => (
                Enforcement::Partial,
                "read-only mounts; new ones are quarantined, but not if two runs create them at the same time: \
                 there is no directory for the lists of active runs"
                    .to_owned(),
            ),
            (true, []) => (Enforcement::Full, "read-only mounts; new ones are quarantined".to_owned()),
            (true, links) => (
                Enforcement::Partial,
                format!("read-only mounts, except for links and the workspace itself: {}", join_paths(links)),
            ),
            (false, _) => (Enforcement::None, "existing ones need bubblewrap; new ones are quarantined".to_owned()),
        };
        (SafeguardName::ProtectedPaths, enforcement, why)
    }

    fn processes(&self) -> SafeguardResult {
        let (enforcement, why) = match (self.has_namespaces(), self.applied.scopes) {
            (true, _) => (Enforcement::Full, "pid namespace"),
            (false, true) => (Enforcement::Partial, "Landlock blocks signals; other processes are visible"),
            (false, false) => (Enforcement::None, "needs bubblewrap, or Landlock 6"),
        };
        (SafeguardName::Processes, enforcement, why.to_owned())
    }

    fn lifetime(&self) -> SafeguardResult {
        if self.has_namespaces() {
            (SafeguardName::Lifetime, Enforcement::Full, "pid namespace".to_owned())
        } else {
            let why = "supervisor; if it is killed, a process that hides from the recovery survives";
            (SafeguardName::Lifetime, Enforcement::Partial, why.to_owned())
        }
    }

    fn network(&self) -> SafeguardResult {
        let (enforcement, why) = match (&self.confinement.network, self.has_namespaces()) {
            (Network::Full, _) => (Enforcement::Full, "all hosts are allowed"),
            (Network::None, true) => (Enforcement::Full, "network namespace"),
            (Network::Hosts(_), true) => {
                (Enforcement::Full, "network namespace, and a proxy that connects to listed hosts only")
            }
            (Network::None, false) => (full_if(self.applied.seccomp), "seccomp: no internet sockets"),
            (Network::Hosts(_), false) => {
                (full_if(self.applied.seccomp), "seccomp: no internet sockets; named hosts need bubblewrap")
            }
        };
        (SafeguardName::Network, enforcement, why.to_owned())
    }

    fn unix_sockets(&self) -> SafeguardResult {
        // Abstract socket names are local to a network namespace.
        let has_abstract_scope =
            self.applied.scopes || (self.has_namespaces() && self.confinement.network != Network::Full);
        let (enforcement, why) = match (self.confinement.unix_sockets, self.has_namespaces()) {
            (false, _) if self.applied.seccomp => (Enforcement::Full, "seccomp: none can be created"),
            _ if !has_abstract_scope => (Enforcement::None, "abstract names need Landlock 6"),
            (_, true) => (
                Enforcement::Partial,
                "private /run and /tmp, and sockets bound before the start are masked; sockets bound elsewhere later are not",
            ),
            (_, false) => (
                Enforcement::None,
                "Landlock blocks abstract names; those in the file system need bubblewrap",
            ),
        };
        (SafeguardName::UnixSockets, enforcement, why.to_owned())
    }

    fn bounds(&self) -> Vec<SafeguardResult> {
        let bounds = self.confinement.bounds;
        let is_root = rustix::process::geteuid().is_root();
        let processes = bounds.processes.map(|count| {
            let is_counted = self.mechanisms.cgroup.as_ref().is_some_and(|cgroup| cgroup.processes);
            let (enforcement, why) = match (self.has_namespaces(), is_root) {
                _ if is_counted => (Enforcement::Full, format!("cgroup: at most {count}")),
                (false, _) => (
                    Enforcement::None,
                    "needs bubblewrap: without it, all processes of the user would be counted".to_owned(),
                ),
                (true, true) => (Enforcement::None, "RLIMIT_NPROC does not apply to root".to_owned()),
                (true, false) => (Enforcement::Full, format!("at most {count}")),
            };
            (SafeguardName::ProcessCount, enforcement, why)
        });
        let file = bounds
            .file_bytes
            .map(|bytes| (SafeguardName::FileSize, Enforcement::Full, format!("at most {bytes} bytes")));
        let memory = bounds.memory_bytes.map(|bytes| {
            let (enforcement, why) = match &self.mechanisms.cgroup {
                Some(cgroup) if cgroup.memory => {
                    (Enforcement::Full, format!("cgroup: at most {bytes} bytes"))
                }
                Some(_) => (Enforcement::None, "the delegated cgroup has no memory controller".to_owned()),
                None => (Enforcement::None, "no cgroup (version 2) is delegated to this user".to_owned()),
            };
            (SafeguardName::Memory, enforcement, why)
        });
        processes.into_iter().chain(file).chain(memory).collect()
    }
}

fn full_if(is_enforced: bool) -> Enforcement {
    if is_enforced { Enforcement::Full } else { Enforcement::None }
}

/// Formats paths as a list.
pub(crate) fn join_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| show_path(path)).collect::<Vec<_>>().join(", ")
}
