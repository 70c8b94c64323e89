//! Claims, leases, cancellation and rescue.

use std::time::Duration;

use model::{
    AgentKind, JobEnd, JobState, NewJob, Owner, Placement, StateName, TerminalState, TransitionError,
};
use store::{CancelReply, Capacity, ClaimRequest, HeldClaim, RescueRequest, StoreError};

use crate::conformance;
use crate::fixtures::{LEASE, claimed, here, new_job, new_job_for, request, rescue_by, success};
use crate::harness::Harness;

conformance![
    oldest_job_is_claimed_first,
    live_owners_are_found_by_name_prefix,
    claim_returns_job_as_stored,
    submit_and_claim_returns_oldest_job,
    repeated_submit_claims_nothing,
    finish_returns_job_as_stored,
    end_time_is_that_of_the_run_but_never_in_the_future,
    owner_claims_only_its_homes_and_agents,
    claim_respects_capacity_per_agent,
    first_terminal_state_wins,
    stale_claim_cannot_finish_job,
    queued_job_is_cancelled_immediately,
    running_job_is_cancelled_by_its_owner,
    finish_wins_over_cancel_request,
    paused_job_is_not_claimed_early,
    heartbeat_lists_claims_and_cancel_requests,
    claim_renews_lease,
    only_orphaned_jobs_are_rescued,
    lease_in_far_future_does_not_block_rescue,
    dead_owner_is_rescued_before_lease_expiry,
    dead_rescuer_is_rescued_in_turn,
    stale_owner_is_fenced_off,
    live_run_is_adopted_in_same_attempt,
    interrupted_job_is_requeued_while_attempts_remain,
    interrupted_job_with_cancel_request_is_cancelled,
];

fn refused(error: &StoreError) -> &TransitionError {
    error.refusal().unwrap_or_else(|| panic!("{error}"))
}

async fn claim_returns_job_as_stored(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    for _ in 0..2 {
        harness.clock.advance(Duration::from_secs(1));
        let (job, claim) = claimed(&store, "a").await;
        assert_eq!(store.get(job.id).await.unwrap().unwrap(), job);
        store.pause_until(&claim, harness.clock.now()).await.unwrap();
    }
}

async fn submit_and_claim_returns_oldest_job(harness: Harness) {
    let store = harness.open().await;
    let first = store.submit(new_job("first")).await.unwrap().job.id;
    let submitted =
        store.submit_and_claim(new_job("second"), request("a")).await.unwrap().flushed().await.unwrap();
    // An engine that cannot do both in one transaction claims nothing.
    let claimed = match submitted.claimed {
        Some(job) => *job,
        None => store.claim(request("a")).await.unwrap().unwrap(),
    };
    assert_eq!(claimed.id, first);
    assert_eq!(store.get(first).await.unwrap().unwrap(), claimed);
    let second = store.claim(request("b")).await.unwrap().unwrap();
    assert_eq!((second.id, submitted.is_new), (submitted.job.id, true));
    assert_eq!(store.claim(request("c")).await.unwrap(), None);
}

async fn repeated_submit_claims_nothing(harness: Harness) {
    let store = harness.open().await;
    let keyed = NewJob { idempotency_key: Some("once".into()), ..new_job("x") };
    let first = store.submit(keyed.clone()).await.unwrap().job.id;
    let again = store.submit_and_claim(keyed, request("a")).await.unwrap().flushed().await.unwrap();
    assert_eq!((again.job.id, again.is_new, again.claimed), (first, false, None));
    assert_eq!(store.get(first).await.unwrap().unwrap().progress.state, JobState::Queued);
}

async fn finish_returns_job_as_stored(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    let committed = store.commit_end(&claim, success("done")).await.unwrap();
    // A committed write is visible before its flush.
    assert_eq!(store.get(job.id).await.unwrap().unwrap(), committed.value.job);
    let finished = committed.flushed().await.unwrap();
    assert!(finished.job.completed_at.is_some());
}

