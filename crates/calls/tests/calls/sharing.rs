//! Concurrent calls: slots, sessions, directories.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use calls::{CallRequest, Followed, JobFilter, JobStatus, PageRequest, ShutdownMode, Until};
use model::{CallSpec, JobId, RunState, SessionChoice};

use crate::harness::{Harness, LONG, agent, answered, close, ended, submit_behind, wait_for_line};
use testkit::tests;

tests![
    running_jobs_never_exceed_the_limit,
    each_agent_has_its_own_limit,
    session_has_one_run_at_a_time,
    session_has_one_run_at_a_time_after_a_restart,
    job_fails_if_its_session_is_never_free,
    directory_has_one_writer_if_configured,
    queued_jobs_start_in_order,
    jobs_waiting_for_a_session_hold_no_slot,
    job_that_waited_searches_its_program_again,
    jobs_that_waited_never_exceed_the_limit,
    waiting_job_names_the_job_that_uses_its_session,
    duration_excludes_waits,
    queued_job_names_the_slots_in_use,
    nested_call_does_not_wait_for_the_slot_of_its_parent,
    nested_call_ignores_the_directory_lock_of_its_parent,
    calls_nested_too_deep_are_refused,
    nested_call_has_the_slot_of_its_parent_after_a_restart,
];

fn nested_call_has_the_slot_of_its_parent_after_a_restart() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let hang = || harness.request("say here\nhang");
        let parent = service.submit(hang()).await.unwrap().job;
        wait_for_line(&service, parent, "here").await;
        let first = service.submit(CallRequest { parent: Some(parent), ..hang() }).await.unwrap().job;
        wait_for_line(&service, first, "here").await;
        let second = CallRequest { parent: Some(parent), ..harness.request("answer nested") };
        let second = service.submit(second).await.unwrap().job;
        service.close(ShutdownMode::Detach).await;
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        wait_for_line(&service, parent, "here").await;
        service.cancel(first).await.unwrap();
        assert_eq!(ended(&service, second).await.output, "nested");
        service.cancel(parent).await.unwrap();
        ended(&service, parent).await;
        close(&service).await;
    });
}

fn nested_call_does_not_wait_for_the_slot_of_its_parent() {
    Harness::run(async |harness| {
        let limits = BTreeMap::from([(agent(), 1)]);
        for per_agent in [BTreeMap::new(), limits] {
            let service =
                harness.open_with(|settings| (settings.at_once, settings.per_agent) = (1, per_agent)).await;
            let parent = service.submit(harness.request("say here\nhang")).await.unwrap().job;
            wait_for_line(&service, parent, "here").await;
            for _ in 0..2 {
                let nested = CallRequest { parent: Some(parent), ..harness.request("answer nested") };
                assert_eq!(answered(&service, nested).await.output, "nested");
            }
            // The slot belongs to the parent again.
            let other = service.submit(harness.request("answer other")).await.unwrap().job;
            assert_eq!(service.wait(&[other], Until::All, Duration::from_millis(300)).await.unwrap(), []);
            service.cancel(parent).await.unwrap();
            assert_eq!(ended(&service, other).await.output, "other");
            close(&service).await;
        }
    });
}

fn nested_call_ignores_the_directory_lock_of_its_parent() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.one_writer_per_directory = true).await;
        let parent = service.submit(harness.request("say here\nhang")).await.unwrap().job;
        wait_for_line(&service, parent, "here").await;
        let nested = CallRequest { parent: Some(parent), ..harness.request("answer nested") };
        assert_eq!(answered(&service, nested).await.output, "nested");
        service.cancel(parent).await.unwrap();
        ended(&service, parent).await;
        close(&service).await;
    });
}

