//! Proving that a sandbox holds, before anything is run in it.
//!
//! A stage is set outside (a file that must not change, a secret, sockets, a process), the probe is let loose in the very
//! sandbox of the policy, and then it is looked what has become of the stage. A probe that was not stopped fails the
//! sandbox closed. What was proven is kept for as long as nothing changes: the boot, the programs, the kind of the policy.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{
    AgentState, Confinement, Escape, HomeView, IfCreated, KeptPath, Network, Proof, Protected, Quarantined,
    Requirement, Root, SafeguardName,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Tier};
use crate::nested::NestedRepositories;
use crate::prepare::{Job, Prepared, Refusal, prepare};
use crate::probe::{DONE, EXPOSED, Errand, PLANTED, PLANTED_IN_STATE, PROBE, STATE_KEPT, VICTIM};
use crate::quarantine::{HeldRoots, QuarantineStore};
use crate::sockets::Address;

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

/// What a proof is valid for.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Record {
    boot: String,
    kernel: String,
    user: u32,
    bubblewrap: Option<String>,
    landlock: i32,
    executable: String,
    tier: String,
    kind: String,
    /// What the kernel says about who may make namespaces.
    #[serde(default)]
    namespaces: String,
    #[serde(default)]
    escapes: Vec<Escape>,
    /// Why it could not be proven, when that is what is known.
    #[serde(default)]
    unproven: Option<String>,
}

/// What is known from earlier.
enum Found {
    Proof(Vec<Escape>),
    Unproven(String),
}

/// For how long it is believed that nothing could be proven: somebody may mend it.
const UNPROVEN_FOR: Duration = Duration::from_mins(10);

/// What decides whether namespaces can be made; a change of it is a reason to try again.
const NAMESPACES: [&str; 3] = [
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
];

impl Record {
    fn of(confinement: &Confinement, tier: Tier, machine: &Machine, executable: BorrowedFd<'_>) -> Self {
        let text = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        let looks = |path: &Path| {
            let file = fs::metadata(path).ok()?;
            // Not when its inode changed: a link to it is no other program.
            let times = (file.mtime(), file.mtime_nsec());
            Some(format!("{}:{}:{}:{times:?}", file.dev(), file.ino(), file.len()))
        };
        let opened = PathBuf::from(format!("/proc/self/fd/{}", executable.as_raw_fd()));
        let Confinement { preset, requirement, must_hold, network, unix_sockets, bounds, .. } = confinement;
        // Whichever hosts are named, the namespace is the same.
        let reach = match network {
            Network::Full => "full",
            Network::None => "none",
            Network::Hosts(_) => "hosts",
        };
        Self {
            boot: text("/proc/sys/kernel/random/boot_id"),
            kernel: text("/proc/sys/kernel/version"),
            user: rustix::process::geteuid().as_raw(),
            bubblewrap: machine.bubblewrap.as_deref().and_then(looks),
            landlock: machine.landlock,
            executable: looks(&opened).unwrap_or_default(),
            tier: format!("{tier:?}"),
            kind: format!("{preset} {requirement:?} {must_hold:?} {reach} {unix_sockets} {bounds:?}"),
            namespaces: NAMESPACES.map(text).join(" "),
            escapes: Vec::new(),
            unproven: None,
        }
    }

    /// One file for each kind: a newer proof takes the place of one that is not valid any more.
    fn file_name(&self) -> String {
        let word = |text: &str| {
            text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>()
        };
        let mut name = format!("proof-{}-{}-{}", self.user, word(&self.tier), word(&self.kind));
        name.truncate(200);
        name + ".json"
    }

    fn read(&self, kept: &Path) -> Option<Found> {
        let mut found: Self = serde_json::from_slice(&fs::read(kept).ok()?).ok()?;
        let escapes = std::mem::take(&mut found.escapes);
        let unproven = found.unproven.take();
        if found != *self || self.boot.is_empty() || self.executable.is_empty() {
            return None;
        }
        match unproven {
            None => Some(Found::Proof(escapes)),
            Some(why) => {
                let age = fs::metadata(kept).ok()?.modified().ok()?.elapsed().ok()?;
                (age < UNPROVEN_FOR).then_some(Found::Unproven(why))
            }
        }
    }

