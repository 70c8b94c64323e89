//! Single requests: answered, streamed, denied, rejected and dropped.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use futures_util::StreamExt;
use model_api::{Call, ConversationRole, ModelTurn, Script};
use provider::{AgentEvent, AgentKind, Context, Message, ProviderConfig, ProviderError, TextPart, Update};
use serde_json::json;

use crate::harness::{Harness, of_kind};
use crate::pinned::Pinned;
use crate::servers;

crate::scenarios! {
    a_request_is_answered_and_told_what_it_took;
    system_prompt_and_history_reach_the_model;
    events_come_before_the_answer;
    text_is_streamed_in_parts_and_answered_once,
        not for Codex: "codex tells whole messages only";
    passed_mcp_server_is_used_without_touching_user_files,
        not for Gemini: "gemini takes servers from settings only";
    no_tools_at_all_means_none_is_offered, not for Codex: "codex cannot say which tools there are";
    a_tool_that_is_denied_is_named_and_the_answer_kept,
        not for Codex: "codex's stream has no word for it";
    a_login_that_is_refused_is_told_as_such;
    an_error_of_the_api_is_an_error_and_no_answer;
    a_stream_that_is_dropped_ends_the_agent_and_its_tool;
    the_example_asks_the_real_agent, not for Codex: "its scripted provider needs a variable that the example passes on to nobody";
}

fn a_request_is_answered_and_told_what_it_took(cli: &Pinned) {
    Harness::run(cli, Script::text("Hello from the model."), async |harness| {
        let provider = harness.provider();
        provider.validate_environment().await.unwrap();
        assert!(provider.is_available().await);
        let message = provider.complete(&Context::new("Say hello.")).await.unwrap();
        assert_eq!(message.text, "Hello from the model.");
        assert_eq!(harness.api.turns()[0].prompt().as_deref(), Some("Say hello."));
        let metadata = message.metadata;
        assert_eq!(metadata.provider, provider.name());
        assert!(metadata.session_id.unwrap().as_uuid().is_some());
        assert!(metadata.tokens.unwrap().output > 0);
        // Codex reports no model, so it is known only when the call names one.
        assert_eq!(metadata.model.is_some(), harness.kind() != AgentKind::Codex);
        assert_eq!(metadata.cost_usd.is_some(), harness.kind() == AgentKind::Claude);
        assert_eq!((metadata.resumes, metadata.warnings), (0, vec![]));
    });
}

fn system_prompt_and_history_reach_the_model(cli: &Pinned) {
    Harness::run(cli, Script::text("Heron."), async |harness| {
        let context = Context {
            system_prompt: "You are terse.".to_owned(),
            history: vec![Message::user("The word is heron."), Message::assistant("Noted.")],
            ..Context::new("Which word?")
        };
        harness.provider().complete(&context).await.unwrap();
        let told = harness.api.turns()[0].says(ConversationRole::User).join("\n");
        assert!(told.contains("You are terse.") && told.contains("The word is heron."), "{told}");
        assert!(told.trim_end().ends_with("Which word?"), "{told}");
    });
}

fn events_come_before_the_answer(cli: &Pinned) {
    let script = Script::call_then_text(Call::Shell { command: "echo heron".to_owned() }, "It said heron.");
    Harness::run(cli, script, async |harness| {
        let mut updates = harness.provider().complete_stream(&Context::new("Run it."));
        let mut heard = Vec::new();
        while let Some(update) = updates.next().await {
            heard.push(match update.unwrap() {
                Update::Event(AgentEvent::SessionStarted { .. }) => "session",
                Update::Event(AgentEvent::ToolUse { .. }) => "tool",
                Update::Event(AgentEvent::ToolResult { .. }) => "result",
                Update::Event(AgentEvent::Finished { .. }) => "finished",
                Update::Done(message) => {
                    assert_eq!(message.text, "It said heron.");
                    "done"
                }
                _ => continue,
            });
        }
        assert_eq!(heard, ["session", "tool", "result", "finished", "done"]);
    });
}

fn text_is_streamed_in_parts_and_answered_once(cli: &Pinned) {
    let text = "The word that you are looking for is heron.";
    Harness::run(cli, Script::text(text), async |harness| {
        let config =
            ProviderConfig { partial_messages: harness.kind() == AgentKind::Claude, ..harness.config() };
        let mut updates = of_kind(harness.kind(), config).complete_stream(&Context::new("Which word?"));
        let (mut pieces, mut wholes, mut answer) = (Vec::new(), Vec::new(), None);
        while let Some(update) = updates.next().await {
            match update.unwrap() {
                Update::Event(AgentEvent::Text { text, part: TextPart::Partial, .. }) => {
                    assert!(wholes.is_empty(), "a piece after the whole");
                    pieces.push(text.decode().into_owned());
                }
                Update::Event(AgentEvent::Text { text, .. }) => wholes.push(text.decode().into_owned()),
                Update::Done(message) => answer = Some(message.text),
                _ => {}
            }
        }
        assert!(pieces.len() > 1, "{pieces:?}");
        assert_eq!(pieces.concat(), text);
        // Gemini has no event for the whole text.
        assert_eq!(wholes, if harness.kind() == AgentKind::Claude { vec![text] } else { vec![] });
        assert_eq!(answer.as_deref(), Some(text));
    });
}

