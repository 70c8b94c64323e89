//! Proving a sandbox without a run: for whoever asks whether this machine can confine.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use model::{Confinement, Proof};
use sandbox::{SandboxRejection, Tier, VerifiedSandbox};

use crate::Supervisor;

/// What a sandbox of this machine is made of, proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenSandbox {
    /// In words: namespaces, Landlock, seccomp.
    pub made_of: String,
    /// Whether there are namespaces, without which less is held.
    pub namespaces: bool,
    /// Whether writes outside of the policy are held.
    pub holds_writes: bool,
    /// Whether the number of processes that a policy allows holds; not for root where no cgroup counts them.
    pub counts_processes: bool,
    /// What a probe came to.
    pub proof: Proof,
}

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum NoSandbox {
    /// The supervisor's program cannot be opened.
    #[error("cannot open the supervisor's program")]
    Program(#[source] io::Error),
    /// It is not there, or does not hold.
    #[error(transparent)]
    Refused(#[from] SandboxRejection),
}

impl NoSandbox {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Program(_) => "install all of Switchboard: `cargo install --path crates/switchboard`",
            Self::Refused(refusal) => refusal.hint(),
        }
    }
}

impl Supervisor {
    /// Lets a probe loose in the sandbox of a policy, as before the first run with it. Blocks for a moment.
    ///
    /// `scratch` is a directory for the probe's files, `search_path` the `PATH` in which bubblewrap is looked up.
    pub fn prove(
        &self,
        confinement: &Confinement,
        scratch: &Path,
        search_path: &str,
    ) -> Result<ProvenSandbox, NoSandbox> {
        let program = File::open(self.program()).map_err(NoSandbox::Program)?;
        let VerifiedSandbox { mechanisms, tier, proof } =
            sandbox::select_and_verify(confinement, scratch, program.as_fd(), search_path)?;
        let has_namespaces = tier == Tier::Namespaces;
        let namespaces = if has_namespaces { "namespaces (bubblewrap), " } else { "" };
        let seccomp = if mechanisms.seccomp { ", seccomp" } else { "" };
        let cgroup = match &mechanisms.cgroup {
            Some(cgroup) if cgroup.memory && cgroup.processes => ", a cgroup that bounds and kills",
            Some(_) => ", a cgroup that kills",
            None => "",
        };
        Ok(ProvenSandbox {
            made_of: format!("{namespaces}Landlock {}{seccomp}{cgroup}", mechanisms.landlock),
            namespaces: has_namespaces,
            holds_writes: mechanisms.enforces_writes(tier),
            counts_processes: mechanisms.limits_processes(rustix::process::geteuid().is_root()),
            proof,
        })
    }
}
