//! What an agent may do, judged by what it has done: the workspace is looked at from outside, not its stream.

use std::fs;
use std::path::Path;

use agents::LaunchError;
use model::{
    AgentEvent, AgentKind, CallPolicy, CallSpec, Exit, Mode, PermissionMode, RefusedAction, RefusedKind,
    ToolChoice,
};
use model_api::{Call, ModelApi, Script, Turn};
use serde_json::json;

use crate::desk::{CANARY, Desk};
use crate::outside;
use crate::pinned::Pinned;

crate::scenarios! {
    full_access_runs_what_the_model_asks_for;
    policy_off_gives_all_permissions_of_the_user;
    a_tool_that_is_not_allowed_is_denied;
    command_that_the_agent_itself_rejects_is_a_refusal;
    observing_changes_nothing;
    a_hostile_workspace_runs_nothing_while_observing;
    no_tools_means_none_is_offered, not for Codex: "codex cannot say which tools there are";
    the_callers_secrets_stay_with_the_caller;
}

/// Also the proof that what observing keeps from happening would have happened.
fn full_access_runs_what_the_model_asks_for(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::turns(ways_to_write(desk))).await;
        let done = desk.ask(&api, &desk.spec("Write the word, however you can.")).await;
        assert_eq!(done.outcome.text, "I tried.", "{done}");
        let by_its_own_tool: &[&str] = match desk.kind() {
            AgentKind::Claude => &["by-tool"],
            AgentKind::Codex => &["by-patch"],
            _ => &["by-tool", "after-the-plan", "after-the-plan-by-shell"],
        };
        for name in ["by-shell", "by-shell-later"].iter().chain(by_its_own_tool) {
            let written = fs::read_to_string(desk.workspace().join(name)).unwrap_or_default();
            assert_eq!(written.trim(), "heron", "`{name}`: {done}");
        }
        assert!(api.turns()[1].tool_results()[0].contains("heron"), "{done}");
        let answered =
            |event: &AgentEvent<'_>| matches!(event, AgentEvent::ToolResult { is_error: false, .. });
        assert!(done.events.iter().any(answered), "{done}");
    });
}

/// No sandbox of the agent's own is left, either.
fn policy_off_gives_all_permissions_of_the_user(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        // Not below /tmp, which codex lets its commands write.
        let outside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let file = outside.path().join("made");
        let call = Call::Shell { command: format!("echo heron > {}", file.display()) };
        let api = ModelApi::start(Script::call_then_text(call, "Done.")).await;
        let spec = CallSpec { policy: CallPolicy::off(), ..desk.spec("Write the word.") };
        let done = desk.ask(&api, &spec).await;
        assert_eq!(fs::read_to_string(&file).unwrap_or_default().trim(), "heron", "{done}");
        done.succeeded();
    });
}

fn a_tool_that_is_not_allowed_is_denied(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let call = Call::Shell { command: "echo heron > made && cat made".to_owned() };
        let api = ModelApi::start(Script::call_then_text(call, "I was not allowed to.")).await;
        let plain = desk.spec("Write the word.");
        let spec = match desk.kind() {
            AgentKind::Claude => CallSpec { tools: ToolChoice::Only(vec!["Read".to_owned()]), ..plain },
            AgentKind::Gemini => CallSpec { tools: ToolChoice::Only(vec!["read_file".to_owned()]), ..plain },
            // Its tools cannot be chosen; the sandbox is what denies.
            _ => CallSpec { permission_mode: Some(PermissionMode::Plan), ..plain },
        };
        let done = desk.ask(&api, &spec).await;
        assert!(!desk.has_file("made"), "{done}");
        assert_eq!(done.report.exit, Some(Exit::Code(0)), "{done}");
        assert_eq!(done.outcome.text, "I was not allowed to.", "{done}");
        let results = api.turns()[1].tool_results();
        if desk.kind() == AgentKind::Codex {
            // Codex's stream has no word for it (`docs/agent-clis.md`), so the outcome has none either; its model is told.
            let refused =
                |result: &String| result.contains("Read-only file system") || result.contains("denied");
            assert!(results.iter().any(refused), "{results:?}\n{done}");
        } else {
            let tool = if desk.kind() == AgentKind::Claude { "Bash" } else { "run_shell_command" };
            // The agent's own verdict decides; the refusal is listed.
            let outcome = done.succeeded();
            assert_eq!(outcome.permission_denials[0].tool, tool, "{done}");
            let RefusedAction { kind, subject, .. } = &outcome.refusals[0];
            assert_eq!((*kind, subject.as_str()), (RefusedKind::Tool, tool), "{done}");
        }
    });
}

