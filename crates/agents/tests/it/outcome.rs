//! How the agent's word, the supervisor's report and stderr are weighed.

use agents::{Ended, ParseLimits, Parser, Summary, judge};
use model::{
    AgentKind, Deadline, End, Exit, ExpectedSession, FailureKind, NotStarted, NotStartedReason, Outcome,
    RunReport, Totals, TreeEnd, TreeUsage, Usage,
};

const OLD: &str = "00000000-0000-4000-8000-00000000000a";

struct Run {
    agent: AgentKind,
    stdout: &'static str,
    stderr: &'static str,
    end: End,
    code: i32,
    session: ExpectedSession,
    has_schema: bool,
    before: Option<Totals>,
}

impl Run {
    fn of(agent: AgentKind, stdout: &'static str) -> Self {
        Self {
            agent,
            stdout,
            stderr: "",
            end: End::Exited,
            code: 0,
            session: ExpectedSession::Any,
            has_schema: false,
            before: None,
        }
    }

    fn summary(&self) -> Summary {
        let mut parser = Parser::new(self.agent, ParseLimits::default());
        parser.feed(self.stdout.as_bytes(), &mut |_| {});
        parser.finish(&mut |_| {})
    }

    fn outcome(&self) -> Outcome {
        let report = RunReport {
            end: self.end.clone(),
            exit: Some(Exit::Code(self.code)),
            ended_at_ms: 1_000_000,
            duration_ms: 5,
            output_bytes: self.stdout.len() as u64,
            error_bytes: self.stderr.len() as u64,
            usage: TreeUsage::default(),
            descendants_ended: 0,
            tree: TreeEnd::ProvenEmpty,
        };
        judge(&Ended {
            agent: self.agent,
            summary: &self.summary(),
            report: &report,
            stderr_tail: self.stderr,
            session: &self.session,
            model: Some("asked-for"),
            has_schema: self.has_schema,
            before: self.before,
        })
    }

    fn failure(&self) -> (FailureKind, String) {
        let outcome = self.outcome();
        assert!(outcome.hint().is_some_and(|hint| !hint.is_empty()));
        let failure = outcome.failure().unwrap_or_else(|| panic!("{outcome:?}"));
        (failure.kind.clone(), failure.message.clone())
    }
}

const DONE: &str =
    r#"{"type":"result","subtype":"success","is_error":false,"result":"fine","session_id":"s1"}"#;

fn resumed() -> ExpectedSession {
    ExpectedSession::Resumed(OLD.parse().unwrap())
}

#[test]
fn an_agent_that_said_it_is_done_is_done_whatever_ended_its_process() {
    for end in [End::Exited, End::Stopped, End::Deadline { which: Deadline::Wall }, End::SupervisorLost] {
        for code in [0, 1, 143] {
            let outcome = Run { end: end.clone(), code, ..Run::of(AgentKind::Claude, DONE) }.outcome();
            assert!(outcome.is_success(), "{end} {code}");
            assert_eq!((outcome.text.as_str(), outcome.model.as_deref()), ("fine", Some("asked-for")));
        }
    }
}

