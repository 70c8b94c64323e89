//! Repositories and configurations that name commands. None of them may run.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use changes::{Direction, GitRepository};

use crate::fixture::{Project, describe, run_test_in_process};

const ROOT: &str = "CHANGES_TEST_ROOT";
const HOOKS: [&str; 8] = [
    "pre-commit",
    "post-checkout",
    "post-index-change",
    "reference-transaction",
    "fsmonitor-watchman",
    "pre-auto-gc",
    "post-rewrite",
    "sendemail-validate",
];

/// Creates a program that leaves a marker file when it runs.
pub fn plant_program(project: &Project) {
    let program = project.root.join("program");
    let script = format!("#!/bin/sh\ntouch '{}'\ncat\n", project.root.join("marker").display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns a configuration in which every setting that can name a program names this one.
pub fn hostile_config(program: &Path, include: &Path) -> String {
    let program = program.display();
    let include = include.display();
    format!(
        "[core]\n\tfsmonitor = {program}\n\thooksPath = {program}.hooks\n\tpager = {program}\n\
         \teditor = {program}\n\tsshCommand = {program}\n\taskPass = {program}\n\tgitProxy = {program}\n\
         \talternateRefsCommand = {program}\n\tuntrackedCache = true\n\tpreloadIndex = true\n\
         [diff]\n\texternal = {program}\n\
         [diff \"evil\"]\n\ttextconv = {program}\n\tcommand = {program}\n\
         [merge \"evil\"]\n\tdriver = {program} %A\n\
         [filter \"evil\"]\n\tclean = {program}\n\tsmudge = {program}\n\tprocess = {program}\n\trequired = true\n\
         [pager]\n\tdiff = {program}\n\tls-files = {program}\n[interactive]\n\tdiffFilter = {program}\n\
         [alias]\n\tdiff-files = !{program}\n\tls-files = !{program}\n\tupdate-index = !{program}\n\
         [credential]\n\thelper = {program}\n[gpg]\n\tprogram = {program}\n[trace2]\n\teventTarget = {program}.trace\n\
         [remote \"origin\"]\n\turl = ext::{program}\n\tuploadpack = {program}\n\tpromisor = true\n\
         \tpartialclonefilter = blob:none\n[extensions]\n\tpartialClone = origin\n\
         [protocol \"ext\"]\n\tallow = always\n[include]\n\tpath = {include}\n"
    )
}

/// Plants the program as each hook.
pub fn plant_hooks(project: &Project, directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for hook in HOOKS {
        fs::copy(project.root.join("program"), directory.join(hook)).unwrap();
    }
}

/// Creates a project whose attributes select the planted drivers.
fn hostile_project() -> Project {
    let project = Project::new(&[
        (".gitattributes", "*.txt filter=evil diff=evil merge=evil\n*.md diff=evil merge=evil\n"),
        ("a.txt", "1\n2\n3\n4\n5\n"),
        ("b.md", "1\n2\n3\n4\n5\n"),
    ]);
    project.write("dirty.md", "dirty\n");
    plant_program(&project);
    plant_hooks(&project, &project.root.join("program.hooks"));
    project
}

/// Runs all steps, with a merge in the undo.
fn run_all_steps(project: &Project) {
    project.begin();
    project.write("b.md", "1\n2\n3\n4\njob\n");
    project.write("c.md", "new\n");
    project.write("dirty.md", "dirtier\n");
    project.write("d.txt", "filtered\n");
    project.write("a.txt", "filtered\n");
    let change_set = project.finish();
    assert_eq!(change_set.files.len(), 5);
    assert!(project.patch(&[]).contains("+job\n"));
    project.write("b.md", "user\n2\n3\n4\njob\n");
    let recorded = ["b.md", "c.md", "dirty.md", "d.txt"];
    project.try_restore(Direction::Undo, &recorded).unwrap();
    assert_eq!(project.read("b.md"), "user\n2\n3\n4\n5\n");
    assert!(!project.exists("c.md"));
    project.try_restore(Direction::Redo, &recorded).unwrap();
    assert_eq!(project.read("b.md"), "user\n2\n3\n4\njob\n");
    assert!(!project.root.join("marker").exists());
    assert!(!project.root.join("program.trace").exists());
}

#[test]
fn planted_program_leaves_a_marker() {
    let project = hostile_project();
    let program = project.root.join("program");
    project.git(["config", "filter.evil.clean", program.to_str().unwrap()]);
    project.write("a.txt", "x\n");
    project.git(["add", "a.txt"]);
    assert!(project.root.join("marker").exists());
}

#[test]
fn commands_of_repository_are_not_run() {
    let project = hostile_project();
    let program = project.root.join("program");
    let included = project.root.join("included");
    fs::write(&included, hostile_config(&program, Path::new("/nonexistent"))).unwrap();
    let config = fs::read_to_string(project.path(".git/config")).unwrap();
    fs::write(project.path(".git/config"), config + &hostile_config(&program, &included)).unwrap();
    plant_hooks(&project, &project.path(".git/hooks"));
    fs::write(project.path(".git/info/attributes"), "*.md diff=evil merge=evil\n").unwrap();
    run_all_steps(&project);
}

#[test]
fn commands_of_user_configuration_are_not_run() {
    if let Some(root) = std::env::var_os(ROOT) {
        return run_all_steps(&Project::open(root.into()));
    }
    let project = hostile_project();
    let home = project.root.join("home");
    fs::create_dir_all(home.join(".config/git")).unwrap();
    let config = hostile_config(&project.root.join("program"), Path::new("/nonexistent"));
    let config = config + "[init]\n\ttemplateDir = ~/template\n";
    fs::write(home.join(".gitconfig"), &config).unwrap();
    fs::write(home.join(".config/git/config"), &config).unwrap();
    fs::write(home.join(".config/git/attributes"), "*.md diff=evil merge=evil\n").unwrap();
    plant_hooks(&project, &home.join("template/hooks"));
    let program = project.root.join("program");
    let variables = [
        (ROOT, project.root.as_os_str()),
        ("HOME", home.as_os_str()),
        ("XDG_CONFIG_HOME", home.join(".config").as_os_str()),
        ("GIT_EXTERNAL_DIFF", program.as_os_str()),
        ("GIT_PAGER", program.as_os_str()),
        ("GIT_SSH_COMMAND", program.as_os_str()),
        ("GIT_CONFIG_COUNT", OsStr::new("1")),
        ("GIT_CONFIG_KEY_0", OsStr::new("core.fsmonitor")),
        ("GIT_CONFIG_VALUE_0", program.as_os_str()),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    let variables: Vec<(&str, &OsStr)> = variables.iter().map(|(name, value)| (*name, &**value)).collect();
    run_test_in_process("hostile::commands_of_user_configuration_are_not_run", &variables);
}

#[test]
fn git_variables_of_caller_are_not_inherited() {
    if let Some(root) = std::env::var_os(ROOT) {
        let project = Project::open(root.into());
        let job = || fs::write(project.path("a.txt"), "job\n").unwrap();
        assert_eq!(project.record_job(job), ["modified a.txt +1 -1"]);
        return;
    }
    let project = Project::new(&[("a.txt", "a\n")]);
    let variables = [
        (ROOT, project.root.as_os_str()),
        ("GIT_DIR", OsStr::new("/nonexistent")),
        ("GIT_WORK_TREE", OsStr::new("/nonexistent")),
        ("GIT_INDEX_FILE", OsStr::new("/nonexistent")),
        ("GIT_OBJECT_DIRECTORY", OsStr::new("/nonexistent")),
        ("GIT_LITERAL_PATHSPECS", OsStr::new("0")),
        ("GIT_TRACE", OsStr::new("1")),
    ];
    run_test_in_process("hostile::git_variables_of_caller_are_not_inherited", &variables);
}

#[test]
fn ignore_file_of_user_is_respected() {
    if let Some(root) = std::env::var_os(ROOT) {
        let project = Project::open(root.into());
        let changes = project.record_job(|| {
            project.write("x.swp", "ignored by the default file\n");
            project.write("x.txt", "x\n");
        });
        assert_eq!(changes, ["added x.txt +1 -0"]);
        return;
    }
    let project = Project::new(&[("a.txt", "a\n")]);
    let home = project.root.join("home");
    fs::create_dir_all(home.join(".config/git")).unwrap();
    fs::write(home.join(".config/git/ignore"), "*.swp\n").unwrap();
    let config = home.join(".config");
    let variables = [
        (ROOT, project.root.as_os_str()),
        ("HOME", home.as_os_str()),
        ("XDG_CONFIG_HOME", config.as_os_str()),
    ];
    run_test_in_process("hostile::ignore_file_of_user_is_respected", &variables);
}

#[test]
fn foreign_core_worktree_is_not_used() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let victim = project.root.join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("a.txt"), "victim\n").unwrap();
    project.git(["config", "core.worktree", victim.to_str().unwrap()]);
    project.assert_round_trip(|| project.write("a.txt", "b\n"));
    assert_eq!(fs::read_to_string(victim.join("a.txt")).unwrap(), "victim\n");
}

#[test]
fn git_file_to_foreign_repository_changes_nothing_there() {
    let project = Project::without_repository();
    let victim = project.root.join("victim");
    fs::create_dir(&victim).unwrap();
    crate::fixture::git_in(&victim, ["init", "-q"]);
    fs::write(victim.join("a.txt"), "victim\n").unwrap();
    crate::fixture::git_in(&victim, ["add", "-A"]);
    crate::fixture::git_in(&victim, ["commit", "-q", "-m", "first"]);
    project.write(".git", "gitdir: ../victim/.git\n");
    project.write("a.txt", "mine\n");
    project.assert_round_trip(|| project.write("a.txt", "job\n"));
    assert_eq!(fs::read_to_string(victim.join("a.txt")).unwrap(), "victim\n");
}

#[test]
fn repository_of_another_user_is_recorded() {
    let project = Project::new(&[("a.txt", "a\n")]);
    if rustix::process::geteuid().is_root() {
        for path in [project.worktree.clone(), project.path(".git")] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
    }
    assert_eq!(project.record_job(|| project.write("a.txt", "b\n")), ["modified a.txt +1 -1"]);
}

#[test]
fn git_directory_swapped_by_job_runs_no_command() {
    let project = hostile_project();
    let program = project.root.join("program");
    let changes = project.record_job(|| {
        fs::rename(project.path(".git"), project.root.join("old.git")).unwrap();
        project.git(["init", "-q"]);
        let config = hostile_config(&program, Path::new("/nonexistent"));
        fs::write(project.path(".git/config"), config).unwrap();
        plant_hooks(&project, &project.path(".git/hooks"));
        project.write("b.md", "job\n");
    });
    assert_eq!(changes.len(), 1);
    assert!(!project.root.join("marker").exists());
    assert!(GitRepository::find(&project.worktree).unwrap().is_some());
}

#[test]
fn content_of_replaced_object_is_not_believed() {
    let project = Project::new(&[("a.txt", "first\n"), ("b.txt", "first b\n")]);
    project.begin();
    let id = |name: &str| project.git(["rev-parse", name]);
    let object = |id: &str| project.worktree.join(format!(".git/objects/{}/{}", &id[..2], &id[2..]));
    fs::write(project.root.join("forged"), "first\nplanted\n").unwrap();
    let forged = project.git(["hash-object", "-w", "../forged"]);
    let original = object(&id("HEAD:a.txt"));
    fs::remove_file(&original).unwrap();
    fs::copy(object(&forged), &original).unwrap();
    project.write("a.txt", "first\nplanted\nharmless\n");
    project.write("b.txt", "second b\n");
    let change_set = project.finish();
    assert_eq!(describe(&change_set), ["modified a.txt Unreadable", "modified b.txt +1 -1"]);
    assert!(!project.patch(&[]).contains("planted"));
    project.undo();
    assert_eq!(project.read("b.txt"), "first b\n");
    assert_eq!(project.read("a.txt"), "first\nplanted\nharmless\n");
}
