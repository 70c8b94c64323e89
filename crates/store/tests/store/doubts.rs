//! Lost requests and replies of a real server: each write is reported correctly, or as unconfirmed.

use std::time::Duration;

use model::{Claim, Job, JobId, NewJob, Owner, StateName, TerminalState, TransitionError};
use store::{
    Certainty, JobFilter, ManualClock, Opening, PageRequest, Redactor, Retention, StatsRange, Store,
    StoreError,
};
use surrealdb::Surreal;
use surrealdb::engine::any::Any;
use surrealdb::opt::auth::Root;
use surrealdb::types::{SurrealValue, Value};

use crate::bed::block_on;
use crate::calls::{LEASE, claimed, order, request, rescue_by, success};
use crate::server::{Server, credentials, setting_at};
use crate::way::{EVERY, Fault, Way};

crate::tests![
    a_place_that_was_cut_off_is_never_denied,
    a_claim_that_was_cut_off_is_found_by_its_owner,
    a_finish_that_was_cut_off_counts_once,
    a_cancel_that_was_cut_off_is_never_denied,
    a_rescue_that_was_cut_off_is_found_by_its_rescuer,
    a_request_that_arrives_late_changes_nothing_more,
    a_lost_claim_of_a_dead_owner_is_rescued_and_stays_in_doubt,
    a_sweep_that_was_cut_off_names_what_may_be_gone,
    a_claim_that_nobody_waits_for_is_put_back_on_a_server,
    a_record_that_makes_no_sense_stops_no_other_on_a_server,
    sums_that_run_over_stop_at_the_largest_number_on_a_server,
    keys_of_a_first_version_on_a_server_become_those_of_their_homes,
    a_sweep_that_cannot_forget_owners_says_what_it_removed,
    a_newer_version_is_not_taken_back_by_an_older_program,
];

/// A part of the query that writes a step.
const STEP: &str = "MERGE $patch";
const PLACE: &str = "INSERT IGNORE";
const SWEEP: &str = "DELETE agent_exchanges";

const CASES: [(Fault, usize); 4] = [
    (Fault::BeforeRequest, 1),
    (Fault::BeforeAnswer, 1),
    (Fault::BeforeRequest, EVERY),
    (Fault::BeforeAnswer, EVERY),
];

/// A server with two connections: one through a faulty proxy, one direct.
struct Lines {
    server: Server,
    way: Way,
    clock: ManualClock,
    store: Store,
    direct: Store,
}

impl Lines {
    async fn new() -> Self {
        let server = Server::start("memory");
        let way = Way::to(server.port).await;
        let clock = ManualClock::at(model::Timestamp::from_millis(1_800_000_000_000));
        let (store, direct) = (open(way.port, &clock).await, open(server.port, &clock).await);
        Self { server, way, clock, store, direct }
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
        let mut answer = self.raw().await.query(query).bind(("job", job.to_string())).await.unwrap();
        answer.take::<Vec<String>>(0).unwrap().len()
    }

