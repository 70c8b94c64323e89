//! What the next desk makes of the jobs of one that died.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use calls::{JobService, JobStatus, ShutdownMode};
use model::{AgentKind, JobId, NewJob, Owner, Placement, RunState, RunStatus, StateName, Timestamp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use store::{Capacity, ClaimRequest, RescueRequest, Store};

use crate::scene::{
    Scene, close, ended, eventually, files_of_an_ended_job, is_running, until_it_says, waiting_behind,
};
use crate::tests;

tests![
    a_cancellation_that_no_desk_has_read_ends_the_run_that_lives,
    a_cancellation_that_no_desk_has_read_keeps_a_finished_run_from_going_on,
    a_cancellation_that_no_desk_has_read_counts_more_than_the_loss_of_the_run,
    a_cancellation_that_no_desk_has_read_keeps_a_job_from_being_begun,
    an_answer_that_was_given_before_the_cancellation_was_read_counts,
    the_time_of_a_call_is_one_for_all_its_attempts,
    a_lost_run_that_has_used_the_time_of_the_call_is_not_begun_again,
    a_run_that_was_lost_with_the_power_is_not_charged_for_the_time_without,
    what_earlier_runs_have_said_outlives_the_loss_of_a_later_one,
    a_result_that_was_not_written_is_written_however_many_jobs_are_newer,
    a_status_that_was_not_written_is_written_by_the_next_desk,
    a_run_whose_status_is_damaged_and_that_nobody_holds_fails_its_job,
    restarts_of_the_daemon_while_a_job_waits_cost_it_no_attempt,
    restarts_of_the_daemon_before_a_job_has_begun_cost_it_no_attempt,
    a_record_that_makes_no_sense_does_not_keep_the_desk_closed,
    a_run_that_ends_while_no_desk_is_open_has_ended_then,
    folders_that_a_sweep_has_left_are_removed_by_the_next_desk,
    a_lost_run_is_begun_again_although_the_store_was_away_when_it_was_lost,
    a_job_that_the_desk_holds_without_knowing_is_run,
    what_earlier_runs_have_said_is_kept_when_the_next_cannot_be_begun,
];

/// Wants a job to end while no desk is there to hear of it.
async fn cancel_unheard(scene: &Scene, job: JobId) {
    let store = Store::open(scene.settings().store).await.unwrap();
    assert!(store.request_cancel(job).await.unwrap().needs_stop());
}

/// Places a call, waits until its agent says `here`, and lets the desk go away from it.
async fn left_alone(scene: &Scene, script: &str) -> JobId {
    let desk = scene.open().await;
    let job = desk.submit(scene.order(script)).await.unwrap().job;
    until_it_says(&desk, job, "here").await;
    desk.close(ShutdownMode::Detach).await;
    job
}

fn has_ended(scene: &Scene, job: JobId) -> bool {
    matches!(scene.runs(job)[0].state, RunState::Ended(_))
}

fn a_cancellation_that_no_desk_has_read_ends_the_run_that_lives() {
    Scene::play(async |scene| {
        let job = left_alone(scene, "spawn setsid\nsay here\nhang").await;
        cancel_unheard(scene, job).await;
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "here"));
        assert!(!scene.descendants().into_iter().any(is_running));
        close(&desk).await;
    });
}

fn a_cancellation_that_no_desk_has_read_keeps_a_finished_run_from_going_on() {
    for end in ["max-turns", "fail rate-limit Too many requests, try again in 1 seconds"] {
        Scene::play(async |scene| {
            let job = left_alone(scene, &format!("say here\ndelay 300ms\n{end}")).await;
            eventually("the run ends", || has_ended(scene, job));
            cancel_unheard(scene, job).await;
            let desk = scene.open().await;
            let answer = ended(&desk, job).await;
            assert_eq!(
                (answer.status, scene.runs(job).len()),
                (JobStatus::Cancelled, 1),
                "{end}: {answer:?}"
            );
            assert!(answer.output.contains("here"), "{answer:?}");
            close(&desk).await;
        });
    }
}

