//! Two concurrent runs in one workspace: new files of one are not taken for the user's by the other.

use std::fs;
use std::path::{Path, PathBuf};

use model::{
    Confinement, End, Enforcement, Exit, Policy, PolicyRoot, Requirement, RunPlan, RunReport, SafeguardName,
};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{Run, Supervisor};
use testkit::{eventually_async, is_running};

use crate::harness::{Harness, confined};
use crate::swaps::Swapping;

testkit::tests![
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

/// The number of runs that are started while a directory is exchanged; about every third needs more than one attempt.
const STARTS: usize = 8;

/// A run beside others.
pub struct Beside {
    pub run: Run,
    spool: PathBuf,
}

impl Beside {
    pub async fn start(harness: &Harness, name: &str, plan: &RunPlan) -> Self {
        let beside = Self::launch(harness, name, plan).await;
        beside.wait_for_output("up").await;
        beside
    }

    /// Starts the run without waiting for its agent.
    pub async fn launch(harness: &Harness, name: &str, plan: &RunPlan) -> Self {
        let spool = harness.path("state").join(name);
        let run = Supervisor::this_program().unwrap().start(&spool, plan).await.unwrap();
        Self { run, spool }
    }

    pub fn output(&self) -> String {
        fs::read_to_string(self.spool.join("output")).unwrap_or_default()
    }

    async fn wait_for_output(&self, text: &str) {
        eventually_async(&format!("it says {text}"), async || self.output().contains(text)).await;
    }

    /// Kills the supervisor and waits until it is dead: until then, its list counts as that of a running supervisor.
    pub async fn kill_supervisor(&self) {
        let supervisor = self.run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        eventually_async("the supervisor is dead", async || !is_running(supervisor)).await;
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

fn in_workspace<const N: usize>(harness: &Harness, names: [&str; N]) -> Vec<PathBuf> {
    names.map(|name| harness.workspace().join(name)).to_vec()
}

/// Waits until a path is gone, and creates it again.
fn recreate_when_gone(path: &str, create: &str) -> String {
    format!("echo up; while [ -e {path} ]; do sleep 0.01; done; {create}; echo again")
}

fn stop(harness: &Harness) {
    fs::write(harness.workspace().join("stop"), "").unwrap();
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

/// Runs both and returns the quarantined paths of each.
async fn run_both(
    harness: &Harness,
    (first, second): (String, String),
    tier: fn(RunPlan) -> RunPlan,
) -> [Vec<PathBuf>; 2] {
    let first =
        Beside::start(harness, "first", &tier(harness.shell(&format!("{first}; {UNTIL_STOPPED}")))).await;
    let second = Beside::start(harness, "second", &tier(harness.shell(&second))).await;
    stop(harness);
    let first = first.wait().await;
    second.wait_for_output("again").await;
    [names(&first), names(&second.wait().await)]
}

fn files_in_both(tier: fn(RunPlan) -> RunPlan) {
    Harness::run_test(async |harness: &Harness| {
        let scripts = (FILES.to_owned(), recreate_when_gone(".vscode", FILES));
        let expected = in_workspace(harness, [".claude", ".envrc", ".mcp.json", ".vscode"]);
        assert_eq!(run_both(harness, scripts, tier).await, [expected.clone(), expected.clone()]);
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
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        // Beside the repository, a directory that git would treat as one if the repository were gone.
        let create = "git init -q . && git config core.fsmonitor evil && echo evil > .git/hooks/pre-commit; \
                      echo 'ref: refs/heads/main' > HEAD";
        let scripts = (create.to_owned(), recreate_when_gone(".git", create));
        let expected = in_workspace(harness, [".git", "HEAD"]);
        assert_eq!(run_both(harness, scripts, |plan| plan).await, [expected.clone(), expected.clone()]);
        assert!(expected.iter().all(|path| !path.exists()));
    });
}

fn submodule_that_both_runs_prepare_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let create = "mkdir -p .git/modules/lib && echo evil > .git/modules/lib/config";
        let scripts = (create.to_owned(), recreate_when_gone(".git/modules/lib", create));
        let expected = in_workspace(harness, [".git/modules/lib"]);
        assert_eq!(run_both(harness, scripts, |plan| plan).await, [expected.clone(), expected.clone()]);
        assert!(!expected[0].exists());
    });
}

fn rebase_that_both_runs_prepare_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let create = "mkdir .git/rebase-merge && echo exec evil > .git/rebase-merge/git-rebase-todo";
        let scripts = (create.to_owned(), recreate_when_gone(".git/rebase-merge", create));
        let expected = in_workspace(harness, [".git/rebase-merge"]);
        assert_eq!(run_both(harness, scripts, |plan| plan).await, [expected.clone(), expected.clone()]);
        assert!(!expected[0].exists());
    });
}