fn passed_mcp_server_is_used_without_touching_user_files(cli: &Pinned) {
    let call =
        Call::Mcp { server: "echo".to_owned(), tool: "say".to_owned(), input: json!({"text": "heron"}) };
    Harness::run(cli, Script::call_then_text(call, "It said heron."), async |harness| {
        let own = harness.workspace().join(".claude/settings.local.json");
        fs::create_dir(own.parent().unwrap()).unwrap();
        let text = b"{ \"permissions\" : {\"allow\":[ ] } }\n";
        fs::write(&own, text).unwrap();
        let seen = harness.directory().join("seen-by-the-server");
        let context =
            Context { mcp_servers: vec![servers::echo(&seen)], ..Context::new("Let it say heron.") };
        let message = harness.provider().complete(&context).await.unwrap();
        assert_eq!(message.text, "It said heron.");
        let results = harness.api.turns()[1].tool_results();
        assert!(results.iter().any(|result| result.contains("echo: heron")), "{results:?}");
        assert_eq!(fs::read_to_string(&seen).unwrap(), servers::SECRET);
        assert_eq!(fs::read(&own).unwrap(), text);
        let entries = fs::read_dir(own.parent().unwrap()).unwrap();
        let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["settings.local.json"]);
    });
}

fn no_tools_at_all_means_none_is_offered(cli: &Pinned) {
    Harness::run(cli, Script::text("I have none."), async |harness| {
        let context = Context { allowed_tools: Some(vec![]), ..Context::new("Which tools do you have?") };
        harness.provider().complete(&context).await.unwrap();
        assert_eq!(harness.api.turns()[0].tools(), Vec::<String>::new());
    });
}

fn a_tool_that_is_denied_is_named_and_the_answer_kept(cli: &Pinned) {
    let script = Script::call_then_text(
        Call::Shell { command: "echo heron > made".to_owned() },
        "I was not allowed to.",
    );
    Harness::run(cli, script, async |harness| {
        let reading = if harness.kind() == AgentKind::Claude { "Read" } else { "read_file" };
        let context =
            Context { allowed_tools: Some(vec![reading.to_owned()]), ..Context::new("Write the word.") };
        let error = harness.provider().complete(&context).await.unwrap_err();
        let ProviderError::ToolPermission { denials, so_far, .. } = &error else { panic!("{error:?}") };
        assert_eq!(
            (denials[0].tool.as_str(), so_far.text.as_str()),
            (harness.shell(), "I was not allowed to.")
        );
        assert!(!harness.workspace().join("made").exists());
    });
}

fn a_login_that_is_refused_is_told_as_such(cli: &Pinned) {
    Harness::run(cli, Script::always(ModelTurn::refuse(401)), async |harness| {
        let error = harness.provider().complete(&Context::new("Hello.")).await.unwrap_err();
        assert!(matches!(error, ProviderError::Authentication { .. }), "{error:?}");
        assert!(error.to_string().contains("CLI is not logged in") && !error.hint().is_empty(), "{error}");
    });
}

fn an_error_of_the_api_is_an_error_and_no_answer(cli: &Pinned) {
    Harness::run(cli, Script::always(ModelTurn::refuse(404)), async |harness| {
        let error = harness.provider().complete(&Context::new("Hello.")).await.unwrap_err();
        assert!(matches!(error, ProviderError::Agent { .. }), "{error:?}");
        assert!(error.so_far().unwrap().text.is_empty() && !error.hint().is_empty(), "{error:?}");
    });
}

fn a_stream_that_is_dropped_ends_the_agent_and_its_tool(cli: &Pinned) {
    Harness::run(
        cli,
        Script::endless(Call::Shell { command: "echo up > up; exec tail -f /dev/null".to_owned() }),
        async |harness| {
            let mut updates = harness.provider().complete_stream(&Context::new("Run it."));
            let up = harness.workspace().join("up");
            let running = async {
                while !up.exists() {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            };
            let ended = async { while updates.next().await.is_some_and(|update| update.is_ok()) {} };
            tokio::select! {
                () = running => {}
                () = ended => panic!("it ended by itself"),
            }
            drop(updates);
            // Every trial ends with the check that nothing is left.
        },
    );
}

fn the_example_asks_the_real_agent(cli: &Pinned) {
    Harness::run(cli, Script::text("Hello from the model."), async |harness| {
        let bin = harness.directory().join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(harness.program(), bin.join(harness.kind().name())).unwrap();
        let example = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples/ask");
        assert!(example.exists(), "build it first: cargo build -p provider --examples");
        let mut environment = harness.environment();
        let path = environment.remove("PATH").unwrap();
        let output = tokio::task::spawn_blocking({
            let (name, work, spools) =
                (harness.kind().name().to_owned(), harness.workspace(), harness.directory().join("spools"));
            move || {
                Command::new(example)
                    .args([&name, "Say hello."])
                    .env_clear()
                    .envs(environment)
                    .env("PATH", format!("{}:{path}", bin.display()))
                    .env("TMPDIR", spools)
                    .current_dir(work)
                    .output()
            }
        });
        let output = output.await.unwrap().unwrap();
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(said, "Hello from the model.\n", "{complained}");
        // Files of the CLI in the temporary directory are its own.
        for entry in fs::read_dir(harness.directory().join("spools")).unwrap().flatten() {
            assert!(!entry.file_name().to_string_lossy().starts_with("switchboard-"), "{entry:?}");
            fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path())).unwrap();
        }
    });
}
