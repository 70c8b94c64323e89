//! Server faults: kill, lost connections, downtime.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use model::{JobId, NewJob, Owner, StateName};
use store::{Certainty, Credentials, JobFilter, Opening, Redactor, Setting, Store, StoreError, WatchEvent};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::bed::block_on;
use crate::calls::{LEASE, order, request, success};
use crate::server::{Server, credentials, setting_at};
use crate::way::Way;

crate::tests![
    a_server_killed_in_mid_claim_loses_nothing,
    a_cut_connection_is_survived_or_told,
    a_watcher_goes_on_after_a_restart,
    a_server_that_is_not_there_is_said_to_be,
    a_wrong_password_is_refused_and_not_repeated,
    a_database_of_a_newer_version_is_refused,
];

async fn open(setting: Setting) -> Result<Store, StoreError> {
    let opening = Opening::new(setting, "unused");
    Store::open(Opening { credentials: Some(credentials()), redactor: Redactor::none(), ..opening }).await
}

/// The confirmed operations of a worker.
#[derive(Default)]
struct Answers {
    claimed: Vec<JobId>,
    finished: Vec<JobId>,
}

/// Works until the queue is empty. Retries failures with the next job, like a daemon.
async fn work(store: Store, owner: String, answers: Arc<Mutex<Answers>>) {
    loop {
        match store.claim(request(&owner)).await {
            Ok(Some(job)) => {
                answers.lock().await.claimed.push(job.id);
                let claim = job.claim().unwrap();
                // Retry an unconfirmed finish: the second one is accepted, or rejected as too late.
                for _ in 0..20 {
                    match store.finish(&claim, success("x")).await {
                        Ok(_) => {
                            answers.lock().await.finished.push(job.id);
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

fn a_server_killed_in_mid_claim_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(&format!("surrealkv:{}", folder.path().join("db").display()));
    block_on(async {
        let store = open(server.setting("kill")).await.unwrap();
        let mut placed = HashSet::new();
        for _ in 0..120 {
            placed.insert(store.submit(order("x")).await.unwrap().job.id);
        }
        let answers = Arc::new(Mutex::new(Answers::default()));
        let mut workers = JoinSet::new();
        for worker in 0..4 {
            let own = open(server.setting("kill")).await.unwrap();
            workers.spawn(work(own, format!("worker {worker}"), answers.clone()));
        }
        for enough in [10, 40, 70] {
            while answers.lock().await.claimed.len() < enough && !workers.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            server.kill();
            server.start_again();
        }
        workers.join_all().await;

        let answers = answers.lock().await;
        let claimed: HashSet<_> = answers.claimed.iter().copied().collect();
        assert_eq!(claimed.len(), answers.claimed.len(), "a job was given twice");
        let store = open(server.setting("kill")).await.unwrap();
        assert_eq!(store.count(&JobFilter::default()).await.unwrap(), placed.len() as u64);
        for id in &answers.finished {
            let job = store.get(*id).await.unwrap().unwrap();
            assert_eq!(job.progress.state.name(), StateName::Completed, "{id} was said to be");
        }
        let mut unknown = HashSet::new();
        for worker in 0..4 {
            let owner = Owner::new(format!("worker {worker}"));
            unknown.extend(store.renew(&owner, LEASE).await.unwrap().into_iter().map(|held| held.claim.job));
        }
        let done = JobFilter { states: vec![StateName::Completed], ..JobFilter::default() };
        let done = usize::try_from(store.count(&done).await.unwrap()).unwrap();
        assert_eq!(done + unknown.len(), placed.len(), "a heartbeat shows every claim whose answer was lost");
    });
}

fn a_cut_connection_is_survived_or_told() {
    let server = Server::start("memory");
    block_on(async {
        let way = Way::to(server.port).await;
        let store = open(setting_at(way.port, "cut")).await.unwrap();
        let direct = open(server.setting("cut")).await.unwrap();
        for round in 0..12 {
            let keyed = || NewJob { idempotency_key: Some(format!("key {round}")), ..order("x") };
            let cutting = async {
                tokio::time::sleep(Duration::from_millis(round % 4)).await;
                way.cut().await;
            };
            let (placed, ()) = tokio::join!(store.submit(keyed()), cutting);
            match placed {
                Ok(placed) => {
                    assert!(direct.get(placed.job.id).await.unwrap().is_some(), "it was said to be");
                }
                Err(error) => assert_eq!(error.certainty(), Certainty::Unknown, "{error:?}"),
            }
            // A retry with the key yields one job, whatever the first outcome was.
            let again = store.submit(keyed()).await.unwrap().job;
            let (_, claim) = crate::calls::claimed(&store, "a").await;
            let (finished, ()) = tokio::join!(store.finish(&claim, success("x")), way.cut());
            let now = direct.get(again.id).await.unwrap().unwrap().progress.state.name();
            assert!(finished.is_err() || now == StateName::Completed);
            if now != StateName::Completed {
                store.finish(&claim, success("x")).await.unwrap();
            }
        }
        assert_eq!(direct.count(&JobFilter::default()).await.unwrap(), 12);
    });
}

fn a_watcher_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(&format!("surrealkv:{}", folder.path().join("db").display()));
    block_on(async {
        let store = open(server.setting("watch")).await.unwrap();
        let mut watch = store.watch().await.unwrap();
        let first = store.submit(order("x")).await.unwrap().job.id;
        wait_for(&mut watch, |event| matches!(event, WatchEvent::Changed(change) if change.job == first))
            .await;
        server.kill();
        server.start_again();
        let second = store.submit(order("y")).await.unwrap().job.id;
        wait_for(&mut watch, |event| matches!(event, WatchEvent::Missed)).await;
        let third = store.submit(order("z")).await.unwrap().job.id;
        assert_ne!(second, third);
        wait_for(&mut watch, |event| matches!(event, WatchEvent::Changed(change) if change.job == third))
            .await;
    });
}

async fn wait_for(watch: &mut store::Watch, wanted: impl Fn(&WatchEvent) -> bool) {
    let waiting = async { while !wanted(&watch.next().await.expect("the watch to go on")) {} };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("the event in time");
}

fn a_server_that_is_not_there_is_said_to_be() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let error = block_on(open(setting_at(port, "nobody"))).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert_eq!(error.certainty(), Certainty::NotDone);
}

fn a_wrong_password_is_refused_and_not_repeated() {
    let server = Server::start("memory");
    let wrong = Credentials { password: "hunter2".into(), ..credentials() };
    let opening = Opening::new(server.setting("locked"), "unused");
    let error = block_on(Store::open(Opening { credentials: Some(wrong), ..opening.clone() })).unwrap_err();
    assert!(matches!(error, StoreError::NotAllowed { .. }), "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"));
    let nobody = block_on(Store::open(opening)).unwrap_err();
    assert!(matches!(nobody, StoreError::NotAllowed { .. }), "{nobody:?}");
}

#[cfg(feature = "surreal")]
fn a_database_of_a_newer_version_is_refused() {
    let server = Server::start("memory");
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
fn a_database_of_a_newer_version_is_refused() {}
