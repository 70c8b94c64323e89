//! The recovery of jobs after a daemon died.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use calls::{JobService, JobStatus, ShutdownMode};
use model::{JobId, NewJob, Owner, Placement, RunState, RunStatus, StateName, Timestamp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use store::{Capacity, ClaimRequest, RescueRequest, Store};

use crate::harness::{Harness, agent, close, ended, files_of_ended_job, submit_behind, wait_for_line};
use crate::log;
use testkit::{eventually, is_running, tests};

tests![
    cancel_without_a_daemon_stops_a_live_run,
    cancel_without_a_daemon_prevents_a_resume,
    cancel_without_a_daemon_wins_over_a_lost_run,
    cancel_without_a_daemon_prevents_a_start,
    answer_before_an_unread_cancel_is_kept,
    time_limit_spans_all_attempts,
    lost_run_beyond_the_time_limit_is_not_restarted,
    power_cut_does_not_count_towards_the_time_limit,
    text_of_earlier_runs_survives_a_lost_run,
    missing_result_is_written_behind_many_newer_jobs,
    missing_status_is_written_by_the_next_service,
    damaged_status_without_a_supervisor_fails_the_job,
    restart_costs_a_waiting_job_no_attempt,
    restart_costs_an_unstarted_job_no_attempt,
    corrupt_record_does_not_prevent_opening,
    run_without_a_daemon_keeps_its_end_time,
    leftovers_of_a_sweep_are_removed_at_opening,
    lost_run_is_restarted_after_a_store_outage,
    unknown_claim_is_requeued_and_run,
    text_of_earlier_runs_survives_a_failed_start,
];

/// Cancels a job while no service is open.
async fn cancel_without_service(harness: &Harness, job: JobId) {
    let store = Store::open(harness.settings().store).await.unwrap();
    assert!(store.request_cancel(job).await.unwrap().needs_stop());
}

/// Submits a call, waits until its agent says `here`, and detaches from it.
async fn detach_from(harness: &Harness, script: &str) -> JobId {
    let service = harness.open().await;
    let job = service.submit(harness.request(script)).await.unwrap().job;
    wait_for_line(&service, job, "here").await;
    service.close(ShutdownMode::Detach).await;
    job
}

/// Returns the current time.
fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_millis(since_epoch.as_millis().try_into().unwrap())
}

fn has_ended(harness: &Harness, job: JobId) -> bool {
    matches!(harness.runs(job)[0].state, RunState::Ended(_))
}

fn cancel_without_a_daemon_stops_a_live_run() {
    Harness::run(async |harness| {
        let job = detach_from(harness, "spawn setsid\nsay here\nhang").await;
        cancel_without_service(harness, job).await;
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "here"));
        assert!(!harness.descendants().into_iter().any(is_running));
        close(&service).await;
    });
}

fn cancel_without_a_daemon_prevents_a_resume() {
    for end in ["max-turns", "fail rate-limit Too many requests, try again in 1 seconds"] {
        Harness::run(async |harness| {
            let job = detach_from(harness, &format!("say here\ndelay 300ms\n{end}")).await;
            eventually("the run ends", || has_ended(harness, job));
            cancel_without_service(harness, job).await;
            let service = harness.open().await;
            let answer = ended(&service, job).await;
            assert_eq!(
                (answer.status, harness.runs(job).len()),
                (JobStatus::Cancelled, 1),
                "{end}: {answer:?}"
            );
            assert!(answer.output.contains("here"), "{answer:?}");
            close(&service).await;
        });
    }
}

fn cancel_without_a_daemon_wins_over_a_lost_run() {
    Harness::run(async |harness| {
        let job = detach_from(harness, "spawn setsid\nsay here\nhang").await;
        cancel_without_service(harness, job).await;
        kill(harness.runs(job)[0].supervisor.pid);
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "here"), "{answer:?}");
        assert_eq!((answer.error, harness.runs(job).len()), (None, 1));
        assert!(!harness.descendants().into_iter().any(is_running));
        close(&service).await;
    });
}

