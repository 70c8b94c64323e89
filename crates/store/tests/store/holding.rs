//! Claims, leases, cancellation and rescue.

use std::time::Duration;

use model::{
    AgentKind, JobEnd, JobState, NewJob, Owner, Placement, StateName, TerminalState, TransitionError,
};
use store::{CancelReply, Capacity, ClaimRequest, Held, RescueRequest, StoreError};

use crate::bed::Bed;
use crate::calls::{LEASE, claimed, here, order, order_for, request, rescue_by, success};
use crate::conformance;

conformance![
    the_oldest_is_claimed_first,
    living_owners_are_found_by_the_start_of_their_names,
    a_claimed_job_is_given_as_it_is_kept,
    who_places_with_room_gets_the_oldest_and_nothing_is_lost,
    a_call_that_was_placed_before_gives_its_placer_nothing_to_do,
    the_end_of_a_job_is_told_as_it_is_kept,
    a_job_ends_when_its_run_was_over_and_never_later_than_now,
    an_owner_gets_only_what_it_can_serve,
    no_more_of_an_agent_than_the_owner_runs_at_once,
    the_first_end_stays,
    only_the_holder_may_end_a_job,
    a_queued_job_is_cancelled_at_once,
    a_running_job_is_cancelled_by_its_holder,
    finished_beats_cancelled,
    a_paused_job_waits_for_its_time,
    a_heartbeat_tells_what_is_held_and_what_is_to_stop,
    who_takes_a_job_is_alive_for_a_whole_lease,
    only_what_is_abandoned_is_rescued,
    a_lease_of_a_clock_that_was_ahead_does_not_hold_for_ever,
    the_proven_dead_need_no_expired_lease,
    a_rescuer_that_dies_is_rescued_in_turn,
    the_late_word_of_a_rescued_owner_is_refused,
    a_live_run_is_adopted_as_the_same_attempt,
    an_interrupted_job_is_queued_again_while_attempts_are_left,
    an_interrupted_job_that_is_to_end_is_not_queued_again,
];

fn refused(error: &StoreError) -> &TransitionError {
    error.refusal().unwrap_or_else(|| panic!("{error}"))
}

async fn a_claimed_job_is_given_as_it_is_kept(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    for _ in 0..2 {
        bed.clock.advance(Duration::from_secs(1));
        let (job, claim) = claimed(&store, "a").await;
        assert_eq!(store.get(job.id).await.unwrap().unwrap(), job);
        store.pause_until(&claim, bed.clock.now()).await.unwrap();
    }
}

async fn who_places_with_room_gets_the_oldest_and_nothing_is_lost(bed: Bed) {
    let store = bed.open().await;
    let first = store.submit(order("first")).await.unwrap().job.id;
    let placed = store.place_and_claim(order("second"), request("a")).await.unwrap().flushed().await.unwrap();
    // An engine that cannot do both in one transaction claims nothing.
    let claimed = match placed.claimed {
        Some(job) => *job,
        None => store.claim(request("a")).await.unwrap().unwrap(),
    };
    assert_eq!(claimed.id, first);
    assert_eq!(store.get(first).await.unwrap().unwrap(), claimed);
    let second = store.claim(request("b")).await.unwrap().unwrap();
    assert_eq!((second.id, placed.is_new), (placed.job.id, true));
    assert_eq!(store.claim(request("c")).await.unwrap(), None);
}

async fn a_call_that_was_placed_before_gives_its_placer_nothing_to_do(bed: Bed) {
    let store = bed.open().await;
    let keyed = NewJob { idempotency_key: Some("once".into()), ..order("x") };
    let first = store.submit(keyed.clone()).await.unwrap().job.id;
    let again = store.place_and_claim(keyed, request("a")).await.unwrap().flushed().await.unwrap();
    assert_eq!((again.job.id, again.is_new, again.claimed), (first, false, None));
    assert_eq!(store.get(first).await.unwrap().unwrap().progress.state, JobState::Queued);
}

