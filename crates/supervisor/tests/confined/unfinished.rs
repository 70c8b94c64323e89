//! Unfinished rebases, cherry-picks and patches: the user's git continues them, and runs nothing that the agent
//! planted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::configured::infect;
use crate::harness::Harness;
use crate::quarantine::{git, names};
use crate::repositories::{trace, workspace};

testkit::tests![
    new_merge_strategy_of_a_rebase_is_moved,
    new_merge_strategy_of_a_cherry_pick_is_moved,
    new_options_of_patches_are_moved,
    linked_state_of_a_rebase_is_moved,
    rebase_of_the_agent_with_plain_options_stays,
];

/// A strategy that makes git run the program `evil` in the worktree.
const STRATEGY: &str = "x/../tools/evil";

/// Creates a repository on the branch `topic`, whose first of two commits conflicts with `main`.
fn diverged(harness: &Harness) -> PathBuf {
    let shop = workspace(harness);
    git(&shop, "branch -m main");
    git(&shop, "switch -q -c topic");
    for (file, text) in [("file", "topic"), ("second", "topic")] {
        fs::write(shop.join(file), text).unwrap();
        git(&shop, "add -A");
        git(&shop, &format!("commit -q -m {file}"));
    }
    git(&shop, "switch -q main");
    fs::write(shop.join("file"), "main").unwrap();
    git(&shop, "commit -q -a -m main");
    git(&shop, "switch -q topic");
    shop
}

/// Runs git as the user, who keeps every message.
fn try_git(directory: &Path, args: &str) -> Output {
    let mut git = Command::new("git");
    git.arg("-C").arg(directory).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
    git.args(args.split(' ')).env("GIT_EDITOR", "true").env("HOME", directory).output().unwrap()
}

/// Resolves the conflict as the agent, plants a program that `STRATEGY` runs, and runs another command.
async fn resolve(harness: &Harness, command: &str) -> Vec<PathBuf> {
    let script = infect(harness, "tools/evil");
    let script = format!("echo both > file && git add file; {script}; mkdir git-merge-x; {command}");
    let report = harness.run(&harness.shell(&script)).await;
    names(&report).into_iter().map(Path::to_owned).collect()
}

fn new_merge_strategy_of_a_rebase_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = diverged(harness);
        assert!(!try_git(&shop, "rebase main").status.success());
        let state = shop.join(".git/rebase-merge");
        let command = format!("cd .git/rebase-merge; echo {STRATEGY} > strategy; echo -Sx > gpg_sign_opt");
        let moved = resolve(harness, &command).await;
        let output = try_git(&shop, "rebase --continue");
        assert!(!trace(harness).exists(), "{output:?}");
        assert_eq!(moved, ["gpg_sign_opt", "strategy"].map(|name| state.join(name)), "{}", harness.error());
        assert!(output.status.success() && shop.join("second").exists(), "the rebase goes on: {output:?}");
    });
}

fn new_merge_strategy_of_a_cherry_pick_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = diverged(harness);
        git(&shop, "switch -q main");
        assert!(!try_git(&shop, "cherry-pick main..topic").status.success());
        let command = format!("printf '[options]\\n\\tstrategy = {STRATEGY}\\n' > .git/sequencer/opts");
        let moved = resolve(harness, &command).await;
        let output = try_git(&shop, "cherry-pick --continue");
        assert!(!trace(harness).exists(), "{output:?}");
        assert_eq!(moved, [shop.join(".git/sequencer/opts")], "{}", harness.error());
        assert!(output.status.success() && shop.join("second").exists(), "it goes on: {output:?}");
    });
}

/// `git apply`, which `git am` runs, writes to any file that this option names.
fn new_options_of_patches_are_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = diverged(harness);
        let patches = git(&shop, "format-patch -q --stdout main..topic");
        fs::write(harness.path("home/outside/patches"), patches).unwrap();
        git(&shop, "switch -q main");
        let patches = harness.path("home/outside/patches");
        assert!(!try_git(&shop, &format!("am {}", patches.display())).status.success());
        let option = format!("--build-fake-ancestor={}", trace(harness).display());
        let moved = resolve(harness, &format!("echo \"'{option}'\" > .git/rebase-apply/apply-opt")).await;
        let output = try_git(&shop, "am --continue");
        assert!(!trace(harness).exists(), "{output:?}");
        assert_eq!(moved, [shop.join(".git/rebase-apply/apply-opt")], "{}", harness.error());
        assert!(output.status.success() && shop.join("second").exists(), "it goes on: {output:?}");
    });
}

fn linked_state_of_a_rebase_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = diverged(harness);
        assert!(!try_git(&shop, "rebase main").status.success());
        let command = format!(
            "mv .git/rebase-merge .git/other; ln -s other .git/rebase-merge; echo {STRATEGY} > .git/other/strategy"
        );
        let moved = resolve(harness, &command).await;
        let output = try_git(&shop, "rebase --continue");
        assert!(!trace(harness).exists(), "{output:?}");
        assert_eq!(moved, [shop.join(".git/rebase-merge")], "{}", harness.error());
    });
}

fn rebase_of_the_agent_with_plain_options_stays() {
    Harness::run_test(async |harness: &Harness| {
        let shop = diverged(harness);
        let script = "git config -f /tmp/c user.name a; git config -f /tmp/c user.email a@b; export GIT_CONFIG_GLOBAL=/tmp/c; \
                      git rebase -X patience main; echo both > file; git add file";
        let report = harness.run(&harness.shell(script)).await;
        assert_eq!(names(&report), Vec::<&Path>::new(), "{}", harness.error());
        let strategy = shop.join(".git/rebase-merge/strategy");
        assert_eq!(fs::read_to_string(strategy).unwrap().trim(), "ort", "{}", harness.error());
        let output = try_git(&shop, "rebase --continue");
        assert!(output.status.success(), "{output:?}");
    });
}
