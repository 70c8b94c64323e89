//! A store that is rebuilt from the job directories.

use std::fs;

use calls::{JobService, JobStatus, RecoveryReport, Settings, ShutdownMode, recover_store};
use model::{AgentKind, Exchange, Job, JobId, Mode, Placement};
use store::{JobFilter, LastSession, PageRequest, RetentionLimits, StatsRange, Store};

use crate::harness::{Harness, answered, close, ended, wait_for_line};
use testkit::{eventually_async, tests};

tests![
    rebuilt_store_equals_the_lost_one,
    paused_job_is_recovered_with_its_pause,
    running_call_is_recovered_and_adopted,
    dropped_and_replaced_tables_are_recovered,
    missing_record_is_written_by_the_next_service,
    retention_applies_to_recovered_jobs,
    recovered_key_yields_to_a_newer_job,
];

const TASKS: [&str; 3] = ["answered", "only tools", "refused"];

/// The content of a store.
#[derive(Debug, PartialEq)]
struct HeldClaim {
    jobs: Vec<Job>,
    exchanges: Vec<Option<Exchange>>,
    sessions: Vec<Option<(JobId, String)>>,
    stats: String,
}

async fn held(harness: &Harness) -> HeldClaim {
    let store = Store::open(harness.settings().store).await.unwrap();
    let page = store.list(&JobFilter::default(), PageRequest::default()).await.unwrap();
    let (mut jobs, mut exchanges, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for line in page.jobs {
        // The lease of an owner is lost with its heartbeat.
        jobs.push(Job { lease: None, ..store.get(line.id).await.unwrap().unwrap() });
        exchanges.push(store.exchange(line.id).await.unwrap());
    }
    for task in TASKS {
        let last =
            store.last_session(AgentKind::Rehearsal, task, &Placement::Host("here".into())).await.unwrap();
        sessions.push(last.map(|LastSession { session, job, .. }| (job, session.to_string())));
    }
    let stats = format!("{:?}", store.stats(StatsRange::default()).await.unwrap());
    HeldClaim { jobs, exchanges, sessions, stats }
}

fn remove_database(harness: &Harness) {
    for ending in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(harness.state().join(format!("switchboard.db{ending}")));
    }
}

fn recover(settings: &Settings) -> RecoveryReport {
    recover_store(&settings.state, &settings.store, false).unwrap()
}

async fn answer_task(harness: &Harness, service: &JobService, task: &str, script: &str) {
    let mut request = harness.request(script);
    request.task = Some(task.to_owned());
    request.expose_stream = true;
    request.idempotency_key = Some(format!("key of {task}"));
    answered(service, request).await;
}

fn rebuilt_store_equals_the_lost_one() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        answer_task(harness, &service, "answered", "say one\nanswer two").await;
        answer_task(harness, &service, "only tools", "tool Bash ls => a\nfail overloaded busy").await;
        answer_task(harness, &service, "refused", "fail auth logged out").await;
        let mut observing = harness.request("answer three");
        observing.call.mode = Mode::Observe;
        answered(&service, observing).await;
        let cancelled = service.submit(harness.request("hang")).await.unwrap().job;
        service.cancel(cancelled).await.unwrap();
        close(&service).await;
        drop(service);
        let before = held(harness).await;
        assert_eq!(before.jobs.len(), 5);
        assert_eq!(before.sessions.iter().flatten().count(), 2, "{:?}", before.sessions);
        remove_database(harness);
        let report = recover(&harness.settings());
        assert_eq!((report.ended, report.skipped.len()), (5, 0), "{report:?}");
        assert_eq!(held(harness).await, before);
    });
}

fn paused_job_is_recovered_with_its_pause() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let script = "say half\nfail rate-limit Too many requests, try again in 600 seconds";
        let job = service.submit(harness.request(script)).await.unwrap().job;
        eventually_async("the job is paused", async || {
            service.answer(job).await.unwrap().status == JobStatus::Paused
        })
        .await;
        close(&service).await;
        drop(service);
        let before = held(harness).await;
        remove_database(harness);
        assert_eq!(recover(&harness.settings()).waiting, 1);
        let after = held(harness).await;
        assert_eq!(after.jobs[0].progress, before.jobs[0].progress);
        let service = harness.open().await;
        assert_eq!(service.answer(job).await.unwrap().output, "half");
        service.cancel(job).await.unwrap();
        close(&service).await;
    });
}