async fn the_end_of_a_job_is_told_as_it_is_kept(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    let written = store.write_end(&claim, success("done")).await.unwrap();
    // A committed write is visible before its flush.
    assert_eq!(store.get(job.id).await.unwrap().unwrap(), written.value.job);
    let finished = written.flushed().await.unwrap();
    assert!(finished.job.completed_at.is_some());
}

async fn a_job_ends_when_its_run_was_over_and_never_later_than_now(bed: Bed) {
    let store = bed.open().await;
    for _ in 0..2 {
        store.submit(order("x")).await.unwrap();
    }
    let run_took = Duration::from_secs(2);
    let (ahead, before) = (claimed(&store, "a").await, claimed(&store, "a").await);
    let over = bed.clock.now().plus(run_took);
    bed.clock.advance(Duration::from_mins(1));
    let told = async |claim, ended_at| {
        let end = JobEnd { ended_at: Some(ended_at), ..success("done") };
        store.finish(claim, end).await.unwrap().job.completed_at.unwrap()
    };
    assert_eq!(told(&before.1, over).await, over);
    assert_eq!(told(&ahead.1, bed.clock.now().plus(run_took)).await, bed.clock.now());
    let sums = store.stats(store::StatsRange::default()).await.unwrap();
    // The time of the runs, independent of how long the jobs were held.
    assert_eq!(sums.ended[0].duration_ms, 2 * 1_200);
}

async fn living_owners_are_found_by_the_start_of_their_names(bed: Bed) {
    let store = bed.open().await;
    for owner in ["one#a", "one#b", "oneself#a"] {
        store.renew(&Owner::new(owner), LEASE).await.unwrap();
    }
    bed.clock.advance(LEASE / 2);
    store.renew(&Owner::new("one#b"), LEASE).await.unwrap();
    let living = async || {
        let mut owners = store.living_owners("one#").await.unwrap();
        owners.sort();
        owners
    };
    assert_eq!(living().await, [Owner::new("one#a"), Owner::new("one#b")]);
    bed.clock.advance(LEASE / 2);
    assert_eq!(living().await, [Owner::new("one#b")], "the other lease is over");
}

async fn the_oldest_is_claimed_first(bed: Bed) {
    let store = bed.open().await;
    let mut placed = Vec::new();
    // Also within one millisecond.
    for prompt in 0..20 {
        placed.push(store.submit(order(&prompt.to_string())).await.unwrap().job.id);
    }
    for id in placed {
        let (job, claim) = claimed(&store, "a").await;
        assert_eq!(job.id, id);
        assert_eq!(job.progress.state, JobState::Running { attempt: claim.attempt, owner: claim.owner });
        assert_eq!(job.lease.unwrap().expires_at, bed.clock.now().plus(LEASE));
    }
    assert_eq!(store.claim(request("a")).await.unwrap(), None);
}

async fn an_owner_gets_only_what_it_can_serve(bed: Bed) {
    let store = bed.open().await;
    let (there, gpu) = (Placement::Host("there".into()), Placement::Label("gpu".into()));
    for home in [there.clone(), gpu.clone(), here()] {
        for agent in [AgentKind::Codex, AgentKind::Claude] {
            store.submit(order_for(agent, home.clone())).await.unwrap();
        }
    }
    let only = |homes: &[Placement], agent| ClaimRequest {
        homes: homes.to_vec(),
        agents: vec![Capacity { agent, at_once: 10 }],
        ..request("a")
    };
    let asked = async |homes: &[Placement], agent| {
        let job = store.claim(only(homes, agent)).await.unwrap();
        job.map(|job| (job.order.home, job.order.call.agent))
    };
    assert_eq!(
        asked(&[here(), gpu.clone()], AgentKind::Claude).await,
        Some((gpu.clone(), AgentKind::Claude))
    );
    assert_eq!(asked(&[here(), gpu.clone()], AgentKind::Claude).await, Some((here(), AgentKind::Claude)));
    assert_eq!(asked(&[here(), gpu.clone()], AgentKind::Claude).await, None);
    assert_eq!(asked(&[here()], AgentKind::Gemini).await, None);
    assert_eq!(asked(&[], AgentKind::Codex).await, None);
    assert_eq!(asked(std::slice::from_ref(&there), AgentKind::Codex).await, Some((there, AgentKind::Codex)));
}

