//! Precedence of the reported result, the supervisor's report and stderr.

mod background;
mod counters;
mod refusals;
mod unreadable;

use agents::{
    Driver, DriverSpec, EarlyStop, FinishedRun, ParseLimits, ReportedError, ReportedErrorCode,
    ReportedResult, Summary, judge,
};
use model::{
    AgentKind, Deadline, End, Exit, ExpectedSession, FailureKind, NotStarted, NotStartedReason, Outcome,
    RunReport, SandboxReport, Totals, TreeEnd, TreeUsage,
};

const OLD: &str = "00000000-0000-4000-8000-00000000000a";

struct Run {
    agent: AgentKind,
    stdout: &'static str,
    stderr: &'static str,
    end: End,
    code: i32,
    session: ExpectedSession,
    schema: Option<&'static str>,
    totals_before: Option<Totals>,
    sandbox: Option<SandboxReport>,
    early_stop: Option<EarlyStop>,
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
            schema: None,
            totals_before: None,
            sandbox: None,
            early_stop: None,
        }
    }

    fn summary(&self) -> Summary {
        let mut driver = Driver::new(&DriverSpec::one_shot(self.agent).unwrap(), ParseLimits::default());
        driver.feed(self.stdout.as_bytes(), &mut |_| {});
        driver.finish(&mut |_| {})
    }

    fn outcome(&self) -> Outcome {
        self.outcome_of(&self.summary())
    }

    fn outcome_of(&self, summary: &Summary) -> Outcome {
        let report = RunReport {
            end: self.end.clone(),
            exit: Some(Exit::Code(self.code)),
            ended_at_ms: 1_000_000,
            duration_ms: 5,
            output_bytes: self.stdout.len() as u64,
            error_bytes: self.stderr.len() as u64,
            usage: TreeUsage::default(),
            descendants_ended: 0,
            was_suspended: false,
            tree: TreeEnd::ProvenEmpty,
            sandbox: self.sandbox.clone(),
        };
        judge(&FinishedRun {
            agent: self.agent,
            summary,
            report: &report,
            stderr_tail: self.stderr,
            session: &self.session,
            model: Some("asked-for"),
            schema: self.schema,
            totals_before: self.totals_before,
            limits: Some(&model::Limits {
                wall: Some(std::time::Duration::from_secs(2)),
                ..model::Limits::default()
            }),
            early_stop: self.early_stop,
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

fn invalid(agent: AgentKind, stdout: &str) -> String {
    let (kind, message) = Run::of(agent, stdout.to_owned().leak()).failure();
    assert_eq!(kind, FailureKind::InvalidOutput, "{stdout}: {message}");
    message
}

fn answer(agent: AgentKind, stdout: &str) -> String {
    let outcome = Run::of(agent, stdout.to_owned().leak()).outcome();
    assert!(outcome.is_success(), "{stdout}: {outcome:?}");
    outcome.text
}

const SAID_A: &str = r#"{"type":"item.completed","item":{"type":"agent_message","text":"a"}}"#;
const SAID_B: &str = r#"{"type":"item.completed","item":{"type":"agent_message","text":"b"}}"#;
const TURN_DONE: &str = r#"{"type":"turn.completed","usage":{"input_tokens":1}}"#;

#[test]
fn reported_success_survives_stop() {
    for end in [End::Exited, End::Stopped, End::Deadline { which: Deadline::Wall }, End::SupervisorLost] {
        // Signals of other processes are tested elsewhere.
        let codes: &[i32] = if end == End::Exited { &[0, 1] } else { &[0, 1, 143] };
        for &code in codes {
            let outcome = Run { end: end.clone(), code, ..Run::of(AgentKind::Claude, DONE) }.outcome();
            assert!(outcome.is_success(), "{end} {code}");
            assert_eq!((outcome.text.as_str(), outcome.model.as_deref()), ("fine", Some("asked-for")));
        }
    }
}

#[test]
fn turn_canceled_at_a_deadline_fails_with_the_deadline() {
    let canceled = ReportedError {
        code: ReportedErrorCode::Canceled,
        http_status: None,
        message: "the agent canceled the turn".to_owned(),
    };
    let run = Run::of(AgentKind::Claude, "");
    let wall = Deadline::Wall;
    for (end, expected) in [
        (End::Deadline { which: wall }, FailureKind::Deadline { which: wall }),
        (End::Stopped, FailureKind::Stopped),
        (End::Exited, FailureKind::Incomplete),
    ] {
        let mut summary = run.summary();
        summary.reported = Some(ReportedResult::Failed(canceled.clone()));
        let outcome = Run { end, ..Run::of(AgentKind::Claude, "") }.outcome_of(&summary);
        assert_eq!(outcome.failure().unwrap().kind, expected);
    }
}

#[test]
fn exit_zero_without_result_event_is_failure() {
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
fn empty_stdout_fails_with_stderr_message() {
    let run = Run { stderr: "TypeError: boom\n", code: 1, ..Run::of(AgentKind::Claude, "") };
    assert_eq!(
        run.failure(),
        (FailureKind::EmptyOutput, "exit code 1 without output on stdout: TypeError: boom".to_owned())
    );
    assert_eq!(Run::of(AgentKind::Codex, "").failure().0, FailureKind::EmptyOutput);
}

#[test]
fn stop_reason_is_reported_with_last_error() {
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
fn rejected_login_is_auth_after_early_stop() {
    let refused = |attempt: u32| {
        format!(
            r#"{{"type":"system","subtype":"api_retry","attempt":{attempt},"error_status":401,"error":"authentication_failed"}}"#
        )
    };
    let lines = [refused(1), refused(2)].join("\n");
    let run = Run { end: End::Stopped, ..Run::of(AgentKind::Claude, lines.leak()) };
    let (kind, message) = run.failure();
    assert_eq!(kind, FailureKind::Auth);
    assert!(message.starts_with("authentication_failed (HTTP 401), 2 times"), "{message}");
    assert!(run.outcome().hint().unwrap().contains("`/login`"), "it names the login command");
    let lost = Run { end: End::SupervisorLost, ..run };
    assert_eq!(lost.failure().0, FailureKind::SupervisorLost);
}

#[test]
fn resume_in_other_session_is_failure() {
    let stdout =
        "{\"type\":\"thread.started\",\"thread_id\":\"new-one\"}\n{\"type\":\"turn.completed\",\"usage\":{}}";
    let run = Run { session: resumed(), ..Run::of(AgentKind::Codex, stdout) };
    let (kind, message) = run.failure();
    assert_eq!(kind, FailureKind::SessionNotFound);
    assert!(message.contains(OLD) && message.contains("new-one"), "{message}");
    assert_eq!(run.outcome().session_mismatch.unwrap().got, "new-one");
}

#[test]
fn success_without_model_request_is_failure() {
    let stdout = r#"{"type":"result","status":"success","stats":{"total_tokens":0,"input_tokens":0}}"#;
    assert_eq!(Run::of(AgentKind::Gemini, stdout).failure().0, FailureKind::EmptyOutput);
}

#[test]
fn rate_limit_reports_reset_time() {
    let stdout = "{\"type\":\"rate_limit_event\",\"rate_limit_info\":{\"status\":\"rejected\",\"resetsAt\":4600}}\n\
                  {\"type\":\"result\",\"subtype\":\"success\",\"is_error\":true,\"api_error_status\":429,\"result\":\"limit\"}";
    let (kind, _) = Run { code: 1, ..Run::of(AgentKind::Claude, stdout) }.failure();
    assert_eq!(kind, FailureKind::RateLimit { retry_after: Some(std::time::Duration::from_hours(1)) });
}

#[test]
fn silent_gemini_is_judged_by_exit_code() {
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

#[test]
fn uppercase_session_uuid_matches() {
    let stdout = format!(
        "{{\"type\":\"thread.started\",\"thread_id\":\"{}\"}}\n{SAID_A}\n{TURN_DONE}",
        OLD.to_uppercase()
    );
    let outcome = Run { session: resumed(), ..Run::of(AgentKind::Codex, stdout.leak()) }.outcome();
    assert!(outcome.is_success() && outcome.session_mismatch.is_none(), "{outcome:?}");
}

#[test]
fn claude_refusing_root_gets_a_remedy() {
    let stderr =
        "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons\n";
    let run = Run { stderr, code: 1, ..Run::of(AgentKind::Claude, "") };
    let outcome = run.outcome();
    let failure = outcome.failure().unwrap();
    assert_eq!(failure.kind, FailureKind::AgentError);
    assert!(failure.message.contains("run as an unprivileged user"), "{}", failure.message);
}

const CLAUDE_INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s1"}
"#;
const CLAUDE_UNREACHABLE: &str = r#"{"type":"system","subtype":"api_retry","attempt":3,"max_retries":10,"retry_delay_ms":100,"error_status":null,"error":"unknown"}
"#;

#[test]
fn unreachable_api_is_network_failure_at_deadline() {
    let end = End::Deadline { which: Deadline::Wall };
    let answered = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"here"}]}}"#;
    let codex = r#"{"type":"error","message":"Reconnecting... 2/5 (error sending request for url (http://127.0.0.1:9/v1))"}"#;
    let retrying = [CLAUDE_INIT, CLAUDE_UNREACHABLE].concat();
    let recovered = [retrying.as_str(), answered].concat();
    for (agent, stdout, kind) in [
        (AgentKind::Claude, retrying.as_str(), FailureKind::Network),
        (AgentKind::Codex, codex, FailureKind::Network),
        (AgentKind::Claude, recovered.as_str(), FailureKind::Deadline { which: Deadline::Wall }),
    ] {
        let run = Run { end: end.clone(), ..Run::of(agent, stdout.to_owned().leak()) };
        let (found, message) = run.failure();
        assert_eq!(found, kind, "{stdout}: {message}");
        assert!(!message.contains("unknown"), "{message}");
    }
}

#[test]
fn session_is_known_once_reported() {
    let end = End::Deadline { which: Deadline::Start };
    let assigned = ExpectedSession::Assigned(OLD.parse().unwrap());
    for (stdout, session, expected) in
        [("", assigned.clone(), None), (CLAUDE_INIT, assigned, Some("s1")), ("", resumed(), Some(OLD))]
    {
        let outcome = Run { end: end.clone(), session, ..Run::of(AgentKind::Claude, stdout) }.outcome();
        assert_eq!(outcome.session.as_ref().map(model::SessionId::as_str), expected, "{stdout}");
    }
}

#[test]
fn turn_without_model_is_not_counted() {
    let result = r#"{"type":"result","subtype":"success","is_error":true,"num_turns":1,"result":"Not logged in · Please run /login","usage":{"input_tokens":0,"output_tokens":0}}"#;
    let outcome = Run { code: 1, ..Run::of(AgentKind::Claude, result) }.outcome();
    assert_eq!((outcome.failure().unwrap().kind.clone(), outcome.turns), (FailureKind::Auth, None));
}

/// Agents end a turn like this after they have cancelled a tool or run a command of their own.
#[test]
fn turn_over_acp_without_an_answer_is_a_failure() {
    let update = |text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}}}}}"#
        )
    };
    let opening = [r#"{"id":1,"result":{"protocolVersion":1}}"#, r#"{"id":2,"result":{"sessionId":"s"}}"#];
    let done = r#"{"id":100,"result":{"stopReason":"end_turn"}}"#;
    for (text, expected) in [("", false), (" \\n", false), ("\\u200b\\u0000", false), ("yes", true)] {
        let lines = [opening[0], opening[1], &update(text), done].join("\n") + "\n";
        let mut driver = Driver::new(&DriverSpec::Acp(agent_client()), ParseLimits::default());
        driver.feed(lines.as_bytes(), &mut |_| {});
        let agent = "mine".parse().unwrap();
        let outcome = Run::of(agent, "").outcome_of(&driver.finish(&mut |_| {}));
        assert_eq!(outcome.failure().is_none(), expected, "{text:?}: {outcome:?}");
        if let Some(failure) = outcome.failure() {
            assert_eq!(failure.kind, FailureKind::EmptyOutput);
        }
    }
}

fn agent_client() -> agents::AcpSpec {
    let spec = serde_json::json!({
        "cwd": "/", "session": "new", "prompt": "hi", "permissions": "allow", "usage": "unknown",
    });
    serde_json::from_value(spec).unwrap()
}
