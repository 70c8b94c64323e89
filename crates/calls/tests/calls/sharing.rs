//! Many calls at once: what they share and what they must not.

use std::collections::BTreeMap;
use std::time::Duration;

use calls::{CallRequest, Followed, JobFilter, JobStatus, PageRequest, ShutdownMode, Until};
use model::{AgentKind, CallSpec, JobId, RunState, SessionChoice};

use crate::scene::{LONG, Scene, answered, close, ended, until_it_says, waiting_behind};
use crate::tests;

tests![
    no_more_run_at_once_than_may,
    each_agent_has_its_own_limit,
    a_session_is_never_run_twice_at_once,
    a_session_is_not_run_twice_at_once_after_a_restart_either,
    a_call_whose_session_is_never_free_fails_and_says_so,
    two_writers_of_a_folder_wait_for_each_other_when_told_to,
    many_queued_jobs_are_drained_in_their_order,
    calls_that_wait_for_a_session_take_no_place_from_others,
    calls_that_have_waited_run_no_more_at_once_than_may,
    waiting_job_names_the_job_that_uses_its_session,
    duration_is_the_time_of_the_runs_without_waits,
    queued_job_names_the_slots_in_use,
    nested_call_does_not_wait_for_the_slot_of_its_parent,
    nested_call_does_not_wait_for_the_folder_of_its_parent,
    calls_nested_too_deep_are_refused,
    nested_call_has_the_slot_of_its_parent_after_a_restart,
];

fn nested_call_has_the_slot_of_its_parent_after_a_restart() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.at_once = 1).await;
        let hang = || scene.order("say here\nhang");
        let parent = desk.submit(hang()).await.unwrap().job;
        until_it_says(&desk, parent, "here").await;
        let first = desk.submit(CallRequest { parent: Some(parent), ..hang() }).await.unwrap().job;
        until_it_says(&desk, first, "here").await;
        let second = CallRequest { parent: Some(parent), ..scene.order("answer nested") };
        let second = desk.submit(second).await.unwrap().job;
        desk.close(ShutdownMode::Detach).await;
        let desk = scene.open_with(|settings| settings.at_once = 1).await;
        until_it_says(&desk, parent, "here").await;
        desk.cancel(first).await.unwrap();
        assert_eq!(ended(&desk, second).await.output, "nested");
        desk.cancel(parent).await.unwrap();
        ended(&desk, parent).await;
        close(&desk).await;
    });
}

fn nested_call_does_not_wait_for_the_slot_of_its_parent() {
    Scene::play(async |scene| {
        let limits = BTreeMap::from([(AgentKind::Rehearsal, 1)]);
        for per_agent in [BTreeMap::new(), limits] {
            let desk =
                scene.open_with(|settings| (settings.at_once, settings.per_agent) = (1, per_agent)).await;
            let parent = desk.submit(scene.order("say here\nhang")).await.unwrap().job;
            until_it_says(&desk, parent, "here").await;
            for _ in 0..2 {
                let nested = CallRequest { parent: Some(parent), ..scene.order("answer nested") };
                assert_eq!(answered(&desk, nested).await.output, "nested");
            }
            // The slot is the parent's again.
            let other = desk.submit(scene.order("answer other")).await.unwrap().job;
            assert_eq!(desk.wait(&[other], Until::All, Duration::from_millis(300)).await.unwrap(), []);
            desk.cancel(parent).await.unwrap();
            assert_eq!(ended(&desk, other).await.output, "other");
            close(&desk).await;
        }
    });
}

fn nested_call_does_not_wait_for_the_folder_of_its_parent() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.one_writer_per_folder = true).await;
        let parent = desk.submit(scene.order("say here\nhang")).await.unwrap().job;
        until_it_says(&desk, parent, "here").await;
        let nested = CallRequest { parent: Some(parent), ..scene.order("answer nested") };
        assert_eq!(answered(&desk, nested).await.output, "nested");
        desk.cancel(parent).await.unwrap();
        ended(&desk, parent).await;
        close(&desk).await;
    });
}

