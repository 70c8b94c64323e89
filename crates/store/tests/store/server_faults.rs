//! Server faults: kill, lost connections, downtime.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use model::{JobId, NewJob, Owner, StateName};
use store::{
    Certainty, Credentials, JobFilter, Redactor, Store, StoreError, StoreOptions, StoreSetting, WatchEvent,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::fixtures::{LEASE, new_job, request, success};
use crate::harness::block_on;
use crate::proxy::FaultyProxy;
use crate::server::{SurrealServer, credentials, setting_at};

testkit::tests![
    server_kill_during_claims_loses_no_job,
    lost_connection_is_retried_or_reported,
    watch_resumes_after_server_restart,
    unreachable_server_is_reported,
    wrong_password_is_rejected_without_echo,
    newer_database_is_rejected,
];

async fn open(setting: StoreSetting) -> Result<Store, StoreError> {
    let options = StoreOptions::new(setting, "unused");
    Store::open(StoreOptions { credentials: Some(credentials()), redactor: Redactor::none(), ..options })
        .await
}

/// The confirmed operations of a worker.
#[derive(Default)]
struct Confirmed {
    claimed: Vec<JobId>,
    finished: Vec<JobId>,
}

/// Works until the queue is empty. Retries failures with the next job, like a daemon.
async fn work(store: Store, owner: String, confirmed: Arc<Mutex<Confirmed>>) {
    loop {
        match store.claim(request(&owner)).await {
            Ok(Some(job)) => {
                confirmed.lock().await.claimed.push(job.id);
                let claim = job.claim().unwrap();
                // Retry an unconfirmed finish: the second one is accepted, or rejected as too late.
                for _ in 0..20 {
                    match store.finish(&claim, success("x")).await {
                        Ok(_) => {
                            confirmed.lock().await.finished.push(job.id);
                            break;
                        }
                        Err(StoreError::Refused { .. }) => break,
                        Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                    }
                }
            }
            Ok(None) => return,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn server_kill_during_claims_loses_no_job() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = SurrealServer::start(&format!("surrealkv:{}", directory.path().join("db").display()));
    block_on(async {
        let store = open(server.setting("kill")).await.unwrap();
        let mut submitted = HashSet::new();
        for _ in 0..120 {
            submitted.insert(store.submit(new_job("x")).await.unwrap().job.id);
        }
        let confirmed = Arc::new(Mutex::new(Confirmed::default()));
        let mut workers = JoinSet::new();
        for worker in 0..4 {
            let own = open(server.setting("kill")).await.unwrap();
            workers.spawn(work(own, format!("worker {worker}"), confirmed.clone()));
        }
        for enough in [10, 40, 70] {
            while confirmed.lock().await.claimed.len() < enough && !workers.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            server.kill();
            server.restart();
        }
        workers.join_all().await;

        let confirmed = confirmed.lock().await;
        let claimed: HashSet<_> = confirmed.claimed.iter().copied().collect();
        assert_eq!(claimed.len(), confirmed.claimed.len(), "a job was claimed twice");
        let store = open(server.setting("kill")).await.unwrap();
        assert_eq!(store.count(&JobFilter::default()).await.unwrap(), submitted.len() as u64);
        for id in &confirmed.finished {
            let job = store.get(*id).await.unwrap().unwrap();
            assert_eq!(job.progress.state.name(), StateName::Completed, "{id} was confirmed");
        }
        let mut unknown = HashSet::new();
        for worker in 0..4 {
            let owner = Owner::new(format!("worker {worker}"));
            unknown.extend(store.renew(&owner, LEASE).await.unwrap().into_iter().map(|held| held.claim.job));
        }
        let done = JobFilter { states: vec![StateName::Completed], ..JobFilter::default() };
        let done = usize::try_from(store.count(&done).await.unwrap()).unwrap();
        assert_eq!(done + unknown.len(), submitted.len(), "the heartbeat lists every claim without a reply");
    });
}

fn lost_connection_is_retried_or_reported() {
    let server = SurrealServer::start("memory");
    block_on(async {
        let proxy = FaultyProxy::start(server.port).await;
        let store = open(setting_at(proxy.port, "cut")).await.unwrap();
        let direct = open(server.setting("cut")).await.unwrap();
        for round in 0..12 {
            let keyed = || NewJob { idempotency_key: Some(format!("key {round}")), ..new_job("x") };
            let cutting = async {
                tokio::time::sleep(Duration::from_millis(round % 4)).await;
                proxy.disconnect().await;
            };
            let (submitted, ()) = tokio::join!(store.submit(keyed()), cutting);
            match submitted {
                Ok(submitted) => {
                    assert!(direct.get(submitted.job.id).await.unwrap().is_some(), "it was confirmed");
                }
                Err(error) => assert_eq!(error.certainty(), Certainty::Unknown, "{error:?}"),
            }
            // A retry with the key yields one job, whatever the first outcome was.
            let again = store.submit(keyed()).await.unwrap().job;
            let (_, claim) = crate::fixtures::claimed(&store, "a").await;
            let (finished, ()) = tokio::join!(store.finish(&claim, success("x")), proxy.disconnect());
            let now = direct.get(again.id).await.unwrap().unwrap().progress.state.name();
            assert!(finished.is_err() || now == StateName::Completed);
            if now != StateName::Completed {
                store.finish(&claim, success("x")).await.unwrap();
            }
        }
        assert_eq!(direct.count(&JobFilter::default()).await.unwrap(), 12);
    });
}

fn watch_resumes_after_server_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = SurrealServer::start(&format!("surrealkv:{}", directory.path().join("db").display()));
    block_on(async {
        let store = open(server.setting("watch")).await.unwrap();
        let mut watch = store.watch().await.unwrap();
        let first = store.submit(new_job("x")).await.unwrap().job.id;
        wait_for(&mut watch, |event| matches!(event, WatchEvent::Changed(change) if change.job == first))
            .await;
        server.kill();
        server.restart();
        let second = store.submit(new_job("y")).await.unwrap().job.id;
        wait_for(&mut watch, |event| matches!(event, WatchEvent::Missed)).await;
        let third = store.submit(new_job("z")).await.unwrap().job.id;
        assert_ne!(second, third);
        wait_for(&mut watch, |event| matches!(event, WatchEvent::Changed(change) if change.job == third))
            .await;
    });
}

async fn wait_for(watch: &mut store::ChangeStream, wanted: impl Fn(&WatchEvent) -> bool) {
    let waiting = async { while !wanted(&watch.next().await.expect("the watch to continue")) {} };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("the event in time");
}

fn unreachable_server_is_reported() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let error = block_on(open(setting_at(port, "nobody"))).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert_eq!(error.certainty(), Certainty::NotDone);
}

fn wrong_password_is_rejected_without_echo() {
    let server = SurrealServer::start("memory");
    let wrong = Credentials { password: "hunter2".into(), ..credentials() };
    let options = StoreOptions::new(server.setting("locked"), "unused");
    let error =
        block_on(Store::open(StoreOptions { credentials: Some(wrong), ..options.clone() })).unwrap_err();
    assert!(matches!(error, StoreError::Unauthorized { .. }), "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"));
    let anonymous = block_on(Store::open(options)).unwrap_err();
    assert!(matches!(anonymous, StoreError::Unauthorized { .. }), "{anonymous:?}");
}

#[cfg(feature = "surreal")]
fn newer_database_is_rejected() {
    let server = SurrealServer::start("memory");
    block_on(async {
        drop(open(server.setting("newer")).await.unwrap());
        let raw = surrealdb::engine::any::connect(format!("ws://127.0.0.1:{}", server.port)).await.unwrap();
        let root = surrealdb::opt::auth::Root { username: "root".into(), password: "root".into() };
        raw.signin(root).await.unwrap();
        raw.use_ns("test").use_db("newer").await.unwrap();
        raw.query("UPDATE switchboard:schema SET version = 99").await.unwrap().check().unwrap();
        let error = open(server.setting("newer")).await.unwrap_err();
        assert!(matches!(error, StoreError::NewerVersion { found: 99, known: 2, .. }), "{error:?}");
    });
}

/// Does nothing: without the engine the suite is skipped.
#[cfg(not(feature = "surreal"))]
fn newer_database_is_rejected() {}
