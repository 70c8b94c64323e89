//! Killed parents, killed supervisors, and machines that went down.

use std::fs;
use std::process::{Command, ExitCode, Stdio};

use model::{End, Exit, RunReport, RunState, RunStatus, TreeEnd};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{RecoverError, Run, attach, recover};

use crate::scene::{Scene, eventually, is_running, processes, read_along, runtime};

crate::tests![
    a_run_outlives_its_killed_parent_and_keeps_every_byte,
    a_killed_supervisor_leaves_nothing_when_somebody_waits,
    a_killed_supervisor_leaves_nothing_when_somebody_recovers_later,
    a_supervisor_killed_before_its_first_word_leaves_nothing,
    what_cleared_its_environment_is_found_through_the_session,
    ten_recoveries_at_once_agree,
    a_living_supervisor_is_not_recovered,
    after_a_reboot_nobody_else_is_harmed,
    a_pid_that_was_given_out_again_is_left_alone,
    an_answer_that_a_power_cut_shortened_counts_as_lost,
];

/// What a parent that is about to be killed is started with.
const PARENT: &str = "--start-and-wait";

/// The other half of `a_run_outlives_its_killed_parent…`: starts the run in the given folder and waits.
pub fn start_and_wait_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != PARENT {
        return None;
    }
    let (spool, plan) = (args.next().unwrap(), args.next().unwrap());
    let mut plan: model::RunPlan = serde_json::from_str(&plan).unwrap();
    plan.stdin = args.next().unwrap().into_bytes();
    runtime().block_on(async {
        let run = supervisor::Supervisor::this_program().unwrap().start(spool.as_ref(), &plan).await.unwrap();
        run.wait().await.unwrap();
    });
    Some(ExitCode::SUCCESS)
}

fn a_run_outlives_its_killed_parent_and_keeps_every_byte() {
    Scene::play(async |scene: &Scene| {
        let plan = scene.agent("say one\nstream 100 1000 5ms\nflood stdout 5MB\nanswer two");
        let stdin = String::from_utf8(plan.stdin.clone()).unwrap();
        let mut parent = Command::new(std::env::current_exe().unwrap())
            .args([PARENT, scene.spool().to_str().unwrap(), &serde_json::to_string(&plan).unwrap(), &stdin])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the agent speaks", || {
            fs::metadata(scene.spool().join("output")).is_ok_and(|file| file.len() > 0)
        })
        .await;
        parent.kill().unwrap();
        parent.wait().unwrap();

        let run = attach(&scene.spool()).await.unwrap();
        let (output, _, report) = read_along(&run).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))));
        assert!(output.starts_with(b"one\n") && output.ends_with(b"two\n"));
        assert_eq!(output.len() as u64, report.output_bytes);
        assert!(output.len() > 5_000_000 + 100_000);
    });
}

/// Starts an agent with one descendant of each kind and kills its supervisor.
async fn kill_the_supervisor(scene: &Scene, options: &str) -> Run {
    let kinds =
        ["same-group", "setsid", "daemon"].map(|kind| format!("spawn {kind} ignore-term {options}\n"));
    let run = scene.start(&scene.agent(&format!("{}say up\nignore TERM\nhang", kinds.concat()))).await;
    eventually("the agent is up", || scene.text() == "up\n").await;
    assert_eq!(scene.descendants().len(), 3);
    let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    run
}

fn assert_swept(scene: &Scene, report: &RunReport) {
    assert_eq!((&report.end, report.tree), (&End::SupervisorLost, TreeEnd::SweptByIdentity));
    assert!(report.descendants_ended >= 3, "{report:?}");
    assert_eq!(report.output_bytes, 3);
    assert!(!scene.descendants().into_iter().any(is_running));
}

fn a_killed_supervisor_leaves_nothing_when_somebody_waits() {
    Scene::play(async |scene: &Scene| {
        let run = kill_the_supervisor(scene, "").await;
        assert_swept(scene, &run.wait().await.unwrap());
    });
}

fn a_killed_supervisor_leaves_nothing_when_somebody_recovers_later() {
    Scene::play(async |scene: &Scene| {
        drop(kill_the_supervisor(scene, "").await);
        // The agent's own process goes with its supervisor; what it had started does not.
        assert!(scene.descendants().into_iter().all(is_running));
        let run = attach(&scene.spool()).await.unwrap();
        let (output, _, report) = read_along(&run).await;
        assert_eq!(output, b"up\n");
        assert_swept(scene, &report);
        assert_eq!(recover(&scene.spool()).unwrap(), report);
    });
}

