//! The environment of an agent, and failures to start it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use model::{End, Exit, NotStartedReason, RunId, RunPlan};
use supervisor::{StartError, Supervisor};

use crate::harness::{Harness, environment, read_to_end};

testkit::tests![
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

async fn reason(harness: &Harness, plan: &RunPlan) -> (NotStartedReason, String) {
    match harness.run(plan).await.end {
        End::NotStarted(failure) => (failure.reason, failure.message),
        other => panic!("{other}"),
    }
}

fn missing_program_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let (reason, message) = reason(harness, &RunPlan::new("/nowhere/claude", harness.directory())).await;
        assert_eq!(reason, NotStartedReason::ProgramMissing);
        assert!(message.contains("cannot start `/nowhere/claude`"), "{message}");
    });
}

fn non_executable_program_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let program = harness.directory().join("claude");
        fs::write(&program, "").unwrap();
        let (reason, message) = reason(harness, &RunPlan::new(&program, harness.directory())).await;
        assert_eq!(reason, NotStartedReason::ProgramNotExecutable, "{message}");
    });
}

fn missing_interpreter_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let program = harness.directory().join("claude");
        fs::write(&program, "#!/nowhere/node\n").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let (reason, message) = reason(harness, &RunPlan::new(&program, harness.directory())).await;
        assert_eq!(reason, NotStartedReason::ProgramMissing);
        assert!(message.contains("interpreter"), "{message}");
    });
}

fn missing_cwd_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let (reason, message) = reason(harness, &RunPlan::new("/bin/true", "/nowhere/shop")).await;
        assert_eq!(reason, NotStartedReason::CwdMissing);
        assert!(message.contains("`/nowhere/shop`"), "{message}");
    });
}

fn cwd_that_is_a_file_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let (reason, message) = reason(harness, &RunPlan::new("/bin/true", "/bin/true")).await;
        assert_eq!(reason, NotStartedReason::CwdNotADirectory, "{message}");
    });
}

fn inaccessible_cwd_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let cwd = harness.directory().join("closed");
        fs::create_dir(&cwd).unwrap();
        fs::set_permissions(&cwd, Permissions::from_mode(0o000)).unwrap();
        let report = harness.run(&RunPlan::new("/bin/true", &cwd)).await;
        if rustix::process::geteuid().is_root() {
            assert_eq!(report.exit, Some(Exit::Code(0)), "root may enter any directory");
        } else {
            let End::NotStarted(failure) = report.end else { panic!("{report:?}") };
            assert_eq!(failure.reason, NotStartedReason::CwdForbidden, "{failure}");
        }
        fs::set_permissions(&cwd, Permissions::from_mode(0o700)).unwrap();
    });
}

fn invalid_plan_is_rejected_before_any_write() {
    Harness::run_test(async |harness: &Harness| {
        let plan = RunPlan { args: vec!["a\0b".into()], ..RunPlan::new("/bin/true", "/") };
        let error = Supervisor::this_program().unwrap().start(&harness.spool(), &plan).await.unwrap_err();
        assert!(matches!(error, StartError::Plan(_)), "{error:?}");
        assert!(!harness.spool().exists());
    });
}

fn exit_code_is_that_of_the_agent() {
    for code in [0, 1, 143] {
        Harness::run_test_in_each_mode(async |harness: &Harness| {
            let report = harness.run(&harness.agent(&format!("exit {code}"))).await;
            assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(code))));
        });
    }
}

fn death_by_signal_is_not_an_exit_code() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let report = harness.run(&harness.agent("signal SEGV")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Signal(11))));
    });
}

fn environment_is_that_of_plan_plus_run_id() {
    Harness::run_test(async |harness: &Harness| {
        let env = BTreeMap::from([("LANG".to_owned(), "C".to_owned()), ("KEY".to_owned(), "a b".to_owned())]);
        let plan = RunPlan { env: env.clone(), ..RunPlan::new("/usr/bin/env", harness.directory()) };
        let run = harness.start(&plan).await;
        run.wait().await.unwrap();
        let mut expected = env;
        expected.insert(RunId::VARIABLE.to_owned(), run.id().to_string());
        assert_eq!(environment(&harness.text()), expected);
    });
}

fn agent_inherits_no_file_of_the_caller() {
    Harness::run_test(async |harness: &Harness| {
        let secret = fs::File::open("/etc/hostname").or_else(|_| fs::File::open("/etc/passwd")).unwrap();
        // A file without close-on-exec, as careless callers have them.
        rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
        let plan = RunPlan { args: vec!["/proc/self/fd".into()], ..RunPlan::new("/bin/ls", "/") };
        harness.run(&plan).await;
        // 3 is the directory that `ls` itself is reading.
        assert_eq!(harness.text(), "0\n1\n2\n3\n");
        drop(secret);
    });
}

fn agent_leads_group_in_supervisor_session() {
    Harness::run_test(async |harness: &Harness| {
        let plan = RunPlan { args: vec!["/proc/self/stat".into()], ..RunPlan::new("/bin/cat", "/") };
        let run = harness.start(&plan).await;
        run.wait().await.unwrap();
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        let text = harness.text();
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        assert_eq!(fields[0], fields[4], "it leads its group: {text}");
        assert_eq!(fields[3], supervisor.to_string(), "its parent is the supervisor: {text}");
        assert_eq!(fields[5], supervisor.to_string(), "its session is the supervisor's own: {text}");
    });
}

fn agent_has_default_signal_handling() {
    Harness::run_test(async |harness: &Harness| {
        let args = vec!["^Sig(Blk|Ign)".into(), "-E".into(), "/proc/self/status".into()];
        harness.run(&RunPlan { args, ..RunPlan::new("/bin/grep", "/") }).await;
        let text = harness.text();
        let masks =
            text.lines().map(|line| u64::from_str_radix(line.rsplit('\t').next().unwrap(), 16).unwrap());
        // Signals 32 and 33 are the C library's own.
        let masks: Vec<u64> = masks.map(|mask| mask & !(0b11 << 31)).collect();
        assert_eq!(masks, [0, 0], "{text}");
    });
}

fn arguments_arrive_unchanged() {
    Harness::run_test(async |harness: &Harness| {
        let args = ["%s\n", "a b", "$HOME", "`id`", "", "--help", "ü\u{1f600}", "new\nline"];
        let args = args.map(str::to_owned).to_vec();
        harness.run(&RunPlan { args, ..RunPlan::new("/usr/bin/printf", "/") }).await;
        assert_eq!(harness.text(), "a b\n$HOME\n`id`\n\n--help\nü\u{1f600}\nnew\nline\n");
    });
}

fn ten_megabyte_prompt_arrives_complete() {
    Harness::run_test(async |harness: &Harness| {
        let stdin: Vec<u8> =
            (0..10_000_000_u32).map(|index| index.to_le_bytes()[index as usize % 3]).collect();
        let plan = RunPlan { input: stdin.clone(), ..RunPlan::new("/bin/cat", "/") };
        let run = harness.start(&plan).await;
        let (output, _, report) = read_to_end(&run).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert!(output == stdin, "{} bytes came back", output.len());
    });
}

fn resource_usage_of_tree_is_reported() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&harness.agent("alloc 50MB\nburn 200ms")).await;
        let usage = report.usage;
        assert!(usage.cpu_user_ms + usage.cpu_system_ms >= 150, "{usage:?}");
        assert!(usage.largest_rss_bytes >= 50_000_000, "{usage:?}");
    });
}
