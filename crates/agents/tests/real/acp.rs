//! The agents that speak the Agent Client Protocol: sessions, tools, failures, limits and token counts, as their profiles claim.

use std::fs;
use std::path::Path;
use std::time::Duration;

use agents::AgentFeature;
use model::{
    AgentEvent, CallPolicy, CallSpec, Deadline, End, FailureKind, Limits, Mode, Preset, SandboxReport,
    SessionChoice, SessionId, ToolOutput, Usage,
};
use model_api::{Call, ConversationRole, ModelApi, ModelRequest, ModelTurn, Script};
use serde_json::json;

use crate::confined::can_confine;
use crate::harness::Harness;
use crate::pinned::Pinned;
use crate::server;

crate::scenarios! {
    session_is_resumed_in_a_new_process;
    unknown_session_is_reported_as_such;
    fork_continues_a_copy;
    tool_call_writes_a_file;
    command_runs_and_its_output_is_reported;
    observing_call_writes_nothing;
    session_is_resumed_in_a_sandbox;
    settings_of_untrusted_workspace_run_nothing;
    chosen_model_is_asked;
    image_reaches_the_model;
    server_of_the_call_is_used;
    refused_key_is_a_failed_login;
    error_of_the_model_is_a_failure;
    error_after_a_tool_call_is_a_failure;
    deadline_ends_a_silent_turn;
    stopped_call_leaves_no_process;
    token_counts_are_those_of_the_profile;
}

const TOLD: &str = "The word is heron.";

fn name(harness: &Harness) -> String {
    harness.kind().to_string()
}

/// Returns whether the profile claims a feature. Otherwise the launcher rejects it.
fn claims(harness: &Harness, feature: AgentFeature) -> bool {
    harness.profile().has(feature)
}

/// Returns a call of the agent's own tool that writes a file.
fn write_call(harness: &Harness, file: &Path) -> Call {
    let (tool, path) = match name(harness).as_str() {
        "opencode" => ("write", "filePath"),
        "qwen" => ("write_file", "file_path"),
        _ => ("Write", "path"),
    };
    Call::Tool { name: tool.to_owned(), input: json!({path: file, "content": "heron"}) }
}

/// Answers each prompt, also where a helper of the agent sends requests in between.
fn answering() -> Script {
    Script::by(|request, _| match request.prompt().as_deref() {
        Some(prompt) if prompt.contains(TOLD) => ModelTurn::text("Noted."),
        _ => ModelTurn::text("It is heron."),
    })
}

fn resume(harness: &Harness, session: SessionId) -> CallSpec {
    CallSpec { session: SessionChoice::Resume(session), ..harness.spec("Which word?") }
}

/// Returns the last request with this prompt.
fn request_of(api: &ModelApi, prompt: &str) -> ModelRequest {
    let requests = api.turns().into_iter();
    let mut found = requests
        .filter(|request| request.says(ConversationRole::User).iter().any(|text| text.contains(prompt)));
    found.next_back().unwrap_or_else(|| panic!("no request with `{prompt}`"))
}

fn remembers(request: &ModelRequest) -> bool {
    request.says(ConversationRole::User).iter().any(|text| text.contains(TOLD))
        && request.says(ConversationRole::Model).iter().any(|text| text.contains("Noted."))
}

fn session_is_resumed_in_a_new_process(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(answering()).await;
        let first = harness.ask(&api, &harness.spec(TOLD)).await;
        assert_eq!(first.succeeded().text, "Noted.", "{first}");
        let second = harness.ask(&api, &resume(harness, first.session())).await;
        assert_eq!(second.succeeded().text, "It is heron.", "{second}");
        assert_eq!(second.outcome.session, first.outcome.session, "{second}");
        assert!(remembers(&request_of(&api, "Which word?")), "{second}");
    });
}

fn unknown_session_is_reported_as_such(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(answering()).await;
        let unknown = SessionId::from(uuid::Uuid::new_v4());
        let done = harness.ask(&api, &resume(harness, unknown)).await;
        assert_eq!(*done.failed(), FailureKind::SessionNotFound, "{done}");
        assert!(api.turns().is_empty(), "{done}");
    });
}

