//! Protected paths that an agent creates: none stays, none is lost, and no file of the supervisor is ever in the
//! workspace.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{
    Caches, CallPolicy, Confinement, End, Enforcement, Exit, Policy, PolicyRoot, Preset, Quarantined,
    Requirement, RunPlan, RunReport, SafeguardName,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Harness, confined};

testkit::tests![
    workspace_contains_no_files_of_the_supervisor,
    created_files_stay_usable_until_run_ends,
    path_read_by_git_is_moved_at_once,
    repeatedly_created_path_stops_run,
    quarantined_directory_is_no_escape,
    created_paths_are_moved_after_a_killed_supervisor,
    path_in_directory_without_rights_is_moved,
    editor_hooks_are_protected_and_rules_are_not,
    user_file_that_existed_before_stays,
    new_repository_is_kept_when_it_runs_no_commands,
    new_repository_with_a_hook_is_moved,
    new_repository_without_rights_is_moved,
    new_repository_in_a_rebase_is_moved,
    prepared_submodule_is_moved,
    spoiled_caches_are_usable_by_the_next_run,
    without_namespaces_created_paths_are_moved_too,
    call_in_a_subdirectory_commits,
    call_in_a_subdirectory_cannot_write_beside_it,
    call_in_a_submodule_commits,
    repository_of_the_whole_home_is_read_only_and_reported,
    tracked_file_that_is_hidden_is_not_committed_as_deleted,
    included_git_configuration_is_protected,
];

/// Lists the names below a directory, with their contents.
fn tree(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut entries: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    let below = |path: PathBuf| {
        if path.is_dir() && !path.is_symlink() {
            tree(&path)
        } else {
            vec![(path.clone(), fs::read_to_string(&path).unwrap_or_default())]
        }
    };
    entries.into_iter().flat_map(below).collect()
}

pub fn names(report: &RunReport) -> Vec<&Path> {
    confined(report).quarantined.iter().map(|entry| entry.path.as_path()).collect()
}

