//! Programs in the workspace that are named in the git configuration: the user's git runs none that the agent changed
//! or created.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use model::{Confined, RunPlan};

use crate::harness::{Harness, confined};
use crate::quarantine::{COMMIT, git, names};
use crate::repositories::{leaves_trace, repository, trace, use_git, workspace};

testkit::tests![
    hooks_in_the_workspace_stay_as_they_are,
    hooks_that_wrappers_run_stay_as_they_are,
    directory_of_hooks_stays_read_only_around_a_program,
    directory_of_hooks_stays_read_only_around_a_repository,
    new_hooks_are_moved,
    hooks_of_the_global_configuration_stay_as_they_are,
    programs_that_git_runs_stay_as_they_are,
    programs_behind_shell_expansions_stay_as_they_are,
    programs_of_a_nested_repository_stay_as_they_are,
    new_program_that_git_runs_is_moved,
    repository_with_hooks_in_the_workspace_is_committed_to,
    commits_without_hooks_are_counted,
    commits_without_signature_are_counted,
];

/// Writes a program that does nothing.
pub fn program(path: &Path) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

/// Returns a script that modifies and replaces `paths` so that they would leave a trace.
pub fn infect(harness: &Harness, paths: &str) -> String {
    let command = leaves_trace(harness);
    format!(
        "for p in {paths}; do mkdir -p $(dirname $p); printf '#!/bin/sh\\n{command}\\n' > evil; chmod +x evil; \
         cat evil > $p; chmod +x $p; cp -f evil $p; mv -f evil $p; done 2>&1 | sort -u"
    )
}

fn hooks_in_the_workspace_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        program(&shop.join(".githooks/pre-commit"));
        git(&shop, "config core.hooksPath .githooks");
        let script = infect(harness, ".githooks/pre-commit .githooks/post-commit");
        let report =
            harness.run(&harness.shell(&format!("{script}; mv .githooks x && mv x .githooks"))).await;
        use_git(harness, &shop);
        assert!(harness.output().contains("Read-only file system"), "{}", harness.output());
        assert_eq!(names(&report), Vec::<&Path>::new());
    });
}

/// A directory that is pinned on the way to the monitor must not become writable thereby.
fn directory_of_hooks_stays_read_only_around_a_program() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        program(&shop.join("hooks/lib/monitor"));
        program(&shop.join("hooks/lib/check"));
        let hook = program(&shop.join("hooks/pre-commit"));
        fs::write(hook, "#!/bin/sh\nhooks/lib/check\n").unwrap();
        git(&shop, "config core.hooksPath hooks");
        git(&shop, "config core.fsmonitor hooks/lib/monitor");
        harness.run(&harness.shell(&infect(harness, "hooks/lib/check hooks/lib/monitor"))).await;
        use_git(harness, &shop);
    });
}

fn directory_of_hooks_stays_read_only_around_a_repository() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        repository(&shop.join("hooks/lib"));
        program(&shop.join("hooks/lib/check"));
        let hook = program(&shop.join("hooks/pre-commit"));
        fs::write(hook, "#!/bin/sh\nhooks/lib/check\n").unwrap();
        git(&shop, "config core.hooksPath hooks");
        harness.run(&harness.shell(&infect(harness, "hooks/lib/check"))).await;
        use_git(harness, &shop);
    });
}

/// As set up by husky: git runs `.husky/_/pre-commit`, which runs `.husky/pre-commit`.
fn hooks_that_wrappers_run_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        program(&shop.join(".husky/pre-commit"));
        let wrapper = program(&shop.join(".husky/_/pre-commit"));
        fs::write(&wrapper, "#!/bin/sh\nsh .husky/pre-commit\n").unwrap();
        git(&shop, "config core.hooksPath .husky/_");
        harness.run(&harness.shell(&infect(harness, ".husky/pre-commit .husky/_/pre-commit"))).await;
        use_git(harness, &shop);
    });
}

fn new_hooks_are_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        git(&shop, "config core.hooksPath .githooks");
        let report = harness.run(&harness.shell(&infect(harness, ".githooks/pre-commit"))).await;
        use_git(harness, &shop);
        assert_eq!(names(&report), [shop.join(".githooks")], "{}", harness.output());
    });
}

fn hooks_of_the_global_configuration_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        program(&shop.join(".githooks/pre-commit"));
        fs::write(harness.path("home/.gitconfig"), "[core]\n\thooksPath = .githooks\n").unwrap();
        let before = fs::read(shop.join(".githooks/pre-commit")).unwrap();
        harness.run(&harness.shell(&infect(harness, ".githooks/pre-commit"))).await;
        assert_eq!(fs::read(shop.join(".githooks/pre-commit")).unwrap(), before);
    });
}

fn programs_that_git_runs_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        for name in ["tools/monitor", "tools/clean.sh", "tools/included"] {
            program(&shop.join(name));
        }
        let config = "[include]\n\tpath = ../team.gitconfig\n[core]\n\tfsmonitor = tools/monitor\n\
                      [filter \"x\"]\n\tclean = sh tools/clean.sh %f\n\tsmudge = cat\n";
        let own = fs::read_to_string(shop.join(".git/config")).unwrap();
        fs::write(shop.join(".git/config"), own + config).unwrap();
        fs::write(shop.join("team.gitconfig"), "[diff \"y\"]\n\ttextconv = ./tools/included\n").unwrap();
        fs::write(shop.join(".gitattributes"), "* filter=x diff=y\n").unwrap();
        let script = infect(harness, "tools/monitor tools/clean.sh tools/included");
        harness
            .run(&harness.shell(&format!("{script}; echo changed > file; echo new > tools/other; echo $?")))
            .await;
        use_git(harness, &shop);
        assert!(harness.output().ends_with("0\n"), "the rest can be written: {}", harness.output());
        assert_eq!(fs::read_to_string(shop.join("file")).unwrap(), "changed\n");
    });
}

