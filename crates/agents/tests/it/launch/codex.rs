//! Codex's arguments.

use super::*;

const START: &str = "exec --json --color=never --cd=/w";

fn codex() -> CallSpec {
    spec(AgentKind::Codex)
}

#[test]
fn server_variable_never_runs_code_in_codex() {
    for name in ["LD_PRELOAD", "NODE_OPTIONS", "GIT_CONFIG_COUNT", "BASH_ENV"] {
        let server = McpServer { env: BTreeMap::from([(name.into(), "x".into())]), ..server("db") };
        let error = refused(&CallSpec { mcp_servers: vec![server], ..codex() });
        assert!(matches!(error, LaunchError::VariableForbidden { .. }), "{name}: {error}");
    }
}

#[test]
fn arguments_match_call_options() {
    let write = format!("{START} --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check");
    let table = [
        ("plain", codex(), format!("{write} -")),
        ("resume", CallSpec { session: resume(), ..codex() }, format!("{write} resume {OLD} -")),
        ("fork", CallSpec { session: fork(), ..codex() }, format!("{write} fork {OLD} -")),
        (
            "continue",
            CallSpec { session: SessionChoice::ContinueLatest, ..codex() },
            format!("{write} resume --last -"),
        ),
        (
            "observe",
            CallSpec { mode: Mode::Observe, ..codex() },
            format!(
                "{START} --sandbox=read-only --ignore-rules --config=projects={{\"/w\"={{trust_level=\"untrusted\"}}}} \
                 --skip-git-repo-check -"
            ),
        ),
        (
            "bypass",
            CallSpec { permission_mode: Some(PermissionMode::Bypass), ..codex() },
            format!("{write} -"),
        ),
        (
            "edits only",
            CallSpec { permission_mode: Some(PermissionMode::AcceptEdits), ..codex() },
            format!("{START} --sandbox=workspace-write --skip-git-repo-check -"),
        ),
        (
            "directories, prompts, schema",
            CallSpec {
                add_dirs: vec!["/a".into(), "/b".into()],
                system_prompt: Some("be a crab".into()),
                append_system_prompt: Some("say \"x\"\nand y".into()),
                output_schema: Some("{}".into()),
                ..codex()
            },
            format!(
                "{write} --add-dir=/a --add-dir=/b \
                 --config=model_instructions_file=\"/spool/private/system-prompt.md\" \
                 --config=developer_instructions=\"say \\\"x\\\"\\nand y\" \
                 --output-schema=/spool/private/schema.json -"
            ),
        ),
        (
            "a server, its secrets by name only",
            CallSpec { mcp_servers: vec![server("files")], ..codex() },
            format!(
                "{write} --config=mcp_servers.files={{command=\"/bin/srv\",args=[\"--root\",\"a \
                 \\\"b\\\"\"],env_vars=[\"TOKEN\"],required=true,\
                 default_tools_approval_mode=\"approve\"}} -"
            ),
        ),
        (
            "no settings",
            CallSpec { settings: SettingsChoice::Only(vec![]), ..codex() },
            format!(
                "{START} --dangerously-bypass-approvals-and-sandbox --ignore-user-config --ignore-rules --config=projects={{\"/w\"={{trust_level=\"untrusted\"}}}} \
                 --skip-git-repo-check -"
            ),
        ),
    ];
    for (branch, spec, expected) in table {
        assert_eq!(args(&spec), expected, "{branch}");
    }
}

#[test]
fn server_variables_pass_through_environment() {
    let env = launched(&CallSpec { mcp_servers: vec![server("a"), server("b")], ..codex() }).plan.env;
    assert_eq!(env["TOKEN"], "sekret");
}

#[test]
fn default_tool_timeout_applies_to_servers() {
    let setup = LaunchSetup { tool_timeout: Some(Duration::from_millis(30_500)), ..setup() };
    assert!(launch(&codex(), &setup).is_ok());
    let spec = CallSpec { mcp_servers: vec![server("files")], ..codex() };
    let args = launch(&spec, &setup).unwrap().plan.args.join(" ");
    assert!(args.contains("tool_timeout_sec=30}"), "{args}");
}

