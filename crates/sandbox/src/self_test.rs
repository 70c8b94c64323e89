//! Tests that a sandbox holds before an agent runs in it.
//!
//! The self-test creates targets outside of the sandbox (a file, a secret, sockets, a process), runs a probe in the very sandbox of the
//! policy and examines the targets afterwards. An escape attempt that succeeds rejects the sandbox. Results are cached until the boot,
//! the programs or the kind of the policy change.

mod record;
mod targets;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Confinement, Escape, Proof, Requirement, SafeguardName};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::mechanisms::{Mechanisms, Tier, VerifiedSandbox};
use crate::nested_repositories::NestedRepositories;
use crate::prepare::{PreparedSandbox, SandboxedCommand, prepare};
use crate::probe::{DONE, PROBE_ARGUMENT};
use crate::quarantine::QuarantineStore;
use crate::rejection::SandboxRejection;
use crate::writable_roots::HeldRoots;
use record::{CachedResult, SelfTestRecord};
use targets::ProbeTargets;

/// The time limit of a probe, sufficient for a slow machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of the probe's descendants to exit after a kill.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of attempts to run a probe.
const MAX_ATTEMPTS: u32 = 10;

/// Selects the tier that enforces a policy on this machine and verifies it by a self-test.
///
/// `scratch` is the directory for the probe's files; bubblewrap is looked up in `search_path`, the `PATH` of the caller.
pub fn select_and_verify(
    confinement: &Confinement,
    scratch: &Path,
    executable: BorrowedFd<'_>,
    search_path: &str,
) -> Result<VerifiedSandbox, SandboxRejection> {
    let mechanisms = &Mechanisms::detect(search_path);
    let missing = mechanisms.missing_for_policy(confinement);
    let required = confinement.requirement == Requirement::Require;
    let missing_for_bounds =
        mechanisms.missing_for_bounds(confinement.bounds, rustix::process::geteuid().is_root());
    if required && !missing_for_bounds.is_empty() {
        return Err(SandboxRejection::Missing { missing: missing_for_bounds });
    }
    if missing.is_empty() {
        match verify(confinement, Tier::Namespaces, mechanisms, scratch, executable) {
            // Bubblewrap is installed but does not work, most likely because user namespaces are disabled.
            Err(SandboxRejection::Unproven { .. }) if !required => {}
            result => return result,
        }
    } else if required {
        return Err(SandboxRejection::Missing { missing });
    }
    if mechanisms.bubblewrap.is_some() && confinement.namespaces && !missing.is_empty() {
        // Namespaces without Landlock enforce everything except for Landlock's scopes.
        if let Ok(verified) = verify(confinement, Tier::Namespaces, mechanisms, scratch, executable) {
            return Ok(verified);
        }
    }
    // Landlock cannot revoke access below an allowed directory.
    let mut roots = confinement.roots.iter().map(|root| &root.path);
    if let Some(workspace) = roots.find(|root| scratch.starts_with(root)) {
        return Err(SandboxRejection::StateInWorkspace {
            state: scratch.to_owned(),
            workspace: workspace.clone(),
        });
    }
    verify(confinement, Tier::Rules, mechanisms, scratch, executable)
}

