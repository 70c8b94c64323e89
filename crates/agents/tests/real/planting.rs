//! A sandboxed agent cannot plant anything in its own state that a later call, sandboxed or not, would obey.

use std::fs;
use std::path::{Path, PathBuf};

use model::{AgentKind, CallPolicy, CallSpec, Policy, Preset, Requirement, SessionChoice};
use model_api::{ModelApi, ModelTurn, Script};

use crate::confined::can_confine;
use crate::harness::Harness;
use crate::pinned::Pinned;

crate::scenarios! {
    agent_plants_nothing_in_its_own_state;
    agent_plants_nothing_in_its_own_state_without_namespaces;
    planted_env_file_runs_nothing_later, not for Claude: "it reads no such file", not for Gemini: "its shell obeys no such file";
    settings_programs_are_unchanged;
    sessions_and_state_survive_sandboxed_calls;
}

/// Paths in the home directory that the agent obeys: settings, instructions, programs.
fn obeyed(kind: AgentKind) -> &'static [&'static str] {
    match kind {
        AgentKind::Claude => &[
            ".claude/.claude.json",
            ".claude/.config.json",
            ".claude/settings.json",
            ".claude/settings.local.json",
            ".claude/CLAUDE.md",
            ".claude/agents/evil.md",
            ".claude/commands/evil.md",
            ".claude/hooks/evil.sh",
            ".claude/local/claude",
            ".claude/output-styles/evil.md",
            ".claude/plugins/evil/plugin.json",
            ".claude/rules/evil.md",
            ".claude/session-env/00000000-0000-4000-8000-000000000000/sessionstart-hook-0.sh",
            ".claude/shell-snapshots/snapshot-bash-evil.sh",
            ".claude/skills/evil/SKILL.md",
            ".claude/workflows/evil.js",
            ".claude/projects/-elsewhere/memory/MEMORY.md",
            ".claude.json",
        ],
        AgentKind::Codex => &[
            ".codex/.env",
            ".codex/AGENTS.md",
            ".codex/AGENTS.override.md",
            ".codex/agents/evil.toml",
            ".codex/config.toml",
            ".codex/environments.toml",
            ".codex/hooks.json",
            ".codex/memories/evil.md",
            ".codex/packages/evil/codex",
            ".codex/prompts/evil.md",
            ".codex/rules/evil.rules",
            ".codex/shell_snapshots/evil.sh",
            ".codex/skills/evil/SKILL.md",
            ".codex/tmp/arg0-linux/evil/git",
            ".agents/skills/evil/SKILL.md",
        ],
        _ => &[
            ".gemini/.env",
            ".gemini/GEMINI.md",
            ".gemini/agents/evil.md",
            ".gemini/commands/evil.toml",
            ".gemini/extensions/evil/gemini-extension.json",
            ".gemini/history/evil/.git/config",
            ".gemini/policies/evil.toml",
            ".gemini/settings.json",
            ".gemini/skills/evil/SKILL.md",
            ".gemini/tmp/bin/rg",
            ".gemini/tmp/elsewhere/memory/GEMINI.md",
            ".gemini/trustedFolders.json",
            ".gemini/trusted_hooks.json",
            ".env",
        ],
    }
}

/// Returns the directory whose text later sessions of this project obey.
fn memory(harness: &Harness) -> Option<PathBuf> {
    let cwd = harness.workspace();
    match harness.kind() {
        AgentKind::Claude => {
            let name: String = cwd
                .to_str()
                .unwrap()
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
                .collect();
            Some(harness.directory().join("home/.claude/projects").join(name).join("memory"))
        }
        AgentKind::Gemini => Some(harness.directory().join("home/.gemini/tmp/work/memory")),
        _ => None,
    }
}

fn plant(cli: &Pinned, namespaces: bool) {
    Harness::play(cli, async |harness| {
        let home = harness.directory().join("home");
        let paths: Vec<PathBuf> = obeyed(harness.kind()).iter().map(|name| home.join(name)).collect();
        let memory = memory(harness).filter(|_| namespaces).map(|memory| memory.join("MEMORY.md"));
        let paths: Vec<PathBuf> = paths.into_iter().chain(memory).collect();
        let list = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ");
        // By path, and through the variable of the state directory.
        let command = format!(
            "for p in {list}; do mkdir -p $(dirname $p); echo planted-evil >> $p; done; \
             for d in $CLAUDE_CONFIG_DIR $CODEX_HOME $GEMINI_CLI_HOME/.gemini; do \
             echo planted-evil >> $d/.env; echo planted-evil >> $d/settings.json; done; echo tried"
        );
        // First without any directory, then with all of them.
        for exists in [false, true] {
            for preset in [Preset::Workspace, Preset::Observe] {
                for path in paths.iter().filter(|_| exists) {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                }
                let api = ModelApi::start(Script::turns(vec![
                    ModelTurn::shell(&command),
                    ModelTurn::text("Done."),
                ]))
                .await;
                let policy = CallPolicy { requirement: Requirement::BestEffort, ..preset.into() };
                let spec = CallSpec { policy, ..harness.spec("Plant something.") };
                let started = harness.place_with(&api, &spec, |plan| {
                    if let Policy::Confined(confinement) = &mut plan.policy {
                        confinement.namespaces = namespaces;
                    }
                });
                let done = started.await.end(None).await;
                assert_eq!(done.succeeded().text, "Done.", "{done}");
                let is_planted = |path: &&PathBuf| contains(path, "planted-evil");
                let planted: Vec<_> = paths.iter().filter(is_planted).collect();
                assert!(planted.is_empty(), "{preset}, exists {exists}: {planted:?}\n{done}");
            }
        }
    });
}

