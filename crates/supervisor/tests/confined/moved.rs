//! Workspaces that are renamed during a run: the agent's new files are found in the new place, and files in the old
//! place belong to the user.

use std::fs;
use std::path::PathBuf;

use model::{End, NotStartedReason, RunPlan, RunState};
use testkit::eventually_async;

use crate::harness::{Harness, confined};
use crate::overlap::{Beside, UNTIL_STOPPED, in_directory, names, without_namespaces};
use crate::swaps::Swapping;

testkit::tests![
    workspace_that_another_run_renames_is_swept,
    workspace_that_the_user_renames_is_swept,
    workspace_that_the_user_renames_is_swept_without_namespaces,
    workspace_below_a_renamed_directory_is_swept,
    path_in_a_renamed_workspace_is_moved_at_once,
    renamed_workspace_is_unexamined_after_a_kill,
    removed_workspace_is_unexamined,
    workspace_exchanged_at_start_is_swept,
    workspace_exchanged_at_start_is_swept_without_namespaces,
    moved_directory_is_all_that_is_written_without_namespaces,
];

/// Waits for the test, and leaves files that the user's tools would run.
const PLANT: &str = "echo up; while [ ! -e go ]; do sleep 0.01; done; echo evil > .envrc; \
                     mkdir lib; git init -q lib && git -C lib config core.fsmonitor evil";
const PLANTED: [&str; 2] = [".envrc", "lib/.git"];

fn workspace_that_another_run_renames_is_swept() {
    Harness::run_test(async |harness: &Harness| {
        let (inner, renamed) = (harness.workspace().join("sub"), harness.workspace().join("sub2"));
        fs::create_dir(&inner).unwrap();
        let second = Beside::start(harness, "second", &in_directory(harness, &inner, PLANT)).await;
        let first =
            Beside::start(harness, "first", &harness.shell("mv sub sub2 && mkdir sub; echo up")).await;
        assert_eq!(names(&first.wait().await), Vec::<PathBuf>::new());
        fs::write(renamed.join("go"), "").unwrap();
        assert_eq!(names(&second.wait().await), PLANTED.map(|name| renamed.join(name)));
        assert!(PLANTED.iter().all(|name| !renamed.join(name).exists()));
        assert!(renamed.join("lib").exists() && inner.exists());
    });
}

/// Renames a directory during a run, and creates a file of the user in its old place.
fn rename(directory: &'static str, to: &'static str, tier: fn(RunPlan) -> RunPlan) {
    Harness::run_test(async |harness: &Harness| {
        let workspace = harness.workspace();
        fs::write(workspace.join(".mcp.json"), "by the user").unwrap();
        let run = Beside::start(harness, "run", &tier(harness.shell(PLANT))).await;
        fs::rename(harness.path(directory), harness.path(to)).unwrap();
        fs::create_dir_all(&workspace).unwrap();
        fs::write(workspace.join(".envrc"), "by the user").unwrap();
        let below = workspace.strip_prefix(harness.path(directory)).unwrap().components();
        let renamed: PathBuf = harness.path(to).components().chain(below).collect();
        fs::write(renamed.join("go"), "").unwrap();
        assert_eq!(names(&run.wait().await), PLANTED.map(|name| renamed.join(name)));
        assert!(PLANTED.iter().all(|name| !renamed.join(name).exists()));
        for file in [workspace.join(".envrc"), renamed.join(".mcp.json")] {
            assert_eq!(fs::read_to_string(file).unwrap(), "by the user");
        }
    });
}

fn workspace_that_the_user_renames_is_swept() {
    rename("home/shop", "home/shop2", |plan| plan);
}

fn workspace_that_the_user_renames_is_swept_without_namespaces() {
    rename("home/shop", "home/shop2", without_namespaces);
}

fn workspace_below_a_renamed_directory_is_swept() {
    rename("home", "home2", |plan| plan);
}

fn path_in_a_renamed_workspace_is_moved_at_once() {
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir(harness.workspace().join(".git/hooks")).unwrap();
        let create = "mkdir .git/hooks; while [ -e .git/hooks ]; do sleep 0.01; done";
        let script = format!("{create}; echo up; while [ ! -e go ]; do sleep 0.01; done; {create}");
        let run = Beside::start(harness, "run", &harness.shell(&script)).await;
        let renamed = harness.path("home/shop2");
        fs::rename(harness.workspace(), &renamed).unwrap();
        fs::write(renamed.join("go"), "").unwrap();
        let expected = [harness.workspace(), renamed].map(|root| root.join(".git/hooks"));
        assert_eq!(names(&run.wait().await), expected);
    });
}