    fn keep(&self, kept: &Path, escapes: &[Escape], unproven: Option<&str>) -> io::Result<()> {
        if let Some(folder) = kept.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let json = serde_json::to_vec(&Self {
            escapes: escapes.to_vec(),
            unproven: unproven.map(str::to_owned),
            ..serde_json::from_value(serde_json::to_value(self)?)?
        })?;
        // Whole or not at all: others may read it at the same time.
        let next = kept.with_extension(format!("{}.next", std::process::id()));
        fs::write(&next, json)?;
        fs::rename(&next, kept)
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

/// What a probe is to leave alone.
struct Stage {
    folder: PathBuf,
    victim: Child,
    socket: UnixListener,
    /// By which the socket is listed, and so covered.
    _address: Address,
    abstract_name: String,
    abstract_socket: UnixListener,
    listener: Option<TcpListener>,
}

impl Stage {
    fn set(scratch: &Path, confinement: &Confinement, executable: BorrowedFd<'_>) -> io::Result<Self> {
        let id = format!("{}-{}", std::process::id(), Instant::now().elapsed().as_nanos());
        DirBuilder::new().recursive(true).mode(0o700).create(scratch)?;
        let folder = scratch.canonicalize()?.join(format!("probe-{}", std::process::id()));
        // What a killed one of the same number has left.
        let _ = fs::remove_dir_all(&folder);
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o700);
        for name in
            ["outside", "hidden", "workspace/.git/hooks", "workspace/deploy/secrets", "state/rules", "home"]
        {
            make.create(folder.join(name))?;
        }
        let settings = format!("state/{}", PLANTED_IN_STATE[0]);
        for name in ["outside/file", "hidden/secret", "workspace/.git/config", &settings, "home/secret"] {
            fs::write(folder.join(name), "as it was")?;
        }
        fs::write(folder.join("home").join(EXPOSED), "as it was")?;
        let abstract_name = format!("switchboard-probe-{id}");
        let listeners = (|| {
            let address = Address::of(&folder.join("outside/s"))?;
            let socket = UnixListener::bind(&address.path)?;
            let abstract_socket = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&abstract_name)?)?;
            let listener = (confinement.network != Network::Full)
                .then(|| TcpListener::bind("127.0.0.1:0"))
                .transpose()?;
            socket.set_nonblocking(true)?;
            abstract_socket.set_nonblocking(true)?;
            listener.as_ref().map(|listener| listener.set_nonblocking(true)).transpose()?;
            Ok::<_, io::Error>(((socket, address), abstract_socket, listener, victim(executable)?))
        })();
        match listeners {
            Ok(((socket, address), abstract_socket, listener, victim)) => Ok(Self {
                folder,
                victim,
                socket,
                _address: address,
                abstract_name,
                abstract_socket,
                listener,
            }),
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                Err(error)
            }
        }
    }

    fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    fn errand(&self, tier: Tier, confinement: &Confinement) -> Errand {
        // A folder that holds something to be seen is not empty, and this stage stands in one of them perhaps.
        let shows = |path: &Path| {
            self.folder.starts_with(path) || confinement.roots.iter().any(|root| root.path.starts_with(path))
        };
        let dark = confinement.hidden.iter().filter(|path| path.exists() && !shows(path));
        Errand {
            outside: self.folder.join("outside"),
            secret: self.folder.join("hidden/secret"),
            workspace: self.workspace(),
            state: self.folder.join("state"),
            home: self.folder.join("home"),
            hidden: dark.cloned().collect(),
            victim: i32::try_from(self.victim.id()).unwrap_or_default(),
            socket: self.folder.join("outside/s"),
            abstract_socket: self.abstract_name.clone(),
            listener: self.listener.as_ref().and_then(|listener| listener.local_addr().ok()),
            namespaces: tier == Tier::Namespaces,
        }
    }

    fn confinement(&self, policy: &Confinement) -> Confinement {
        let protected = |name: &str, if_created| Protected { path: self.workspace().join(name), if_created };
        let mut probed = policy.clone();
        probed.caches = None;
        probed.home = Some(HomeView {
            directory: self.folder.join("home"),
            exposed: vec![self.folder.join("home").join(EXPOSED)],
            programs: Vec::new(),
            copies: Vec::new(),
        });
        probed.state = Some(AgentState {
            directory: self.folder.join("state"),
            variable: None,
            kept: vec![KeptPath::Directory(STATE_KEPT.into())],
            discarded: Vec::new(),
        });
        probed.roots.extend([Root::read(self.folder.join("outside")), Root::write(self.workspace())]);
        probed.hidden.extend([self.folder.join("hidden"), self.workspace().join("deploy/secrets")]);
        probed.protected.extend([
            protected(".git/hooks", IfCreated::QuarantineAtOnce),
            protected(".git/config", IfCreated::QuarantineAtOnce),
            protected(PLANTED[0], IfCreated::QuarantineAtEnd),
            protected(PLANTED[1], IfCreated::QuarantineAtOnce),
        ]);
        probed
    }

    /// Looks at what has become of the stage, whatever the probe has said.
    fn judge(mut self, quarantined: &[Quarantined], escapes: &mut Vec<Escape>) {
        let is_gone = |name: &&str| {
            let path = self.workspace().join(name);
            let was_moved = |entry: &Quarantined| entry.path == path && entry.moved_to.is_some();
            fs::symlink_metadata(&path).is_err() && quarantined.iter().any(was_moved)
        };
        let (tried, safeguard) = ("leave a protected file".to_owned(), SafeguardName::ProtectedPaths);
        let stopped = PLANTED.iter().all(is_gone);
        let said = if stopped { "moved to quarantine" } else { "still there after the run" }.to_owned();
        escapes.push(Escape { tried, safeguard, stopped, said });
        let mut seen = |happened: bool, tried: &str, safeguard| {
            if happened {
                let said = "seen from outside".to_owned();
                escapes.push(Escape { tried: tried.to_owned(), safeguard, stopped: false, said });
            }
        };
        let changed =
            |name: &str| fs::read(self.folder.join(name)).map_or(true, |bytes| bytes != b"as it was");
        seen(
            self.folder.join("outside/written").exists() || changed("outside/file"),
            "write outside",
            SafeguardName::Writes,
        );
        let planted =
            self.folder.join("workspace/.git/hooks/pre-commit").exists() || changed("workspace/.git/config");
        seen(planted, "plant a protected path", SafeguardName::ProtectedPaths);
        let [settings, new @ ..] = PLANTED_IN_STATE.map(|name| format!("state/{name}"));
        let planted = changed(&settings) || new.iter().any(|name| self.folder.join(name).exists());
        seen(planted, "plant something in the agent's state", SafeguardName::Writes);
        seen(!matches!(self.victim.try_wait(), Ok(None)), "kill a process outside", SafeguardName::Processes);
        seen(
            self.socket.accept().is_ok(),
            "connect to a socket in the file system",
            SafeguardName::UnixSockets,
        );
        seen(
            self.abstract_socket.accept().is_ok(),
            "connect to an abstract socket",
            SafeguardName::UnixSockets,
        );
        let reached = self.listener.as_ref().is_some_and(|listener| listener.accept().is_ok());
        seen(reached, "connect to a port outside", SafeguardName::Network);
    }
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

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where a probe and its victim are started")]
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

