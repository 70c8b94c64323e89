//! Claude Code's arguments.

use super::*;

const START: &str = "-p --output-format=stream-json --verbose";

fn claude() -> CallSpec {
    spec(AgentKind::Claude)
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is one table")]
fn arguments_match_call_options() {
    let new = format!("{START} --session-id={NEW}");
    let skip = "--dangerously-skip-permissions";
    let only = |tools: &[&str]| ToolChoice::Only(tools.iter().map(|tool| (*tool).to_owned()).collect());
    let table = [
        ("plain", claude(), format!("{new} {skip}")),
        ("resume", CallSpec { session: resume(), ..claude() }, format!("{START} --resume={OLD} {skip}")),
        (
            "fork",
            CallSpec { session: fork(), ..claude() },
            format!("{START} --resume={OLD} --fork-session --session-id={NEW} {skip}"),
        ),
        (
            "continue",
            CallSpec { session: SessionChoice::ContinueLatest, ..claude() },
            format!("{START} --continue {skip}"),
        ),
        (
            "agent mode, whatever the tools",
            CallSpec { agent_name: Some("reviewer".parse().unwrap()), tools: ToolChoice::None, ..claude() },
            format!("{new} --agent=reviewer {skip}"),
        ),
        ("no tools", CallSpec { tools: ToolChoice::None, ..claude() }, format!("{new} --tools=")),
        (
            "no tools but a server",
            CallSpec { tools: ToolChoice::None, mcp_servers: vec![server("files")], ..claude() },
            format!(
                "{new} --strict-mcp-config --tools= --allowedTools=mcp__files__* \
                 --mcp-config=/spool/private/mcp.json"
            ),
        ),
        (
            "full access with servers",
            CallSpec { mcp_servers: vec![server("a"), server("b")], ..claude() },
            format!(
                "{new} --strict-mcp-config {skip} --allowedTools=mcp__a__* --allowedTools=mcp__b__* \
                 --mcp-config=/spool/private/mcp.json"
            ),
        ),
        (
            "the tools of a server one by one, and nothing built in",
            CallSpec {
                tools: only(&["mcp__files__read", "mcp__files__list"]),
                available_tools: Some(Vec::new()),
                mcp_servers: vec![server("files"), server("other")],
                settings: SettingsChoice::Only(Vec::new()),
                ..claude()
            },
            format!(
                "{new} --setting-sources= --strict-mcp-config --allowedTools=mcp__files__read \
                 --allowedTools=mcp__files__list --permission-mode=default --tools= --allowedTools=mcp__other__* \
                 --mcp-config=/spool/private/mcp.json"
            ),
        ),
        (
            "a list is allowed and nothing skipped",
            CallSpec { tools: only(&["Read", "Bash(git *)"]), mcp_servers: vec![server("a")], ..claude() },
            format!(
                "{new} --strict-mcp-config --allowedTools=Read --allowedTools=Bash(git *) \
                 --permission-mode=default --allowedTools=mcp__a__* --mcp-config=/spool/private/mcp.json"
            ),
        ),
        (
            "the executor's form",
            CallSpec {
                tools: only(&["Bash(file-tools *)"]),
                available_tools: Some(vec!["Bash".into()]),
                permission_mode: Some(PermissionMode::Bypass),
                add_dirs: vec!["/ws".into()],
                ..claude()
            },
            format!(
                "{new} --add-dir=/ws --allowedTools=Bash(file-tools *) \
                 --permission-mode=bypassPermissions --tools=Bash"
            ),
        ),
        (
            "observe",
            CallSpec { mode: Mode::Observe, ..claude() },
            format!(
                "{new} --setting-sources=user --strict-mcp-config --permission-mode=default --tools=Read,Grep,Glob"
            ),
        ),
        (
            "observe with no tools",
            CallSpec { mode: Mode::Observe, tools: ToolChoice::None, ..claude() },
            format!("{new} --setting-sources=user --strict-mcp-config --permission-mode=default --tools="),
        ),
        (
            "observe keeps a named agent from its tools",
            CallSpec { mode: Mode::Observe, agent_name: Some("x".parse().unwrap()), ..claude() },
            format!(
                "{new} --agent=x --setting-sources=user --strict-mcp-config --permission-mode=default --tools=Read,Grep,Glob"
            ),
        ),
        (
            "plan",
            CallSpec { permission_mode: Some(PermissionMode::Plan), ..claude() },
            format!("{new} --permission-mode=plan"),
        ),
        (
            "the default mode is said aloud",
            CallSpec { permission_mode: Some(PermissionMode::Default), ..claude() },
            format!("{new} --permission-mode=default"),
        ),
        (
            "limits, prompts, schema, pieces",
            CallSpec {
                max_turns: Some(3),
                max_budget_usd: Some(0.25),
                system_prompt: Some("--help".into()),
                append_system_prompt: Some("be brief".into()),
                output_schema: Some(r#"{"type":"object"}"#.into()),
                partial_messages: true,
                ..claude()
            },
            format!(
                "-p --output-format=stream-json --verbose --include-partial-messages \
                 --session-id={NEW} --system-prompt=--help \
                 --append-system-prompt=be brief --json-schema={{\"type\":\"object\"}} --max-turns=3 \
                 --max-budget-usd=0.25 {skip}"
            ),
        ),
        (
            "no settings at all",
            CallSpec { settings: SettingsChoice::Only(vec![]), ..claude() },
            format!("{new} --setting-sources= --strict-mcp-config {skip}"),
        ),
        (
            "settings of user and project keep the project's servers",
            CallSpec {
                settings: SettingsChoice::Only(vec![SettingSource::User, SettingSource::Project]),
                ..claude()
            },
            format!("{new} --setting-sources=user,project {skip}"),
        ),
    ];
    for (branch, spec, expected) in table {
        assert_eq!(args(&spec), expected, "{branch}");
    }
}

#[test]
fn restricted_flag_is_used_if_supported() {
    let help = "  --session-id <x>\n  --tools <x>\n  --setting-sources <x>\n  --strict-mcp-config\n  --restricted x\n";
    let newest = LaunchSetup { capabilities: Capabilities::from_help(AgentKind::Claude, help), ..setup() };
    let strict = CallSpec { tools: ToolChoice::None, settings: SettingsChoice::Only(vec![]), ..claude() };
    let plan = launch(&strict, &newest).unwrap().plan;
    assert!(plan.args.contains(&"--restricted".to_owned()), "{:?}", plan.args);
    assert!(!args(&strict).contains("--restricted"));
}

#[test]
fn missing_capability_of_old_version_is_rejected() {
    let old = LaunchSetup {
        capabilities: Capabilities::from_help(AgentKind::Claude, "  --model <x>\n"),
        ..setup()
    };
    let refused = |spec: CallSpec| launch(&spec, &old).unwrap_err().to_string();
    assert_eq!(
        refused(CallSpec { tools: ToolChoice::None, ..claude() }),
        "the installed claude does not support `tools none`"
    );
    assert_eq!(
        refused(CallSpec { mode: Mode::Observe, ..claude() }),
        "the installed claude does not support `mode observe`"
    );
    let confined = CallSpec {
        policy: model::Preset::Workspace.into(),
        settings: SettingsChoice::Only(vec![]),
        ..claude()
    };
    assert!(refused(confined).contains("does not support `policy "));
    assert_eq!(
        refused(CallSpec { settings: SettingsChoice::Only(vec![]), ..claude() }),
        "the installed claude does not support `settings`"
    );
    // Without `--session-id` the call still works; its id is known later.
    assert_eq!(launch(&claude(), &old).unwrap().session, ExpectedSession::Any);
}

#[test]
fn session_id_is_assigned_before_start() {
    let known = |session| launched(&CallSpec { session, ..claude() }).session;
    assert_eq!(known(SessionChoice::New), ExpectedSession::Assigned(NEW.parse().unwrap()));
    assert_eq!(known(resume()), ExpectedSession::Resumed(OLD.parse().unwrap()));
    let (from, into) = (OLD.parse().unwrap(), NEW.parse().ok());
    assert_eq!(known(fork()), ExpectedSession::Forked { from, into });
    assert_eq!(known(SessionChoice::ContinueLatest), ExpectedSession::Latest);
}

#[test]
fn server_secrets_are_only_in_private_file() {
    let plan = launched(&CallSpec { mcp_servers: vec![server("files")], ..claude() }).plan;
    assert!(!format!("{:?}{:?}", plan.args, plan.env).contains("sekret"));
    let config = String::from_utf8(plan.private_files["mcp.json"].clone()).unwrap();
    assert_eq!(
        config,
        r#"{"mcpServers":{"files":{"args":["--root","a \"b\""],"command":"/bin/srv","env":{"TOKEN":"sekret"},"type":"stdio"}}}"#
    );
}

#[test]
fn environment_is_allowlisted() {
    let spec =
        CallSpec { tool_timeout: Some(Duration::from_secs(5)), model: Some("OPUS".into()), ..claude() };
    let env: Vec<_> =
        launched(&spec).plan.env.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        env,
        [
            "ANTHROPIC_MODEL=OPUS",
            "BASH_DEFAULT_TIMEOUT_MS=5000",
            "BASH_MAX_TIMEOUT_MS=5000",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1",
            "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS=3600000",
            "MCP_TOOL_TIMEOUT=5000",
            "MY_KEY=k",
            "PATH=/bin"
        ]
    );
}

#[test]
fn contradictory_options_are_rejected() {
    let agent_name = Some("reviewer".parse().unwrap());
    let error = refused(&CallSpec { agent_name, session: resume(), ..claude() });
    assert_eq!(error.to_string(), "`agent_name` and `session` cannot be combined");
    refused(&CallSpec { mode: Mode::Observe, mcp_servers: vec![server("a")], ..claude() });
    refused(&CallSpec { mode: Mode::Observe, permission_mode: Some(PermissionMode::Bypass), ..claude() });
    let tools = ToolChoice::Only(vec!["Write".into()]);
    let error = refused(&CallSpec { mode: Mode::Observe, tools, ..claude() });
    assert_eq!(error.to_string(), "tool `Write` is not read-only");
}

#[test]
fn ambiguous_tool_name_is_rejected() {
    for bad in ["", "-x", "Read,Write", "Read Write", "Bash(", "Bash()", "a\nb", "Bash(x) Write"] {
        let tools = ToolChoice::Only(vec![bad.to_owned()]);
        let error = refused(&CallSpec { tools, ..claude() });
        assert!(matches!(error, LaunchError::BadTool { .. }), "{bad:?}: {error}");
    }
}

#[test]
fn oversized_argument_is_rejected() {
    let error = refused(&CallSpec { system_prompt: Some("x".repeat(200_000)), ..claude() });
    assert!(matches!(error, LaunchError::ValueTooLong { flag: "--system-prompt", .. }), "{error}");
}

#[test]
fn observe_mode_ignores_workspace_settings() {
    for source in [SettingSource::Project, SettingSource::Local] {
        let settings = SettingsChoice::Only(vec![SettingSource::User, source]);
        let error = refused(&CallSpec { mode: Mode::Observe, settings, ..claude() });
        assert!(matches!(error, LaunchError::Contradiction { .. }), "{error}");
    }
    let observed =
        args(&CallSpec { mode: Mode::Observe, settings: SettingsChoice::Only(vec![]), ..claude() });
    assert!(observed.contains("--strict-mcp-config"), "{observed}");
}

#[test]
fn tool_list_with_two_rules_is_rejected() {
    let one = |tool: &str| CallSpec { tools: ToolChoice::Only(vec![tool.to_owned()]), ..claude() };
    for tool in ["Read", "Bash(git log *)", "Bash(echo (a b), c)", "mcp__files__*"] {
        assert!(args(&one(tool)).contains(tool), "{tool}");
    }
    for two in [
        "Read(/x),Bash(touch *)",
        "Read(/x) Bash(touch *)",
        "Read,Bash",
        "Read Bash",
        "Bash(a",
        "Bash(a))",
        "Bash()",
    ] {
        assert!(matches!(refused(&one(two)), LaunchError::BadTool { .. }), "{two}");
    }
}

#[test]
fn watched_call_streams_deltas_if_supported() {
    let sends = |spec: CallSpec, capabilities: Capabilities| {
        let launched = launch(&spec, &LaunchSetup { capabilities, ..setup() });
        launched.map(|launch| launch.plan.args.contains(&"--include-partial-messages".to_owned()))
    };
    let none = || Capabilities::Known(std::collections::BTreeSet::new());
    let watched = || CallSpec { watched: true, ..claude() };
    assert!(sends(watched(), Capabilities::NotAsked).unwrap());
    assert!(!sends(watched(), none()).unwrap());
    assert!(!sends(claude(), Capabilities::NotAsked).unwrap(), "nobody watches");
    let insists = CallSpec { partial_messages: true, ..claude() };
    assert!(matches!(sends(insists, none()), Err(LaunchError::UnsupportedVersion { .. })));
    for agent in AgentKind::NATIVE {
        launched(&CallSpec { watched: true, ..spec(agent) });
    }
}

fn furnished() -> LaunchSetup {
    let workspace = WorkspaceFiles {
        directories: vec!["/r".into(), "/r/w".into()],
        instruction_dirs: vec!["/r".into()],
        instructions: "Private.\n".into(),
        agent: Some(agents::AgentDefinition { prompt: "You help.".into(), ..Default::default() }),
        user_servers: serde_json::from_str(r#"{"mine":{"type":"http","url":"https://x"}}"#).unwrap(),
        ..WorkspaceFiles::default()
    };
    LaunchSetup { workspace, ..setup() }
}

#[test]
fn untrusted_workspace_gives_instructions_only() {
    let spec =
        CallSpec { policy: CallPolicy::default(), agent_name: Some("helper".parse().unwrap()), ..claude() };
    let plan = launch(&spec, &furnished()).unwrap().plan;
    let args = plan.args.join(" ");
    for expected in [
        "--append-system-prompt=Private.\n",
        "--setting-sources=user --add-dir=/r --agents={\"helper\":{\"description\":\"\",\"prompt\":\"You help.\"}}",
        "--strict-mcp-config",
        "--mcp-config=/spool/private/mcp.json",
    ] {
        assert!(args.contains(expected), "{expected}: {args}");
    }
    assert_eq!(plan.env["CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD"], "1");
    let servers = String::from_utf8(plan.private_files["mcp.json"].clone()).unwrap();
    assert_eq!(servers, r#"{"mcpServers":{"mine":{"type":"http","url":"https://x"}}}"#);
}

#[test]
fn trusted_workspace_needs_no_extra_flags() {
    let spec = CallSpec { policy: CallPolicy::default(), ..claude() }.with_trusted_workspace();
    let plan = launch(&spec, &furnished()).unwrap().plan;
    let args = plan.args.join(" ");
    assert!(!args.contains("--add-dir") && !args.contains("--strict-mcp-config"), "{args}");
    assert!(args.contains("--mcp-config=/spool/private/mcp.json"), "{args}");
}

#[test]
fn restricted_tools_exclude_user_servers() {
    let confined = CallSpec { policy: CallPolicy::default(), ..claude() };
    let mut private = confined.clone();
    private.policy.private_state = true;
    let host = agents::HostConfig { private_state: Some("/state".into()), ..agents::HostConfig::default() };
    let setup = LaunchSetup { host, ..furnished() };
    for spec in [
        CallSpec { mode: Mode::Observe, ..confined.clone() },
        CallSpec { tools: ToolChoice::None, ..confined.clone() },
        CallSpec { settings: SettingsChoice::Only(vec![]), ..confined.clone() },
        private,
        CallSpec { policy: CallPolicy::off(), ..confined.clone() },
    ] {
        let plan = launch(&spec, &setup).unwrap().plan;
        assert!(!plan.private_files.contains_key("mcp.json"), "{:?}", plan.args);
    }
    // A call with servers has only those.
    let own = launch(&CallSpec { mcp_servers: vec![server("files")], ..confined }, &setup).unwrap().plan;
    let servers = String::from_utf8(own.private_files["mcp.json"].clone()).unwrap();
    assert!(servers.contains("files") && !servers.contains("mine"), "{servers}");
}

#[test]
fn default_tool_timeout_excludes_shell_commands() {
    let setup = LaunchSetup { tool_timeout: Some(Duration::from_secs(7)), ..setup() };
    let env = launch(&claude(), &setup).unwrap().plan.env;
    assert_eq!(env["MCP_TOOL_TIMEOUT"], "7000");
    assert!(!env.contains_key("BASH_MAX_TIMEOUT_MS"), "{env:?}");
}
