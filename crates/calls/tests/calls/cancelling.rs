//! Cancellation and shutdown.

use std::time::Duration;

use calls::{CallError, Cancellation, JobStatus, ShutdownMode};
use model::{RunState, StateName};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Harness, answered, close, ended, submit_behind, wait_for_line};
use testkit::{eventually, is_running, tests};

tests![
    cancel_stops_the_whole_process_tree,
    queued_job_is_cancelled_at_once,
    cancel_is_idempotent_until_the_job_ends,
    cancel_after_the_answer_keeps_the_answer,
    lingering_agent_is_stopped_and_its_answer_kept,
    result_of_a_suspended_agent_is_not_trusted,
    failing_store_does_not_prevent_a_stop,
    drain_waits_for_running_jobs_only,
    drain_starts_no_job_that_waits_for_a_session,
    cancel_all_includes_starting_jobs,
    detached_run_is_adopted_by_the_next_service,
];

fn cancel_stops_the_whole_process_tree() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let script = "spawn setsid ignore-term\nspawn daemon\nignore TERM\nsay spawned\nhang";
        let job = service.submit(harness.request(script)).await.unwrap().job;
        wait_for_line(&service, job, "spawned").await;
        assert_eq!(harness.descendants().len(), 2);
        let reply = service.cancel(job).await.unwrap();
        assert_eq!(reply, Cancellation { previous: StateName::Running, now: StateName::Running });
        let answer = ended(&service, job).await;
        // The job ends only when its process tree is gone.
        assert!(!harness.descendants().into_iter().any(is_running));
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "spawned"));
        close(&service).await;
    });
}

fn queued_job_is_cancelled_at_once() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let running = service.submit(harness.request("say here\nhang")).await.unwrap().job;
        wait_for_line(&service, running, "here").await;
        let queued = service.submit(harness.request("answer never")).await.unwrap().job;
        let reply = service.cancel(queued).await.unwrap();
        assert_eq!(reply, Cancellation { previous: StateName::Queued, now: StateName::Cancelled });
        assert!(service.files(queued).result().exists());
        service.cancel(running).await.unwrap();
        ended(&service, running).await;
        assert_eq!(harness.runs(queued).len(), 0);
        close(&service).await;
    });
}

fn failing_store_does_not_prevent_a_stop() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("spawn setsid\nsay here\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        harness.break_store();
        let error = service.cancel(job).await.unwrap_err();
        assert!(matches!(error, CallError::StoppedUnkept { .. }), "{error:?}");
        eventually("everything of it has ended", || !harness.descendants().into_iter().any(is_running));
        harness.repair_store();
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "here"));
        close(&service).await;
    });
}

fn cancel_all_includes_starting_jobs() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let first = service.submit(harness.request("say here\nhang")).await.unwrap().job;
        wait_for_line(&service, first, "here").await;
        // A blocked job is cancelled like the others, and not left to the next service.
        let (waiting, _) = submit_behind(harness, &service, first, "answer never").await;
        // Each of them is at another point of its start.
        let placing: Vec<_> = (0..12)
            .map(|_| {
                let (service, request) = (service.clone(), harness.request("spawn setsid\nhang"));
                tokio::spawn(async move { service.submit(request).await })
            })
            .collect();
        eventually("one of them has begun", || service.held().len() > 2);
        service.cancel_all().await;
        close(&service).await;
        assert_eq!(service.answer(waiting).await.unwrap().status, JobStatus::Cancelled);
        for placed in placing {
            match placed.await.unwrap() {
                Ok(placed) => {
                    let state = service.answer(placed.job).await.unwrap().status;
                    let waits = matches!(state, JobStatus::Queued | JobStatus::Paused);
                    assert!(state == JobStatus::Cancelled || waits, "{state:?}");
                }
                Err(error) => assert!(matches!(error, CallError::Closing), "{error:?}"),
            }
        }
    });
}

