//! Lost requests and replies of a real server: each write is reported correctly, or as unconfirmed.

use std::time::Duration;

use model::{Claim, Job, JobId, NewJob, Owner, StateName, TerminalState, TransitionError};
use store::{
    Certainty, JobFilter, ManualClock, PageRequest, Redactor, RetentionLimits, StatsRange, Store, StoreError,
    StoreOptions,
};
use surrealdb::Surreal;
use surrealdb::engine::any::Any;
use surrealdb::opt::auth::Root;
use surrealdb::types::{SurrealValue, Value};

use crate::fixtures::{LEASE, claimed, new_job, request, rescue_by, success};
use crate::harness::block_on;
use crate::proxy::{EVERY, FaultyProxy, ProxyFault};
use crate::server::{SurrealServer, credentials, setting_at};

testkit::tests![
    submit_without_reply_is_never_reported_as_failed,
    claim_without_reply_is_listed_by_heartbeat,
    finish_without_reply_is_applied_once,
    cancel_without_reply_is_never_reported_as_failed,
    rescue_without_reply_is_listed_by_heartbeat,
    late_request_changes_nothing,
    unconfirmed_claim_of_dead_owner_is_rescued,
    sweep_without_reply_reports_unconfirmed_jobs,
    dropped_claim_is_released_on_server,
    unreadable_record_does_not_block_others_on_server,
    overflowing_stats_saturate_on_server,
    migration_scopes_keys_to_homes_on_server,
    sweep_failing_at_owners_reports_removed_jobs,
    migration_does_not_downgrade_newer_database,
];

/// A part of the query that writes a step.
const STEP: &str = "MERGE $patch";
const SUBMIT: &str = "INSERT IGNORE";
const SWEEP: &str = "DELETE agent_exchanges";

const CASES: [(ProxyFault, usize); 4] = [
    (ProxyFault::BeforeRequest, 1),
    (ProxyFault::BeforeReply, 1),
    (ProxyFault::BeforeRequest, EVERY),
    (ProxyFault::BeforeReply, EVERY),
];

/// A server with two connections: one through a faulty proxy, one direct.
struct ServerHarness {
    server: SurrealServer,
    proxy: FaultyProxy,
    clock: ManualClock,
    store: Store,
    direct: Store,
}

impl ServerHarness {
    async fn new() -> Self {
        let server = SurrealServer::start("memory");
        let proxy = FaultyProxy::start(server.port).await;
        let clock = ManualClock::at(model::Timestamp::from_millis(1_800_000_000_000));
        let (store, direct) = (open(proxy.port, &clock).await, open(server.port, &clock).await);
        Self { server, proxy, clock, store, direct }
    }

    async fn state(&self, job: JobId) -> StateName {
        self.direct.get(job).await.unwrap().unwrap().progress.state.name()
    }

    /// Connects to the database directly, for queries that the store does not offer.
    async fn raw(&self) -> Surreal<Any> {
        let raw =
            surrealdb::engine::any::connect(format!("ws://127.0.0.1:{}", self.server.port)).await.unwrap();
        raw.signin(Root { username: "root".into(), password: "root".into() }).await.unwrap();
        raw.use_ns("test").use_db("doubts").await.unwrap();
        raw
    }

    async fn exchanges_of(&self, job: JobId) -> usize {
        let query = "SELECT VALUE job FROM agent_exchanges WHERE job = $job";
        let mut reply = self.raw().await.query(query).bind(("job", job.to_string())).await.unwrap();
        reply.take::<Vec<String>>(0).unwrap().len()
    }

