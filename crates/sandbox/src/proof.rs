//! Proving that a sandbox holds, before anything is run in it.
//!
//! A stage is set outside (a file that must not change, a secret, sockets, a process), the probe is let loose in the very
//! sandbox of the policy, and then it is looked what has become of the stage. A probe that was not stopped fails the
//! sandbox closed. What was proven is kept for as long as nothing changes: the boot, the programs, the kind of the policy.

mod record;
mod stage;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Confinement, Escape, Proof, Requirement, SafeguardName};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::machine::{Machine, Tier};
use crate::nested::NestedRepositories;
use crate::prepare::{Job, Prepared, Refusal, prepare};
use crate::probe::{DONE, PROBE};
use crate::quarantine::{HeldRoots, QuarantineStore};
use record::{Found, Record};
use stage::Stage;

/// How long a probe may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a process will be confined, proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// With what there is here.
    pub machine: Machine,
    /// By what.
    pub tier: Tier,
    /// What the probe came to.
    pub proof: Proof,
}

/// Decides how a policy is enforced on this machine, and proves it; or says why nothing is to be run.
///
/// `scratch` is the directory for the probe's files; `search_path` is the `PATH` in which bubblewrap is looked up.
pub fn settle(
    confinement: &Confinement,
    scratch: &Path,
    executable: BorrowedFd<'_>,
    search_path: &str,
) -> Result<Settled, Refusal> {
    let machine = &Machine::look(search_path);
    let missing = machine.missing_for(confinement);
    let required = confinement.requirement == Requirement::Require;
    let unbounded = machine.missing_for_bounds(confinement.bounds, rustix::process::geteuid().is_root());
    if required && !unbounded.is_empty() {
        return Err(Refusal::Missing { what: unbounded });
    }
    if missing.is_empty() {
        match proven(confinement, Tier::Namespaces, machine, scratch, executable) {
            Err(Refusal::Unproven { why }) if !required => {
                // Bubblewrap is there and does not work: no user namespaces, most likely.
                drop(why);
            }
            other => return other,
        }
    } else if required {
        return Err(Refusal::Missing { what: missing });
    }
    if machine.bubblewrap.is_some() && confinement.namespaces && !missing.is_empty() {
        // Namespaces hold without Landlock too, all but what it alone holds.
        if let Ok(settled) = proven(confinement, Tier::Namespaces, machine, scratch, executable) {
            return Ok(settled);
        }
    }
    // Landlock takes nothing away below a directory that is allowed.
    let mut given = confinement.roots.iter().map(|root| &root.path);
    if let Some(around) = given.find(|root| scratch.starts_with(root)) {
        return Err(Refusal::StateInWorkspace { state: scratch.to_owned(), workspace: around.clone() });
    }
    proven(confinement, Tier::Rules, machine, scratch, executable)
}

fn proven(
    confinement: &Confinement,
    tier: Tier,
    machine: &Machine,
    scratch: &Path,
    executable: BorrowedFd<'_>,
) -> Result<Settled, Refusal> {
    let record = Record::of(confinement, tier, machine, executable);
    let kept = confinement.proofs.as_deref().map(|folder| folder.join(record.file_name()));
    let best_effort = confinement.requirement == Requirement::BestEffort;
    match kept.as_deref().and_then(|kept| record.read(kept)) {
        Some(Found::Proof(escapes)) => {
            return Ok(Settled { machine: machine.clone(), tier, proof: Proof { escapes, earlier: true } });
        }
        Some(Found::Unproven(why)) if best_effort => return Err(Refusal::Unproven { why }),
        _ => {}
    }
    let escapes = match proven_at_last(confinement, tier, machine, scratch, executable) {
        Err(Refusal::Unproven { why }) => {
            // Or every run would try in vain before it falls back to what works.
            let _ = kept.filter(|_| best_effort).map(|kept| record.keep(&kept, &[], Some(&why)));
            return Err(Refusal::Unproven { why });
        }
        escapes => escapes?,
    };
    let must_hold = |safeguard| confinement.must_hold.contains(&safeguard);
    let open = |escape: &&Escape| {
        !escape.stopped
            && (answers_for(machine.landlock, tier, escape.safeguard) || must_hold(escape.safeguard))
    };
    let worked: Vec<Escape> = escapes.iter().filter(open).cloned().collect();
    if !worked.is_empty() {
        return Err(Refusal::Escaped { escapes: worked });
    }
    if let Some(kept) = kept {
        // A proof that cannot be kept is made again.
        let _ = record.keep(&kept, &escapes, None);
    }
    Ok(Settled { machine: machine.clone(), tier, proof: Proof { escapes, earlier: false } })
}

/// What was there when a sandbox was laid out may be gone when it is mounted; then it is laid out anew.
fn proven_at_last(
    confinement: &Confinement,
    tier: Tier,
    machine: &Machine,
    scratch: &Path,
    executable: BorrowedFd<'_>,
) -> Result<Vec<Escape>, Refusal> {
    let mut tries_left = 10;
    loop {
        tries_left -= 1;
        match prove(confinement, tier, machine, scratch, executable) {
            Err(Refusal::Unproven { .. }) if tries_left > 0 => {}
            other => return other,
        }
    }
}

/// Whether there is anything that should have stopped an escape. What nothing answers for stands in the report as open, and is
/// no reason to run nothing where the machine is to do what it can.
fn answers_for(landlock: i32, tier: Tier, safeguard: SafeguardName) -> bool {
    match (safeguard, tier) {
        (SafeguardName::UnixSockets, _) | (SafeguardName::Processes, Tier::Rules) => landlock >= 6,
        (SafeguardName::Writes | SafeguardName::HiddenPaths, Tier::Rules) => landlock > 0,
        _ => true,
    }
}

