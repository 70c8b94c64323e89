//! Cancelling, and closing the desk.

use std::time::Duration;

use calls::{CallError, Cancelled, JobStatus, ShutdownMode};
use model::StateName;

use crate::scene::{Scene, answered, close, ended, eventually, is_running, until_it_says, waiting_behind};
use crate::tests;

tests![
    cancelling_ends_everything_that_the_agent_has_started,
    a_queued_job_is_cancelled_at_once,
    cancelling_twice_is_the_same_and_after_the_end_an_error,
    an_agent_that_has_answered_is_not_cancelled,
    an_agent_that_has_answered_and_stays_is_ended_and_its_answer_counts,
    a_store_that_keeps_nothing_does_not_keep_an_agent_running,
    a_desk_that_drains_waits_for_what_runs_and_leaves_the_queue,
    a_desk_that_drains_begins_nothing_that_waits_for_a_session,
    a_desk_that_cancels_everything_misses_nothing_that_is_just_begun,
    what_runs_goes_on_when_the_desk_leaves_and_is_taken_up_by_the_next,
];

fn cancelling_ends_everything_that_the_agent_has_started() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let script = "spawn setsid ignore-term\nspawn daemon\nignore TERM\nsay spawned\nhang";
        let job = desk.submit(scene.order(script)).await.unwrap().job;
        until_it_says(&desk, job, "spawned").await;
        assert_eq!(scene.descendants().len(), 2);
        let reply = desk.cancel(job).await.unwrap();
        assert_eq!(reply, Cancelled { previous: StateName::Running, now: StateName::Running });
        let answer = ended(&desk, job).await;
        // The job says that it is over only when nothing is left of it.
        assert!(!scene.descendants().into_iter().any(is_running));
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "spawned"));
        close(&desk).await;
    });
}

fn a_queued_job_is_cancelled_at_once() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.at_once = 1).await;
        let running = desk.submit(scene.order("say here\nhang")).await.unwrap().job;
        until_it_says(&desk, running, "here").await;
        let queued = desk.submit(scene.order("answer never")).await.unwrap().job;
        let reply = desk.cancel(queued).await.unwrap();
        assert_eq!(reply, Cancelled { previous: StateName::Queued, now: StateName::Cancelled });
        assert!(desk.files(queued).result().exists());
        desk.cancel(running).await.unwrap();
        ended(&desk, running).await;
        assert_eq!(scene.runs(queued).len(), 0);
        close(&desk).await;
    });
}

fn a_store_that_keeps_nothing_does_not_keep_an_agent_running() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("spawn setsid\nsay here\nhang")).await.unwrap().job;
        until_it_says(&desk, job, "here").await;
        scene.take_the_store_away();
        let error = desk.cancel(job).await.unwrap_err();
        assert!(matches!(error, CallError::StoppedUnkept { .. }), "{error:?}");
        eventually("everything of it has ended", || !scene.descendants().into_iter().any(is_running));
        scene.bring_the_store_back();
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Cancelled, "here"));
        close(&desk).await;
    });
}

fn a_desk_that_cancels_everything_misses_nothing_that_is_just_begun() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let first = desk.submit(scene.order("say here\nhang")).await.unwrap().job;
        until_it_says(&desk, first, "here").await;
        // One that only waits is cancelled like the others, and not left to the next desk.
        let (waiting, _) = waiting_behind(scene, &desk, first, "answer never").await;
        // Each of them at another point of its beginning.
        let placing: Vec<_> = (0..12)
            .map(|_| {
                let (desk, order) = (desk.clone(), scene.order("spawn setsid\nhang"));
                tokio::spawn(async move { desk.submit(order).await })
            })
            .collect();
        eventually("one of them has begun", || desk.held().len() > 2);
        desk.cancel_all().await;
        close(&desk).await;
        assert_eq!(desk.answer(waiting).await.unwrap().status, JobStatus::Cancelled);
        for placed in placing {
            match placed.await.unwrap() {
                Ok(placed) => {
                    let state = desk.answer(placed.job).await.unwrap().status;
                    let waits = matches!(state, JobStatus::Queued | JobStatus::Paused);
                    assert!(state == JobStatus::Cancelled || waits, "{state:?}");
                }
                Err(error) => assert!(matches!(error, CallError::Closing), "{error:?}"),
            }
        }
    });
}

