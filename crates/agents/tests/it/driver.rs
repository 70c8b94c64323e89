//! Properties of every stream, however damaged and chunked.

use agents::{Driver, DriverSpec, ParseLimits};
use model::{AgentEvent, AgentKind, Unreadable};
use proptest::collection::vec;
use proptest::prelude::*;

const LIMITS: ParseLimits = ParseLimits { line_bytes: 600, text_bytes: 64 };

/// A line, a structured answer from it, the text with room to grow, and all short strings.
fn most(limits: ParseLimits) -> usize {
    2 * limits.line_bytes + 4 * limits.text_bytes + (1 << 20)
}

/// Returns the owned events of a stream and the stored text.
fn read(kind: AgentKind, pieces: &[&[u8]], limits: ParseLimits) -> (Vec<AgentEvent<'static>>, String) {
    let mut events = Vec::new();
    let mut keep = |event: AgentEvent<'_>| events.push(event.into_owned());
    let mut driver = Driver::new(&DriverSpec::one_shot(kind).unwrap(), limits);
    for piece in pieces {
        driver.feed(piece, &mut keep);
        let held = driver.held_bytes();
        assert!(held <= most(limits), "holds {held} bytes");
    }
    let summary = driver.finish(&mut keep);
    (events, summary.text())
}

