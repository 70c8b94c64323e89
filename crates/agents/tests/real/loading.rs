//! The files that the real programs load from their workspace and from the user: the table in `docs/sandbox.md`.
//!
//! Each file leaves a mark: instructions in the request to the model, hooks and servers as a file in the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{AgentKind, CallPolicy, CallSpec, Mode, SettingSource, SettingsChoice};
use model_api::{ModelApi, Script};
use serde_json::json;

use crate::confined::can_confine;
use crate::harness::Harness;
use crate::pinned::Pinned;
use crate::story::Done;

crate::scenarios! {
    default_call_loads_only_instructions;
    trusted_workspace_settings_are_loaded;
    call_without_policy_loads_agent_defaults;
    observing_call_starts_no_server, not for Codex: "codex cannot leave out the user's servers";
    instructions_of_whole_repository_are_loaded;
    named_agent_of_untrusted_workspace_is_found, not for Codex: "codex has no named agents", not for Gemini: "gemini has no named agents";
    tool_timeout_stops_command, not for Codex: "codex refuses it", not for Gemini: "gemini refuses it";
}

/// Writes a file with its directories.
fn plant(path: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Returns a command that leaves a mark in the workspace.
fn marking(harness: &Harness, mark: &str) -> Vec<String> {
    vec!["/usr/bin/touch".to_owned(), harness.workspace().join(mark).to_str().unwrap().to_owned()]
}

fn instruction_file(kind: AgentKind) -> &'static str {
    match kind {
        AgentKind::Claude => "CLAUDE.md",
        AgentKind::Codex => "AGENTS.md",
        _ => "GEMINI.md",
    }
}

/// Creates instructions, servers and hooks of the workspace and of the user.
fn furnish(harness: &Harness) {
    let (work, home) = (harness.workspace(), harness.directory().join("home"));
    plant(&work.join(instruction_file(harness.kind())), "The word is heron.");
    let server = |mark: &str| {
        let command = marking(harness, mark);
        json!({"command": command[0], "args": [command[1]]})
    };
    // A server of the workspace would replace the user's with the same name.
    let servers = |mark: &str| json!({"mcpServers": {format!("name-of-{mark}"): server(mark)}});
    let hooks = |mark: &str| {
        let command = json!({"type": "command", "command": marking(harness, mark).join(" ")});
        json!({"SessionStart": [{"matcher": "*", "hooks": [command]}]})
    };
    match harness.kind() {
        AgentKind::Claude => {
            plant(&work.join("CLAUDE.local.md"), "The second word is egret.");
            plant(&work.join(".mcp.json"), servers("mark-server").to_string());
            plant(&work.join(".claude/settings.json"), json!({"hooks": hooks("mark-hook")}).to_string());
            plant(&home.join(".claude.json"), servers("mark-user-server").to_string());
        }
        AgentKind::Codex => {
            let table = |mark: &str| {
                let command = marking(harness, mark);
                format!(
                    "[mcp_servers.marking-{mark}]\ncommand = {:?}\nargs = [{:?}]\n",
                    command[0], command[1]
                )
            };
            plant(&work.join(".codex/config.toml"), table("mark-server"));
            plant(&work.join(".codex/hooks.json"), json!({"hooks": hooks("mark-hook")}).to_string());
            plant(&home.join(".codex/more.toml"), table("mark-user-server"));
        }
        _ => {
            let settings =
                json!({"mcpServers": {"theirs": server("mark-server")}, "hooks": hooks("mark-hook")});
            plant(&work.join(".gemini/settings.json"), settings.to_string());
            plant(
                &home.join(".gemini/more.json"),
                json!({"mcpServers": {"mine": server("mark-user-server")}}).to_string(),
            );
        }
    }
    assert!(Command::new("git").arg("init").arg("-q").arg(&work).status().unwrap().success());
}

/// Returns the marks in the workspace, in order.
fn marks(harness: &Harness) -> Vec<String> {
    let entries = fs::read_dir(harness.workspace()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut marks: Vec<String> = names.filter(|name| name.starts_with("mark-")).collect();
    marks.sort();
    marks
}

/// Checks that every instruction of the workspace reached the model.
fn is_instructed(harness: &Harness, api: &ModelApi, done: &Done) {
    let asked = api.turns()[0].body.to_string();
    assert!(asked.contains("The word is heron."), "{done}");
    assert!(harness.kind() != AgentKind::Claude || asked.contains("The second word is egret."), "{done}");
}

fn confined(harness: &Harness) -> CallSpec {
    CallSpec { policy: CallPolicy::default(), ..harness.spec("Which word?") }
}

fn default_call_loads_only_instructions(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        furnish(harness);
        let api = ModelApi::start(Script::text("Heron.")).await;
        let done = harness.ask(&api, &confined(harness)).await;
        done.succeeded();
        is_instructed(harness, &api, &done);
        assert_eq!(marks(harness), ["mark-user-server"], "{done}");
    });
}