fn a_cancellation_that_no_desk_has_read_counts_more_than_the_loss_of_the_run() {
    Scene::play(async |scene| {
        let job = left_alone(scene, "spawn setsid\nsay here\nhang").await;
        cancel_unheard(scene, job).await;
        kill(scene.runs(job)[0].supervisor.pid);
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "here"), "{answer:?}");
        assert_eq!((answer.error, scene.runs(job).len()), (None, 1));
        assert!(!scene.descendants().into_iter().any(is_running));
        close(&desk).await;
    });
}

fn a_cancellation_that_no_desk_has_read_keeps_a_job_from_being_begun() {
    Scene::play(async |scene| {
        let job = left_alone(scene, "say here\nhang").await;
        cancel_unheard(scene, job).await;
        kill(scene.runs(job)[0].supervisor.pid);
        // As if the desk had died before it had made anything.
        eventually("the agent is gone", || match scene.runs(job)[0].state {
            RunState::Running { agent } => {
                kill_if_there(agent.pid);
                !is_running(agent.pid)
            }
            RunState::Ended(_) => true,
        });
        fs::remove_dir_all(folder(scene, job)).unwrap();
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, scene.runs(job).len()), (JobStatus::Cancelled, 0));
        eventually("the result is there", || desk.files(job).result().exists());
        close(&desk).await;
    });
}

fn an_answer_that_was_given_before_the_cancellation_was_read_counts() {
    Scene::play(async |scene| {
        let job = left_alone(scene, "say here\ndelay 300ms\nanswer done").await;
        eventually("the run ends", || has_ended(scene, job));
        cancel_unheard(scene, job).await;
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"));
        close(&desk).await;
    });
}

/// How long the run of that number was given.
fn given(scene: &Scene, job: JobId, run: u32) -> Duration {
    let note = fs::read(folder(scene, job).join(format!("runs/{run}.json"))).unwrap();
    let note: Value = serde_json::from_slice(&note).unwrap();
    Duration::from_millis(note["relay"]["spec"]["limits"]["wall_ms"].as_u64().unwrap())
}

fn the_time_of_a_call_is_one_for_all_its_attempts() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk
            .submit(scene.order("say begun\ndelay 300ms\nsay on\ndelay 1s\nanswer done"))
            .await
            .unwrap()
            .job;
        let mut spent = Duration::ZERO;
        for run in 1..=2 {
            eventually("the run begins", || scene.runs(job).len() == run);
            until_it_says(&desk, job, "on").await;
            kill(scene.runs(job)[run - 1].supervisor.pid);
            let number = u32::try_from(run).unwrap();
            assert_eq!(given(scene, job, number), Duration::from_hours(1).saturating_sub(spent), "run {run}");
            eventually("the next one begins", || scene.runs(job).len() > run);
            let RunState::Ended(lost) = &scene.runs(job)[run - 1].state else { panic!("run {run} goes on") };
            assert!(lost.duration_ms >= 300, "{lost:?}");
            spent += Duration::from_millis(lost.duration_ms);
        }
        assert_eq!(ended(&desk, job).await.output, "done");
        assert_eq!(given(scene, job, 3), Duration::from_hours(1).saturating_sub(spent));
        close(&desk).await;
    });
}

fn a_lost_run_that_has_used_the_time_of_the_call_is_not_begun_again() {
    Scene::play(async |scene| {
        let job = left_alone(scene, "say here\nhang").await;
        let status = scene.runs(job).remove(0);
        kill(status.supervisor.pid);
        let begun = status.started_at_ms - 2 * 3_600_000;
        rewrite(scene, job, &RunStatus { started_at_ms: begun, ..status });
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Timeout, "here"), "{answer:?}");
        assert_eq!(answer.error.unwrap().deadline.as_deref(), Some("wall"));
        assert_eq!(scene.runs(job).len(), 1);
        close(&desk).await;
    });
}

