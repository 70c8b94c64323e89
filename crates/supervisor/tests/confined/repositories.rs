//! Repositories in the workspace besides its own: git works in them, and the user's git runs nothing that the agent
//! left there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{CallPolicy, Confinement, Policy, Preset, Quarantined, Requirement, RunPlan};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Harness, confined};
use crate::quarantine::{COMMIT, git, in_directory, names};

testkit::tests![
    repository_in_the_workspace_keeps_its_hooks_and_config,
    repository_in_the_workspace_can_be_committed_to,
    submodule_is_updated_from_superproject,
    submodule_of_a_repository_above_can_be_committed_to,
    submodule_keeps_its_hooks_and_config,
    linked_worktree_in_the_workspace_can_be_committed_to,
    new_repository_below_is_kept_when_it_runs_no_commands,
    repository_added_as_a_submodule_runs_nothing,
    repository_hidden_among_packages_is_moved,
    git_file_that_leads_to_commands_is_moved,
    directory_that_became_a_repository_is_none_afterwards,
    repository_in_a_locked_directory_is_moved,
    repository_is_moved_after_a_killed_supervisor,
    repository_is_moved_without_namespaces_too,
    unfinished_rebase_with_new_commands_is_moved,
    unfinished_rebase_without_new_commands_stays,
];

const IDENTITY: &str = "git config user.name a && git config user.email a@b";

/// Creates a repository with a commit.
pub fn repository(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    git(directory, "init -q .");
    fs::write(directory.join("file"), "as it was").unwrap();
    git(directory, "add -A");
    git(directory, "commit -q -m first");
}

/// Makes the workspace a repository.
pub fn workspace(harness: &Harness) -> PathBuf {
    fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
    repository(&harness.workspace());
    harness.workspace()
}

/// Returns a command that leaves a trace outside of the workspace.
pub fn leaves_trace(harness: &Harness) -> String {
    format!("touch {}; false", trace(harness).display())
}

pub fn trace(harness: &Harness) -> PathBuf {
    harness.path("home/outside/trace")
}

/// Uses git in a repository as a user, a shell prompt and an editor do. No planted command may run, whether git
/// succeeds or not.
pub fn use_git(harness: &Harness, directory: &Path) {
    for args in ["status --porcelain", "diff", "commit -q --allow-empty -m mine", "log -1"] {
        let output = Command::new("git")
            .arg("-C")
            .arg(directory)
            .args(["-c", "user.name=a", "-c", "user.email=a@b"])
            .args(args.split(' '))
            .env("HOME", harness.path("home/outside"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        assert!(!trace(harness).exists(), "git {args} ran a planted command: {output:?}");
    }
}

fn plant(harness: &Harness) -> String {
    let command = leaves_trace(harness);
    format!(
        "git config core.fsmonitor '{command}'; printf '[core]\\n\\tfsmonitor = \"{command}\"\\n' >> $(git rev-parse --git-dir)/config; \
         printf '#!/bin/sh\\n{command}\\n' > $(git rev-parse --git-dir)/hooks/pre-commit; \
         chmod +x $(git rev-parse --git-dir)/hooks/pre-commit; "
    )
}

fn repository_in_the_workspace_keeps_its_hooks_and_config() {
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        let lib = harness.workspace().join("src/lib");
        repository(&lib);
        let script = format!(
            "cd src/lib; {} echo x > .envrc; mkdir .claude; for p in .git ../lib ../../src; do mv $p $p.x && mv $p.x $p; done; true",
            plant(harness)
        );
        let report = harness.run(&harness.shell(&script)).await;
        use_git(harness, &lib);
        assert_eq!(names(&report), [".claude", ".envrc"].map(|name| lib.join(name)), "{}", harness.error());
    });
}

fn repository_in_the_workspace_can_be_committed_to() {
    Harness::run_test(async |harness: &Harness| {
        let lib = workspace(harness).join("lib");
        repository(&lib);
        let script =
            format!("cd lib && echo x > new && {COMMIT} && git branch b && git switch -q b; echo $?");
        let report = harness.run(&harness.shell(&script)).await;
        assert_eq!(harness.output(), "0\n", "{}", harness.error());
        assert_eq!(git(&lib, "show --format=%s --name-only").trim(), "work\n\nnew");
        assert_eq!(names(&report), Vec::<&Path>::new());
    });
}

/// Creates a superproject with a submodule `lib`.
pub fn superproject(harness: &Harness) -> PathBuf {
    repository(&harness.path("home/origin"));
    let shop = workspace(harness);
    git(&shop, &format!("submodule --quiet add {} lib", harness.path("home/origin").display()));
    git(&shop, "commit -q -m submodule");
    shop
}