fn calls_nested_too_deep_are_refused() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let mut jobs: Vec<JobId> = Vec::new();
        let refused = loop {
            let request = CallRequest { parent: jobs.last().copied(), ..harness.request("say here\nhang") };
            match service.submit(request).await {
                Ok(placed) => jobs.push(placed.job),
                Err(error) => break error,
            }
            wait_for_line(&service, *jobs.last().unwrap(), "here").await;
            assert!(jobs.len() < 10, "there is no end to it");
        };
        assert!(matches!(refused, calls::CallError::NestedTooDeep { .. }), "{refused:?}");
        for job in jobs {
            service.cancel(job).await.unwrap();
            ended(&service, job).await;
        }
        close(&service).await;
    });
}

fn running_jobs_never_exceed_the_limit() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.at_once = 3).await;
        let jobs = place(&service, harness, 12, "delay 30ms\nanswer done").await;
        assert_eq!(service.wait(&jobs, Until::All, LONG).await.unwrap().len(), 12);
        assert!(at_once(harness, &jobs) <= 3, "{}", at_once(harness, &jobs));
        close(&service).await;
    });
}

fn each_agent_has_its_own_limit() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.per_agent = BTreeMap::from([(agent(), 1)])).await;
        let jobs = place(&service, harness, 5, "delay 20ms\nanswer done").await;
        service.wait(&jobs, Until::All, LONG).await.unwrap();
        assert_eq!(at_once(harness, &jobs), 1);
        close(&service).await;
    });
}

fn session_has_one_run_at_a_time() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        // The creator of the session is still running when two others want to resume it.
        let first = service.submit(harness.request("say begun\ndelay 300ms\nanswer one")).await.unwrap().job;
        wait_for_line(&service, first, "begun").await;
        let session = service.answer(first).await.unwrap().session_id.unwrap();
        let resume = CallSpec {
            session: SessionChoice::Resume(session.parse().unwrap()),
            ..harness.call("delay 100ms\nanswer more")
        };
        let mut jobs = vec![first];
        for _ in 0..2 {
            jobs.push(service.submit(CallRequest::new(resume.clone(), "call_cc")).await.unwrap().job);
        }
        service.wait(&jobs, Until::All, LONG).await.unwrap();
        for &job in &jobs {
            assert_eq!(service.answer(job).await.unwrap().status, JobStatus::Completed);
        }
        assert_eq!(at_once(harness, &jobs), 1);
        close(&service).await;
    });
}

fn session_has_one_run_at_a_time_after_a_restart() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let first = service.submit(harness.request("say begun\ndelay 500ms\nanswer one")).await.unwrap().job;
        wait_for_line(&service, first, "begun").await;
        let (second, _) = submit_behind(harness, &service, first, "answer two").await;
        service.close(ShutdownMode::Detach).await;
        drop(service);
        let service = harness.open().await;
        service.wait(&[first, second], Until::All, LONG).await.unwrap();
        assert_eq!(at_once(harness, &[first, second]), 1);
        close(&service).await;
    });
}

fn job_fails_if_its_session_is_never_free() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let first = service.submit(harness.request("say begun\nhang")).await.unwrap().job;
        wait_for_line(&service, first, "begun").await;
        let session = service.answer(first).await.unwrap().session_id.unwrap();
        let mut second = harness.request("answer never");
        second.call.session = SessionChoice::Resume(session.parse().unwrap());
        second.call.limits.wall = Some(Duration::from_millis(200));
        let answer = answered(&service, second).await;
        assert_eq!(answer.error.unwrap().kind, "session_in_use");
        service.cancel(first).await.unwrap();
        ended(&service, first).await;
        close(&service).await;
    });
}

fn directory_has_one_writer_if_configured() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.one_writer_per_directory = true).await;
        let jobs = place(&service, harness, 4, "delay 50ms\nanswer done").await;
        service.wait(&jobs, Until::All, LONG).await.unwrap();
        assert_eq!(at_once(harness, &jobs), 1);
        close(&service).await;
    });
}

fn queued_jobs_start_in_order() {
    // A campaign drains 1,000.
    let count = std::env::var("CALLS_QUEUED").ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let jobs = place(&service, harness, count, "answer done").await;
        service.wait(&jobs, Until::All, LONG).await.unwrap();
        let mut started = Vec::new();
        for job in &jobs {
            started.push(service.job(*job).await.unwrap().started_at);
        }
        assert!(started.is_sorted(), "the oldest comes first: {started:?}");
        close(&service).await;
    });
}

