//! Starts each CLI for an [`Ask`]: arguments, environment and settings files.

use std::fs;
use std::io;
use std::path::Path;

use model_api::cli::{Agent, Cli, Invocation};
use model_api::{Environment, ModelApi};
use serde_json::{Value, json};

use crate::scenarios::{Ask, NO_SESSION, ScenarioAccess, ScenarioSession};

/// The home and the working directory of all runs of a scenario.
pub struct Desk<'a> {
    pub cli: &'a Cli,
    pub api: &'a ModelApi,
    pub directory: &'a Path,
}

impl Desk<'_> {
    /// Returns the invocation for `ask`. `session` is the id of the session to resume.
    pub fn invocation(&self, ask: &Ask, session: &str) -> io::Result<Invocation> {
        let (home, cwd) = (self.directory.join("home"), self.directory.join("work"));
        fs::create_dir_all(&cwd)?;
        let mut environment = self.cli.environment(self.api, &home)?;
        let arguments = match self.cli.agent {
            Agent::Claude => self.claude(ask, session, &mut environment)?,
            Agent::Codex => self.codex(ask, session, &cwd)?,
            Agent::Gemini => self.gemini(ask, session)?,
            // Never recorded: their conversations depend on the replies of a client.
            Agent::OpenCode | Agent::Qwen | Agent::Kimi => Vec::new(),
        };
        if !ask.key {
            environment.retain(|(name, _)| !name.ends_with("_KEY"));
        }
        let stdin = ask.prompt.as_bytes().to_vec();
        Ok(Invocation { program: self.cli.program.clone(), arguments, environment, cwd, stdin })
    }

    fn claude(&self, ask: &Ask, session: &str, environment: &mut Environment) -> io::Result<Vec<String>> {
        let model = "claude-haiku-4-5";
        set(environment, "ANTHROPIC_MODEL", model);
        set(environment, "CLAUDE_CODE_MAX_RETRIES", &ask.retries.to_string());
        let mut arguments = words(&[
            "-p",
            "--output-format",
            "stream-json",
            "--verbose",
            "--model",
            model,
            "--setting-sources",
            "",
        ]);
        arguments.extend(match ask.session {
            ScenarioSession::New => words(&["--session-id", session]),
            ScenarioSession::Resume => words(&["--resume", session]),
            ScenarioSession::Latest => words(&["-c"]),
            ScenarioSession::Unknown => words(&["--resume", NO_SESSION]),
            ScenarioSession::UnknownName => words(&["--resume", "no-such-session"]),
        });
        arguments.extend(match ask.access {
            ScenarioAccess::Full => words(&["--dangerously-skip-permissions"]),
            ScenarioAccess::Default => words(&["--allowedTools", "Read"]),
            ScenarioAccess::Plan => words(&["--permission-mode", "plan"]),
            ScenarioAccess::Observe => words(&["--tools", "Read,Glob,Grep", "--permission-mode", "dontAsk"]),
        });
        if let Some(turns) = ask.max_turns {
            arguments.extend(words(&["--max-turns", &turns.to_string()]));
        }
        if ask.mcp {
            let config = self.directory.join("mcp.json");
            let (program, argument) = echo_server()?;
            let server = json!({"type": "stdio", "command": program, "args": [argument]});
            fs::write(&config, json!({"mcpServers": {"echo": server}}).to_string())?;
            arguments.extend(words(&["--mcp-config", &config.to_string_lossy()]));
        }
        arguments.push("--strict-mcp-config".to_owned());
        if ask.schema {
            arguments.extend(words(&["--json-schema", &schema().to_string()]));
        }
        arguments.extend(words(ask.extra));
        Ok(arguments)
    }

    fn codex(&self, ask: &Ask, session: &str, cwd: &Path) -> io::Result<Vec<String>> {
        let sandbox = match ask.access {
            ScenarioAccess::Full => "workspace-write",
            ScenarioAccess::Default | ScenarioAccess::Observe | ScenarioAccess::Plan => "read-only",
        };
        let cwd = cwd.to_string_lossy();
        let mut arguments = words(&[
            "exec",
            "--json",
            "--color",
            "never",
            "--cd",
            &cwd,
            "--sandbox",
            sandbox,
            "--skip-git-repo-check",
        ]);
        if ask.extra.is_empty() {
            arguments.extend(words(&["--model", "gpt-5.2-codex"]));
        }
        arguments.extend(words(ask.extra));
        if ask.retries > 0 {
            for limit in ["request_max_retries", "stream_max_retries"] {
                arguments
                    .extend(words(&["-c", &format!("model_providers.scripted.{limit}={}", ask.retries)]));
            }
        }
        if ask.mcp {
            let (program, argument) = echo_server()?;
            // A TOML basic string is written as a JSON string is.
            arguments.extend(words(&["-c", &format!("mcp_servers.echo.command={}", json!(program))]));
            arguments.extend(words(&["-c", &format!("mcp_servers.echo.args={}", json!([argument]))]));
        }
        if ask.schema {
            let file = self.directory.join("schema.json");
            fs::write(&file, schema().to_string())?;
            arguments.extend(words(&["--output-schema", &file.to_string_lossy()]));
        }
        arguments.extend(match ask.session {
            ScenarioSession::New => words(&["-"]),
            ScenarioSession::Resume => words(&["resume", session, "-"]),
            ScenarioSession::Latest => words(&["resume", "--last", "-"]),
            ScenarioSession::Unknown => words(&["resume", NO_SESSION, "-"]),
            ScenarioSession::UnknownName => words(&["resume", "no-such-session", "-"]),
        });
        Ok(arguments)
    }

    fn gemini(&self, ask: &Ask, session: &str) -> io::Result<Vec<String>> {
        let file = self.directory.join("home/.gemini/settings.json");
        let mut settings: Value = serde_json::from_slice(&fs::read(&file)?)?;
        settings["general"]["maxAttempts"] = json!(ask.retries + 1);
        if let Some(turns) = ask.max_turns {
            settings["model"] = json!({"maxSessionTurns": turns});
        }
        if ask.mcp {
            let (program, argument) = echo_server()?;
            settings["mcpServers"] = json!({"echo": {"command": program, "args": [argument]}});
        }
        fs::write(&file, settings.to_string())?;
        let mode = match ask.access {
            ScenarioAccess::Full => "yolo",
            ScenarioAccess::Default => "default",
            ScenarioAccess::Observe | ScenarioAccess::Plan => "plan",
        };
        let mut arguments =
            words(&["--output-format", "stream-json", "-m", "gemini-2.5-flash", "--approval-mode", mode]);
        arguments.extend(match ask.session {
            ScenarioSession::New => words(&["--session-id", session]),
            ScenarioSession::Resume => words(&["--resume", session]),
            ScenarioSession::Latest => words(&["--resume", "latest"]),
            ScenarioSession::Unknown => words(&["--resume", NO_SESSION]),
            ScenarioSession::UnknownName => words(&["--resume", "no-such-session"]),
        });
        if ask.access == ScenarioAccess::Observe {
            let policy = self.directory.join("observe.toml");
            fs::write(&policy, READ_ONLY)?;
            arguments.extend(words(&["--policy", &policy.to_string_lossy()]));
        }
        arguments.extend(words(ask.extra));
        Ok(arguments)
    }
}

/// The model can leave gemini's planning mode without permission; a policy cannot be left.
const READ_ONLY: &str = r#"[[rule]]
toolName = ["list_directory", "read_file", "read_many_files", "grep_search", "glob"]
decision = "allow"
priority = 999

[[rule]]
toolName = "*"
decision = "deny"
priority = 998
"#;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn set(environment: &mut Environment, name: &str, value: &str) {
    environment.retain(|(other, _)| other != name);
    environment.push((name.to_owned(), value.to_owned()));
}

/// Returns this program as the MCP server `echo`.
fn echo_server() -> io::Result<(String, &'static str)> {
    Ok((std::env::current_exe()?.to_string_lossy().into_owned(), "--mcp-echo"))
}

fn schema() -> Value {
    json!({
        "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
        "additionalProperties": false,
    })
}