pub fn git(directory: &Path, args: &str) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"])
        .args(args.split(' '))
        .env("HOME", directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub const COMMIT: &str = "git add -A && git -c user.name=a -c user.email=a@b commit -q -m work";

fn workspace_contains_no_files_of_the_supervisor() {
    Harness::run_test(async |harness: &Harness| {
        let before = tree(&harness.path("home"));
        let run = harness
            .start(&harness.shell("ls -A . .git; echo up; while [ ! -e stop ]; do sleep 0.01; done"))
            .await;
        harness.wait_for_output("up").await;
        assert_eq!(tree(&harness.path("home")), before);
        assert!(harness.output().starts_with(".:\n.git\n"), "inside neither: {}", harness.output());
        fs::write(harness.workspace().join("stop"), "").unwrap();
        let report = run.wait().await.unwrap();
        fs::remove_file(harness.workspace().join("stop")).unwrap();
        assert_eq!((tree(&harness.path("home")), names(&report)), (before, vec![]));
        assert!(!harness.spool().join("quarantine.json").exists());
    });
}

fn created_files_stay_usable_until_run_ends() {
    Harness::run_test(async |harness: &Harness| {
        let script = "mkdir .vscode; echo x > .vscode/launch.json; cat .vscode/launch.json; echo y > .envrc";
        let report = harness.run(&harness.shell(script)).await;
        assert_eq!(
            (harness.output().as_str(), report.exit),
            ("x\n", Some(Exit::Code(0))),
            "{}",
            harness.error()
        );
        let (envrc, vscode) = (harness.workspace().join(".envrc"), harness.workspace().join(".vscode"));
        assert!(!envrc.exists() && !vscode.exists());
        assert_eq!(names(&report), [envrc.as_path(), &vscode]);
        // `mv` restores it, as the result suggests.
        let Quarantined { path, moved_to, .. } = &confined(&report).quarantined[1];
        fs::rename(moved_to.as_ref().unwrap(), path).unwrap();
        assert_eq!(fs::read_to_string(vscode.join("launch.json")).unwrap(), "x\n");
    });
}

fn path_read_by_git_is_moved_at_once() {
    Harness::run_test(async |harness: &Harness| {
        let script = "echo evil > .git/commondir; while [ -e .git/commondir ]; do sleep 0.01; done; echo gone; \
                      mkdir .git/x; echo evil > .git/x/y; mv .git/x .git/config.worktree; \
                      while [ -e .git/config.worktree ]; do sleep 0.01; done; echo gone again";
        let report = harness.run(&harness.shell(script)).await;
        assert_eq!(harness.output(), "gone\ngone again\n", "{}", harness.error());
        let expected =
            ["config.worktree", "commondir"].map(|name| harness.workspace().join(".git").join(name));
        assert_eq!(names(&report), expected);
    });
}

fn repeatedly_created_path_stops_run() {
    Harness::run_test(async |harness: &Harness| {
        let script = "while :; do echo evil > .git/commondir; while [ -e .git/commondir ]; do :; done; done";
        let report = harness.run(&harness.shell(script)).await;
        let path = harness.workspace().join(".git/commondir");
        assert_eq!(report.end, End::PolicyViolation { path: path.clone() });
        assert!(fs::symlink_metadata(&path).is_err());
        assert!(names(&report).len() >= 4, "{report:?}");
    });
}

/// The agent's working directory may be inside a directory while it is moved.
fn quarantined_directory_is_no_escape() {
    Harness::run_test(async |harness: &Harness| {
        let script = format!(
            "w=$PWD; mkdir .git/x; cd .git/x; mv $w/.git/x $w/.git/commondir; while [ -e $w/.git/commondir ]; do sleep 0.01; done; \
             ls -a ..; ls ../..; echo x > ../planted; cat {0}/output; echo x > {0}/planted; echo x > planted; echo done",
            harness.spool().display()
        );
        let report = harness.run(&harness.shell(&script)).await;
        assert_eq!(harness.output(), "done\n", "{}", harness.error());
        let moved_to = confined(&report).quarantined[0].moved_to.clone().unwrap();
        let beside: Vec<_> = fs::read_dir(moved_to.parent().unwrap()).unwrap().collect();
        assert_eq!(beside.len(), 1, "{beside:?}");
        assert!(!harness.spool().join("planted").exists());
    });
}

fn created_paths_are_moved_after_a_killed_supervisor() {
    Harness::run_test(async |harness: &Harness| {
        let script = "echo x > .envrc; mkdir .claude; echo up; while :; do sleep 1; done";
        let run = harness.start(&harness.shell(script)).await;
        harness.wait_for_output("up").await;
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!(report.end, End::SupervisorLost);
        let expected = [".claude", ".envrc"].map(|name| harness.workspace().join(name));
        assert_eq!(names(&report), expected);
        let left: Vec<_> =
            fs::read_dir(harness.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".git"]);
        assert!(!harness.spool().join("quarantine.json").exists());
        assert_eq!(supervisor::recover(&harness.spool()).unwrap(), report);
        let gaps: Vec<_> = confined(&report).gaps().map(|gap| (gap.name, gap.enforcement)).collect();
        assert!(gaps.contains(&(SafeguardName::ProtectedPaths, Enforcement::Partial)), "{gaps:?}");
    });
}

fn path_in_directory_without_rights_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let script = "mkdir .claude; echo x > .claude/settings.json; chmod 500 .claude .";
        let report = harness.run(&harness.shell(script)).await;
        let mode = fs::metadata(harness.workspace()).unwrap().permissions().mode() & 0o777;
        fs::set_permissions(harness.workspace(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(mode, 0o500, "{}", harness.error());
        assert_eq!(names(&report), [harness.workspace().join(".claude")]);
        assert!(!harness.workspace().join(".claude").exists());
    });
}