fn cancel_without_a_daemon_prevents_a_start() {
    Harness::run(async |harness| {
        let job = detach_from(harness, "say here\nhang").await;
        cancel_without_service(harness, job).await;
        kill(harness.runs(job)[0].supervisor.pid);
        // As if the service had died before it created any file.
        eventually("the agent is gone", || match harness.runs(job)[0].state {
            RunState::Running { agent } => {
                kill_if_there(agent.pid);
                !is_running(agent.pid)
            }
            RunState::Ended(_) => true,
        });
        fs::remove_dir_all(directory(harness, job)).unwrap();
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, harness.runs(job).len()), (JobStatus::Cancelled, 0));
        eventually("the result is there", || service.files(job).result().exists());
        close(&service).await;
    });
}

fn answer_before_an_unread_cancel_is_kept() {
    Harness::run(async |harness| {
        let job = detach_from(harness, "say here\ndelay 300ms\nanswer done").await;
        eventually("the run ends", || has_ended(harness, job));
        cancel_without_service(harness, job).await;
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"));
        close(&service).await;
    });
}

/// Returns the time limit of a run.
fn given(harness: &Harness, job: JobId, run: u32) -> Duration {
    let note = fs::read(directory(harness, job).join(format!("runs/{run}.json"))).unwrap();
    let note: Value = serde_json::from_slice(&note).unwrap();
    Duration::from_millis(note["relay"]["spec"]["limits"]["wall_ms"].as_u64().unwrap())
}

fn time_limit_spans_all_attempts() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service
            .submit(harness.request("say begun\ndelay 300ms\nsay on\ndelay 1s\nanswer done"))
            .await
            .unwrap()
            .job;
        let mut spent = Duration::ZERO;
        for run in 1..=2 {
            eventually("the run begins", || harness.runs(job).len() == run);
            wait_for_line(&service, job, "on").await;
            kill(harness.runs(job)[run - 1].supervisor.pid);
            let number = u32::try_from(run).unwrap();
            assert_eq!(
                given(harness, job, number),
                Duration::from_hours(1).saturating_sub(spent),
                "run {run}"
            );
            eventually("the next one begins", || harness.runs(job).len() > run);
            let RunState::Ended(lost) = &harness.runs(job)[run - 1].state else {
                panic!("run {run} goes on")
            };
            assert!(lost.duration_ms >= 300, "{lost:?}");
            spent += Duration::from_millis(lost.duration_ms);
        }
        assert_eq!(ended(&service, job).await.output, "done");
        assert_eq!(given(harness, job, 3), Duration::from_hours(1).saturating_sub(spent));
        close(&service).await;
    });
}

fn lost_run_beyond_the_time_limit_is_not_restarted() {
    Harness::run(async |harness| {
        let job = detach_from(harness, "say here\nhang").await;
        let status = harness.runs(job).remove(0);
        kill(status.supervisor.pid);
        let begun = status.started_at_ms - 2 * 3_600_000;
        rewrite(harness, job, &RunStatus { started_at_ms: begun, ..status });
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Timeout, "here"), "{answer:?}");
        assert_eq!(answer.error.unwrap().deadline.as_deref(), Some("wall"));
        assert_eq!(harness.runs(job).len(), 1);
        close(&service).await;
    });
}

fn power_cut_does_not_count_towards_the_time_limit() {
    Harness::run(async |harness| {
        let job = detach_from(harness, "say here\ndelay 300ms\nanswer done").await;
        let mut status = harness.runs(job).remove(0);
        kill(status.supervisor.pid);
        let RunState::Running { agent } = status.state else { panic!("{status:?}") };
        eventually("the agent is gone", || !is_running(agent.pid));
        // It ran for a minute, two hours ago, in an earlier boot.
        "an earlier boot".clone_into(&mut status.boot_id);
        let two_hours_ago = SystemTime::now() - Duration::from_hours(2);
        status.started_at_ms -= 2 * 3_600_000 + 60_000;
        rewrite(harness, job, &status);
        for name in ["output", "error"] {
            let file = fs::File::options()
                .write(true)
                .open(directory(harness, job).join("runs/1").join(name))
                .unwrap();
            file.set_modified(two_hours_ago).unwrap();
        }
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        let left = given(harness, job, 2);
        assert!(left <= Duration::from_mins(59) && left > Duration::from_mins(58), "{left:?}");
        close(&service).await;
    });
}