fn fork_continues_a_copy(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(answering()).await;
        let first = harness.ask(&api, &harness.spec(TOLD)).await;
        let fork = SessionChoice::Fork(first.session());
        let spec = CallSpec { session: fork, ..harness.spec("What else?") };
        if !claims(harness, AgentFeature::Fork) {
            assert!(harness.launch(&api, &spec, &harness.new_spool()).is_err());
            return;
        }
        let forked = harness.ask(&api, &spec).await;
        assert_ne!(forked.succeeded().session, first.outcome.session, "{forked}");
        assert!(remembers(&request_of(&api, "What else?")), "{forked}");
        let again = harness.ask(&api, &resume(harness, first.session())).await;
        again.succeeded();
        let said = request_of(&api, "Which word?").says(ConversationRole::User);
        assert!(!said.iter().any(|text| text.contains("What else?")), "{again}");
    });
}

fn tool_call_writes_a_file(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let file = harness.workspace().join("word");
        let api = ModelApi::start(Script::call_then_text(write_call(harness, &file), "Written.")).await;
        let done = harness.ask(&api, &harness.spec("Write the word.")).await;
        assert_eq!(done.succeeded().text, "Written.", "{done}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "heron", "{done}");
        let has = |wanted: fn(&AgentEvent<'_>) -> bool| done.events.iter().any(wanted);
        assert!(has(|event| matches!(event, AgentEvent::ToolUse { .. })), "{done}");
        assert!(has(|event| matches!(event, AgentEvent::ToolResult { is_error: false, .. })), "{done}");
    });
}

/// Kimi leaves its commands to the client.
fn command_runs_and_its_output_is_reported(cli: &Pinned) {
    for policy in [CallPolicy::off(), CallPolicy::default()] {
        if !policy.is_off() && !can_confine() {
            return;
        }
        Harness::play(cli, async |harness| {
            let command = "echo heron > word; echo to the model; exit 3";
            let call = Call::Shell { command: command.to_owned() };
            let api = ModelApi::start(Script::call_then_text(call, "It ran.")).await;
            let spec = CallSpec { policy: policy.clone(), ..harness.spec("Run it.") };
            let done = harness.ask(&api, &spec).await;
            assert_eq!(done.succeeded().text, "It ran.", "{done}");
            assert!(harness.has_file("word"), "{done}");
            let results = api.turns().pop().unwrap().tool_results();
            assert!(results.iter().any(|result| result.contains("to the model")), "{results:?}\n{done}");
            let is_reported = |event: &AgentEvent<'_>| match event {
                AgentEvent::ToolResult { output: ToolOutput::Text(text), exit_code, .. } => {
                    text.to_string().contains("to the model") && exit_code.is_none_or(|code| code == 3)
                }
                _ => false,
            };
            assert!(done.events.iter().any(is_reported), "{done}");
        });
    }
}

fn observing_call_writes_nothing(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        let file = harness.workspace().join("word");
        let api = ModelApi::start(Script::call_then_text(write_call(harness, &file), "I could not.")).await;
        let plain = harness.spec("Write the word.");
        let spec = CallSpec { mode: Mode::Observe, policy: Preset::Observe.into(), ..plain.clone() };
        let done = harness.ask(&api, &spec).await;
        assert_eq!(done.succeeded().text, "I could not.", "{done}");
        assert!(!file.exists(), "{done}");
        // Nothing but the sandbox keeps it from writing.
        let unconfined = CallSpec { mode: Mode::Observe, ..plain };
        assert!(harness.launch(&api, &unconfined, &harness.new_spool()).is_err());
    });
}

fn session_is_resumed_in_a_sandbox(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(answering()).await;
        let confined = |spec: CallSpec| CallSpec { policy: CallPolicy::default(), ..spec };
        let first = harness.ask(&api, &confined(harness.spec(TOLD))).await;
        assert_eq!(first.succeeded().text, "Noted.", "{first}");
        assert!(matches!(&first.report.sandbox, Some(SandboxReport::Confined(_))), "{first}");
        let second = harness.ask(&api, &confined(resume(harness, first.session()))).await;
        assert_eq!(second.succeeded().text, "It is heron.", "{second}");
        assert!(remembers(&request_of(&api, "Which word?")), "{second}");
    });
}