/// Returns the cached result of a self-test, or runs one.
fn verify(
    confinement: &Confinement,
    tier: Tier,
    mechanisms: &Mechanisms,
    scratch: &Path,
    executable: BorrowedFd<'_>,
) -> Result<VerifiedSandbox, SandboxRejection> {
    let record = SelfTestRecord::new(confinement, tier, mechanisms, executable);
    let file = confinement.proofs.as_deref().map(|directory| directory.join(record.file_name()));
    let best_effort = confinement.requirement == Requirement::BestEffort;
    match file.as_deref().and_then(|file| record.load(file)) {
        Some(CachedResult::Proof(escapes)) => {
            let proof = Proof { escapes, earlier: true };
            return Ok(VerifiedSandbox { mechanisms: mechanisms.clone(), tier, proof });
        }
        Some(CachedResult::Unproven(why)) if best_effort => return Err(SandboxRejection::Unproven { why }),
        _ => {}
    }
    let escapes = match probe_with_retries(confinement, tier, mechanisms, scratch, executable) {
        Err(SandboxRejection::Unproven { why }) => {
            // Without the record, every run would repeat the failing probe before it falls back to another tier.
            let _ = file.filter(|_| best_effort).map(|file| record.save(&file, &[], Some(&why)));
            return Err(SandboxRejection::Unproven { why });
        }
        escapes => escapes?,
    };
    let must_hold = |safeguard| confinement.must_hold.contains(&safeguard);
    let is_violation = |escape: &&Escape| {
        !escape.stopped
            && (is_enforceable(mechanisms.landlock, tier, escape.safeguard) || must_hold(escape.safeguard))
    };
    let violations: Vec<Escape> = escapes.iter().filter(is_violation).cloned().collect();
    if !violations.is_empty() {
        return Err(SandboxRejection::Escaped { escapes: violations });
    }
    if let Some(file) = file {
        // If the result cannot be cached, the next run repeats the test.
        let _ = record.save(&file, &escapes, None);
    }
    let proof = Proof { escapes, earlier: false };
    Ok(VerifiedSandbox { mechanisms: mechanisms.clone(), tier, proof })
}

/// Retries a probe that could not start: a path of the layout may be removed before it is mounted, and each attempt builds a new layout.
fn probe_with_retries(
    confinement: &Confinement,
    tier: Tier,
    mechanisms: &Mechanisms,
    scratch: &Path,
    executable: BorrowedFd<'_>,
) -> Result<Vec<Escape>, SandboxRejection> {
    let mut attempts_left = MAX_ATTEMPTS;
    loop {
        attempts_left -= 1;
        match self_test(confinement, tier, mechanisms, scratch, executable) {
            Err(SandboxRejection::Unproven { .. }) if attempts_left > 0 => {}
            result => return result,
        }
    }
}

/// Returns whether a mechanism of this machine should have stopped an escape. The report lists safeguards without a mechanism as open;
/// they are no reason to reject a best-effort policy.
fn is_enforceable(landlock: i32, tier: Tier, safeguard: SafeguardName) -> bool {
    match (safeguard, tier) {
        (SafeguardName::UnixSockets, _) | (SafeguardName::Processes, Tier::Rules) => landlock >= 6,
        (SafeguardName::Writes | SafeguardName::HiddenPaths, Tier::Rules) => landlock > 0,
        _ => true,
    }
}

/// Runs a probe in the sandbox of a policy and returns its escape attempts.
pub fn self_test(
    confinement: &Confinement,
    tier: Tier,
    mechanisms: &Mechanisms,
    scratch: &Path,
    executable: BorrowedFd<'_>,
) -> Result<Vec<Escape>, SandboxRejection> {
    let unproven = |error: io::Error| SandboxRejection::Unproven { why: error.to_string() };
    let targets = ProbeTargets::create(scratch, confinement, executable)
        .map_err(|error| unproven(regular_file::name_culprit(scratch, error)))?;
    let plan = serde_json::to_string(&targets.probe_plan(tier, confinement))
        .map_err(|error| unproven(error.into()))?;
    let probed = targets.add_to_policy(confinement);
    // The launcher's own executable, whatever its path is inside of the sandbox.
    let program = PathBuf::from("/proc/self/exe");
    let command = SandboxedCommand {
        confinement: &probed,
        program: &program,
        args: &[PROBE_ARGUMENT.to_owned(), plan],
        env: BTreeMap::new(),
        cwd: &targets.workspace(),
        repositories: &NestedRepositories::find(&probed),
        others: None,
        temporary: Some(&targets.directory.join("temporary")),
        executable,
    };
    // No cgroup: the namespace kills the probe's processes.
    let mechanisms = Mechanisms { cgroup: None, ..mechanisms.clone() };
    let proof = Proof { escapes: Vec::new(), earlier: false };
    let prepared = prepare(&command, VerifiedSandbox { mechanisms, tier, proof })?;
    // The probe's policy includes the roots of the real call, in which nothing is moved.
    let quarantine = prepared.quarantine.below(&targets.directory);
    let mut escapes = run_probe(prepared, tier)?;
    let directory = fs::File::open(&targets.directory).map_err(unproven)?;
    let store = QuarantineStore { directory: directory.as_fd(), path: &targets.directory, mark: "probe" };
    let quarantined = quarantine.sweep(&HeldRoots::default(), store, |_| ());
    targets.examine(&quarantined, &mut escapes);
    Ok(escapes)
}

