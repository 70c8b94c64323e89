//! Recordings of real agents: a prompt with a tool call, and a session that is loaded. The paths are replaced. `live_tool_call_runs` has the
//! calls of claude and codex.

use agents::{AcpSession, AcpSpec, DriverSpec, ModelErrorReport, ReportedResult, UsageReport};
use model::{AgentEvent, Usage};

use super::acp::acp;
use super::app_server::thread;
use super::converse;

/// A recording, with the parameters of its conversation.
pub struct Recording {
    pub spec: DriverSpec,
    text: &'static str,
    session: &'static str,
    answer: &'static str,
    tools: usize,
    usage: Option<Usage>,
}

impl Recording {
    pub fn lines(&self) -> Vec<&'static str> {
        self.text.lines().collect()
    }
}

pub fn recordings() -> [Recording; 6] {
    let yolo = || AcpSpec { mode: Some("yolo".to_owned()), ..acp(AcpSession::New) };
    let copilot = "8e2a696b-1d10-471d-b1e0-f6cbe125c9a2";
    let request = Usage { input: 100, output: 20, cached: 40, reasoning: 5 };
    [
        Recording {
            spec: DriverSpec::ClaudeLive,
            text: include_str!("recorded/claude-live.jsonl"),
            session: "5b0ce903-7cc8-40ea-bb1f-e51ff8edf0b7",
            answer: "It ran.",
            tools: 1,
            usage: Some(Usage { input: 200, output: 40, cached: 80, reasoning: 0 }),
        },
        Recording {
            spec: thread(),
            text: include_str!("recorded/codex-app-server.jsonl"),
            session: "01a1f693-65db-7cb3-b400-4284bfe3454e",
            answer: "It ran.",
            tools: 1,
            usage: Some(Usage { input: 200, output: 40, cached: 80, reasoning: 10 }),
        },
        Recording {
            spec: DriverSpec::Acp(AcpSpec { usage: UsageReport::Unknown, ..acp(AcpSession::New) }),
            text: include_str!("recorded/opencode.jsonl"),
            session: "ses_e09c2e878ffez7hq55AfeJ55J9",
            answer: "ANSWER Wrote file successfully. ",
            tools: 1,
            usage: None,
        },
        Recording {
            spec: DriverSpec::Acp(AcpSpec { usage: UsageReport::PerRequest, ..yolo() }),
            text: include_str!("recorded/qwen.jsonl"),
            session: "3993495e-c8e1-4300-983b-e223576e67b3",
            answer: "ANSWER Successfully created and wrote to new file: /shop/word. ",
            tools: 1,
            usage: Some(request.plus(request)),
        },
        Recording {
            spec: DriverSpec::Acp(AcpSpec {
                usage: UsageReport::Unknown,
                errors: ModelErrorReport::Silence,
                has_terminals: true,
                ..yolo()
            }),
            text: include_str!("recorded/kimi.jsonl"),
            session: "session_11b49726-d9ec-4e93-8803-5cbe1a2b0578",
            answer: "ANSWER Wrote 5 bytes to /shop/word ",
            tools: 1,
            usage: None,
        },
        Recording {
            spec: DriverSpec::Acp(AcpSpec {
                usage: UsageReport::PerProcess,
                errors: ModelErrorReport::Text,
                ..acp(AcpSession::Resume(copilot.to_owned()))
            }),
            text: include_str!("recorded/copilot-load.jsonl"),
            session: copilot,
            answer: "ANSWER   Which word? ",
            tools: 0,
            usage: Some(request),
        },
    ]
}

#[test]
fn recorded_conversation_has_its_answer_and_tools() {
    for recording in recordings() {
        let course = converse(&recording.spec, &recording.lines());
        let summary = &course.summary;
        assert_eq!(summary.reported, Some(ReportedResult::Done), "{}", recording.answer);
        assert_eq!(summary.text(), recording.answer);
        assert_eq!(summary.session_id.as_deref(), Some(recording.session));
        assert_eq!(summary.usage, recording.usage, "{}", recording.answer);
        let count = |is_it: fn(&&AgentEvent<'_>) -> bool| course.events.iter().filter(is_it).count();
        let calls = count(|event| matches!(event, AgentEvent::ToolUse { .. }));
        let results = count(|event| matches!(event, AgentEvent::ToolResult { is_error: false, .. }));
        assert_eq!((calls, results), (recording.tools, recording.tools), "{:?}", course.events);
        assert!(course.closed);
    }
}