    /// Waits until a job is in a state.
    async fn until(&self, job: JobId, state: StateName) -> Job {
        let looking = async {
            loop {
                let found = self.direct.get(job).await.unwrap().unwrap();
                if found.progress.state.name() == state {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), looking).await.expect("the state in time")
    }
}

async fn open(port: u16, clock: &ManualClock) -> Store {
    let opening = Opening::new(setting_at(port, "doubts"), "unused");
    let opening = Opening {
        credentials: Some(credentials()),
        redactor: Redactor::none(),
        clock: clock.clock(),
        ..opening
    };
    Store::open(opening).await.unwrap()
}

/// Asserts that the outcome of the write is unknown.
fn in_doubt(error: &StoreError) {
    assert_eq!(error.certainty(), Certainty::Unknown, "{error:?}");
}

fn a_place_that_was_cut_off_is_never_denied() {
    block_on(async {
        let lines = Lines::new().await;
        for (round, (fault, times)) in (1..).zip(CASES) {
            let keyed = || NewJob { idempotency_key: Some(format!("key {round}")), ..order("x") };
            lines.way.fail(PLACE, fault, times);
            let placed = lines.store.submit(keyed()).await;
            assert!(lines.way.heal() > 0);
            let told = match placed {
                Ok(placed) => Some(placed.job.id),
                Err(StoreError::Unconfirmed { job, .. }) => {
                    assert_eq!(times, EVERY, "one loss is made good by asking again");
                    let there = lines.direct.get(job.unwrap()).await.unwrap();
                    assert_eq!(there.is_some(), fault == Fault::BeforeAnswer, "the error names the job");
                    there.map(|job| job.id)
                }
                Err(error) => panic!("{fault:?} {times}: {error:?}"),
            };
            let again = lines.store.submit(keyed()).await.unwrap();
            assert_eq!(again.is_new, told.is_none());
            assert!(told.is_none_or(|told| told == again.job.id));
            assert_eq!(lines.direct.count(&JobFilter::default()).await.unwrap(), round);
        }
    });
}

fn a_claim_that_was_cut_off_is_found_by_its_owner() {
    block_on(async {
        let lines = Lines::new().await;
        for (fault, times) in CASES {
            let id = lines.direct.submit(order("x")).await.unwrap().job.id;
            lines.way.fail(STEP, fault, times);
            let answer = lines.store.claim(request("a")).await;
            assert!(lines.way.heal() > 0);
            match answer {
                Ok(job) => assert_eq!(job.expect("the job that waits").id, id),
                Err(error) => {
                    in_doubt(&error);
                    assert_eq!((fault, times), (Fault::BeforeRequest, EVERY), "a look tells the others");
                }
            }
            let held = lines.store.renew(&Owner::new("a"), LEASE).await.unwrap();
            let claim = match held.as_slice() {
                [] => claimed(&lines.store, "a").await.1,
                [held] => held.claim.clone(),
                several => panic!("{several:?}"),
            };
            assert_eq!((claim.job, claim.attempt.number()), (id, 1), "once, and not lost");
            lines.store.finish(&claim, success("x")).await.unwrap();
        }
    });
}

fn a_finish_that_was_cut_off_counts_once() {
    block_on(async {
        let lines = Lines::new().await;
        for (fault, times) in CASES {
            lines.direct.submit(order("x")).await.unwrap();
            let (job, claim) = claimed(&lines.direct, "a").await;
            lines.way.fail(STEP, fault, times);
            let finished = lines.store.finish(&claim, success("done")).await;
            assert!(lines.way.heal() > 0);
            if let Err(error) = finished {
                in_doubt(&error);
                assert_eq!((fault, times), (Fault::BeforeRequest, EVERY));
                lines.store.finish(&claim, success("done")).await.unwrap();
            }
            let late = lines.store.finish(&claim, success("again")).await.unwrap_err();
            assert_eq!(late.refusal(), Some(&TransitionError::Ended(TerminalState::Completed)));
            assert_eq!(lines.state(job.id).await, StateName::Completed);
            assert_eq!(lines.direct.exchange(job.id).await.unwrap().unwrap().said.response, "done");
            assert_eq!(lines.exchanges_of(job.id).await, 1);
        }
    });
}

fn a_cancel_that_was_cut_off_is_never_denied() {
    block_on(async {
        let lines = Lines::new().await;
        for (fault, times) in CASES {
            for (runs, after) in [(false, StateName::Cancelled), (true, StateName::Running)] {
                let id = lines.direct.submit(order("x")).await.unwrap().job.id;
                let claim = if runs { Some(claimed(&lines.direct, "a").await.1) } else { None };
                lines.way.fail(STEP, fault, times);
                let reply = lines.store.request_cancel(id).await;
                assert!(lines.way.heal() > 0);
                match reply {
                    Ok(reply) => assert_eq!(reply.now, after),
                    Err(error) => {
                        in_doubt(&error);
                        assert_eq!((fault, times), (Fault::BeforeRequest, EVERY));
                        assert_eq!(lines.store.request_cancel(id).await.unwrap().now, after);
                    }
                }
                let job = lines.direct.get(id).await.unwrap().unwrap();
                assert_eq!(job.progress.state.name(), after);
                assert!(job.progress.cancel_requested_at.is_some());
                if let Some(claim) = claim {
                    lines.direct.finish(&claim, success("x")).await.unwrap();
                }
            }
        }
    });
}

fn a_rescue_that_was_cut_off_is_found_by_its_rescuer() {
    block_on(async {
        let lines = Lines::new().await;
        for (fault, times) in CASES {
            let id = lines.direct.submit(order("x")).await.unwrap().job.id;
            claimed(&lines.direct, "dead").await;
            lines.clock.advance(LEASE * 2);
            lines.way.fail(STEP, fault, times);
            let rescued = lines.store.rescue(rescue_by("b")).await;
            assert!(lines.way.heal() > 0);
            match rescued {
                Ok(jobs) => assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id]),
                Err(error) => {
                    in_doubt(&error);
                    assert_eq!((fault, times), (Fault::BeforeRequest, EVERY));
                    assert_eq!(lines.store.rescue(rescue_by("b")).await.unwrap().len(), 1);
                }
            }
            let held = lines.store.renew(&Owner::new("b"), LEASE).await.unwrap();
            assert_eq!(held.iter().map(|held| held.claim.job).collect::<Vec<_>>(), [id]);
            lines.store.finish(&held[0].claim, success("x")).await.unwrap();
        }
    });
}