/// Codex runs no hook that its user has not reviewed, trusted or not.
fn everything(kind: AgentKind) -> Vec<&'static str> {
    match kind {
        AgentKind::Codex => vec!["mark-server", "mark-user-server"],
        _ => vec!["mark-hook", "mark-server", "mark-user-server"],
    }
}

fn trusted_workspace_settings_are_loaded(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        furnish(harness);
        let api = ModelApi::start(Script::text("Heron.")).await;
        let done = harness.ask(&api, &confined(harness).with_trusted_workspace()).await;
        done.succeeded();
        is_instructed(harness, &api, &done);
        assert_eq!(marks(harness), everything(harness.kind()), "{done}");
    });
}

fn call_without_policy_loads_agent_defaults(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        furnish(harness);
        let api = ModelApi::start(Script::text("Heron.")).await;
        let done = harness.ask(&api, &harness.spec("Which word?")).await;
        done.succeeded();
        is_instructed(harness, &api, &done);
        assert_eq!(marks(harness), everything(harness.kind()), "{done}");
    });
}

fn observing_call_starts_no_server(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        furnish(harness);
        // Gemini rejects observe mode if the workspace has settings.
        if harness.kind() == AgentKind::Gemini {
            fs::remove_dir_all(harness.workspace().join(".gemini")).unwrap();
        }
        let api = ModelApi::start(Script::text("Heron.")).await;
        let off = CallSpec { mode: Mode::Observe, ..harness.spec("Which word?") };
        for spec in [CallSpec { policy: CallPolicy::default(), ..off.clone() }, off] {
            let done = harness.ask(&api, &spec).await;
            done.succeeded();
            is_instructed(harness, &api, &done);
            assert_eq!(marks(harness), [""; 0], "{done}");
        }
    });
}

fn instructions_of_whole_repository_are_loaded(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        // Not in the harness's directory, which every sandbox replaces by a private one.
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (root, below): (_, PathBuf) = (place.path().join("repo"), place.path().join("repo/crates/one"));
        let name = instruction_file(harness.kind());
        plant(&root.join(name), "The word is heron.");
        plant(&below.join(name), "The last word is crane.");
        if harness.kind() == AgentKind::Claude {
            plant(&root.join("CLAUDE.local.md"), "The second word is egret.");
        }
        assert!(Command::new("git").arg("init").arg("-q").arg(&root).status().unwrap().success());
        let api = ModelApi::start(Script::text("Heron.")).await;
        let done = harness.ask(&api, &CallSpec { cwd: below, ..confined(harness) }).await;
        done.succeeded();
        is_instructed(harness, &api, &done);
        assert!(api.turns()[0].body.to_string().contains("The last word is crane."), "{done}");
    });
}

fn named_agent_of_untrusted_workspace_is_found(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        furnish(harness);
        let hook = marking(harness, "mark-agent-hook").join(" ");
        let definition = format!(
            "---\nname: helper\ndescription: helps\ntools: Read\nhooks:\n  Stop:\n    - hooks:\n        - type: command\n          \
             command: {hook}\n---\nYou are the helper with the stork.\n"
        );
        plant(&harness.workspace().join(".claude/agents/helper.md"), definition);
        let api = ModelApi::start(Script::text("Heron.")).await;
        let spec = CallSpec { agent_name: Some("helper".parse().unwrap()), ..confined(harness) };
        for spec in [spec.clone(), spec.with_trusted_workspace()] {
            let done = harness.ask(&api, &spec).await;
            done.succeeded();
            let turns = api.turns();
            assert!(turns.last().unwrap().body.to_string().contains("the helper with the stork"), "{done}");
            let is_trusted =
                matches!(&spec.settings, SettingsChoice::Only(all) if all.contains(&SettingSource::Project));
            assert!(is_trusted || !marks(harness).contains(&"mark-agent-hook".to_owned()), "{done}");
        }
    });
}

fn tool_timeout_stops_command(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let command = format!("timeout 30 tail -f /dev/null; {}", marking(harness, "mark-late").join(" "));
        let script = Script::call_then_text(model_api::Call::Shell { command }, "Done.");
        let api = ModelApi::start(script).await;
        let tool_timeout = Some(std::time::Duration::from_secs(1));
        let done = harness.ask(&api, &CallSpec { tool_timeout, ..harness.spec("Wait.") }).await;
        done.succeeded();
        assert_eq!(marks(harness), [""; 0], "{done}");
        assert!(api.turns().last().unwrap().body.to_string().contains("timed out"), "{done}");
    });
}