#[test]
fn without_the_agents_word_no_exit_code_is_a_success() {
    for (agent, stdout) in [
        (AgentKind::Claude, r#"{"type":"assistant","message":{"content":[{"type":"text","text":"half"}]}}"#),
        (AgentKind::Codex, r#"{"type":"item.completed","item":{"type":"agent_message","text":"half"}}"#),
        (AgentKind::Gemini, r#"{"type":"message","role":"assistant","content":"half","delta":true}"#),
    ] {
        let run = Run::of(agent, stdout);
        assert_eq!(run.failure().0, FailureKind::InvalidOutput, "{agent}");
        assert_eq!(run.outcome().text, "half", "{agent}");
    }
}

#[test]
fn output_that_is_no_json_is_told_in_the_failure() {
    let (kind, message) = Run::of(AgentKind::Claude, "Segmentation fault\n").failure();
    assert_eq!(kind, FailureKind::InvalidOutput);
    assert!(message.ends_with("exit code 0: Segmentation fault"), "{message}");
}

#[test]
fn nothing_on_stdout_is_a_failure_with_the_words_of_stderr() {
    let run = Run { stderr: "TypeError: boom\n", code: 1, ..Run::of(AgentKind::Claude, "") };
    assert_eq!(
        run.failure(),
        (FailureKind::EmptyOutput, "exit code 1, nothing on stdout: TypeError: boom".to_owned())
    );
    assert_eq!(Run::of(AgentKind::Codex, "").failure().0, FailureKind::EmptyOutput);
}

#[test]
fn the_ends_from_outside_keep_their_names_and_the_last_trouble() {
    let retry = r#"{"type":"system","subtype":"api_retry","attempt":1,"error_status":401,"error":"authentication_failed"}"#;
    let ends = [
        (End::Deadline { which: Deadline::Idle }, FailureKind::Deadline { which: Deadline::Idle }),
        (End::OutputLimit, FailureKind::OutputLimit),
        (End::Stopped, FailureKind::Stopped),
        (End::SpoolFailed { message: "disk full".into() }, FailureKind::SpoolFailed),
        (End::SupervisorLost, FailureKind::SupervisorLost),
    ];
    for (end, kind) in ends {
        let (found, message) = Run { end, ..Run::of(AgentKind::Claude, retry) }.failure();
        assert_eq!(found, kind);
        assert!(message.ends_with("before that: authentication_failed (HTTP 401)"), "{message}");
    }
    let reason = NotStartedReason::ProgramMissing;
    let end = End::NotStarted(NotStarted { reason, message: "no such program".into() });
    let run = Run { end, ..Run::of(AgentKind::Claude, "") };
    assert_eq!(run.failure().0, FailureKind::NotStarted { reason });
}

#[test]
fn a_denied_tool_is_a_failure_although_the_agent_exits_with_0() {
    let stdout = r#"{"type":"result","subtype":"success","is_error":false,"result":"could not","permission_denials":[{"tool_name":"Bash","tool_use_id":"t","tool_input":{"command":"ls"}}]}"#;
    let run = Run::of(AgentKind::Claude, stdout);
    assert_eq!(
        run.failure(),
        (FailureKind::PermissionDenied, r#"`Bash` was denied: {"command":"ls"}"#.to_owned())
    );
    assert_eq!((run.outcome().text.as_str(), run.outcome().permission_denials.len()), ("could not", 1));
}

#[test]
fn a_resume_that_began_a_new_session_is_not_a_success() {
    let stdout =
        "{\"type\":\"thread.started\",\"thread_id\":\"new-one\"}\n{\"type\":\"turn.completed\",\"usage\":{}}";
    let run = Run { session: resumed(), ..Run::of(AgentKind::Codex, stdout) };
    let (kind, message) = run.failure();
    assert_eq!(kind, FailureKind::SessionNotFound);
    assert!(message.contains(OLD) && message.contains("new-one"), "{message}");
    assert_eq!(run.outcome().session_mismatch.unwrap().got, "new-one");
}

#[test]
fn a_schema_that_was_not_kept_to_is_invalid_output() {
    let run = Run { has_schema: true, ..Run::of(AgentKind::Claude, DONE) };
    assert_eq!(run.failure().0, FailureKind::InvalidOutput);
    let codex = |stdout| Run { has_schema: true, ..Run::of(AgentKind::Codex, stdout) };
    let kept = codex(
        "{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"{\\\"a\\\":1}\"}}\n{\"type\":\"turn.completed\"}",
    );
    assert_eq!(kept.outcome().structured_output.as_deref(), Some(r#"{"a":1}"#));
    let broken = codex(
        "{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"sorry\"}}\n{\"type\":\"turn.completed\"}",
    );
    assert_eq!(broken.failure().0, FailureKind::InvalidOutput);
}

#[test]
fn a_success_without_an_answer_and_without_a_model_is_none() {
    let stdout = r#"{"type":"result","status":"success","stats":{"total_tokens":0,"input_tokens":0}}"#;
    assert_eq!(Run::of(AgentKind::Gemini, stdout).failure().0, FailureKind::EmptyOutput);
}

#[test]
fn what_an_agent_tells_of_this_run_alone_needs_no_difference() {
    let stdout = r#"{"type":"result","subtype":"success","is_error":false,"result":"x","total_cost_usd":0.75,"usage":{"input_tokens":0},"model_usage_since_last_result":{"m":{"inputTokens":60,"cacheReadInputTokens":40,"outputTokens":20,"thinkingTokens":3,"costUSD":0.25}}}"#;
    let outcome = Run { session: resumed(), ..Run::of(AgentKind::Claude, stdout) }.outcome();
    assert_eq!(outcome.cost_usd, Some(0.25));
    assert_eq!(outcome.usage, Some(Usage { input: 100, output: 20, cached: 40, reasoning: 3 }));
}

#[test]
fn a_limit_tells_when_it_is_reset() {
    let stdout = "{\"type\":\"rate_limit_event\",\"rate_limit_info\":{\"status\":\"rejected\",\"resetsAt\":4600}}\n\
                  {\"type\":\"result\",\"subtype\":\"success\",\"is_error\":true,\"api_error_status\":429,\"result\":\"limit\"}";
    let (kind, _) = Run { code: 1, ..Run::of(AgentKind::Claude, stdout) }.failure();
    assert_eq!(kind, FailureKind::RateLimit { retry_after: Some(std::time::Duration::from_hours(1)) });
}

#[test]
fn counters_of_a_session_become_this_runs_by_difference() {
    let usage = |input| Usage { input, output: 5, cached: 0, reasoning: 0 };
    let stdout = r#"{"type":"turn.completed","usage":{"input_tokens":30,"output_tokens":5}}"#;
    let before = Some(Totals { usage: Some(usage(10)), cost_usd: None });
    let run = Run { session: resumed(), before, ..Run::of(AgentKind::Codex, stdout) };
    assert_eq!(run.outcome().usage, Some(Usage { input: 20, ..Usage::default() }));
    assert_eq!(run.outcome().session_totals.unwrap().usage, Some(usage(30)));
    // With a past that nobody knows there is no honest number.
    assert_eq!(Run { before: None, ..run }.outcome().usage, None);
    assert_eq!(Run::of(AgentKind::Codex, stdout).outcome().usage, Some(usage(30)));
}

#[test]
fn claude_counts_the_cost_of_a_session_only_in_newer_versions() {
    let stdout = |version: &str| -> &'static str {
        let text = format!(
            "{{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"{OLD}\",\"claude_code_version\":\"{version}\"}}\n\
             {{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"x\",\"session_id\":\"{OLD}\",\"total_cost_usd\":0.75}}"
        );
        text.leak()
    };
    let before = Some(Totals { usage: None, cost_usd: Some(0.5) });
    let run = |version| Run { session: resumed(), before, ..Run::of(AgentKind::Claude, stdout(version)) };
    assert_eq!(run("2.1.325").outcome().cost_usd, Some(0.25));
    assert_eq!(run("2.1.197").outcome().cost_usd, Some(0.75));
    assert_eq!(run("2.1.197").outcome().session_totals, None);
}

#[test]
fn geminis_exit_codes_are_read_when_it_says_nothing() {
    let kind =
        |code, session| Run { code, stderr: "x", session, ..Run::of(AgentKind::Gemini, "") }.failure().0;
    assert_eq!(kind(41, ExpectedSession::Any), FailureKind::Auth);
    assert_eq!(kind(42, resumed()), FailureKind::SessionNotFound);
    assert_eq!(kind(42, ExpectedSession::Any), FailureKind::EmptyOutput);
    assert_eq!(kind(145, ExpectedSession::Any), FailureKind::Auth);
    assert_eq!(kind(173, ExpectedSession::Any), FailureKind::RateLimit { retry_after: None });
    assert_eq!(kind(247, ExpectedSession::Any), FailureKind::Overloaded);
    assert_eq!(kind(53, ExpectedSession::Any), FailureKind::MaxTurns);
}