async fn end_time_is_that_of_the_run_but_never_in_the_future(harness: Harness) {
    let store = harness.open().await;
    for _ in 0..2 {
        store.submit(new_job("x")).await.unwrap();
    }
    let run_took = Duration::from_secs(2);
    let (ahead, before) = (claimed(&store, "a").await, claimed(&store, "a").await);
    let over = harness.clock.now().plus(run_took);
    harness.clock.advance(Duration::from_mins(1));
    let end_time = async |claim, ended_at| {
        let end = JobEnd { ended_at: Some(ended_at), ..success("done") };
        store.finish(claim, end).await.unwrap().job.completed_at.unwrap()
    };
    assert_eq!(end_time(&before.1, over).await, over);
    assert_eq!(end_time(&ahead.1, harness.clock.now().plus(run_took)).await, harness.clock.now());
    let sums = store.stats(store::StatsRange::default()).await.unwrap();
    // The time of the runs, independent of how long the jobs were held.
    assert_eq!(sums.ended[0].duration_ms, 2 * 1_200);
}

async fn live_owners_are_found_by_name_prefix(harness: Harness) {
    let store = harness.open().await;
    for owner in ["one#a", "one#b", "oneself#a"] {
        store.renew(&Owner::new(owner), LEASE).await.unwrap();
    }
    harness.clock.advance(LEASE / 2);
    store.renew(&Owner::new("one#b"), LEASE).await.unwrap();
    let live = async || {
        let mut owners = store.live_owners("one#").await.unwrap();
        owners.sort();
        owners
    };
    assert_eq!(live().await, [Owner::new("one#a"), Owner::new("one#b")]);
    harness.clock.advance(LEASE / 2);
    assert_eq!(live().await, [Owner::new("one#b")], "the other lease is over");
}

async fn oldest_job_is_claimed_first(harness: Harness) {
    let store = harness.open().await;
    let mut submitted = Vec::new();
    // Also within one millisecond.
    for prompt in 0..20 {
        submitted.push(store.submit(new_job(&prompt.to_string())).await.unwrap().job.id);
    }
    for id in submitted {
        let (job, claim) = claimed(&store, "a").await;
        assert_eq!(job.id, id);
        assert_eq!(job.progress.state, JobState::Running { attempt: claim.attempt, owner: claim.owner });
        assert_eq!(job.lease.unwrap().expires_at, harness.clock.now().plus(LEASE));
    }
    assert_eq!(store.claim(request("a")).await.unwrap(), None);
}

async fn owner_claims_only_its_homes_and_agents(harness: Harness) {
    let store = harness.open().await;
    let (there, gpu) = (Placement::Host("there".into()), Placement::Label("gpu".into()));
    for home in [there.clone(), gpu.clone(), here()] {
        for agent in [AgentKind::Codex, AgentKind::Claude] {
            store.submit(new_job_for(agent, home.clone())).await.unwrap();
        }
    }
    let only = |homes: &[Placement], agent| ClaimRequest {
        homes: homes.to_vec(),
        agents: vec![Capacity { agent, at_once: 10 }],
        ..request("a")
    };
    let claim = async |homes: &[Placement], agent| {
        let job = store.claim(only(homes, agent)).await.unwrap();
        job.map(|job| (job.order.home, job.order.call.agent))
    };
    assert_eq!(
        claim(&[here(), gpu.clone()], AgentKind::Claude).await,
        Some((gpu.clone(), AgentKind::Claude))
    );
    assert_eq!(claim(&[here(), gpu.clone()], AgentKind::Claude).await, Some((here(), AgentKind::Claude)));
    assert_eq!(claim(&[here(), gpu.clone()], AgentKind::Claude).await, None);
    assert_eq!(claim(&[here()], AgentKind::Gemini).await, None);
    assert_eq!(claim(&[], AgentKind::Codex).await, None);
    assert_eq!(claim(std::slice::from_ref(&there), AgentKind::Codex).await, Some((there, AgentKind::Codex)));
}