fn drain_starts_no_job_that_waits_for_a_session() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.max_attempts = 1).await;
        let first = service.submit(harness.request("say here\ndelay 2s\nanswer one")).await.unwrap().job;
        wait_for_line(&service, first, "here").await;
        let (second, _) = submit_behind(harness, &service, first, "answer two").await;
        close(&service).await;
        assert_eq!(service.answer(first).await.unwrap().output, "one");
        assert_eq!(harness.runs(second).len(), 0);
        drop(service);
        let service = harness.open().await;
        let answer = ended(&service, second).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "two"), "{answer:?}");
        close(&service).await;
    });
}

fn cancel_is_idempotent_until_the_job_ends() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("say here\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        service.cancel(job).await.unwrap();
        service.cancel(job).await.unwrap();
        ended(&service, job).await;
        let reply = service.cancel(job).await.unwrap();
        assert_eq!(reply, Cancellation { previous: StateName::Cancelled, now: StateName::Cancelled });
        let done = answered(&service, harness.request("answer done")).await.job_id.parse().unwrap();
        let error = service.cancel(done).await.unwrap_err();
        assert!(matches!(error, CallError::AlreadyEnded { state: StateName::Completed, .. }), "{error:?}");
        close(&service).await;
    });
}

fn cancel_after_the_answer_keeps_the_answer() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        // The agent has answered and does not exit.
        let job = service.submit(harness.request("answer the answer\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "the answer").await;
        service.cancel(job).await.unwrap();
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "the answer"));
        close(&service).await;
    });
}

fn lingering_agent_is_stopped_and_its_answer_kept() {
    for stays in ["hang", "close stdout\nhang"] {
        Harness::run(async |harness| {
            let service =
                harness.open_with(|settings| settings.patience.answered = Duration::from_millis(200)).await;
            let job =
                service.submit(harness.request(&format!("answer the answer\n{stays}"))).await.unwrap().job;
            let answer = ended(&service, job).await;
            assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "the answer"));
            assert_eq!(answer.processes, Some(calls::Processes::NoneLeft));
            // The stop caused this exit code.
            assert_eq!(answer.exit_code, None);
            close(&service).await;
        });
    }
}

fn result_of_a_suspended_agent_is_not_trusted() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.patience.answered = Duration::from_secs(2)).await;
        let job = service.submit(harness.request("answer forged\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "forged").await;
        let runs = harness.runs(job);
        let RunState::Running { agent } = &runs[0].state else { panic!("{runs:?}") };
        kill_process(Pid::from_raw(agent.pid).unwrap(), Signal::STOP).unwrap();
        let answer = ended(&service, job).await;
        let kind = answer.error.map(|error| error.kind);
        assert_eq!((answer.status, kind.as_deref()), (JobStatus::Failed, Some("incomplete")));
        assert_eq!(answer.processes, Some(calls::Processes::NoneLeft));
        close(&service).await;
    });
}

fn drain_waits_for_running_jobs_only() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let running =
            service.submit(harness.request("say here\ndelay 300ms\nanswer waited for")).await.unwrap().job;
        wait_for_line(&service, running, "here").await;
        let queued = service.submit(harness.request("answer later")).await.unwrap().job;
        service.close(ShutdownMode::Drain).await;
        assert_eq!(service.answer(running).await.unwrap().output, "waited for");
        assert_eq!(service.answer(queued).await.unwrap().status, JobStatus::Queued);
        drop(service);
        let service = harness.open().await;
        assert_eq!(ended(&service, queued).await.output, "later");
        close(&service).await;
    });
}

fn detached_run_is_adopted_by_the_next_service() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let script = "say here\ndelay 500ms\nstream 50 100B 10ms\nanswer whole";
        let job = service.submit(harness.request(script)).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        service.close(ShutdownMode::Detach).await;
        drop(service);
        let supervisor = harness.runs(job)[0].supervisor.pid;
        assert!(is_running(supervisor), "the run outlives the service");
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "whole"));
        assert_eq!(harness.runs(job).len(), 1, "it ran once");
        close(&service).await;
        eventually("the supervisor ends", || !is_running(supervisor));
    });
}
