//! What holds, safeguard by safeguard, and by what.

use std::path::PathBuf;

use model::{Confined, Confinement, Enforcement, Network, Proof, Safeguard, SafeguardName};

use crate::description::Applied;
use crate::machine::{Machine, Tier};
use crate::prepare::list_of;

/// What is known about a process that was confined.
pub(crate) struct Facts<'a> {
    pub tier: Tier,
    pub applied: Applied,
    pub confinement: &'a Confinement,
    pub machine: &'a Machine,
    pub unprotected: &'a [PathBuf],
    /// Whether the missing paths of other active runs were known at the start.
    pub knows_others: bool,
    /// Whether its temporary files are among those of other programs.
    pub shares_temporary: bool,
    pub git_read_only: Option<&'a str>,
    pub exposed: &'a [PathBuf],
}

type Verdict = (SafeguardName, Enforcement, String);

impl Facts<'_> {
    pub fn confined(&self, proof: Proof) -> Confined {
        let files = [self.writes(), self.hidden(), self.protected()];
        let others = [self.processes(), self.lifetime(), self.network(), self.unix_sockets()];
        let rights = [
            (SafeguardName::SystemCalls, held(self.applied.seccomp), "seccomp".to_owned()),
            (
                SafeguardName::Privileges,
                held(self.applied.privileges),
                "no capabilities, no new privileges".to_owned(),
            ),
            (SafeguardName::OpenFiles, Enforcement::Full, "closed when the agent starts".to_owned()),
        ];
        let all = files.into_iter().chain(others).chain(rights).chain(self.bounds());
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

    fn namespaces(&self) -> bool {
        self.tier == Tier::Namespaces
    }

    fn writes(&self) -> Verdict {
        let (hold, why) = match (self.namespaces(), self.applied.files) {
            (true, true) => (Enforcement::Full, "read-only mounts, Landlock"),
            (true, false) => (Enforcement::Full, "read-only mounts"),
            (false, true) if self.shares_temporary => (
                Enforcement::Partial,
                "Landlock; not the rights and times of files, and temporary folders and terminals are shared",
            ),
            (false, true) => (
                Enforcement::Partial,
                "Landlock; not the rights and times of files, and terminals are shared",
            ),
            (false, false) => (Enforcement::None, "needs bubblewrap or Landlock"),
        };
        (SafeguardName::Writes, hold, why.to_owned())
    }

    fn hidden(&self) -> Verdict {
        let (hold, why) = match (self.namespaces(), self.applied.files) {
            (true, _) => (Enforcement::Full, "empty mounts"),
            (false, true) => (Enforcement::Partial, "Landlock; that a file is there can be seen"),
            (false, false) => (Enforcement::None, "needs bubblewrap or Landlock"),
        };
        (SafeguardName::HiddenPaths, hold, why.to_owned())
    }

    fn protected(&self) -> Verdict {
        let (hold, why) = match (self.namespaces(), self.unprotected) {
            _ if self.confinement.protected.is_empty() => (Enforcement::Full, "nothing is protected".to_owned()),
            (true, []) if !self.knows_others => (
                Enforcement::Partial,
                "read-only mounts; new ones are quarantined, but not when two runs create them at the same time: \
                 there is no directory for the lists of active runs"
                    .to_owned(),
            ),
            (true, []) => (Enforcement::Full, "read-only mounts; new ones are quarantined".to_owned()),
            (true, links) => {
                (Enforcement::Partial, format!("read-only mounts, except for links and the workspace itself: {}", list_of(links)))
            }
            (false, _) => (Enforcement::None, "existing ones need bubblewrap; new ones are quarantined".to_owned()),
        };
        (SafeguardName::ProtectedPaths, hold, why)
    }

    fn processes(&self) -> Verdict {
        let (hold, why) = match (self.namespaces(), self.applied.scopes) {
            (true, _) => (Enforcement::Full, "pid namespace"),
            (false, true) => (Enforcement::Partial, "Landlock holds signals; others can be seen"),
            (false, false) => (Enforcement::None, "needs bubblewrap, or Landlock 6"),
        };
        (SafeguardName::Processes, hold, why.to_owned())
    }

    fn lifetime(&self) -> Verdict {
        if self.namespaces() {
            (SafeguardName::Lifetime, Enforcement::Full, "pid namespace".to_owned())
        } else {
            let why =
                "the supervisor; not a process that hides from the recovery after a kill of the supervisor";
            (SafeguardName::Lifetime, Enforcement::Partial, why.to_owned())
        }
    }

    fn network(&self) -> Verdict {
        let (hold, why) = match (&self.confinement.network, self.namespaces()) {
            (Network::Full, _) => (Enforcement::Full, "everybody may be reached"),
            (Network::None, true) => (Enforcement::Full, "network namespace"),
            (Network::Hosts(_), true) => {
                (Enforcement::Full, "network namespace, and a proxy that asks no other host")
            }
            (Network::None, false) => (held(self.applied.seccomp), "seccomp: no socket of the internet"),
            (Network::Hosts(_), false) => {
                (held(self.applied.seccomp), "seccomp: nobody is reached; named hosts need bubblewrap")
            }
        };
        (SafeguardName::Network, hold, why.to_owned())
    }

    fn unix_sockets(&self) -> Verdict {
        // A network namespace has abstract names of its own.
        let abstract_names =
            self.applied.scopes || (self.namespaces() && self.confinement.network != Network::Full);
        let (hold, why) = match (self.confinement.unix_sockets, self.namespaces()) {
            (false, _) if self.applied.seccomp => (Enforcement::Full, "seccomp: none can be made"),
            _ if !abstract_names => (Enforcement::None, "abstract names need Landlock 6"),
            (_, true) => (
                Enforcement::Partial,
                "own /run and /tmp, and all that were bound at the start are covered; not what is bound elsewhere later",
            ),
            (_, false) => {
                (Enforcement::None, "Landlock holds abstract names; those in the file system need bubblewrap")
            }
        };
        (SafeguardName::UnixSockets, hold, why.to_owned())
    }

    fn bounds(&self) -> Vec<Verdict> {
        let bounds = self.confinement.bounds;
        let is_root = rustix::process::geteuid().is_root();
        let processes = bounds.processes.map(|count| {
            let counted = self.machine.cgroup.as_ref().is_some_and(|cgroup| cgroup.processes);
            let (hold, why) = match (self.namespaces(), is_root) {
                _ if counted => (Enforcement::Full, format!("cgroup: at most {count}")),
                (false, _) => (
                    Enforcement::None,
                    "needs bubblewrap: without, all processes of the user would be counted".to_owned(),
                ),
                (true, true) => (Enforcement::None, "the kernel does not hold root to it".to_owned()),
                (true, false) => (Enforcement::Full, format!("at most {count}")),
            };
            (SafeguardName::ProcessCount, hold, why)
        });
        let file = bounds
            .file_bytes
            .map(|bytes| (SafeguardName::FileSize, Enforcement::Full, format!("at most {bytes} bytes")));
        let memory = bounds.memory_bytes.map(|bytes| {
            let (hold, why) = match &self.machine.cgroup {
                Some(cgroup) if cgroup.memory => {
                    (Enforcement::Full, format!("cgroup: at most {bytes} bytes"))
                }
                Some(_) => (Enforcement::None, "the cgroup that is delegated counts no memory".to_owned()),
                None => (Enforcement::None, "no cgroup (version 2) is delegated to this user".to_owned()),
            };
            (SafeguardName::Memory, hold, why)
        });
        processes.into_iter().chain(file).chain(memory).collect()
    }
}

fn held(is_held: bool) -> Enforcement {
    if is_held { Enforcement::Full } else { Enforcement::None }
}