    /// Waits until a job is in a state.
    async fn wait_for_state(&self, job: JobId, state: StateName) -> Job {
        let polling = async {
            loop {
                let found = self.direct.get(job).await.unwrap().unwrap();
                if found.progress.state.name() == state {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), polling).await.expect("the state in time")
    }
}

async fn open(port: u16, clock: &ManualClock) -> Store {
    let options = StoreOptions::new(setting_at(port, "doubts"), "unused");
    let options = StoreOptions {
        credentials: Some(credentials()),
        redactor: Redactor::none(),
        clock: clock.clock(),
        ..options
    };
    Store::open(options).await.unwrap()
}

/// Asserts that the outcome of the write is unknown.
fn assert_unconfirmed(error: &StoreError) {
    assert_eq!(error.certainty(), Certainty::Unknown, "{error:?}");
}

fn submit_without_reply_is_never_reported_as_failed() {
    block_on(async {
        let harness = ServerHarness::new().await;
        for (round, (fault, times)) in (1..).zip(CASES) {
            let keyed = || NewJob { idempotency_key: Some(format!("key {round}")), ..new_job("x") };
            harness.proxy.fail(SUBMIT, fault, times);
            let submitted = harness.store.submit(keyed()).await;
            assert!(harness.proxy.stop_failing() > 0);
            let known = match submitted {
                Ok(submitted) => Some(submitted.job.id),
                Err(StoreError::Unconfirmed { job, .. }) => {
                    assert_eq!(times, EVERY, "one loss is repaired by a retry");
                    let found = harness.direct.get(job.unwrap()).await.unwrap();
                    assert_eq!(found.is_some(), fault == ProxyFault::BeforeReply, "the error names the job");
                    found.map(|job| job.id)
                }
                Err(error) => panic!("{fault:?} {times}: {error:?}"),
            };
            let again = harness.store.submit(keyed()).await.unwrap();
            assert_eq!(again.is_new, known.is_none());
            assert!(known.is_none_or(|known| known == again.job.id));
            assert_eq!(harness.direct.count(&JobFilter::default()).await.unwrap(), round);
        }
    });
}

fn claim_without_reply_is_listed_by_heartbeat() {
    block_on(async {
        let harness = ServerHarness::new().await;
        for (fault, times) in CASES {
            let id = harness.direct.submit(new_job("x")).await.unwrap().job.id;
            harness.proxy.fail(STEP, fault, times);
            let reply = harness.store.claim(request("a")).await;
            assert!(harness.proxy.stop_failing() > 0);
            match reply {
                Ok(job) => assert_eq!(job.expect("the job that waits").id, id),
                Err(error) => {
                    assert_unconfirmed(&error);
                    assert_eq!(
                        (fault, times),
                        (ProxyFault::BeforeRequest, EVERY),
                        "the other cases are resolved by a read"
                    );
                }
            }
            let held = harness.store.renew(&Owner::new("a"), LEASE).await.unwrap();
            let claim = match held.as_slice() {
                [] => claimed(&harness.store, "a").await.1,
                [held] => held.claim.clone(),
                several => panic!("{several:?}"),
            };
            assert_eq!((claim.job, claim.attempt.number()), (id, 1), "once, and not lost");
            harness.store.finish(&claim, success("x")).await.unwrap();
        }
    });
}

fn finish_without_reply_is_applied_once() {
    block_on(async {
        let harness = ServerHarness::new().await;
        for (fault, times) in CASES {
            harness.direct.submit(new_job("x")).await.unwrap();
            let (job, claim) = claimed(&harness.direct, "a").await;
            harness.proxy.fail(STEP, fault, times);
            let finished = harness.store.finish(&claim, success("done")).await;
            assert!(harness.proxy.stop_failing() > 0);
            if let Err(error) = finished {
                assert_unconfirmed(&error);
                assert_eq!((fault, times), (ProxyFault::BeforeRequest, EVERY));
                harness.store.finish(&claim, success("done")).await.unwrap();
            }
            let late = harness.store.finish(&claim, success("again")).await.unwrap_err();
            assert_eq!(late.refusal(), Some(&TransitionError::Ended(TerminalState::Completed)));
            assert_eq!(harness.state(job.id).await, StateName::Completed);
            assert_eq!(harness.direct.exchange(job.id).await.unwrap().unwrap().said.response, "done");
            assert_eq!(harness.exchanges_of(job.id).await, 1);
        }
    });
}

fn cancel_without_reply_is_never_reported_as_failed() {
    block_on(async {
        let harness = ServerHarness::new().await;
        for (fault, times) in CASES {
            for (runs, after) in [(false, StateName::Cancelled), (true, StateName::Running)] {
                let id = harness.direct.submit(new_job("x")).await.unwrap().job.id;
                let claim = if runs { Some(claimed(&harness.direct, "a").await.1) } else { None };
                harness.proxy.fail(STEP, fault, times);
                let reply = harness.store.request_cancel(id).await;
                assert!(harness.proxy.stop_failing() > 0);
                match reply {
                    Ok(reply) => assert_eq!(reply.now, after),
                    Err(error) => {
                        assert_unconfirmed(&error);
                        assert_eq!((fault, times), (ProxyFault::BeforeRequest, EVERY));
                        assert_eq!(harness.store.request_cancel(id).await.unwrap().now, after);
                    }
                }
                let job = harness.direct.get(id).await.unwrap().unwrap();
                assert_eq!(job.progress.state.name(), after);
                assert!(job.progress.cancel_requested_at.is_some());
                if let Some(claim) = claim {
                    harness.direct.finish(&claim, success("x")).await.unwrap();
                }
            }
        }
    });
}

fn rescue_without_reply_is_listed_by_heartbeat() {
    block_on(async {
        let harness = ServerHarness::new().await;
        for (fault, times) in CASES {
            let id = harness.direct.submit(new_job("x")).await.unwrap().job.id;
            claimed(&harness.direct, "dead").await;
            harness.clock.advance(LEASE * 2);
            harness.proxy.fail(STEP, fault, times);
            let rescued = harness.store.rescue(rescue_by("b")).await;
            assert!(harness.proxy.stop_failing() > 0);
            match rescued {
                Ok(jobs) => assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id]),
                Err(error) => {
                    assert_unconfirmed(&error);
                    assert_eq!((fault, times), (ProxyFault::BeforeRequest, EVERY));
                    assert_eq!(harness.store.rescue(rescue_by("b")).await.unwrap().len(), 1);
                }
            }
            let held = harness.store.renew(&Owner::new("b"), LEASE).await.unwrap();
            assert_eq!(held.iter().map(|held| held.claim.job).collect::<Vec<_>>(), [id]);
            harness.store.finish(&held[0].claim, success("x")).await.unwrap();
        }
    });
}

