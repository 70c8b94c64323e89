//! The real Claude Code as an MCP host: it calls our tool, and gets the answer of a second real agent.
//!
//! Both models are scripted on loopback; all else is real: the host, the protocol over stdio, the job, the supervisor, the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agents::doctor::Lookup;
use calls::Settings;
use libtest_mimic::Trial;
use model::AgentKind;
use model_api::cli::{Agent, Cli, Invocation};
use model_api::{Call, ModelApi, Script, Turn, Vendor};
use serde_json::{Value, json};
use supervisor::Supervisor;

use crate::scene::Scene;
use crate::{front, missing};

const REMEDY: &str = "the agents are not installed: run scripts/agents-install";
const LIMIT: Duration = Duration::from_mins(2);
/// Where the front finds which agents it has.
const AGENTS: &str = "agents.json";
const SECOND: &str = "the second agent says: forty-two";

pub fn trials() -> Vec<Trial> {
    let second: [(&str, Agent, &str); 3] = [
        ("claude_as_host_calls_codex", Agent::Codex, "call_codex"),
        ("claude_as_host_calls_claude", Agent::Claude, "call_cc"),
        ("claude_as_host_calls_gemini", Agent::Gemini, "call_gem"),
    ];
    let trial = |(name, second, tool)| {
        let (Some(host), Some(second)) = (installed(Agent::Claude), installed(second)) else {
            return missing(name, REMEDY);
        };
        Trial::test(name, move || {
            play(&host, &second, tool);
            Ok(())
        })
    };
    second.map(trial).into()
}

fn play(host: &Cli, second: &Cli, tool: &'static str) {
    Scene::play(async |scene| {
        // Not below /tmp: codex makes no helpers of its own there.
        let folder = tempfile::Builder::new().prefix("switchboard-host-").tempdir_in("/var/tmp").unwrap();
        let work = scene.work();
        let cwd = work.to_str().unwrap().to_owned();
        let api = ModelApi::start(Script::by(move |request, _| {
            let is_second = request.prompt().is_some_and(|prompt| prompt.contains("for the second"));
            if is_second || request.vendor != Some(Vendor::Anthropic) {
                return Turn::text(SECOND);
            }
            if request.ends_with_tool_result() {
                return Turn::text(format!("the tool answered: {}", request.tool_results().join("\n")));
            }
            let input = json!({ "prompt": "a question for the second", "cwd": cwd });
            Turn::call(Call::Mcp { server: "switchboard".to_owned(), tool: tool.to_owned(), input })
        }))
        .await;
        let front = folder.path().join("front");
        std::fs::create_dir(&front).unwrap();
        let environment = second.environment(&api, &folder.path().join("second-home")).unwrap();
        let agents =
            json!({ "agent": second.agent.name(), "program": second.program, "environment": environment });
        std::fs::write(front.join(AGENTS), agents.to_string()).unwrap();
        let command = front::command(&front);
        let config =
            json!({ "mcpServers": { "switchboard": { "command": command[0], "args": command[1..] } } });
        let allowed = format!("--allowedTools=mcp__switchboard__{tool}");
        let config = format!("--mcp-config={config}");
        let arguments = ["-p", "--output-format=json", "--strict-mcp-config", &config, &allowed];
        let invocation = Invocation {
            program: host.program.clone(),
            arguments: arguments.map(str::to_owned).to_vec(),
            environment: host.environment(&api, &folder.path().join("host-home")).unwrap(),
            cwd: work,
            stdin: b"Ask the other agent.".to_vec(),
        };
        let ended = invocation.run(LIMIT).await.unwrap();
        let answer: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
        let said = answer["result"].as_str().unwrap_or_default();
        assert!(said.starts_with("the tool answered: ") && said.contains(SECOND), "{ended:?}");
    });
}

fn installed(agent: Agent) -> Option<Cli> {
    let named = std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    let tools = named.or_else(|| Some(std::env::home_dir()?.join(".cache/switchboard-tools")))?;
    // The newest of each.
    Cli::installed(&tools).into_iter().rfind(|cli| cli.agent == agent)
}

/// The settings of a front with a real agent, if this folder says so.
pub fn settings_of(folder: &Path) -> Option<Settings> {
    let agents: Value = serde_json::from_slice(&std::fs::read(folder.join(AGENTS)).ok()?).ok()?;
    let kind: AgentKind = agents["agent"].as_str()?.parse().ok()?;
    let inherited: Vec<(String, String)> = serde_json::from_value(agents["environment"].clone()).ok()?;
    let lookup = Lookup {
        inherited: inherited.into_iter().collect(),
        programs: BTreeMap::from([(kind, PathBuf::from(agents["program"].as_str()?))]),
        ..Lookup::default()
    };
    let supervisor = Supervisor::at(env!("CARGO_BIN_EXE_switchboard-supervisor"));
    let pass_on = BTreeSet::from(["SCRIPTED_KEY".to_owned()]);
    Some(Settings { lookup, pass_on, ..Settings::new(folder.join("state"), supervisor) })
}