async fn claim_respects_capacity_per_agent(harness: Harness) {
    let store = harness.open().await;
    for _ in 0..3 {
        store.submit(new_job_for(AgentKind::Claude, here())).await.unwrap();
    }
    store.submit(new_job_for(AgentKind::Codex, here())).await.unwrap();
    let two = |owner: &str| ClaimRequest {
        agents: vec![
            Capacity { agent: AgentKind::Claude, at_once: 2 },
            Capacity { agent: AgentKind::Codex, at_once: 1 },
        ],
        ..request(owner)
    };
    let agent_of = async |owner: &str| store.claim(two(owner)).await.unwrap().map(|job| job.order.call.agent);
    let first = store.claim(two("a")).await.unwrap().unwrap();
    assert_eq!(agent_of("a").await, Some(AgentKind::Claude));
    assert_eq!(agent_of("a").await, Some(AgentKind::Codex), "the third job of claude must wait");
    assert_eq!(agent_of("a").await, None);
    assert_eq!(agent_of("b").await, Some(AgentKind::Claude), "another owner has its own capacity");
    store.submit(new_job_for(AgentKind::Claude, here())).await.unwrap();
    store.finish(&first.claim().unwrap(), success("x")).await.unwrap();
    assert_eq!(agent_of("a").await, Some(AgentKind::Claude));
}

async fn first_terminal_state_wins(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    store.finish(&claim, success("first")).await.unwrap();
    let second = store.finish(&claim, success("second")).await.unwrap_err();
    assert_eq!(refused(&second), &TransitionError::Ended(TerminalState::Completed));
    assert_eq!(store.get(job.id).await.unwrap().unwrap().outcome.unwrap().text, "first");
    assert_eq!(store.exchange(job.id).await.unwrap().unwrap().said.response, "first");
}

async fn stale_claim_cannot_finish_job(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (_, claim) = claimed(&store, "a").await;
    let other = model::Claim { owner: Owner::new("b"), ..claim.clone() };
    let later = model::Claim { attempt: model::Attempt::new(2), ..claim.clone() };
    for wrong in [other, later] {
        let error = store.finish(&wrong, success("x")).await.unwrap_err();
        assert!(matches!(refused(&error), TransitionError::Stale { now: StateName::Running, .. }));
        assert!(store.pause_until(&wrong, harness.clock.now()).await.is_err());
        assert!(store.interrupt(&wrong).await.is_err());
    }
    store.finish(&claim, success("x")).await.unwrap();
}

async fn queued_job_is_cancelled_immediately(harness: Harness) {
    let store = harness.open().await;
    let job = store.submit(new_job("x")).await.unwrap().job;
    let reply = store.request_cancel(job.id).await.unwrap();
    assert_eq!(reply, CancelReply { previous: StateName::Queued, now: StateName::Cancelled });
    assert!(!reply.needs_stop());
    assert_eq!(store.claim(request("a")).await.unwrap(), None);
    let again = store.request_cancel(job.id).await.unwrap();
    assert_eq!(again, CancelReply { previous: StateName::Cancelled, now: StateName::Cancelled });
    assert_eq!(store.get(job.id).await.unwrap().unwrap().completed_at, Some(harness.clock.now()));
}

async fn running_job_is_cancelled_by_its_owner(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    let reply = store.request_cancel(job.id).await.unwrap();
    assert!(reply.needs_stop());
    let asked_at = harness.clock.now();
    harness.clock.advance(Duration::from_secs(1));
    store.request_cancel(job.id).await.unwrap();
    let waiting = store.get(job.id).await.unwrap().unwrap();
    assert_eq!(waiting.progress.cancel_requested_at, Some(asked_at), "the first request counts");
    store.finish(&claim, JobEnd::cancelled()).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().progress.state.name(), StateName::Cancelled);
}

async fn finish_wins_over_cancel_request(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    store.request_cancel(job.id).await.unwrap();
    store.finish(&claim, success("done after all")).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().progress.state.name(), StateName::Completed);
    let late = store.request_cancel(job.id).await.unwrap();
    assert_eq!(late.now, StateName::Completed);
}

async fn paused_job_is_not_claimed_early(harness: Harness) {
    let store = harness.open().await;
    let first = store.submit(new_job("first")).await.unwrap().job.id;
    let second = store.submit(new_job("second")).await.unwrap().job.id;
    let (_, claim) = claimed(&store, "a").await;
    let until = harness.clock.now().plus(Duration::from_mins(10));
    assert_eq!(store.pause_until(&claim, until).await.unwrap(), JobState::Paused { until });
    assert_eq!(claimed(&store, "a").await.0.id, second);
    harness.clock.advance(Duration::from_millis(599_999));
    assert_eq!(store.claim(request("a")).await.unwrap(), None);
    assert!(store.finish(&claim, success("late")).await.is_err(), "a paused job has no owner");
    harness.clock.advance(Duration::from_millis(1));
    let (again, claim) = claimed(&store, "a").await;
    assert_eq!((again.id, claim.attempt.number()), (first, 2));
    // A paused job is cancelled immediately.
    store.pause_until(&claim, until.plus(LEASE)).await.unwrap();
    assert_eq!(store.request_cancel(first).await.unwrap().now, StateName::Cancelled);
}

