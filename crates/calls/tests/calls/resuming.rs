//! Jobs of several runs: out of turns, out of quota, interrupted.

use std::fs;
use std::time::Duration;

use calls::{CallError, CallRequest, JobStatus, ShutdownMode};
use model::{CallSpec, JobState, RunState, SessionChoice, StateName};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Harness, answered, close, ended, files_of_ended_job, wait_for_line};
use testkit::{eventually, eventually_async, is_running, tests};

tests![
    run_out_of_turns_is_resumed_with_joined_texts,
    turn_limit_of_the_caller_is_final,
    job_can_be_cancelled_before_it_resumes,
    job_pauses_until_its_quota_resets,
    cancelled_pause_keeps_the_text_so_far,
    quota_that_resets_too_late_fails_the_job,
    lost_run_is_resumed_in_its_session,
    repeatedly_lost_job_fails_with_its_text,
    job_is_restarted_after_a_reboot,
    continue_latest_resumes_the_session_of_the_task,
    session_without_an_answer_is_not_resumed,
    missing_result_is_written_by_the_next_service,
];

fn run_out_of_turns_is_resumed_with_joined_texts() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("say first part\nmax-turns")).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert!(answer.output.starts_with("first part\n\nYou said: Continue"), "{}", answer.output);
        let job = answer.job_id.parse().unwrap();
        assert_eq!(harness.runs(job).len(), 2);
        let answered_by = fs::read_to_string(&answer.output_file).unwrap();
        assert!(answered_by.contains(answer.session_id.as_deref().unwrap()), "it is the same session");
        close(&service).await;
    });
}

fn turn_limit_of_the_caller_is_final() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let mut request = harness.request("say first part\nmax-turns");
        request.call.max_turns = Some(3);
        let answer = answered(&service, request).await;
        assert_eq!(answer.error.as_ref().unwrap().kind, "max_turns");
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Failed, "first part"));
        assert_eq!(harness.runs(answer.job_id.parse().unwrap()).len(), 1);
        close(&service).await;
    });
}

fn job_can_be_cancelled_before_it_resumes() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("say first part\nmax-turns")).await.unwrap().job;
        wait_for_line(&service, job, "resuming in 2 s: the last run used up its turns").await;
        // The wait does not count as run time.
        let ran = service.answer(job).await.unwrap().duration_ms;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(service.answer(job).await.unwrap().duration_ms, ran);
        service.cancel(job).await.unwrap();
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "first part"));
        assert_eq!(harness.runs(job).len(), 1);
        close(&service).await;
    });
}

fn job_pauses_until_its_quota_resets() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let script = "say so far\nfail rate-limit Too many requests, try again in 3 seconds";
        let job = service.submit(harness.request(script)).await.unwrap().job;
        eventually_async("the job pauses", async || {
            matches!(service.job(job).await.unwrap().progress.state, JobState::Paused { .. })
        })
        .await;
        let answer = service.answer(job).await.unwrap();
        assert_eq!(answer.status, JobStatus::Paused);
        assert!(answer.paused_until_ms.is_some());
        // A pause survives the service.
        service.close(ShutdownMode::Detach).await;
        drop(service);
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert!(answer.output.contains("You said: Continue"), "{}", answer.output);
        close(&service).await;
    });
}

fn cancelled_pause_keeps_the_text_so_far() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let script = "say part one\nfail rate-limit Too many requests, try again in 5 minutes";
        let job = service.submit(harness.request(script)).await.unwrap().job;
        eventually_async("the job pauses", async || {
            matches!(service.job(job).await.unwrap().progress.state, JobState::Paused { .. })
        })
        .await;
        let paused = service.answer(job).await.unwrap();
        assert!(paused.output.contains("part one") && paused.session_id.is_some(), "{paused:?}");
        service.cancel(job).await.unwrap();
        let answer = ended(&service, job).await;
        assert_eq!(answer.status, JobStatus::Cancelled);
        assert_eq!((answer.output, answer.session_id), (paused.output, paused.session_id));
        close(&service).await;
    });
}

fn quota_that_resets_too_late_fails_the_job() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("fail rate-limit Please try again in 3 days")).await;
        let error = answer.error.unwrap();
        assert_eq!((answer.status, error.kind.as_str()), (JobStatus::Failed, "rate_limit"));
        assert_eq!(error.retry_after_ms, Some(3 * 86_400_000));
        close(&service).await;
    });
}

