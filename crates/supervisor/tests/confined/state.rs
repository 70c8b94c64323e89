//! The agent's state directory: a run keeps its sessions and its login there, and plants nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use model::{AgentState, CallPolicy, Confinement, KeptPath, Policy, Preset, Requirement, RunPlan};

use crate::harness::{Harness, confined};

testkit::tests! {
    only_listed_state_paths_survive_run,
    only_listed_state_paths_survive_run_without_namespaces,
    program_in_the_state_directory_stays_as_it_is,
    instructions_of_the_user_are_read_only,
    state_directories_of_one_name_are_separate,
    directory_of_a_session_without_tasks_is_removed,
    login_that_is_replaced_by_rename_is_kept_in_place,
    link_in_a_kept_directory_is_quarantined,
    link_in_a_locked_directory_is_quarantined,
    repository_in_a_kept_directory_is_quarantined,
    state_survives_a_killed_run_unchanged,
}

/// The policies under which an agent has its state.
const POLICIES: [Preset; 4] = [Preset::Workspace, Preset::Observe, Preset::Restricted, Preset::Sealed];

/// The files that an agent may try to leave: a modified one, a new one, one in an existing directory, one in a
/// discarded directory, and one in a directory that is moved away first.
const PLANT: &str = "\
    cd $AGENT_HOME; \
    echo evil > settings; echo evil > new; echo evil > rules/new; mkdir -p snapshots; echo evil > snapshots/new; \
    mv rules rules-2 && mkdir rules && echo evil > rules/moved; \
    ln -s /etc/passwd link; rm -f settings; ln -s evil settings; \
    echo kept > sessions/new; echo token-2 > login; cat snapshots/old; echo done";

/// Creates a state directory.
fn prepare(harness: &Harness) {
    let state = harness.path("home/.agent");
    for name in ["rules", "snapshots", "sessions", "local"] {
        fs::create_dir_all(state.join(name)).unwrap();
    }
    for name in ["settings", "rules/old", "snapshots/old", "sessions/old", "login", "local/program"] {
        fs::write(state.join(name), "as it was").unwrap();
    }
}

/// Lists everything below the state directory, with the text of each file.
fn contents(harness: &Harness) -> Vec<(String, String)> {
    let state = harness.path("home/.agent");
    let mut found = Vec::new();
    let mut left = vec![state.clone()];
    while let Some(path) = left.pop() {
        if path.is_symlink() || path.is_file() {
            let name = path.strip_prefix(&state).unwrap().display().to_string();
            found.push((name, fs::read_to_string(&path).unwrap_or_default()));
        } else {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found.sort();
    found
}

fn plan(harness: &Harness, script: &str, preset: Preset, namespaces: bool) -> RunPlan {
    let requirement = if namespaces { Requirement::Require } else { Requirement::BestEffort };
    let policy = CallPolicy { requirement, ..preset.into() };
    let confinement = Confinement { namespaces, ..harness.confinement(policy) };
    let mut plan = RunPlan { policy: Policy::Confined(Box::new(confinement)), ..harness.shell(script) };
    plan.env.insert("AGENT_HOME".to_owned(), harness.path("home/.agent").display().to_string());
    plan
}

/// A discarded copy would let an agent report a success that is none.
fn instructions_of_the_user_are_read_only() {
    Harness::run_test(async |harness: &Harness| {
        prepare(harness);
        fs::write(harness.path("home/.agent/CLAUDE.md"), "as it was").unwrap();
        let script = "cd $AGENT_HOME; cat CLAUDE.md GEMINI.md; for f in CLAUDE.md GEMINI.md; do echo x >> $f; mv new $f; done";
        harness.run(&plan(harness, script, Preset::Workspace, true)).await;
        assert_eq!(harness.output(), "as it was", "{}", harness.error());
        assert_eq!(harness.error().matches("Read-only file system").count(), 2, "{}", harness.error());
        assert!(!harness.path("home/.agent/GEMINI.md").exists());
    });
}

/// Agents that follow the XDG conventions have several directories of the same name.
fn state_directories_of_one_name_are_separate() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            prepare(harness);
            let other = harness.path("home/share/.agent");
            fs::create_dir_all(other.join("sessions")).unwrap();
            fs::write(other.join("settings"), "the other's").unwrap();
            let script = "cat $AGENT_HOME/settings $OTHER/settings; echo x > $OTHER/settings; echo $OTHER > $OTHER/sessions/new";
            let mut plan = plan(harness, script, Preset::Workspace, namespaces);
            let Policy::Confined(confinement) = &mut plan.policy else { panic!("not confined") };
            let second = AgentState {
                directory: other.clone(),
                variable: Some("OTHER".to_owned()),
                kept: vec![KeptPath::Directory("sessions".into())],
                ..confinement.states[0].clone()
            };
            confinement.states.push(second);
            plan.env.insert("OTHER".to_owned(), other.display().to_string());
            harness.run(&plan).await;
            assert_eq!(harness.output(), "as it wasthe other's", "{}", harness.error());
            assert_eq!(fs::read_to_string(other.join("settings")).unwrap(), "the other's");
            assert!(fs::read_to_string(other.join("sessions/new")).unwrap().ends_with(".agent\n"));
        });
    }
}