/// The limit that delays calls.
#[derive(Clone, Copy)]
enum Limit {
    InAll,
    OfTheAgent,
}

impl Limit {
    fn set(self, settings: &mut calls::Settings, room: u32) {
        match self {
            Self::InAll => settings.at_once = room,
            Self::OfTheAgent => settings.per_agent = BTreeMap::from([(agent(), room)]),
        }
    }
}

fn jobs_waiting_for_a_session_hold_no_slot() {
    for limit in [Limit::InAll, Limit::OfTheAgent] {
        Harness::run(async |harness| {
            let service = harness.open_with(|settings| limit.set(settings, 2)).await;
            let first = service.submit(harness.request("say begun\nhang")).await.unwrap().job;
            wait_for_line(&service, first, "begun").await;
            let waiting = wait_for_its_session(&service, harness, first, 4, "answer after it").await;
            // Submitted last, so it is behind all blocked jobs.
            let other = answered(&service, harness.request("answer not starved")).await;
            assert_eq!(other.output, "not starved", "{other:?}");
            for &job in &waiting {
                assert_eq!(harness.runs(job).len(), 0, "its session is not free");
            }
            service.cancel(first).await.unwrap();
            service.wait(&waiting, Until::All, LONG).await.unwrap();
            for &job in &waiting {
                assert_eq!(service.answer(job).await.unwrap().status, JobStatus::Completed);
            }
            close(&service).await;
        });
    }
}

/// A job that starts at once reuses the setup with which it was checked; after a wait that may be out of date.
fn job_that_waited_searches_its_program_again() {
    Harness::run(async |harness| {
        // Programs in a workspace are never started.
        let [early, late, started] =
            ["early", "late", "started"].map(|name| harness.state().with_file_name(name));
        let install = |directory: &Path| {
            let agent = std::env::current_exe().unwrap();
            let (agent, started) = (agent.display(), started.display());
            let script = format!("#!/bin/sh\ndirname \"$0\" >> '{started}'\nexec '{agent}' \"$@\"\n");
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("rehearsal"), script).unwrap();
            fs::set_permissions(directory.join("rehearsal"), fs::Permissions::from_mode(0o755)).unwrap();
        };
        install(&late);
        let search_path = format!("{}:{}:/usr/bin:/bin", early.display(), late.display());
        let service = harness
            .open_with(|settings| {
                settings.lookup.programs.clear();
                settings.lookup.inherited.insert("PATH".to_owned(), search_path);
            })
            .await;
        let first = service.submit(harness.request("say begun\nhang")).await.unwrap().job;
        wait_for_line(&service, first, "begun").await;
        let waiting = wait_for_its_session(&service, harness, first, 1, "answer done").await;
        install(&early);
        service.cancel(first).await.unwrap();
        service.wait(&waiting, Until::All, LONG).await.unwrap();
        let started = fs::read_to_string(&started).unwrap();
        assert_eq!(started.lines().collect::<Vec<_>>(), [late.to_str().unwrap(), early.to_str().unwrap()]);
        close(&service).await;
    });
}

fn jobs_that_waited_never_exceed_the_limit() {
    for limit in [Limit::InAll, Limit::OfTheAgent] {
        Harness::run(async |harness| {
            let service = harness.open_with(|settings| limit.set(settings, 3)).await;
            let (mut holders, mut jobs) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                let holder = service.submit(harness.request("say begun\nhang")).await.unwrap().job;
                wait_for_line(&service, holder, "begun").await;
                jobs.extend(
                    wait_for_its_session(&service, harness, holder, 2, "delay 50ms\nanswer done").await,
                );
                holders.push(holder);
            }
            jobs.extend(place(&service, harness, 6, "delay 50ms\nanswer done").await);
            for &holder in &holders {
                service.cancel(holder).await.unwrap();
            }
            jobs.extend(holders);
            service.wait(&jobs, Until::All, LONG).await.unwrap();
            assert!(at_once(harness, &jobs) <= 3, "{}", at_once(harness, &jobs));
            close(&service).await;
        });
    }
}