fn a_request_that_arrives_late_changes_nothing_more() {
    block_on(async {
        let lines = Lines::new().await;
        let late = |words| lines.way.fail(words, Fault::Late, 1);

        late(PLACE);
        let placed = lines.store.submit(order("x")).await.unwrap().job.id;
        let (job, claim) = claimed(&lines.direct, "a").await;
        assert_eq!(job.id, placed);
        lines.way.release().await;
        assert_eq!(lines.direct.get(placed).await.unwrap().unwrap(), job, "it is not queued again");
        assert_eq!(lines.direct.count(&JobFilter::default()).await.unwrap(), 1);

        late(STEP);
        lines.store.finish(&claim, success("done")).await.unwrap();
        let ended = lines.direct.get(placed).await.unwrap();
        lines.way.release().await;
        assert_eq!(lines.direct.get(placed).await.unwrap(), ended);
        assert_eq!(lines.exchanges_of(placed).await, 1);

        lines.direct.submit(order("y")).await.unwrap();
        late(STEP);
        let (job, claim) = claimed(&lines.store, "b").await;
        lines.way.release().await;
        assert_eq!(lines.direct.get(job.id).await.unwrap().unwrap(), job);
        assert_eq!(lines.store.renew(&Owner::new("b"), LEASE).await.unwrap()[0].claim, claim);

        late(STEP);
        lines.store.request_cancel(job.id).await.unwrap();
        lines.direct.finish(&claim, success("first")).await.unwrap();
        lines.way.release().await;
        assert_eq!(lines.state(job.id).await, StateName::Completed, "a late wish takes back no end");
    });
}

fn a_lost_claim_of_a_dead_owner_is_rescued_and_stays_in_doubt() {
    block_on(async {
        let lines = Lines::new().await;
        let id = lines.direct.submit(order("x")).await.unwrap().job.id;
        lines.way.fail(STEP, Fault::BeforeAnswer, 1);
        let claiming = tokio::spawn({
            let store = lines.store.clone();
            async move { store.claim(request("dead")).await }
        });
        // Block new connections until another write has followed the claim.
        lines.way.set_open(false);
        lines.way.met().await;
        assert_eq!(lines.state(id).await, StateName::Running);
        lines.clock.advance(LEASE * 2);
        let rescued = lines.direct.rescue(rescue_by("b")).await.unwrap();
        assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [id]);
        lines.way.set_open(true);
        in_doubt(&claiming.await.unwrap().unwrap_err());
        let claim: Claim = rescued[0].claim().unwrap();
        assert_eq!(lines.direct.requeue(&claim).await.unwrap().name(), StateName::Queued);
    });
}

