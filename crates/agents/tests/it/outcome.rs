//! How the agent's word, the supervisor's report and stderr are weighed.

use agents::{Ended, ParseLimits, Parser, Summary, judge};
use model::{
    AgentKind, Bounds, Confined, Confinement, Deadline, End, Exit, ExpectedSession, FailureKind, Network,
    NotStarted, NotStartedReason, Outcome, Preset, RefusedKind, Requirement, Root, RunReport, SandboxReport,
    Totals, TreeEnd, TreeUsage, Usage,
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
    sandbox: Option<SandboxReport>,
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
            sandbox: None,
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
            sandbox: self.sandbox.clone(),
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
fn denied_tool_is_a_refusal_and_the_agents_verdict_decides() {
    let claude = r#"{"type":"result","subtype":"success","is_error":false,"result":"could not","permission_denials":[{"tool_name":"Bash","tool_use_id":"t","tool_input":{"command":"ls"}},{"tool_name":"Bash","tool_use_id":"u","tool_input":{"command":"ls"}}]}"#;
    let codex = r#"{"type":"item.completed","item":{"id":"1","type":"file_change","status":"declined","changes":[]}}
{"type":"item.completed","item":{"type":"agent_message","text":"could not"}}
{"type":"turn.completed","usage":{"input_tokens":1}}"#;
    let gemini = r#"{"type":"tool_result","tool_id":"write_file__1","status":"error","error":{"type":"policy_violation","message":"no"}}
{"type":"message","role":"assistant","content":"could not","delta":true}
{"type":"result","status":"success","stats":{"input_tokens":1}}"#;
    for (agent, stdout, tool, count) in [
        (AgentKind::Claude, claude, "Bash", 2),
        (AgentKind::Rehearsal, claude, "Bash", 2),
        (AgentKind::Codex, codex, "file_change", 1),
        (AgentKind::Gemini, gemini, "write_file", 1),
    ] {
        let outcome = Run::of(agent, stdout).outcome();
        assert!(outcome.is_success(), "{outcome:?}");
        let [refusal] = outcome.refusals.as_slice() else { panic!("{outcome:?}") };
        assert_eq!((refusal.kind, refusal.subject.as_str(), refusal.count), (RefusedKind::Tool, tool, count));
        assert_eq!(outcome.permission_denials.len(), count as usize, "{agent}");
    }
}

#[test]
fn printed_message_of_gemini_is_no_refused_write() {
    let call = |number: u32, command: &str, output: &str| {
        let id = format!("run_shell_command__{number}");
        format!(
            r#"{{"type":"tool_use","tool_name":"run_shell_command","tool_id":"{id}","parameters":{{"command":"{command}"}}}}
{{"type":"tool_result","tool_id":"{id}","status":"success","output":"{output}"}}"#
        )
    };
    let lines = [
        call(1, "cat build.log", "touch: cannot touch '/etc/a': Read-only file system"),
        call(2, "grep -r touch .", "something failed: Read-only file system"),
        call(3, "echo x > /etc/b; cat build.log", "bash: line 1: /etc/b: Read-only file system"),
        r#"{"type":"result","status":"success"}"#.to_owned(),
    ];
    let run = Run { sandbox: Some(confined()), ..Run::of(AgentKind::Gemini, lines.join("\n").leak()) };
    let outcome = run.outcome();
    let writes = outcome.refusals.iter().filter(|refusal| refusal.kind == RefusedKind::Write);
    let found: Vec<_> = writes.map(|refusal| refusal.subject.as_str()).collect();
    assert_eq!(found, ["/etc/b"]);
}

#[test]
fn refused_writes_and_hosts_are_listed_only_of_a_confined_run() {
    let erofs = r#"{"type":"user","message":{"content":[{"type":"tool_result","is_error":true,"content":"bash: line 1: /etc/x: Read-only file system\nmkdir: cannot create directory '/opt/y': Permission denied\nmkdir: cannot create directory '/desk/work/z': Permission denied"}]}}"#;
    let run = Run::of(AgentKind::Claude, [erofs, DONE].join("\n").leak());
    assert_eq!(run.outcome().refusals, []);
    let confined = Run { sandbox: Some(confined()), ..run };
    let outcome = confined.outcome();
    assert!(outcome.is_success(), "{outcome:?}");
    let found: Vec<_> = outcome.refusals.iter().map(|r| (r.kind.name(), r.subject.as_str())).collect();
    // Nothing says that the sandbox refused a path that the policy lets the agent write.
    assert_eq!(found, [("write", "/etc/x"), ("write", "/opt/y"), ("host", "example.com:443")]);
    assert_eq!(outcome.notes(), ["refused: write /etc/x, write /opt/y, host example.com:443"]);
}

fn confined() -> SandboxReport {
    SandboxReport::Confined(Box::new(Confined {
        policy: Confinement {
            preset: Preset::Workspace,
            requirement: Requirement::BestEffort,
            must_hold: Vec::new(),
            roots: vec![Root::write("/desk/work")],
            hidden: Vec::new(),
            protected: Vec::new(),
            network: Network::Full,
            unix_sockets: true,
            namespaces: true,
            bounds: Bounds::default(),
            proofs: None,
            env_if_held: std::collections::BTreeMap::new(),
            caches: None,
            state: None,
        },
        safeguards: Vec::new(),
        proof: None,
        refused_hosts: vec!["example.com:443".to_owned()],
        git_read_only: None,
        quarantined: Vec::new(),
    }))
}

const STARTED: &str = r#"{"type":"system","subtype":"task_started","task_id":"t1","description":"the build","is_backgrounded":true}"#;
const TASK_DONE: &str =
    r#"{"type":"system","subtype":"task_notification","task_id":"t1","status":"completed"}"#;
const TASK_STOPPED: &str =
    r#"{"type":"system","subtype":"task_notification","task_id":"t1","status":"stopped"}"#;
const TASK_FAILED: &str =
    r#"{"type":"system","subtype":"task_notification","task_id":"t1","status":"failed"}"#;
const TASK_ODD: &str =
    r#"{"type":"system","subtype":"task_notification","task_id":"t1","status":"vanished"}"#;
const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s1"}"#;

#[test]
fn work_that_was_cut_short_is_never_a_success() {
    let deadline = End::Deadline { which: Deadline::Wall };
    let at_deadline = FailureKind::Deadline { which: Deadline::Wall };
    let incomplete = Some(FailureKind::Incomplete);
    let table: [(&[&str], End, _, &[&str]); 15] = [
        (&[STARTED, TASK_DONE, DONE], End::Exited, None, &[]),
        (&[STARTED, DONE, TASK_DONE], End::Exited, None, &[]),
        (&[STARTED, DONE, TASK_DONE, INIT, DONE], End::Stopped, None, &[]),
        (&[STARTED, DONE], End::Exited, incomplete.clone(), &["killed"]),
        (&[STARTED, DONE, TASK_STOPPED], End::Exited, incomplete.clone(), &["stopped"]),
        (&[STARTED, DONE, TASK_ODD], End::Exited, incomplete.clone(), &["unknown"]),
        (&[STARTED, DONE, TASK_STOPPED, INIT, DONE], End::Exited, incomplete.clone(), &["stopped"]),
        // Stopped for lingering, after an answer that takes the stopped task into account.
        (&[STARTED, DONE, TASK_STOPPED, INIT, DONE], End::Stopped, incomplete.clone(), &["stopped"]),
        (&[STARTED, TASK_FAILED, DONE], End::Exited, None, &["failed"]),
        (&[STARTED, DONE, TASK_FAILED], End::Exited, incomplete.clone(), &["failed"]),
        (&[STARTED, DONE], deadline.clone(), Some(at_deadline.clone()), &["killed"]),
        (&[STARTED, DONE, TASK_STOPPED], deadline.clone(), Some(at_deadline.clone()), &["stopped"]),
        (&[STARTED, DONE, TASK_STOPPED], End::Stopped, Some(FailureKind::Stopped), &["stopped"]),
        (&[DONE, INIT], End::Exited, incomplete, &[]),
        (&[DONE, INIT], deadline, Some(at_deadline), &[]),
    ];
    for (lines, end, kind, statuses) in table {
        let run = Run { end: end.clone(), ..Run::of(AgentKind::Claude, lines.join("\n").leak()) };
        let outcome = run.outcome();
        assert_eq!(outcome.failure().map(|failure| failure.kind.clone()), kind, "{lines:?} {end}");
        assert!(outcome.text.starts_with("fine") && outcome.session.is_some(), "{lines:?} {end}");
        let found: Vec<_> = outcome.background.iter().map(|task| task.status.name()).collect();
        assert_eq!(found, statuses, "{lines:?} {end}");
    }
}

#[test]
fn results_of_a_run_form_one_answer() {
    let result = |text: &str, cost: f64, tokens: u64| {
        format!(
            r#"{{"type":"result","subtype":"success","is_error":false,"num_turns":2,"result":"{text}","total_cost_usd":{cost},"usage":{{"input_tokens":{tokens},"output_tokens":1}}}}"#
        )
    };
    let lines = [result("one", 0.5, 10), INIT.to_owned(), result("two", 0.75, 5), result("three", 0.875, 0)];
    let outcome = Run::of(AgentKind::Claude, lines.join("\n").leak()).outcome();
    assert!(outcome.is_success(), "{outcome:?}");
    assert_eq!(outcome.text, "one\n\ntwo\n\nthree");
    assert_eq!((outcome.turns, outcome.cost_usd), (Some(6), Some(0.875)));
    assert_eq!(outcome.usage, Some(Usage { input: 15, output: 3, ..Usage::default() }));
}

#[test]
fn failed_later_result_fails_the_run_and_keeps_the_answer() {
    let failed =
        r#"{"type":"result","subtype":"success","is_error":true,"api_error_status":529,"result":"busy"}"#;
    let run = Run::of(AgentKind::Claude, [STARTED, DONE, TASK_DONE, INIT, failed].join("\n").leak());
    assert_eq!(run.failure(), (FailureKind::Overloaded, "busy".to_owned()));
    assert_eq!(run.outcome().text, "fine");
}

#[test]
fn exit_of_an_agent_stopped_after_its_answer_is_not_reported() {
    for (end, exit) in [(End::Exited, Some(Exit::Code(143))), (End::Stopped, None)] {
        let outcome = Run { end, code: 143, ..Run::of(AgentKind::Claude, DONE) }.outcome();
        assert_eq!((outcome.is_success(), outcome.exit), (true, exit));
    }
    let outcome = Run { end: End::Stopped, code: 143, ..Run::of(AgentKind::Claude, INIT) }.outcome();
    assert_eq!(outcome.exit, Some(Exit::Code(143)));
}

#[test]
fn refused_login_is_auth_although_the_agent_was_stopped() {
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
    let lost = Run { end: End::SupervisorLost, ..run };
    assert_eq!(lost.failure().0, FailureKind::SupervisorLost);
}

#[test]
fn command_left_in_a_codex_terminal_is_incomplete() {
    let started = r#"{"type":"item.started","item":{"id":"1","type":"command_execution","command":"sleep 60","status":"in_progress"}}"#;
    let ended = r#"{"type":"item.completed","item":{"id":"1","type":"command_execution","command":"sleep 60","exit_code":0,"status":"completed"}}"#;
    assert_eq!(answer(AgentKind::Codex, &[started, ended, SAID_A, TURN_DONE].join("\n")), "a");
    let run = Run::of(AgentKind::Codex, [started, SAID_A, TURN_DONE].join("\n").leak());
    assert_eq!(run.failure().0, FailureKind::Incomplete);
    assert_eq!(run.outcome().background[0].to_string(), "sleep 60 (killed)");
}

#[test]
fn result_whose_text_has_another_type_is_not_an_empty_answer() {
    for text in [r#"{"a":1}"#, "null", "7"] {
        let line = format!(r#"{{"type":"result","subtype":"success","is_error":false,"result":{text}}}"#);
        invalid(AgentKind::Claude, &line);
    }
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
fn with_a_schema_an_answer_that_is_no_json_is_invalid_output() {
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
    // Nobody validates the answer: any JSON will do.
    let another = codex(
        "{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"42\"}}\n{\"type\":\"turn.completed\"}",
    );
    assert_eq!(another.outcome().structured_output.as_deref(), Some("42"));
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

#[test]
fn a_result_of_claude_that_does_not_say_success_outright_is_none() {
    for unclear in [
        r#"{"type":"result"}"#,
        r#"{"type":"result","subtype":"success"}"#,
        r#"{"type":"result","is_error":false,"result":"x"}"#,
        r#"{"type":"result","subtype":"success","is_error":"true"}"#,
        r#"{"type":"result","subtype":"success","is_error":"false"}"#,
        r#"{"type":"result","subtype":"success","is_error":null}"#,
        r#"{"type":"result","subtype":"success","is_error":0}"#,
        r#"{"type":"result","subtype":"cancelled","is_error":false}"#,
        r#"{"type":"result","subtype":["success"],"is_error":false}"#,
    ] {
        let message = invalid(AgentKind::Claude, unclear);
        assert!(message.contains("neither success nor error"), "{message}");
    }
    for agent in [AgentKind::Claude, AgentKind::Rehearsal] {
        assert_eq!(
            answer(agent, r#"{"is_error":false,"result":"x","subtype":"success","type":"result"}"#),
            "x"
        );
    }
}

#[test]
fn a_result_that_is_not_json_to_the_letter_is_never_a_success() {
    let deep = format!("{}{}", "[".repeat(200), "}".repeat(200));
    for rest in [
        "\"x\":\"\t\"",
        r#""x":1.2.3"#,
        r#""x":[1}]"#,
        r#""x":{"y"}"#,
        r#""x":"\q""#,
        &format!(r#""x":{deep}"#),
    ] {
        for word in
            [r#""is_error":true,"subtype":"error_max_turns""#, r#""is_error":false,"subtype":"success""#]
        {
            let message = invalid(AgentKind::Claude, &format!(r#"{{"type":"result",{word},{rest}}}"#));
            assert!(message.contains("result cannot be read"), "{message}");
        }
        invalid(AgentKind::Codex, &format!(r#"{{"type":"turn.completed",{rest}}}"#));
        invalid(AgentKind::Codex, &format!(r#"{{"type":"turn.failed",{rest}}}"#));
        invalid(AgentKind::Gemini, &format!(r#"{{"type":"result","status":"success",{rest}}}"#));
    }
}

#[test]
fn a_failure_stays_one_with_numbers_and_depths_beyond_measure() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for rest in [r#""total_cost_usd":1e999,"num_turns":1e999"#, &format!(r#""x":{deep}"#)] {
        let line =
            format!(r#"{{"type":"result","is_error":true,"api_error_status":401,"result":"bad",{rest}}}"#);
        let run = Run::of(AgentKind::Claude, line.leak());
        assert_eq!(run.failure(), (FailureKind::Auth, "bad".to_owned()));
        assert_eq!((run.outcome().cost_usd, run.outcome().turns), (None, None));
    }
}

#[test]
fn lone_surrogates_are_repaired_and_the_result_is_read_as_usual() {
    let failed = r#"{"type":"result","is_error":true,"api_error_status":401,"result":"bad \ud83d"}"#;
    assert_eq!(Run::of(AgentKind::Claude, failed).failure(), (FailureKind::Auth, "bad \u{fffd}".to_owned()));
    let turns = r#"{"type":"result","subtype":"error_max_turns","is_error":true,"num_turns":3,"errors":["\ude00 x"],"session_id":"s"}"#;
    let run = Run::of(AgentKind::Claude, turns);
    assert_eq!(run.failure(), (FailureKind::MaxTurns, "\u{fffd} x".to_owned()));
    assert_eq!(run.outcome().turns, Some(2));
    let denied = r#"{"type":"result","subtype":"success","is_error":false,"result":"x","permission_denials":[{"tool_name":"Bash","tool_input":{"command":"\ud83d"}}]}"#;
    let refused = &Run::of(AgentKind::Claude, denied).outcome().refusals[0];
    assert_eq!(refused.detail.as_deref(), Some(r#"{"command":"\ud83d"}"#));
    let done = r#"{"type":"result","subtype":"success","is_error":false,"result":"a\ud83d","total_cost_usd":0.5,"num_turns":2,"usage":{"input_tokens":7},"structured_output":{"a":"\ud83d","b":"\ud83d\ude00"}}"#;
    let outcome = Run { has_schema: true, ..Run::of(AgentKind::Claude, done) }.outcome();
    assert!(outcome.is_success(), "{outcome:?}");
    assert_eq!((outcome.text.as_str(), outcome.cost_usd, outcome.turns), ("a\u{fffd}", Some(0.5), Some(2)));
    assert_eq!(outcome.usage, Some(Usage { input: 7, ..Usage::default() }));
    assert_eq!(outcome.structured_output.as_deref(), Some(r#"{"a":"\ufffd","b":"\ud83d\ude00"}"#));
}

#[test]
fn an_end_of_codex_or_gemini_that_contradicts_itself_is_no_success() {
    let codex = r#"{"type":"turn.completed","error":{"message":"rate limit"}}"#;
    assert!(matches!(Run::of(AgentKind::Codex, codex).failure().0, FailureKind::RateLimit { .. }));
    let gemini = r#"{"type":"result","status":"success","error":{"type":"unknown","message":"boom"}}"#;
    assert_eq!(Run::of(AgentKind::Gemini, gemini).failure().0, FailureKind::AgentError);
    for status in [r#""status":true"#, r#""status":"cancelled""#, r#""x":1"#] {
        invalid(AgentKind::Gemini, &format!(r#"{{"type":"result",{status}}}"#));
    }
}

const SAID_A: &str = r#"{"type":"item.completed","item":{"type":"agent_message","text":"a"}}"#;
const SAID_B: &str = r#"{"type":"item.completed","item":{"type":"agent_message","text":"b"}}"#;
const TURN_DONE: &str = r#"{"type":"turn.completed","usage":{"input_tokens":1}}"#;

#[test]
fn an_answer_that_could_not_be_read_is_not_taken_for_the_text_before_it() {
    let over = "x".repeat(ParseLimits::default().line_bytes);
    let big = |kind: &str, field: &str| {
        format!(r#"{{"type":"item.completed","item":{{"id":"1","type":"{kind}","{field}":"{over}"}}}}"#)
    };
    let lost = [big("agent_message", "text"), SAID_B[..SAID_B.len() - 3].to_owned(), SAID_B[1..].to_owned()];
    for lost in lost {
        let message = invalid(AgentKind::Codex, &format!("{SAID_A}\n{lost}\n{TURN_DONE}"));
        assert!(message.contains("the answer is not known"), "{message}");
        assert_eq!(answer(AgentKind::Codex, &format!("{lost}\n{SAID_B}\n{TURN_DONE}")), "b");
    }
    for harmless in [big("command_execution", "aggregated_output"), "a stray print".to_owned()] {
        assert_eq!(answer(AgentKind::Codex, &format!("{SAID_A}\n{harmless}\n{TURN_DONE}")), "a");
    }
    let no_text = r#"{"type":"item.completed","item":{"type":"agent_message"}}"#;
    invalid(AgentKind::Codex, &format!("{SAID_A}\n{no_text}\n{TURN_DONE}"));
    // Claude says its answer once more, in the result.
    let claude = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"#;
    assert_eq!(answer(AgentKind::Claude, &format!("{claude}\n{DONE}")), "fine");
    let mute = r#"{"type":"result","subtype":"success","is_error":false}"#;
    invalid(AgentKind::Claude, &format!("{claude}\n{mute}"));
}

#[test]
fn a_hole_in_geminis_answer_is_no_success_and_a_later_text_is() {
    let piece =
        |text: &str| format!(r#"{{"type":"message","role":"assistant","content":"{text}","delta":true}}"#);
    let done = r#"{"type":"result","status":"success","stats":{"total_tokens":3,"input_tokens":1}}"#;
    let tool = r#"{"type":"tool_use","tool_name":"t","tool_id":"t__1","parameters":{}}"#;
    let cut = &piece("x")[..40];
    invalid(AgentKind::Gemini, &[&piece("a"), cut, &piece("b"), done].join("\n"));
    invalid(AgentKind::Gemini, &[cut, &piece("b"), done].join("\n"));
    invalid(AgentKind::Gemini, &[&piece("a"), cut, tool, done].join("\n"));
    assert_eq!(answer(AgentKind::Gemini, &[&piece("a"), cut, tool, &piece("b"), done].join("\n")), "b");
}

#[test]
fn a_turn_that_began_takes_back_that_all_is_done() {
    let started = r#"{"type":"turn.started"}"#;
    invalid(AgentKind::Codex, &[SAID_A, TURN_DONE, started, &SAID_B[..40]].join("\n"));
    invalid(AgentKind::Codex, &[SAID_A, TURN_DONE, started].join("\n"));
    invalid(AgentKind::Codex, &[SAID_A, TURN_DONE, SAID_B].join("\n"));
    assert_eq!(answer(AgentKind::Codex, &[SAID_A, TURN_DONE, started, SAID_B, TURN_DONE].join("\n")), "b");
    assert_eq!(answer(AgentKind::Codex, &[SAID_A, TURN_DONE, SAID_B, TURN_DONE].join("\n")), "b");
    assert_eq!(answer(AgentKind::Codex, &[SAID_A, TURN_DONE, started, TURN_DONE].join("\n")), "");
}

#[test]
fn text_after_a_result_is_of_a_further_turn() {
    let text = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"later"}]}}"#;
    let piece = r#"{"type":"stream_event","event":{"delta":{"type":"text_delta","text":"later"}}}"#;
    let failed = r#"{"type":"result","subtype":"success","is_error":true,"result":"no"}"#;
    for later in [text, piece] {
        let run = Run::of(AgentKind::Claude, [DONE, later].join("\n").leak());
        assert_eq!(run.failure().0, FailureKind::Incomplete);
        assert_eq!(run.outcome().text, "fine\n\nlater");
    }
    let newer = DONE.replace("fine", "newer");
    assert_eq!(answer(AgentKind::Claude, &[DONE, text, &newer].join("\n")), "fine\n\nnewer");
    assert_eq!(answer(AgentKind::Claude, &[failed, DONE].join("\n")), "fine");
    let run = Run::of(AgentKind::Claude, [DONE, failed].join("\n").leak());
    assert_eq!(run.failure(), (FailureKind::AgentError, "no".to_owned()));
    invalid(
        AgentKind::Claude,
        &[DONE, r#"{"type":"result","subtype":"success","is_error":false}"#].join("\n"),
    );
    invalid(AgentKind::Claude, &[DONE, &failed[..40]].join("\n"));
    let type_is_last = r#"{"subtype":"success","is_error":true,"result":"no","#;
    invalid(AgentKind::Claude, &[DONE, type_is_last].join("\n"));
    let gemini = r#"{"type":"message","role":"assistant","content":"x","delta":true}"#;
    let done = r#"{"type":"result","status":"success","stats":{"input_tokens":1}}"#;
    assert_eq!(answer(AgentKind::Gemini, &[gemini, done, done].join("\n")), "x");
    invalid(AgentKind::Gemini, &[gemini, done, gemini, done].join("\n"));
}

#[test]
fn counts_beyond_all_numbers_neither_panic_nor_wrap() {
    const MAX: u64 = u64::MAX;
    let claude = format!(
        r#"{{"type":"result","subtype":"success","is_error":false,"result":"x","usage":{{"input_tokens":{MAX},"cache_read_input_tokens":{MAX},"cache_creation_input_tokens":{MAX}}}}}"#
    );
    let by_model = claude.replace(
        "\"usage\"",
        &format!(r#""model_usage_since_last_result":{{"a":{{"inputTokens":{MAX},"outputTokens":{MAX},"costUSD":1e308}},"b":{{"inputTokens":{MAX},"cacheReadInputTokens":1,"outputTokens":1,"costUSD":1e308}},"c":{{"costUSD":1e308}}}},"usage""#),
    );
    let gemini = format!(
        r#"{{"type":"result","status":"success","stats":{{"total_tokens":{MAX},"input_tokens":{MAX},"output_tokens":{MAX}}}}}"#
    );
    for (agent, stdout) in
        [(AgentKind::Claude, claude), (AgentKind::Claude, by_model), (AgentKind::Gemini, gemini)]
    {
        let outcome = Run::of(agent, stdout.leak()).outcome();
        assert_eq!((outcome.usage, outcome.cost_usd), (None, None), "such figures are not believed");
        assert!(outcome.notes().concat().contains("18446744073709551615 tokens in"), "{:?}", outcome.notes());
    }
    let words = r#"{"type":"turn.failed","error":{"message":"rate limit, retry after 18446744073709549568s 18446744073709549568s"}}"#;
    let retry_after = Some(std::time::Duration::MAX);
    assert_eq!(Run::of(AgentKind::Codex, words).failure().0, FailureKind::RateLimit { retry_after });
}

#[test]
fn a_resumed_uuid_in_capitals_is_the_session_that_was_asked_for() {
    let stdout = format!(
        "{{\"type\":\"thread.started\",\"thread_id\":\"{}\"}}\n{SAID_A}\n{TURN_DONE}",
        OLD.to_uppercase()
    );
    let outcome = Run { session: resumed(), ..Run::of(AgentKind::Codex, stdout.leak()) }.outcome();
    assert!(outcome.is_success() && outcome.session_mismatch.is_none(), "{outcome:?}");
}

#[test]
fn claude_that_refuses_root_says_what_to_do() {
    let stderr =
        "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons\n";
    let run = Run { stderr, code: 1, ..Run::of(AgentKind::Claude, "") };
    let outcome = run.outcome();
    let failure = outcome.failure().unwrap();
    assert_eq!(failure.kind, FailureKind::AgentError);
    assert!(failure.message.contains("work as an ordinary user"), "{}", failure.message);
}
