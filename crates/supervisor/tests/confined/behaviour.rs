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
    an_agent_reads_its_stdin_and_its_answer_comes_through,
    a_large_output_comes_through_whole,
    exit_codes_and_signals_are_the_agents_own,
    an_agent_that_ignores_term_is_killed_after_its_grace,
    an_agent_that_obeys_term_ends_by_itself,
    what_an_agent_leaves_behind_is_asked_to_end_and_counted,
    a_missing_program_and_a_missing_folder_have_their_reasons,
    workspace_that_is_too_large_is_refused_when_required,
    a_deadline_ends_it,
    its_peak_memory_is_seen,
    the_report_says_what_held_and_what_was_proven,
    a_proof_is_made_once_and_kept,
    without_a_policy_it_is_said_aloud,
    program_and_interpreter_below_tmp_are_found_in_either_tier,
    home_and_state_below_tmp_are_confined_in_either_tier,
    agent_is_told_that_it_is_confined_in_either_tier,
    files_are_moved_and_linked_between_directories,
    private_files_are_seen_and_the_rest_of_our_state_is_not,
    in_a_linked_worktree_git_commits_and_nothing_of_the_repository_that_runs_commands_is_changed,
];

fn an_agent_reads_its_stdin_and_its_answer_comes_through() {
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

fn a_large_output_comes_through_whole() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.agent("flood stdout 20MB\nanswer done")).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert!(report.output_bytes > 20_000_000 && scene.output().ends_with("done\n"));
    });
}

fn exit_codes_and_signals_are_the_agents_own() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.shell("exit 42")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(42))));
    });
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.shell("kill -SEGV $$")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Signal(11))));
    });
}

fn an_agent_that_ignores_term_is_killed_after_its_grace() {
    Scene::play(async |scene: &Scene| {
        let run = scene.start(&scene.shell("trap '' TERM; echo up; while :; do sleep 1; done")).await;
        scene.says("up").await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Stopped, Some(Exit::Signal(9))));
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn an_agent_that_obeys_term_ends_by_itself() {
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

fn what_an_agent_leaves_behind_is_asked_to_end_and_counted() {
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

fn a_missing_program_and_a_missing_folder_have_their_reasons() {
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

fn workspace_that_is_too_large_is_refused_when_required() {
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

fn a_deadline_ends_it() {
    Scene::play(async |scene: &Scene| {
        let plan = scene.shell("sleep 600");
        let limits = Limits { wall: Some(std::time::Duration::from_millis(200)), ..plan.limits.clone() };
        let report = scene.run(&RunPlan { limits, ..plan }).await;
        assert!(matches!(report.end, End::Deadline { .. }), "{}", report.end);
        assert_eq!(report.exit, Some(Exit::Signal(15)));
    });
}

fn its_peak_memory_is_seen() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.shell("head -c 60000000 /dev/zero | tail | wc -c")).await;
        assert_eq!(report.exit, Some(Exit::Code(0)), "{}", scene.error());
        assert!(report.usage.largest_rss_bytes > 50_000_000, "{:?}", report.usage);
    });
}

fn the_report_says_what_held_and_what_was_proven() {
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

fn a_proof_is_made_once_and_kept() {
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

fn without_a_policy_it_is_said_aloud() {
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

fn program_and_interpreter_below_tmp_are_found_in_either_tier() {
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

fn agent_is_told_that_it_is_confined_in_either_tier() {
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
fn files_are_moved_and_linked_between_directories() {
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

fn private_files_are_seen_and_the_rest_of_our_state_is_not() {
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

fn in_a_linked_worktree_git_commits_and_nothing_of_the_repository_that_runs_commands_is_changed() {
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