fn a_run_that_was_lost_with_the_power_is_not_charged_for_the_time_without() {
    Scene::play(async |scene| {
        let job = left_alone(scene, "say here\ndelay 300ms\nanswer done").await;
        let mut status = scene.runs(job).remove(0);
        kill(status.supervisor.pid);
        let RunState::Running { agent } = status.state else { panic!("{status:?}") };
        eventually("the agent is gone", || !is_running(agent.pid));
        // It ran for a minute, two hours ago, in an earlier boot.
        "an earlier boot".clone_into(&mut status.boot_id);
        let two_hours_ago = SystemTime::now() - Duration::from_hours(2);
        status.started_at_ms -= 2 * 3_600_000 + 60_000;
        rewrite(scene, job, &status);
        for name in ["output", "error"] {
            let file =
                fs::File::options().write(true).open(folder(scene, job).join("runs/1").join(name)).unwrap();
            file.set_modified(two_hours_ago).unwrap();
        }
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        let left = given(scene, job, 2);
        assert!(left <= Duration::from_mins(59) && left > Duration::from_mins(58), "{left:?}");
        close(&desk).await;
    });
}

fn what_earlier_runs_have_said_outlives_the_loss_of_a_later_one() {
    Scene::play(async |scene| {
        // An agent whose second run hangs, and is then lost.
        let program = scene.workspace().join("agent");
        let marks = scene.workspace().join("runs");
        fs::create_dir_all(&marks).unwrap();
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *--version*) exec {me} \"$@\";; esac\n\
             n=$(ls {marks} | wc -l)\ntouch {marks}/$n\n[ $n = 1 ] && exec sleep 1000\nexec {me} \"$@\"\n",
            me = std::env::current_exe().unwrap().display(),
            marks = marks.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let desk = open_with_agent(scene, program).await;
        let job = desk.submit(scene.order("say first part\nmax-turns")).await.unwrap().job;
        eventually("the second run begins", || scene.runs(job).len() == 2 && marks.join("1").exists());
        kill(scene.runs(job)[1].supervisor.pid);
        let answer = ended(&desk, job).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert!(answer.output.starts_with("first part\n\nYou said: Continue"), "{}", answer.output);
        assert_eq!(scene.runs(job).len(), 3, "what the first run did is not done again");
        close(&desk).await;
    });
}

async fn open_with_agent(scene: &Scene, program: PathBuf) -> JobService {
    scene.open_with(|settings| drop(settings.lookup.programs.insert(AgentKind::Rehearsal, program))).await
}

fn a_result_that_was_not_written_is_written_however_many_jobs_are_newer() {
    Scene::play(async |scene| {
        let files = files_of_an_ended_job(scene).await;
        fs::remove_file(files.result()).unwrap();
        let status = fs::read(files.status()).unwrap();
        for number in 0..1_100 {
            let newer = JobId::new(Timestamp::from_millis(4_000_000_000_000 + number), [0; 10]);
            fs::create_dir_all(folder(scene, newer)).unwrap();
            fs::write(folder(scene, newer).join("result.json"), "{}").unwrap();
            fs::write(folder(scene, newer).join("status.json"), &status).unwrap();
        }
        let desk = scene.open().await;
        eventually("the result is there", || files.result().exists());
        close(&desk).await;
    });
}

fn a_status_that_was_not_written_is_written_by_the_next_desk() {
    Scene::play(async |scene| {
        let files = files_of_an_ended_job(scene).await;
        // The desk died between its last two words.
        let told = || serde_json::from_slice::<calls::Status>(&fs::read(files.status()).unwrap()).unwrap();
        let before = calls::Status { status: StateName::Running, completed_at_ms: None, ..told() };
        fs::write(files.status(), serde_json::to_vec(&before).unwrap()).unwrap();
        let desk = scene.open().await;
        eventually("the status is the last", || told().status == StateName::Completed);
        close(&desk).await;
    });
}

fn a_run_whose_status_is_damaged_and_that_nobody_holds_fails_its_job() {
    Scene::play(async |scene| {
        let job = left_alone(scene, "say here\nhang").await;
        let status = scene.runs(job).remove(0);
        kill(status.supervisor.pid);
        let RunState::Running { agent } = status.state else { panic!("{status:?}") };
        eventually("the agent is gone", || !is_running(agent.pid));
        fs::write(folder(scene, job).join("runs/1/status.json"), "no status").unwrap();
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.error.unwrap().kind.as_str()), (JobStatus::Failed, "spool_failed"));
        close(&desk).await;
    });
}