/// Lets a probe loose in the sandbox of a policy, and says what it came to.
pub fn prove(
    confinement: &Confinement,
    tier: Tier,
    machine: &Machine,
    scratch: &Path,
    executable: BorrowedFd<'_>,
) -> Result<Vec<Escape>, Refusal> {
    let unproven = |error: io::Error| Refusal::Unproven { why: error.to_string() };
    let stage = Stage::set(scratch, confinement, executable).map_err(unproven)?;
    let errand =
        serde_json::to_string(&stage.errand(tier, confinement)).map_err(|error| unproven(error.into()))?;
    let probed = stage.confinement(confinement);
    // What the one inside is itself, whatever its file is called there.
    let program = PathBuf::from("/proc/self/exe");
    let job = Job {
        confinement: &probed,
        program: &program,
        args: &[PROBE.to_owned(), errand],
        env: BTreeMap::new(),
        cwd: &stage.workspace(),
        repositories: &NestedRepositories::find(&probed),
        others: None,
        temporary: Some(&stage.folder.join("temporary")),
        executable,
    };
    // The probe is ended by its namespace; a cgroup is what it would take to end it otherwise.
    let machine = Machine { cgroup: None, ..machine.clone() };
    let settled = Settled { machine, tier, proof: Proof { escapes: Vec::new(), earlier: false } };
    let prepared = prepare(&job, settled)?;
    // The probe has the folders of the real call too, and nothing of those is to be moved.
    let quarantine = prepared.quarantine.below(&stage.folder);
    let mut escapes = let_loose(prepared, tier)?;
    let directory = fs::File::open(&stage.folder).map_err(unproven)?;
    let store = QuarantineStore { directory: directory.as_fd(), path: &stage.folder, mark: "probe" };
    let quarantined = quarantine.sweep(&HeldRoots::default(), store, |_| ());
    stage.judge(&quarantined, &mut escapes);
    Ok(escapes)
}

fn let_loose(prepared: Prepared, tier: Tier) -> Result<Vec<Escape>, Refusal> {
    let unproven = |why: String| Refusal::Unproven { why };
    let mut child = start(&prepared).map_err(|error| unproven(error.to_string()))?;
    drop(prepared.inherited);
    let mut said = Said::default();
    let heard = said.until(&mut child, |text| text.ends_with(&format!("{DONE}\n")));
    // As abruptly as a supervisor may go.
    let _ = child.kill();
    let gone = tier != Tier::Namespaces || said.until_closed(&mut child);
    let _ = child.wait();
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // Nobody writes any more, or it is one that lingers and writes nothing.
        let _ = stderr.read_to_string(&mut complaint);
    }
    let mut escapes: Vec<Escape> =
        said.text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !heard || escapes.is_empty() {
        let last = said.text.lines().last().filter(|line| !line.starts_with('{')).unwrap_or_default();
        let why = [complaint.trim(), last, "the probe did not come to its end"];
        return Err(unproven(why.into_iter().find(|why| !why.is_empty()).unwrap_or_default().to_owned()));
    }
    if tier == Tier::Namespaces {
        let said = if gone { "gone with the kill" } else { "still there after the kill" }.to_owned();
        let (tried, safeguard) = ("outlive the kill".to_owned(), SafeguardName::Lifetime);
        escapes.push(Escape { tried, safeguard, stopped: gone, said });
    }
    Ok(escapes)
}

#[expect(clippy::disallowed_methods, reason = "the one place where a probe is started")]
fn start(prepared: &Prepared) -> io::Result<Child> {
    Command::new(&prepared.program)
        .args(&prepared.args)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// What a probe has said.
#[derive(Default)]
struct Said {
    text: String,
    closed: bool,
}

impl Said {
    /// Listens until it has said enough. True: it has.
    fn until(&mut self, child: &mut Child, enough: impl Fn(&str) -> bool) -> bool {
        let give_up_at = Instant::now() + PATIENCE;
        while !enough(&self.text) && !self.closed && Instant::now() < give_up_at {
            self.hear(child);
        }
        enough(&self.text)
    }

    /// Listens until nobody holds the other end. True: so it is.
    fn until_closed(&mut self, child: &mut Child) -> bool {
        let give_up_at = Instant::now() + Duration::from_secs(10);
        while !self.closed && Instant::now() < give_up_at {
            self.hear(child);
        }
        self.closed
    }

    fn hear(&mut self, child: &mut Child) {
        let Some(stdout) = child.stdout.as_mut() else {
            self.closed = true;
            return;
        };
        let mut files = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)];
        let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if !matches!(poll(&mut files, Some(&pause)), Ok(count) if count > 0) {
            return;
        }
        let mut piece = [0; 4096];
        match stdout.read(&mut piece) {
            Ok(0) | Err(_) => self.closed = true,
            Ok(count) => self.text.push_str(&String::from_utf8_lossy(&piece[..count])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_has_no_means_for_is_open_and_what_it_has_means_for_must_hold() {
        use SafeguardName::{HiddenPaths, Lifetime, Network, Processes, UnixSockets, Writes};
        let all = [Writes, HiddenPaths, Processes, UnixSockets, Network, Lifetime];
        let open = |landlock, tier| -> Vec<SafeguardName> {
            all.into_iter().filter(|safeguard| !answers_for(landlock, tier, *safeguard)).collect()
        };
        assert_eq!(open(7, Tier::Namespaces), []);
        assert_eq!(open(0, Tier::Namespaces), [UnixSockets]);
        assert_eq!(open(7, Tier::Rules), []);
        assert_eq!(open(3, Tier::Rules), [Processes, UnixSockets]);
        assert_eq!(open(0, Tier::Rules), [Writes, HiddenPaths, Processes, UnixSockets]);
    }
}
