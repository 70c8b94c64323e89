//! Tests a sandbox without a run, to report whether this machine can enforce a policy.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use model::{Confinement, Proof};
use sandbox::{SandboxRejection, Tier, VerifiedSandbox};

use crate::Supervisor;

/// A sandbox that has passed its self-test on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenSandbox {
    /// Its mechanisms: namespaces, Landlock, seccomp.
    pub made_of: String,
    /// Is true if namespaces are available. Without them, fewer safeguards are enforced.
    pub namespaces: bool,
    /// Is true if writes outside the policy are blocked.
    pub holds_writes: bool,
    /// Is true if the process limit is enforced. Without a cgroup it is not enforced for root.
    pub counts_processes: bool,
    /// The result of the probe.
    pub proof: Proof,
}

/// An error of the self-test.
#[derive(Debug, thiserror::Error)]
pub enum NoSandbox {
    /// The supervisor's program cannot be opened.
    #[error("cannot open the supervisor's program")]
    Program(#[source] io::Error),
    /// The sandbox is unavailable or failed its self-test.
    #[error(transparent)]
    Refused(#[from] SandboxRejection),
}

impl NoSandbox {
    /// Returns a remedy for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Program(_) => "install all of Switchboard: `cargo install --path crates/switchboard`",
            Self::Refused(refusal) => refusal.hint(),
        }
    }
}

impl Supervisor {
    /// Runs the self-test of a policy's sandbox, as before its first run. Blocks.
    ///
    /// `scratch` is a directory for the files of the probe, `search_path` the `PATH` in which bubblewrap is looked up.
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
            Some(cgroup) if cgroup.memory && cgroup.processes => ", cgroup (limits and kill)",
            Some(_) => ", cgroup (kill only)",
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