/// Lines as the agents print them, with arbitrary text.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![any::<String>(), "[a-z\"\\\\\n]{0,40}", "x{500,700}"];
    let json = (0..14_usize, text).prop_map(|(which, text)| {
        let text = serde_json::to_string(&text).unwrap();
        let t = text.as_str();
        match which {
            0 => format!(r#"{{"type":"system","subtype":"init","session_id":{t},"tools":[{t}],"model":{t}}}"#),
            1 => format!(r#"{{"type":"assistant","message":{{"content":[{{"type":"text","text":{t}}}]}}}}"#),
            2 => format!(r#"{{"message":{{"content":[{{"tool_use_id":{t},"type":"tool_result","content":{t}}}]}},"type":"user"}}"#),
            3 => format!(r#"{{"result":{t},"is_error":false,"subtype":"success","usage":{{"input_tokens":1}},"type":"result"}}"#),
            4 => format!(r#"{{"type":"result","is_error":true,"errors":[{t}],"permission_denials":[{{"tool_name":{t}}}]}}"#),
            5 => format!(r#"{{"type":"stream_event","event":{{"type":"x","delta":{{"type":"text_delta","text":{t}}}}}}}"#),
            6 => format!(r#"{{"type":"item.completed","item":{{"id":"1","type":"agent_message","text":{t}}}}}"#),
            7 => format!(r#"{{"type":"item.completed","item":{{"type":"command_execution","aggregated_output":{t},"exit_code":1}}}}"#),
            8 => format!(r#"{{"type":"turn.failed","error":{{"message":{t}}}}}"#),
            9 => format!(r#"{{"type":"message","role":"assistant","content":{t},"delta":true}}"#),
            10 => format!(r#"{{"type":"tool_result","tool_id":{t},"status":"error","error":{{"type":"x","message":{t}}}}}"#),
            11 => format!(r#"{{"type":{t},"x":[{t},{{}},null,1.5e3]}}"#),
            12 => format!(r#"{{"type":7,"message":{t},"event":[],"item":null,"error":{t},"usage":3}}"#),
            _ => text.clone(),
        }
        .into_bytes()
    });
    prop_oneof![
        8 => json.clone(),
        2 => (json, any::<prop::sample::Index>()).prop_map(|(json, cut)| json[..cut.index(json.len() + 1)].to_vec()),
        1 => vec(any::<u8>(), 0..80),
        1 => Just(b"Memory is currently empty.".to_vec()),
    ]
}

fn agent() -> impl Strategy<Value = AgentKind> {
    prop::sample::select(AgentKind::NATIVE.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn events_are_independent_of_chunking(
        kind in agent(),
        lines in vec(line(), 0..12),
        cuts in vec(1..200_usize, 1..20),
    ) {
        let stream = lines.join(&b'\n');
        let whole = read(kind, &[&stream], LIMITS);
        let mut pieces = Vec::new();
        let mut rest = stream.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        prop_assert_eq!(read(kind, &pieces, LIMITS), whole);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(kind in agent(), stream in vec(any::<u8>(), 0..4000)) {
        read(kind, &[&stream], LIMITS);
    }

    #[test]
    fn unknown_line_is_passed_through(kind in agent(), value in "[a-zA-Z0-9 é]{0,40}") {
        let line = format!(r#"{{"new":"{value}","type":"brand_new"}}"#);
        let (events, _) = read(kind, &[line.as_bytes()], LIMITS);
        let [AgentEvent::Unknown { kind: Some(name), raw }] = events.as_slice() else {
            panic!("{events:?}");
        };
        prop_assert_eq!(name, "brand_new");
        prop_assert_eq!(raw.text(), line);
    }
}

#[test]
fn invalid_utf8_is_replaced_without_further_loss() {
    let line =
        b"{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"a\xffb\"}]}}\n\
                 {\"type\":\"result\",\"subtype\":\"success\",\"result\":\"c\xffd\",\"is_error\":false,\"session_id\":\"s\"}\n";
    let (events, text) = read(AgentKind::Claude, &[line], LIMITS);
    assert!(matches!(&events[0], AgentEvent::Text { text, .. } if *text == "a\u{fffd}b"), "{events:?}");
    assert_eq!(text, "c\u{fffd}d");
}

#[test]
fn line_after_oversized_line_is_parsed() {
    let stream = format!("{{\"type\":\"user\",\"x\":\"{}\"}}\n{{\"type\":\"z\"}}\n", "y".repeat(5000));
    let (events, _) = read(AgentKind::Claude, &[stream.as_bytes()], LIMITS);
    let AgentEvent::Unreadable { why: Unreadable::Oversized { bytes: 5022 }, line } = &events[0] else {
        panic!("{events:?}");
    };
    assert!(line.decode().starts_with(r#"{"type":"user","x":"yyy"#));
    assert!(matches!(events[1], AgentEvent::Unknown { .. }));
}

#[test]
fn subagent_text_is_not_the_answer() {
    let stream = br#"{"type":"assistant","message":{"content":[{"type":"text","text":"main"}]},"parent_tool_use_id":null}
{"type":"assistant","message":{"content":[{"type":"text","text":"sub"}]},"parent_tool_use_id":"toolu_1"}"#;
    let (events, text) = read(AgentKind::Claude, &[stream], LIMITS);
    assert_eq!(text, "main");
    assert!(matches!(&events[1], AgentEvent::Text { within: Some(id), .. } if *id == "toolu_1"));
}

#[test]
fn failed_command_reports_exit_code() {
    let claude = |text: &str, is_error| {
        format!(
            r#"{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"1","content":"{text}","is_error":{is_error}}}]}}}}"#
        )
    };
    let codex = |code| {
        format!(
            r#"{{"type":"item.completed","item":{{"id":"1","type":"command_execution","aggregated_output":"","exit_code":{code}}}}}"#
        )
    };
    let gemini = |text: &str| {
        format!(
            r#"{{"type":"tool_result","tool_id":"run_shell_command__1","status":"success","output":"{text}"}}"#
        )
    };
    for (kind, line, expected) in [
        (AgentKind::Claude, claude(r"Exit code 101\nerror: test failed", true), (true, Some(101))),
        (AgentKind::Claude, claude("Exit code 101", false), (false, None)),
        (AgentKind::Claude, claude("File does not exist.", true), (true, None)),
        (AgentKind::Codex, codex("101"), (true, Some(101))),
        (AgentKind::Codex, codex("0"), (false, Some(0))),
        (AgentKind::Codex, codex("null"), (false, None)),
        (AgentKind::Gemini, gemini("Command exited with code: 101"), (true, Some(101))),
        (AgentKind::Gemini, gemini("error: test failed"), (false, None)),
    ] {
        let (events, _) = read(kind, &[line.as_bytes(), b"\n"], ParseLimits::default());
        let [AgentEvent::ToolResult { is_error, exit_code, .. }] = events.as_slice() else {
            panic!("{line}: {events:?}")
        };
        assert_eq!((*is_error, *exit_code), expected, "{line}");
    }
}

/// Feeds one tool call and its result. Returns the denied tools and whether the result is an error.
fn denied_tools(kind: AgentKind, stream: &str) -> (Vec<String>, bool) {
    let mut driver = Driver::new(&DriverSpec::one_shot(kind).unwrap(), ParseLimits::default());
    let mut failed = false;
    driver.feed(stream.as_bytes(), &mut |event| {
        failed |= matches!(event, AgentEvent::ToolResult { is_error: true, .. });
    });
    let summary = driver.finish(&mut |_| {});
    (summary.denials.into_iter().map(|denial| denial.tool).collect(), failed)
}

#[test]
fn blocked_gemini_command_is_a_refusal() {
    let blocked = "Blocked: command substitution detected in shell command.";
    let canceled =
        "Command was automatically cancelled because it exceeded the timeout of 5.0 minutes without output.";
    let long = format!("echo {} $(date)", "x".repeat(1000));
    for (command, output, refused, failed) in [
        ("echo $(date)", blocked, true, true),
        ("echo `date`", blocked, true, true),
        (long.as_str(), blocked, true, true),
        // Printed by the command itself.
        ("cat notes", blocked, false, false),
        ("cat <(date)", "Blocked: command substitution detected in shell command. No.", false, false),
        ("sleep 900", canceled, false, true),
        ("cat log", "Command was automatically cancelled because it exceeded the timeout of", false, false),
    ] {
        let stream = format!(
            r#"{{"type":"tool_use","tool_name":"run_shell_command","tool_id":"run_shell_command__1","parameters":{{"command":"{command}"}}}}
{{"type":"tool_result","tool_id":"run_shell_command__1","status":"success","output":"{output}"}}
"#
        );
        let expected = if refused { vec!["run_shell_command".to_owned()] } else { Vec::new() };
        assert_eq!(denied_tools(AgentKind::Gemini, &stream), (expected, failed), "{command}: {output}");
    }
}

#[test]
fn disabled_claude_tool_is_a_refusal() {
    let error = |message: &str| {
        format!(
            r#"{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"1","content":"{message}","is_error":true}}]}}}}
"#
        )
    };
    let disabled = "<tool_use_error>Error: No such tool available: Bash. Bash is disabled for this session, in subagents as well as here.</tool_use_error>";
    let invented = "<tool_use_error>Error: No such tool available: Shell</tool_use_error>";
    let printed = format!(r"Exit code 1\n{disabled}");
    for (message, expected) in [(disabled, vec!["Bash".to_owned()]), (invented, vec![]), (&printed, vec![])] {
        assert_eq!(denied_tools(AgentKind::Claude, &error(message)), (expected, true), "{message}");
    }
}

#[test]
fn path_refused_by_file_tool_is_listed() {
    let stream = |tool: &str, code: &str| {
        format!(
            r#"{{"type":"assistant","message":{{"content":[{{"type":"tool_use","id":"1","name":"{tool}","input":{{}}}}]}}}}
{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"1","content":"{{\"error\":{{\"code\":\"{code}\",\"hint\":\"h\",\"message\":\"`.envrc` is protected\"}}}}","is_error":true}}]}}}}
"#
        )
    };
    for (tool, code, denied, written) in [
        ("mcp__files__create", "protected_path", None, Some(".envrc")),
        ("mcp__files__move", "path_outside_workspace", None, Some(".envrc")),
        ("mcp__files__read", "path_outside_workspace", Some("mcp__files__read"), None),
        ("mcp__files__write", "file_not_found", None, None),
        // Another server.
        ("mcp__other__write", "protected_path", None, None),
    ] {
        let mut driver =
            Driver::new(&DriverSpec::one_shot(AgentKind::Claude).unwrap(), ParseLimits::default());
        driver.feed(stream(tool, code).as_bytes(), &mut |_| {});
        let summary = driver.finish(&mut |_| {});
        let denials: Vec<_> = summary.denials.iter().map(|denial| denial.tool.as_str()).collect();
        let writes: Vec<_> = summary.refused_paths.iter().filter_map(|write| write.path.as_deref()).collect();
        assert_eq!((denials, writes), (Vec::from_iter(denied), Vec::from_iter(written)), "{tool} {code}");
    }
}

#[test]
fn result_marks_command_moved_to_background() {
    let task = |kind: &str, background: &str| {
        format!(
            r#"{{"type":"system","subtype":"task_started","task_id":"b","tool_use_id":"1","description":"d"{background},"task_type":"{kind}"}}
{{"type":"user","message":{{"content":[{{"type":"tool_result","tool_use_id":"1","content":"moved"}}]}}}}
"#
        )
    };
    let in_background = r#","is_backgrounded":true"#;
    let in_foreground = r#","is_backgrounded":false"#;
    for (kind, background, expected) in [
        ("local_bash", in_background, true),
        ("local_bash", "", true),
        ("local_bash", in_foreground, false),
        ("local_agent", "", false),
    ] {
        let (events, _) =
            read(AgentKind::Claude, &[task(kind, background).as_bytes()], ParseLimits::default());
        let result = events.iter().find_map(|event| match event {
            AgentEvent::ToolResult { in_background, .. } => Some(*in_background),
            _ => None,
        });
        assert_eq!(result, Some(expected), "{kind} {background}");
    }
}

#[test]
fn gemini_model_is_the_answering_one() {
    let stream = br#"{"type":"init","session_id":"s","model":"auto"}
{"type":"result","status":"success","stats":{"models":{"router":{"output_tokens":5},"main":{"output_tokens":90},"other":{"output_tokens":7}}}}"#;
    let mut driver = Driver::new(&DriverSpec::one_shot(AgentKind::Gemini).unwrap(), ParseLimits::default());
    driver.feed(stream, &mut |_| {});
    assert_eq!(driver.finish(&mut |_| {}).model.as_deref(), Some("main"));
}

#[test]
fn subagent_tool_call_has_its_parent() {
    let tool = |parent: &str| {
        format!(
            r#"{{"type":"assistant","message":{{"content":[{{"type":"tool_use","id":"2","name":"Bash","input":{{}}}}]}},"parent_tool_use_id":{parent}}}"#
        )
    };
    for (parent, expected) in [("null", None), (r#""1""#, Some("1"))] {
        let (events, _) = read(AgentKind::Claude, &[tool(parent).as_bytes(), b"\n"], ParseLimits::default());
        let [AgentEvent::ToolUse { within, .. }] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(within.as_ref().map(|within| within.decode().into_owned()).as_deref(), expected);
    }
}

#[test]
fn stored_strings_are_bounded() {
    let limits = ParseLimits { line_bytes: 3 << 20, text_bytes: 64 };
    let long = "é".repeat(1 << 20);
    let denials: Vec<String> = (0..200)
        .map(|n| {
            format!(r#"{{"tool_name":"{0}","tool_use_id":"{n}{0}","tool_input":["{0}"]}}"#, &long[..6000])
        })
        .collect();
    let claude = [
        format!(r#"{{"type":"system","subtype":"init","session_id":"{long}"}}"#),
        format!(r#"{{"type":"system","subtype":"init","model":"{long}"}}"#),
        format!(r#"{{"type":"system","subtype":"init","claude_code_version":"{long}"}}"#),
        format!(r#"{{"type":"assistant","message":{{"model":"{long}","content":[]}}}}"#),
        format!(r#"{{"type":"system","subtype":"api_retry","error":"{long}"}}"#),
        format!(r#"{{"type":"system","subtype":"permission_denied","tool_name":"x","message":"{long}"}}"#),
        format!(r#"{{"type":"result","permission_denials":[{}]}}"#, denials.join(",")),
        format!(r#"{{"type":"result","is_error":true,"errors":["{long}"]}}"#),
        format!(r#"{{"type":"result","is_error":true,"subtype":"{long}"}}"#),
        format!(r#"{{"type":"result","subtype":"{long}"}}"#),
        format!(r#"{{"type":"result","is_error":true,"result":"{long}","session_id":"{long}"}}"#),
    ];
    let codex = [
        format!(r#"{{"type":"thread.started","thread_id":"{long}"}}"#),
        format!(r#"{{"type":"error","message":"{long}"}}"#),
        format!(
            r#"{{"type":"item.completed","item":{{"type":"file_change","status":"declined","changes":"{long}"}}}}"#
        ),
        format!(r#"{{"type":"turn.failed","error":{{"message":"{long}"}}}}"#),
    ];
    let gemini = [
        format!(r#"{{"type":"init","session_id":"{long}"}}"#),
        format!(r#"{{"type":"init","model":"{long}"}}"#),
        format!(r#"{{"type":"error","severity":"error","message":"{long}"}}"#),
        format!(r#"{{"type":"tool_result","tool_id":"{long}","error":{{"type":"policy_violation"}}}}"#),
        format!(r#"{{"type":"result","status":"error","error":{{"message":"{long}"}}}}"#),
    ];
    let streams: [(_, &[String]); 3] =
        [(AgentKind::Claude, &claude), (AgentKind::Codex, &codex), (AgentKind::Gemini, &gemini)];
    for (kind, lines) in streams {
        let mut driver = Driver::new(&DriverSpec::one_shot(kind).unwrap(), limits);
        for line in lines {
            driver.feed(line.as_bytes(), &mut |_| {});
            driver.feed(b"\n", &mut |_| {});
            // Without the pending line.
            assert!(driver.held_bytes() <= limits.line_bytes + (1 << 20), "{kind}: {}", driver.held_bytes());
        }
        assert!(format!("{:?}", driver.summary()).len() < 2 << 20, "{kind}");
    }
}

#[test]
fn held_bytes_counts_all_stored_data() {
    let mut driver = Driver::new(&DriverSpec::one_shot(AgentKind::Claude).unwrap(), ParseLimits::default());
    let before = driver.held_bytes();
    let answer = format!(r#"["{}"]"#, "x".repeat(100_000));
    let line = format!("{{\"type\":\"result\",\"structured_output\":{answer}}}\n");
    driver.feed(line.as_bytes(), &mut |_| {});
    assert_eq!(driver.summary().structured_output.as_ref(), Some(&answer));
    assert!(driver.held_bytes() >= before + answer.len());
}

#[test]
fn message_with_too_many_blocks_is_skipped() {
    let blocks = vec![r#"{"type":"text","text":""}"#; 10_001].join(",");
    let line = format!(r#"{{"type":"assistant","message":{{"content":[{blocks}]}}}}"#);
    let (events, _) = read(AgentKind::Claude, &[line.as_bytes()], ParseLimits::default());
    assert!(matches!(events.as_slice(), [AgentEvent::Unreadable { .. }]), "{}", events.len());
}