fn a_sweep_that_was_cut_off_names_what_may_be_gone() {
    block_on(async {
        let lines = Lines::new().await;
        let all = Retention { max_age: None, max_count: Some(0) };
        for (fault, times) in CASES {
            let id = lines.direct.submit(order("x")).await.unwrap().job.id;
            lines.direct.request_cancel(id).await.unwrap();
            lines.way.fail(SWEEP, fault, times);
            let swept = lines.store.sweep(all).await;
            assert!(lines.way.heal() > 0);
            match swept {
                Ok(removed) => assert_eq!(removed, [id]),
                Err(error) => {
                    assert_eq!(times, EVERY);
                    in_doubt(&error.source);
                    assert_eq!(
                        (error.removed.as_slice(), error.perhaps.as_slice()),
                        ([].as_slice(), [id].as_slice())
                    );
                    let there = lines.direct.get(id).await.unwrap().is_some();
                    assert_eq!(there, fault == Fault::BeforeRequest);
                    assert_eq!(lines.direct.sweep(all).await.unwrap().len(), usize::from(there));
                }
            }
        }
    });
}

fn a_claim_that_nobody_waits_for_is_put_back_on_a_server() {
    block_on(async {
        let lines = Lines::new().await;
        for answered in [false, true] {
            let id = lines.direct.submit(order("x")).await.unwrap().job.id;
            lines.way.fail(STEP, Fault::HeldAnswer, 1);
            let mut claiming = Box::pin(lines.store.claim(request("gone")));
            tokio::select! {
                answer = &mut claiming => panic!("{answer:?}"),
                () = lines.way.met() => {}
            }
            assert_eq!(lines.state(id).await, StateName::Running);
            if answered {
                lines.way.release().await;
                // It gets the lock after the first reply was sent, which no caller receives.
                assert_eq!(lines.store.claim(request("b")).await.unwrap(), None);
                drop(claiming);
            } else {
                drop(claiming);
                lines.way.release().await;
            }
            let back = lines.until(id, StateName::Queued).await;
            assert_eq!((back.started_at, back.progress.requeues), (None, 0));
            let (job, claim) = claimed(&lines.store, "b").await;
            assert_eq!(job.id, id);
            lines.store.finish(&claim, success("x")).await.unwrap();
        }
    });
}

fn a_record_that_makes_no_sense_stops_no_other_on_a_server() {
    block_on(async {
        let lines = Lines::new().await;
        let (store, raw) = (&lines.store, lines.raw().await);
        let mut jobs = Vec::new();
        for _ in 0..9 {
            jobs.push(store.submit(order("x")).await.unwrap().job.id);
        }
        let spoil = async |what: &str, job: JobId| {
            let query = format!("UPDATE agent_jobs SET {what} WHERE placed = $placed RETURN VALUE id");
            let mut answer = raw.query(query).bind(("placed", job.to_string())).await.unwrap();
            assert_eq!(answer.take::<Vec<Value>>(0).unwrap().len(), 1, "{what}");
        };
        // Records with an invalid field, summary or state are skipped.
        spoil("call = 'no JSON'", jobs[0]).await;
        spoil("attempt = 'three'", jobs[1]).await;
        spoil("state = 'confused'", jobs[2]).await;
        spoil("state = 'paused', queue = NONE, paused_until = 1, cwd = 5", jobs[3]).await;
        for expected in [4, 5, 6] {
            assert_eq!(claimed(store, "a").await.0.id, jobs[expected]);
        }
        // A rescue skips them, and the heartbeat continues.
        spoil("call = '{'", jobs[4]).await;
        spoil("home = 7", jobs[5]).await;
        assert_eq!(store.renew(&Owner::new("a"), LEASE).await.unwrap().len(), 2);
        lines.clock.advance(LEASE * 2);
        let rescued = store.rescue(rescue_by("b")).await.unwrap();
        assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[6]]);
        for spoilt in [1, 3, 5] {
            let error = store.get(jobs[spoilt]).await.unwrap_err();
            assert!(error.to_string().contains(&jobs[spoilt].to_string()), "{error}");
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
        spoil("state = 'confused'", jobs[0]).await;
        spoil("agent = 9", jobs[2]).await;
        let sums = store.stats(StatsRange::default()).await.unwrap();
        assert_eq!(sums.ended.iter().map(|row| row.jobs).sum::<u64>(), 4);
        spoil("placed = 3", jobs[4]).await;
        let all = Retention { max_age: None, max_count: Some(0) };
        let mut swept = store.sweep(all).await.unwrap();
        swept.sort_unstable();
        assert_eq!(swept, [0, 1, 2, 3, 4, 5].map(|job| jobs[job]));
        assert_eq!(store.count(&JobFilter::default()).await.unwrap(), 3);
    });
}