fn late_request_changes_nothing() {
    block_on(async {
        let harness = ServerHarness::new().await;
        let delay = |text| harness.proxy.fail(text, ProxyFault::Late, 1);

        delay(SUBMIT);
        let submitted = harness.store.submit(new_job("x")).await.unwrap().job.id;
        let (job, claim) = claimed(&harness.direct, "a").await;
        assert_eq!(job.id, submitted);
        harness.proxy.release().await;
        assert_eq!(harness.direct.get(submitted).await.unwrap().unwrap(), job, "it is not queued again");
        assert_eq!(harness.direct.count(&JobFilter::default()).await.unwrap(), 1);

        delay(STEP);
        harness.store.finish(&claim, success("done")).await.unwrap();
        let ended = harness.direct.get(submitted).await.unwrap();
        harness.proxy.release().await;
        assert_eq!(harness.direct.get(submitted).await.unwrap(), ended);
        assert_eq!(harness.exchanges_of(submitted).await, 1);

        harness.direct.submit(new_job("y")).await.unwrap();
        delay(STEP);
        let (job, claim) = claimed(&harness.store, "b").await;
        harness.proxy.release().await;
        assert_eq!(harness.direct.get(job.id).await.unwrap().unwrap(), job);
        assert_eq!(harness.store.renew(&Owner::new("b"), LEASE).await.unwrap()[0].claim, claim);

        delay(STEP);
        harness.store.request_cancel(job.id).await.unwrap();
        harness.direct.finish(&claim, success("first")).await.unwrap();
        harness.proxy.release().await;
        assert_eq!(
            harness.state(job.id).await,
            StateName::Completed,
            "a late cancellation does not change a terminal state"
        );
    });
}

fn unconfirmed_claim_of_dead_owner_is_rescued() {
    block_on(async {
        let harness = ServerHarness::new().await;
        let id = harness.direct.submit(new_job("x")).await.unwrap().job.id;
        harness.proxy.fail(STEP, ProxyFault::BeforeReply, 1);
        let claiming = tokio::spawn({
            let store = harness.store.clone();
            async move { store.claim(request("dead")).await }
        });
        // Block new connections until another write has followed the claim.
        harness.proxy.set_open(false);
        harness.proxy.met().await;
        assert_eq!(harness.state(id).await, StateName::Running);
        harness.clock.advance(LEASE * 2);
        let rescued = harness.direct.rescue(rescue_by("b")).await.unwrap();
        assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [id]);
        harness.proxy.set_open(true);
        assert_unconfirmed(&claiming.await.unwrap().unwrap_err());
        let claim: Claim = rescued[0].claim().unwrap();
        assert_eq!(harness.direct.requeue(&claim).await.unwrap().name(), StateName::Queued);
    });
}