/// The settings run a command without a sandbox, unless the agent asks for trust first.
fn settings_of_untrusted_workspace_run_nothing(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        let mark = harness.workspace().join("mark");
        let touch = ["/usr/bin/touch", mark.to_str().unwrap()];
        let server = json!({"mcpServers": {"a": {"command": touch[0], "args": [touch[1]]}}});
        let (file, settings) = match name(harness).as_str() {
            "opencode" => {
                let server = json!({"type": "local", "command": touch, "enabled": true});
                ("opencode.json", json!({"mcp": {"a": server}}).to_string())
            }
            "qwen" => {
                let hook = json!({"type": "command", "command": touch.join(" ")});
                let hooks = json!({"hooks": {"SessionStart": [{"matcher": "*", "hooks": [hook]}]}});
                (".qwen/settings.json", hooks.to_string())
            }
            _ => (".kimi-code/mcp.json", server.to_string()),
        };
        let path = harness.workspace().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, settings).unwrap();
        let plugins = harness.workspace().join(".opencode");
        fs::create_dir_all(plugins.join("plugin")).unwrap();
        let code = format!("await Bun.write({:?}, ''); export const A = async () => ({{}});", touch[1]);
        fs::write(plugins.join("plugin/a.js"), code).unwrap();
        let api = ModelApi::start(answering()).await;
        let spec = CallSpec { policy: CallPolicy::default(), ..harness.spec("Say hello.") };
        let done = harness.ask(&api, &spec).await;
        assert_eq!(done.succeeded().text, "It is heron.", "{done}");
        assert!(!mark.exists(), "{done}");
        // To load it, opencode installs a package from the network.
        fs::remove_dir_all(plugins).unwrap();
        let done = harness.ask(&api, &harness.spec("Say hello.")).await;
        done.succeeded();
        assert_eq!(mark.exists(), name(harness) != "kimi", "{done}");
    });
}

fn chosen_model_is_asked(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(answering()).await;
        let spec = CallSpec { model: Some("other".to_owned()), ..harness.spec("Say hello.") };
        harness.ask(&api, &spec).await.succeeded();
        assert_eq!(request_of(&api, "Say hello.").model(), Some("other"));
        if claims(harness, AgentFeature::Effort) {
            let effort = Some("high".parse().unwrap());
            let spec = CallSpec { effort, model: Some("other".to_owned()), ..harness.spec("Think hard.") };
            harness.ask(&api, &spec).await.succeeded();
            let body = request_of(&api, "Think hard.").body;
            assert!(
                [&body["reasoning_effort"], &body["reasoning"]["effort"]].contains(&&json!("high")),
                "{body}"
            );
        }
        let unknown = CallSpec { model: Some("heron".to_owned()), ..harness.spec("Say goodbye.") };
        let done = harness.ask(&api, &unknown).await;
        assert_eq!(*done.failed(), FailureKind::UnsupportedOption, "{done}");
    });
}