async fn heartbeat_lists_claims_and_cancel_requests(harness: Harness) {
    let store = harness.open().await;
    for prompt in ["one", "two", "three"] {
        store.submit(new_job(prompt)).await.unwrap();
    }
    let (one, two) = (claimed(&store, "a").await.1, claimed(&store, "a").await.1);
    claimed(&store, "b").await;
    store.request_cancel(two.job).await.unwrap();
    harness.clock.advance(Duration::from_secs(20));
    let held = store.renew(&Owner::new("a"), LEASE).await.unwrap();
    let running = |claim, cancel_requested| HeldClaim { claim, state: StateName::Running, cancel_requested };
    assert_eq!(held, [running(one.clone(), false), running(two, true)]);
    let lease = store.get(one.job).await.unwrap().unwrap().lease.unwrap();
    assert_eq!(lease.expires_at, harness.clock.now().plus(LEASE));
}

async fn claim_renews_lease(harness: Harness) {
    let store = harness.open().await;
    let lease_expiry = async |job| store.get(job).await.unwrap().unwrap().lease.unwrap().expires_at;
    let first = store.submit(new_job("first")).await.unwrap().job.id;
    claimed(&store, "a").await;
    // Even right after another renewal.
    let tick = || harness.clock.advance(Duration::from_millis(1));
    tick();
    assert_eq!(store.claim(request("a")).await.unwrap(), None);
    assert_eq!(lease_expiry(first).await, harness.clock.now().plus(LEASE));
    tick();
    let submitted =
        store.submit_and_claim(new_job("second"), request("a")).await.unwrap().flushed().await.unwrap();
    if submitted.claimed.is_none() {
        claimed(&store, "a").await;
    }
    assert_eq!(lease_expiry(submitted.job.id).await, harness.clock.now().plus(LEASE));
}

async fn only_orphaned_jobs_are_rescued(harness: Harness) {
    let store = harness.open().await;
    for home in [here(), here(), Placement::Host("there".into())] {
        store.submit(new_job_for(AgentKind::Claude, home)).await.unwrap();
    }
    let (silent, alive) = (claimed(&store, "silent").await.1, claimed(&store, "alive").await.1);
    let mut elsewhere = request("silent");
    elsewhere.homes = vec![Placement::Host("there".into())];
    store.claim(elsewhere).await.unwrap().unwrap();
    assert_eq!(store.rescue(rescue_by("r")).await.unwrap(), []);

    harness.clock.advance(LEASE.saturating_sub(Duration::from_millis(1)));
    assert_eq!(store.rescue(rescue_by("r")).await.unwrap(), [], "the lease is valid until its expiry");
    store.renew(&alive.owner, LEASE).await.unwrap();
    harness.clock.advance(Duration::from_millis(1));
    let rescued = store.rescue(rescue_by("r")).await.unwrap();
    assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [silent.job]);
    let expected = JobState::Interrupted { attempt: silent.attempt, owner: Owner::new("r") };
    assert_eq!(rescued[0].progress.state, expected);
    assert_eq!(store.rescue(rescue_by("r")).await.unwrap(), [], "it is rescued once");
}

async fn lease_in_far_future_does_not_block_rescue(harness: Harness) {
    let store = harness.open().await;
    let right = harness.clock.now();
    store.submit(new_job("x")).await.unwrap();
    harness.clock.advance(Duration::from_hours(24 * 365));
    let (job, _) = claimed(&store, "a").await;
    harness.clock.set(right);
    let rescued = store.rescue(rescue_by("b")).await.unwrap();
    assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [job.id]);
}