fn calls_nested_too_deep_are_refused() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.at_once = 1).await;
        let mut jobs: Vec<JobId> = Vec::new();
        let refused = loop {
            let order = CallRequest { parent: jobs.last().copied(), ..scene.order("say here\nhang") };
            match desk.submit(order).await {
                Ok(placed) => jobs.push(placed.job),
                Err(error) => break error,
            }
            until_it_says(&desk, *jobs.last().unwrap(), "here").await;
            assert!(jobs.len() < 10, "there is no end to it");
        };
        assert!(matches!(refused, calls::CallError::NestedTooDeep { .. }), "{refused:?}");
        for job in jobs {
            desk.cancel(job).await.unwrap();
            ended(&desk, job).await;
        }
        close(&desk).await;
    });
}

fn no_more_run_at_once_than_may() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.at_once = 3).await;
        let jobs = place(&desk, scene, 12, "delay 30ms\nanswer done").await;
        assert_eq!(desk.wait(&jobs, Until::All, LONG).await.unwrap().len(), 12);
        assert!(at_once(scene, &jobs) <= 3, "{}", at_once(scene, &jobs));
        close(&desk).await;
    });
}

fn each_agent_has_its_own_limit() {
    Scene::play(async |scene| {
        let desk = scene
            .open_with(|settings| settings.per_agent = BTreeMap::from([(AgentKind::Rehearsal, 1)]))
            .await;
        let jobs = place(&desk, scene, 5, "delay 20ms\nanswer done").await;
        desk.wait(&jobs, Until::All, LONG).await.unwrap();
        assert_eq!(at_once(scene, &jobs), 1);
        close(&desk).await;
    });
}

fn a_session_is_never_run_twice_at_once() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        // The one that makes the session is still running when two others want to go on with it.
        let first = desk.submit(scene.order("say begun\ndelay 300ms\nanswer one")).await.unwrap().job;
        until_it_says(&desk, first, "begun").await;
        let session = desk.answer(first).await.unwrap().session_id.unwrap();
        let resume = CallSpec {
            session: SessionChoice::Resume(session.parse().unwrap()),
            ..scene.call("delay 100ms\nanswer more")
        };
        let mut jobs = vec![first];
        for _ in 0..2 {
            jobs.push(desk.submit(CallRequest::new(resume.clone(), "call_cc")).await.unwrap().job);
        }
        desk.wait(&jobs, Until::All, LONG).await.unwrap();
        for &job in &jobs {
            assert_eq!(desk.answer(job).await.unwrap().status, JobStatus::Completed);
        }
        assert_eq!(at_once(scene, &jobs), 1);
        close(&desk).await;
    });
}

fn a_session_is_not_run_twice_at_once_after_a_restart_either() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let first = desk.submit(scene.order("say begun\ndelay 500ms\nanswer one")).await.unwrap().job;
        until_it_says(&desk, first, "begun").await;
        let (second, _) = waiting_behind(scene, &desk, first, "answer two").await;
        desk.close(ShutdownMode::Detach).await;
        drop(desk);
        let desk = scene.open().await;
        desk.wait(&[first, second], Until::All, LONG).await.unwrap();
        assert_eq!(at_once(scene, &[first, second]), 1);
        close(&desk).await;
    });
}

fn a_call_whose_session_is_never_free_fails_and_says_so() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let first = desk.submit(scene.order("say begun\nhang")).await.unwrap().job;
        until_it_says(&desk, first, "begun").await;
        let session = desk.answer(first).await.unwrap().session_id.unwrap();
        let mut second = scene.order("answer never");
        second.call.session = SessionChoice::Resume(session.parse().unwrap());
        second.call.limits.wall = Some(Duration::from_millis(200));
        let answer = answered(&desk, second).await;
        assert_eq!(answer.error.unwrap().kind, "session_in_use");
        desk.cancel(first).await.unwrap();
        ended(&desk, first).await;
        close(&desk).await;
    });
}