fn programs_behind_shell_expansions_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let names = ["tools/monitor", "tools/clean", "tools/alias", "tools/home"];
        let programs = names.map(|name| program(&shop.join(name)));
        let config = "[core]\n\tfsmonitor = \"\\\"$(git rev-parse --show-toplevel)\\\"/tools/monitor\"\n\
                      [filter \"x\"]\n\tclean = \"\\\"$(pwd -P)\\\"/tools/clean %f\"\n\
                      [diff]\n\texternal = \"$HOME/shop/tools/home\"\n\
                      [alias]\n\ta = \"!\\\"${GIT_PREFIX:-.}\\\"/tools/alias\"\n";
        let own = fs::read_to_string(shop.join(".git/config")).unwrap();
        fs::write(shop.join(".git/config"), own + config).unwrap();
        fs::write(shop.join(".gitattributes"), "* filter=x\n").unwrap();
        let before = programs.each_ref().map(|path| fs::read_to_string(path).unwrap());
        harness
            .run(&harness.shell(&format!("{}; echo changed > file", infect(harness, &names.join(" ")))))
            .await;
        use_git(harness, &shop);
        assert_eq!(programs.map(|path| fs::read_to_string(path).unwrap()), before);
    });
}

fn programs_of_a_nested_repository_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let lib = workspace(harness).join("lib");
        repository(&lib);
        program(&lib.join("hooks/pre-commit"));
        git(&lib, "config core.hooksPath hooks");
        harness.run(&harness.shell(&infect(harness, "lib/hooks/pre-commit"))).await;
        use_git(harness, &lib);
    });
}

fn new_program_that_git_runs_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        fs::create_dir(shop.join("tools")).unwrap();
        git(&shop, "config core.fsmonitor ./tools/monitor");
        let report = harness.run(&harness.shell(&infect(harness, "tools/monitor"))).await;
        use_git(harness, &shop);
        assert_eq!(names(&report), [shop.join("tools/monitor")], "{}", harness.output());
    });
}

fn repository_with_hooks_in_the_workspace_is_committed_to() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let hook = program(&shop.join(".githooks/pre-commit"));
        fs::write(&hook, "#!/bin/sh\ntouch checked\n").unwrap();
        git(&shop, "config core.hooksPath .githooks");
        let report = harness.run(&harness.shell(&format!("echo x > new; {COMMIT}; echo $?"))).await;
        assert_eq!(harness.output(), "0\n", "{}", harness.error());
        assert!(shop.join("checked").exists() && !trace(harness).exists());
        assert_eq!(names(&report), Vec::<&Path>::new());
    });
}

/// Returns a script that commits twice, in an agent whose git runs no hooks.
fn commits_twice(harness: &Harness) -> RunPlan {
    let mut plan = harness.shell(&format!("for n in 1 2; do echo $n > new && {COMMIT} || exit; done"));
    plan.env.extend(
        [("COUNT", "1"), ("KEY_0", "core.hooksPath"), ("VALUE_0", "/dev/null")]
            .map(|(name, value)| (format!("GIT_CONFIG_{name}"), value.to_owned())),
    );
    plan
}

/// Runs a plan in a separate spool.
async fn run_again(harness: &Harness, plan: &RunPlan) -> Confined {
    let report = harness.run(plan).await;
    fs::remove_dir_all(harness.spool()).unwrap();
    confined(&report).clone()
}

fn commits_without_hooks_are_counted() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        let counted = async |plan| run_again(harness, &plan).await.commits_without_hooks;
        program(&shop.join(".git/hooks/pre-push"));
        fs::write(shop.join(".git/hooks/commit-msg"), "not executable").unwrap();
        assert_eq!(counted(commits_twice(harness)).await, 0, "no hook would have run");
        program(&shop.join(".git/hooks/pre-commit"));
        assert_eq!(counted(commits_twice(harness)).await, 2);
        assert_eq!(
            counted(harness.shell("git log --oneline; echo x > new")).await,
            0,
            "nothing is committed"
        );
        let plain = harness.shell(&format!("echo 3 > new && {COMMIT}"));
        assert_eq!(counted(plain).await, 0, "the hook has run");
        fs::remove_file(shop.join(".git/hooks/pre-commit")).unwrap();
        fs::create_dir_all(shop.join(".husky/_")).unwrap();
        fs::write(shop.join(".husky/pre-commit"), "npm test\n").unwrap();
        git(&shop, "config core.hooksPath .husky/_");
        assert_eq!(counted(commits_twice(harness)).await, 2, "husky");
    });
}

fn commits_without_signature_are_counted() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        fs::write(harness.path("home/.gitconfig"), "[commit]\n\tgpgSign = true\n").unwrap();
        let mut plan = commits_twice(harness);
        // The part of it that a confined agent sees.
        plan.env.insert("GIT_CONFIG_GLOBAL".to_owned(), "/dev/null".to_owned());
        assert_eq!(run_again(harness, &plan).await.unsigned_commits, 2);
        git(&shop, "config commit.gpgSign false");
        assert_eq!(
            run_again(harness, &plan).await.unsigned_commits,
            0,
            "unsigned by the repository's own wish"
        );
    });
}
