//! A run in a sandbox behaves like one without.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use model::{
    Confinement, End, Enforcement, Exit, Limits, NotStartedReason, Policy, Preset, Requirement, RunPlan,
    SafeguardName, TreeEnd,
};

use crate::harness::{Harness, confined};

testkit::tests![
    confined_agent_reads_stdin_and_answers,
    large_output_of_confined_agent_is_complete,
    exit_status_of_confined_agent_is_its_own,
    confined_agent_ignoring_sigterm_is_killed,
    confined_agent_handling_sigterm_exits,
    background_processes_in_sandbox_are_terminated,
    missing_program_or_cwd_in_sandbox_is_reported,
    too_large_workspace_is_rejected_if_required,
    deadline_ends_confined_run,
    peak_memory_of_confined_agent_is_reported,
    report_lists_safeguards_and_self_test,
    self_test_runs_once_and_is_cached,
    missing_policy_is_reported,
    program_below_tmp_is_found_in_either_tier,
    home_and_state_below_tmp_are_confined_in_either_tier,
    agent_knows_confinement_in_either_tier,
    files_can_be_moved_and_linked_between_directories,
    only_private_files_of_state_are_visible,
    commit_in_linked_worktree_keeps_hooks_and_config,
];

fn confined_agent_reads_stdin_and_answers() {
    Harness::run_test(async |harness: &Harness| {
        let plan = RunPlan {
            input: b"hello there".to_vec(),
            ..harness.shell("cat; echo oops >&2; pwd > made; id -u")
        };
        let report = harness.run(&plan).await;
        assert_eq!((&report.end, report.exit), (&End::Exited, Some(Exit::Code(0))), "{}", harness.error());
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(harness.output(), format!("hello there{user}\n"));
        assert_eq!(harness.error(), "oops\n");
        let made = fs::read_to_string(harness.workspace().join("made")).unwrap();
        assert_eq!(made.trim(), harness.workspace().to_str().unwrap());
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn large_output_of_confined_agent_is_complete() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&harness.agent("flood stdout 20MB\nanswer done")).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert!(report.output_bytes > 20_000_000 && harness.output().ends_with("done\n"));
    });
}

fn exit_status_of_confined_agent_is_its_own() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&harness.shell("exit 42")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(42))));
    });
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&harness.shell("kill -SEGV $$")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Signal(11))));
    });
}

fn confined_agent_ignoring_sigterm_is_killed() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&harness.shell("trap '' TERM; echo up; while :; do sleep 1; done")).await;
        harness.wait_for_output("up").await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Stopped, Some(Exit::Signal(9))));
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn confined_agent_handling_sigterm_exits() {
    Harness::run_test(async |harness: &Harness| {
        let script = "trap 'echo asked; exit 7' TERM; echo up; while :; do sleep 0.05; done";
        let plan = harness.shell(script);
        let limits = Limits { grace: std::time::Duration::from_mins(1), ..plan.limits.clone() };
        let run = harness.start(&RunPlan { limits, ..plan }).await;
        harness.wait_for_output("up").await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Stopped, Some(Exit::Code(7))));
        assert!(harness.output().ends_with("asked\n"));
    });
}

fn background_processes_in_sandbox_are_terminated() {
    Harness::run_test(async |harness: &Harness| {
        let script = "setsid sh -c 'trap \"echo polite > polite; exit\" TERM; echo up > up; while :; do sleep 0.05; done' &
                      while [ ! -e up ]; do sleep 0.01; done; exit 3";
        let report = harness.run(&harness.shell(script)).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(3))));
        assert!(report.descendants_ended >= 1, "{}", report.descendants_ended);
        assert!(harness.workspace().join("polite").exists(), "it was killed and not asked");
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn missing_program_or_cwd_in_sandbox_is_reported() {
    let reason_of = |change: fn(&Harness, RunPlan) -> RunPlan| {
        let reason = std::cell::Cell::new(None);
        Harness::run_test(async |harness: &Harness| {
            let report = harness.run(&change(harness, harness.shell("true"))).await;
            match report.end {
                End::NotStarted(failure) => reason.set(Some(failure.reason)),
                other => panic!("{other}"),
            }
        });
        reason.get().unwrap()
    };
    let program =
        |path: &'static str| move |_: &Harness, plan: RunPlan| RunPlan { program: path.into(), ..plan };
    let _ = program;
    assert_eq!(
        reason_of(|_, plan| RunPlan { program: "/nowhere/agent".into(), ..plan }),
        NotStartedReason::ProgramMissing
    );
    assert_eq!(
        reason_of(|_, plan| RunPlan { program: "/etc/passwd".into(), ..plan }),
        NotStartedReason::ProgramNotExecutable
    );
    assert_eq!(reason_of(|_, plan| RunPlan { cwd: "/nowhere".into(), ..plan }), NotStartedReason::CwdMissing);
    // It exists, but not inside the sandbox.
    assert_eq!(
        reason_of(|harness, plan| RunPlan { cwd: harness.path("state/spool"), ..plan }),
        NotStartedReason::CwdMissing
    );
}

