//! Work that goes on after the answer, is refused, or is left behind: waited for, or named.

use std::time::Duration;

use calls::{Answer, JobStatus};
use model::Limits;

use crate::scene::{Scene, answered, close, ended, until_it_says};
use crate::tests;

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
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.lingers = Duration::from_millis(50)).await;
        let script = "background start npm test\nanswer found it\ndelay 500ms\nbackground completed npm test\nanswer all green";
        let answer = answered(&desk, scene.order(script)).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "found it\n\nall green"));
        assert_eq!((tasks(&answer), answer.exit_code), (vec![], Some(0)));
        close(&desk).await;
    });
}

fn job_that_waits_for_a_background_task_can_be_cancelled() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.lingers = Duration::from_millis(50)).await;
        let job =
            desk.submit(scene.order("background start npm test\nanswer found it\nhang")).await.unwrap().job;
        until_it_says(&desk, job, "waiting for 1 background task: npm test").await;
        desk.cancel(job).await.unwrap();
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "found it"));
        assert_eq!(tasks(&answer), [("npm test", "killed")]);
        close(&desk).await;
    });
}

fn background_task_at_the_wall_limit_is_a_timeout() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let mut order = scene.order("background start npm test\nanswer found it\nhang");
        order.call.limits = Limits { wall: Some(Duration::from_secs(1)), ..order.call.limits };
        let answer = answered(&desk, order).await;
        assert_eq!((answer.status, kind(&answer)), (JobStatus::Timeout, Some("deadline")));
        assert_eq!((answer.output.as_str(), tasks(&answer)), ("found it", vec![("npm test", "killed")]));
        close(&desk).await;
    });
}

fn background_task_that_never_ends_makes_the_job_incomplete() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        for (script, status) in [
            ("background start npm test\nanswer found it", "killed"),
            ("background start npm test\nanswer found it\nbackground stopped npm test", "stopped"),
        ] {
            let answer = answered(&desk, scene.order(script)).await;
            assert_eq!((answer.status, kind(&answer)), (JobStatus::Failed, Some("incomplete")));
            assert_eq!((answer.output.as_str(), tasks(&answer)), ("found it", vec![("npm test", status)]));
            let note = format!("1 background task did not complete: npm test ({status})");
            assert_eq!(answer.note, Some(note));
            assert!(answer.session_id.is_some() && answer.usage.is_some(), "{answer:?}");
        }
        close(&desk).await;
    });
}

fn refused_login_is_auth_without_waiting_for_retries() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order("retry-notice 401\nretry-notice 401\nhang")).await;
        assert_eq!((answer.status, kind(&answer)), (JobStatus::Failed, Some("auth")));
        close(&desk).await;
    });
}

fn denied_tool_is_listed_and_the_job_completes() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order("deny Bash\ndeny Bash\nanswer could not")).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "could not"));
        let refused: Vec<_> =
            answer.refusals.iter().map(|r| (r.kind.as_str(), r.subject.as_str(), r.count)).collect();
        assert_eq!(refused, [("tool", "Bash", 2)]);
        assert_eq!(answer.note.as_deref(), Some("refused: tool Bash (2 times)"));
        close(&desk).await;
    });
}

fn process_that_the_agent_leaves_running_is_noted() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order("spawn setsid\nanswer up and running")).await;
        assert_eq!(answer.status, JobStatus::Completed);
        assert_eq!(answer.note.as_deref(), Some("1 process that the agent left running was ended"));
        let mut hanging = scene.order("spawn setsid\nspawn daemon\nhang");
        hanging.call.limits.wall = Some(Duration::from_secs(2));
        let answer = answered(&desk, hanging).await;
        assert_eq!(answer.status, JobStatus::Timeout);
        assert_eq!(answer.note.as_deref(), Some("2 processes that the agent left running were ended"));
        close(&desk).await;
    });
}