fn command_that_the_agent_itself_rejects_is_a_refusal(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let (command, tool) = match desk.kind() {
            AgentKind::Claude => ("echo heron > made", "Bash"),
            AgentKind::Codex => ("rm -rf made; echo heron > made", "command_execution"),
            _ => ("echo $(echo heron) > made", "run_shell_command"),
        };
        let call = Call::Shell { command: command.to_owned() };
        let api = ModelApi::start(Script::call_then_text(call, "I tried.")).await;
        let mode = if desk.kind() == AgentKind::Claude { Mode::Observe } else { Mode::Execute };
        let done = desk.ask(&api, &CallSpec { mode, ..desk.spec("Write the word.") }).await;
        assert!(!desk.has_file("made"), "{done}");
        let outcome = done.succeeded();
        let [RefusedAction { kind: RefusedKind::Tool, subject, detail: Some(_), count: 1, by_agent }] =
            outcome.refusals.as_slice()
        else {
            panic!("{done}")
        };
        if desk.kind() == AgentKind::Claude {
            // Denied by the permissions of the call.
            assert_eq!((subject.as_str(), *by_agent), (tool, false), "{done}");
        } else {
            assert!(subject.starts_with(tool) && subject.contains(command) && *by_agent, "{done}");
        }
    });
}

fn observing_changes_nothing(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let attempts = ways_to_write(desk);
        let tried = attempts.len();
        let api = ModelApi::start(Script::turns(attempts)).await;
        let spec = CallSpec { mode: Mode::Observe, ..desk.spec("Write the word, however you can.") };
        let done = desk.ask(&api, &spec).await;
        // The model has tried all of it and was told every time.
        assert_eq!(api.turns().len(), tried, "{done}");
        assert_eq!(api.turns()[tried - 1].tool_results().len(), tried - 1, "{done}");
        assert_eq!(done.outcome.text, "I tried.", "{done}");
        assert_eq!(names_in(&desk.workspace()), [""; 0], "{done}");
        assert_eq!(names_in(desk.folder()), ["home", "run-1", "work"], "{done}");
    });
}