#[expect(clippy::disallowed_methods, reason = "the one place where a probe and its victim are started")]
fn victim(executable: BorrowedFd<'_>) -> io::Result<Child> {
    Command::new(format!("/proc/self/fd/{}", executable.as_raw_fd()))
        .args([PROBE, VICTIM])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
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

    fn record() -> Record {
        let text = |word: &str| word.to_owned();
        Record {
            boot: text("boot"),
            kernel: text("kernel"),
            user: 1,
            bubblewrap: None,
            landlock: 7,
            executable: text("executable"),
            tier: text("Namespaces"),
            kind: text("workspace"),
            namespaces: text("0"),
            escapes: Vec::new(),
            unproven: None,
        }
    }

    #[test]
    fn that_nothing_could_be_proven_is_believed_for_a_while_and_until_something_changes() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("proof.json");
        record().keep(&kept, &[], Some("no namespaces")).unwrap();
        assert!(matches!(record().read(&kept), Some(Found::Unproven(why)) if why == "no namespaces"));
        let mended = Record { namespaces: "15000".to_owned(), ..record() };
        assert!(mended.read(&kept).is_none());
        let file = fs::File::open(&kept).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * UNPROVEN_FOR).unwrap();
        assert!(record().read(&kept).is_none());
        record().keep(&kept, &[], None).unwrap();
        assert!(matches!(record().read(&kept), Some(Found::Proof(_))));
    }

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