fn a_desk_that_drains_begins_nothing_that_waits_for_a_session() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.max_attempts = 1).await;
        let first = desk.submit(scene.order("say here\ndelay 2s\nanswer one")).await.unwrap().job;
        until_it_says(&desk, first, "here").await;
        let (second, _) = waiting_behind(scene, &desk, first, "answer two").await;
        close(&desk).await;
        assert_eq!(desk.answer(first).await.unwrap().output, "one");
        assert_eq!(scene.runs(second).len(), 0);
        drop(desk);
        let desk = scene.open().await;
        let answer = ended(&desk, second).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "two"), "{answer:?}");
        close(&desk).await;
    });
}

fn cancelling_twice_is_the_same_and_after_the_end_an_error() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("say here\nhang")).await.unwrap().job;
        until_it_says(&desk, job, "here").await;
        desk.cancel(job).await.unwrap();
        desk.cancel(job).await.unwrap();
        ended(&desk, job).await;
        let reply = desk.cancel(job).await.unwrap();
        assert_eq!(reply, Cancelled { previous: StateName::Cancelled, now: StateName::Cancelled });
        let done = answered(&desk, scene.order("answer done")).await.job_id.parse().unwrap();
        let error = desk.cancel(done).await.unwrap_err();
        assert!(matches!(error, CallError::AlreadyEnded { state: StateName::Completed, .. }), "{error:?}");
        close(&desk).await;
    });
}

fn an_agent_that_has_answered_is_not_cancelled() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        // It has given its answer and does not go away.
        let job = desk.submit(scene.order("answer the answer\nhang")).await.unwrap().job;
        until_it_says(&desk, job, "the answer").await;
        desk.cancel(job).await.unwrap();
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "the answer"));
        close(&desk).await;
    });
}

fn an_agent_that_has_answered_and_stays_is_ended_and_its_answer_counts() {
    for stays in ["hang", "close stdout\nhang"] {
        Scene::play(async |scene| {
            let desk = scene.open_with(|settings| settings.lingers = Duration::from_millis(200)).await;
            let job = desk.submit(scene.order(&format!("answer the answer\n{stays}"))).await.unwrap().job;
            let answer = ended(&desk, job).await;
            assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "the answer"));
            assert_eq!(answer.processes, Some(calls::Processes::NoneLeft));
            // Whoever stopped it made that exit code.
            assert_eq!(answer.exit_code, None);
            close(&desk).await;
        });
    }
}

fn a_desk_that_drains_waits_for_what_runs_and_leaves_the_queue() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.at_once = 1).await;
        let running = desk.submit(scene.order("say here\ndelay 300ms\nanswer waited for")).await.unwrap().job;
        until_it_says(&desk, running, "here").await;
        let queued = desk.submit(scene.order("answer later")).await.unwrap().job;
        desk.close(ShutdownMode::Drain).await;
        assert_eq!(desk.answer(running).await.unwrap().output, "waited for");
        assert_eq!(desk.answer(queued).await.unwrap().status, JobStatus::Queued);
        drop(desk);
        let desk = scene.open().await;
        assert_eq!(ended(&desk, queued).await.output, "later");
        close(&desk).await;
    });
}

fn what_runs_goes_on_when_the_desk_leaves_and_is_taken_up_by_the_next() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let script = "say here\ndelay 500ms\nstream 50 100B 10ms\nanswer whole";
        let job = desk.submit(scene.order(script)).await.unwrap().job;
        until_it_says(&desk, job, "here").await;
        desk.close(ShutdownMode::Detach).await;
        drop(desk);
        let supervisor = scene.runs(job)[0].supervisor.pid;
        assert!(is_running(supervisor), "the run outlives the desk");
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "whole"));
        assert_eq!(scene.runs(job).len(), 1, "it ran once");
        close(&desk).await;
        eventually("the supervisor ends", || !is_running(supervisor));
    });
}