fn editor_hooks_are_protected_and_rules_are_not() {
    Harness::run_test(async |harness: &Harness| {
        let cursor = harness.workspace().join(".cursor");
        fs::create_dir(&cursor).unwrap();
        fs::write(cursor.join("mcp.json"), "as it was").unwrap();
        let script = "for name in hooks.json mcp.json rules; do echo x > .cursor/$name; done; true";
        let report = harness.run(&harness.shell(script)).await;
        assert_eq!(names(&report), [cursor.join("hooks.json")], "{}", harness.error());
        assert_eq!(fs::read_to_string(cursor.join("mcp.json")).unwrap(), "as it was");
        assert!(cursor.join("rules").exists());
    });
}

fn user_file_that_existed_before_stays() {
    Harness::run_test(async |harness: &Harness| {
        fs::write(harness.workspace().join(".envrc"), "as it was").unwrap();
        let report = harness.run(&harness.shell("echo x > .envrc; rm -f .envrc; mv .envrc y; true")).await;
        assert_eq!(fs::read_to_string(harness.workspace().join(".envrc")).unwrap(), "as it was");
        assert_eq!(names(&report), Vec::<&Path>::new());
    });
}

fn new_repository_is_kept_when_it_runs_no_commands() {
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        let script = format!("git init -q . && git config user.name a && echo x > file && {COMMIT}; echo $?");
        let report = harness.run(&harness.shell(&script)).await;
        assert_eq!(harness.output(), "0\n", "{}", harness.error());
        assert_eq!(names(&report), Vec::<&Path>::new());
        assert_eq!(git(&harness.workspace(), "show --format=%s --name-only").trim(), "work\n\nfile");
    });
}

fn new_repository_with_a_hook_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        let script =
            format!("git init -q . && echo x > file && {COMMIT}; echo $?; echo evil > .git/hooks/pre-commit");
        let report = harness.run(&harness.shell(&script)).await;
        assert_eq!(harness.output(), "0\n", "{}", harness.error());
        assert_eq!(names(&report), [harness.workspace().join(".git")]);
        assert!(!harness.workspace().join(".git").exists() && harness.workspace().join("file").exists());
    });
}

fn new_repository_without_rights_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        let script = "git init -q . && git config core.fsmonitor 'touch evil; false' && chmod 000 .git";
        let report = harness.run(&harness.shell(script)).await;
        assert_eq!(names(&report), [harness.workspace().join(".git")], "{}", harness.error());
        assert!(fs::symlink_metadata(harness.workspace().join(".git")).is_err());
    });
}

fn new_repository_in_a_rebase_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        fs::remove_dir_all(harness.workspace().join(".git")).unwrap();
        let script = "git init -q . && mkdir .git/rebase-merge && echo 'exec touch evil' > .git/rebase-merge/git-rebase-todo";
        let report = harness.run(&harness.shell(script)).await;
        assert_eq!(names(&report), [harness.workspace().join(".git")], "{}", harness.error());
    });
}

fn prepared_submodule_is_moved() {
    Harness::run_test(async |harness: &Harness| {
        let script = "mkdir -p .git/modules/lib/hooks && echo evil > .git/modules/lib/hooks/post-checkout";
        let report = harness.run(&harness.shell(script)).await;
        let module = harness.workspace().join(".git/modules/lib");
        assert_eq!(names(&report), [module.as_path()], "{}", harness.error());
        assert!(!module.exists());
    });
}

fn spoiled_caches_are_usable_by_the_next_run() {
    Harness::run_test(async |harness: &Harness| {
        let (directory, users) = (harness.path("state/caches/workspace"), harness.path("home/.cargo"));
        fs::create_dir(&users).unwrap();
        fs::write(users.join("config.toml"), "[net]\nretry = 2\n").unwrap();
        let plan = |script: &str| {
            let confinement = harness.confinement(CallPolicy::default());
            let caches = Caches::new(Some(directory.clone()), Some(&users), |_| false);
            let roots = confinement.roots.iter().cloned().chain([PolicyRoot::created(&directory)]).collect();
            let confinement = Confinement { caches: Some(caches), roots, ..confinement };
            RunPlan { policy: Policy::Confined(Box::new(confinement)), ..harness.shell(script) }
        };
        for spoil in [
            "chmod 000 $(dirname $npm_config_cache)",
            "chmod 000 $npm_config_cache $CARGO_HOME",
            "rm $CARGO_HOME/config.toml && mkdir -p $CARGO_HOME/config.toml/x && chmod 000 $CARGO_HOME/config.toml",
            "rm -r $CARGO_HOME && mkfifo $CARGO_HOME",
            "rm -r $CARGO_HOME && ln -s $HOME/.cargo $CARGO_HOME",
        ] {
            let report = harness.run(&plan(&format!("{spoil} && echo spoiled"))).await;
            assert_eq!(harness.output(), "spoiled\n", "{spoil}: {report:?}");
            fs::remove_dir_all(harness.spool()).unwrap();
            let report = harness.run(&plan("touch $npm_config_cache/x && cat $CARGO_HOME/config.toml")).await;
            assert_eq!(harness.output(), "[net]\nretry = 2\n", "{spoil}: {report:?}");
            fs::remove_dir_all(harness.spool()).unwrap();
        }
    });
}