fn directory_of_a_session_without_tasks_is_removed() {
    for (script, is_kept) in [("true", false), ("echo x > $AGENT_HOME/tasks/1/task", true)] {
        Harness::run_test(async |harness: &Harness| {
            prepare(harness);
            let mut plan = plan(harness, script, Preset::Workspace, true);
            let Policy::Confined(confinement) = &mut plan.policy else { panic!("not confined") };
            confinement.states[0].kept.push(KeptPath::Directory("tasks/1".into()));
            harness.run(&plan).await;
            let tasks = harness.path("home/.agent/tasks/1");
            assert_eq!(tasks.exists(), is_kept, "{}", harness.error());
        });
    }
}

fn plant(preset: Preset, namespaces: bool) {
    Harness::run_test(async |harness: &Harness| {
        prepare(harness);
        let before = contents(harness);
        let report = harness.run(&plan(harness, PLANT, preset, namespaces)).await;
        confined(&report);
        assert_eq!(harness.output(), "done\n", "{preset}: {}", harness.error());
        let changed: Vec<_> = contents(harness).into_iter().filter(|entry| !before.contains(entry)).collect();
        let expected = [("login", "token-2\n"), ("sessions/new", "kept\n")];
        let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(changed, expected, "{preset}: {}", harness.error());
        assert_eq!(contents(harness).len(), before.len() + 1, "{preset}");
        assert!(!harness.spool().join("tmp").exists(), "the private copy is left: {preset}");
    });
}

fn only_listed_state_paths_survive_run() {
    for preset in POLICIES {
        plant(preset, true);
    }
}

fn only_listed_state_paths_survive_run_without_namespaces() {
    for preset in [Preset::Workspace, Preset::Observe] {
        plant(preset, false);
    }
}

fn program_in_the_state_directory_stays_as_it_is() {
    Harness::run_test(async |harness: &Harness| {
        prepare(harness);
        let script = "cd $AGENT_HOME/local; echo evil > program; echo evil > new; rm -f program; cat program";
        for namespaces in [true, false] {
            harness.run(&plan(harness, script, Preset::Workspace, namespaces)).await;
            assert_eq!(harness.output(), "as it was", "{}", harness.error());
            let names: Vec<_> = fs::read_dir(harness.path("home/.agent/local")).unwrap().collect();
            assert_eq!(names.len(), 1, "{names:?}");
            fs::remove_dir_all(harness.spool()).unwrap();
        }
    });
}

/// An agent that cannot replace the file writes it in place, as claude does.
fn login_that_is_replaced_by_rename_is_kept_in_place() {
    Harness::run_test(async |harness: &Harness| {
        prepare(harness);
        let script = "cd $AGENT_HOME; echo token-2 > login.tmp; mv -T login.tmp login 2> /dev/null || cp login.tmp login";
        harness.run(&plan(harness, script, Preset::Workspace, true)).await;
        assert_eq!(fs::read_to_string(harness.path("home/.agent/login")).unwrap(), "token-2\n");
    });
}