fn contains(path: &Path, text: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|found| found.contains(text))
}

fn agent_plants_nothing_in_its_own_state(cli: &Pinned) {
    if can_confine() {
        plant(cli, true);
    }
}

fn agent_plants_nothing_in_its_own_state_without_namespaces(cli: &Pinned) {
    plant(cli, false);
}

/// Codex loads `.env` from its state, and a shell then obeys `BASH_ENV`.
fn planted_env_file_runs_nothing_later(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        let (script, mark) = (harness.workspace().join("evil.sh"), harness.directory().join("mark"));
        fs::write(&script, format!("touch {}\n", mark.display())).unwrap();
        let command = format!("echo BASH_ENV={} > $CODEX_HOME/.env", script.display());
        let api =
            ModelApi::start(Script::turns(vec![ModelTurn::shell(&command), ModelTurn::text("Done.")])).await;
        let spec = CallSpec { policy: Preset::Workspace.into(), ..harness.spec("Plant it.") };
        assert_eq!(harness.ask(&api, &spec).await.succeeded().text, "Done.");
        let api =
            ModelApi::start(Script::turns(vec![ModelTurn::shell("true"), ModelTurn::text("Done.")])).await;
        let done = harness.ask(&api, &harness.spec("Run something, unconfined.")).await;
        assert_eq!(done.succeeded().text, "Done.", "{done}");
        assert!(!mark.exists(), "the planted file ran unconfined: {done}");
    });
}

/// A hook in the user's settings of claude runs in every later session, outside of any sandbox.
fn settings_programs_are_unchanged(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        let (hook, other) = (harness.workspace().join("hook.sh"), harness.workspace().join("other.sh"));
        for file in [&hook, &other] {
            fs::write(file, "as it was\n").unwrap();
        }
        let settings = harness.directory().join("home/.claude/settings.json");
        fs::create_dir_all(settings.parent().unwrap()).unwrap();
        let command = format!("sh {}", hook.display());
        // In a field that claude does not know: this call must not run it.
        fs::write(&settings, format!(r#"{{"later": {{"command": "{command}"}}}}"#)).unwrap();
        let command = "echo evil >> hook.sh; mv hook.sh away.sh; echo evil >> other.sh; echo tried";
        let api =
            ModelApi::start(Script::turns(vec![ModelTurn::shell(command), ModelTurn::text("Done.")])).await;
        let spec = CallSpec { policy: Preset::Workspace.into(), ..harness.spec("Change the scripts.") };
        let done = harness.ask(&api, &spec).await;
        assert_eq!(done.succeeded().text, "Done.", "{done}");
        assert_eq!(fs::read_to_string(&hook).unwrap(), "as it was\n", "{done}");
        assert!(contains(&other, "evil"), "{done}");
    });
}

/// Sessions of sandboxed calls can be resumed by sandboxed and other calls and vice versa, also from another directory if the
/// agent supports it.
fn sessions_and_state_survive_sandboxed_calls(cli: &Pinned) {
    if !can_confine() {
        return;
    }
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::text("Noted.")).await;
        let off = CallPolicy::off();
        let workspace = CallPolicy::from(Preset::Workspace);
        let observe = CallPolicy::from(Preset::Observe);
        let rules = CallPolicy::default();
        let mut session = None;
        for (turn, policy) in [&off, &workspace, &rules, &observe, &workspace, &off].into_iter().enumerate() {
            let prompt = format!("The word number {turn} is heron-{turn}.");
            let choice = session.clone().map_or(SessionChoice::New, SessionChoice::Resume);
            let spec = CallSpec { session: choice, policy: policy.clone(), ..harness.spec(&prompt) };
            let started = harness.place_with(&api, &spec, |plan| {
                if let Policy::Confined(confinement) = &mut plan.policy {
                    confinement.namespaces = turn != 2;
                }
            });
            let done = started.await.end(None).await;
            assert_eq!(done.succeeded().text, "Noted.", "turn {turn}: {done}");
            session = Some(done.session());
            let body = api.turns().last().unwrap().body.to_string();
            for earlier in 0..=turn {
                assert!(body.contains(&format!("heron-{earlier}.")), "turn {turn}, word {earlier}: {done}");
            }
        }
    });
}