fn two_writers_of_a_folder_wait_for_each_other_when_told_to() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.one_writer_per_folder = true).await;
        let jobs = place(&desk, scene, 4, "delay 50ms\nanswer done").await;
        desk.wait(&jobs, Until::All, LONG).await.unwrap();
        assert_eq!(at_once(scene, &jobs), 1);
        close(&desk).await;
    });
}

fn many_queued_jobs_are_drained_in_their_order() {
    // A campaign drains 1,000.
    let count = std::env::var("CALLS_QUEUED").ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.at_once = 1).await;
        let jobs = place(&desk, scene, count, "answer done").await;
        desk.wait(&jobs, Until::All, LONG).await.unwrap();
        let mut started = Vec::new();
        for job in &jobs {
            started.push(desk.job(*job).await.unwrap().started_at);
        }
        assert!(started.is_sorted(), "the oldest comes first: {started:?}");
        close(&desk).await;
    });
}

/// What holds calls back.
#[derive(Clone, Copy)]
enum Limit {
    InAll,
    OfTheAgent,
}

impl Limit {
    fn set(self, settings: &mut calls::Settings, room: u32) {
        match self {
            Self::InAll => settings.at_once = room,
            Self::OfTheAgent => settings.per_agent = BTreeMap::from([(AgentKind::Rehearsal, room)]),
        }
    }
}

fn calls_that_wait_for_a_session_take_no_place_from_others() {
    for limit in [Limit::InAll, Limit::OfTheAgent] {
        Scene::play(async |scene| {
            let desk = scene.open_with(|settings| limit.set(settings, 2)).await;
            let first = desk.submit(scene.order("say begun\nhang")).await.unwrap().job;
            until_it_says(&desk, first, "begun").await;
            let waiting = wait_for_its_session(&desk, scene, first, 4, "answer after it").await;
            // Placed last: it comes after all those who wait.
            let other = answered(&desk, scene.order("answer not starved")).await;
            assert_eq!(other.output, "not starved", "{other:?}");
            for &job in &waiting {
                assert_eq!(scene.runs(job).len(), 0, "its session is not free");
            }
            desk.cancel(first).await.unwrap();
            desk.wait(&waiting, Until::All, LONG).await.unwrap();
            for &job in &waiting {
                assert_eq!(desk.answer(job).await.unwrap().status, JobStatus::Completed);
            }
            close(&desk).await;
        });
    }
}

fn calls_that_have_waited_run_no_more_at_once_than_may() {
    for limit in [Limit::InAll, Limit::OfTheAgent] {
        Scene::play(async |scene| {
            let desk = scene.open_with(|settings| limit.set(settings, 3)).await;
            let (mut holders, mut jobs) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                let holder = desk.submit(scene.order("say begun\nhang")).await.unwrap().job;
                until_it_says(&desk, holder, "begun").await;
                jobs.extend(wait_for_its_session(&desk, scene, holder, 2, "delay 50ms\nanswer done").await);
                holders.push(holder);
            }
            jobs.extend(place(&desk, scene, 6, "delay 50ms\nanswer done").await);
            for &holder in &holders {
                desk.cancel(holder).await.unwrap();
            }
            jobs.extend(holders);
            desk.wait(&jobs, Until::All, LONG).await.unwrap();
            assert!(at_once(scene, &jobs) <= 3, "{}", at_once(scene, &jobs));
            close(&desk).await;
        });
    }
}

