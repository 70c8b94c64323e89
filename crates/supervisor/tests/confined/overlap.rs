//! Two runs at the same time in one workspace: the new files of one are not the user's for the other.

use std::fs;
use std::path::{Path, PathBuf};

use model::{
    Confinement, End, Enforcement, Exit, Policy, PolicyRoot, Requirement, RunPlan, RunReport, SafeguardName,
};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{Run, Supervisor};

use crate::scene::{Scene, confined, eventually, is_running};
use crate::swaps::Swapping;

crate::tests![
    files_that_both_runs_create_are_moved,
    files_that_both_runs_create_are_moved_without_namespaces,
    repository_that_both_runs_create_is_moved,
    submodule_that_both_runs_prepare_is_moved,
    rebase_that_both_runs_prepare_is_moved,
    nested_repository_that_both_runs_create_is_moved,
    files_are_moved_when_the_first_run_is_killed,
    run_above_the_workspace_of_another_moves_its_files,
    run_below_a_new_repository_cannot_write_it,
    harmless_repository_outlives_both_runs,
    killed_run_is_recovered_by_the_next_start,
    recovered_paths_are_named_after_a_failed_attempt,
    user_file_stays_after_a_killed_run,
    lists_are_gone_after_the_runs,
    run_that_cannot_know_of_others_reports_it,
];

/// Creates the same files in both runs. The second waits until those of the first have been moved.
const FILES: &str = "echo x > .envrc; echo {} > .mcp.json; mkdir .claude .vscode; echo {} > .claude/settings.json; \
                     echo {} > .vscode/tasks.json";
/// Waits for the test.
pub const UNTIL_STOPPED: &str = "echo up; while [ ! -e stop ]; do sleep 0.01; done";

/// How many runs are started while a directory is exchanged; about every third needs more than one attempt.
const STARTS: usize = 8;

/// A run beside others.
pub struct Beside {
    pub run: Run,
    spool: PathBuf,
}

impl Beside {
    pub async fn start(scene: &Scene, name: &str, plan: &RunPlan) -> Self {
        let beside = Self::launch(scene, name, plan).await;
        beside.says("up").await;
        beside
    }

    /// Starts it without waiting for its agent.
    pub async fn launch(scene: &Scene, name: &str, plan: &RunPlan) -> Self {
        let spool = scene.path("state").join(name);
        let run = Supervisor::this_program().unwrap().start(&spool, plan).await.unwrap();
        Self { run, spool }
    }

    pub fn output(&self) -> String {
        fs::read_to_string(self.spool.join("output")).unwrap_or_default()
    }

    async fn says(&self, text: &str) {
        eventually(&format!("it says {text}"), || self.output().contains(text)).await;
    }

    /// Kills the supervisor and waits for its death: until then, its list counts as that of a living run.
    pub async fn kill_supervisor(&self) {
        let supervisor = self.run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        eventually("the supervisor is dead", || !is_running(supervisor)).await;
    }

    pub async fn wait(self) -> RunReport {
        let report = self.run.wait().await.unwrap();
        let error = fs::read_to_string(self.spool.join("error")).unwrap();
        assert!(matches!(report.end, End::Exited | End::SupervisorLost), "{report:?}: {error}");
        assert_ne!(report.exit, Some(Exit::Code(1)), "{error}");
        report
    }
}

pub fn names(report: &RunReport) -> Vec<PathBuf> {
    let mut names: Vec<_> = confined(report).quarantined.iter().map(|entry| entry.path.clone()).collect();
    names.sort();
    names
}

fn in_workspace<const N: usize>(scene: &Scene, names: [&str; N]) -> Vec<PathBuf> {
    names.map(|name| scene.workspace().join(name)).to_vec()
}

/// Waits until a path is gone, creates it again, and waits for nothing more.
fn once_gone(path: &str, create: &str) -> String {
    format!("echo up; while [ -e {path} ]; do sleep 0.01; done; {create}; echo again")
}

fn stop(scene: &Scene) {
    fs::write(scene.workspace().join("stop"), "").unwrap();
}