fn without_namespaces_created_paths_are_moved_too() {
    Harness::run_test(async |harness: &Harness| {
        let policy = CallPolicy { requirement: Requirement::BestEffort, ..Preset::Workspace.into() };
        let confinement = Confinement { namespaces: false, ..harness.confinement(policy) };
        let script = "echo x > .envrc; echo x > .git/commondir; while [ -e .git/commondir ]; do sleep 0.01; done; echo gone";
        let plan = RunPlan { policy: Policy::Confined(Box::new(confinement)), ..harness.shell(script) };
        let report = harness.run(&plan).await;
        assert_eq!(harness.output(), "gone\n", "{}", harness.error());
        let expected = [".git/commondir", ".envrc"].map(|name| harness.workspace().join(name));
        assert_eq!(names(&report), expected);
    });
}

/// Creates a repository around the workspace, with a commit.
fn repository_above(harness: &Harness) -> PathBuf {
    let above = harness.path("home/mono");
    fs::create_dir_all(above.join("web")).unwrap();
    git(&above, "init -q");
    for name in ["README", "web/page"] {
        fs::write(above.join(name), "as it was").unwrap();
    }
    git(&above, "add -A");
    git(&above, "commit -q -m first");
    fs::rename(&above, harness.path("home/shop-above")).unwrap();
    harness.path("home/shop-above")
}

pub fn in_directory(harness: &Harness, directory: &Path, script: &str) -> RunPlan {
    let plan = harness.shell(script);
    let Policy::Confined(mut confinement) = plan.policy else { panic!("no policy") };
    let from = harness.workspace();
    for root in confinement.roots.iter_mut().filter(|root| root.path == from) {
        directory.clone_into(&mut root.path);
    }
    for protected in &mut confinement.protected {
        if let Ok(rest) = protected.path.strip_prefix(&from) {
            protected.path = directory.join(rest);
        }
    }
    let mut env = plan.env;
    env.insert("HOME".to_owned(), harness.path("home").to_str().unwrap().to_owned());
    RunPlan { policy: Policy::Confined(confinement), cwd: directory.to_owned(), env, ..plan }
}

fn call_in_a_subdirectory_commits() {
    Harness::run_test(async |harness: &Harness| {
        let above = repository_above(harness);
        let script = format!("echo x > new; {COMMIT}; echo $?");
        let report = harness.run(&in_directory(harness, &above.join("web"), &script)).await;
        assert_eq!(harness.output(), "0\n", "{}", harness.error());
        assert_eq!(git(&above, "show --format=%s --name-status").trim(), "work\n\nA\tweb/new");
        assert_eq!(git(&above, "status --porcelain --ignored"), "");
        assert_eq!((names(&report), &confined(&report).git_read_only), (vec![], &None));
    });
}