fn submodule_is_updated_from_superproject() {
    Harness::run_test(async |harness: &Harness| {
        let shop = superproject(harness);
        let script = format!(
            "cd lib && echo x > new && {COMMIT} && cd .. && git -c user.name=a -c user.email=a@b commit -q -am bump && \
             git -C lib checkout -q HEAD~1 && git submodule --quiet update && ls lib; echo $?"
        );
        let report = harness.run(&harness.shell(&script)).await;
        assert_eq!(harness.output(), "file\nnew\n0\n", "{}", harness.error());
        assert_eq!(git(&shop.join("lib"), "log -1 --format=%s").trim(), "work");
        assert_eq!(git(&shop, "status --porcelain"), "");
        assert_eq!((names(&report), &confined(&report).git_read_only), (vec![], &None));
    });
}

fn submodule_of_a_repository_above_can_be_committed_to() {
    Harness::run_test(async |harness: &Harness| {
        let mono = harness.path("home/mono");
        repository(&harness.path("home/origin"));
        repository(&mono);
        git(&mono, &format!("submodule --quiet add {} web/lib", harness.path("home/origin").display()));
        let script = format!("cd lib && echo x > new && {COMMIT}; echo $?; {}", plant(harness));
        let report = harness.run(&in_directory(harness, &mono.join("web"), &script)).await;
        assert_eq!(harness.output(), "0\n", "{}", harness.error());
        assert_eq!(names(&report), Vec::<&Path>::new());
        use_git(harness, &mono);
        use_git(harness, &mono.join("web/lib"));
    });
}

fn submodule_keeps_its_hooks_and_config() {
    Harness::run_test(async |harness: &Harness| {
        let shop = superproject(harness);
        let script = format!("cd lib; {} mv ../.git/modules ../.git/m; rm -f .git; true", plant(harness));
        let report = harness.run(&harness.shell(&script)).await;
        use_git(harness, &shop);
        use_git(harness, &shop.join("lib"));
        assert_eq!(names(&report), Vec::<&Path>::new(), "{}", harness.error());
    });
}

fn linked_worktree_in_the_workspace_can_be_committed_to() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        git(&shop, "worktree add -q fix");
        let script = format!(
            "cd fix && echo x > new && {COMMIT}; echo $?; echo /elsewhere > ../.git/worktrees/fix/commondir; \
             rm -f .git ../.git/worktrees/fix/gitdir; true"
        );
        let report = harness.run(&harness.shell(&script)).await;
        assert_eq!(harness.output(), "0\n", "{}", harness.error());
        assert_eq!(git(&shop.join("fix"), "log -1 --format=%s").trim(), "work");
        assert_eq!(names(&report), Vec::<&Path>::new());
    });
}

fn new_repository_below_is_kept_when_it_runs_no_commands() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let script = format!(
            "mkdir a && cd a && git init -q . && {IDENTITY} && echo x > file && {COMMIT} && cd .. && git clone -q $PWD/a b && \
             git init -q --bare c.git && git worktree add -q d; echo $?"
        );
        let report = harness.run(&harness.shell(&script)).await;
        assert_eq!(harness.output(), "0\n", "{}", harness.error());
        assert_eq!(names(&report), Vec::<&Path>::new());
        for name in ["a", "b", "d"] {
            git(&shop.join(name), "log -1");
        }
    });
}

/// `git status` above runs `git status` in each submodule.
fn repository_added_as_a_submodule_runs_nothing() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let script = format!(
            "mkdir lib && cd lib && git init -q . && {IDENTITY} && echo x > file && {COMMIT} && {} cd .. && \
             git -c core.fsmonitor= add lib && git -c user.name=a -c user.email=a@b commit -q -m link; git ls-files -s lib",
            plant(harness)
        );
        let report = harness.run(&harness.shell(&script)).await;
        assert!(harness.output().starts_with("160000 "), "{}", harness.error());
        use_git(harness, &shop);
        use_git(harness, &shop.join("lib"));
        assert_eq!(names(&report), [shop.join("lib/.git")]);
    });
}

fn repository_hidden_among_packages_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let deep = "node_modules/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p";
        let script = format!("mkdir -p {deep} && cd {deep} && git init -q . && {} true", plant(harness));
        let report = harness.run(&harness.shell(&script)).await;
        use_git(harness, &shop.join(deep));
        assert_eq!(names(&report), [shop.join(deep).join(".git")], "{}", harness.error());
    });
}