fn sweep_without_reply_reports_unconfirmed_jobs() {
    block_on(async {
        let harness = ServerHarness::new().await;
        let all = RetentionLimits { max_age: None, max_count: Some(0) };
        for (fault, times) in CASES {
            let id = harness.direct.submit(new_job("x")).await.unwrap().job.id;
            harness.direct.request_cancel(id).await.unwrap();
            harness.proxy.fail(SWEEP, fault, times);
            let swept = harness.store.sweep(all).await;
            assert!(harness.proxy.stop_failing() > 0);
            match swept {
                Ok(removed) => assert_eq!(removed, [id]),
                Err(error) => {
                    assert_eq!(times, EVERY);
                    assert_unconfirmed(&error.source);
                    assert_eq!(
                        (error.removed.as_slice(), error.unconfirmed.as_slice()),
                        ([].as_slice(), [id].as_slice())
                    );
                    let found = harness.direct.get(id).await.unwrap().is_some();
                    assert_eq!(found, fault == ProxyFault::BeforeRequest);
                    assert_eq!(harness.direct.sweep(all).await.unwrap().len(), usize::from(found));
                }
            }
        }
    });
}

fn dropped_claim_is_released_on_server() {
    block_on(async {
        let harness = ServerHarness::new().await;
        for is_replied in [false, true] {
            let id = harness.direct.submit(new_job("x")).await.unwrap().job.id;
            harness.proxy.fail(STEP, ProxyFault::HeldReply, 1);
            let mut claiming = Box::pin(harness.store.claim(request("gone")));
            tokio::select! {
                reply = &mut claiming => panic!("{reply:?}"),
                () = harness.proxy.met() => {}
            }
            assert_eq!(harness.state(id).await, StateName::Running);
            if is_replied {
                harness.proxy.release().await;
                // It gets the lock after the first reply was sent, which no caller receives.
                assert_eq!(harness.store.claim(request("b")).await.unwrap(), None);
                drop(claiming);
            } else {
                drop(claiming);
                harness.proxy.release().await;
            }
            let back = harness.wait_for_state(id, StateName::Queued).await;
            assert_eq!((back.started_at, back.progress.requeues), (None, 0));
            let (job, claim) = claimed(&harness.store, "b").await;
            assert_eq!(job.id, id);
            harness.store.finish(&claim, success("x")).await.unwrap();
        }
    });
}

fn unreadable_record_does_not_block_others_on_server() {
    block_on(async {
        let harness = ServerHarness::new().await;
        let (store, raw) = (&harness.store, harness.raw().await);
        let mut jobs = Vec::new();
        for _ in 0..9 {
            jobs.push(store.submit(new_job("x")).await.unwrap().job.id);
        }
        let corrupt = async |assignment: &str, job: JobId| {
            let query = format!("UPDATE agent_jobs SET {assignment} WHERE placed = $placed RETURN VALUE id");
            let mut reply = raw.query(query).bind(("placed", job.to_string())).await.unwrap();
            assert_eq!(reply.take::<Vec<Value>>(0).unwrap().len(), 1, "{assignment}");
        };
        // Records with an invalid field, summary or state are skipped.
        corrupt("call = 'no JSON'", jobs[0]).await;
        corrupt("attempt = 'three'", jobs[1]).await;
        corrupt("state = 'confused'", jobs[2]).await;
        corrupt("state = 'paused', queue = NONE, paused_until = 1, cwd = 5", jobs[3]).await;
        for expected in [4, 5, 6] {
            assert_eq!(claimed(store, "a").await.0.id, jobs[expected]);
        }
        // A rescue skips them, and the heartbeat continues.
        corrupt("call = '{'", jobs[4]).await;
        corrupt("home = 7", jobs[5]).await;
        assert_eq!(store.renew(&Owner::new("a"), LEASE).await.unwrap().len(), 2);
        harness.clock.advance(LEASE * 2);
        let rescued = store.rescue(rescue_by("b")).await.unwrap();
        assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[6]]);
        for unreadable_job in [1, 3, 5] {
            let error = store.get(jobs[unreadable_job]).await.unwrap_err();
            assert!(error.to_string().contains(&jobs[unreadable_job].to_string()), "{error}");
        }

        let two = PageRequest { limit: 2, before: None };
        let (mut readable, mut unreadable, mut next) = (Vec::new(), Vec::new(), None);
        loop {
            let page = store.list(&JobFilter::default(), PageRequest { before: next, ..two }).await.unwrap();
            readable.extend(page.jobs.iter().map(|job| (job.id, job.state)));
            unreadable.extend(page.unreadable);
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        let (failed, queued) = (StateName::Failed, StateName::Queued);
        let states =
            [(8, queued), (7, queued), (6, StateName::Interrupted), (4, failed), (2, failed), (0, failed)];
        assert_eq!(readable, states.map(|(job, state)| (jobs[job], state)));
        assert_eq!(unreadable, [5, 3, 1].map(|job| jobs[job]));
        assert_eq!(claimed(store, "c").await.0.id, jobs[7]);

        // They are excluded from the sums, and retention removes them like any other.
        corrupt("state = 'confused'", jobs[0]).await;
        corrupt("agent = 9", jobs[2]).await;
        let sums = store.stats(StatsRange::default()).await.unwrap();
        assert_eq!(sums.ended.iter().map(|row| row.jobs).sum::<u64>(), 4);
        corrupt("placed = 3", jobs[4]).await;
        let all = RetentionLimits { max_age: None, max_count: Some(0) };
        let mut swept = store.sweep(all).await.unwrap();
        swept.sort_unstable();
        assert_eq!(swept, [0, 1, 2, 3, 4, 5].map(|job| jobs[job]));
        assert_eq!(store.count(&JobFilter::default()).await.unwrap(), 3);
    });
}

