//! Runs that start while another one swaps directories for links: none of them reads or writes anything outside.
//!
//! The swapping thread represents a confined run that shares the repository. It does nothing that such a run could not
//! do.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use model::{CallPolicy, Confinement, End, NotStartedReason, Policy, Preset, Requirement, RunPlan};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use supervisor::Supervisor;

use crate::harness::Harness;

testkit::tests![
    protected_directory_swapped_for_a_link_shows_no_key,
    workspace_swapped_for_a_link_shows_no_key,
    workspace_swapped_for_a_link_writes_nothing_outside,
    workspace_swapped_for_a_link_is_confined_by_landlock,
    parent_of_a_hidden_directory_cannot_be_renamed,
    hidden_path_replaced_during_a_run_stays_hidden,
];

/// The number of runs that are started during the swaps. Before mounts were made by descriptor, about one in fifteen
/// escaped.
const ATTEMPTS: usize = 60;

/// The number of runs that must reach their agent. More attempts are made until then.
const STARTED: usize = 10;

/// Exchanges two paths until it is dropped, with random pauses of up to a few milliseconds, as long as a layout takes.
/// Without a pause, a layout would nearly always find the link and reject it before the critical moment.
pub struct Swapping {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapping {
    pub fn start(one: PathBuf, other: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for pause in (0..10).cycle() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                std::thread::sleep(Duration::from_micros(500 * pause));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Starts runs one after another while two paths are being swapped, and returns the output of all of them. A run may
/// fail to start, depending on timing.
async fn run_during_swaps(harness: &Harness, (one, other): (PathBuf, PathBuf), plan: &RunPlan) -> String {
    let _swapping = Swapping::start(one, other);
    start_all(harness, plan).await
}

async fn start_all(harness: &Harness, plan: &RunPlan) -> String {
    let supervisor = Supervisor::this_program().unwrap();
    let (mut output, mut attempts, mut started) = (String::new(), 0, 0);
    while attempts < ATTEMPTS || started < STARTED {
        attempts += 1;
        let spool = harness.path(&format!("state/spool-{attempts}"));
        let report = supervisor.start(&spool, plan).await.unwrap().wait().await.unwrap();
        match &report.end {
            End::NotStarted(failure) => assert!(
                matches!(
                    failure.reason,
                    NotStartedReason::NotConfined
                        | NotStartedReason::CwdMissing
                        | NotStartedReason::CwdNotADirectory
                ),
                "{failure}"
            ),
            _ => started += 1,
        }
        output += &fs::read_to_string(spool.join("output")).unwrap_or_default();
    }
    output
}

fn link_beside(path: &Path, target: &Path) -> PathBuf {
    let link = path.with_file_name("link");
    symlink(target, &link).unwrap();
    link
}

fn protected_directory_swapped_for_a_link_shows_no_key() {
    Harness::run_test(async |harness: &Harness| {
        let worktrees = harness.workspace().join(".git/worktrees");
        fs::create_dir(&worktrees).unwrap();
        let link = link_beside(&worktrees, &harness.path("home/.ssh"));
        let plan = harness.shell("cat .git/worktrees/id .git/link/id ../.ssh/id");
        let output = run_during_swaps(harness, (worktrees, link), &plan).await;
        assert!(!output.contains("as it was"), "{output}");
    });
}

/// Returns a plan for a directory in the workspace of the swapping run, and that directory.
fn inner(harness: &Harness, policy: impl Into<CallPolicy>, script: &str) -> (RunPlan, PathBuf) {
    let inner = harness.workspace().join("inner");
    fs::create_dir(&inner).unwrap();
    let shell = harness.shell(script);
    let mut confinement = harness.confinement(policy);
    for root in &mut confinement.roots {
        if root.path == harness.workspace() {
            root.path.clone_from(&inner);
        }
    }
    (RunPlan { policy: Policy::Confined(Box::new(confinement)), cwd: inner.clone(), ..shell }, inner)
}

fn workspace_swapped_for_a_link_shows_no_key() {
    Harness::run_test(async |harness: &Harness| {
        let (plan, inner) = inner(harness, Preset::Workspace, "cat id ../inner/id ../link/id");
        let link = link_beside(&inner, &harness.path("home/.ssh"));
        let output = run_during_swaps(harness, (inner, link), &plan).await;
        assert!(!output.contains("as it was"), "{output}");
    });
}

fn workspace_swapped_for_a_link_writes_nothing_outside() {
    Harness::run_test(async |harness: &Harness| {
        let (plan, inner) = inner(harness, Preset::Workspace, "echo x > file; echo x > ../link/file");
        let link = link_beside(&inner, &harness.path("home/outside"));
        run_during_swaps(harness, (inner, link), &plan).await;
        assert_eq!(fs::read_to_string(harness.path("home/outside/file")).unwrap(), "as it was");
    });
}

fn workspace_swapped_for_a_link_is_confined_by_landlock() {
    Harness::run_test(async |harness: &Harness| {
        let policy = CallPolicy { requirement: Requirement::BestEffort, ..Preset::Workspace.into() };
        let script = "cat ../../.ssh/id; echo x > ../../.ssh/id";
        let (mut plan, inner) = inner(harness, policy, script);
        if let Policy::Confined(confinement) = &mut plan.policy {
            confinement.namespaces = false;
        }
        let link = link_beside(&inner, &harness.path("home/.ssh"));
        let output = run_during_swaps(harness, (inner, link), &plan).await;
        assert!(!output.contains("as it was"), "{output}");
        assert_eq!(fs::read_to_string(harness.path("home/.ssh/id")).unwrap(), "as it was");
    });
}

/// A later run would look for the hidden directory by its name, and expose it by the new one.
fn parent_of_a_hidden_directory_cannot_be_renamed() {
    Harness::run_test(async |harness: &Harness| {
        let secrets = harness.workspace().join("deploy/secrets");
        fs::create_dir_all(&secrets).unwrap();
        fs::write(secrets.join("key"), "as it was").unwrap();
        let confinement = harness.confinement(Preset::Workspace);
        let hidden = confinement.hidden.iter().cloned().chain([secrets]).collect();
        let policy = Policy::Confined(Box::new(Confinement { hidden, ..confinement }));
        let plan = RunPlan { policy, ..harness.shell("mv deploy other; cat */secrets/key; echo done") };
        for _ in 0..2 {
            harness.run(&plan).await;
            assert_eq!(harness.output(), "done\n", "{}", harness.error());
            fs::remove_dir_all(harness.spool()).unwrap();
        }
    });
}

/// The kernel removes an empty mount with the file or directory below it. Editors and logins replace those.
fn hidden_path_replaced_during_a_run_stays_hidden() {
    Harness::run_test(async |harness: &Harness| {
        let (file, directory) = (harness.path("home/.netrc"), harness.path("home/.ssh"));
        fs::write(&file, "as it was").unwrap();
        let script = "echo up; while [ ! -e go ]; do sleep 0.01; done; cat ../.netrc ../.ssh/id; echo done";
        let run = harness.start(&harness.shell(script)).await;
        harness.wait_for_output("up").await;
        fs::write(harness.path("home/new"), "as it was").unwrap();
        fs::rename(harness.path("home/new"), &file).unwrap();
        fs::rename(&directory, harness.path("home/old")).unwrap();
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("id"), "as it was").unwrap();
        fs::write(harness.workspace().join("go"), "").unwrap();
        run.wait().await.unwrap();
        assert_eq!(harness.output(), "up\ndone\n", "{}", harness.error());
    });
}