fn nested_repository_that_both_runs_create_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        fs::create_dir(harness.workspace().join("lib")).unwrap();
        let create = "git init -q lib && git -C lib config core.fsmonitor evil";
        let scripts = (create.to_owned(), recreate_when_gone("lib/.git", create));
        let expected = in_workspace(harness, ["lib/.git"]);
        assert_eq!(run_both(harness, scripts, |plan| plan).await, [expected.clone(), expected.clone()]);
        assert!(!expected[0].exists());
    });
}

fn files_are_moved_when_the_first_run_is_killed() {
    Harness::run_test(async |harness: &Harness| {
        let first =
            Beside::start(harness, "first", &harness.shell(&format!("{FILES}; {UNTIL_STOPPED}"))).await;
        let second =
            Beside::start(harness, "second", &harness.shell(&recreate_when_gone(".vscode", FILES))).await;
        first.kill_supervisor().await;
        let first = first.wait().await;
        assert_eq!(first.end, End::SupervisorLost);
        second.wait_for_output("again").await;
        let expected = in_workspace(harness, [".claude", ".envrc", ".mcp.json", ".vscode"]);
        assert_eq!([names(&first), names(&second.wait().await)], [expected.clone(), expected.clone()]);
        assert!(expected.iter().all(|path| !path.exists()));
    });
}

fn run_above_the_workspace_of_another_moves_its_files() {
    Harness::run_test(async |harness: &Harness| {
        let first =
            Beside::start(harness, "first", &harness.shell(&format!("{FILES}; {UNTIL_STOPPED}"))).await;
        let above = harness.path("home");
        let script = recreate_when_gone("shop/.envrc", "echo x > shop/.envrc");
        let plan = change(harness.shell(&script), |mut confinement| {
            confinement.roots.push(PolicyRoot::writable(&above));
            Confinement { home: None, hidden: Vec::new(), ..confinement }
        });
        let second = Beside::start(harness, "second", &RunPlan { cwd: above, ..plan }).await;
        stop(harness);
        first.wait().await;
        assert_eq!(names(&second.wait().await), in_workspace(harness, [".envrc"]));
        assert!(!harness.workspace().join(".envrc").exists());
    });
}

/// Moves the roots and protected paths of a plan to another directory.
pub fn in_directory(harness: &Harness, directory: &Path, script: &str) -> RunPlan {
    let from = harness.workspace();
    let plan = change(harness.shell(script), |mut confinement| {
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
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        let below = harness.workspace().join("sub");
        fs::create_dir(&below).unwrap();
        let first =
            Beside::start(harness, "first", &harness.shell(&format!("git init -q .; {UNTIL_STOPPED}"))).await;
        let script = "touch ../.git/planted; echo up";
        let second =
            Beside::start(harness, "second", &in_directory(harness, &below, script)).await.wait().await;
        let why = confined(&second).git_read_only.as_deref().unwrap();
        assert!(why.contains("another run may have created"), "{why}");
        stop(harness);
        assert_eq!(names(&first.wait().await), Vec::<PathBuf>::new());
        let git = harness.workspace().join(".git");
        assert!(git.join("HEAD").exists() && !git.join("planted").exists());
    });
}

fn harmless_repository_outlives_both_runs() {
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        let first =
            Beside::start(harness, "first", &harness.shell(&format!("git init -q .; {UNTIL_STOPPED}"))).await;
        let commit = "git add -A && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m work";
        let second = Beside::start(harness, "second", &harness.shell(&format!("echo up; {commit}"))).await;
        assert_eq!(names(&second.wait().await), Vec::<PathBuf>::new());
        stop(harness);
        assert_eq!(names(&first.wait().await), Vec::<PathBuf>::new());
        assert!(harness.workspace().join(".git/refs/heads").read_dir().unwrap().count() == 1);
    });
}

