//! A campaign: confined runs swap, link and rename everything they can in a shared repository, while other runs start
//! in it.
//!
//! Each started run tries the whole list of escapes. None may read or write anything outside, whichever runs it started
//! beside, and when all runs have ended, none has left a protected path that was missing before. Takes two seconds in
//! the test suite; `just attack MINUTES` runs it longer.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use model::{
    CallPolicy, Confinement, End, NotStartedReason, PolicyRoot, Preset, Requirement, RunLifetime, RunPlan,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mkdirat, mknodat, openat, renameat_with};
use supervisor::{Run, Supervisor};

use crate::attempts::{Results, TRY, Targets};
use crate::escapes;
use crate::harness::Harness;

testkit::tests![run_beside_swapping_runs_does_not_escape];

/// The first argument that makes this binary swap paths until it is stopped.
const SWAP: &str = "--swap-paths";
/// The duration of the campaign in seconds.
const SECONDS: &str = "ATTACK_SECONDS";
/// The duration of one swapping run. Its permissions depend on the files at its start.
const SWAPPING_FOR: Duration = Duration::from_millis(1500);
/// The number of concurrent swapping runs.
const SWAPPING_RUNS: usize = 2;

/// The paths that are swapped in the workspace: working directories of other runs, and paths that are protected if they
/// exist.
const PATHS: [&str; 18] = [
    "inner",
    "inner/deep",
    "a",
    "a/b",
    "a/b/c",
    "deploy",
    "deploy/secrets",
    ".git",
    ".git/modules",
    ".git/modules/lib",
    ".git/worktrees",
    ".git/info",
    ".git/index",
    ".vscode",
    ".claude",
    ".envrc",
    "spare",
    "spare/one",
];

/// The paths that no run may leave behind, since they were missing when the first one started. None in `.git`, which a
/// run without namespaces may rename.
const PLANTS: [&str; 4] = [".vscode", ".claude", ".envrc", ".mcp.json"];

/// The working directories of the started runs, relative to the workspace.
const WORKSPACES: [&str; 4] = ["", "inner", "a/b", "deploy"];

pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != SWAP {
        return None;
    }
    let workspace = PathBuf::from(args.next()?);
    let mut dice = Dice(args.next()?.parse().ok()?);
    let targets: Vec<PathBuf> = args.map(PathBuf::from).collect();
    loop {
        swap(&workspace, &targets, &mut dice);
    }
}

/// A deterministic pseudo-random number generator.
struct Dice(u64);

impl Dice {
    fn next_below(&mut self, count: usize) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % count as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.next_below(list.len())]
    }
}

/// Performs one random operation on the workspace. Most fail, because the paths keep changing.
fn swap(workspace: &Path, targets: &[PathBuf], dice: &mut Dice) {
    let (one, other) = (workspace.join(dice.pick(&PATHS)), workspace.join(dice.pick(&PATHS)));
    let aside = workspace.join(format!("aside-{}", std::process::id()));
    let exchange =
        |one: &Path, other: &Path| renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok();
    match dice.next_below(10) {
        // Swap with a link and back, as fast as possible.
        0..=3 => {
            let _ = symlink(dice.pick(targets), &aside);
            for _ in 0..200 {
                exchange(&one, &aside);
            }
        }
        4 => drop(exchange(&one, &other)),
        5 => drop(fs::rename(&one, &other)),
        6 => drop(fs::create_dir_all(&one)),
        7 => drop(write_without_waiting(&one)),
        8 => drop(mknodat(CWD, &one, FileType::Fifo, Mode::RWXU, 0)),
        _ => drop(fs::remove_file(&one).or_else(|_| fs::remove_dir(&one))),
    }
}

/// Opens a path that may be a FIFO without a reader.
fn write_without_waiting(path: &Path) -> io::Result<()> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)?.write_all(b"x")
}

