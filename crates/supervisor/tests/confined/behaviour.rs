//! What a run does without a sandbox, it does in one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use model::{
    Confinement, End, Enforcement, Exit, Limits, NotStartedReason, Policy, Preset, Requirement, RunPlan,
    SafeguardName, TreeEnd,
};

use crate::scene::{Scene, confined};

crate::tests![
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
    Scene::play(async |scene: &Scene| {
        let plan = RunPlan {
            stdin: b"hello there".to_vec(),
            ..scene.shell("cat; echo oops >&2; pwd > made; id -u")
        };
        let report = scene.run(&plan).await;
        assert_eq!((&report.end, report.exit), (&End::Exited, Some(Exit::Code(0))), "{}", scene.error());
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(scene.output(), format!("hello there{user}\n"));
        assert_eq!(scene.error(), "oops\n");
        let made = fs::read_to_string(scene.workspace().join("made")).unwrap();
        assert_eq!(made.trim(), scene.workspace().to_str().unwrap());
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn large_output_of_confined_agent_is_complete() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.agent("flood stdout 20MB\nanswer done")).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert!(report.output_bytes > 20_000_000 && scene.output().ends_with("done\n"));
    });
}

fn exit_status_of_confined_agent_is_its_own() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.shell("exit 42")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(42))));
    });
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.shell("kill -SEGV $$")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Signal(11))));
    });
}

fn confined_agent_ignoring_sigterm_is_killed() {
    Scene::play(async |scene: &Scene| {
        let run = scene.start(&scene.shell("trap '' TERM; echo up; while :; do sleep 1; done")).await;
        scene.says("up").await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Stopped, Some(Exit::Signal(9))));
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn confined_agent_handling_sigterm_exits() {
    Scene::play(async |scene: &Scene| {
        let script = "trap 'echo asked; exit 7' TERM; echo up; while :; do sleep 0.05; done";
        let plan = scene.shell(script);
        let limits = Limits { grace: std::time::Duration::from_mins(1), ..plan.limits.clone() };
        let run = scene.start(&RunPlan { limits, ..plan }).await;
        scene.says("up").await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Stopped, Some(Exit::Code(7))));
        assert!(scene.output().ends_with("asked\n"));
    });
}

fn background_processes_in_sandbox_are_terminated() {
    Scene::play(async |scene: &Scene| {
        let script = "setsid sh -c 'trap \"echo polite > polite; exit\" TERM; echo up > up; while :; do sleep 0.05; done' &
                      while [ ! -e up ]; do sleep 0.01; done; exit 3";
        let report = scene.run(&scene.shell(script)).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(3))));
        assert!(report.descendants_ended >= 1, "{}", report.descendants_ended);
        assert!(scene.workspace().join("polite").exists(), "it was killed and not asked");
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn missing_program_or_cwd_in_sandbox_is_reported() {
    let reason_of = |change: fn(&Scene, RunPlan) -> RunPlan| {
        let reason = std::cell::Cell::new(None);
        Scene::play(async |scene: &Scene| {
            let report = scene.run(&change(scene, scene.shell("true"))).await;
            match report.end {
                End::NotStarted(failure) => reason.set(Some(failure.reason)),
                other => panic!("{other}"),
            }
        });
        reason.get().unwrap()
    };
    let program =
        |path: &'static str| move |_: &Scene, plan: RunPlan| RunPlan { program: path.into(), ..plan };
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
    // There, but not inside.
    assert_eq!(
        reason_of(|scene, plan| RunPlan { cwd: scene.path("state/spool"), ..plan }),
        NotStartedReason::CwdMissing
    );
}

fn too_large_workspace_is_rejected_if_required() {
    // In memory, where so many directories are made in a moment.
    Scene::play_in(Path::new("/dev/shm"), async |scene: &Scene| {
        let many = scene.workspace().join("many");
        (0..=50_000).for_each(|number| fs::create_dir_all(many.join(number.to_string())).unwrap());
        let report = scene.run(&scene.shell("true")).await;
        let End::NotStarted(failure) = &report.end else { panic!("{report:?}") };
        assert_eq!(failure.reason, NotStartedReason::NotConfined);
        assert!(failure.message.contains("more than 50000 directories"), "{}", failure.message);
    });
}

fn deadline_ends_confined_run() {
    Scene::play(async |scene: &Scene| {
        let plan = scene.shell("sleep 600");
        let limits = Limits { wall: Some(std::time::Duration::from_millis(200)), ..plan.limits.clone() };
        let report = scene.run(&RunPlan { limits, ..plan }).await;
        assert!(matches!(report.end, End::Deadline { .. }), "{}", report.end);
        assert_eq!(report.exit, Some(Exit::Signal(15)));
    });
}

fn peak_memory_of_confined_agent_is_reported() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.shell("head -c 60000000 /dev/zero | tail | wc -c")).await;
        assert_eq!(report.exit, Some(Exit::Code(0)), "{}", scene.error());
        assert!(report.usage.largest_rss_bytes > 50_000_000, "{:?}", report.usage);
    });
}

fn report_lists_safeguards_and_self_test() {
    Scene::play(async |scene: &Scene| {
        let run = scene.start(&scene.shell("true")).await;
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
    Scene::play(async |scene: &Scene| {
        assert!(!scene.path("state/proofs").exists());
        let first = scene.run(&scene.shell("true")).await;
        assert!(confined(&first).proof.is_some());
        assert!(scene.path("state/proofs").is_dir(), "nothing was kept");
        fs::rename(scene.spool(), scene.path("state/first")).unwrap();
        let second = scene.run(&scene.shell("true")).await;
        assert!(confined(&second).proof.as_ref().unwrap().earlier);
        let entries = fs::read_dir(scene.path("state/proofs")).unwrap().flatten().map(|entry| entry.path());
        let left: Vec<_> = entries.filter(|path| path.is_file()).collect();
        assert_eq!(left.len(), 1, "{left:?}");
    });
}

fn missing_policy_is_reported() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&RunPlan { policy: Policy::Off, ..scene.shell("true") }).await;
        assert_eq!(report.sandbox, Some(model::SandboxReport::Off));
    });
}

