//! Symbolic links from git's files into the workspace: the agent cannot change their targets.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use model::{CallPolicy, Policy, Preset, Requirement, RunPlan, RunReport};

use crate::configured::{infect, program};
use crate::harness::{Harness, confined};
use crate::quarantine::{git, names};
use crate::repositories::{repository, superproject, use_git, workspace};

testkit::tests![
    hook_that_is_a_link_stays_as_it_is,
    hook_that_is_a_link_of_a_link_is_reported,
    hook_that_is_a_dangling_link_is_moved_once_created,
    linked_hooks_of_a_configured_directory_stay_as_they_are,
    linked_hooks_outside_of_the_workspace_stay_as_they_are,
    linked_hooks_of_nested_repositories_stay_as_they_are,
    hooks_directory_that_is_a_link_stays_as_it_is,
    global_configuration_in_the_workspace_stays_as_it_is,
    files_of_other_git_settings_stay_as_they_are,
];

/// Returns a plan that starts even if not everything can be protected.
fn best_effort(harness: &Harness, script: &str) -> RunPlan {
    let policy = CallPolicy { requirement: Requirement::BestEffort, ..Preset::Workspace.into() };
    let policy = Policy::Confined(Box::new(harness.confinement(policy)));
    RunPlan { policy, ..harness.shell(script) }
}

/// Returns whether the result reports that the agent could replace a link.
fn reports_links(report: &RunReport) -> bool {
    confined(report).gaps().any(|gap| gap.why.contains("except for links"))
}

fn hook_that_is_a_link_stays_as_it_is() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        program(&shop.join("scripts/pre-commit"));
        symlink("../../scripts/pre-commit", shop.join(".git/hooks/pre-commit")).unwrap();
        let script = infect(harness, "scripts/pre-commit");
        let script = format!("{script}; mv scripts x && mv x scripts; echo new > scripts/other; echo $?");
        let report = harness.run(&harness.shell(&script)).await;
        use_git(harness, &shop);
        assert!(harness.output().contains("Read-only file system"), "{}", harness.output());
        assert!(harness.output().ends_with("0\n"), "the rest can be written: {}", harness.output());
        assert_eq!(names(&report), Vec::<&Path>::new());
    });
}

/// A link in the workspace can be replaced, which no mount prevents: the result reports it, and its target is protected
/// regardless.
fn hook_that_is_a_link_of_a_link_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        program(&shop.join("scripts/real"));
        symlink("real", shop.join("scripts/pre-commit")).unwrap();
        symlink("../../scripts/pre-commit", shop.join(".git/hooks/pre-commit")).unwrap();
        let report = harness.run(&best_effort(harness, &infect(harness, "scripts/real"))).await;
        use_git(harness, &shop);
        assert!(reports_links(&report), "{report:?}");
    });
}

fn hook_that_is_a_dangling_link_is_moved_once_created() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        fs::create_dir(shop.join("scripts")).unwrap();
        symlink("../../scripts/pre-commit", shop.join(".git/hooks/pre-commit")).unwrap();
        symlink(shop.join("tools/post-commit"), shop.join(".git/hooks/post-commit")).unwrap();
        let report =
            harness.run(&harness.shell(&infect(harness, "scripts/pre-commit tools/post-commit"))).await;
        use_git(harness, &shop);
        assert_eq!(names(&report), ["scripts/pre-commit", "tools"].map(|name| shop.join(name)));
    });
}

fn linked_hooks_of_a_configured_directory_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        program(&shop.join("tools/check"));
        fs::create_dir(shop.join("hooks")).unwrap();
        symlink("../tools/check", shop.join("hooks/pre-commit")).unwrap();
        git(&shop, "config core.hooksPath hooks");
        harness.run(&harness.shell(&infect(harness, "tools/check"))).await;
        use_git(harness, &shop);
    });
}

fn linked_hooks_outside_of_the_workspace_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        program(&shop.join("tools/check"));
        let hooks = harness.path("home/outside/hooks");
        fs::create_dir(&hooks).unwrap();
        symlink(shop.join("tools/check"), hooks.join("pre-commit")).unwrap();
        git(&shop, &format!("config core.hooksPath {}", hooks.display()));
        harness.run(&harness.shell(&infect(harness, "tools/check"))).await;
        use_git(harness, &shop);
    });
}

fn linked_hooks_of_nested_repositories_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let shop = superproject(harness);
        repository(&shop.join("own"));
        program(&shop.join("tools/check"));
        for hooks in [".git/modules/lib/hooks", "own/.git/hooks"] {
            symlink(shop.join("tools/check"), shop.join(hooks).join("pre-commit")).unwrap();
        }
        harness.run(&harness.shell(&infect(harness, "tools/check"))).await;
        use_git(harness, &shop.join("lib"));
        use_git(harness, &shop.join("own"));
    });
}

fn hooks_directory_that_is_a_link_stays_as_it_is() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        program(&shop.join("githooks/pre-commit"));
        fs::remove_dir_all(shop.join(".git/hooks")).unwrap();
        symlink("../githooks", shop.join(".git/hooks")).unwrap();
        let script = infect(harness, "githooks/pre-commit githooks/post-commit");
        let report = harness.run(&best_effort(harness, &script)).await;
        use_git(harness, &shop);
        assert!(reports_links(&report), "{report:?}");
    });
}

fn global_configuration_in_the_workspace_stays_as_it_is() {
    Harness::run_test(async |harness: &Harness| {
        let shop = workspace(harness);
        for (name, text) in [
            ("gitconfig", "[include]\n\tpath = ~/shop/team\n"),
            ("team", "[core]\n\tfsmonitor = tools/monitor\n"),
            ("xdg/config", "[user]\n\tname = a\n"),
        ] {
            let file = shop.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        program(&shop.join("tools/monitor"));
        symlink("shop/gitconfig", harness.path("home/.gitconfig")).unwrap();
        fs::create_dir_all(harness.path("home/.config")).unwrap();
        symlink(shop.join("xdg"), harness.path("home/.config/git")).unwrap();
        let files = ["gitconfig", "team", "xdg/config", "tools/monitor"];
        let contents = || files.map(|name| fs::read_to_string(shop.join(name)).unwrap());
        let before = contents();
        let report = harness.run(&harness.shell(&infect(harness, &files.join(" ")))).await;
        assert_eq!(contents(), before);
        assert_eq!(names(&report), Vec::<&Path>::new());
    });
}

/// Without a repository in the workspace: the user's settings apply everywhere.
fn files_of_other_git_settings_stay_as_they_are() {
    Harness::run_test(async |harness: &Harness| {
        let shop = harness.workspace();
        fs::remove_dir_all(shop.join(".git")).unwrap();
        fs::write(harness.path("home/.gitconfig"), "[init]\n\ttemplateDir = ~/shop/template\n").unwrap();
        let settings = shop.join("config/git/config");
        fs::create_dir_all(settings.parent().unwrap()).unwrap();
        fs::write(&settings, "[user]\n\tname = a\n").unwrap();
        let hook = program(&shop.join("template/hooks/post-checkout"));
        let read = || [&settings, &hook].map(|path| fs::read_to_string(path).unwrap());
        let before = read();
        let script =
            infect(harness, "config/git/config template/hooks/post-checkout template/hooks/pre-commit");
        let mut plan = harness.shell(&script);
        plan.env.insert("XDG_CONFIG_HOME".to_owned(), shop.join("config").display().to_string());
        let report = harness.run(&plan).await;
        assert_eq!(read(), before);
        assert!(!shop.join("template/hooks/pre-commit").exists());
        assert_eq!(names(&report), Vec::<&Path>::new());
    });
}