fn too_large_workspace_is_rejected_if_required() {
    // In memory, where creating so many directories is fast.
    Harness::run_test_in(Path::new("/dev/shm"), async |harness: &Harness| {
        let many = harness.workspace().join("many");
        (0..=50_000).for_each(|number| fs::create_dir_all(many.join(number.to_string())).unwrap());
        let report = harness.run(&harness.shell("true")).await;
        let End::NotStarted(failure) = &report.end else { panic!("{report:?}") };
        assert_eq!(failure.reason, NotStartedReason::NotConfined);
        assert!(failure.message.contains("more than 50000 directories"), "{}", failure.message);
    });
}

fn deadline_ends_confined_run() {
    Harness::run_test(async |harness: &Harness| {
        let plan = harness.shell("sleep 600");
        let limits = Limits { wall: Some(std::time::Duration::from_millis(200)), ..plan.limits.clone() };
        let report = harness.run(&RunPlan { limits, ..plan }).await;
        assert!(matches!(report.end, End::Deadline { .. }), "{}", report.end);
        assert_eq!(report.exit, Some(Exit::Signal(15)));
    });
}

fn peak_memory_of_confined_agent_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&harness.shell("head -c 60000000 /dev/zero | tail | wc -c")).await;
        assert_eq!(report.exit, Some(Exit::Code(0)), "{}", harness.error());
        assert!(report.usage.largest_rss_bytes > 50_000_000, "{:?}", report.usage);
    });
}

fn report_lists_safeguards_and_self_test() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&harness.shell("true")).await;
        let report = run.wait().await.unwrap();
        let confined = confined(&report);
        assert_eq!(confined.policy.preset, Preset::Workspace);
        let open: Vec<_> = confined.gaps().map(|gap| (gap.name, gap.enforcement)).collect();
        let root = rustix::process::geteuid().is_root();
        let count = root.then_some((SafeguardName::ProcessCount, Enforcement::None));
        let expected: Vec<_> =
            [(SafeguardName::UnixSockets, Enforcement::Partial)].into_iter().chain(count).collect();
        assert_eq!(open, expected, "{:?}", confined.safeguards);
        let proof = confined.proof.as_ref().unwrap();
        assert!(proof.escapes.len() >= 10 && proof.escapes.iter().all(|escape| escape.stopped), "{proof:?}");
        assert_eq!(run.spool().status().unwrap().unwrap().sandbox, report.sandbox);
    });
}

fn self_test_runs_once_and_is_cached() {
    Harness::run_test(async |harness: &Harness| {
        assert!(!harness.path("state/proofs").exists());
        let first = harness.run(&harness.shell("true")).await;
        assert!(confined(&first).proof.is_some());
        assert!(harness.path("state/proofs").is_dir(), "nothing was kept");
        fs::rename(harness.spool(), harness.path("state/first")).unwrap();
        let second = harness.run(&harness.shell("true")).await;
        assert!(confined(&second).proof.as_ref().unwrap().earlier);
        let entries = fs::read_dir(harness.path("state/proofs")).unwrap().flatten().map(|entry| entry.path());
        let left: Vec<_> = entries.filter(|path| path.is_file()).collect();
        assert_eq!(left.len(), 1, "{left:?}");
    });
}

fn missing_policy_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&RunPlan { policy: Policy::Off, ..harness.shell("true") }).await;
        assert_eq!(report.sandbox, Some(model::SandboxReport::Off));
    });
}

/// Returns the plan with namespaces, or with the kernel's rules alone.
pub fn in_tier(plan: RunPlan, namespaces: bool) -> RunPlan {
    let Policy::Confined(confinement) = plan.policy else { panic!("no policy") };
    let confinement = Confinement { namespaces, requirement: Requirement::BestEffort, ..*confinement };
    RunPlan { policy: Policy::Confined(Box::new(confinement)), ..plan }
}

fn program_below_tmp_is_found_in_either_tier() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let installed = tempfile::tempdir_in("/tmp").unwrap();
            let bin = installed.path().join("prefix/bin");
            fs::create_dir_all(&bin).unwrap();
            fs::copy("/bin/sh", bin.join("interpreter")).unwrap();
            let program = bin.join("agent");
            fs::write(&program, format!("#!{}/interpreter\necho it runs\n", bin.display())).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            let plan = RunPlan { program, args: Vec::new(), ..harness.shell("") };
            let report = harness.run(&in_tier(plan, namespaces)).await;
            assert_eq!(harness.output(), "it runs\n", "namespaces {namespaces}: {report:?}");
        });
    }
}

