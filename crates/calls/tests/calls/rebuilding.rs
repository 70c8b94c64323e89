//! A store that is rebuilt from the job directories.

use std::fs;

use calls::{JobService, JobStatus, RecoveryReport, Settings, recover_store};
use model::{AgentKind, Exchange, Job, JobId, Mode, Placement};
use store::{JobFilter, LastSession, PageRequest, Retention, StatsRange, Store};

use crate::scene::{Scene, answered, close, eventually_async};
use crate::tests;

tests![
    rebuilt_store_holds_what_the_lost_one_held,
    paused_job_is_recovered_with_its_pause,
    missing_record_is_written_by_the_next_desk,
    retention_applies_to_recovered_jobs,
    recovered_key_yields_to_the_call_that_took_it,
];

const TASKS: [&str; 3] = ["answered", "only tools", "refused"];

/// All that a store says about its jobs.
#[derive(Debug, PartialEq)]
struct Held {
    jobs: Vec<Job>,
    exchanges: Vec<Option<Exchange>>,
    sessions: Vec<Option<(JobId, String)>>,
    stats: String,
}

async fn held(scene: &Scene) -> Held {
    let store = Store::open(scene.settings().store).await.unwrap();
    let page = store.list(&JobFilter::default(), PageRequest::default()).await.unwrap();
    let (mut jobs, mut exchanges, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for line in page.jobs {
        // The lease of an owner goes with its heartbeat.
        jobs.push(Job { lease: None, ..store.get(line.id).await.unwrap().unwrap() });
        exchanges.push(store.exchange(line.id).await.unwrap());
    }
    for task in TASKS {
        let last =
            store.last_session(AgentKind::Rehearsal, task, &Placement::Host("here".into())).await.unwrap();
        sessions.push(last.map(|LastSession { session, job, .. }| (job, session.to_string())));
    }
    let stats = format!("{:?}", store.stats(StatsRange::default()).await.unwrap());
    Held { jobs, exchanges, sessions, stats }
}

fn remove_database(scene: &Scene) {
    for ending in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(scene.state().join(format!("switchboard.db{ending}")));
    }
}

fn recover(settings: &Settings) -> RecoveryReport {
    recover_store(&settings.state, &settings.store, false).unwrap()
}

async fn answer_task(scene: &Scene, desk: &JobService, task: &str, script: &str) {
    let mut order = scene.order(script);
    order.task = Some(task.to_owned());
    order.expose_stream = true;
    order.idempotency_key = Some(format!("key of {task}"));
    answered(desk, order).await;
}

fn rebuilt_store_holds_what_the_lost_one_held() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        answer_task(scene, &desk, "answered", "say one\nanswer two").await;
        answer_task(scene, &desk, "only tools", "tool Bash ls => a\nfail overloaded busy").await;
        answer_task(scene, &desk, "refused", "fail auth logged out").await;
        let mut observing = scene.order("answer three");
        observing.call.mode = Mode::Observe;
        answered(&desk, observing).await;
        let cancelled = desk.submit(scene.order("hang")).await.unwrap().job;
        desk.cancel(cancelled).await.unwrap();
        close(&desk).await;
        drop(desk);
        let before = held(scene).await;
        assert_eq!(before.jobs.len(), 5);
        assert_eq!(before.sessions.iter().flatten().count(), 2, "{:?}", before.sessions);
        remove_database(scene);
        let report = recover(&scene.settings());
        assert_eq!((report.ended, report.skipped.len()), (5, 0), "{report:?}");
        assert_eq!(held(scene).await, before);
    });
}

fn paused_job_is_recovered_with_its_pause() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let script = "say half\nfail rate-limit Too many requests, try again in 600 seconds";
        let job = desk.submit(scene.order(script)).await.unwrap().job;
        eventually_async("the job is paused", async || {
            desk.answer(job).await.unwrap().status == JobStatus::Paused
        })
        .await;
        close(&desk).await;
        drop(desk);
        let before = held(scene).await;
        remove_database(scene);
        assert_eq!(recover(&scene.settings()).waiting, 1);
        let after = held(scene).await;
        assert_eq!(after.jobs[0].progress, before.jobs[0].progress);
        let desk = scene.open().await;
        assert_eq!(desk.answer(job).await.unwrap().output, "half");
        desk.cancel(job).await.unwrap();
        close(&desk).await;
    });
}

fn missing_record_is_written_by_the_next_desk() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order("answer kept")).await;
        close(&desk).await;
        let record = desk.files(answer.job_id.parse().unwrap()).directory().join("record.json");
        let written = fs::read(&record).unwrap();
        for damage in ["removed", "emptied by a power cut"] {
            match damage {
                "removed" => fs::remove_file(&record).unwrap(),
                _ => fs::write(&record, "").unwrap(),
            }
            let desk = scene.open().await;
            eventually_async("the record is written", async || {
                fs::read(&record).is_ok_and(|found| found == written)
            })
            .await;
            close(&desk).await;
        }
    });
}

fn retention_applies_to_recovered_jobs() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        for _ in 0..3 {
            answered(&desk, scene.order("answer one")).await;
        }
        close(&desk).await;
        drop(desk);
        let before = held(scene).await;
        remove_database(scene);
        recover(&scene.settings());
        let store = Store::open(scene.settings().store).await.unwrap();
        let retention = Retention { max_count: Some(1), max_age: None };
        let mut swept = store.sweep(retention).await.unwrap();
        swept.sort_unstable_by(|one, other| other.cmp(one));
        assert_eq!(swept, before.jobs[1..].iter().map(|job| job.id).collect::<Vec<_>>());
    });
}

fn recovered_key_yields_to_the_call_that_took_it() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        answer_task(scene, &desk, "answered", "answer one").await;
        close(&desk).await;
        drop(desk);
        // A start afresh, as the hint for it says, and the directories put back later.
        remove_database(scene);
        let (jobs, away) = (scene.state().join("jobs"), scene.state().join("away"));
        fs::rename(&jobs, &away).unwrap();
        let desk = scene.open().await;
        answer_task(scene, &desk, "answered", "answer two").await;
        close(&desk).await;
        drop(desk);
        for directory in fs::read_dir(&away).unwrap() {
            let directory = directory.unwrap();
            fs::rename(directory.path(), jobs.join(directory.file_name())).unwrap();
        }
        let report = recover(&scene.settings());
        assert_eq!((report.restored, report.unchanged), (1, 1), "{report:?}");
        let keys: Vec<_> = held(scene).await.jobs.into_iter().map(|job| job.order.idempotency_key).collect();
        assert_eq!(keys, [Some("key of answered".to_owned()), None], "the newest first");
    });
}
