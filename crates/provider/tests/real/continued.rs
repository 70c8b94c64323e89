//! A real run out of turns is resumed in its session.

use std::fs;

use model_api::{Block, Call, ModelTurn, Script};
use provider::{Context, Provider, ProviderConfig, ProviderError};
use serde_json::json;

use crate::harness::{Harness, of_kind};
use crate::pinned::Pinned;
use crate::servers;

crate::scenarios! {
    what_is_out_of_turns_goes_on_with_its_server_and_adds_up,
        not for Codex: "codex has no turn limit", not for Gemini: "gemini has no turn limit per call";
    a_named_agent_that_is_out_of_turns_goes_on_as_the_same_agent,
        not for Codex: "codex has no named agents", not for Gemini: "gemini has no named agents per call";
    at_the_limit_the_text_of_every_run_is_kept,
        not for Codex: "codex has no turn limit", not for Gemini: "gemini has no turn limit per call";
}

fn provider(harness: &Harness) -> Box<dyn Provider> {
    let config = ProviderConfig { max_turns: Some(2), max_resume_attempts: 1, ..harness.config() };
    of_kind(harness.kind(), config)
}

fn step(text: &str) -> ModelTurn {
    let say = Call::Mcp { server: "echo".to_owned(), tool: "say".to_owned(), input: json!({"text": text}) };
    ModelTurn::blocks(vec![Block::Text(text.to_owned()), Block::Call(say)])
}

fn what_is_out_of_turns_goes_on_with_its_server_and_adds_up(cli: &Pinned) {
    let script = Script::turns(vec![step("One."), step("Two."), step("Three."), ModelTurn::text("Done.")]);
    Harness::run(cli, script, async |harness| {
        let seen = harness.directory().join("seen-by-the-server");
        let context = Context { mcp_servers: vec![servers::echo(&seen)], ..Context::new("Count.") };
        let message = provider(harness).complete(&context).await.unwrap();
        // Each run ends with its last message.
        assert_eq!(message.text, "Two.\n\nDone.");
        assert_eq!((message.metadata.resumes, message.metadata.turns), (1, Some(4)));
        let tokens = message.metadata.tokens.unwrap();
        assert_eq!((tokens.input, tokens.output), (400, 80), "four answers of the model");
        assert!(message.metadata.cost_usd.unwrap() > 0.0);
        let turns = harness.api.turns();
        assert_eq!(turns.len(), 4);
        assert_eq!(turns[2].prompt().as_deref(), Some(agents::CONTINUE_PROMPT));
        // The server is available in the resumed run, too.
        assert!(turns[3].tool_results().iter().any(|result| result.contains("echo: Three.")));
        assert_eq!(fs::read_to_string(&seen).unwrap(), servers::SECRET);
    });
}

fn a_named_agent_that_is_out_of_turns_goes_on_as_the_same_agent(cli: &Pinned) {
    let script = Script::turns(vec![
        ModelTurn::shell("echo one"),
        ModelTurn::shell("echo two"),
        ModelTurn::text("Done."),
    ]);
    Harness::run(cli, script, async |harness| {
        let agents = harness.workspace().join(".claude/agents");
        fs::create_dir_all(&agents).unwrap();
        let reviewer = "---\nname: reviewer\ndescription: reviews\n---\nYou are the heron of reviewers.\n";
        fs::write(agents.join("reviewer.md"), reviewer).unwrap();
        let context = Context { agent_name: "reviewer".parse().ok(), ..Context::new("Review.") };
        let message = provider(harness).complete(&context).await.unwrap();
        assert_eq!((message.text.as_str(), message.metadata.resumes), ("Done.", 1));
        let turns = harness.api.turns();
        assert_eq!((turns.len(), turns[0].prompt().as_deref()), (3, Some("Review.")));
        for request in turns {
            assert!(
                request.body["system"].to_string().contains("the heron of reviewers"),
                "{}",
                request.body["system"]
            );
        }
    });
}

fn at_the_limit_the_text_of_every_run_is_kept(cli: &Pinned) {
    Harness::run(cli, Script::always(step("One more.")), async |harness| {
        let seen = harness.directory().join("seen-by-the-server");
        let context = Context { mcp_servers: vec![servers::echo(&seen)], ..Context::new("Count.") };
        let error = provider(harness).complete(&context).await.unwrap_err();
        assert!(matches!(error, ProviderError::MaxTurns { .. }), "{error:?}");
        assert_eq!(error.to_string(), "claude CLI used up its turns (4 turns, resumed once)");
        assert_eq!(error.so_far().unwrap().text, "One more.\n\nOne more.");
        assert!(error.session_id().is_some());
    });
}