fn lost_run_is_resumed_in_its_session() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        // The second run finds the same steps in its prompt, and is not killed.
        let job = service.submit(harness.request("say begun\ndelay 1s\nanswer finished")).await.unwrap().job;
        wait_for_line(&service, job, "begun").await;
        let first = harness.runs(job).remove(0);
        let session = service.answer(job).await.unwrap().session_id.unwrap();
        kill(first.supervisor.pid);
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "finished"), "{answer:?}");
        assert_eq!(answer.session_id.as_deref(), Some(session.as_str()), "in the same session");
        assert_eq!(
            answer.processes,
            Some(calls::Processes::NoneFound),
            "the first run was swept, not proven"
        );
        assert!(
            answer.note.as_deref().is_some_and(|note| note.contains("a supervisor was killed")),
            "{answer:?}"
        );
        assert_eq!(harness.runs(job).len(), 2);
        let prompt = fs::read_to_string(service.files(job).directory().join("runs/2/input")).unwrap();
        assert!(prompt.contains("Your work on this task was interrupted"), "{prompt}");
        close(&service).await;
    });
}

fn repeatedly_lost_job_fails_with_its_text() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.max_attempts = 2).await;
        let job = service.submit(harness.request("say as far as it came\nhang")).await.unwrap().job;
        for attempt in 1..=2 {
            eventually("a run is there", || harness.runs(job).len() == attempt);
            wait_for_line(&service, job, "as far as it came").await;
            kill(harness.runs(job).pop().unwrap().supervisor.pid);
        }
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Failed, "as far as it came"));
        assert_eq!(answer.error.unwrap().kind, "supervisor_lost");
        close(&service).await;
    });
}

fn job_is_restarted_after_a_reboot() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job =
            service.submit(harness.request("say begun\ndelay 500ms\nanswer finished")).await.unwrap().job;
        wait_for_line(&service, job, "begun").await;
        service.close(ShutdownMode::Detach).await;
        drop(service);
        // After a reboot all processes are gone, and the boot id differs.
        let mut status = harness.runs(job).remove(0);
        kill(status.supervisor.pid);
        let RunState::Running { agent } = status.state else { panic!("{status:?}") };
        eventually("the agent is gone", || !is_running(agent.pid));
        "an earlier boot".clone_into(&mut status.boot_id);
        let file = harness.state().join("jobs").join(job.to_string()).join("runs/1/status.json");
        fs::write(file, serde_json::to_vec(&status).unwrap()).unwrap();
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "finished"));
        assert_eq!(service.job(job).await.unwrap().progress.attempt.number(), 2);
        close(&service).await;
    });
}

fn continue_latest_resumes_the_session_of_the_task() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let request = |task: &str, session| CallRequest {
            task: Some(task.to_owned()),
            ..CallRequest::new(CallSpec { session, ..harness.call("answer yes") }, "call_cc")
        };
        let shop = answered(&service, request("shop", SessionChoice::New)).await;
        answered(&service, request("garden", SessionChoice::New)).await;
        let again = answered(&service, request("shop", SessionChoice::ContinueLatest)).await;
        assert_eq!((again.status, again.session_id), (JobStatus::Completed, shop.session_id));
        // A session is not resumed in another directory.
        let elsewhere = harness.workspace().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let mut other = request("shop", SessionChoice::ContinueLatest);
        other.call.cwd = elsewhere;
        let refused = service.submit(other).await.unwrap_err();
        assert!(matches!(refused, CallError::SessionElsewhere { .. }), "{refused:?}");
        close(&service).await;
    });
}

fn session_without_an_answer_is_not_resumed() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let request =
            |script: &str, session| CallRequest::new(CallSpec { session, ..harness.call(script) }, "call_cc");
        let latest = || SessionChoice::ContinueLatest;
        // Its session id is assigned, and the agent dies before it uses it.
        let died = answered(&service, request("exit 1", SessionChoice::New)).await;
        assert_eq!(died.status, JobStatus::Failed);
        let refused = service.submit(request("answer yes", latest())).await.unwrap_err();
        assert!(matches!(refused, CallError::NoEarlierSession { .. }), "{refused:?}");
        let first = answered(&service, request("answer yes", SessionChoice::New)).await;
        answered(&service, request("exit 1", SessionChoice::New)).await;
        let again = answered(&service, request("answer yes", latest())).await;
        assert_eq!(again.session_id, first.session_id);
        // A session that was cancelled during work can be resumed, though it has no answer.
        let cut = service.submit(request("tool Bash {}\nhang", SessionChoice::New)).await.unwrap().job;
        wait_for_line(&service, cut, "using Bash").await;
        service.cancel(cut).await.unwrap();
        let cut = ended(&service, cut).await;
        let again = answered(&service, request("answer yes", latest())).await;
        assert_eq!(again.session_id, cut.session_id);
        close(&service).await;
    });
}

fn missing_result_is_written_by_the_next_service() {
    Harness::run(async |harness| {
        let files = files_of_ended_job(harness).await;
        fs::remove_file(files.result()).unwrap();
        let service = harness.open().await;
        eventually("the result is there", || files.result().exists());
        let status: calls::StatusFile = serde_json::from_slice(&fs::read(files.status()).unwrap()).unwrap();
        assert_eq!(status.status, StateName::Completed);
        close(&service).await;
    });
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}
