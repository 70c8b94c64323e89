//! A campaign: confined runs swap, link and rename everything in a shared repository that they may, while other runs start in it.
//!
//! Each started run tries the whole list of escapes. Nothing outside may be read or written, whichever of the two it started beside, and
//! when all runs are over, none of them has left a protected path that was missing. Takes two seconds among the tests; `just attack
//! MINUTES` gives it longer.

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

use crate::escapes;
use crate::scene::Scene;
use crate::tries::{Results, TRY, Targets};

crate::tests![run_beside_swapping_runs_does_not_escape];

/// The first argument that makes this binary swap paths until it is stopped.
const SWAP: &str = "--swap-paths";
/// For how many seconds the campaign goes on.
const SECONDS: &str = "ATTACK_SECONDS";
/// For how long one swapping run lasts. Its rights depend on the files at its start.
const SWAPPING_FOR: Duration = Duration::from_millis(1500);
/// How many runs swap at the same time.
const SWAPPING_RUNS: usize = 2;

/// What is swapped in the workspace: directories that others work in, and paths that are protected when they are there.
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

/// What no run may leave behind: it was missing when the first one started. Nothing in `.git`, which a run without namespaces may rename.
const PLANTS: [&str; 4] = [".vscode", ".claude", ".envrc", ".mcp.json"];

/// Where runs start, relative to the workspace.
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

/// Numbers that look random, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % count as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Does one thing to the workspace. Most of them fail, for the paths are never as they were.
fn swap(workspace: &Path, targets: &[PathBuf], dice: &mut Dice) {
    let (one, other) = (workspace.join(dice.pick(&PATHS)), workspace.join(dice.pick(&PATHS)));
    let aside = workspace.join(format!("aside-{}", std::process::id()));
    let exchange =
        |one: &Path, other: &Path| renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok();
    match dice.below(10) {
        // Back and forth with a link, as tightly as can be.
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

/// A FIFO may be there, and nobody reads from it.
fn write_without_waiting(path: &Path) -> io::Result<()> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)?.write_all(b"x")
}

fn run_beside_swapping_runs_does_not_escape() {
    let seconds = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(2);
    let time = Duration::from_secs(seconds);
    Scene::play_within(time + Duration::from_mins(3), async |scene: &Scene| {
        let mut campaign = Campaign::prepare(scene);
        let until = Instant::now() + time;
        // Whatever the machine is busy with, some have started.
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
    scene: &'a Scene,
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
    fn prepare(scene: &'a Scene) -> Self {
        fs::create_dir(scene.path("state/run")).unwrap();
        let sockets = ["home/outside/s", "state/run/daemon.sock"]
            .map(|name| UnixListener::bind(scene.path(name)).unwrap());
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
        }
        fs::create_dir_all(scene.workspace().join("deploy/secrets")).unwrap();
        fs::write(scene.workspace().join("deploy/secrets/sealed"), "as it was").unwrap();
        // Ends with this process, however that ends.
        let mut victim = Command::new("/bin/cat");
        let victim =
            victim.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() | 1;
        println!("seed {seed}");
        Self {
            scene,
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
        let mut confinement = self.scene.confinement(policy);
        confinement.hidden.push(self.scene.workspace().join("deploy/secrets"));
        confinement
    }

    fn next_spool(&mut self) -> PathBuf {
        self.number += 1;
        self.scene.path(&format!("state/run-{}", self.number))
    }

    /// Replaces the swapping runs that have lasted long enough.
    async fn keep_swapping(&mut self) {
        let (due, kept) = self.swapping.drain(..).partition(|(_, until)| *until < Instant::now());
        self.swapping = kept;
        end_all(due).await;
        while self.swapping.len() < SWAPPING_RUNS {
            self.repair();
            let targets =
                ["home/.ssh", "home", "home/outside", "state", "state/run", "home/shop/deploy/secrets", ""];
            let targets = targets.map(|name| self.scene.path(name).display().to_string());
            let (workspace, seed) = (self.scene.workspace().display().to_string(), self.dice.0.to_string());
            let args: Vec<&str> =
                [SWAP, &workspace, &seed].into_iter().chain(targets.iter().map(String::as_str)).collect();
            let plan = self.scene.plan(self.confinement(Preset::Workspace), &args);
            let plan = RunPlan { lifetime: RunLifetime::BoundToStarter, ..plan };
            let spool = self.next_spool();
            let run = self.supervisor.start(&spool, &plan).await.unwrap();
            self.swapping.push((run, Instant::now() + SWAPPING_FOR));
            self.dice.below(1);
        }
    }

    /// Recreates the directories that a run needs to start, after a swap has taken them away.
    fn repair(&self) {
        for name in WORKSPACES.into_iter().chain([".git/hooks"]) {
            let _ = make_directories(&self.scene.workspace(), name);
        }
    }

    /// Starts a run somewhere in the workspace, has it try everything, and judges.
    async fn start_one(&mut self) {
        self.repair();
        let (shop, outside) = (self.scene.workspace(), self.scene.path("home/outside"));
        let workspace = shop.join(self.dice.pick(&WORKSPACES));
        let preset = *self.dice.pick(&[Preset::Workspace, Preset::Workspace, Preset::Observe]);
        let namespaces = self.dice.below(4) > 0;
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
            key: self.scene.path("home/.ssh/id"),
            sealed: namespaces.then(|| shop.join("deploy/secrets/sealed")),
            database: self.scene.path("state/database"),
            state: self.scene.path("state/run"),
            victim: i32::try_from(self.victim.id()).unwrap(),
            socket: self.scene.path("state/run/daemon.sock"),
            abstract_socket: "switchboard-attack-nobody".to_owned(),
            port: 9,
            spool: spool.clone(),
        };
        let mut plan = self.scene.plan(confinement, &[TRY, &serde_json::to_string(&targets).unwrap()]);
        plan.cwd = workspace;
        let report = self.supervisor.start(&spool, &plan).await.unwrap().wait().await.unwrap();
        if let End::NotStarted(failure) = &report.end {
            let expected = [
                NotStartedReason::NotConfined,
                NotStartedReason::CwdMissing,
                NotStartedReason::CwdNotADirectory,
                NotStartedReason::CwdForbidden,
                // A file in place of a directory above.
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
        self.judge();
        fs::remove_dir_all(&spool).unwrap();
    }

    /// Looks from outside whether everything is as it was.
    fn judge(&mut self) {
        for name in ["home/.ssh/id", "home/outside/file", "state/database"] {
            assert_eq!(fs::read_to_string(self.scene.path(name)).unwrap(), "as it was", "{name}");
        }
        for (name, count) in [("home/.ssh", 1), ("home/outside", 2), ("state/run", 1)] {
            assert_eq!(fs::read_dir(self.scene.path(name)).unwrap().count(), count, "{name}");
        }
        // Without namespaces, sockets in the file system can be reached.
        assert!(self.victim.try_wait().unwrap().is_none(), "the victim was killed");
    }

    async fn stop(&mut self) {
        end_all(std::mem::take(&mut self.swapping)).await;
        self.judge();
        let left = PLANTS.map(|name| self.scene.workspace().join(name));
        let left: Vec<_> = left.iter().filter(|path| path.symlink_metadata().is_ok()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        self.victim.kill().unwrap();
        self.victim.wait().unwrap();
        let _ = &self.sockets;
    }
}

/// Makes directories one below the other, without following a link that a run has just put there.
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