/// Submits calls that resume the session of a running job, and waits until all of them are blocked on it.
async fn wait_for_its_session(
    service: &calls::JobService,
    harness: &Harness,
    holder: JobId,
    count: usize,
    script: &str,
) -> Vec<JobId> {
    let session = service.answer(holder).await.unwrap().session_id.unwrap();
    let mut resume = harness.request(script);
    resume.call.session = SessionChoice::Resume(session.parse().unwrap());
    let mut jobs = Vec::new();
    for _ in 0..count {
        jobs.push(service.submit(resume.clone()).await.unwrap().job);
    }
    let waits = format!("waiting for session {session}, used by job {holder}");
    for &job in &jobs {
        wait_for_line(service, job, &waits).await;
    }
    jobs
}

async fn place(service: &calls::JobService, harness: &Harness, count: usize, script: &str) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for _ in 0..count {
        jobs.push(service.submit(harness.request(script)).await.unwrap().job);
    }
    jobs
}

/// Returns the maximum number of concurrent runs, by the clock of their supervisors.
fn at_once(harness: &Harness, jobs: &[JobId]) -> usize {
    let mut changes = Vec::new();
    for run in jobs.iter().flat_map(|job| harness.runs(*job)) {
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
    Harness::run(async |harness| {
        let service = harness.open().await;
        let first = service.submit(harness.request("say begun\nhang")).await.unwrap().job;
        wait_for_line(&service, first, "begun").await;
        let (second, expected) = submit_behind(harness, &service, first, "answer two").await;
        let answer = service.answer(second).await.unwrap();
        assert_eq!(answer.waiting.as_deref(), Some(expected.as_str()), "{answer:?}");
        assert!(answer.note.is_some_and(|note| note.starts_with(&expected)));
        let mut follow = service.follow(second).await.unwrap();
        let Some(Followed::Waiting(reason)) = follow.next().await.unwrap() else { panic!("it waits") };
        assert_eq!(reason.to_string(), expected);
        service.cancel(first).await.unwrap();
        let answer = ended(&service, second).await;
        assert_eq!((answer.status, answer.waiting), (JobStatus::Completed, None));
        close(&service).await;
    });
}

fn duration_excludes_waits() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let first = service.submit(harness.request("say begun\nhang")).await.unwrap().job;
        wait_for_line(&service, first, "begun").await;
        let (second, _) = submit_behind(harness, &service, first, "say mine\nhang").await;
        assert_eq!(service.answer(second).await.unwrap().duration_ms, 0, "nothing of it has run");
        service.cancel(first).await.unwrap();
        wait_for_line(&service, second, "mine").await;
        service.cancel(second).await.unwrap();
        let answer = ended(&service, second).await;
        let RunState::Ended(report) = &harness.runs(second)[0].state else { panic!("it has ended") };
        assert_eq!(answer.duration_ms, report.duration_ms);
        let listed = service.list(&JobFilter::default(), PageRequest::default()).await.unwrap().jobs;
        let line = listed.iter().find(|line| line.id == second).unwrap();
        assert_eq!(line.duration, Some(Duration::from_millis(report.duration_ms)));
        close(&service).await;
    });
}

fn queued_job_names_the_slots_in_use() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let first = service.submit(harness.request("say begun\nhang")).await.unwrap().job;
        wait_for_line(&service, first, "begun").await;
        let second = service.submit(harness.request("answer two")).await.unwrap().job;
        let answer = service.answer(second).await.unwrap();
        assert_eq!((answer.status, answer.duration_ms), (JobStatus::Queued, 0));
        assert_eq!(answer.waiting.as_deref(), Some("queued: 1 of 1 slots in use"));
        service.cancel(first).await.unwrap();
        assert_eq!(ended(&service, second).await.status, JobStatus::Completed);
        close(&service).await;
    });
}