fn a_supervisor_killed_before_its_first_word_leaves_nothing() {
    Scene::play(async |scene: &Scene| {
        let run = kill_the_supervisor(scene, "").await;
        // As if it had been killed between the start of the agent and its first status.
        let run_id = run.id().to_string();
        drop(run);
        fs::remove_file(scene.spool().join("status.json")).unwrap();
        let plan = serde_json::to_string(&scene.agent("hang")).unwrap();
        let order = format!(r#"{{"version":1,"run_id":"{run_id}","plan":{plan}}}"#);
        fs::write(scene.spool().join("plan.json"), order).unwrap();
        let report = attach(&scene.spool()).await.unwrap().wait().await.unwrap();
        assert_swept(scene, &report);
    });
}

fn what_cleared_its_environment_is_found_through_the_session() {
    Scene::play(async |scene: &Scene| {
        let run = scene.start(&scene.agent("spawn same-group clear-env ignore-term\nsay up\nhang")).await;
        eventually("the agent is up", || scene.text() == "up\n").await;
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.tree), (End::SupervisorLost, TreeEnd::SweptByIdentity));
        assert!(!scene.descendants().into_iter().any(is_running));
    });
}

fn ten_recoveries_at_once_agree() {
    Scene::play(async |scene: &Scene| {
        drop(kill_the_supervisor(scene, "").await);
        let folder = scene.spool();
        let reports: Vec<RunReport> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..10).map(|_| scope.spawn(|| recover(&folder).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_swept(scene, &reports[0]);
        assert!(reports.iter().all(|report| report == &reports[0]), "{reports:?}");
    });
}

fn a_living_supervisor_is_not_recovered() {
    Scene::play(async |scene: &Scene| {
        let run = scene.start(&scene.agent("hang")).await;
        let error = recover(&scene.spool()).unwrap_err();
        assert!(matches!(error, RecoverError::StillRunning { .. }), "{error:?}");
        run.stop().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Stopped);
    });
}

/// Puts another status into a spool whose supervisor was killed, with a bystander in the supervisor's place.
async fn with_a_bystander(scene: &Scene, change: impl FnOnce(&mut RunStatus)) -> RunReport {
    let run = scene.start(&scene.agent("hang")).await;
    let mut status = run.spool().status().unwrap().unwrap();
    kill_process(Pid::from_raw(status.supervisor.pid).unwrap(), Signal::KILL).unwrap();
    drop(run);
    let mut bystander = Command::new("/bin/sleep").arg("600").stdout(Stdio::null()).spawn().unwrap();
    status.supervisor.pid = i32::try_from(bystander.id()).unwrap();
    status.supervisor.start_ticks = start_ticks(status.supervisor.pid);
    change(&mut status);
    fs::write(scene.spool().join("status.json"), serde_json::to_vec(&status).unwrap()).unwrap();
    let report = attach(&scene.spool()).await.unwrap().wait().await.unwrap();
    assert!(bystander.try_wait().unwrap().is_none(), "the bystander was ended");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    report
}

fn start_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

fn after_a_reboot_nobody_else_is_harmed() {
    Scene::play(async |scene: &Scene| {
        let report = with_a_bystander(scene, |status| status.boot_id = "another-boot".into()).await;
        assert_eq!((report.end, report.tree), (End::SupervisorLost, TreeEnd::SweptByIdentity));
        assert_eq!(report.descendants_ended, 0);
    });
}

fn a_pid_that_was_given_out_again_is_left_alone() {
    Scene::play(async |scene: &Scene| {
        let report = with_a_bystander(scene, |status| status.supervisor.start_ticks -= 1).await;
        assert_eq!((report.end, report.tree), (End::SupervisorLost, TreeEnd::SweptByIdentity));
    });
}

fn an_answer_that_a_power_cut_shortened_counts_as_lost() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.agent("answer done")).await;
        let file = scene.spool().join("status.json");
        let mut status: RunStatus = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        status.boot_id = "another-boot".into();
        fs::write(&file, serde_json::to_vec(&status).unwrap()).unwrap();
        assert_eq!(
            attach(&scene.spool()).await.unwrap().wait().await.unwrap(),
            report,
            "a whole answer is kept"
        );
        fs::write(scene.spool().join("output"), "do").unwrap();
        let report = attach(&scene.spool()).await.unwrap().wait().await.unwrap();
        assert_eq!((&report.end, report.output_bytes), (&End::SupervisorLost, 2));
        let status = attach(&scene.spool()).await.unwrap().spool().status().unwrap().unwrap();
        assert_eq!(status.state, RunState::Ended(report));
        assert!(processes().count() > 1);
    });
}
