//! Jobs of several runs: out of turns, out of quota, interrupted.

use std::fs;
use std::time::Duration;

use calls::{CallError, CallRequest, JobStatus, ShutdownMode};
use model::{CallSpec, JobState, RunState, SessionChoice, StateName};
use rustix::process::{Pid, Signal, kill_process};

use crate::scene::{
    Scene, answered, close, ended, eventually, eventually_async, files_of_an_ended_job, is_running,
    until_it_says,
};
use crate::tests;

tests![
    a_call_out_of_turns_goes_on_and_its_texts_are_joined,
    a_turn_limit_of_the_caller_is_kept,
    a_call_can_be_cancelled_while_it_waits_to_go_on,
    a_quota_pauses_the_job_until_it_is_reset,
    what_a_paused_job_has_said_is_told_and_kept_when_it_is_cancelled,
    a_quota_that_is_reset_too_late_fails_the_job,
    a_lost_run_is_taken_up_in_its_session,
    a_job_whose_runs_are_lost_again_and_again_fails_with_what_was_there,
    after_a_reboot_the_job_is_begun_again,
    the_latest_session_of_a_task_is_gone_on_with,
    session_without_an_answer_is_not_resumed,
    a_result_that_was_not_written_is_written_by_the_next_desk,
];

fn a_call_out_of_turns_goes_on_and_its_texts_are_joined() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order("say first part\nmax-turns")).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert!(answer.output.starts_with("first part\n\nYou said: Continue"), "{}", answer.output);
        let job = answer.job_id.parse().unwrap();
        assert_eq!(scene.runs(job).len(), 2);
        let answered_by = fs::read_to_string(&answer.output_file).unwrap();
        assert!(answered_by.contains(answer.session_id.as_deref().unwrap()), "it is the same session");
        close(&desk).await;
    });
}

fn a_turn_limit_of_the_caller_is_kept() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let mut order = scene.order("say first part\nmax-turns");
        order.call.max_turns = Some(3);
        let answer = answered(&desk, order).await;
        assert_eq!(answer.error.as_ref().unwrap().kind, "max_turns");
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Failed, "first part"));
        assert_eq!(scene.runs(answer.job_id.parse().unwrap()).len(), 1);
        close(&desk).await;
    });
}

fn a_call_can_be_cancelled_while_it_waits_to_go_on() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("say first part\nmax-turns")).await.unwrap().job;
        until_it_says(&desk, job, "resuming in 2 s: the last run used up its turns").await;
        // The wait is not counted as the agent's time.
        let ran = desk.answer(job).await.unwrap().duration_ms;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(desk.answer(job).await.unwrap().duration_ms, ran);
        desk.cancel(job).await.unwrap();
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "first part"));
        assert_eq!(scene.runs(job).len(), 1);
        close(&desk).await;
    });
}

fn a_quota_pauses_the_job_until_it_is_reset() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let script = "say so far\nfail rate-limit Too many requests, try again in 3 seconds";
        let job = desk.submit(scene.order(script)).await.unwrap().job;
        eventually_async("the job pauses", async || {
            matches!(desk.job(job).await.unwrap().progress.state, JobState::Paused { .. })
        })
        .await;
        let answer = desk.answer(job).await.unwrap();
        assert_eq!(answer.status, JobStatus::Paused);
        assert!(answer.paused_until_ms.is_some());
        // A pause outlives the desk.
        desk.close(ShutdownMode::Detach).await;
        drop(desk);
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert!(answer.output.contains("You said: Continue"), "{}", answer.output);
        close(&desk).await;
    });
}

fn what_a_paused_job_has_said_is_told_and_kept_when_it_is_cancelled() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let script = "say part one\nfail rate-limit Too many requests, try again in 5 minutes";
        let job = desk.submit(scene.order(script)).await.unwrap().job;
        eventually_async("the job pauses", async || {
            matches!(desk.job(job).await.unwrap().progress.state, JobState::Paused { .. })
        })
        .await;
        let paused = desk.answer(job).await.unwrap();
        assert!(paused.output.contains("part one") && paused.session_id.is_some(), "{paused:?}");
        desk.cancel(job).await.unwrap();
        let answer = ended(&desk, job).await;
        assert_eq!(answer.status, JobStatus::Cancelled);
        assert_eq!((answer.output, answer.session_id), (paused.output, paused.session_id));
        close(&desk).await;
    });
}

fn a_quota_that_is_reset_too_late_fails_the_job() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order("fail rate-limit Please try again in 3 days")).await;
        let error = answer.error.unwrap();
        assert_eq!((answer.status, error.kind.as_str()), (JobStatus::Failed, "rate_limit"));
        assert_eq!(error.retry_after_ms, Some(3 * 86_400_000));
        close(&desk).await;
    });
}