async fn no_more_of_an_agent_than_the_owner_runs_at_once(bed: Bed) {
    let store = bed.open().await;
    for _ in 0..3 {
        store.submit(order_for(AgentKind::Claude, here())).await.unwrap();
    }
    store.submit(order_for(AgentKind::Codex, here())).await.unwrap();
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
    assert_eq!(agent_of("a").await, Some(AgentKind::Codex), "the third of claude has to wait");
    assert_eq!(agent_of("a").await, None);
    assert_eq!(agent_of("b").await, Some(AgentKind::Claude), "another owner has room of its own");
    store.submit(order_for(AgentKind::Claude, here())).await.unwrap();
    store.finish(&first.claim().unwrap(), success("x")).await.unwrap();
    assert_eq!(agent_of("a").await, Some(AgentKind::Claude));
}

async fn the_first_end_stays(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    store.finish(&claim, success("first")).await.unwrap();
    let second = store.finish(&claim, success("second")).await.unwrap_err();
    assert_eq!(refused(&second), &TransitionError::Ended(TerminalState::Completed));
    assert_eq!(store.get(job.id).await.unwrap().unwrap().outcome.unwrap().text, "first");
    assert_eq!(store.exchange(job.id).await.unwrap().unwrap().said.response, "first");
}

async fn only_the_holder_may_end_a_job(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (_, claim) = claimed(&store, "a").await;
    let other = model::Claim { owner: Owner::new("b"), ..claim.clone() };
    let later = model::Claim { attempt: model::Attempt::new(2), ..claim.clone() };
    for wrong in [other, later] {
        let error = store.finish(&wrong, success("x")).await.unwrap_err();
        assert!(matches!(refused(&error), TransitionError::Stale { now: StateName::Running, .. }));
        assert!(store.pause_until(&wrong, bed.clock.now()).await.is_err());
        assert!(store.interrupt(&wrong).await.is_err());
    }
    store.finish(&claim, success("x")).await.unwrap();
}

async fn a_queued_job_is_cancelled_at_once(bed: Bed) {
    let store = bed.open().await;
    let job = store.submit(order("x")).await.unwrap().job;
    let reply = store.request_cancel(job.id).await.unwrap();
    assert_eq!(reply, CancelReply { previous: StateName::Queued, now: StateName::Cancelled });
    assert!(!reply.needs_stop());
    assert_eq!(store.claim(request("a")).await.unwrap(), None);
    let again = store.request_cancel(job.id).await.unwrap();
    assert_eq!(again, CancelReply { previous: StateName::Cancelled, now: StateName::Cancelled });
    assert_eq!(store.get(job.id).await.unwrap().unwrap().completed_at, Some(bed.clock.now()));
}

async fn a_running_job_is_cancelled_by_its_holder(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    let reply = store.request_cancel(job.id).await.unwrap();
    assert!(reply.needs_stop());
    let asked_at = bed.clock.now();
    bed.clock.advance(Duration::from_secs(1));
    store.request_cancel(job.id).await.unwrap();
    let waiting = store.get(job.id).await.unwrap().unwrap();
    assert_eq!(waiting.progress.cancel_requested_at, Some(asked_at), "the first request counts");
    store.finish(&claim, JobEnd::cancelled()).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().progress.state.name(), StateName::Cancelled);
}

async fn finished_beats_cancelled(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    store.request_cancel(job.id).await.unwrap();
    store.finish(&claim, success("done after all")).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().progress.state.name(), StateName::Completed);
    let late = store.request_cancel(job.id).await.unwrap();
    assert_eq!(late.now, StateName::Completed);
}

