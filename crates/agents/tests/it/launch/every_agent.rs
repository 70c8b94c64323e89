//! Properties of every agent.

use super::*;

#[test]
fn prompt_is_passed_only_on_stdin() {
    for agent in AgentKind::NATIVE {
        for prompt in ["--help", "-", "/cost", "$(rm -rf /)", "a\0b", "'; ls #"] {
            let plan = launched(&CallSpec { prompt: prompt.into(), ..spec(agent) }).plan;
            let stdin = String::from_utf8(plan.input).unwrap();
            let guarded = prompt.starts_with('/') && agent != AgentKind::Codex;
            assert_eq!(stdin, format!("{}{prompt}", if guarded { "\n" } else { "" }), "{agent}");
            let as_argument = plan.args.iter().filter(|arg| *arg == prompt).count();
            assert_eq!(as_argument, usize::from(agent == AgentKind::Codex && prompt == "-"), "{agent}");
        }
    }
}

#[test]
fn values_are_never_parsed_as_flags() {
    // A flag and its value are one argument, so any other argument must be a known word.
    let words = ["exec", "claude", "resume", OLD];
    for agent in AgentKind::NATIVE {
        let spec = CallSpec { session: resume(), add_dirs: vec!["/a".into()], ..spec(agent) };
        for arg in launched(&spec).plan.args {
            assert!(arg.starts_with('-') || words.contains(&arg.as_str()), "{agent}: {arg}");
        }
    }
}

#[test]
fn invalid_calls_are_rejected() {
    let long = "x".repeat(10 * 1024 * 1024 + 1);
    for agent in [AgentKind::Claude, AgentKind::Gemini, AgentKind::Rehearsal] {
        for (bad, message) in [
            (CallSpec { prompt: " \n".into(), ..spec(agent) }, "the prompt is empty"),
            (CallSpec { prompt: long.clone(), ..spec(agent) }, "the prompt has 10485761 bytes"),
            (CallSpec { model: Some("--gpt".into()), ..spec(agent) }, "`--gpt` is not a model name"),
            (CallSpec { max_turns: Some(0), ..spec(agent) }, "`max_turns` must be greater than 0"),
            (
                CallSpec { max_budget_usd: Some(f64::NAN), ..spec(agent) },
                "`max_budget_usd` must be greater than 0",
            ),
            (CallSpec { cwd: "w".into(), ..spec(agent) }, "cwd `w` is not an absolute path"),
            (CallSpec { add_dirs: vec!["d".into()], ..spec(agent) }, "directory `d` is not an absolute path"),
            (
                CallSpec { output_schema: Some("[]".into()), ..spec(agent) },
                "the output schema is invalid: it is not a JSON object",
            ),
            (
                CallSpec { mcp_servers: vec![server("a__b")], ..spec(agent) },
                "`a__b` is not the name of an MCP",
            ),
            (
                CallSpec { mcp_servers: vec![server("a"), server("a")], ..spec(agent) },
                "two MCP servers are named `a`",
            ),
        ] {
            let error = refused(&bad).to_string();
            assert!(error.starts_with(message), "{agent}: {error}");
        }
    }
}

#[test]
fn ten_megabyte_prompt_is_accepted() {
    let prompt = "x".repeat(10 * 1024 * 1024);
    assert_eq!(launched(&CallSpec { prompt, ..spec(AgentKind::Claude) }).plan.input.len(), 10 << 20);
}

#[test]
fn rehearsal_launches_like_claude() {
    assert_eq!(args(&spec(AgentKind::Rehearsal)), format!("--as claude {}", args(&spec(AgentKind::Claude))));
}
