//! Killed starters, killed supervisors, reboots and power losses.

use std::fs;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use model::{End, Exit, RunId, RunLifetime, RunPlan, RunReport, RunState, RunStatus, TreeEnd};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{AttachError, Run, RunRecoveryError, Spool, StopReply, WaitError, attach, recover};
use testkit::{eventually_async, is_running, session_of};

use crate::harness::{Harness, read_to_end, runtime};

testkit::tests![
    agent_dies_with_killed_supervisor,
    survivor_outside_session_is_found_by_descent,
    survivors_are_killed_without_spool,
    run_with_survivors_can_be_recovered_again,
    starting_run_is_attached_undisturbed,
    run_survives_killed_starter_with_all_output,
    bound_run_ends_when_starter_is_killed,
    starter_killed_at_any_moment_leaves_nothing,
    bound_run_ends_when_starter_exits,
    wait_kills_survivors_of_killed_supervisor,
    recover_kills_survivors_of_killed_supervisor,
    supervisor_killed_before_reply_leaves_nothing,
    survivor_without_environment_is_found_by_session,
    concurrent_recoveries_agree,
    living_supervisor_is_not_recovered,
    recovery_after_reboot_kills_no_other_process,
    process_with_reused_pid_is_not_killed,
    answer_truncated_by_power_loss_counts_as_lost,
];

/// The argument of a starter that waits to be killed.
const PARENT: &str = "--start-and-wait";
/// The argument of a starter that does not wait.
const DESERTER: &str = "--start-and-leave";

/// The other half of `run_survives_killed_starter_with_all_output`: starts the run in the given directory and waits.
pub fn start_and_wait_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    let asked = args.next()?;
    if asked != PARENT && asked != DESERTER {
        return None;
    }
    let (spool, plan) = (args.next().unwrap(), args.next().unwrap());
    let mut plan: RunPlan = serde_json::from_str(&plan).unwrap();
    plan.input = args.next().unwrap().into_bytes();
    runtime().block_on(async {
        let run = supervisor::Supervisor::this_program().unwrap().start(spool.as_ref(), &plan).await.unwrap();
        if asked == PARENT {
            run.wait().await.unwrap();
        }
    });
    Some(ExitCode::SUCCESS)
}

/// Returns the arguments of a starter that runs a plan in the harness's spool.
pub fn parent(harness: &Harness, plan: &RunPlan) -> [String; 4] {
    let stdin = String::from_utf8(plan.input.clone()).unwrap();
    let spool = harness.spool().to_str().unwrap().to_owned();
    [PARENT.to_owned(), spool, serde_json::to_string(plan).unwrap(), stdin]
}

fn run_survives_killed_starter_with_all_output() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let plan = harness.agent("say one\nstream 100 1000 5ms\nflood stdout 5MB\nanswer two");
        let mut starter = Command::new(std::env::current_exe().unwrap())
            .args(parent(harness, &plan))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        eventually_async("the agent speaks", async || {
            fs::metadata(harness.spool().join("output")).is_ok_and(|file| file.len() > 0)
        })
        .await;
        starter.kill().unwrap();
        starter.wait().unwrap();

        let run = attach(&harness.spool()).await.unwrap();
        let (output, _, report) = read_to_end(&run).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))));
        assert!(output.starts_with(b"one\n") && output.ends_with(b"two\n"));
        assert_eq!(output.len() as u64, report.output_bytes);
        assert!(output.len() > 5_000_000 + 100_000);
    });
}