fn git_file_that_leads_to_commands_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let script = format!(
            "git init -q .git/evil && cd .git/evil && {} cd ../.. && mv .git/evil/.git .git/other && mkdir lib && \
             echo 'gitdir: ../.git/other' > lib/.git",
            plant(harness)
        );
        let report = harness.run(&harness.shell(&script)).await;
        use_git(harness, &shop.join("lib"));
        assert_eq!(names(&report), [shop.join("lib/.git")], "{}", harness.error());
    });
}

fn directory_that_became_a_repository_is_none_afterwards() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        fs::create_dir(shop.join("src")).unwrap();
        fs::write(shop.join("src/code"), "as it was").unwrap();
        let command = leaves_trace(harness);
        let script = format!(
            "cd src && mkdir objects refs && echo 'ref: refs/heads/main' > HEAD && \
             printf '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tworktree = '$PWD'\\n\\tfsmonitor = \"{command}\"\\n' > config"
        );
        let report = harness.run(&harness.shell(&script)).await;
        use_git(harness, &shop.join("src"));
        assert_eq!(names(&report), [shop.join("src/HEAD")], "{}", harness.error());
        assert!(shop.join("src/code").exists());
    });
}

/// Git enters a directory that it can search, whether it can list it or not.
fn repository_in_a_locked_directory_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let script = format!(
            "mkdir -p a/lib && cd a/lib && git init -q . && {} cd ../.. && chmod 100 a/lib && chmod 100 a",
            plant(harness)
        );
        let report = harness.run(&harness.shell(&script)).await;
        use_git(harness, &shop.join("a/lib"));
        assert_eq!(names(&report), [shop.join("a/lib/.git")], "{}", harness.error());
    });
}

fn repository_is_moved_after_a_killed_supervisor() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let script = format!(
            "mkdir lib && cd lib && git init -q . && {} echo up; while :; do sleep 1; done",
            plant(harness)
        );
        let run = harness.start(&harness.shell(&script)).await;
        harness.wait_for_output("up").await;
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        let report = run.wait().await.unwrap();
        use_git(harness, &shop.join("lib"));
        assert_eq!(names(&report), [shop.join("lib/.git")]);
    });
}

fn repository_is_moved_without_namespaces_too() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let policy = CallPolicy { requirement: Requirement::BestEffort, ..Preset::Workspace.into() };
        let confinement = Confinement { namespaces: false, ..harness.confinement(policy) };
        let script = format!("mkdir lib && cd lib && git init -q . && {} true", plant(harness));
        let plan = RunPlan { policy: Policy::Confined(Box::new(confinement)), ..harness.shell(&script) };
        let report = harness.run(&plan).await;
        use_git(harness, &shop.join("lib"));
        assert_eq!(names(&report), [shop.join("lib/.git")], "{}", harness.error());
    });
}

fn unfinished_rebase_with_new_commands_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let script = format!(
            "mkdir .git/rebase-merge && cd .git/rebase-merge && git rev-parse HEAD > onto && cp onto orig-head && \
             echo refs/heads/master > head-name && echo 'exec {}' > git-rebase-todo && touch interactive done && \
             echo 1 > msgnum && echo 1 > end",
            leaves_trace(harness)
        );
        let report = harness.run(&harness.shell(&script)).await;
        let _ = Command::new("git").arg("-C").arg(&shop).args(["rebase", "--continue"]).output().unwrap();
        assert!(!trace(harness).exists());
        assert_eq!(names(&report), [shop.join(".git/rebase-merge")], "{}", harness.error());
        let Quarantined { moved_to, .. } = &confined(&report).quarantined[0];
        assert!(moved_to.as_ref().unwrap().join("git-rebase-todo").exists());
    });
}

fn unfinished_rebase_without_new_commands_stays() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        // The user's own, with the user's own command.
        let state = shop.join(".git/rebase-merge");
        fs::create_dir(&state).unwrap();
        fs::write(state.join("git-rebase-todo"), "exec make test\npick 1a2b3c4 first\n").unwrap();
        let script = "echo 'exec make test' > .git/rebase-merge/git-rebase-todo; mkdir -p .git/sequencer; \
                      echo 'pick 1a2b3c4 x' > .git/sequencer/todo";
        let report = harness.run(&harness.shell(script)).await;
        assert_eq!(names(&report), Vec::<&Path>::new(), "{}", harness.error());
        assert!(state.exists() && shop.join(".git/sequencer").exists());
    });
}