fn call_in_a_subdirectory_cannot_write_beside_it() {
    Harness::run_test(async |harness: &Harness| {
        let above = repository_above(harness);
        let config = fs::read_to_string(above.join(".git/config")).unwrap();
        let script = "echo x > ../README; echo x > ../new; echo x > ../.git/hooks/pre-commit; git config a.b c; \
                      mv ../.git ../g; echo x > ../.git/commondir; while [ -e ../.git/commondir ]; do sleep 0.01; done; true";
        let report = harness.run(&in_directory(harness, &above.join("web"), script)).await;
        assert_eq!(git(&above, "status --porcelain --ignored"), "", "{}", harness.error());
        assert_eq!(fs::read_to_string(above.join(".git/config")).unwrap(), config);
        assert!(!above.join(".git/hooks/pre-commit").exists());
        assert_eq!(names(&report), [above.join(".git/commondir")]);
    });
}

fn call_in_a_submodule_commits() {
    Harness::run_test(async |harness: &Harness| {
        let lib = repository_above(harness);
        let shop = harness.path("home/super");
        fs::create_dir(&shop).unwrap();
        git(&shop, "init -q");
        git(&shop, &format!("submodule --quiet add {} lib", lib.display()));
        let script = format!("echo x > new; {COMMIT}; echo $?");
        harness.run(&in_directory(harness, &shop.join("lib/web"), &script)).await;
        assert_eq!(harness.output(), "0\n", "{}", harness.error());
        assert_eq!(git(&shop.join("lib"), "log -1 --format=%s").trim(), "work");
    });
}

fn repository_of_the_whole_home_is_read_only_and_reported() {
    Harness::run_test(async |harness: &Harness| {
        git(&harness.path("home"), "init -q");
        fs::create_dir(harness.path("home/project")).unwrap();
        let script = format!("echo x > new; {COMMIT}; echo $?");
        let report = harness.run(&in_directory(harness, &harness.path("home/project"), &script)).await;
        assert_ne!(harness.output(), "0\n", "{}", harness.error());
        let why = confined(&report).git_read_only.as_deref().unwrap();
        assert!(why.contains("contains the home directory"), "{why}");
        assert!(!harness.path("home/.git/index").exists());
    });
}

fn tracked_file_that_is_hidden_is_not_committed_as_deleted() {
    Harness::run_test(async |harness: &Harness| {
        let work = harness.workspace();
        fs::remove_dir_all(work.join(".git")).unwrap();
        git(&work, "init -q .");
        fs::write(work.join(".env"), "KEY=1").unwrap();
        git(&work, "add -A");
        git(&work, "commit -q -m base");
        let policy = CallPolicy { hide: vec![work.join(".env")], ..CallPolicy::default() };
        let confinement = harness.confinement(policy);
        let script = format!("echo x > new; {COMMIT}; echo $?");
        let plan = RunPlan { policy: Policy::Confined(Box::new(confinement)), ..harness.shell(&script) };
        let report = harness.run(&plan).await;
        assert_ne!(harness.output(), "0\n", "{}", harness.error());
        assert_eq!(git(&work, "status --porcelain"), "?? new\n");
        assert!(confined(&report).git_read_only.as_ref().unwrap().contains(".env"), "{report:?}");
    });
}

/// Git treats an included file like the configuration that includes it.
fn included_git_configuration_is_protected() {
    Harness::run_test(async |harness: &Harness| {
        let workspace = harness.workspace();
        let config = "[include]\n\tpath = ../.gitconfig\n[includeIf \"onbranch:*\"]\n\tpath = ../later\n[include]\n\tpath = ../new/config\n";
        fs::write(workspace.join(".git/config"), config).unwrap();
        fs::write(workspace.join(".gitconfig"), "as it was").unwrap();
        let script = "echo x >> .gitconfig; rm -f .gitconfig; mv .gitconfig other; mkdir new; echo x > new/config; \
                      echo x > later; while [ -e later ]; do sleep 0.01; done; echo gone";
        let report = harness.run(&harness.shell(script)).await;
        assert_eq!(harness.output(), "gone\n", "{}", harness.error());
        assert_eq!(fs::read_to_string(workspace.join(".gitconfig")).unwrap(), "as it was");
        let expected = ["later", "new"].map(|name| workspace.join(name));
        assert_eq!(names(&report), expected);
        assert!(!workspace.join("later").exists() && !workspace.join("new").exists());
    });
}
