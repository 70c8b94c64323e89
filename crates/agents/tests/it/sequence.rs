//! Calls with several runs: the decision to resume, and the combined outcome.

use std::time::Duration;

use agents::{CONTINUE_PROMPT, RunSequence, SequenceStep};
use model::{
    AgentKind, BackgroundStatus, BackgroundTask, CallSpec, Deadline, Exit, Failure, FailureKind, Limits,
    Outcome, PermissionDenial, RefusedAction, RefusedKind, SessionChoice, ToolChoice, Totals, Usage, Verdict,
};
use proptest::prelude::*;

fn spec() -> CallSpec {
    CallSpec::new(AgentKind::Claude, "Tidy up.", "/work")
}

fn done(text: &str) -> Outcome {
    Outcome {
        agent: AgentKind::Claude,
        verdict: Verdict::Success,
        text: text.to_owned(),
        text_cut: 1,
        structured_output: None,
        session: Some("session-1".parse().unwrap()),
        session_mismatch: None,
        model: Some("claude-haiku-4-5".to_owned()),
        usage: Some(Usage { input: 100, output: 20, cached: 40, reasoning: 5 }),
        cost_usd: Some(0.25),
        session_totals: None,
        turns: Some(3),
        duration_ms: 1000,
        permission_denials: Vec::new(),
        background: Vec::new(),
        refusals: Vec::new(),
        implausible: Vec::new(),
        retries: 1,
        exit: Some(Exit::Code(0)),
    }
}

fn failed(kind: FailureKind, text: &str) -> Outcome {
    let failure = Failure { kind, message: "the agent's own words".to_owned() };
    Outcome { verdict: Verdict::Failed(failure), exit: Some(Exit::Code(1)), ..done(text) }
}

fn out_of_turns(text: &str) -> Outcome {
    failed(FailureKind::MaxTurns, text)
}

fn wait(next: &SequenceStep) -> u64 {
    match next {
        SequenceStep::Resume { delay } => delay.as_secs(),
        SequenceStep::Done(outcome) => panic!("it does not go on: {outcome:?}"),
    }
}

fn end(next: SequenceStep) -> Outcome {
    match next {
        SequenceStep::Done(outcome) => outcome,
        SequenceStep::Resume { delay } => panic!("it goes on after {delay:?}"),
    }
}

fn kind(outcome: &Outcome) -> &FailureKind {
    &outcome.failure().expect("it failed").kind
}

#[test]
fn completed_call_takes_one_run() {
    let mut sequence = RunSequence::new(spec(), 5);
    assert_eq!(*sequence.spec(), spec());
    assert_eq!(sequence.next(done("all")), SequenceStep::Done(done("all")));
}

#[test]
fn max_turns_resumes_session_and_sums_usage() {
    let mut sequence = RunSequence::new(CallSpec { session: SessionChoice::ContinueLatest, ..spec() }, 5);
    assert_eq!(wait(&sequence.next(out_of_turns("one"))), 2);
    assert_eq!(sequence.spec().prompt, CONTINUE_PROMPT);
    assert_eq!(sequence.spec().session, SessionChoice::Resume("session-1".parse().unwrap()));
    let outcome = end(sequence.next(done("two")));
    let expected = Outcome {
        text: "one\n\ntwo".to_owned(),
        text_cut: 2,
        usage: Some(Usage { input: 200, output: 40, cached: 80, reasoning: 10 }),
        cost_usd: Some(0.5),
        turns: Some(6),
        duration_ms: 2000,
        retries: 2,
        ..done("")
    };
    assert_eq!(outcome, expected);
}

#[test]
fn resume_keeps_other_call_options() {
    let asked = CallSpec {
        model: Some("opus".to_owned()),
        system_prompt: Some("You tidy.".to_owned()),
        add_dirs: vec!["/more".into()],
        output_schema: Some("{}".to_owned()),
        ..spec()
    };
    let mut sequence = RunSequence::new(asked.clone(), 5).with_turns_per_run(25);
    let started = sequence.spec().clone();
    assert_eq!(started, CallSpec { max_turns: Some(25), ..asked });
    sequence.next(out_of_turns("one"));
    let (prompt, session) = (sequence.spec().prompt.clone(), sequence.spec().session.clone());
    let wall = sequence.spec().limits.wall;
    assert_eq!(
        *sequence.spec(),
        CallSpec { prompt, session, limits: Limits { wall, ..started.limits }, ..started }
    );
}

#[test]
fn caller_turn_limit_is_never_exceeded() {
    let mut sequence = RunSequence::new(CallSpec { max_turns: Some(3), ..spec() }, 5).with_turns_per_run(25);
    assert_eq!(sequence.spec().max_turns, Some(3));
    let outcome = end(sequence.next(out_of_turns("so far")));
    assert_eq!((kind(&outcome), outcome.text.as_str()), (&FailureKind::MaxTurns, "so far"));
}

#[test]
fn call_without_session_is_not_resumed() {
    let without = Outcome { session: None, ..out_of_turns("one") };
    assert_eq!(RunSequence::new(spec(), 5).next(without.clone()), SequenceStep::Done(without));
}

