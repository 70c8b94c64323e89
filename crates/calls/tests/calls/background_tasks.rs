//! Background tasks, refused actions and leftover processes of an agent.

use std::time::Duration;

use calls::{Answer, JobStatus};
use model::Limits;

use crate::harness::{Harness, answered, close, ended, wait_for_line};
use testkit::tests;

tests![
    background_task_is_waited_for_beyond_the_linger_limit,
    job_that_waits_for_a_background_task_can_be_cancelled,
    background_task_at_the_wall_limit_is_a_timeout,
    background_task_that_never_ends_makes_the_job_incomplete,
    refused_login_is_auth_without_waiting_for_retries,
    denied_tool_is_listed_and_the_job_completes,
    process_that_the_agent_leaves_running_is_noted,
];

fn tasks(answer: &Answer) -> Vec<(&str, &str)> {
    answer.background.iter().map(|task| (task.description.as_str(), task.status.as_str())).collect()
}

fn kind(answer: &Answer) -> Option<&str> {
    answer.error.as_ref().map(|error| error.kind.as_str())
}

fn background_task_is_waited_for_beyond_the_linger_limit() {
    Harness::run(async |harness| {
        let service =
            harness.open_with(|settings| settings.patience.answered = Duration::from_millis(50)).await;
        let script = "background start npm test\nanswer found it\ndelay 500ms\nbackground completed npm test\nanswer all green";
        let answer = answered(&service, harness.request(script)).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "found it\n\nall green"));
        assert_eq!((tasks(&answer), answer.exit_code), (vec![], Some(0)));
        close(&service).await;
    });
}

fn job_that_waits_for_a_background_task_can_be_cancelled() {
    Harness::run(async |harness| {
        let service =
            harness.open_with(|settings| settings.patience.answered = Duration::from_millis(50)).await;
        let job = service
            .submit(harness.request("background start npm test\nanswer found it\nhang"))
            .await
            .unwrap()
            .job;
        wait_for_line(&service, job, "waiting for 1 background task: npm test").await;
        service.cancel(job).await.unwrap();
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "found it"));
        assert_eq!(tasks(&answer), [("npm test", "killed")]);
        close(&service).await;
    });
}

fn background_task_at_the_wall_limit_is_a_timeout() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let mut request = harness.request("background start npm test\nanswer found it\nhang");
        request.call.limits = Limits { wall: Some(Duration::from_secs(1)), ..request.call.limits };
        let answer = answered(&service, request).await;
        assert_eq!((answer.status, kind(&answer)), (JobStatus::Timeout, Some("deadline")));
        assert_eq!((answer.output.as_str(), tasks(&answer)), ("found it", vec![("npm test", "killed")]));
        close(&service).await;
    });
}

fn background_task_that_never_ends_makes_the_job_incomplete() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        for (script, status) in [
            ("background start npm test\nanswer found it", "killed"),
            ("background start npm test\nanswer found it\nbackground stopped npm test", "stopped"),
        ] {
            let answer = answered(&service, harness.request(script)).await;
            assert_eq!((answer.status, kind(&answer)), (JobStatus::Failed, Some("incomplete")));
            assert_eq!((answer.output.as_str(), tasks(&answer)), ("found it", vec![("npm test", status)]));
            let note = format!("1 background task did not complete: npm test ({status})");
            assert_eq!(answer.note, Some(note));
            assert!(answer.session_id.is_some() && answer.usage.is_some(), "{answer:?}");
        }
        close(&service).await;
    });
}

fn refused_login_is_auth_without_waiting_for_retries() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("retry-notice 401\nretry-notice 401\nhang")).await;
        assert_eq!((answer.status, kind(&answer)), (JobStatus::Failed, Some("auth")));
        close(&service).await;
    });
}

fn denied_tool_is_listed_and_the_job_completes() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("deny Bash\ndeny Bash\nanswer could not")).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "could not"));
        let refused: Vec<_> =
            answer.refusals.iter().map(|r| (r.kind.as_str(), r.subject.as_str(), r.count)).collect();
        assert_eq!(refused, [("tool", "Bash", 2)]);
        assert_eq!(answer.note.as_deref(), Some("refused: tool Bash (2 times)"));
        close(&service).await;
    });
}

fn process_that_the_agent_leaves_running_is_noted() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("spawn setsid\nanswer up and running")).await;
        assert_eq!(answer.status, JobStatus::Completed);
        assert_eq!(answer.note.as_deref(), Some("1 process that the agent left running was killed"));
        let mut hanging = harness.request("spawn setsid\nspawn daemon\nhang");
        hanging.call.limits.wall = Some(Duration::from_secs(2));
        let answer = answered(&service, hanging).await;
        assert_eq!(answer.status, JobStatus::Timeout);
        assert_eq!(answer.note.as_deref(), Some("2 other processes of the agent were killed"));
        close(&service).await;
    });
}