fn renamed_workspace_is_unexamined_after_a_kill() {
    Harness::run_test(async |harness: &Harness| {
        let run = Beside::start(harness, "run", &harness.shell(UNTIL_STOPPED)).await;
        run.kill_supervisor().await;
        let workspace = harness.workspace();
        fs::rename(&workspace, harness.path("home/shop2")).unwrap();
        fs::create_dir(&workspace).unwrap();
        fs::write(workspace.join(".envrc"), "by the user").unwrap();
        let report = run.wait().await;
        assert_eq!(report.end, End::SupervisorLost);
        let [entry] = &confined(&report).quarantined[..] else { panic!("{report:?}") };
        assert!(entry.unexamined && entry.path == workspace, "{entry:?}");
        assert_eq!(fs::read_to_string(workspace.join(".envrc")).unwrap(), "by the user");
    });
}

/// As after `mv` to another file system.
fn removed_workspace_is_unexamined() {
    Harness::run_test(async |harness: &Harness| {
        let workspace = harness.workspace();
        let run = Beside::start(harness, "run", &harness.shell("echo up; sleep 1000")).await;
        fs::remove_dir_all(&workspace).unwrap();
        run.run.stop().unwrap();
        let report = run.run.wait().await.unwrap();
        let [entry] = &confined(&report).quarantined[..] else { panic!("{report:?}") };
        assert!(entry.unexamined && entry.path == workspace, "{entry:?}");
    });
}

/// The number of runs that are started during the exchanges.
const ATTEMPTS: usize = 30;

fn exchange(tier: fn(RunPlan) -> RunPlan) {
    Harness::run_test(async |harness: &Harness| {
        let places = [harness.workspace(), harness.path("home/other")];
        fs::create_dir(&places[1]).unwrap();
        fs::remove_dir_all(places[0].join(".git")).unwrap();
        let mut moved = 0;
        for attempt in 0..ATTEMPTS {
            let swapping = Swapping::start(places[0].clone(), places[1].clone());
            let run = Beside::launch(harness, &format!("run{attempt}"), &tier(harness.shell(PLANT))).await;
            let has_ended = || {
                let status = run.run.spool().status().unwrap();
                status.is_some_and(|status| matches!(status.state, RunState::Ended(_)))
            };
            eventually_async("its agent runs, or it has ended", async || {
                run.output().contains("up") || has_ended()
            })
            .await;
            drop(swapping);
            for place in &places {
                fs::write(place.join("go"), "").unwrap();
            }
            let report = run.run.wait().await.unwrap();
            match &report.end {
                End::NotStarted(why) => assert_eq!(why.reason, NotStartedReason::NotConfined, "{why:?}"),
                // Not in all of them: some can write nothing in their working directory.
                _ => moved += names(&report).len(),
            }
            for place in &places {
                assert!(PLANTED.iter().all(|name| !place.join(name).exists()), "{}", place.display());
                fs::remove_file(place.join("go")).unwrap();
                let _ = fs::remove_dir_all(place.join("lib"));
            }
        }
        assert!(moved > 0, "no run left anything");
    });
}

fn workspace_exchanged_at_start_is_swept() {
    exchange(|plan| plan);
}

fn workspace_exchanged_at_start_is_swept_without_namespaces() {
    exchange(without_namespaces);
}

/// Landlock rules apply to directories: a run may write to its own wherever it is, and to nothing else.
fn moved_directory_is_all_that_is_written_without_namespaces() {
    Harness::run_test(async |harness: &Harness| {
        let shop = harness.workspace();
        let [above, inner, moved] = ["a", "a/b", "moved"].map(|name| shop.join(name));
        fs::create_dir_all(&inner).unwrap();
        let script = format!(
            "echo up; while [ ! -e go ]; do sleep 0.01; done; \
             for path in {above}/b {shop}/other; do mv $path $path.away && echo moved $path; done 2>/dev/null; true",
            above = above.display(),
            shop = shop.display()
        );
        let plan = without_namespaces(in_directory(harness, &inner, &script));
        let run = Beside::start(harness, "run", &plan).await;
        // The run's directory replaces its parent, and another one is at its old path.
        fs::rename(&inner, &moved).unwrap();
        fs::rename(&above, shop.join("other")).unwrap();
        fs::rename(&moved, &above).unwrap();
        fs::create_dir(&inner).unwrap();
        fs::write(above.join("go"), "").unwrap();
        run.wait().await;
        assert!(above.join("b.away").exists() && !inner.exists());
        assert!(shop.join("other").exists() && !shop.join("other.away").exists());
    });
}