fn a_sweep_that_cannot_forget_owners_says_what_it_removed() {
    block_on(async {
        let lines = Lines::new().await;
        lines.store.renew(&Owner::new("long gone"), Duration::ZERO).await.unwrap();
        lines.clock.advance(Duration::from_hours(24 * 30));
        let job = lines.store.submit(order("x")).await.unwrap().job.id;
        lines.store.request_cancel(job).await.unwrap();
        let stop = "DEFINE EVENT stop ON agent_workers WHEN $event = 'DELETE' THEN { THROW 'no further' }";
        lines.raw().await.query(stop).await.unwrap().check().unwrap();
        let all = Retention { max_age: None, max_count: Some(0) };
        let error = lines.store.sweep(all).await.unwrap_err();
        assert_eq!(error.removed, [job], "its folder has to go: {error:?}");
        assert!(lines.store.get(job).await.unwrap().is_none());
    });
}

fn a_newer_version_is_not_taken_back_by_an_older_program() {
    block_on(async {
        let lines = Lines::new().await;
        // A newer program migrates the database between the read and the write of the older one.
        lines.way.fail("switchboard:schema SET version", Fault::Late, 1);
        let back = "UPDATE switchboard:schema SET version = 1;";
        lines.raw().await.query(back).await.unwrap().check().unwrap();
        drop(open(lines.way.port, &lines.clock).await);
        let newer = "UPDATE switchboard:schema SET version = 99;";
        lines.raw().await.query(newer).await.unwrap().check().unwrap();
        lines.way.release().await;
        let version = "SELECT VALUE version FROM switchboard:schema";
        let mut answer = lines.raw().await.query(version).await.unwrap();
        assert_eq!(answer.take::<Vec<i64>>(0).unwrap(), [99]);
    });
}

fn sums_that_run_over_stop_at_the_largest_number_on_a_server() {
    block_on(async {
        let lines = Lines::new().await;
        for _ in 0..2 {
            lines.store.submit(order("x")).await.unwrap();
            let (_, claim) = claimed(&lines.store, "a").await;
            lines.store.finish(&claim, success("x")).await.unwrap();
        }
        let most = "UPDATE agent_jobs SET input_tokens = $most, duration_ms = $most";
        lines.raw().await.query(most).bind(("most", i64::MAX.into_value())).await.unwrap().check().unwrap();
        let ended = lines.store.stats(StatsRange::default()).await.unwrap().ended;
        let largest = i64::MAX.unsigned_abs();
        assert_eq!(
            (ended[0].usage.input, ended[0].duration_ms),
            (0, largest),
            "such tokens are not believed"
        );
        assert_eq!((ended[0].usage.output, ended[0].jobs), (40, 2));
    });
}

fn keys_of_a_first_version_on_a_server_become_those_of_their_homes() {
    block_on(async {
        let lines = Lines::new().await;
        let keyed = || NewJob { idempotency_key: Some("k".into()), ..order("x") };
        let first = lines.store.submit(keyed()).await.unwrap().job.id;
        let back = "UPDATE agent_jobs UNSET scoped_key; UPDATE switchboard:schema SET version = 1;";
        lines.raw().await.query(back).await.unwrap().check().unwrap();
        let again = open(lines.server.port, &lines.clock).await.submit(keyed()).await.unwrap();
        assert_eq!((again.job.id, again.is_new), (first, false));
    });
}