fn text_of_earlier_runs_survives_a_lost_run() {
    Harness::run(async |harness| {
        // The second run of this agent hangs, and is then lost.
        let program = harness.workspace().join("agent");
        let marks = harness.workspace().join("runs");
        fs::create_dir_all(&marks).unwrap();
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *--version*) exec {me} \"$@\";; esac\n\
             n=$(ls {marks} | wc -l)\ntouch {marks}/$n\n[ $n = 1 ] && exec sleep 1000\nexec {me} \"$@\"\n",
            me = std::env::current_exe().unwrap().display(),
            marks = marks.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let service = open_with_agent(harness, program).await;
        let job = service.submit(harness.request("say first part\nmax-turns")).await.unwrap().job;
        eventually("the second run begins", || harness.runs(job).len() == 2 && marks.join("1").exists());
        kill(harness.runs(job)[1].supervisor.pid);
        let answer = ended(&service, job).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert!(answer.output.starts_with("first part\n\nYou said: Continue"), "{}", answer.output);
        assert_eq!(harness.runs(job).len(), 3, "what the first run did is not done again");
        close(&service).await;
    });
}

async fn open_with_agent(harness: &Harness, program: PathBuf) -> JobService {
    harness.open_with(|settings| drop(settings.lookup.programs.insert(agent(), program))).await
}

fn missing_result_is_written_behind_many_newer_jobs() {
    Harness::run(async |harness| {
        let files = files_of_ended_job(harness).await;
        fs::remove_file(files.result()).unwrap();
        let status = fs::read(files.status()).unwrap();
        for number in 0..1_100 {
            let newer = JobId::new(Timestamp::from_millis(4_000_000_000_000 + number), [0; 10]);
            fs::create_dir_all(directory(harness, newer)).unwrap();
            fs::write(directory(harness, newer).join("result.json"), "{}").unwrap();
            fs::write(directory(harness, newer).join("status.json"), &status).unwrap();
        }
        let service = harness.open().await;
        eventually("the result is there", || files.result().exists());
        close(&service).await;
    });
}

fn missing_status_is_written_by_the_next_service() {
    Harness::run(async |harness| {
        let files = files_of_ended_job(harness).await;
        // The service died between writing the result and the status.
        let told =
            || serde_json::from_slice::<calls::StatusFile>(&fs::read(files.status()).unwrap()).unwrap();
        let before = calls::StatusFile { status: StateName::Running, completed_at_ms: None, ..told() };
        fs::write(files.status(), serde_json::to_vec(&before).unwrap()).unwrap();
        let service = harness.open().await;
        eventually("the status is the last", || told().status == StateName::Completed);
        close(&service).await;
    });
}

fn damaged_status_without_a_supervisor_fails_the_job() {
    Harness::run(async |harness| {
        let job = detach_from(harness, "say here\nhang").await;
        let status = harness.runs(job).remove(0);
        kill(status.supervisor.pid);
        let RunState::Running { agent } = status.state else { panic!("{status:?}") };
        eventually("the agent is gone", || !is_running(agent.pid));
        fs::write(directory(harness, job).join("runs/1/status.json"), "no status").unwrap();
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.error.unwrap().kind.as_str()), (JobStatus::Failed, "spool_failed"));
        close(&service).await;
    });
}