fn home_and_state_below_tmp_are_confined_in_either_tier() {
    for namespaces in [true, false] {
        Harness::run_test_in(Path::new("/tmp"), async |harness: &Harness| {
            let script = "echo own > own; (echo x > ../outside/file) || echo refused; echo x > \"$TMPDIR/x\" && echo done";
            let mut plan = harness.shell(script);
            plan.env.insert("TMPDIR".to_owned(), "/tmp".to_owned());
            let report = harness.run(&in_tier(plan, namespaces)).await;
            assert_eq!(harness.output(), "refused\ndone\n", "namespaces {namespaces}: {report:?}");
            assert!(harness.workspace().join("own").exists());
            assert_eq!(fs::read_to_string(harness.path("home/outside/file")).unwrap(), "as it was");
        });
    }
}

fn agent_knows_confinement_in_either_tier() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let mut plan = in_tier(harness.shell("echo \"told: $IS_SANDBOX\""), namespaces);
            let Policy::Confined(confinement) = &mut plan.policy else { panic!("no policy") };
            confinement.env_if_held.insert("IS_SANDBOX".to_owned(), "1".to_owned());
            let report = harness.run(&plan).await;
            assert_eq!(harness.output(), "told: 1\n", "namespaces {namespaces}: {report:?}");
        });
    }
}

/// As compilers and git do. `mv` would fall back to a copy and hide the failure.
fn files_can_be_moved_and_linked_between_directories() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let script = "mkdir a b && echo x > a/x && ln a/x b/linked && perl -e 'rename(\"a/x\", \"b/moved\") or die $!'";
            let report = harness.run(&in_tier(harness.shell(script), namespaces)).await;
            assert_eq!(report.exit, Some(Exit::Code(0)), "namespaces {namespaces}: {}", harness.error());
            assert!(
                harness.workspace().join("b/moved").exists() && harness.workspace().join("b/linked").exists()
            );
        });
    }
}

fn only_private_files_of_state_are_visible() {
    Harness::run_test(async |harness: &Harness| {
        let (private, state) = (harness.spool().join("private"), harness.path("state"));
        let script = format!(
            "cat {}/mcp.json; ls {}; cat {}/database",
            private.display(),
            state.display(),
            state.display()
        );
        let plan = RunPlan {
            private_files: [("mcp.json".to_owned(), b"servers\n".to_vec())].into(),
            ..harness.shell(&script)
        };
        harness.run(&plan).await;
        assert_eq!(harness.output(), "servers\nspool\n", "{}", harness.error());
    });
}

fn commit_in_linked_worktree_keeps_hooks_and_config() {
    Harness::run_test(async |harness: &Harness| {
        let (main, work) = (harness.path("home/main"), harness.workspace());
        fs::remove_dir_all(&work).unwrap();
        let git = |args: &str| {
            let mut command = std::process::Command::new("git");
            command.arg("-C").arg(&main).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
            command.env("HOME", harness.path("home")).args(args.split(' ')).output()
        };
        fs::create_dir(&main).unwrap();
        if git("init -q").is_err() {
            println!("SKIPPED: there is no git");
            return;
        }
        git("commit -q --allow-empty -m first").unwrap();
        git(&format!("worktree add -q {}", work.display())).unwrap();
        fs::write(main.join("file"), "as it was").unwrap();
        let before = fs::read_to_string(main.join(".git/config")).unwrap();
        let script = format!(
            "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m second; echo commit $?; cd {0}; \
             echo x > .git/hooks/post-commit; echo x >> .git/config; echo x > .git/config.worktree; mv .git/hooks .git/h; \
             mv .git/worktrees .git/w; echo x > .git/commondir; echo / > .git/worktrees/shop/commondir; git config a.b c; echo x > file; echo done",
            main.display()
        );
        let report = harness.run(&harness.shell(&script)).await;
        assert!(
            harness.output().contains("commit 0") && harness.output().contains("done"),
            "{}",
            harness.error()
        );
        let log = git("log --oneline --all").unwrap();
        assert!(String::from_utf8_lossy(&log.stdout).contains("second"), "{log:?}");
        assert_eq!(fs::read_to_string(main.join(".git/config")).unwrap(), before);
        assert_eq!(fs::read_to_string(main.join("file")).unwrap(), "as it was");
        let missing = ["hooks/post-commit", "config.worktree", "commondir", "h", "w"];
        assert!(missing.iter().all(|name| !main.join(".git").join(name).exists()), "{}", harness.error());
        let leads = fs::read_to_string(main.join(".git/worktrees/shop/commondir")).unwrap();
        assert_eq!(leads, "../..\n");
        assert_eq!(report.exit, Some(Exit::Code(0)), "{}", harness.error());
    });
}
