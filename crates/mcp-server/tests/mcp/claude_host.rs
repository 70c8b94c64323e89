//! The real Claude Code as an MCP host: it calls a tool and gets the answer of a second real agent.
//!
//! The models of both are scripted on loopback. Everything else is real: host, stdio protocol, job, supervisor, agent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agents::doctor::Lookup;
use calls::Settings;
use libtest_mimic::Trial;
use model::AgentKind;
use model_api::cli::{Agent, Cli, Invocation};
use model_api::{ApiVendor, Call, ModelApi, ModelTurn, Script};
use serde_json::{Value, json};
use supervisor::Supervisor;

use crate::harness::McpHarness;
use crate::{missing, stdio_server};

const REMEDY: &str = "the agents are not installed: run scripts/agents-install";
const LIMIT: Duration = Duration::from_mins(2);
/// File that tells the stdio server its agent.
const AGENT_FILE: &str = "agents.json";
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
            run(&host, &second, tool);
            Ok(())
        })
    };
    second.map(trial).into()
}

fn run(host: &Cli, second: &Cli, tool: &'static str) {
    McpHarness::run(async |harness| {
        // Not below /tmp: codex creates no helpers there.
        let directory = tempfile::Builder::new().prefix("switchboard-host-").tempdir_in("/var/tmp").unwrap();
        let work = harness.work();
        let cwd = work.to_str().unwrap().to_owned();
        let api = ModelApi::start(Script::by(move |request, _| {
            let is_second = request.prompt().is_some_and(|prompt| prompt.contains("for the second"));
            if is_second || request.vendor != Some(ApiVendor::Anthropic) {
                return ModelTurn::text(SECOND);
            }
            if request.ends_with_tool_result() {
                return ModelTurn::text(format!("the tool answered: {}", request.tool_results().join("\n")));
            }
            let input = json!({ "prompt": "a question for the second", "cwd": cwd });
            ModelTurn::call(Call::Mcp { server: "switchboard".to_owned(), tool: tool.to_owned(), input })
        }))
        .await;
        let state = directory.path().join("server");
        std::fs::create_dir(&state).unwrap();
        let environment = second.environment(&api, &directory.path().join("second-home")).unwrap();
        let agents =
            json!({ "agent": second.agent.name(), "program": second.program, "environment": environment });
        std::fs::write(state.join(AGENT_FILE), agents.to_string()).unwrap();
        let command = stdio_server::command(&state);
        let config =
            json!({ "mcpServers": { "switchboard": { "command": command[0], "args": command[1..] } } });
        let allowed = format!("--allowedTools=mcp__switchboard__{tool}");
        let config = format!("--mcp-config={config}");
        let arguments = ["-p", "--output-format=json", "--strict-mcp-config", &config, &allowed];
        let invocation = Invocation {
            program: host.program.clone(),
            arguments: arguments.map(str::to_owned).to_vec(),
            environment: host.environment(&api, &directory.path().join("host-home")).unwrap(),
            cwd: work,
            stdin: b"Ask the other agent.".to_vec(),
        };
        let output = invocation.run(LIMIT).await.unwrap();
        let answer: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let result = answer["result"].as_str().unwrap_or_default();
        assert!(result.starts_with("the tool answered: ") && result.contains(SECOND), "{output:?}");
    });
}

fn installed(agent: Agent) -> Option<Cli> {
    let named = std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    let tools = named.or_else(|| Some(std::env::home_dir()?.join(".cache/switchboard-tools")))?;
    // The newest version.
    Cli::installed(&tools).into_iter().rfind(|cli| cli.agent == agent)
}

/// Returns the settings with a real agent, if the directory has an agent file.
pub fn settings_in(directory: &Path) -> Option<Settings> {
    let agents: Value = serde_json::from_slice(&std::fs::read(directory.join(AGENT_FILE)).ok()?).ok()?;
    let kind: AgentKind = agents["agent"].as_str()?.parse().ok()?;
    let inherited: Vec<(String, String)> = serde_json::from_value(agents["environment"].clone()).ok()?;
    let lookup = Lookup {
        inherited: inherited.into_iter().collect(),
        programs: BTreeMap::from([(kind, PathBuf::from(agents["program"].as_str()?))]),
        ..Lookup::default()
    };
    let supervisor = Supervisor::this_program().unwrap();
    let pass_on = BTreeSet::from(["SCRIPTED_KEY".to_owned()]);
    Some(Settings { lookup, pass_on, ..Settings::new(directory.join("state"), supervisor) })
}