fn change(plan: RunPlan, change: impl FnOnce(Confinement) -> Confinement) -> RunPlan {
    let Policy::Confined(confinement) = plan.policy else { panic!("no policy") };
    RunPlan { policy: Policy::Confined(Box::new(change(*confinement))), ..plan }
}

pub fn without_namespaces(plan: RunPlan) -> RunPlan {
    change(plan, |confinement| Confinement {
        namespaces: false,
        requirement: Requirement::BestEffort,
        ..confinement
    })
}

/// Plays both runs and returns what each has left in quarantine.
async fn play_both(
    scene: &Scene,
    (first, second): (String, String),
    tier: fn(RunPlan) -> RunPlan,
) -> [Vec<PathBuf>; 2] {
    let first = Beside::start(scene, "first", &tier(scene.shell(&format!("{first}; {UNTIL_STOPPED}")))).await;
    let second = Beside::start(scene, "second", &tier(scene.shell(&second))).await;
    stop(scene);
    let first = first.wait().await;
    second.says("again").await;
    [names(&first), names(&second.wait().await)]
}

fn files_in_both(tier: fn(RunPlan) -> RunPlan) {
    Scene::play(async |scene: &Scene| {
        let scripts = (FILES.to_owned(), once_gone(".vscode", FILES));
        let expected = in_workspace(scene, [".claude", ".envrc", ".mcp.json", ".vscode"]);
        assert_eq!(play_both(scene, scripts, tier).await, [expected.clone(), expected.clone()]);
        assert!(expected.iter().all(|path| !path.exists()));
    });
}

fn files_that_both_runs_create_are_moved() {
    files_in_both(|plan| plan);
}

fn files_that_both_runs_create_are_moved_without_namespaces() {
    files_in_both(without_namespaces);
}

fn repository_that_both_runs_create_is_moved() {
    Scene::play(async |scene: &Scene| {
        fs::remove_dir_all(scene.workspace().join(".git")).unwrap();
        // Beside the repository, a directory that git would take for one when the repository is gone.
        let create = "git init -q . && git config core.fsmonitor evil && echo evil > .git/hooks/pre-commit; \
                      echo 'ref: refs/heads/main' > HEAD";
        let scripts = (create.to_owned(), once_gone(".git", create));
        let expected = in_workspace(scene, [".git", "HEAD"]);
        assert_eq!(play_both(scene, scripts, |plan| plan).await, [expected.clone(), expected.clone()]);
        assert!(expected.iter().all(|path| !path.exists()));
    });
}

fn submodule_that_both_runs_prepare_is_moved() {
    Scene::play(async |scene: &Scene| {
        let create = "mkdir -p .git/modules/lib && echo evil > .git/modules/lib/config";
        let scripts = (create.to_owned(), once_gone(".git/modules/lib", create));
        let expected = in_workspace(scene, [".git/modules/lib"]);
        assert_eq!(play_both(scene, scripts, |plan| plan).await, [expected.clone(), expected.clone()]);
        assert!(!expected[0].exists());
    });
}

fn rebase_that_both_runs_prepare_is_moved() {
    Scene::play(async |scene: &Scene| {
        let create = "mkdir .git/rebase-merge && echo exec evil > .git/rebase-merge/git-rebase-todo";
        let scripts = (create.to_owned(), once_gone(".git/rebase-merge", create));
        let expected = in_workspace(scene, [".git/rebase-merge"]);
        assert_eq!(play_both(scene, scripts, |plan| plan).await, [expected.clone(), expected.clone()]);
        assert!(!expected[0].exists());
    });
}

fn nested_repository_that_both_runs_create_is_moved() {
    Scene::play(async |scene: &Scene| {
        fs::create_dir(scene.workspace().join("lib")).unwrap();
        let create = "git init -q lib && git -C lib config core.fsmonitor evil";
        let scripts = (create.to_owned(), once_gone("lib/.git", create));
        let expected = in_workspace(scene, ["lib/.git"]);
        assert_eq!(play_both(scene, scripts, |plan| plan).await, [expected.clone(), expected.clone()]);
        assert!(!expected[0].exists());
    });
}

