//! What holds for every stream, however strange and however it is cut.

use agents::{ParseLimits, Parser};
use model::{AgentEvent, AgentKind, Unreadable};
use proptest::collection::vec;
use proptest::prelude::*;

const LIMITS: ParseLimits = ParseLimits { line_bytes: 600, text_bytes: 64 };

/// The events of a stream, owned, and the text that is kept.
fn read(kind: AgentKind, pieces: &[&[u8]], limits: ParseLimits) -> (Vec<AgentEvent<'static>>, String) {
    let mut events = Vec::new();
    let mut keep = |event: AgentEvent<'_>| events.push(event.into_owned());
    let mut parser = Parser::new(kind, limits);
    for piece in pieces {
        parser.feed(piece, &mut keep);
        // The line, the text with room to grow in, and the stray lines.
        let held = parser.held_bytes();
        assert!(held <= limits.line_bytes + 4 * limits.text_bytes + (32 << 10), "holds {held} bytes");
    }
    let summary = parser.finish(&mut keep);
    (events, summary.text())
}

/// Lines as the agents print them, with a text that is anything.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![any::<String>(), "[a-z\"\\\\\n]{0,40}", "x{500,700}"];
    let json = (0..14_usize, text).prop_map(|(which, text)| {
        let text = serde_json::to_string(&text).unwrap();
        let t = text.as_str();
        match which {
            0 => format!(r#"{{"type":"system","subtype":"init","session_id":{t},"tools":[{t}],"model":{t}}}"#),
            1 => format!(r#"{{"type":"assistant","message":{{"content":[{{"type":"text","text":{t}}}]}}}}"#),
            2 => format!(r#"{{"message":{{"content":[{{"tool_use_id":{t},"type":"tool_result","content":{t}}}]}},"type":"user"}}"#),
            3 => format!(r#"{{"result":{t},"is_error":false,"usage":{{"input_tokens":1}},"type":"result"}}"#),
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
    prop::sample::select(AgentKind::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_events_do_not_depend_on_how_the_bytes_are_cut(
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
    fn bytes_of_any_kind_are_read_without_panic(kind in agent(), stream in vec(any::<u8>(), 0..4000)) {
        read(kind, &[&stream], LIMITS);
    }

    #[test]
    fn an_unknown_line_is_kept_as_it_stands(kind in agent(), value in "[a-zA-Z0-9 é]{0,40}") {
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
fn bytes_that_are_not_utf8_are_repaired_and_lose_nothing_else() {
    let line =
        b"{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"a\xffb\"}]}}\n\
                 {\"type\":\"result\",\"result\":\"c\xffd\",\"is_error\":false,\"session_id\":\"s\"}\n";
    let (events, text) = read(AgentKind::Claude, &[line], LIMITS);
    assert!(matches!(&events[0], AgentEvent::Text { text, .. } if *text == "a\u{fffd}b"), "{events:?}");
    assert_eq!(text, "c\u{fffd}d");
}

#[test]
fn a_line_over_the_limit_is_told_and_the_next_is_read() {
    let stream = format!("{{\"type\":\"user\",\"x\":\"{}\"}}\n{{\"type\":\"z\"}}\n", "y".repeat(5000));
    let (events, _) = read(AgentKind::Claude, &[stream.as_bytes()], LIMITS);
    let AgentEvent::Unreadable { why: Unreadable::Oversized { bytes: 5022 }, line } = &events[0] else {
        panic!("{events:?}");
    };
    assert!(line.decode().starts_with(r#"{"type":"user","x":"yyy"#));
    assert!(matches!(events[1], AgentEvent::Unknown { .. }));
}

#[test]
fn what_a_sub_agent_says_is_not_the_answer() {
    let stream = br#"{"type":"assistant","message":{"content":[{"type":"text","text":"main"}]},"parent_tool_use_id":null}
{"type":"assistant","message":{"content":[{"type":"text","text":"sub"}]},"parent_tool_use_id":"toolu_1"}"#;
    let (events, text) = read(AgentKind::Claude, &[stream], LIMITS);
    assert_eq!(text, "main");
    assert!(matches!(&events[1], AgentEvent::Text { within: Some(id), .. } if *id == "toolu_1"));
}