/// Returns the plan with namespaces, or with the kernel's rules alone.
fn in_tier(plan: RunPlan, namespaces: bool) -> RunPlan {
    let Policy::Confined(confinement) = plan.policy else { panic!("no policy") };
    let confinement = Confinement { namespaces, requirement: Requirement::BestEffort, ..*confinement };
    RunPlan { policy: Policy::Confined(Box::new(confinement)), ..plan }
}

fn program_below_tmp_is_found_in_either_tier() {
    for namespaces in [true, false] {
        Scene::play(async |scene: &Scene| {
            let installed = tempfile::tempdir_in("/tmp").unwrap();
            let bin = installed.path().join("prefix/bin");
            fs::create_dir_all(&bin).unwrap();
            fs::copy("/bin/sh", bin.join("interpreter")).unwrap();
            let program = bin.join("agent");
            fs::write(&program, format!("#!{}/interpreter\necho it runs\n", bin.display())).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            let plan = RunPlan { program, args: Vec::new(), ..scene.shell("") };
            let report = scene.run(&in_tier(plan, namespaces)).await;
            assert_eq!(scene.output(), "it runs\n", "namespaces {namespaces}: {report:?}");
        });
    }
}

fn home_and_state_below_tmp_are_confined_in_either_tier() {
    for namespaces in [true, false] {
        Scene::play_in(Path::new("/tmp"), async |scene: &Scene| {
            let script = "echo own > own; (echo x > ../outside/file) || echo refused; echo x > \"$TMPDIR/x\" && echo done";
            let mut plan = scene.shell(script);
            plan.env.insert("TMPDIR".to_owned(), "/tmp".to_owned());
            let report = scene.run(&in_tier(plan, namespaces)).await;
            assert_eq!(scene.output(), "refused\ndone\n", "namespaces {namespaces}: {report:?}");
            assert!(scene.workspace().join("own").exists());
            assert_eq!(fs::read_to_string(scene.path("home/outside/file")).unwrap(), "as it was");
        });
    }
}

fn agent_knows_confinement_in_either_tier() {
    for namespaces in [true, false] {
        Scene::play(async |scene: &Scene| {
            let mut plan = in_tier(scene.shell("echo \"told: $IS_SANDBOX\""), namespaces);
            let Policy::Confined(confinement) = &mut plan.policy else { panic!("no policy") };
            confinement.env_if_held.insert("IS_SANDBOX".to_owned(), "1".to_owned());
            let report = scene.run(&plan).await;
            assert_eq!(scene.output(), "told: 1\n", "namespaces {namespaces}: {report:?}");
        });
    }
}

/// As compilers and git do. `mv` would copy instead, and hide that it cannot.
fn files_can_be_moved_and_linked_between_directories() {
    for namespaces in [true, false] {
        Scene::play(async |scene: &Scene| {
            let script = "mkdir a b && echo x > a/x && ln a/x b/linked && perl -e 'rename(\"a/x\", \"b/moved\") or die $!'";
            let report = scene.run(&in_tier(scene.shell(script), namespaces)).await;
            assert_eq!(report.exit, Some(Exit::Code(0)), "namespaces {namespaces}: {}", scene.error());
            assert!(
                scene.workspace().join("b/moved").exists() && scene.workspace().join("b/linked").exists()
            );
        });
    }
}

fn only_private_files_of_state_are_visible() {
    Scene::play(async |scene: &Scene| {
        let (private, state) = (scene.spool().join("private"), scene.path("state"));
        let script = format!(
            "cat {}/mcp.json; ls {}; cat {}/database",
            private.display(),
            state.display(),
            state.display()
        );
        let plan = RunPlan {
            private_files: [("mcp.json".to_owned(), b"servers\n".to_vec())].into(),
            ..scene.shell(&script)
        };
        scene.run(&plan).await;
        assert_eq!(scene.output(), "servers\nspool\n", "{}", scene.error());
    });
}

fn commit_in_linked_worktree_keeps_hooks_and_config() {
    Scene::play(async |scene: &Scene| {
        let (main, work) = (scene.path("home/main"), scene.workspace());
        fs::remove_dir_all(&work).unwrap();
        let git = |args: &str| {
            let mut command = std::process::Command::new("git");
            command.arg("-C").arg(&main).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
            command.env("HOME", scene.path("home")).args(args.split(' ')).output()
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
        let report = scene.run(&scene.shell(&script)).await;
        assert!(scene.output().contains("commit 0") && scene.output().contains("done"), "{}", scene.error());
        let log = git("log --oneline --all").unwrap();
        assert!(String::from_utf8_lossy(&log.stdout).contains("second"), "{log:?}");
        assert_eq!(fs::read_to_string(main.join(".git/config")).unwrap(), before);
        assert_eq!(fs::read_to_string(main.join("file")).unwrap(), "as it was");
        let missing = ["hooks/post-commit", "config.worktree", "commondir", "h", "w"];
        assert!(missing.iter().all(|name| !main.join(".git").join(name).exists()), "{}", scene.error());
        let leads = fs::read_to_string(main.join(".git/worktrees/shop/commondir")).unwrap();
        assert_eq!(leads, "../..\n");
        assert_eq!(report.exit, Some(Exit::Code(0)), "{}", scene.error());
    });
}