/// Hooks, servers and rules that would leave a mark: of the workspace, and for codex a rule of the user's own too.
fn a_hostile_workspace_runs_nothing_while_observing(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let marks = desk.folder().join("marks");
        fs::create_dir(&marks).unwrap();
        let leave = |mark: &str| format!("/usr/bin/touch {}", marks.join(mark).display());
        let work = desk.workspace();
        let plant = |path: std::path::PathBuf, text: String| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let server = |mark: &str| json!({"command": "/usr/bin/touch", "args": [marks.join(mark)]});
        let hook =
            |mark: &str| json!([{"matcher": "*", "hooks": [{"type": "command", "command": leave(mark)}]}]);
        match desk.kind() {
            AgentKind::Claude => {
                let hooks =
                    json!({"SessionStart": hook("start"), "PreToolUse": hook("tool"), "Stop": hook("stop")});
                plant(work.join(".claude/settings.json"), json!({"hooks": hooks}).to_string());
                plant(work.join(".mcp.json"), json!({"mcpServers": {"evil": server("server")}}).to_string());
            }
            AgentKind::Codex => {
                let rule = "prefix_rule(pattern=[\"/usr/bin/touch\"], decision=\"allow\")\n";
                plant(desk.folder().join("home/.codex/rules/default.rules"), rule.to_owned());
                plant(work.join(".codex/rules/default.rules"), rule.to_owned());
                let mark = marks.join("server");
                let config = format!(
                    "[mcp_servers.evil]\ncommand = \"/usr/bin/touch\"\nargs = [\"{}\"]\n",
                    mark.display()
                );
                plant(work.join(".codex/config.toml"), config);
            }
            _ => {
                let settings = json!({"mcpServers": {"evil": server("server")}, "hooks": {"SessionStart": hook("start")}});
                plant(work.join(".gemini/settings.json"), settings.to_string());
            }
        }
        let call = Call::Shell { command: leave("shell") };
        let api = ModelApi::start(Script::call_then_text(call, "I tried.")).await;
        let spec = CallSpec { mode: Mode::Observe, ..desk.spec("Leave a mark.") };
        if desk.kind() == AgentKind::Gemini {
            // It obeys them whatever it is told, so it is not even started.
            let refused = desk.launch(&api, &spec, &desk.new_spool()).unwrap_err();
            assert!(matches!(refused, LaunchError::WorkspaceSettings { .. }), "{refused}");
        } else {
            let done = desk.ask(&api, &spec).await;
            assert_eq!(done.outcome.text, "I tried.", "{done}");
        }
        assert_eq!(names_in(&marks), [""; 0]);
    });
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What each CLI has to change a file with, and then a last word.
fn ways_to_write(desk: &Desk) -> Vec<Turn> {
    let inside = desk.workspace().join("by-tool");
    let outside = desk.folder().join("outside");
    let mut ways = vec![
        Turn::shell("echo heron > by-shell; cat by-shell"),
        Turn::shell(format!("sleep 0.4; echo heron > by-shell-later; echo heron > {}", outside.display())),
    ];
    let file = |path: &str| json!({"file_path": path, "content": "heron"});
    match desk.kind() {
        AgentKind::Claude => ways.extend([
            Turn::tool("Write", file(inside.to_str().unwrap())),
            Turn::tool("Edit", json!({"file_path": inside, "old_string": "", "new_string": "heron"})),
            Turn::tool("NotebookEdit", json!({"notebook_path": inside, "new_source": "heron"})),
        ]),
        AgentKind::Codex => {
            let patch = "*** Begin Patch\n*** Add File: by-patch\n+heron\n*** End Patch";
            ways.push(Turn::shell(format!("apply_patch <<'EOF'\n{patch}\nEOF")));
        }
        // Its planning mode can be left by the model, and used to open everything.
        _ => ways.extend([
            Turn::tool("write_file", file("by-tool")),
            Turn::tool("enter_plan_mode", json!({"reason": "to write"})),
            Turn::tool("exit_plan_mode", json!({"plan_filename": "plan.md"})),
            Turn::tool("write_file", file("after-the-plan")),
            Turn::shell("echo heron > after-the-plan-by-shell"),
        ]),
    }
    ways.push(Turn::text("I tried."));
    ways
}

fn no_tools_means_none_is_offered(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::text("I have none.")).await;
        let spec = CallSpec { tools: ToolChoice::None, ..desk.spec("Which tools do you have?") };
        let done = desk.ask(&api, &spec).await;
        assert_eq!(done.succeeded().text, "I have none.", "{done}");
        assert_eq!(api.turns()[0].tools(), Vec::<String>::new(), "{done}");
    });
}

fn the_callers_secrets_stay_with_the_caller(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let call = Call::Shell { command: "env > seen".to_owned() };
        let api = ModelApi::start(Script::call_then_text(call, "I looked.")).await;
        let placed = desk.place(&api, &desk.spec("Look around.")).await;
        let of_agent = outside::environment_of_new(placed.agent()).await.join("\n");
        let done = placed.end(None).await;
        assert_eq!(done.succeeded().text, "I looked.", "{done}");
        let of_tool = fs::read_to_string(desk.workspace().join("seen")).unwrap();
        let home = format!("HOME={}", desk.folder().join("home").display());
        for seen in [of_agent, of_tool] {
            // Neither is empty; and neither has anything of the caller's that was not let through.
            assert!(seen.contains(&home), "{seen}");
            assert!(!seen.contains(CANARY), "{seen}");
        }
    });
}
