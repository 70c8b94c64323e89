//! Turns without faults.

use model::{AgentEvent, ToolOutput};

use crate::Test;
use crate::harness::{ACP, ALL, Conversation, LiveProtocol, WITH_OPENING};

pub const TESTS: &[Test] = &[
    ("prompt_is_answered_and_the_input_closed", ALL, prompt_is_answered_and_the_input_closed),
    ("tool_call_is_reported", ALL, tool_call_is_reported),
    ("large_prompt_arrives_whole", ALL, large_prompt_arrives_whole),
    ("permission_is_given", ACP, permission_is_given),
    ("refused_tool_is_reported", ACP, refused_tool_is_reported),
    ("session_is_resumed", WITH_OPENING, session_is_resumed),
    ("usage_is_reported", ALL, usage_is_reported),
];

fn prompt_is_answered_and_the_input_closed(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "say Looking.\nanswer Done.").end();
    assert_eq!(ended.answer(), "Done.");
    assert_eq!(ended.end.early_stop, None, "the agent exits at the end of its input");
    assert!(ended.outcome.session.is_some() && ended.sent_once());
}

fn tool_call_is_reported(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "tool Bash ls => a b\nanswer Two files.").end();
    assert_eq!(ended.answer(), "Two files.");
    let input = ended.events.iter().find_map(|event| match event {
        AgentEvent::ToolUse { input, .. } => Some(input.text().to_string()),
        _ => None,
    });
    let output = ended.events.iter().find_map(|event| match event {
        AgentEvent::ToolResult { output: ToolOutput::Text(text), .. } => Some(text.to_string()),
        _ => None,
    });
    assert!(input.is_some_and(|input| input.contains("ls")), "{:?}", ended.events);
    assert_eq!(output.as_deref(), Some("a b"));
}

fn large_prompt_arrives_whole(protocol: LiveProtocol) {
    let text = "The quick brown fox. ".repeat(150_000);
    let conversation = Conversation { text, ..Conversation::new(protocol, "stdin-bytes") };
    let length = conversation.text.len() + "\n@rehearse stdin-bytes\n".len();
    assert_eq!(conversation.end().answer(), length.to_string());
}

fn permission_is_given(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "ask Bash ls => a b\nanswer Done.").end();
    assert_eq!(ended.answer(), "Done.");
    assert!(ended.outcome.permission_denials.is_empty(), "{:?}", ended.outcome);
    assert!(ended.events.iter().any(|event| matches!(event, AgentEvent::ToolResult { .. })));
}

fn refused_tool_is_reported(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "deny Bash\nanswer It was not allowed.").end();
    assert_eq!(ended.answer(), "It was not allowed.");
    let denied: Vec<&str> =
        ended.outcome.permission_denials.iter().map(|denial| denial.tool.as_str()).collect();
    assert_eq!(denied, ["Bash"]);
}

fn session_is_resumed(protocol: LiveProtocol) {
    let session = Some("5f0c1c6e-6a53-4c8f-9f8c-0a4f0f5b8d11");
    let ended = Conversation { session, ..Conversation::new(protocol, "answer Again.") }.end();
    assert_eq!(ended.answer(), "Again.");
    assert_eq!(ended.outcome.session.as_ref().map(model::SessionId::as_str), session);
}

fn usage_is_reported(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "answer Four words of text.").end();
    let usage = ended.outcome.usage.unwrap();
    assert!(usage.input > 0 && usage.output > 0, "{usage:?}");
}
