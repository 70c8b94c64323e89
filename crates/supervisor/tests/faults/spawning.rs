//! What an agent is given, and what happens when it cannot be started.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use model::{End, Exit, NotStartedReason, RunId, RunPlan};
use supervisor::{StartError, Supervisor};

use crate::scene::{Scene, environment, read_along};

crate::tests![
    missing_program_is_reported,
    non_executable_program_is_reported,
    missing_interpreter_is_reported,
    missing_cwd_is_reported,
    cwd_that_is_a_file_is_reported,
    inaccessible_cwd_is_reported,
    invalid_plan_is_rejected_before_any_write,
    exit_code_is_that_of_the_agent,
    death_by_signal_is_not_an_exit_code,
    environment_is_that_of_plan_plus_run_id,
    agent_inherits_no_file_of_the_caller,
    agent_leads_group_in_supervisor_session,
    agent_has_default_signal_handling,
    arguments_arrive_unchanged,
    ten_megabyte_prompt_arrives_complete,
    resource_usage_of_tree_is_reported,
];

async fn reason(scene: &Scene, plan: &RunPlan) -> (NotStartedReason, String) {
    match scene.run(plan).await.end {
        End::NotStarted(failure) => (failure.reason, failure.message),
        other => panic!("{other}"),
    }
}

fn missing_program_is_reported() {
    Scene::play(async |scene: &Scene| {
        let (reason, message) = reason(scene, &RunPlan::new("/nowhere/claude", scene.folder())).await;
        assert_eq!(reason, NotStartedReason::ProgramMissing);
        assert!(message.contains("cannot start `/nowhere/claude`"), "{message}");
    });
}

fn non_executable_program_is_reported() {
    Scene::play(async |scene: &Scene| {
        let program = scene.folder().join("claude");
        fs::write(&program, "").unwrap();
        let (reason, message) = reason(scene, &RunPlan::new(&program, scene.folder())).await;
        assert_eq!(reason, NotStartedReason::ProgramNotExecutable, "{message}");
    });
}

fn missing_interpreter_is_reported() {
    Scene::play(async |scene: &Scene| {
        let program = scene.folder().join("claude");
        fs::write(&program, "#!/nowhere/node\n").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let (reason, message) = reason(scene, &RunPlan::new(&program, scene.folder())).await;
        assert_eq!(reason, NotStartedReason::ProgramMissing);
        assert!(message.contains("interpreter"), "{message}");
    });
}

fn missing_cwd_is_reported() {
    Scene::play(async |scene: &Scene| {
        let (reason, message) = reason(scene, &RunPlan::new("/bin/true", "/nowhere/shop")).await;
        assert_eq!(reason, NotStartedReason::CwdMissing);
        assert!(message.contains("`/nowhere/shop`"), "{message}");
    });
}

fn cwd_that_is_a_file_is_reported() {
    Scene::play(async |scene: &Scene| {
        let (reason, message) = reason(scene, &RunPlan::new("/bin/true", "/bin/true")).await;
        assert_eq!(reason, NotStartedReason::CwdNotADirectory, "{message}");
    });
}

fn inaccessible_cwd_is_reported() {
    Scene::play(async |scene: &Scene| {
        let cwd = scene.folder().join("closed");
        fs::create_dir(&cwd).unwrap();
        fs::set_permissions(&cwd, Permissions::from_mode(0o000)).unwrap();
        let report = scene.run(&RunPlan::new("/bin/true", &cwd)).await;
        if rustix::process::geteuid().is_root() {
            assert_eq!(report.exit, Some(Exit::Code(0)), "root may enter any folder");
        } else {
            let End::NotStarted(failure) = report.end else { panic!("{report:?}") };
            assert_eq!(failure.reason, NotStartedReason::CwdForbidden, "{failure}");
        }
        fs::set_permissions(&cwd, Permissions::from_mode(0o700)).unwrap();
    });
}

fn invalid_plan_is_rejected_before_any_write() {
    Scene::play(async |scene: &Scene| {
        let plan = RunPlan { args: vec!["a\0b".into()], ..RunPlan::new("/bin/true", "/") };
        let error = Supervisor::this_program().unwrap().start(&scene.spool(), &plan).await.unwrap_err();
        assert!(matches!(error, StartError::Plan(_)), "{error:?}");
        assert!(!scene.spool().exists());
    });
}