fn sweep_failing_at_owners_reports_removed_jobs() {
    block_on(async {
        let harness = ServerHarness::new().await;
        harness.store.renew(&Owner::new("long gone"), Duration::ZERO).await.unwrap();
        harness.clock.advance(Duration::from_hours(24 * 30));
        let job = harness.store.submit(new_job("x")).await.unwrap().job.id;
        harness.store.request_cancel(job).await.unwrap();
        let stop = "DEFINE EVENT stop ON agent_workers WHEN $event = 'DELETE' THEN { THROW 'no further' }";
        harness.raw().await.query(stop).await.unwrap().check().unwrap();
        let all = RetentionLimits { max_age: None, max_count: Some(0) };
        let error = harness.store.sweep(all).await.unwrap_err();
        assert_eq!(error.removed, [job], "its directory must be removed: {error:?}");
        assert!(harness.store.get(job).await.unwrap().is_none());
    });
}

fn migration_does_not_downgrade_newer_database() {
    block_on(async {
        let harness = ServerHarness::new().await;
        // A newer program migrates the database between the read and the write of the older one.
        harness.proxy.fail("switchboard:schema SET version", ProxyFault::Late, 1);
        let back = "UPDATE switchboard:schema SET version = 1;";
        harness.raw().await.query(back).await.unwrap().check().unwrap();
        drop(open(harness.proxy.port, &harness.clock).await);
        let newer = "UPDATE switchboard:schema SET version = 99;";
        harness.raw().await.query(newer).await.unwrap().check().unwrap();
        harness.proxy.release().await;
        let version = "SELECT VALUE version FROM switchboard:schema";
        let mut reply = harness.raw().await.query(version).await.unwrap();
        assert_eq!(reply.take::<Vec<i64>>(0).unwrap(), [99]);
    });
}

fn overflowing_stats_saturate_on_server() {
    block_on(async {
        let harness = ServerHarness::new().await;
        for _ in 0..2 {
            harness.store.submit(new_job("x")).await.unwrap();
            let (_, claim) = claimed(&harness.store, "a").await;
            harness.store.finish(&claim, success("x")).await.unwrap();
        }
        let most = "UPDATE agent_jobs SET input_tokens = $most, duration_ms = $most";
        harness.raw().await.query(most).bind(("most", i64::MAX.into_value())).await.unwrap().check().unwrap();
        let ended = harness.store.stats(StatsRange::default()).await.unwrap().ended;
        let largest = i64::MAX.unsigned_abs();
        assert_eq!(
            (ended[0].usage.input, ended[0].duration_ms),
            (0, largest),
            "implausible tokens are excluded"
        );
        assert_eq!((ended[0].usage.output, ended[0].jobs), (40, 2));
    });
}

fn migration_scopes_keys_to_homes_on_server() {
    block_on(async {
        let harness = ServerHarness::new().await;
        let keyed = || NewJob { idempotency_key: Some("k".into()), ..new_job("x") };
        let first = harness.store.submit(keyed()).await.unwrap().job.id;
        let back = "UPDATE agent_jobs UNSET scoped_key; UPDATE switchboard:schema SET version = 1;";
        harness.raw().await.query(back).await.unwrap().check().unwrap();
        let again = open(harness.server.port, &harness.clock).await.submit(keyed()).await.unwrap();
        assert_eq!((again.job.id, again.is_new), (first, false));
    });
}