fn run_probe(prepared: PreparedSandbox, tier: Tier) -> Result<Vec<Escape>, SandboxRejection> {
    let unproven = |why: String| SandboxRejection::Unproven { why };
    let mut child = spawn_probe(&prepared).map_err(|error| unproven(error.to_string()))?;
    drop(prepared.inherited);
    let mut output = ProbeOutput::default();
    let is_done = output.read_until(&mut child, |text| text.ends_with(&format!("{DONE}\n")));
    // SIGKILL, as abrupt as the death of a supervisor.
    let _ = child.kill();
    let all_exited = tier != Tier::Namespaces || output.read_until_closed(&mut child);
    let _ = child.wait();
    let mut error_output = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // All writers have exited, or the one that lingers writes nothing.
        let _ = stderr.read_to_string(&mut error_output);
    }
    let mut escapes: Vec<Escape> =
        output.text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !is_done || escapes.is_empty() {
        let last = output.text.lines().last().filter(|line| !line.starts_with('{')).unwrap_or_default();
        let why = [error_output.trim(), last, "the probe did not finish"];
        return Err(unproven(why.into_iter().find(|why| !why.is_empty()).unwrap_or_default().to_owned()));
    }
    if tier == Tier::Namespaces {
        let said =
            if all_exited { "killed with the sandbox" } else { "still running after the kill" }.to_owned();
        let (tried, safeguard) = ("outlive the kill".to_owned(), SafeguardName::Lifetime);
        escapes.push(Escape { tried, safeguard, stopped: all_exited, said });
    }
    Ok(escapes)
}

#[expect(clippy::disallowed_methods, reason = "the one place where a probe is started")]
fn spawn_probe(prepared: &PreparedSandbox) -> io::Result<Child> {
    Command::new(&prepared.program)
        .args(&prepared.args)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// The stdout of a probe.
#[derive(Default)]
struct ProbeOutput {
    text: String,
    is_closed: bool,
}

impl ProbeOutput {
    /// Reads until the output is complete. Returns whether it is.
    fn read_until(&mut self, child: &mut Child, is_complete: impl Fn(&str) -> bool) -> bool {
        let deadline = Instant::now() + PROBE_TIMEOUT;
        while !is_complete(&self.text) && !self.is_closed && Instant::now() < deadline {
            self.read_chunk(child);
        }
        is_complete(&self.text)
    }

    /// Reads until all processes have closed the pipe. Returns whether they have.
    fn read_until_closed(&mut self, child: &mut Child) -> bool {
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while !self.is_closed && Instant::now() < deadline {
            self.read_chunk(child);
        }
        self.is_closed
    }

    fn read_chunk(&mut self, child: &mut Child) {
        let Some(stdout) = child.stdout.as_mut() else {
            self.is_closed = true;
            return;
        };
        let mut files = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if !matches!(poll(&mut files, Some(&timeout)), Ok(count) if count > 0) {
            return;
        }
        let mut buffer = [0; 4096];
        match stdout.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => self.is_closed = true,
            Ok(count) => self.text.push_str(&String::from_utf8_lossy(&buffer[..count])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safeguard_is_enforceable_if_the_kernel_supports_it() {
        use SafeguardName::{HiddenPaths, Lifetime, Network, Processes, UnixSockets, Writes};
        let all = [Writes, HiddenPaths, Processes, UnixSockets, Network, Lifetime];
        let open = |landlock, tier| -> Vec<SafeguardName> {
            all.into_iter().filter(|safeguard| !is_enforceable(landlock, tier, *safeguard)).collect()
        };
        assert_eq!(open(7, Tier::Namespaces), []);
        assert_eq!(open(0, Tier::Namespaces), [UnixSockets]);
        assert_eq!(open(7, Tier::Rules), []);
        assert_eq!(open(3, Tier::Rules), [Processes, UnixSockets]);
        assert_eq!(open(0, Tier::Rules), [Writes, HiddenPaths, Processes, UnixSockets]);
    }
}
