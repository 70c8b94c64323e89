//! What the real programs load from their workspace and from the user: the table in `docs/sandbox.md`.
//!
//! Every file leaves a mark: instructions in the request to the model, hooks and servers as a file of the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{AgentKind, CallPolicy, CallSpec, Mode, SettingSource, SettingsChoice};
use model_api::{ModelApi, Script};
use serde_json::json;

use crate::confined::can_confine;
use crate::desk::Desk;
use crate::pinned::Pinned;
use crate::story::Done;

crate::scenarios! {
    default_call_reads_instructions_and_runs_nothing_of_the_workspace;
    trusted_workspace_is_loaded;
    call_without_a_policy_loads_what_the_agent_loads;
    observing_call_reads_instructions_and_starts_no_server, not for Codex: "codex cannot leave out the user's servers";
    instructions_of_the_whole_repository_are_read;
    named_agent_of_an_untrusted_workspace_is_found, not for Codex: "codex has no named agents", not for Gemini: "gemini has no named agents";
    tool_timeout_ends_a_command, not for Codex: "codex refuses it", not for Gemini: "gemini refuses it";
}

/// Writes a file, and its directories.
fn plant(path: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A command that leaves a mark in the workspace.
fn marking(desk: &Desk, mark: &str) -> Vec<String> {
    vec!["/usr/bin/touch".to_owned(), desk.workspace().join(mark).to_str().unwrap().to_owned()]
}

fn instruction_file(kind: AgentKind) -> &'static str {
    match kind {
        AgentKind::Claude => "CLAUDE.md",
        AgentKind::Codex => "AGENTS.md",
        _ => "GEMINI.md",
    }
}