fn restarts_of_the_daemon_while_a_job_waits_cost_it_no_attempt() {
    Scene::play(async |scene| {
        // Its run is lost while another call has its session, so it waits for that.
        let desk = scene.open_with(|settings| settings.max_attempts = 2).await;
        let first = desk.submit(scene.order("say here\ndelay 1s\nanswer done")).await.unwrap().job;
        until_it_says(&desk, first, "here").await;
        let (second, waits) = waiting_behind(scene, &desk, first, "say mine\nhang").await;
        let waits = waits.replace(&first.to_string(), &second.to_string());
        kill(scene.runs(first)[0].supervisor.pid);
        until_it_says(&desk, second, "mine").await;
        until_it_says(&desk, first, &waits).await;
        let mut desk = desk;
        for _ in 0..3 {
            desk.close(ShutdownMode::Detach).await;
            drop(desk);
            desk = scene.open().await;
            until_it_says(&desk, first, &waits).await;
        }
        desk.cancel(second).await.unwrap();
        let answer = ended(&desk, first).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        assert_eq!(scene.runs(first).len(), 2);
        close(&desk).await;
    });
}

fn restarts_of_the_daemon_before_a_job_has_begun_cost_it_no_attempt() {
    Scene::play(async |scene| {
        let mut desk = scene.open_with(|settings| settings.max_attempts = 1).await;
        let first = desk.submit(scene.order("say here\nhang")).await.unwrap().job;
        until_it_says(&desk, first, "here").await;
        let (second, waits) = waiting_behind(scene, &desk, first, "answer done").await;
        for has_a_folder in [true, false, false] {
            until_it_says(&desk, second, &waits).await;
            let files = desk.files(second);
            eventually("its files can be looked at", || files.status().exists());
            desk.close(ShutdownMode::Detach).await;
            drop(desk);
            if !has_a_folder {
                // As after a power cut, which takes folders that were just made.
                fs::remove_dir_all(files.directory()).unwrap();
            }
            desk = scene.open().await;
        }
        until_it_says(&desk, second, &waits).await;
        desk.cancel(first).await.unwrap();
        let answer = ended(&desk, second).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        close(&desk).await;
    });
}

fn a_record_that_makes_no_sense_does_not_keep_the_desk_closed() {
    Scene::play(async |scene| {
        let job = left_alone(scene, "say here\ndelay 2s\nanswer done").await;
        let other = {
            let desk = scene.open().await;
            let other = desk.submit(scene.order("say here\ndelay 2s\nanswer done")).await.unwrap().job;
            until_it_says(&desk, other, "here").await;
            desk.close(ShutdownMode::Detach).await;
            other
        };
        let from_the_future = "UPDATE agent_jobs SET call = '{\"of\": \"another version\"}' WHERE id = ?1";
        assert_eq!(scene.database().execute(from_the_future, [job.as_uuid().as_bytes()]).unwrap(), 1);
        eventually("the run ends", || has_ended(scene, job));
        let desk = scene.open().await;
        assert_eq!(ended(&desk, other).await.output, "done");
        close(&desk).await;
    });
}

fn a_run_that_ends_while_no_desk_is_open_has_ended_then() {
    Scene::play(async |scene| {
        let job = left_alone(scene, "say here\ndelay 2s\nanswer done").await;
        eventually("the run ends", || has_ended(scene, job));
        let RunState::Ended(report) = &scene.runs(job)[0].state else { panic!("it has ended") };
        tokio::time::sleep(Duration::from_millis(20)).await;
        let desk = scene.open().await;
        assert_eq!(ended(&desk, job).await.output, "done");
        let job = desk.job(job).await.unwrap();
        assert_eq!(job.completed_at, Some(Timestamp::from_millis(report.ended_at_ms)));
        close(&desk).await;
    });
}

fn folders_that_a_sweep_has_left_are_removed_by_the_next_desk() {
    Scene::play(async |scene| {
        let kept = files_of_an_ended_job(scene).await;
        let day = Duration::from_hours(24);
        let id = |days: u32| {
            let at = (SystemTime::now() - day * days).duration_since(UNIX_EPOCH).unwrap();
            JobId::new(Timestamp::from_millis(at.as_millis().try_into().unwrap()), [7; 10])
        };
        let (old, young) = (folder(scene, id(20)), folder(scene, id(5)));
        for left in [&old, &young] {
            fs::create_dir_all(left.join("runs/1")).unwrap();
        }
        let desk = scene.open_with(|settings| settings.retention.max_age = Some(day * 10)).await;
        eventually("the old one is gone", || !old.exists());
        assert!(young.exists() && kept.result().exists(), "what is not too old may be another store's");
        close(&desk).await;
    });
}

