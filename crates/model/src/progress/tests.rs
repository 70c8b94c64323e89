use super::*;

const NOW: Timestamp = Timestamp::MAX;

fn owner(name: &str) -> Owner {
    Owner::new(name)
}

fn claim(attempt: u32, name: &str) -> Claim {
    let job = JobId::first_of(NOW);
    Claim { job, attempt: Attempt::new(attempt), owner: owner(name) }
}

/// Takes the steps one after the other; all but the last must exist.
fn taken(steps: &[Transition]) -> Result<Progress, TransitionError> {
    let (last, before) = steps.split_last().unwrap();
    let mut progress = Progress::queued(2);
    for step in before {
        progress = progress.apply(step, NOW).unwrap();
    }
    progress.apply(last, NOW)
}

fn claimed_by(name: &str) -> Transition {
    Transition::Claim { owner: owner(name) }
}

fn finish(claim: Claim, how: TerminalState) -> Transition {
    Transition::Finish { claim, how }
}

fn every_step() -> Vec<Transition> {
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
fn no_step_leaves_the_diagram() {
    let mut seen = vec![Progress::queued(2)];
    let mut next = 0;
    while next < seen.len() && seen.len() < 2_000 {
        let from = seen[next].clone();
        for step in every_step() {
            let Ok(to) = from.apply(&step, NOW) else { continue };
            let (before, after) = (from.state.name(), to.state.name());
            assert!(before == after || before.may_become(after), "{before} -> {after} by {}", step.name());
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
fn the_first_end_stays() {
    let steps = [claimed_by("a"), finish(claim(1, "a"), TerminalState::Completed)];
    let done = taken(&steps).unwrap();
    for step in every_step() {
        assert_eq!(
            done.apply(&step, NOW),
            Err(TransitionError::Ended(TerminalState::Completed)),
            "{}",
            step.name()
        );
    }
}

#[test]
fn a_queued_job_is_cancelled_at_once_and_a_running_one_by_its_holder() {
    let queued = taken(&[Transition::Cancel]).unwrap();
    assert_eq!(queued.state, JobState::Ended { how: TerminalState::Cancelled });
    let running = taken(&[claimed_by("a"), Transition::Cancel]).unwrap();
    assert_eq!(running.state.name(), StateName::Running);
    assert_eq!(running.cancel_requested_at, Some(NOW));
}

#[test]
fn finished_beats_cancelled() {
    let steps = [claimed_by("a"), Transition::Cancel, finish(claim(1, "a"), TerminalState::Completed)];
    assert_eq!(taken(&steps).unwrap().state.name(), StateName::Completed);
}

#[test]
fn a_job_that_is_to_end_neither_pauses_nor_starts_again() {
    let paused =
        [claimed_by("a"), Transition::Cancel, Transition::Pause { claim: claim(1, "a"), until: NOW }];
    assert_eq!(taken(&paused).unwrap().state.name(), StateName::Cancelled);
    let (interrupt, requeue) =
        (Transition::Interrupt { claim: claim(1, "a") }, Transition::Requeue { claim: claim(1, "a") });
    let requeued = [claimed_by("a"), interrupt, Transition::Cancel, requeue];
    assert_eq!(taken(&requeued).unwrap().state.name(), StateName::Cancelled);
}

#[test]
fn the_late_word_of_a_rescued_owner_is_refused() {
    let rescue = Transition::Rescue { from: owner("a"), rescuer: owner("b") };
    let late = taken(&[claimed_by("a"), rescue.clone(), finish(claim(1, "a"), TerminalState::Completed)]);
    assert!(matches!(late, Err(TransitionError::Stale { now: StateName::Interrupted, .. })));
    // The rescuer found out that the run had ended well, and says so.
    let found = taken(&[claimed_by("a"), rescue, finish(claim(1, "b"), TerminalState::Completed)]);
    assert_eq!(found.unwrap().state.name(), StateName::Completed);
}

#[test]
fn an_attempt_of_the_same_owner_is_fenced_off_too() {
    let again = [
        claimed_by("a"),
        Transition::Interrupt { claim: claim(1, "a") },
        Transition::Requeue { claim: claim(1, "a") },
        claimed_by("a"),
        finish(claim(1, "a"), TerminalState::Failed),
    ];
    assert!(matches!(taken(&again), Err(TransitionError::Stale { .. })));
}

#[test]
fn interruptions_use_up_the_attempts_and_pauses_do_not() {
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
    assert!(taken(&steps[..9]).is_ok());
    assert_eq!(taken(&steps), Err(TransitionError::NoAttemptLeft { max_attempts: 2 }));
}

#[test]
fn a_pause_is_not_over_before_its_time() {
    let pause = Transition::Pause { claim: claim(1, "a"), until: NOW };
    let paused = taken(&[claimed_by("a"), pause]).unwrap();
    let early = Timestamp::from_millis(NOW.as_millis() - 1);
    assert!(paused.apply(&Transition::Wake, early).is_err());
    assert_eq!(paused.apply(&Transition::Wake, NOW).unwrap().state, JobState::Queued);
}