fn restart_costs_a_waiting_job_no_attempt() {
    Harness::run(async |harness| {
        // Its run is lost while another call uses its session, so it waits for the session.
        let service = harness.open_with(|settings| settings.max_attempts = 2).await;
        let first = service.submit(harness.request("say here\ndelay 1s\nanswer done")).await.unwrap().job;
        wait_for_line(&service, first, "here").await;
        let (second, waits) = submit_behind(harness, &service, first, "say mine\nhang").await;
        let waits = waits.replace(&first.to_string(), &second.to_string());
        kill(harness.runs(first)[0].supervisor.pid);
        wait_for_line(&service, second, "mine").await;
        wait_for_line(&service, first, &waits).await;
        let mut service = service;
        for _ in 0..3 {
            service.close(ShutdownMode::Detach).await;
            drop(service);
            service = harness.open().await;
            wait_for_line(&service, first, &waits).await;
        }
        service.cancel(second).await.unwrap();
        let answer = ended(&service, first).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        assert_eq!(harness.runs(first).len(), 2);
        close(&service).await;
    });
}

fn restart_costs_an_unstarted_job_no_attempt() {
    Harness::run(async |harness| {
        let mut service = harness.open_with(|settings| settings.max_attempts = 1).await;
        let first = service.submit(harness.request("say here\nhang")).await.unwrap().job;
        wait_for_line(&service, first, "here").await;
        let (second, waits) = submit_behind(harness, &service, first, "answer done").await;
        for has_a_directory in [true, false, false] {
            wait_for_line(&service, second, &waits).await;
            let files = service.files(second);
            eventually("its files can be looked at", || files.status().exists());
            service.close(ShutdownMode::Detach).await;
            drop(service);
            if !has_a_directory {
                // A power cut may take directories that were just created.
                fs::remove_dir_all(files.directory()).unwrap();
            }
            service = harness.open().await;
        }
        wait_for_line(&service, second, &waits).await;
        service.cancel(first).await.unwrap();
        let answer = ended(&service, second).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        close(&service).await;
    });
}

fn corrupt_record_does_not_prevent_opening() {
    Harness::run(async |harness| {
        let job = detach_from(harness, "say here\ndelay 2s\nanswer done").await;
        let other = {
            let service = harness.open().await;
            let other = service.submit(harness.request("say here\ndelay 2s\nanswer done")).await.unwrap().job;
            wait_for_line(&service, other, "here").await;
            service.close(ShutdownMode::Detach).await;
            other
        };
        let from_the_future = "UPDATE agent_jobs SET call = '{\"of\": \"another version\"}' WHERE id = ?1";
        assert_eq!(harness.database().execute(from_the_future, [job.as_uuid().as_bytes()]).unwrap(), 1);
        eventually("the run ends", || has_ended(harness, job));
        let service = harness.open().await;
        assert_eq!(ended(&service, other).await.output, "done");
        close(&service).await;
    });
}

fn run_without_a_daemon_keeps_its_end_time() {
    Harness::run(async |harness| {
        let job = detach_from(harness, "say here\ndelay 2s\nanswer done").await;
        eventually("the run ends", || has_ended(harness, job));
        let RunState::Ended(report) = &harness.runs(job)[0].state else { panic!("it has ended") };
        let ended_at = Timestamp::from_millis(report.ended_at_ms);
        eventually("the clock is past the end of the run", || now() > ended_at);
        let service = harness.open().await;
        assert_eq!(ended(&service, job).await.output, "done");
        let job = service.job(job).await.unwrap();
        assert_eq!(job.completed_at, Some(ended_at));
        close(&service).await;
    });
}

fn leftovers_of_a_sweep_are_removed_at_opening() {
    Harness::run(async |harness| {
        let kept = files_of_ended_job(harness).await;
        let day = Duration::from_hours(24);
        let id = |days: u32| {
            let at = (SystemTime::now() - day * days).duration_since(UNIX_EPOCH).unwrap();
            JobId::new(Timestamp::from_millis(at.as_millis().try_into().unwrap()), [7; 10])
        };
        let (old, young) = (directory(harness, id(20)), directory(harness, id(5)));
        for left in [&old, &young] {
            fs::create_dir_all(left.join("runs/1")).unwrap();
        }
        let service = harness.open_with(|settings| settings.retention.max_age = Some(day * 10)).await;
        eventually("the old one is gone", || !old.exists());
        assert!(young.exists() && kept.result().exists(), "what is not too old may be another store's");
        close(&service).await;
    });
}