/// Places calls that go on with the session of a job that runs, and waits until all of them say that they wait for it.
async fn wait_for_its_session(
    desk: &calls::JobService,
    scene: &Scene,
    holder: JobId,
    count: usize,
    script: &str,
) -> Vec<JobId> {
    let session = desk.answer(holder).await.unwrap().session_id.unwrap();
    let mut resume = scene.order(script);
    resume.call.session = SessionChoice::Resume(session.parse().unwrap());
    let mut jobs = Vec::new();
    for _ in 0..count {
        jobs.push(desk.submit(resume.clone()).await.unwrap().job);
    }
    let waits = format!("waiting for session {session}, used by job {holder}");
    for &job in &jobs {
        until_it_says(desk, job, &waits).await;
    }
    jobs
}

async fn place(desk: &calls::JobService, scene: &Scene, count: usize, script: &str) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for _ in 0..count {
        jobs.push(desk.submit(scene.order(script)).await.unwrap().job);
    }
    jobs
}

/// How many runs there were at the same time, by the clock of their supervisors.
fn at_once(scene: &Scene, jobs: &[JobId]) -> usize {
    let mut changes = Vec::new();
    for run in jobs.iter().flat_map(|job| scene.runs(*job)) {
        let RunState::Ended(report) = run.state else { panic!("{run:?} has not ended") };
        // An end counts before a start in the same millisecond.
        changes.extend([(run.started_at_ms, 1), (report.ended_at_ms, -1)]);
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0_i32, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    usize::try_from(most).unwrap()
}

fn waiting_job_names_the_job_that_uses_its_session() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let first = desk.submit(scene.order("say begun\nhang")).await.unwrap().job;
        until_it_says(&desk, first, "begun").await;
        let (second, expected) = waiting_behind(scene, &desk, first, "answer two").await;
        let answer = desk.answer(second).await.unwrap();
        assert_eq!(answer.waiting.as_deref(), Some(expected.as_str()), "{answer:?}");
        assert!(answer.note.is_some_and(|note| note.starts_with(&expected)));
        let mut follow = desk.follow(second).await.unwrap();
        let Some(Followed::Waiting(reason)) = follow.next().await.unwrap() else { panic!("it waits") };
        assert_eq!(reason.to_string(), expected);
        desk.cancel(first).await.unwrap();
        let answer = ended(&desk, second).await;
        assert_eq!((answer.status, answer.waiting), (JobStatus::Completed, None));
        close(&desk).await;
    });
}

fn duration_is_the_time_of_the_runs_without_waits() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let first = desk.submit(scene.order("say begun\nhang")).await.unwrap().job;
        until_it_says(&desk, first, "begun").await;
        let (second, _) = waiting_behind(scene, &desk, first, "say mine\nhang").await;
        assert_eq!(desk.answer(second).await.unwrap().duration_ms, 0, "nothing of it has run");
        desk.cancel(first).await.unwrap();
        until_it_says(&desk, second, "mine").await;
        desk.cancel(second).await.unwrap();
        let answer = ended(&desk, second).await;
        let RunState::Ended(report) = &scene.runs(second)[0].state else { panic!("it has ended") };
        assert_eq!(answer.duration_ms, report.duration_ms);
        let listed = desk.list(&JobFilter::default(), PageRequest::default()).await.unwrap().jobs;
        let line = listed.iter().find(|line| line.id == second).unwrap();
        assert_eq!(line.duration, Some(Duration::from_millis(report.duration_ms)));
        close(&desk).await;
    });
}

fn queued_job_names_the_slots_in_use() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.at_once = 1).await;
        let first = desk.submit(scene.order("say begun\nhang")).await.unwrap().job;
        until_it_says(&desk, first, "begun").await;
        let second = desk.submit(scene.order("answer two")).await.unwrap().job;
        let answer = desk.answer(second).await.unwrap();
        assert_eq!((answer.status, answer.duration_ms), (JobStatus::Queued, 0));
        assert_eq!(answer.waiting.as_deref(), Some("queued: 1 of 1 slots in use"));
        desk.cancel(first).await.unwrap();
        assert_eq!(ended(&desk, second).await.status, JobStatus::Completed);
        close(&desk).await;
    });
}
