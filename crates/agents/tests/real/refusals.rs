//! Paths that a sandboxed run could not open, reported in the same way for every agent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{AgentKind, CallPolicy, CallSpec, Policy, RefusedAction, RefusedKind};
use model_api::{ModelApi, ModelTurn, Script};
use serde_json::json;

use crate::confined::can_confine;
use crate::harness::Harness;
use crate::pinned::Pinned;
use crate::story::Done;

crate::scenarios! {
    file_tool_on_hidden_path_is_refused_read;
    refused_file_tool_write_reports_target;
    hidden_git_repository_is_refused_read;
    refused_write_in_successful_command_is_reported;
    refused_git_config_write_reports_user_file, not for Gemini: "it gives git no settings of the user";
}

fn file_tool_on_hidden_path_is_refused_read(cli: &Pinned) {
    refuses(cli, |harness| {
        let hidden = hidden_directory(harness).join("notes");
        fs::write(&hidden, "heron\n").unwrap();
        let missing = hidden.with_file_name("missing");
        let read = |path: &Path| match harness.kind() {
            AgentKind::Claude => ModelTurn::tool("Read", json!({"file_path": path})),
            AgentKind::Codex => patch(&format!("*** Update File: {}\n@@\n-heron\n+stork", path.display())),
            _ => ModelTurn::tool("read_file", json!({"file_path": path})),
        };
        // Gemini's tools do not check whether a path outside of the workspace exists.
        let others = if harness.kind() == AgentKind::Gemini { vec![] } else { vec![read(&missing)] };
        (vec![read(&hidden)].into_iter().chain(others).collect(), RefusedKind::Read, hidden)
    });
}

fn refused_file_tool_write_reports_target(cli: &Pinned) {
    refuses(cli, |harness| {
        let path = PathBuf::from("/etc/switchboard-refused-write");
        let write = match harness.kind() {
            AgentKind::Claude => ModelTurn::tool("Write", json!({"file_path": path, "content": "heron"})),
            AgentKind::Codex => patch(&format!("*** Add File: {}\n+heron", path.display())),
            _ => ModelTurn::tool("write_file", json!({"file_path": path, "content": "heron"})),
        };
        (vec![write], RefusedKind::Write, path)
    });
}

fn hidden_git_repository_is_refused_read(cli: &Pinned) {
    refuses(cli, |harness| {
        let remote = hidden_directory(harness).join("remote.git");
        git(&["init", "-q", "--bare", remote.to_str().unwrap()], harness.directory());
        git(&["init", "-q"], &harness.workspace());
        git(&["remote", "add", "origin", remote.to_str().unwrap()], &harness.workspace());
        let clone = format!("git clone {} copy", remote.display());
        (vec![ModelTurn::shell("git fetch origin"), ModelTurn::shell(clone)], RefusedKind::Read, remote)
    });
}

fn refused_write_in_successful_command_is_reported(cli: &Pinned) {
    refuses(cli, |_| {
        let path = PathBuf::from("/etc/switchboard-refused-write");
        let command = format!("touch {} 2>&1 | tail -5", path.display());
        (vec![ModelTurn::shell(command)], RefusedKind::Write, path)
    });
}

fn refused_git_config_write_reports_user_file(cli: &Pinned) {
    refuses(cli, |harness| {
        let config = harness.directory().join("home/.gitconfig");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        fs::write(&config, "[user]\n\tname = Ana\n").unwrap();
        (vec![ModelTurn::shell("git config --global alias.st status")], RefusedKind::Write, config)
    });
}

/// Runs turns that hit one rejected path, with and without namespaces, and compares kind and path.
fn refuses(cli: &Pinned, script: impl Fn(&Harness) -> (Vec<ModelTurn>, RefusedKind, PathBuf)) {
    for namespaces in [true, false] {
        if namespaces && !can_confine() {
            continue;
        }
        Harness::play(cli, async |harness| {
            let (mut turns, kind, path) = script(harness);
            let calls = turns.len();
            turns.push(ModelTurn::text("I could not."));
            let api = ModelApi::start(Script::turns(turns)).await;
            let spec = CallSpec { policy: CallPolicy::default(), ..harness.spec("Try it.") };
            let started = harness.place_with(&api, &spec, |plan| {
                if let Policy::Confined(confinement) = &mut plan.policy {
                    confinement.namespaces = namespaces;
                }
            });
            let done = started.await.end(None).await;
            assert_eq!(api.turns().len(), calls + 1, "{done}");
            let [refused] = done.succeeded().refusals.as_slice() else {
                panic!("namespaces {namespaces}: {done}")
            };
            assert_eq!((refused.kind, Path::new(&refused.subject)), (kind, path.as_path()), "{done}");
            is_explained(&done, refused);
        });
    }
}

/// Checks that the detail contains no file of Switchboard, and that a read comes with a hint.
fn is_explained(done: &Done, refused: &RefusedAction) {
    let detail = refused.detail.as_deref().unwrap_or_default();
    assert!(!detail.contains("private/"), "{done}");
    let notes = done.outcome.notes().join("\n");
    assert_eq!(notes.contains("add other directories to the call"), refused.by_agent, "{done}");
    let is_hidden = refused.kind == RefusedKind::Read && !refused.by_agent;
    assert_eq!(notes.contains("`sandbox.expose`"), is_hidden, "{done}");
}

fn hidden_directory(harness: &Harness) -> PathBuf {
    let directory = harness.directory().join("home/other");
    fs::create_dir_all(&directory).unwrap();
    directory
}

fn patch(change: &str) -> ModelTurn {
    ModelTurn::shell(format!("apply_patch <<'EOF'\n*** Begin Patch\n{change}\n*** End Patch\nEOF"))
}

fn git(arguments: &[&str], directory: &Path) {
    let git = Command::new("git").args(arguments).current_dir(directory).status();
    assert!(git.unwrap().success());
}