fn running_call_is_recovered_and_adopted() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("say here\ndelay 1s\nanswer done")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        service.close(ShutdownMode::Detach).await;
        drop(service);
        remove_database(harness);
        let report = recover(&harness.settings());
        assert_eq!((report.running, report.skipped.len()), (1, 0), "{report:?}");
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"));
        assert_eq!(harness.runs(job).len(), 1, "the run goes on");
        close(&service).await;
    });
}

fn dropped_and_replaced_tables_are_recovered() {
    let damages = [
        "DROP TABLE agent_jobs",
        "DROP TABLE agent_workers",
        "ALTER TABLE agent_jobs RENAME TO other; CREATE TABLE agent_jobs (id BLOB)",
        "ALTER TABLE agent_jobs RENAME TO other; CREATE VIEW agent_jobs AS SELECT * FROM other",
    ];
    for damage in damages {
        Harness::run(async |harness| {
            let service = harness.open().await;
            let job = service.submit(harness.request("answer one")).await.unwrap().job;
            ended(&service, job).await;
            close(&service).await;
            drop(service);
            harness.database().execute_batch(damage).unwrap();
            let report = recover(&harness.settings());
            assert_eq!((report.ended, report.set_aside.is_some()), (1, true), "{damage}: {report:?}");
            let service = harness.open().await;
            assert_eq!(service.answer(job).await.unwrap().output, "one", "{damage}");
            close(&service).await;
        });
    }
}

fn missing_record_is_written_by_the_next_service() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("answer kept")).await;
        close(&service).await;
        let record = service.files(answer.job_id.parse().unwrap()).directory().join("record.json");
        let written = fs::read(&record).unwrap();
        for damage in ["removed", "emptied by a power cut"] {
            match damage {
                "removed" => fs::remove_file(&record).unwrap(),
                _ => fs::write(&record, "").unwrap(),
            }
            let service = harness.open().await;
            eventually_async("the record is written", async || {
                fs::read(&record).is_ok_and(|found| found == written)
            })
            .await;
            close(&service).await;
        }
    });
}

fn retention_applies_to_recovered_jobs() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        for _ in 0..3 {
            answered(&service, harness.request("answer one")).await;
        }
        close(&service).await;
        drop(service);
        let before = held(harness).await;
        remove_database(harness);
        recover(&harness.settings());
        let store = Store::open(harness.settings().store).await.unwrap();
        let retention = RetentionLimits { max_count: Some(1), max_age: None };
        let mut swept = store.sweep(retention).await.unwrap();
        swept.sort_unstable_by(|one, other| other.cmp(one));
        assert_eq!(swept, before.jobs[1..].iter().map(|job| job.id).collect::<Vec<_>>());
    });
}

fn recovered_key_yields_to_a_newer_job() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        answer_task(harness, &service, "answered", "answer one").await;
        close(&service).await;
        drop(service);
        // A fresh start, as the hint suggests; the directories are restored later.
        remove_database(harness);
        let (jobs, away) = (harness.state().join("jobs"), harness.state().join("away"));
        fs::rename(&jobs, &away).unwrap();
        let service = harness.open().await;
        answer_task(harness, &service, "answered", "answer two").await;
        close(&service).await;
        drop(service);
        for directory in fs::read_dir(&away).unwrap() {
            let directory = directory.unwrap();
            fs::rename(directory.path(), jobs.join(directory.file_name())).unwrap();
        }
        let report = recover(&harness.settings());
        assert_eq!((report.restored, report.unchanged), (1, 1), "{report:?}");
        let keys: Vec<_> =
            held(harness).await.jobs.into_iter().map(|job| job.order.idempotency_key).collect();
        assert_eq!(keys, [Some("key of answered".to_owned()), None], "the newest first");
    });
}