fn lost_run_is_restarted_after_a_store_outage() {
    Harness::run(async |harness| {
        log::record_warnings();
        let service = harness.open_with(|settings| settings.max_attempts = 2).await;
        let job = service.submit(harness.request("say here\ndelay 3s\nanswer done")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        harness.break_store();
        kill(harness.runs(job)[0].supervisor.pid);
        eventually("the loss cannot be stored", || log::has_warned(job, "cannot store the state of the job"));
        harness.repair_store();
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        assert_eq!(harness.runs(job).len(), 2);
        close(&service).await;
    });
}

fn unknown_claim_is_requeued_and_run() {
    Harness::run(async |harness| {
        let lease = Duration::from_secs(3);
        let service = harness.open_with(|settings| settings.lease = lease).await;
        let settings = harness.settings();
        let homes = vec![Placement::Host(settings.host.clone().unwrap())];
        let agents = vec![Capacity { agent: agent(), at_once: 9 }];
        let request = ClaimRequest { owner: service.owner().clone(), homes: homes.clone(), agents, lease };
        let store = Store::open(settings.store).await.unwrap();
        let placed_for = async |request: &ClaimRequest, max_attempts| {
            let new = NewJob::new(harness.call("answer done"), "call_cc", Placement::Host("here".to_owned()));
            let new = NewJob { max_attempts, ..new };
            let placed = store.submit_and_claim(new, request.clone()).await.unwrap().flushed().await.unwrap();
            assert!(placed.claimed.is_some());
            placed.job.id
        };
        // As if the reply to a claim was lost. A job that has not started has used no attempt.
        let (lost, cancelled) = (placed_for(&request, 1).await, placed_for(&request, 1).await);
        for job in [lost, cancelled] {
            fs::create_dir_all(directory(harness, job)).unwrap();
        }
        store.request_cancel(cancelled).await.unwrap();
        // And a job of another machine that was rescued and not requeued.
        let elsewhere =
            ClaimRequest { owner: Owner::new("elsewhere"), lease: Duration::from_hours(1), ..request };
        let taken_over = placed_for(&elsewhere, 2).await;
        let dead = vec![elsewhere.owner];
        let rescue = RescueRequest { rescuer: service.owner().clone(), homes, dead, lease };
        assert_eq!(store.rescue(rescue).await.unwrap().len(), 1);
        for job in [lost, taken_over] {
            let answer = ended(&service, job).await;
            assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        }
        assert_eq!(ended(&service, cancelled).await.status, JobStatus::Cancelled);
        eventually("its files say so, too", || service.files(cancelled).result().exists());
        close(&service).await;
    });
}

fn text_of_earlier_runs_survives_a_failed_start() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("say first part\nmax-turns")).await.unwrap().job;
        wait_for_line(&service, job, "resuming in 2 s: the last run used up its turns").await;
        // The record of the next run cannot be written.
        fs::create_dir(directory(harness, job).join("runs/2.json")).unwrap();
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Failed, "first part"), "{answer:?}");
        assert_eq!(answer.error.unwrap().kind, "spool_failed");
        close(&service).await;
    });
}

fn directory(harness: &Harness, job: JobId) -> PathBuf {
    harness.state().join("jobs").join(job.to_string())
}

fn rewrite(harness: &Harness, job: JobId, status: &RunStatus) {
    fs::write(directory(harness, job).join("runs/1/status.json"), serde_json::to_vec(status).unwrap())
        .unwrap();
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("the process is gone", || !is_running(pid));
}

fn kill_if_there(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}