/// As after `kill -9` of a program and the supervisor that it has started.
fn killed_run_is_recovered_by_the_next_start() {
    Harness::run_test(async |harness: &Harness| {
        let first =
            Beside::start(harness, "first", &harness.shell(&format!("{FILES}; {UNTIL_STOPPED}"))).await;
        first.kill_supervisor().await;
        let second = Beside::start(harness, "second", &harness.shell("ls -A; echo up")).await;
        assert_eq!(second.output(), ".git\nup\n");
        let expected = in_workspace(harness, [".claude", ".envrc", ".mcp.json", ".vscode"]);
        assert_eq!(names(&second.wait().await), expected, "named to the user");
        assert_eq!(names(&first.wait().await), expected, "and to the owner");
    });
}

/// The first attempt to set up the sandbox recovers the killed run. It fails in some of these starts, and a later one
/// succeeds.
fn recovered_paths_are_named_after_a_failed_attempt() {
    Harness::run_test(async |harness: &Harness| {
        let hooks = harness.workspace().join(".git/hooks");
        let other = hooks.with_file_name("other");
        fs::create_dir(&other).unwrap();
        let expected = in_workspace(harness, [".claude", ".envrc", ".mcp.json", ".vscode"]);
        for _ in 0..STARTS {
            let script = format!("{FILES}; {UNTIL_STOPPED}");
            let first = Beside::start(harness, "first", &harness.shell(&script)).await;
            first.kill_supervisor().await;
            let swapping = Swapping::start(hooks.clone(), other.clone());
            let second = Beside::start(harness, "second", &harness.shell("echo up")).await;
            drop(swapping);
            assert_eq!(names(&second.wait().await), expected);
            first.wait().await;
            for name in ["first", "second"] {
                fs::remove_dir_all(harness.path("state").join(name)).unwrap();
            }
        }
    });
}

fn user_file_stays_after_a_killed_run() {
    Harness::run_test(async |harness: &Harness| {
        let envrc = harness.workspace().join(".envrc");
        for removed in [false, true] {
            let plan = harness.shell(UNTIL_STOPPED);
            let first = Beside::start(harness, "first", &plan).await;
            first.kill_supervisor().await;
            if removed {
                eventually_async("its processes are gone", async || fs::remove_dir_all(&first.spool).is_ok())
                    .await;
            } else {
                // The next start recovers it.
                Beside::start(harness, "second", &harness.shell("echo up")).await.wait().await;
                fs::remove_dir_all(harness.path("state/second")).unwrap();
            }
            fs::write(&envrc, "by the user").unwrap();
            let third = Beside::start(harness, "third", &harness.shell("echo x >> .envrc; echo up")).await;
            assert_eq!(names(&third.wait().await), Vec::<PathBuf>::new());
            assert_eq!(fs::read_to_string(&envrc).unwrap(), "by the user");
            fs::remove_file(&envrc).unwrap();
            for name in ["first", "third"] {
                let _ = fs::remove_dir_all(harness.path("state").join(name));
            }
        }
    });
}

fn lists_are_gone_after_the_runs() {
    Harness::run_test(async |harness: &Harness| {
        let lists = harness.path("state/proofs/active");
        let count = || fs::read_dir(&lists).unwrap().count();
        let first = Beside::start(harness, "first", &harness.shell(UNTIL_STOPPED)).await;
        let second = Beside::start(harness, "second", &harness.shell(UNTIL_STOPPED)).await;
        assert_eq!(count(), 2);
        stop(harness);
        first.wait().await;
        second.wait().await;
        assert_eq!(count(), 0);
    });
}

fn run_that_cannot_know_of_others_reports_it() {
    Harness::run_test(async |harness: &Harness| {
        let plan = change(harness.shell("true"), |confinement| Confinement { proofs: None, ..confinement });
        for (plan, expected) in [(harness.shell("true"), Enforcement::Full), (plan, Enforcement::Partial)] {
            let report = harness.run(&plan).await;
            let mut safeguards = confined(&report).safeguards.iter();
            let protected = safeguards.find(|found| found.name == SafeguardName::ProtectedPaths).unwrap();
            assert_eq!(protected.enforcement, expected, "{protected:?}");
            fs::remove_dir_all(harness.spool()).unwrap();
        }
    });
}