async fn dead_owner_is_rescued_before_lease_expiry(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (_, claim) = claimed(&store, "dead").await;
    let proven = RescueRequest { dead: vec![Owner::new("dead")], ..rescue_by("r") };
    assert_eq!(store.rescue(proven).await.unwrap()[0].id, claim.job);
}

async fn dead_rescuer_is_rescued_in_turn(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (_, claim) = claimed(&store, "a").await;
    harness.clock.advance(LEASE);
    assert_eq!(store.rescue(rescue_by("r1")).await.unwrap().len(), 1);
    assert_eq!(store.rescue(rescue_by("r2")).await.unwrap(), [], "another rescuer holds it");
    harness.clock.advance(LEASE);
    let again = store.rescue(rescue_by("r2")).await.unwrap();
    assert_eq!(again[0].claim().unwrap(), model::Claim { owner: Owner::new("r2"), ..claim });
}

async fn stale_owner_is_fenced_off(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (_, old) = claimed(&store, "slow").await;
    harness.clock.advance(LEASE);
    let rescued = store.rescue(rescue_by("r")).await.unwrap().remove(0).claim().unwrap();
    assert!(matches!(
        refused(&store.finish(&old, success("late")).await.unwrap_err()),
        TransitionError::Stale { now: StateName::Interrupted, .. }
    ));
    assert_eq!(
        store.renew(&old.owner, LEASE).await.unwrap(),
        [],
        "the owner learns that it has lost the job"
    );
    assert_eq!(store.requeue(&rescued).await.unwrap(), JobState::Queued);
    let (job, new) = claimed(&store, "slow").await;
    assert_eq!((new.job, new.attempt.number()), (old.job, 2));
    let late = store.finish(&old, success("late")).await.unwrap_err();
    assert!(matches!(refused(&late), TransitionError::Stale { .. }));
    store.finish(&new, success("in time")).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().outcome.unwrap().text, "in time");
}

async fn live_run_is_adopted_in_same_attempt(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (_, old) = claimed(&store, "daemon-1").await;
    let new = store.adopt(&old, &Owner::new("daemon-2"), LEASE).await.unwrap();
    assert_eq!(new.attempt, old.attempt);
    let job = store.get(old.job).await.unwrap().unwrap();
    assert_eq!(job.claim(), Some(new.clone()));
    assert_eq!(job.lease.unwrap().owner, new.owner);
    assert!(store.finish(&old, success("late")).await.is_err());
    // A rescuer adopts a live run in the same way.
    harness.clock.advance(LEASE);
    let rescued = store.rescue(rescue_by("daemon-3")).await.unwrap().remove(0).claim().unwrap();
    let adopted = store.adopt(&rescued, &rescued.owner, LEASE).await.unwrap();
    assert_eq!(store.get(old.job).await.unwrap().unwrap().progress.state.name(), StateName::Running);
    store.finish(&adopted, success("done")).await.unwrap();
}

async fn interrupted_job_is_requeued_while_attempts_remain(harness: Harness) {
    let store = harness.open().await;
    store.submit(NewJob { max_attempts: 2, ..new_job("x") }).await.unwrap();
    let (_, first) = claimed(&store, "a").await;
    assert_eq!(store.interrupt(&first).await.unwrap().name(), StateName::Interrupted);
    assert_eq!(store.claim(request("b")).await.unwrap(), None, "it is not claimed before the cleanup");
    assert_eq!(store.requeue(&first).await.unwrap(), JobState::Queued);
    let (job, second) = claimed(&store, "a").await;
    assert!(!job.progress.has_attempt_left());
    store.interrupt(&second).await.unwrap();
    let error = store.requeue(&second).await.unwrap_err();
    assert_eq!(refused(&error), &TransitionError::NoAttemptLeft { max_attempts: 2 });
    let failure = model::Failure { kind: model::FailureKind::SupervisorLost, message: "lost twice".into() };
    store.finish(&second, JobEnd::failed(failure)).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().progress.state.name(), StateName::Failed);
}

async fn interrupted_job_with_cancel_request_is_cancelled(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    store.interrupt(&claim).await.unwrap();
    assert!(store.request_cancel(job.id).await.unwrap().needs_stop());
    assert_eq!(store.requeue(&claim).await.unwrap(), JobState::Ended { how: TerminalState::Cancelled });
}