/// Spawns a starter whose run must not outlive it.
fn bound_starter(harness: &Harness, script: &str) -> Child {
    let plan = RunPlan { lifetime: RunLifetime::BoundToStarter, ..harness.agent(script) };
    let mut starter = Command::new(std::env::current_exe().unwrap());
    starter.args(parent(harness, &plan)).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

const STUBBORN: &str = "spawn setsid ignore-term\nspawn daemon ignore-term\nsay up\nignore TERM\nhang";

fn bound_run_ends_when_starter_is_killed() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let mut starter = bound_starter(harness, STUBBORN);
        eventually_async("the agent is up", async || {
            fs::read(harness.spool().join("output")).is_ok_and(|said| said == b"up\n")
        })
        .await;
        assert!(harness.descendants().len() == 2 && harness.descendants().into_iter().all(is_running));
        starter.kill().unwrap();
        starter.wait().unwrap();
        eventually_async("no descendant outlives the starter", async || {
            !harness.descendants().into_iter().any(is_running)
        })
        .await;
        // No recovery was needed: the supervisor itself has written the final status.
        eventually_async("the end is written", async || ended(harness).is_some()).await;
        let report = ended(harness).unwrap();
        assert_eq!((report.end, report.tree), (End::StarterGone, TreeEnd::ProvenEmpty));
        assert_eq!((report.output_bytes, report.descendants_ended), (3, 2));
    });
}

/// Returns the report in the spool, once there is one.
fn ended(harness: &Harness) -> Option<RunReport> {
    match Spool::at(harness.spool()).status().ok()??.state {
        RunState::Ended(report) => Some(report),
        RunState::Running { .. } => None,
    }
}

fn starter_killed_at_any_moment_leaves_nothing() {
    // From before the plan is written until long after the start of the agent. The harness checks that nothing is left.
    for pause in (0..30).map(|step| Duration::from_millis(step * 2)) {
        Harness::run_test_in_each_mode(async |harness: &Harness| {
            let mut starter = bound_starter(harness, STUBBORN);
            tokio::time::sleep(pause).await;
            starter.kill().unwrap();
            starter.wait().unwrap();
        });
    }
}

fn bound_run_ends_when_starter_exits() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let plan = RunPlan { lifetime: RunLifetime::BoundToStarter, ..harness.agent("say up\nhang") };
        let mut arguments = parent(harness, &plan);
        DESERTER.clone_into(&mut arguments[0]);
        let left = Command::new(std::env::current_exe().unwrap()).args(arguments).status().unwrap();
        assert!(left.success());
        eventually_async("the end is written", async || ended(harness).is_some()).await;
        assert_eq!(ended(harness).unwrap().end, End::StarterGone);
    });
}

/// Starts an agent with one descendant of each kind and kills its supervisor.
async fn kill_supervisor(harness: &Harness) -> Run {
    let kinds = ["same-group", "setsid", "daemon"].map(|kind| format!("spawn {kind} ignore-term\n"));
    let run = harness.start(&harness.agent(&format!("{}say up\nignore TERM\nhang", kinds.concat()))).await;
    eventually_async("the agent is up", async || harness.text() == "up\n").await;
    assert_eq!(harness.descendants().len(), 3);
    kill(supervisor_of(&run), Signal::KILL);
    run
}

fn supervisor_of(run: &Run) -> i32 {
    run.spool().status().unwrap().unwrap().supervisor.pid
}

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn assert_swept(harness: &Harness, report: &RunReport) {
    assert_eq!((&report.end, report.tree), (&End::SupervisorLost, TreeEnd::SweptByIdentity));
    assert!(report.descendants_ended >= 3, "{report:?}");
    assert_eq!(report.output_bytes, 3);
    assert!(!harness.descendants().into_iter().any(is_running));
}

fn wait_kills_survivors_of_killed_supervisor() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = kill_supervisor(harness).await;
        assert_swept(harness, &run.wait().await.unwrap());
    });
}

fn recover_kills_survivors_of_killed_supervisor() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        drop(kill_supervisor(harness).await);
        // The agent's own process dies with its supervisor; its descendants do not.
        assert!(harness.descendants().into_iter().all(is_running));
        let run = attach(&harness.spool()).await.unwrap();
        let (output, _, report) = read_to_end(&run).await;
        assert_eq!(output, b"up\n");
        assert_swept(harness, &report);
        assert_eq!(recover(&harness.spool()).unwrap(), report);
    });
}