fn files_are_moved_when_the_first_run_is_killed() {
    Scene::play(async |scene: &Scene| {
        let first = Beside::start(scene, "first", &scene.shell(&format!("{FILES}; {UNTIL_STOPPED}"))).await;
        let second = Beside::start(scene, "second", &scene.shell(&once_gone(".vscode", FILES))).await;
        first.kill_supervisor().await;
        let first = first.wait().await;
        assert_eq!(first.end, End::SupervisorLost);
        second.says("again").await;
        let expected = in_workspace(scene, [".claude", ".envrc", ".mcp.json", ".vscode"]);
        assert_eq!([names(&first), names(&second.wait().await)], [expected.clone(), expected.clone()]);
        assert!(expected.iter().all(|path| !path.exists()));
    });
}

fn run_above_the_workspace_of_another_moves_its_files() {
    Scene::play(async |scene: &Scene| {
        let first = Beside::start(scene, "first", &scene.shell(&format!("{FILES}; {UNTIL_STOPPED}"))).await;
        let above = scene.path("home");
        let script = once_gone("shop/.envrc", "echo x > shop/.envrc");
        let plan = change(scene.shell(&script), |mut confinement| {
            confinement.roots.push(PolicyRoot::writable(&above));
            Confinement { home: None, hidden: Vec::new(), ..confinement }
        });
        let second = Beside::start(scene, "second", &RunPlan { cwd: above, ..plan }).await;
        stop(scene);
        first.wait().await;
        assert_eq!(names(&second.wait().await), in_workspace(scene, [".envrc"]));
        assert!(!scene.workspace().join(".envrc").exists());
    });
}

/// Moves the roots and protected paths of a plan to another directory.
pub fn in_directory(scene: &Scene, directory: &Path, script: &str) -> RunPlan {
    let from = scene.workspace();
    let plan = change(scene.shell(script), |mut confinement| {
        for root in confinement.roots.iter_mut().filter(|root| root.path == from) {
            directory.clone_into(&mut root.path);
        }
        for protected in &mut confinement.protected {
            if let Ok(rest) = protected.path.strip_prefix(&from) {
                protected.path = directory.join(rest);
            }
        }
        confinement
    });
    RunPlan { cwd: directory.to_owned(), ..plan }
}

fn run_below_a_new_repository_cannot_write_it() {
    Scene::play(async |scene: &Scene| {
        fs::remove_dir_all(scene.workspace().join(".git")).unwrap();
        let below = scene.workspace().join("sub");
        fs::create_dir(&below).unwrap();
        let first =
            Beside::start(scene, "first", &scene.shell(&format!("git init -q .; {UNTIL_STOPPED}"))).await;
        let script = "touch ../.git/planted; echo up";
        let second = Beside::start(scene, "second", &in_directory(scene, &below, script)).await.wait().await;
        let why = confined(&second).git_read_only.as_deref().unwrap();
        assert!(why.contains("another run may have created"), "{why}");
        stop(scene);
        assert_eq!(names(&first.wait().await), Vec::<PathBuf>::new());
        let git = scene.workspace().join(".git");
        assert!(git.join("HEAD").exists() && !git.join("planted").exists());
    });
}

fn harmless_repository_outlives_both_runs() {
    Scene::play(async |scene: &Scene| {
        fs::remove_dir_all(scene.workspace().join(".git")).unwrap();
        let first =
            Beside::start(scene, "first", &scene.shell(&format!("git init -q .; {UNTIL_STOPPED}"))).await;
        let commit = "git add -A && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m work";
        let second = Beside::start(scene, "second", &scene.shell(&format!("echo up; {commit}"))).await;
        assert_eq!(names(&second.wait().await), Vec::<PathBuf>::new());
        stop(scene);
        assert_eq!(names(&first.wait().await), Vec::<PathBuf>::new());
        assert!(scene.workspace().join(".git/refs/heads").read_dir().unwrap().count() == 1);
    });
}