#[test]
fn trust_level_covers_whole_repository() {
    let workspace =
        WorkspaceFiles { directories: vec!["/r".into(), "/r/w".into()], ..WorkspaceFiles::default() };
    let setup = LaunchSetup { workspace, ..setup() };
    let confined = CallSpec { cwd: "/r/w".into(), policy: CallPolicy::default(), ..codex() };
    for (spec, level) in [(confined.clone(), "untrusted"), (confined.with_trusted_workspace(), "trusted")] {
        let args = launch(&spec, &setup).unwrap().plan.args.join(" ");
        let both =
            format!("projects={{\"/r\"={{trust_level=\"{level}\"}},\"/r/w\"={{trust_level=\"{level}\"}}}}");
        assert!(args.contains(&both), "{args}");
    }
}

#[test]
fn workspace_instructions_precede_call_prompt() {
    let workspace = WorkspaceFiles { instructions: "Use tabs.\n".into(), ..WorkspaceFiles::default() };
    let setup = LaunchSetup { workspace, ..setup() };
    let args = |spec: &CallSpec| launch(spec, &setup).unwrap().plan.args.join(" ");
    let confined =
        CallSpec { policy: CallPolicy::default(), append_system_prompt: Some("Be brief.".into()), ..codex() };
    let developer = "developer_instructions=\"Use tabs.\\nBe brief.\"";
    assert!(args(&confined).contains(developer), "{}", args(&confined));
    // Codex itself reads a trusted workspace, and one without a policy.
    for spec in
        [confined.clone().with_trusted_workspace(), CallSpec { policy: CallPolicy::off(), ..confined }]
    {
        assert!(!args(&spec).contains("Use tabs"), "{}", args(&spec));
    }
}

#[test]
fn conflicting_server_variables_are_rejected() {
    let other = McpServer { env: BTreeMap::from([("TOKEN".into(), "other".into())]), ..server("b") };
    let error = refused(&CallSpec { mcp_servers: vec![server("a"), other], ..codex() });
    assert_eq!(error.to_string(), "variable `TOKEN` of MCP server `b` has another value already");
    let path = McpServer { env: BTreeMap::from([("PATH".into(), "/evil".into())]), ..server("b") };
    refused(&CallSpec { mcp_servers: vec![path], ..codex() });
}

#[test]
fn options_unsupported_by_codex_are_rejected() {
    for bad in [
        CallSpec { max_turns: Some(1), ..codex() },
        CallSpec { max_budget_usd: Some(1.0), ..codex() },
        CallSpec { tools: ToolChoice::Only(vec!["Read".into()]), ..codex() },
        CallSpec { tools: ToolChoice::None, ..codex() },
        CallSpec { agent_name: Some("x".parse().unwrap()), ..codex() },
        CallSpec { partial_messages: true, ..codex() },
    ] {
        assert!(matches!(refused(&bad), LaunchError::Unsupported { .. }), "{bad:?}");
    }
}

#[test]
fn session_name_is_rejected_for_codex() {
    let session = SessionChoice::Resume("my-thread".parse().unwrap());
    let error = refused(&CallSpec { session, ..codex() });
    assert_eq!(error.to_string(), "`my-thread` is not the id of a codex session");
}

#[test]
fn codex_prompt_limit_counts_characters() {
    let fits = CallSpec { prompt: "é".repeat(1_048_576), ..codex() };
    assert_eq!(launched(&fits).plan.input.len(), 2_097_152);
    let error = refused(&CallSpec { prompt: "é".repeat(1_048_577), ..codex() });
    assert_eq!(error.to_string(), "the prompt has 1048577 characters, and codex takes 1048576");
    // Above every other limit, but codex's own is reported.
    let error = refused(&CallSpec { prompt: "é".repeat(6_000_000), ..codex() });
    assert_eq!(error.to_string(), "the prompt has 6000000 characters, and codex takes 1048576");
}

#[test]
fn observe_mode_ignores_workspace_settings() {
    for source in [SettingSource::Project, SettingSource::Local] {
        let settings = SettingsChoice::Only(vec![SettingSource::User, source]);
        let error = refused(&CallSpec { mode: Mode::Observe, settings, ..codex() });
        assert!(matches!(error, LaunchError::Contradiction { .. }), "{error}");
    }
}