async fn a_paused_job_waits_for_its_time(bed: Bed) {
    let store = bed.open().await;
    let first = store.submit(order("first")).await.unwrap().job.id;
    let second = store.submit(order("second")).await.unwrap().job.id;
    let (_, claim) = claimed(&store, "a").await;
    let until = bed.clock.now().plus(Duration::from_mins(10));
    assert_eq!(store.pause_until(&claim, until).await.unwrap(), JobState::Paused { until });
    assert_eq!(claimed(&store, "a").await.0.id, second);
    bed.clock.advance(Duration::from_millis(599_999));
    assert_eq!(store.claim(request("a")).await.unwrap(), None);
    assert!(store.finish(&claim, success("late")).await.is_err(), "a paused job has no holder");
    bed.clock.advance(Duration::from_millis(1));
    let (again, claim) = claimed(&store, "a").await;
    assert_eq!((again.id, claim.attempt.number()), (first, 2));
    // A paused job is cancelled immediately.
    store.pause_until(&claim, until.plus(LEASE)).await.unwrap();
    assert_eq!(store.request_cancel(first).await.unwrap().now, StateName::Cancelled);
}

async fn a_heartbeat_tells_what_is_held_and_what_is_to_stop(bed: Bed) {
    let store = bed.open().await;
    for prompt in ["one", "two", "three"] {
        store.submit(order(prompt)).await.unwrap();
    }
    let (one, two) = (claimed(&store, "a").await.1, claimed(&store, "a").await.1);
    claimed(&store, "b").await;
    store.request_cancel(two.job).await.unwrap();
    bed.clock.advance(Duration::from_secs(20));
    let held = store.renew(&Owner::new("a"), LEASE).await.unwrap();
    let running = |claim, cancel_requested| Held { claim, state: StateName::Running, cancel_requested };
    assert_eq!(held, [running(one.clone(), false), running(two, true)]);
    let lease = store.get(one.job).await.unwrap().unwrap().lease.unwrap();
    assert_eq!(lease.expires_at, bed.clock.now().plus(LEASE));
}

async fn who_takes_a_job_is_alive_for_a_whole_lease(bed: Bed) {
    let store = bed.open().await;
    let alive_until = async |job| store.get(job).await.unwrap().unwrap().lease.unwrap().expires_at;
    let first = store.submit(order("first")).await.unwrap().job.id;
    claimed(&store, "a").await;
    // Even right after another renewal.
    let moment = || bed.clock.advance(Duration::from_millis(1));
    moment();
    assert_eq!(store.claim(request("a")).await.unwrap(), None);
    assert_eq!(alive_until(first).await, bed.clock.now().plus(LEASE));
    moment();
    let placed = store.place_and_claim(order("second"), request("a")).await.unwrap().flushed().await.unwrap();
    if placed.claimed.is_none() {
        claimed(&store, "a").await;
    }
    assert_eq!(alive_until(placed.job.id).await, bed.clock.now().plus(LEASE));
}

async fn only_what_is_abandoned_is_rescued(bed: Bed) {
    let store = bed.open().await;
    for home in [here(), here(), Placement::Host("there".into())] {
        store.submit(order_for(AgentKind::Claude, home)).await.unwrap();
    }
    let (silent, alive) = (claimed(&store, "silent").await.1, claimed(&store, "alive").await.1);
    let mut elsewhere = request("silent");
    elsewhere.homes = vec![Placement::Host("there".into())];
    store.claim(elsewhere).await.unwrap().unwrap();
    assert_eq!(store.rescue(rescue_by("r")).await.unwrap(), []);

    bed.clock.advance(LEASE.saturating_sub(Duration::from_millis(1)));
    assert_eq!(store.rescue(rescue_by("r")).await.unwrap(), [], "the lease holds to its last moment");
    store.renew(&alive.owner, LEASE).await.unwrap();
    bed.clock.advance(Duration::from_millis(1));
    let rescued = store.rescue(rescue_by("r")).await.unwrap();
    assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [silent.job]);
    let expected = JobState::Interrupted { attempt: silent.attempt, owner: Owner::new("r") };
    assert_eq!(rescued[0].progress.state, expected);
    assert_eq!(store.rescue(rescue_by("r")).await.unwrap(), [], "it is taken over once");
}