/// The next session, which may not be confined, would write through it.
fn link_in_a_kept_directory_is_quarantined() {
    Harness::run_test(async |harness: &Harness| {
        for namespaces in [true, false] {
            prepare(harness);
            let sessions = harness.path("home/.agent/sessions");
            fs::create_dir_all(sessions.join("2026/11")).unwrap();
            std::os::unix::fs::symlink("old", sessions.join("of-the-user")).unwrap();
            let script = "cd $AGENT_HOME/sessions/2026; ln -s /etc 12; mkfifo 13; mv 11 x; ln -s /tmp 11; echo new > x/log";
            let report = harness.run(&plan(harness, script, Preset::Workspace, namespaces)).await;
            let mut moved: Vec<_> =
                confined(&report).quarantined.iter().map(|entry| entry.path.clone()).collect();
            moved.sort();
            assert_eq!(
                moved,
                ["11", "12", "13"].map(|name| sessions.join("2026").join(name)),
                "{}",
                harness.error()
            );
            assert_eq!(fs::read_to_string(sessions.join("2026/x/log")).unwrap(), "new\n");
            assert!(sessions.join("of-the-user").is_symlink());
            fs::remove_dir_all(harness.path("home/.agent")).unwrap();
            fs::remove_dir_all(harness.spool()).unwrap();
        }
    });
}

/// The user's git would run its commands as soon as it looks there. One without commands, and one of the user, stay.
fn repository_in_a_kept_directory_is_quarantined() {
    Harness::run_test(async |harness: &Harness| {
        for (preset, namespaces) in
            [(Preset::Workspace, true), (Preset::Observe, true), (Preset::Workspace, false)]
        {
            prepare(harness);
            let sessions = harness.path("home/.agent/sessions");
            let script = "cd $AGENT_HOME/sessions; mkdir -p a/.git b/objects b/refs c d/.git; \
                printf '[core]\n\tfsmonitor = x\n' > a/.git/config; cp a/.git/config b; echo ref > b/HEAD; \
                echo gitdir: ../../../ws > c/.git; printf '[core]\n\tbare = false\n' > d/.git/config; \
                ln -s a e; mkdir f; ln -s ../a/.git f/.git; echo new > log";
            let report = harness.run(&plan(harness, script, preset, namespaces)).await;
            let mut moved: Vec<_> =
                confined(&report).quarantined.iter().map(|entry| entry.path.clone()).collect();
            moved.sort();
            let expected = ["a/.git", "b/HEAD", "c/.git", "e", "f/.git"].map(|name| sessions.join(name));
            assert_eq!(moved, expected, "{preset}: {}", harness.error());
            assert!(sessions.join("d/.git/config").exists() && sessions.join("log").exists());
            assert!(!sessions.join("a/.git").exists() && !sessions.join("b/HEAD").exists());
            fs::remove_dir_all(harness.path("home/.agent")).unwrap();
            fs::remove_dir_all(harness.spool()).unwrap();
        }
    });
}

/// The next run could unlock the directory, and would find a link that is older than itself.
fn link_in_a_locked_directory_is_quarantined() {
    Harness::run_test(async |harness: &Harness| {
        prepare(harness);
        let sessions = harness.path("home/.agent/sessions");
        let script = "cd $AGENT_HOME/sessions; mkdir -p a/b c; ln -s /etc a/b/link; ln -s /etc c/link; chmod 400 c; chmod 000 a/b a";
        let report = harness.run(&plan(harness, script, Preset::Workspace, true)).await;
        let mode = |name: &str| fs::metadata(sessions.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a"), mode("c")), (0o000, 0o400), "{}", harness.error());
        for name in ["a", "a/b", "c"] {
            fs::set_permissions(sessions.join(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        let mut moved: Vec<_> =
            confined(&report).quarantined.iter().map(|entry| entry.path.clone()).collect();
        moved.sort();
        assert_eq!(moved, ["a/b/link", "c/link"].map(|name| sessions.join(name)));
        assert!(!sessions.join("a/b/link").is_symlink() && !sessions.join("c/link").is_symlink());
    });
}

fn state_survives_a_killed_run_unchanged() {
    Harness::run_test(async |harness: &Harness| {
        prepare(harness);
        let before = contents(harness);
        let script = "cd $AGENT_HOME; echo evil > settings; echo evil > new; echo ready; sleep 600";
        let run = harness.start(&plan(harness, script, Preset::Workspace, true)).await;
        harness.wait_for_output("ready").await;
        assert_eq!(contents(harness), before);
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(supervisor).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        run.wait().await.unwrap();
        assert_eq!(contents(harness), before);
        assert!(!harness.spool().join("tmp").exists(), "the private copy is left");
    });
}
