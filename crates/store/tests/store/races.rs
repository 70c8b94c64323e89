//! Concurrent operations: no job is claimed twice, none is lost.

use std::collections::HashSet;
use std::env;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use model::{JobEnd, JobId, NewJob, StateName, TerminalState, TransitionError};
use store::{JobFilter, Store, StoreOptions, StoreSetting};
use tokio::task::JoinSet;

use crate::fixtures::{claimed, new_job, request, success};
use crate::harness::{EngineKind, Harness, block_on};

pub const CONFORMANCE: &[crate::Conformance] = &[
    ("thirty_two_workers_claim_every_job_once", |harness| {
        block_on(thirty_two_workers_claim_every_job_once(harness));
    }),
    ("cancel_racing_finish_has_one_winner", |harness| block_on(cancel_racing_finish_has_one_winner(harness))),
    ("cancel_racing_claim_has_one_winner", |harness| block_on(cancel_racing_claim_has_one_winner(harness))),
];

testkit::tests![two_processes_share_one_file];

const WORK: &str = "STORE_TEST_WORK";

/// Claims and finishes jobs until the queue is empty.
async fn work(store: Store, owner: String) -> Vec<JobId> {
    let mut done = Vec::new();
    while let Some(job) = store.claim(request(&owner)).await.unwrap() {
        assert_eq!(job.progress.attempt.number(), 1, "a second claim of the same job");
        store.finish(&job.claim().unwrap(), success("x")).await.unwrap();
        done.push(job.id);
    }
    done
}

/// Submits jobs with limited concurrency: on a busy machine the last of many requests to a server would time out.
async fn submit_all(store: &Store, count: usize) -> HashSet<JobId> {
    let mut submitting = JoinSet::new();
    for share in 0..32 {
        let store = store.clone();
        submitting.spawn(async move {
            let mut submitted = Vec::new();
            for _ in (share..count).step_by(32) {
                submitted.push(store.submit(new_job("race")).await.unwrap().job.id);
            }
            submitted
        });
    }
    submitting.join_all().await.into_iter().flatten().collect()
}

async fn thirty_two_workers_claim_every_job_once(harness: Harness) {
    let store = harness.open().await;
    let submitted = submit_all(&store, harness.scaled(2_000)).await;
    // On a server, eight workers share one of four connections, like the daemons of four machines.
    let mut stores = vec![store.clone()];
    if harness.engine == EngineKind::Surreal {
        stores.extend([harness.open().await, harness.open().await, harness.open().await]);
    }
    let mut workers = JoinSet::new();
    for worker in 0..32 {
        workers.spawn(work(stores[worker % stores.len()].clone(), format!("worker {worker}")));
    }
    let done = workers.join_all().await.concat();
    assert_eq!(done.len(), submitted.len(), "a job was claimed twice or lost");
    assert_eq!(done.into_iter().collect::<HashSet<_>>(), submitted);
    let left = JobFilter { states: vec![StateName::Queued, StateName::Running], ..JobFilter::default() };
    assert_eq!(store.count(&left).await.unwrap(), 0);
}

async fn cancel_racing_finish_has_one_winner(harness: Harness) {
    let store = harness.open().await;
    let mut orders = HashSet::new();
    for round in 0..harness.scaled(1_000) {
        store.submit(new_job("race")).await.unwrap();
        let (job, claim) = claimed(&store, "a").await;
        let late = claim.clone();
        let (finishing, cancelling) = (store.clone(), store.clone());
        // A cancellation that races with the result, on two threads with alternating order.
        let finish = async move { finishing.finish(&claim, success("done")).await };
        let cancel = async move { cancelling.request_cancel(job.id).await.unwrap() };
        let start = Arc::new(tokio::sync::Barrier::new(2));
        let (finished, reply) = if round % 2 == 0 {
            let (finished, reply) = (spawn_at_barrier(&start, finish), spawn_at_barrier(&start, cancel));
            (finished.await.unwrap(), reply.await.unwrap())
        } else {
            let (reply, finished) = (spawn_at_barrier(&start, cancel), spawn_at_barrier(&start, finish));
            (finished.await.unwrap(), reply.await.unwrap())
        };
        orders.insert(reply.now);
        finished.unwrap();
        let ended = store.get(job.id).await.unwrap().unwrap();
        assert_eq!(ended.progress.state.name(), StateName::Completed, "finished beats cancelled");
        assert!(matches!(reply.now, StateName::Running | StateName::Completed));
        let late = store.finish(&late, JobEnd::cancelled()).await.unwrap_err();
        assert_eq!(late.refusal(), Some(&TransitionError::Ended(TerminalState::Completed)));
    }
    // The timing of a server varies; with SQLite, a race that always has the same winner would prove nothing.
    assert!(!harness.engine.is_sqlite() || orders.len() == 2, "each came first at least once: {orders:?}");
}