#[test]
fn named_agent_resumes_through_its_session() {
    let agent_name = Some("reviewer".parse().unwrap());
    let mut sequence = RunSequence::new(CallSpec { agent_name, tools: ToolChoice::None, ..spec() }, 5);
    sequence.next(out_of_turns("one"));
    // Passed again with a session, it would be rejected.
    assert_eq!((&sequence.spec().agent_name, &sequence.spec().tools), (&None, &ToolChoice::Full));
}

#[test]
fn budget_covers_all_runs() {
    let mut sequence = RunSequence::new(CallSpec { max_budget_usd: Some(0.5), ..spec() }, 5);
    sequence.next(out_of_turns("one"));
    assert_eq!(sequence.spec().max_budget_usd, Some(0.25), "a run costs a quarter");
    let outcome = end(sequence.next(out_of_turns("two")));
    assert_eq!((kind(&outcome), outcome.text.as_str()), (&FailureKind::MaxBudget, "one\n\ntwo"));
}

#[test]
fn only_max_turns_is_resumed() {
    for kind in [
        FailureKind::MaxBudget,
        FailureKind::Auth,
        FailureKind::RateLimit { retry_after: None },
        FailureKind::Stopped,
        FailureKind::Deadline { which: Deadline::Idle },
        FailureKind::SupervisorLost,
    ] {
        let outcome = failed(kind, "so far");
        assert_eq!(RunSequence::new(spec(), 5).next(outcome.clone()), SequenceStep::Done(outcome));
    }
}

#[test]
fn last_resume_fails_with_max_turns() {
    let mut sequence = RunSequence::new(spec(), 5);
    let waits: Vec<_> = (0..5).map(|run| wait(&sequence.next(out_of_turns(&run.to_string())))).collect();
    assert_eq!(waits, [2, 4, 8, 16, 32]);
    assert_eq!(sequence.resumes(), 5);
    let outcome = end(sequence.next(out_of_turns("5")));
    assert_eq!(kind(&outcome), &FailureKind::MaxTurns);
    assert_eq!(outcome.text, "0\n\n1\n\n2\n\n3\n\n4\n\n5");
    assert_eq!(outcome.turns, Some(18));
}

#[test]
fn resume_follows_new_session_id() {
    let mut sequence = RunSequence::new(spec(), 5);
    sequence.next(out_of_turns("one"));
    sequence.next(Outcome { session: Some("session-2".parse().unwrap()), ..out_of_turns("two") });
    assert_eq!(sequence.spec().session, SessionChoice::Resume("session-2".parse().unwrap()));
    let outcome = end(sequence.next(Outcome { session: None, ..failed(FailureKind::Stopped, "") }));
    assert_eq!(outcome.session, Some("session-2".parse().unwrap()), "the last that can be resumed");
    assert_eq!(outcome.text, "one\n\ntwo");
}

#[test]
fn lost_session_is_not_offered_for_resume() {
    let mut sequence = RunSequence::new(spec(), 5);
    sequence.next(out_of_turns("one"));
    let lost = Outcome { session: None, ..failed(FailureKind::SessionNotFound, "") };
    assert_eq!(end(sequence.next(lost)).session, None);
}

#[test]
fn refusals_of_all_runs_are_merged() {
    let denial = |tool: &str| PermissionDenial { tool: tool.to_owned(), tool_use_id: None, detail: None };
    let refusal =
        |kind, subject: &str, count| RefusedAction { count, ..RefusedAction::new(kind, subject, None) };
    let tool = |subject, count| refusal(RefusedKind::Tool, subject, count);
    let mut sequence = RunSequence::new(spec(), 5);
    let first = vec![tool("Bash", 2), refusal(RefusedKind::Write, "/etc/x", 1)];
    sequence.next(Outcome {
        permission_denials: vec![denial("Bash")],
        refusals: first,
        ..out_of_turns("one")
    });
    let outcome = end(sequence.next(Outcome {
        permission_denials: vec![denial("Write")],
        refusals: vec![tool("Bash", 1), tool("Write", 1)],
        ..done("two")
    }));
    assert!(outcome.is_success(), "{outcome:?}");
    assert_eq!(outcome.permission_denials, [denial("Bash"), denial("Write")]);
    let all = [tool("Bash", 3), refusal(RefusedKind::Write, "/etc/x", 1), tool("Write", 1)];
    assert_eq!(outcome.refusals, all);
}

#[test]
fn task_killed_in_earlier_run_makes_call_incomplete() {
    let task = |status| BackgroundTask { description: "the build".to_owned(), status };
    for (status, incomplete) in [(BackgroundStatus::Killed, true), (BackgroundStatus::Failed, false)] {
        let mut sequence = RunSequence::new(spec(), 5);
        sequence.next(Outcome { background: vec![task(status)], ..out_of_turns("one") });
        let outcome = end(sequence.next(done("two")));
        assert_eq!(outcome.failure().is_some(), incomplete, "{outcome:?}");
        assert_eq!((outcome.text.as_str(), outcome.background), ("one\n\ntwo", vec![task(status)]));
    }
}