fn exit_code_is_that_of_the_agent() {
    for code in [0, 1, 143] {
        Scene::play(async |scene: &Scene| {
            let report = scene.run(&scene.agent(&format!("exit {code}"))).await;
            assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(code))));
        });
    }
}

fn death_by_signal_is_not_an_exit_code() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.agent("signal SEGV")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Signal(11))));
    });
}

fn environment_is_that_of_plan_plus_run_id() {
    Scene::play(async |scene: &Scene| {
        let env = BTreeMap::from([("LANG".to_owned(), "C".to_owned()), ("KEY".to_owned(), "a b".to_owned())]);
        let plan = RunPlan { env: env.clone(), ..RunPlan::new("/usr/bin/env", scene.folder()) };
        let run = scene.start(&plan).await;
        run.wait().await.unwrap();
        let mut expected = env;
        expected.insert(RunId::VARIABLE.to_owned(), run.id().to_string());
        assert_eq!(environment(&scene.text()), expected);
    });
}

fn agent_inherits_no_file_of_the_caller() {
    Scene::play(async |scene: &Scene| {
        let secret = fs::File::open("/etc/hostname").or_else(|_| fs::File::open("/etc/passwd")).unwrap();
        // A file without close-on-exec, as careless callers have them.
        rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
        let plan = RunPlan { args: vec!["/proc/self/fd".into()], ..RunPlan::new("/bin/ls", "/") };
        scene.run(&plan).await;
        // 3 is the folder that `ls` itself is reading.
        assert_eq!(scene.text(), "0\n1\n2\n3\n");
        drop(secret);
    });
}

fn agent_leads_group_in_supervisor_session() {
    Scene::play(async |scene: &Scene| {
        let plan = RunPlan { args: vec!["/proc/self/stat".into()], ..RunPlan::new("/bin/cat", "/") };
        let run = scene.start(&plan).await;
        run.wait().await.unwrap();
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        let text = scene.text();
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        assert_eq!(fields[0], fields[4], "it leads its group: {text}");
        assert_eq!(fields[3], supervisor.to_string(), "its parent is the supervisor: {text}");
        assert_eq!(fields[5], supervisor.to_string(), "its session is the supervisor's own: {text}");
    });
}

fn agent_has_default_signal_handling() {
    Scene::play(async |scene: &Scene| {
        let args = vec!["^Sig(Blk|Ign)".into(), "-E".into(), "/proc/self/status".into()];
        scene.run(&RunPlan { args, ..RunPlan::new("/bin/grep", "/") }).await;
        let text = scene.text();
        let masks =
            text.lines().map(|line| u64::from_str_radix(line.rsplit('\t').next().unwrap(), 16).unwrap());
        // Signals 32 and 33 are the C library's own.
        let masks: Vec<u64> = masks.map(|mask| mask & !(0b11 << 31)).collect();
        assert_eq!(masks, [0, 0], "{text}");
    });
}

fn arguments_arrive_unchanged() {
    Scene::play(async |scene: &Scene| {
        let args = ["%s\n", "a b", "$HOME", "`id`", "", "--help", "ü\u{1f600}", "new\nline"];
        let args = args.map(str::to_owned).to_vec();
        scene.run(&RunPlan { args, ..RunPlan::new("/usr/bin/printf", "/") }).await;
        assert_eq!(scene.text(), "a b\n$HOME\n`id`\n\n--help\nü\u{1f600}\nnew\nline\n");
    });
}

fn ten_megabyte_prompt_arrives_complete() {
    Scene::play(async |scene: &Scene| {
        let stdin: Vec<u8> =
            (0..10_000_000_u32).map(|index| index.to_le_bytes()[index as usize % 3]).collect();
        let plan = RunPlan { stdin: stdin.clone(), ..RunPlan::new("/bin/cat", "/") };
        let run = scene.start(&plan).await;
        let (output, _, report) = read_along(&run).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert!(output == stdin, "{} bytes came back", output.len());
    });
}

fn resource_usage_of_tree_is_reported() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.agent("alloc 50MB\nburn 200ms")).await;
        let usage = report.usage;
        assert!(usage.cpu_user_ms + usage.cpu_system_ms >= 150, "{usage:?}");
        assert!(usage.largest_rss_bytes >= 50_000_000, "{usage:?}");
    });
}