fn agent_dies_with_killed_supervisor() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("ignore TERM\nsay up\nhang")).await;
        eventually_async("the agent is up", async || harness.text() == "up\n").await;
        let agent = agent_of(&run.spool().status().unwrap().unwrap());
        kill(supervisor_of(&run), Signal::KILL);
        // No recovery: the kernel does it.
        eventually_async("the agent goes with its supervisor", async || !is_running(agent)).await;
        assert_eq!(run.wait().await.unwrap().descendants_ended, 0);
    });
}

fn survivor_outside_session_is_found_by_descent() {
    Harness::run_test(async |harness: &Harness| {
        let inner = format!("env -i sleep 600 & echo $! > {}; echo up; wait", harness.pid_file().display());
        let args = vec!["-c".into(), format!("setsid sh -c '{inner}' & wait")];
        let env = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
        let run = harness.start(&RunPlan { args, env, ..RunPlan::new("/bin/sh", "/") }).await;
        eventually_async("the agent is up", async || harness.text() == "up\n").await;
        kill(supervisor_of(&run), Signal::KILL);
        drop(run);
        let report = recover(&harness.spool()).unwrap();
        assert_eq!(report.tree, TreeEnd::SweptByIdentity);
        assert!(!is_running(harness.descendants()[0]));
    });
}

fn survivors_are_killed_without_spool() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = kill_supervisor(harness).await;
        fs::remove_dir_all(harness.spool()).unwrap();
        let error = run.wait().await.unwrap_err();
        assert!(matches!(error, WaitError::Recover(RunRecoveryError::Open { .. })), "{error:?}");
        assert!(!harness.descendants().into_iter().any(is_running));
    });
}

fn run_with_survivors_can_be_recovered_again() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&harness.agent("answer done")).await;
        // The supervisor still frees what it has reserved.
        eventually_async("the supervisor exits", async || !Spool::at(harness.spool()).is_locked().unwrap())
            .await;
        let file = harness.spool().join("status.json");
        let mut status: RunStatus = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let tree = TreeEnd::LeftAlive { processes: 1 };
        status.state = RunState::Ended(RunReport { tree, ..report.clone() });
        fs::write(&file, serde_json::to_vec(&status).unwrap()).unwrap();
        let mut left = Command::new("sleep")
            .arg("600")
            .env(RunId::VARIABLE, status.run_id.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let again = recover(&harness.spool()).unwrap();
        assert_eq!(again, RunReport { tree: TreeEnd::SweptByIdentity, ..report });
        assert!(!left.wait().unwrap().success());
    });
}

fn starting_run_is_attached_undisturbed() {
    for pause in 0..30_u64 {
        Harness::run_test(async |harness: &Harness| {
            let plan = harness.agent("hang");
            let watcher = async {
                eventually_async("the directory is there", async || harness.spool().exists()).await;
                tokio::time::sleep(Duration::from_micros(50 * pause)).await;
                attach(&harness.spool()).await
            };
            let (run, other) = tokio::join!(harness.start(&plan), watcher);
            let other = match other {
                // Before the starter had locked the directory.
                Err(AttachError::NoRun { .. }) => attach(&harness.spool()).await.unwrap(),
                other => other.unwrap(),
            };
            assert_eq!(other.id(), run.id());
            assert_eq!(other.stop().unwrap(), StopReply::Requested);
            assert_eq!(run.wait().await.unwrap().end, End::Stopped);
        });
    }
}

fn supervisor_killed_before_reply_leaves_nothing() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = kill_supervisor(harness).await;
        // As if it had been killed between the start of the agent and its first status.
        let run_id = run.id().to_string();
        drop(run);
        fs::remove_file(harness.spool().join("status.json")).unwrap();
        let plan = serde_json::to_string(&harness.agent("hang")).unwrap();
        let order = format!(r#"{{"version":1,"run_id":"{run_id}","plan":{plan}}}"#);
        fs::write(harness.spool().join("plan.json"), order).unwrap();
        let report = attach(&harness.spool()).await.unwrap().wait().await.unwrap();
        assert_swept(harness, &report);
    });
}

fn survivor_without_environment_is_found_by_session() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&harness.agent("spawn same-group clear-env ignore-term\nsay up\nhang")).await;
        eventually_async("the agent is up", async || harness.text() == "up\n").await;
        kill(supervisor_of(&run), Signal::KILL);
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.tree), (End::SupervisorLost, TreeEnd::SweptByIdentity));
        assert!(!harness.descendants().into_iter().any(is_running));
    });
}

