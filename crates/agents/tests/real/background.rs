//! Background work that outlives its tool call: awaited, or reported as incomplete.

use std::time::Duration;

use model::{AgentKind, BackgroundStatus, Deadline, End, FailureKind, Limits};
use model_api::{ModelApi, ModelTurn, Script};
use serde_json::json;

use crate::harness::Harness;
use crate::pinned::Pinned;

crate::scenarios! {
    completed_background_task_is_in_the_answer,
        not for Codex: "codex exits with its turn", not for Gemini: "gemini exits with its turn";
    completed_background_agent_is_in_the_answer,
        not for Codex: "codex exits with its turn", not for Gemini: "gemini exits with its turn";
    background_task_at_the_wall_limit_is_a_timeout,
        not for Codex: "codex exits with its turn", not for Gemini: "gemini exits with its turn";
    background_command_outliving_agent_is_incomplete;
}

const BUG: &str = "The bug is in line 12.";

fn bash(command: &str) -> ModelTurn {
    ModelTurn::tool(
        "Bash",
        json!({"command": command, "description": "the build", "run_in_background": true}),
    )
}

fn completed_background_task_is_in_the_answer(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let turns = vec![
            bash("sleep 2; echo done > built"),
            ModelTurn::text(BUG),
            ModelTurn::text("The build is done."),
        ];
        let api = ModelApi::start(Script::turns(turns)).await;
        let done = harness.ask(&api, &harness.spec("Build it.")).await;
        let outcome = done.succeeded();
        assert_eq!(outcome.text, format!("{BUG}\n\nThe build is done."), "{done}");
        assert!(harness.has_file("built"), "{done}");
        assert_eq!((outcome.turns, outcome.background.len()), (Some(3), 0), "{done}");
        assert_eq!(outcome.usage.map(|usage| (usage.input, usage.output)), Some((300, 60)), "{done}");
    });
}

fn completed_background_agent_is_in_the_answer(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let input = json!({
            "description": "the search", "prompt": "Search the sources.", "subagent_type": "general-purpose",
            "run_in_background": true,
        });
        let api = ModelApi::start(Script::by(move |request, _| {
            let says = request.says(model_api::ConversationRole::User).join(" ");
            if says.contains("Search the sources.") && !says.contains("Build it") {
                ModelTurn::slow_text("Found nothing at all.", Duration::from_millis(200))
            } else if request.tool_results().is_empty() {
                ModelTurn::tool("Agent", input.clone())
            } else {
                ModelTurn::text(BUG)
            }
        }))
        .await;
        let done = harness.ask(&api, &harness.spec("Build it.")).await;
        let outcome = done.succeeded();
        assert!(outcome.text.starts_with(BUG) && !outcome.text.contains("Found"), "{done}");
        assert!(outcome.usage.is_some_and(|usage| usage.input >= 300), "{done}");
        assert!(outcome.cost_usd.is_some_and(|cost| cost > 0.0), "{done}");
    });
}

/// 2.1.197 abandons its task sooner and reports it.
fn background_task_at_the_wall_limit_is_a_timeout(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let turns = vec![
            bash("sleep 60; echo done > built"),
            ModelTurn::text(BUG),
            ModelTurn::text("It was stopped."),
        ];
        let api = ModelApi::start(Script::turns(turns)).await;
        let mut spec = harness.spec("Build it.");
        let wall = Some(Duration::from_secs(12));
        spec.limits = Limits { wall, ..spec.limits };
        let done = harness.ask(&api, &spec).await;
        let wall = FailureKind::Deadline { which: Deadline::Wall };
        let expected = if done.report.end == End::Exited { FailureKind::Incomplete } else { wall };
        assert_eq!(*done.failed(), expected, "{done}");
        assert_eq!(done.report.end == End::Exited, cli.version == "2.1.197", "{done}");
        assert!(done.outcome.text.starts_with(BUG), "{done}");
        let [task] = done.outcome.background.as_slice() else { panic!("{done}") };
        assert_eq!(
            (task.description.as_str(), task.status),
            ("the build", BackgroundStatus::Stopped),
            "{done}"
        );
        assert!(!harness.has_file("built") && done.outcome.session.is_some(), "{done}");
    });
}

fn background_command_outliving_agent_is_incomplete(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let command = "sleep 60; echo done > built";
        let start = match harness.kind() {
            AgentKind::Claude => bash(command),
            AgentKind::Codex => {
                ModelTurn::tool("exec_command", json!({"cmd": command, "yield_time_ms": 300}))
            }
            _ => ModelTurn::tool("run_shell_command", json!({"command": command, "is_background": true})),
        };
        let api =
            ModelApi::start(Script::turns(vec![start, ModelTurn::text(BUG), ModelTurn::text(BUG)])).await;
        let mut spec = harness.spec("Build it.");
        // Newer versions of claude wait for it until a limit stops them.
        spec.limits.wall = Some(Duration::from_secs(15));
        let done = harness.ask(&api, &spec).await;
        assert!(!done.outcome.is_success(), "{done}");
        assert_eq!(done.outcome.background.len(), 1, "{done}");
        assert!(
            done.outcome.background[0].description.contains(if harness.kind() == AgentKind::Claude {
                "build"
            } else {
                command
            }),
            "{done}"
        );
        assert!(done.outcome.text.starts_with(BUG), "{done}");
    });
}
