//! Structured answers, MCP servers, streaming and turn limits.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use agents::LaunchError;
use model::{AgentEvent, AgentKind, CallSpec, FailureKind, SessionChoice, SessionId, TextPart, ToolChoice};
use model_api::{ApiVendor, Block, Call, ModelApi, ModelTurn, Script};
use serde_json::{Value, json};

use crate::harness::Harness;
use crate::outside;
use crate::pinned::Pinned;
use crate::server;

crate::scenarios! {
    answer_matches_schema, not for Gemini: "gemini has no output schema";
    answer_outside_schema_is_invalid, not for Gemini: "gemini has no output schema";
    mcp_server_of_call_is_used, not for Gemini: "gemini takes servers from settings only";
    watched_agent_streams_each_text_once;
    turn_limit_stops_the_run, not for Codex: "codex has no turn limit",
        not for Gemini: "gemini has no turn limit per call";
    unsupported_options_are_rejected_before_start, not for Claude: "claude can do all of it";
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
        "additionalProperties": false,
    })
}

fn answer_matches_schema(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        // Claude's model answers with a tool that the CLI creates from the schema; codex's with its text.
        let shaped = Script::by(|request, _| match request.vendor {
            Some(ApiVendor::Anthropic) if !request.ends_with_tool_result() => {
                ModelTurn::tool("StructuredOutput", json!({"answer": "heron"}))
            }
            Some(ApiVendor::OpenAi) => ModelTurn::text(r#"{"answer":"heron"}"#),
            _ => ModelTurn::text("The answer is heron."),
        });
        let api = ModelApi::start(shaped).await;
        let spec = CallSpec { output_schema: Some(schema().to_string()), ..harness.spec("Which word?") };
        let done = harness.ask(&api, &spec).await;
        let answer = done.succeeded().structured_output.as_deref().unwrap();
        assert_eq!(serde_json::from_str::<Value>(answer).unwrap(), json!({"answer": "heron"}));
        assert_eq!(schema_of(&api), schema(), "{done}");
    });
}

/// Returns the schema in the request to the model.
fn schema_of(api: &ModelApi) -> Value {
    let body = api.turns()[0].body.clone();
    let tools = body["tools"].as_array().into_iter().flatten();
    let of_tool =
        tools.into_iter().find(|tool| tool["name"] == "StructuredOutput").map(|tool| &tool["input_schema"]);
    let mut told = of_tool.unwrap_or(&body["text"]["format"]["schema"]).clone();
    // Claude adds the dialect.
    told.as_object_mut().map(|told| told.remove("$schema"));
    told
}

fn answer_outside_schema_is_invalid(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::text("Not what was asked for.")).await;
        let spec = CallSpec { output_schema: Some(schema().to_string()), ..harness.spec("Which word?") };
        let done = harness.ask(&api, &spec).await;
        assert_eq!(*done.failed(), FailureKind::SchemaMismatch, "{done}");
        assert_eq!(done.outcome.structured_output, None, "{done}");
        assert_eq!(done.outcome.text, "Not what was asked for.", "{done}");
    });
}

fn mcp_server_of_call_is_used(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let call =
            Call::Mcp { server: "echo".to_owned(), tool: "say".to_owned(), input: json!({"text": "heron"}) };
        let api = ModelApi::start(Script::call_then_text(call, "It said heron.")).await;
        let seen = harness.directory().join("seen-by-the-server");
        let spec = CallSpec { mcp_servers: vec![server::echo(&seen)], ..harness.spec("Let it say heron.") };
        let started = harness.place(&api, &spec).await;
        // Arguments are readable for every user of the machine; private files are not.
        let arguments = outside::arguments_of_new(started.agent()).await;
        assert!(!arguments.iter().any(|word| word.contains(server::SECRET)));
        if harness.kind() == AgentKind::Claude {
            let config = started.run.spool().private().join("mcp.json");
            assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(fs::read_to_string(&config).unwrap().contains(server::SECRET));
        }
        let done = started.end(None).await;
        assert_eq!(done.succeeded().text, "It said heron.", "{done}");
        let results = api.turns()[1].tool_results();
        assert!(results.iter().any(|result| result.contains("echo: heron")), "{results:?}\n{done}");
        assert_eq!(fs::read_to_string(&seen).unwrap(), server::SECRET, "{done}");
    });
}

