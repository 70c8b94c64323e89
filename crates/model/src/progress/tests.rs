use super::*;

const NOW: Timestamp = Timestamp::MAX;

fn owner(name: &str) -> Owner {
    Owner::new(name)
}

fn claim(attempt: u32, name: &str) -> Claim {
    let job = JobId::first_of(NOW);
    Claim { job, attempt: Attempt::new(attempt), owner: owner(name) }
}

/// Applies the transitions in order; all but the last must succeed.
fn apply_all(transitions: &[Transition]) -> Result<Progress, TransitionError> {
    let (last, before) = transitions.split_last().unwrap();
    let mut progress = Progress::queued(2);
    for transition in before {
        progress = progress.apply(transition, NOW).unwrap();
    }
    progress.apply(last, NOW)
}

fn claimed_by(name: &str) -> Transition {
    Transition::Claim { owner: owner(name) }
}

fn finish(claim: Claim, how: TerminalState) -> Transition {
    Transition::Finish { claim, how }
}

fn every_transition() -> Vec<Transition> {
    let held = claim(1, "a");
    vec![
        claimed_by("a"),
        Transition::Wake,
        Transition::Pause { claim: held.clone(), until: NOW },
        Transition::Interrupt { claim: held.clone() },
        Transition::Rescue { from: owner("a"), rescuer: owner("b") },
        Transition::Adopt { claim: held.clone(), owner: owner("b") },
        Transition::Requeue { claim: held.clone() },
        finish(held, TerminalState::Completed),
        Transition::Cancel,
    ]
}

#[test]
fn transitions_follow_the_state_diagram() {
    let mut seen = vec![Progress::queued(2)];
    let mut next = 0;
    while next < seen.len() && seen.len() < 2_000 {
        let from = seen[next].clone();
        for transition in every_transition() {
            let Ok(to) = from.apply(&transition, NOW) else { continue };
            let (before, after) = (from.state.name(), to.state.name());
            assert!(
                before == after || before.may_become(after),
                "{before} -> {after} by {}",
                transition.name()
            );
            if !seen.contains(&to) {
                seen.push(to);
            }
        }
        next += 1;
    }
    for state in StateName::ALL {
        let expected = !matches!(state, StateName::Failed | StateName::Timeout);
        assert_eq!(seen.iter().any(|progress| progress.state.name() == state), expected, "{state}");
    }
}

#[test]
fn first_terminal_state_wins() {
    let steps = [claimed_by("a"), finish(claim(1, "a"), TerminalState::Completed)];
    let done = apply_all(&steps).unwrap();
    for transition in every_transition() {
        assert_eq!(
            done.apply(&transition, NOW),
            Err(TransitionError::Ended(TerminalState::Completed)),
            "{}",
            transition.name()
        );
    }
}

#[test]
fn cancel_ends_queued_job_and_marks_running_one() {
    let queued = apply_all(&[Transition::Cancel]).unwrap();
    assert_eq!(queued.state, JobState::Ended { how: TerminalState::Cancelled });
    let running = apply_all(&[claimed_by("a"), Transition::Cancel]).unwrap();
    assert_eq!(running.state.name(), StateName::Running);
    assert_eq!(running.cancel_requested_at, Some(NOW));
}

#[test]
fn finished_beats_cancelled() {
    let steps = [claimed_by("a"), Transition::Cancel, finish(claim(1, "a"), TerminalState::Completed)];
    assert_eq!(apply_all(&steps).unwrap().state.name(), StateName::Completed);
}

#[test]
fn canceled_job_is_not_paused_or_requeued() {
    let paused =
        [claimed_by("a"), Transition::Cancel, Transition::Pause { claim: claim(1, "a"), until: NOW }];
    assert_eq!(apply_all(&paused).unwrap().state.name(), StateName::Cancelled);
    let (interrupt, requeue) =
        (Transition::Interrupt { claim: claim(1, "a") }, Transition::Requeue { claim: claim(1, "a") });
    let requeued = [claimed_by("a"), interrupt, Transition::Cancel, requeue];
    assert_eq!(apply_all(&requeued).unwrap().state.name(), StateName::Cancelled);
}

#[test]
fn stale_owner_is_fenced_off() {
    let rescue = Transition::Rescue { from: owner("a"), rescuer: owner("b") };
    let late = apply_all(&[claimed_by("a"), rescue.clone(), finish(claim(1, "a"), TerminalState::Completed)]);
    assert!(matches!(late, Err(TransitionError::Stale { now: StateName::Interrupted, .. })));
    // The rescuer found that the run had completed.
    let found = apply_all(&[claimed_by("a"), rescue, finish(claim(1, "b"), TerminalState::Completed)]);
    assert_eq!(found.unwrap().state.name(), StateName::Completed);
}

#[test]
fn stale_attempt_of_same_owner_is_fenced_off() {
    let again = [
        claimed_by("a"),
        Transition::Interrupt { claim: claim(1, "a") },
        Transition::Requeue { claim: claim(1, "a") },
        claimed_by("a"),
        finish(claim(1, "a"), TerminalState::Failed),
    ];
    assert!(matches!(apply_all(&again), Err(TransitionError::Stale { .. })));
}

#[test]
fn interruptions_use_attempts_pauses_do_not() {
    let held = |attempt| claim(attempt, "a");
    let pause = |attempt| Transition::Pause { claim: held(attempt), until: NOW };
    let interrupt = |attempt| Transition::Interrupt { claim: held(attempt) };
    let requeue = |attempt| Transition::Requeue { claim: held(attempt) };
    let steps = [
        claimed_by("a"),
        pause(1),
        Transition::Wake,
        claimed_by("a"),
        pause(2),
        Transition::Wake,
        claimed_by("a"),
        interrupt(3),
        requeue(3),
        claimed_by("a"),
        interrupt(4),
        requeue(4),
    ];
    assert!(apply_all(&steps[..9]).is_ok());
    assert_eq!(apply_all(&steps), Err(TransitionError::NoAttemptLeft { max_attempts: 2 }));
}

#[test]
fn paused_job_is_not_woken_early() {
    let pause = Transition::Pause { claim: claim(1, "a"), until: NOW };
    let paused = apply_all(&[claimed_by("a"), pause]).unwrap();
    let early = Timestamp::from_millis(NOW.as_millis() - 1);
    assert!(paused.apply(&Transition::Wake, early).is_err());
    assert_eq!(paused.apply(&Transition::Wake, NOW).unwrap().state, JobState::Queued);
}

#[test]
fn every_state_survives_serialization() {
    let held = claim(1, "a");
    let steps = [
        Transition::Cancel,
        claimed_by("a"),
        Transition::Pause { claim: held.clone(), until: NOW },
        Transition::Interrupt { claim: held.clone() },
        finish(held, TerminalState::Completed),
    ];
    let running = apply_all(&[claimed_by("a")]).unwrap();
    let mut states = vec![Progress::queued(2), running.clone()];
    states.extend(steps.iter().filter_map(|step| running.apply(step, NOW).ok()));
    assert_eq!(states.len(), 6);
    for progress in states {
        let text = serde_json::to_string(&progress).unwrap();
        assert_eq!(text.matches("\"attempt\"").count(), 1, "{text}");
        assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress, "{text}");
    }
}