fn a_lost_run_is_begun_again_although_the_store_was_away_when_it_was_lost() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.max_attempts = 2).await;
        let job = desk.submit(scene.order("say here\ndelay 3s\nanswer done")).await.unwrap().job;
        until_it_says(&desk, job, "here").await;
        scene.take_the_store_away();
        kill(scene.runs(job)[0].supervisor.pid);
        eventually("the loss is seen", || has_ended(scene, job));
        tokio::time::sleep(Duration::from_millis(300)).await;
        scene.bring_the_store_back();
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        assert_eq!(scene.runs(job).len(), 2);
        close(&desk).await;
    });
}

fn a_job_that_the_desk_holds_without_knowing_is_run() {
    Scene::play(async |scene| {
        let lease = Duration::from_secs(3);
        let desk = scene.open_with(|settings| settings.lease = lease).await;
        let settings = scene.settings();
        let homes = vec![Placement::Host(settings.host.clone().unwrap())];
        let agents = AgentKind::ALL.map(|agent| Capacity { agent, at_once: 9 }).to_vec();
        let request = ClaimRequest { owner: desk.owner().clone(), homes: homes.clone(), agents, lease };
        let store = Store::open(settings.store).await.unwrap();
        let placed_for = async |request: &ClaimRequest, max_attempts| {
            let new = NewJob::new(scene.call("answer done"), "call_cc", Placement::Host("here".to_owned()));
            let new = NewJob { max_attempts, ..new };
            let placed = store.place_and_claim(new, request.clone()).await.unwrap().flushed().await.unwrap();
            assert!(placed.claimed.is_some());
            placed.job.id
        };
        // As when the answer to a claim is lost on its way to the desk. What has not begun has used no attempt.
        let (lost, cancelled) = (placed_for(&request, 1).await, placed_for(&request, 1).await);
        for job in [lost, cancelled] {
            fs::create_dir_all(folder(scene, job)).unwrap();
        }
        store.request_cancel(cancelled).await.unwrap();
        // And one of another machine, which was taken over and not queued again.
        let elsewhere =
            ClaimRequest { owner: Owner::new("elsewhere"), lease: Duration::from_hours(1), ..request };
        let taken_over = placed_for(&elsewhere, 2).await;
        let dead = vec![elsewhere.owner];
        let rescue = RescueRequest { rescuer: desk.owner().clone(), homes, dead, lease };
        assert_eq!(store.rescue(rescue).await.unwrap().len(), 1);
        for job in [lost, taken_over] {
            let answer = ended(&desk, job).await;
            assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"), "{answer:?}");
        }
        assert_eq!(ended(&desk, cancelled).await.status, JobStatus::Cancelled);
        eventually("its files say so, too", || desk.files(cancelled).result().exists());
        close(&desk).await;
    });
}

fn what_earlier_runs_have_said_is_kept_when_the_next_cannot_be_begun() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("say first part\nmax-turns")).await.unwrap().job;
        until_it_says(&desk, job, "resuming in 2 s: the last run used up its turns").await;
        // What the next run is for cannot be written down.
        fs::create_dir(folder(scene, job).join("runs/2.json")).unwrap();
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Failed, "first part"), "{answer:?}");
        assert_eq!(answer.error.unwrap().kind, "spool_failed");
        close(&desk).await;
    });
}

fn folder(scene: &Scene, job: JobId) -> PathBuf {
    scene.state().join("jobs").join(job.to_string())
}

fn rewrite(scene: &Scene, job: JobId, status: &RunStatus) {
    fs::write(folder(scene, job).join("runs/1/status.json"), serde_json::to_vec(status).unwrap()).unwrap();
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("the process is gone", || !is_running(pid));
}

fn kill_if_there(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}