fn image_reaches_the_model(cli: &Pinned) {
    // A pixel.
    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9cc\xf8\xcf\xc0\0\0\x03\x01\x01\0\xc9\xfe\x92\xef\0\0\0\0IEND\xaeB`\x82";
    Harness::play(cli, async |harness| {
        let file = harness.workspace().join("pixel.png");
        fs::write(&file, PNG).unwrap();
        let api = ModelApi::start(answering()).await;
        let spec = CallSpec { images: vec![file], ..harness.spec("Describe it.") };
        if !claims(harness, AgentFeature::Images) {
            assert!(harness.launch(&api, &spec, &harness.new_spool()).is_err());
            return;
        }
        harness.ask(&api, &spec).await.succeeded();
        let body = request_of(&api, "Describe it.").body.to_string();
        assert!(body.contains("data:image/png;base64,"), "{body}");
    });
}

fn server_of_the_call_is_used(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let call =
            Call::Mcp { server: "echo".to_owned(), tool: "say".to_owned(), input: json!({"text": "heron"}) };
        let api = ModelApi::start(Script::call_then_text(call, "It said heron.")).await;
        let seen = harness.directory().join("seen-by-the-server");
        let spec = CallSpec { mcp_servers: vec![server::echo(&seen)], ..harness.spec("Let it say heron.") };
        let done = harness.ask(&api, &spec).await;
        assert_eq!(done.succeeded().text, "It said heron.", "{done}");
        let results = api.turns().pop().unwrap().tool_results();
        assert!(results.iter().any(|result| result.contains("echo: heron")), "{results:?}\n{done}");
        assert_eq!(fs::read_to_string(&seen).unwrap(), server::SECRET, "{done}");
    });
}

fn refused_key_is_a_failed_login(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(ModelTurn::refuse(401))).await;
        let done = harness.ask(&api, &harness.spec("Say hello.")).await;
        assert_eq!(*done.failed(), FailureKind::Auth, "{done}");
        assert!(done.outcome.session.is_some(), "{done}");
    });
}

fn error_of_the_model_is_a_failure(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(ModelTurn::refuse(500))).await;
        let plain = harness.spec("Say hello.");
        // Some retry for longer, whatever their settings are.
        let limits = Limits { wall: Some(Duration::from_secs(20)), ..plain.limits.clone() };
        let done = harness.ask(&api, &CallSpec { limits, ..plain }).await;
        let expired = FailureKind::Deadline { which: Deadline::Wall };
        let expected = [FailureKind::AgentError, expired];
        assert!(expected.contains(done.failed()), "{done}");
        assert!(!api.turns().is_empty() && done.outcome.text.is_empty(), "{done}");
    });
}

fn error_after_a_tool_call_is_a_failure(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let call = write_call(harness, &harness.workspace().join("word"));
        let script = Script::by(move |request, _| {
            if request.ends_with_tool_result() {
                ModelTurn::refuse(400)
            } else {
                ModelTurn::call(call.clone())
            }
        });
        let api = ModelApi::start(script).await;
        let done = harness.ask(&api, &harness.spec("Write the word.")).await;
        assert_eq!(*done.failed(), FailureKind::AgentError, "{done}");
        assert!(harness.has_file("word"), "{done}");
    });
}

fn deadline_ends_a_silent_turn(cli: &Pinned) {
    // Long enough for a request to the model on a busy machine.
    let wall = Duration::from_secs(15);
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(ModelTurn::HangBeforeFirstByte)).await;
        let plain = harness.spec("Say hello.");
        let limits = Limits { wall: Some(wall), ..plain.limits.clone() };
        let done = harness.ask(&api, &CallSpec { limits, ..plain }).await;
        assert_eq!(*done.failed(), FailureKind::Deadline { which: Deadline::Wall }, "{done}");
        assert!(!api.turns().is_empty(), "the model was not asked within {wall:?}: {done}");
        assert!(done.outcome.session.is_some(), "{done}");
    });
}

fn stopped_call_leaves_no_process(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(ModelTurn::hang_after("Half of it"))).await;
        let started = harness.place(&api, &harness.spec("Say hello.")).await;
        let directory = started.run.spool().directory().to_owned();
        // The conversation advances only while the run is followed.
        let stop = async {
            api.turn(0).await;
            assert!(!harness.processes().is_empty());
            supervisor::attach(&directory).await.unwrap().stop().unwrap();
        };
        let (done, ()) = tokio::join!(started.end(None), stop);
        assert_eq!(done.report.end, End::Stopped, "{done}");
        assert_eq!(*done.failed(), FailureKind::Stopped, "{done}");
        // The harness waits until no process is left.
    });
}

fn token_counts_are_those_of_the_profile(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let file = harness.workspace().join("word");
        let api = ModelApi::start(Script::call_then_text(write_call(harness, &file), "Written.")).await;
        let done = harness.ask(&api, &harness.spec("Write the word.")).await;
        // Two requests to the model.
        let expected = claims(harness, AgentFeature::Usage).then_some(Usage {
            input: 200,
            output: 40,
            cached: 80,
            reasoning: 10,
        });
        assert_eq!(done.succeeded().usage, expected, "{done}");
        assert_eq!(done.outcome.cost_usd, None, "{done}");
    });
}