/// As after `kill -9` of a program and the supervisor that it has started.
fn killed_run_is_recovered_by_the_next_start() {
    Scene::play(async |scene: &Scene| {
        let first = Beside::start(scene, "first", &scene.shell(&format!("{FILES}; {UNTIL_STOPPED}"))).await;
        first.kill_supervisor().await;
        let second = Beside::start(scene, "second", &scene.shell("ls -A; echo up")).await;
        assert_eq!(second.output(), ".git\nup\n");
        let expected = in_workspace(scene, [".claude", ".envrc", ".mcp.json", ".vscode"]);
        assert_eq!(names(&second.wait().await), expected, "named to the user");
        assert_eq!(names(&first.wait().await), expected, "and to the owner");
    });
}

/// The first attempt to make a sandbox recovers the killed run. It fails in some of these starts, and a later one succeeds.
fn recovered_paths_are_named_after_a_failed_attempt() {
    Scene::play(async |scene: &Scene| {
        let hooks = scene.workspace().join(".git/hooks");
        let other = hooks.with_file_name("other");
        fs::create_dir(&other).unwrap();
        let expected = in_workspace(scene, [".claude", ".envrc", ".mcp.json", ".vscode"]);
        for _ in 0..STARTS {
            let script = format!("{FILES}; {UNTIL_STOPPED}");
            let first = Beside::start(scene, "first", &scene.shell(&script)).await;
            first.kill_supervisor().await;
            let swapping = Swapping::start(hooks.clone(), other.clone());
            let second = Beside::start(scene, "second", &scene.shell("echo up")).await;
            drop(swapping);
            assert_eq!(names(&second.wait().await), expected);
            first.wait().await;
            for name in ["first", "second"] {
                fs::remove_dir_all(scene.path("state").join(name)).unwrap();
            }
        }
    });
}

fn user_file_stays_after_a_killed_run() {
    Scene::play(async |scene: &Scene| {
        let envrc = scene.workspace().join(".envrc");
        for removed in [false, true] {
            let plan = scene.shell(UNTIL_STOPPED);
            let first = Beside::start(scene, "first", &plan).await;
            first.kill_supervisor().await;
            if removed {
                eventually("its processes are gone", || fs::remove_dir_all(&first.spool).is_ok()).await;
            } else {
                // The next start recovers it.
                Beside::start(scene, "second", &scene.shell("echo up")).await.wait().await;
                fs::remove_dir_all(scene.path("state/second")).unwrap();
            }
            fs::write(&envrc, "by the user").unwrap();
            let third = Beside::start(scene, "third", &scene.shell("echo x >> .envrc; echo up")).await;
            assert_eq!(names(&third.wait().await), Vec::<PathBuf>::new());
            assert_eq!(fs::read_to_string(&envrc).unwrap(), "by the user");
            fs::remove_file(&envrc).unwrap();
            for name in ["first", "third"] {
                let _ = fs::remove_dir_all(scene.path("state").join(name));
            }
        }
    });
}

fn lists_are_gone_after_the_runs() {
    Scene::play(async |scene: &Scene| {
        let lists = scene.path("state/proofs/active");
        let count = || fs::read_dir(&lists).unwrap().count();
        let first = Beside::start(scene, "first", &scene.shell(UNTIL_STOPPED)).await;
        let second = Beside::start(scene, "second", &scene.shell(UNTIL_STOPPED)).await;
        assert_eq!(count(), 2);
        stop(scene);
        first.wait().await;
        second.wait().await;
        assert_eq!(count(), 0);
    });
}

fn run_that_cannot_know_of_others_reports_it() {
    Scene::play(async |scene: &Scene| {
        let plan = change(scene.shell("true"), |confinement| Confinement { proofs: None, ..confinement });
        for (plan, expected) in [(scene.shell("true"), Enforcement::Full), (plan, Enforcement::Partial)] {
            let report = scene.run(&plan).await;
            let mut safeguards = confined(&report).safeguards.iter();
            let protected = safeguards.find(|found| found.name == SafeguardName::ProtectedPaths).unwrap();
            assert_eq!(protected.enforcement, expected, "{protected:?}");
            fs::remove_dir_all(scene.spool()).unwrap();
        }
    });
}