/// Spawns a task that starts together with the others at the same barrier.
fn spawn_at_barrier<T: Send + 'static>(
    start: &Arc<tokio::sync::Barrier>,
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let start = start.clone();
    tokio::spawn(async move {
        start.wait().await;
        work.await
    })
}

async fn cancel_racing_claim_has_one_winner(harness: Harness) {
    let store = harness.open().await;
    let mut outcomes = HashSet::new();
    for round in 0..harness.scaled(1_000) {
        let job = store.submit(new_job("race")).await.unwrap().job.id;
        let (claiming, cancelling) = (store.clone(), store.clone());
        let claim = async move { claiming.claim(request("a")).await.unwrap() };
        let cancel = async move { cancelling.request_cancel(job).await.unwrap() };
        let start = Arc::new(tokio::sync::Barrier::new(2));
        let (claimed, reply) = if round % 2 == 0 {
            let (claimed, reply) = (spawn_at_barrier(&start, claim), spawn_at_barrier(&start, cancel));
            (claimed.await.unwrap(), reply.await.unwrap())
        } else {
            let (reply, claimed) = (spawn_at_barrier(&start, cancel), spawn_at_barrier(&start, claim));
            (claimed.await.unwrap(), reply.await.unwrap())
        };
        let now = store.get(job).await.unwrap().unwrap();
        match &claimed {
            // A cancelled job is never claimed, and a later request is visible to the owner.
            None => assert_eq!(
                (reply.now, now.progress.state.name()),
                (StateName::Cancelled, StateName::Cancelled)
            ),
            Some(held) => {
                assert_eq!((held.id, reply.now), (job, StateName::Running));
                assert!(now.progress.cancel_requested_at.is_some());
                store.finish(&held.claim().unwrap(), JobEnd::cancelled()).await.unwrap();
            }
        }
        outcomes.insert(claimed.is_some());
    }
    assert!(!harness.engine.is_sqlite() || outcomes.len() == 2, "each came first at least once");
}

fn options_for(path: PathBuf) -> StoreOptions {
    StoreOptions::new(StoreSetting::Sqlite { path: Some(path) }, "unused")
}

/// Runs the other process: submits its share, works until the queue is empty, and prints the finished jobs.
pub fn work_if_requested() -> Option<ExitCode> {
    let path = PathBuf::from(env::var_os(WORK)?);
    let done = block_on(async {
        let store = Store::open(options_for(path)).await.unwrap();
        // Both processes submit these keys; each becomes one job.
        for key in 0..50 {
            let keyed = NewJob { idempotency_key: Some(format!("key {key}")), ..new_job("shared") };
            store.submit(keyed).await.unwrap();
        }
        work(store, format!("process {}", std::process::id())).await
    });
    for id in done {
        stdout().write_all(format!("{id}\n").as_bytes()).unwrap();
    }
    Some(ExitCode::SUCCESS)
}

fn two_processes_share_one_file() {
    let harness = Harness::new(EngineKind::SqliteFile);
    let mut submitted = block_on(async { submit_all(&harness.open().await, 400).await });
    let children: Vec<_> = (0..2)
        .map(|_| {
            let mut command = Command::new(env::current_exe().unwrap());
            command.env(WORK, harness.file()).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut done = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        done.extend(
            String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse::<JobId>().unwrap()),
        );
    }
    assert_eq!(done.len(), 450, "a job was claimed twice or lost");
    for id in &done {
        submitted.insert(*id);
    }
    assert_eq!(submitted.len(), 450);
    block_on(async { harness.open().await.check().await.unwrap() });
}