fn watched_agent_streams_each_text_once(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        // Two different texts: gemini takes a repetition for a loop.
        let long =
            (1..=20).map(|number| format!("There is heron {number} of them. ")).collect::<Vec<_>>().concat();
        let first =
            vec![Block::Text(long.clone()), Block::Call(Call::Shell { command: "echo again".to_owned() })];
        let script = Script::by(move |request, _| {
            if request.ends_with_tool_result() {
                ModelTurn::text("All of them flew away.")
            } else {
                ModelTurn::blocks(first.clone())
            }
        });
        let api = ModelApi::start(script).await;
        let done = harness.ask(&api, &CallSpec { watched: true, ..harness.spec("Tell a story.") }).await;
        done.succeeded();
        let words = |wanted: TextPart| -> Vec<String> {
            let said = done.events.iter().filter_map(|event| match event {
                AgentEvent::Text { text, part, within: None } if *part == wanted => {
                    Some(text.decode().into())
                }
                _ => None,
            });
            said.collect()
        };
        let (pieces, wholes) = (words(TextPart::Partial), words(TextPart::Whole));
        let told = [long.as_str(), "All of them flew away."];
        match harness.kind() {
            AgentKind::Codex => assert!(pieces.is_empty(), "{done}"),
            _ => assert!(pieces.len() > 2 && pieces.concat() == told.concat(), "{done}"),
        }
        match harness.kind() {
            AgentKind::Gemini => assert!(wholes.is_empty(), "{done}"),
            _ => assert_eq!(wholes, told, "{done}"),
        }
    });
}

fn turn_limit_stops_the_run(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let step = vec![
            Block::Text("One more step.".to_owned()),
            Block::Call(Call::Shell { command: "echo again".to_owned() }),
        ];
        let api = ModelApi::start(Script::always(ModelTurn::blocks(step))).await;
        let done =
            harness.ask(&api, &CallSpec { max_turns: Some(2), ..harness.spec("Go on for ever.") }).await;
        assert_eq!(*done.failed(), FailureKind::MaxTurns, "{done}");
        assert_eq!((api.turns().len(), done.outcome.turns), (2, Some(2)), "{done}");
        assert_eq!(done.outcome.text, "One more step.", "{done}");
        assert_eq!(done.launch.session.known(), Some(&done.session()), "{done}");
        // The session can be resumed, as the hint suggests.
        let resumed = CallSpec {
            session: SessionChoice::Resume(done.session()),
            max_turns: Some(1),
            ..harness.spec("Go on.")
        };
        let again = harness.ask(&api, &resumed).await;
        assert_eq!((again.failed(), again.session()), (&FailureKind::MaxTurns, done.session()), "{again}");
    });
}

fn unsupported_options_are_rejected_before_start(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::text("Hello from the model.")).await;
        let plain = || harness.spec("Say hello.");
        let fork = SessionChoice::Fork(SessionId::from(uuid::Uuid::new_v4()));
        let mut refused = vec![
            ("max_turns", CallSpec { max_turns: Some(2), ..plain() }),
            ("max_budget_usd", CallSpec { max_budget_usd: Some(1.0), ..plain() }),
        ];
        refused.extend(match harness.kind() {
            AgentKind::Codex => vec![("tools", CallSpec { tools: ToolChoice::None, ..plain() })],
            _ => vec![
                ("session fork", CallSpec { session: fork, ..plain() }),
                ("mcp_servers", CallSpec { mcp_servers: vec![server::echo(harness.directory())], ..plain() }),
                ("append_system_prompt", CallSpec { append_system_prompt: Some("x".to_owned()), ..plain() }),
            ],
        });
        for (option, spec) in refused {
            match harness.launch(&api, &spec, &harness.new_spool()) {
                Err(LaunchError::Unsupported { option: named, .. }) => assert_eq!(named, option),
                other => panic!("`{option}` is not refused: {other:?}"),
            }
        }
    });
}