async fn a_lease_of_a_clock_that_was_ahead_does_not_hold_for_ever(bed: Bed) {
    let store = bed.open().await;
    let right = bed.clock.now();
    store.submit(order("x")).await.unwrap();
    bed.clock.advance(Duration::from_hours(24 * 365));
    let (job, _) = claimed(&store, "a").await;
    bed.clock.set(right);
    let rescued = store.rescue(rescue_by("b")).await.unwrap();
    assert_eq!(rescued.iter().map(|job| job.id).collect::<Vec<_>>(), [job.id]);
}

async fn the_proven_dead_need_no_expired_lease(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (_, claim) = claimed(&store, "dead").await;
    let proven = RescueRequest { dead: vec![Owner::new("dead")], ..rescue_by("r") };
    assert_eq!(store.rescue(proven).await.unwrap()[0].id, claim.job);
}

async fn a_rescuer_that_dies_is_rescued_in_turn(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (_, claim) = claimed(&store, "a").await;
    bed.clock.advance(LEASE);
    assert_eq!(store.rescue(rescue_by("r1")).await.unwrap().len(), 1);
    assert_eq!(store.rescue(rescue_by("r2")).await.unwrap(), [], "somebody is at it");
    bed.clock.advance(LEASE);
    let again = store.rescue(rescue_by("r2")).await.unwrap();
    assert_eq!(again[0].claim().unwrap(), model::Claim { owner: Owner::new("r2"), ..claim });
}

async fn the_late_word_of_a_rescued_owner_is_refused(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (_, old) = claimed(&store, "slow").await;
    bed.clock.advance(LEASE);
    let rescued = store.rescue(rescue_by("r")).await.unwrap().remove(0).claim().unwrap();
    assert!(matches!(
        refused(&store.finish(&old, success("late")).await.unwrap_err()),
        TransitionError::Stale { now: StateName::Interrupted, .. }
    ));
    assert_eq!(store.renew(&old.owner, LEASE).await.unwrap(), [], "it can see that it has lost the job");
    assert_eq!(store.requeue(&rescued).await.unwrap(), JobState::Queued);
    let (job, new) = claimed(&store, "slow").await;
    assert_eq!((new.job, new.attempt.number()), (old.job, 2));
    let late = store.finish(&old, success("late")).await.unwrap_err();
    assert!(matches!(refused(&late), TransitionError::Stale { .. }));
    store.finish(&new, success("in time")).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().outcome.unwrap().text, "in time");
}

async fn a_live_run_is_adopted_as_the_same_attempt(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (_, old) = claimed(&store, "daemon-1").await;
    let new = store.adopt(&old, &Owner::new("daemon-2"), LEASE).await.unwrap();
    assert_eq!(new.attempt, old.attempt);
    let job = store.get(old.job).await.unwrap().unwrap();
    assert_eq!(job.claim(), Some(new.clone()));
    assert_eq!(job.lease.unwrap().owner, new.owner);
    assert!(store.finish(&old, success("late")).await.is_err());
    // A rescuer adopts a live run in the same way.
    bed.clock.advance(LEASE);
    let rescued = store.rescue(rescue_by("daemon-3")).await.unwrap().remove(0).claim().unwrap();
    let kept = store.adopt(&rescued, &rescued.owner, LEASE).await.unwrap();
    assert_eq!(store.get(old.job).await.unwrap().unwrap().progress.state.name(), StateName::Running);
    store.finish(&kept, success("done")).await.unwrap();
}

async fn an_interrupted_job_is_queued_again_while_attempts_are_left(bed: Bed) {
    let store = bed.open().await;
    store.submit(NewJob { max_attempts: 2, ..order("x") }).await.unwrap();
    let (_, first) = claimed(&store, "a").await;
    assert_eq!(store.interrupt(&first).await.unwrap().name(), StateName::Interrupted);
    assert_eq!(store.claim(request("b")).await.unwrap(), None, "nobody gets it before it is cleared up");
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

async fn an_interrupted_job_that_is_to_end_is_not_queued_again(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("x")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    store.interrupt(&claim).await.unwrap();
    assert!(store.request_cancel(job.id).await.unwrap().needs_stop());
    assert_eq!(store.requeue(&claim).await.unwrap(), JobState::Ended { how: TerminalState::Cancelled });
}