/// Plants instructions, servers and hooks of the workspace and of the user.
fn furnish(desk: &Desk) {
    let (work, home) = (desk.workspace(), desk.folder().join("home"));
    plant(&work.join(instruction_file(desk.kind())), "The word is heron.");
    let server = |mark: &str| {
        let command = marking(desk, mark);
        json!({"command": command[0], "args": [command[1]]})
    };
    // A server of the workspace would take the place of the user's with the same name.
    let servers = |mark: &str| json!({"mcpServers": {format!("name-of-{mark}"): server(mark)}});
    let hooks = |mark: &str| {
        let command = json!({"type": "command", "command": marking(desk, mark).join(" ")});
        json!({"SessionStart": [{"matcher": "*", "hooks": [command]}]})
    };
    match desk.kind() {
        AgentKind::Claude => {
            plant(&work.join("CLAUDE.local.md"), "The second word is egret.");
            plant(&work.join(".mcp.json"), servers("mark-server").to_string());
            plant(&work.join(".claude/settings.json"), json!({"hooks": hooks("mark-hook")}).to_string());
            plant(&home.join(".claude.json"), servers("mark-user-server").to_string());
        }
        AgentKind::Codex => {
            let table = |mark: &str| {
                let command = marking(desk, mark);
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

/// The marks in the workspace, in order.
fn marks(desk: &Desk) -> Vec<String> {
    let entries = fs::read_dir(desk.workspace()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut marks: Vec<String> = names.filter(|name| name.starts_with("mark-")).collect();
    marks.sort();
    marks
}

/// Whether every instruction of the workspace reached the model.
fn is_instructed(desk: &Desk, api: &ModelApi, done: &Done) {
    let asked = api.turns()[0].body.to_string();
    assert!(asked.contains("The word is heron."), "{done}");
    assert!(desk.kind() != AgentKind::Claude || asked.contains("The second word is egret."), "{done}");
}

fn confined(desk: &Desk) -> CallSpec {
    CallSpec { policy: CallPolicy::default(), ..desk.spec("Which word?") }
}

fn default_call_reads_instructions_and_runs_nothing_of_the_workspace(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Desk::play(cli, async |desk| {
        furnish(desk);
        let api = ModelApi::start(Script::text("Heron.")).await;
        let done = desk.ask(&api, &confined(desk)).await;
        done.succeeded();
        is_instructed(desk, &api, &done);
        assert_eq!(marks(desk), ["mark-user-server"], "{done}");
    });
}

/// Codex runs no hook that its user has not reviewed, trusted or not.
fn everything(kind: AgentKind) -> Vec<&'static str> {
    match kind {
        AgentKind::Codex => vec!["mark-server", "mark-user-server"],
        _ => vec!["mark-hook", "mark-server", "mark-user-server"],
    }
}

fn trusted_workspace_is_loaded(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Desk::play(cli, async |desk| {
        furnish(desk);
        let api = ModelApi::start(Script::text("Heron.")).await;
        let done = desk.ask(&api, &confined(desk).with_trusted_workspace()).await;
        done.succeeded();
        is_instructed(desk, &api, &done);
        assert_eq!(marks(desk), everything(desk.kind()), "{done}");
    });
}

fn call_without_a_policy_loads_what_the_agent_loads(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        furnish(desk);
        let api = ModelApi::start(Script::text("Heron.")).await;
        let done = desk.ask(&api, &desk.spec("Which word?")).await;
        done.succeeded();
        is_instructed(desk, &api, &done);
        assert_eq!(marks(desk), everything(desk.kind()), "{done}");
    });
}

fn observing_call_reads_instructions_and_starts_no_server(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Desk::play(cli, async |desk| {
        furnish(desk);
        // Gemini refuses to look only where the workspace has settings.
        if desk.kind() == AgentKind::Gemini {
            fs::remove_dir_all(desk.workspace().join(".gemini")).unwrap();
        }
        let api = ModelApi::start(Script::text("Heron.")).await;
        let off = CallSpec { mode: Mode::Observe, ..desk.spec("Which word?") };
        for spec in [CallSpec { policy: CallPolicy::default(), ..off.clone() }, off] {
            let done = desk.ask(&api, &spec).await;
            done.succeeded();
            is_instructed(desk, &api, &done);
            assert_eq!(marks(desk), [""; 0], "{done}");
        }
    });
}

fn instructions_of_the_whole_repository_are_read(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Desk::play(cli, async |desk| {
        // Elsewhere than the desk, which is in a directory that every sandbox has its own of.
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (root, below): (_, PathBuf) = (place.path().join("repo"), place.path().join("repo/crates/one"));
        let name = instruction_file(desk.kind());
        plant(&root.join(name), "The word is heron.");
        plant(&below.join(name), "The last word is crane.");
        if desk.kind() == AgentKind::Claude {
            plant(&root.join("CLAUDE.local.md"), "The second word is egret.");
        }
        assert!(Command::new("git").arg("init").arg("-q").arg(&root).status().unwrap().success());
        let api = ModelApi::start(Script::text("Heron.")).await;
        let done = desk.ask(&api, &CallSpec { cwd: below, ..confined(desk) }).await;
        done.succeeded();
        is_instructed(desk, &api, &done);
        assert!(api.turns()[0].body.to_string().contains("The last word is crane."), "{done}");
    });
}

fn named_agent_of_an_untrusted_workspace_is_found(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Desk::play(cli, async |desk| {
        furnish(desk);
        let hook = marking(desk, "mark-agent-hook").join(" ");
        let definition = format!(
            "---\nname: helper\ndescription: helps\ntools: Read\nhooks:\n  Stop:\n    - hooks:\n        - type: command\n          \
             command: {hook}\n---\nYou are the helper with the stork.\n"
        );
        plant(&desk.workspace().join(".claude/agents/helper.md"), definition);
        let api = ModelApi::start(Script::text("Heron.")).await;
        let spec = CallSpec { agent_name: Some("helper".parse().unwrap()), ..confined(desk) };
        for spec in [spec.clone(), spec.with_trusted_workspace()] {
            let done = desk.ask(&api, &spec).await;
            done.succeeded();
            let turns = api.turns();
            assert!(turns.last().unwrap().body.to_string().contains("the helper with the stork"), "{done}");
            let is_trusted =
                matches!(&spec.settings, SettingsChoice::Only(all) if all.contains(&SettingSource::Project));
            assert!(is_trusted || !marks(desk).contains(&"mark-agent-hook".to_owned()), "{done}");
        }
    });
}

fn tool_timeout_ends_a_command(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let command = format!("timeout 30 tail -f /dev/null; {}", marking(desk, "mark-late").join(" "));
        let script = Script::call_then_text(model_api::Call::Shell { command }, "Done.");
        let api = ModelApi::start(script).await;
        let tool_timeout = Some(std::time::Duration::from_secs(1));
        let done = desk.ask(&api, &CallSpec { tool_timeout, ..desk.spec("Wait.") }).await;
        done.succeeded();
        assert_eq!(marks(desk), [""; 0], "{done}");
        assert!(api.turns().last().unwrap().body.to_string().contains("timed out"), "{done}");
    });
}