#[test]
fn time_limit_covers_all_runs_and_backoffs() {
    let limits = Limits { wall: Some(Duration::from_secs(10)), ..Limits::default() };
    let mut sequence = RunSequence::new(CallSpec { limits, ..spec() }, 5);
    sequence.next(Outcome { duration_ms: 3000, ..out_of_turns("one") });
    assert_eq!(
        sequence.spec().limits.wall,
        Some(Duration::from_secs(5)),
        "3 s of work and 2 s of waiting are gone"
    );
    let outcome = end(sequence.next(Outcome { duration_ms: 1000, ..out_of_turns("two") }));
    assert_eq!(kind(&outcome), &FailureKind::Deadline { which: Deadline::Wall }, "the next wait is 4 s");
    assert_eq!(outcome.text, "one\n\ntwo");
}

#[test]
fn next_run_gets_session_totals() {
    let totals = Totals { usage: None, cost_usd: Some(0.75) };
    let mut sequence = RunSequence::new(spec(), 5);
    assert_eq!(sequence.totals_before(), None);
    sequence.next(Outcome { session_totals: Some(totals), ..out_of_turns("one") });
    assert_eq!(sequence.totals_before(), Some(totals));
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    let numbers = (0_u64..5000, proptest::option::of(0_u32..9), proptest::option::of(0_u32..9));
    (0..4_u8, "[a-z]{0,3}", proptest::option::of("[a-z]{1,3}"), numbers).prop_map(
        |(how, text, session, (duration_ms, turns, quarters))| {
            let outcome = match how {
                0 => done(&text),
                1 => failed(FailureKind::Auth, &text),
                _ => out_of_turns(&text),
            };
            let session = session.map(|id| id.parse().unwrap());
            // Quarters add up without rounding errors.
            let cost_usd = quarters.map(|quarters| f64::from(quarters) / 4.0);
            Outcome { session, duration_ms, turns, cost_usd, ..outcome }
        },
    )
}

proptest! {
    #[test]
    fn outcomes_add_up_across_serialization(
        runs in proptest::collection::vec(any_outcome(), 1..9),
        limit in 0_u32..7,
    ) {
        let mut sequence = RunSequence::new(spec(), limit);
        let mut kept = sequence.clone();
        for (run, outcome) in runs.iter().enumerate() {
            let json = serde_json::to_string(&kept).unwrap();
            kept = serde_json::from_str(&json).unwrap();
            let next = sequence.next(outcome.clone());
            prop_assert_eq!(&kept.next(outcome.clone()), &next);
            prop_assert!(sequence.resumes() <= limit);
            let SequenceStep::Done(told) = next else { continue };
            let taken = &runs[..=run];
            let texts: Vec<_> = taken.iter().map(|run| &*run.text).filter(|text| !text.is_empty()).collect();
            prop_assert_eq!(&told.text, &texts.join("\n\n"));
            prop_assert_eq!(told.duration_ms, taken.iter().map(|run| run.duration_ms).sum::<u64>());
            prop_assert_eq!(told.turns.unwrap_or(0), taken.iter().filter_map(|run| run.turns).sum::<u32>());
            let cost: f64 = taken.iter().filter_map(|run| run.cost_usd).sum();
            prop_assert!((told.cost_usd.unwrap_or(0.0) - cost).abs() < f64::EPSILON);
            prop_assert_eq!(&told.verdict, &outcome.verdict);
            return Ok(());
        }
    }
}

#[test]
fn pause_does_not_count_as_resume() {
    let limits = Limits { wall: Some(Duration::from_secs(100)), ..Limits::default() };
    let mut sequence = RunSequence::new(CallSpec { limits, ..spec() }, 0);
    let limited = || failed(FailureKind::RateLimit { retry_after: None }, "so far");
    assert_eq!(wait(&sequence.next_after_pause(limited(), Duration::from_mins(1))), 60);
    assert_eq!((sequence.resumes(), sequence.spec().limits.wall), (0, Some(Duration::from_secs(39))));
    assert_eq!(sequence.spec().session, SessionChoice::Resume("session-1".parse().unwrap()));
    let outcome = end(sequence.next_after_pause(limited(), Duration::from_mins(1)));
    assert_eq!(*kind(&outcome), FailureKind::RateLimit { retry_after: None });
    assert_eq!(outcome.text, "so far\n\nso far");
}

#[test]
fn pause_without_session_repeats_the_prompt() {
    let mut sequence = RunSequence::new(spec(), 5);
    let limited = Outcome { session: None, ..failed(FailureKind::RateLimit { retry_after: None }, "") };
    assert_eq!(wait(&sequence.next_after_pause(limited, Duration::from_secs(1))), 1);
    assert_eq!(
        (sequence.spec().prompt.as_str(), &sequence.spec().session),
        ("Tidy up.", &SessionChoice::New)
    );
}