fn concurrent_recoveries_agree() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        drop(kill_supervisor(harness).await);
        let directory = harness.spool();
        let reports: Vec<RunReport> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..10).map(|_| scope.spawn(|| recover(&directory).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_swept(harness, &reports[0]);
        assert!(reports.iter().all(|report| report == &reports[0]), "{reports:?}");
    });
}

fn living_supervisor_is_not_recovered() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("hang")).await;
        let error = recover(&harness.spool()).unwrap_err();
        assert!(matches!(error, RunRecoveryError::StillRunning { .. }), "{error:?}");
        run.stop().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Stopped);
    });
}

/// Replaces the status in the spool of a killed supervisor, with a bystander in the supervisor's place.
async fn recover_beside_bystander(harness: &Harness, change: impl FnOnce(&mut RunStatus)) -> RunReport {
    let run = harness.start(&harness.agent("hang")).await;
    let mut status = run.spool().status().unwrap().unwrap();
    kill(status.supervisor.pid, Signal::KILL);
    drop(run);
    eventually_async("the agent goes with its supervisor", async || !is_running(agent_of(&status))).await;
    // The worst case: it leads a session, as the supervisor did.
    let mut bystander = Command::new("setsid").args(["sleep", "600"]).stdout(Stdio::null()).spawn().unwrap();
    let pid = i32::try_from(bystander.id()).unwrap();
    eventually_async("the bystander leads a session", async || session_of(pid) == Some(pid)).await;
    status.supervisor.pid = pid;
    status.supervisor.start_ticks = start_ticks(status.supervisor.pid);
    change(&mut status);
    fs::write(harness.spool().join("status.json"), serde_json::to_vec(&status).unwrap()).unwrap();
    let report = attach(&harness.spool()).await.unwrap().wait().await.unwrap();
    assert!(bystander.try_wait().unwrap().is_none(), "the bystander was ended");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    report
}

fn agent_of(status: &RunStatus) -> i32 {
    match &status.state {
        RunState::Running { agent } => agent.pid,
        RunState::Ended(report) => panic!("{report:?}"),
    }
}

fn start_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

fn recovery_after_reboot_kills_no_other_process() {
    Harness::run_test(async |harness: &Harness| {
        let report = recover_beside_bystander(harness, |status| status.boot_id = "another-boot".into()).await;
        assert_eq!((report.end, report.tree), (End::SupervisorLost, TreeEnd::SweptByIdentity));
        assert_eq!(report.descendants_ended, 0);
    });
}

fn process_with_reused_pid_is_not_killed() {
    Harness::run_test(async |harness: &Harness| {
        let report = recover_beside_bystander(harness, |status| status.supervisor.start_ticks -= 1).await;
        assert_eq!((report.end, report.tree), (End::SupervisorLost, TreeEnd::SweptByIdentity));
        assert_eq!(report.descendants_ended, 0);
    });
}

fn answer_truncated_by_power_loss_counts_as_lost() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&harness.agent("answer done")).await;
        // The supervisor still frees what it has reserved.
        eventually_async("the supervisor exits", async || !Spool::at(harness.spool()).is_locked().unwrap())
            .await;
        let file = harness.spool().join("status.json");
        let mut status: RunStatus = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        status.boot_id = "another-boot".into();
        fs::write(&file, serde_json::to_vec(&status).unwrap()).unwrap();
        assert_eq!(
            attach(&harness.spool()).await.unwrap().wait().await.unwrap(),
            report,
            "a whole answer is kept"
        );
        fs::write(harness.spool().join("output"), "do").unwrap();
        let report = attach(&harness.spool()).await.unwrap().wait().await.unwrap();
        assert_eq!((&report.end, report.output_bytes), (&End::SupervisorLost, 2));
        let status = attach(&harness.spool()).await.unwrap().spool().status().unwrap().unwrap();
        assert_eq!(status.state, RunState::Ended(report));
    });
}