fn run_beside_swapping_runs_does_not_escape() {
    let seconds = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(2);
    let time = Duration::from_secs(seconds);
    Harness::run_test_within(time + Duration::from_mins(3), async |harness: &Harness| {
        let mut campaign = Campaign::prepare(harness);
        let until = Instant::now() + time;
        // Some runs have started, however busy the machine is.
        while Instant::now() < until || campaign.started == 0 {
            campaign.keep_swapping().await;
            campaign.start_one().await;
        }
        campaign.stop().await;
        let Campaign { started, refused, .. } = campaign;
        println!("{started} runs tried to break out beside swapping ones, {refused} were refused");
    });
}

struct Campaign<'a> {
    harness: &'a Harness,
    supervisor: Supervisor,
    dice: Dice,
    swapping: Vec<(Run, Instant)>,
    number: u32,
    started: u32,
    refused: u32,
    victim: Child,
    sockets: [UnixListener; 2],
}

impl<'a> Campaign<'a> {
    fn prepare(harness: &'a Harness) -> Self {
        fs::create_dir(harness.path("state/run")).unwrap();
        let sockets = ["home/outside/s", "state/run/daemon.sock"]
            .map(|name| UnixListener::bind(harness.path(name)).unwrap());
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
        }
        fs::create_dir_all(harness.workspace().join("deploy/secrets")).unwrap();
        fs::write(harness.workspace().join("deploy/secrets/sealed"), "as it was").unwrap();
        // Exits with this process, however that exits.
        let mut victim = Command::new("/bin/cat");
        let victim =
            victim.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() | 1;
        println!("seed {seed}");
        Self {
            harness,
            supervisor: Supervisor::this_program().unwrap(),
            dice: Dice(seed),
            swapping: Vec::new(),
            number: 0,
            started: 0,
            refused: 0,
            victim,
            sockets,
        }
    }

    fn confinement(&self, preset: Preset) -> Confinement {
        let policy = CallPolicy { requirement: Requirement::BestEffort, ..preset.into() };
        let mut confinement = self.harness.confinement(policy);
        confinement.hidden.push(self.harness.workspace().join("deploy/secrets"));
        confinement
    }

    fn next_spool(&mut self) -> PathBuf {
        self.number += 1;
        self.harness.path(&format!("state/run-{}", self.number))
    }

    /// Replaces the swapping runs that have reached their duration.
    async fn keep_swapping(&mut self) {
        let (due, kept) = self.swapping.drain(..).partition(|(_, until)| *until < Instant::now());
        self.swapping = kept;
        end_all(due).await;
        while self.swapping.len() < SWAPPING_RUNS {
            self.recreate_directories();
            let targets =
                ["home/.ssh", "home", "home/outside", "state", "state/run", "home/shop/deploy/secrets", ""];
            let targets = targets.map(|name| self.harness.path(name).display().to_string());
            let (workspace, seed) = (self.harness.workspace().display().to_string(), self.dice.0.to_string());
            let args: Vec<&str> =
                [SWAP, &workspace, &seed].into_iter().chain(targets.iter().map(String::as_str)).collect();
            let plan = self.harness.plan(self.confinement(Preset::Workspace), &args);
            let plan = RunPlan { lifetime: RunLifetime::BoundToStarter, ..plan };
            let spool = self.next_spool();
            let run = self.supervisor.start(&spool, &plan).await.unwrap();
            self.swapping.push((run, Instant::now() + SWAPPING_FOR));
            self.dice.next_below(1);
        }
    }

    /// Recreates the directories that a run needs to start, after a swap has removed them.
    fn recreate_directories(&self) {
        for name in WORKSPACES.into_iter().chain([".git/hooks"]) {
            let _ = make_directories(&self.harness.workspace(), name);
        }
    }

    /// Starts a run somewhere in the workspace, lets it try all escapes, and checks the result.
    async fn start_one(&mut self) {
        self.recreate_directories();
        let (shop, outside) = (self.harness.workspace(), self.harness.path("home/outside"));
        let workspace = shop.join(self.dice.pick(&WORKSPACES));
        let preset = *self.dice.pick(&[Preset::Workspace, Preset::Workspace, Preset::Observe]);
        let namespaces = self.dice.next_below(4) > 0;
        let mut confinement = Confinement { namespaces, ..self.confinement(preset) };
        confinement.bounds.file_bytes = Some(1 << 20);
        for root in confinement.roots.iter_mut().filter(|root| root.path == shop) {
            root.path.clone_from(&workspace);
        }
        confinement.roots.push(PolicyRoot::read_only(&outside));
        let spool = self.next_spool();
        let targets = Targets {
            workspace: workspace.clone(),
            outside,
            key: self.harness.path("home/.ssh/id"),
            sealed: namespaces.then(|| shop.join("deploy/secrets/sealed")),
            database: self.harness.path("state/database"),
            state: self.harness.path("state/run"),
            victim: i32::try_from(self.victim.id()).unwrap(),
            socket: self.harness.path("state/run/daemon.sock"),
            abstract_socket: "switchboard-attack-nobody".to_owned(),
            port: 9,
            spool: spool.clone(),
        };
        let mut plan = self.harness.plan(confinement, &[TRY, &serde_json::to_string(&targets).unwrap()]);
        plan.cwd = workspace;
        let report = self.supervisor.start(&spool, &plan).await.unwrap().wait().await.unwrap();
        if let End::NotStarted(failure) = &report.end {
            let expected = [
                NotStartedReason::NotConfined,
                NotStartedReason::CwdMissing,
                NotStartedReason::CwdNotADirectory,
                NotStartedReason::CwdForbidden,
                // A file in place of a parent directory.
                NotStartedReason::Other,
            ];
            assert!(expected.contains(&failure.reason), "{failure}");
            self.refused += 1;
        } else if matches!(report.end, End::PolicyViolation { .. }) {
            // A run without namespaces has removed a file of git, and this one tried to create it.
            self.refused += 1;
        } else {
            let output = fs::read_to_string(spool.join("output")).unwrap();
            let results: Results =
                serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {report:?}"));
            let is_escape = |(name, stopped): &(&String, &Option<String>)| {
                stopped.is_none() && !escapes::is_open_beside_others(name, namespaces)
            };
            let worked: Vec<&String> = results.iter().filter(is_escape).map(|(name, _)| name).collect();
            assert!(worked.is_empty(), "{worked:?} in {plan:?}");
            self.started += 1;
        }
        self.verify();
        fs::remove_dir_all(&spool).unwrap();
    }

    /// Checks from outside that nothing has changed.
    fn verify(&mut self) {
        for name in ["home/.ssh/id", "home/outside/file", "state/database"] {
            assert_eq!(fs::read_to_string(self.harness.path(name)).unwrap(), "as it was", "{name}");
        }
        for (name, count) in [("home/.ssh", 1), ("home/outside", 2), ("state/run", 1)] {
            assert_eq!(fs::read_dir(self.harness.path(name)).unwrap().count(), count, "{name}");
        }
        // Without namespaces, sockets in the file system can be reached.
        assert!(self.victim.try_wait().unwrap().is_none(), "the victim was killed");
    }

    async fn stop(&mut self) {
        end_all(std::mem::take(&mut self.swapping)).await;
        self.verify();
        let left = PLANTS.map(|name| self.harness.workspace().join(name));
        let left: Vec<_> = left.iter().filter(|path| path.symlink_metadata().is_ok()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        self.victim.kill().unwrap();
        self.victim.wait().unwrap();
        let _ = &self.sockets;
    }
}

/// Creates nested directories without following a link that a run has just created there.
fn make_directories(base: &Path, below: &str) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let mut directory = openat(CWD, base, flags, Mode::empty())?;
    for name in below.split('/').filter(|name| !name.is_empty()) {
        let _ = mkdirat(&directory, name, Mode::RWXU);
        directory = openat(&directory, name, flags, Mode::empty())?;
    }
    Ok(())
}

async fn end_all(runs: Vec<(Run, Instant)>) {
    for (run, _) in runs {
        run.stop().unwrap();
        let spool = run.spool().directory().to_owned();
        run.wait().await.unwrap();
        fs::remove_dir_all(spool).unwrap();
    }
}