fn a_lost_run_is_taken_up_in_its_session() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        // The second run finds the same steps in its prompt, and is not killed.
        let job = desk.submit(scene.order("say begun\ndelay 1s\nanswer finished")).await.unwrap().job;
        until_it_says(&desk, job, "begun").await;
        let first = scene.runs(job).remove(0);
        let session = desk.answer(job).await.unwrap().session_id.unwrap();
        kill(first.supervisor.pid);
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "finished"), "{answer:?}");
        assert_eq!(answer.session_id.as_deref(), Some(session.as_str()), "in the same session");
        assert_eq!(
            answer.processes,
            Some(calls::Processes::NoneFound),
            "the first run was swept, not proven"
        );
        assert_eq!(scene.runs(job).len(), 2);
        let prompt = fs::read_to_string(desk.files(job).directory().join("runs/2/stdin")).unwrap();
        assert!(prompt.starts_with("Your work on this task was interrupted"), "{prompt}");
        close(&desk).await;
    });
}

fn a_job_whose_runs_are_lost_again_and_again_fails_with_what_was_there() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.max_attempts = 2).await;
        let job = desk.submit(scene.order("say as far as it came\nhang")).await.unwrap().job;
        for attempt in 1..=2 {
            eventually("a run is there", || scene.runs(job).len() == attempt);
            until_it_says(&desk, job, "as far as it came").await;
            kill(scene.runs(job).pop().unwrap().supervisor.pid);
        }
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Failed, "as far as it came"));
        assert_eq!(answer.error.unwrap().kind, "supervisor_lost");
        close(&desk).await;
    });
}

fn after_a_reboot_the_job_is_begun_again() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("say begun\ndelay 500ms\nanswer finished")).await.unwrap().job;
        until_it_says(&desk, job, "begun").await;
        desk.close(ShutdownMode::Detach).await;
        drop(desk);
        // All processes are gone, and the boot is another one.
        let mut status = scene.runs(job).remove(0);
        kill(status.supervisor.pid);
        let RunState::Running { agent } = status.state else { panic!("{status:?}") };
        eventually("the agent is gone", || !is_running(agent.pid));
        "an earlier boot".clone_into(&mut status.boot_id);
        let file = scene.state().join("jobs").join(job.to_string()).join("runs/1/status.json");
        fs::write(file, serde_json::to_vec(&status).unwrap()).unwrap();
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "finished"));
        assert_eq!(desk.job(job).await.unwrap().progress.attempt.number(), 2);
        close(&desk).await;
    });
}

fn the_latest_session_of_a_task_is_gone_on_with() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let order = |task: &str, session| CallRequest {
            task: Some(task.to_owned()),
            ..CallRequest::new(CallSpec { session, ..scene.call("answer yes") }, "call_cc")
        };
        let shop = answered(&desk, order("shop", SessionChoice::New)).await;
        answered(&desk, order("garden", SessionChoice::New)).await;
        let again = answered(&desk, order("shop", SessionChoice::ContinueLatest)).await;
        assert_eq!((again.status, again.session_id), (JobStatus::Completed, shop.session_id));
        // Who works elsewhere is not given what was said here.
        let elsewhere = scene.workspace().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let mut other = order("shop", SessionChoice::ContinueLatest);
        other.call.cwd = elsewhere;
        let refused = desk.submit(other).await.unwrap_err();
        assert!(matches!(refused, CallError::SessionElsewhere { .. }), "{refused:?}");
        close(&desk).await;
    });
}

fn session_without_an_answer_is_not_resumed() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let order =
            |script: &str, session| CallRequest::new(CallSpec { session, ..scene.call(script) }, "call_cc");
        let latest = || SessionChoice::ContinueLatest;
        // It is given an id for its session, and dies before it has used it.
        let died = answered(&desk, order("exit 1", SessionChoice::New)).await;
        assert_eq!(died.status, JobStatus::Failed);
        let refused = desk.submit(order("answer yes", latest())).await.unwrap_err();
        assert!(matches!(refused, CallError::NoEarlierSession { .. }), "{refused:?}");
        let first = answered(&desk, order("answer yes", SessionChoice::New)).await;
        answered(&desk, order("exit 1", SessionChoice::New)).await;
        let again = answered(&desk, order("answer yes", latest())).await;
        assert_eq!(again.session_id, first.session_id);
        // One that was cancelled at work can be resumed, though it has not answered.
        let cut = desk.submit(order("tool Bash {}\nhang", SessionChoice::New)).await.unwrap().job;
        until_it_says(&desk, cut, "using Bash").await;
        desk.cancel(cut).await.unwrap();
        let cut = ended(&desk, cut).await;
        let again = answered(&desk, order("answer yes", latest())).await;
        assert_eq!(again.session_id, cut.session_id);
        close(&desk).await;
    });
}

fn a_result_that_was_not_written_is_written_by_the_next_desk() {
    Scene::play(async |scene| {
        let files = files_of_an_ended_job(scene).await;
        fs::remove_file(files.result()).unwrap();
        let desk = scene.open().await;
        eventually("the result is there", || files.result().exists());
        let status: calls::Status = serde_json::from_slice(&fs::read(files.status()).unwrap()).unwrap();
        assert_eq!(status.status, StateName::Completed);
        close(&desk).await;
    });
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}
