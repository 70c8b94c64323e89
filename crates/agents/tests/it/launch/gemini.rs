//! Gemini's arguments.

use super::*;

fn gemini() -> CallSpec {
    spec(AgentKind::Gemini)
}

#[test]
fn arguments_match_call_options() {
    let start = "--output-format=stream-json";
    let new = format!("--skip-trust --session-id={NEW}");
    let limited = "--approval-mode=default --policy=/spool/private/policy.toml";
    let no_servers = new.replace("--skip-trust", "--skip-trust --allowed-mcp-server-names=switchboard-none");
    let table = [
        ("plain", gemini(), format!("{start} --approval-mode=yolo {new}")),
        (
            "model and directories",
            CallSpec {
                model: Some("gemini-2.5-flash".into()),
                add_dirs: vec!["/a".into(), "/b".into()],
                ..gemini()
            },
            format!(
                "{start} --model=gemini-2.5-flash --approval-mode=yolo {new} --include-directories=/a \
                 --include-directories=/b"
            ),
        ),
        (
            "resume",
            CallSpec { session: resume(), ..gemini() },
            format!("{start} --approval-mode=yolo --skip-trust --resume={OLD}"),
        ),
        (
            "continue",
            CallSpec { session: SessionChoice::ContinueLatest, ..gemini() },
            format!("{start} --approval-mode=yolo --skip-trust --resume=latest"),
        ),
        ("observe", CallSpec { mode: Mode::Observe, ..gemini() }, format!("{start} {limited} {no_servers}")),
        (
            "no tools",
            CallSpec { tools: ToolChoice::None, ..gemini() },
            format!("{start} {limited} {no_servers}"),
        ),
        (
            "plan",
            CallSpec { permission_mode: Some(PermissionMode::Plan), ..gemini() },
            format!("{start} {limited} {new}"),
        ),
        (
            "edits",
            CallSpec { permission_mode: Some(PermissionMode::AcceptEdits), ..gemini() },
            format!("{start} {limited} {new}"),
        ),
        (
            "default",
            CallSpec { permission_mode: Some(PermissionMode::Default), ..gemini() },
            format!("{start} {limited} {new}"),
        ),
    ];
    for (branch, spec, expected) in table {
        assert_eq!(args(&spec), expected, "{branch}");
    }
}

#[test]
fn system_prompt_is_passed_in_private_file() {
    let plan = launched(&CallSpec { system_prompt: Some("be a crab".into()), ..gemini() }).plan;
    assert_eq!(plan.env["GEMINI_SYSTEM_MD"], "/spool/private/system-prompt.md");
    assert_eq!(plan.private_files["system-prompt.md"], b"be a crab");
    assert_eq!(plan.env["GEMINI_CLI_NO_RELAUNCH"], "true");
}

#[test]
fn policy_file_denies_unlisted_tools() {
    let policy = |spec: CallSpec| {
        String::from_utf8(launched(&spec).plan.private_files["policy.toml"].clone()).unwrap()
    };
    let deny = "[[rule]]\ntoolName = \"*\"\ndecision = \"deny\"\npriority = 998\n";
    assert_eq!(policy(CallSpec { tools: ToolChoice::None, ..gemini() }), deny);
    let tools = ToolChoice::Only(vec!["glob".into(), "write_file".into()]);
    assert_eq!(
        policy(CallSpec { tools: tools.clone(), ..gemini() }),
        format!(
            "[[rule]]\ntoolName = [\"glob\", \"write_file\"]\ndecision = \"allow\"\npriority = 999\n\n{deny}"
        )
    );
    let observe = policy(CallSpec { mode: Mode::Observe, ..gemini() });
    assert!(observe.contains("read_file") && !observe.contains("write_file"), "{observe}");
    let edits = policy(CallSpec { permission_mode: Some(PermissionMode::AcceptEdits), ..gemini() });
    assert!(edits.contains("write_file") && !edits.contains("run_shell_command"), "{edits}");
    // The model can leave gemini's planning mode by itself, but not a policy.
    let plan = policy(CallSpec { permission_mode: Some(PermissionMode::Plan), ..gemini() });
    assert_eq!(plan, observe);
    refused(&CallSpec { mode: Mode::Observe, tools, ..gemini() });
    refused(&CallSpec { tools: ToolChoice::Only(vec!["x\"]\n".into()]), ..gemini() });
}

#[test]
fn oversized_gemini_prompt_is_rejected() {
    let error = refused(&CallSpec { prompt: "x".repeat(4_000_001), ..gemini() });
    assert_eq!(error.to_string(), "the prompt has 4000001 bytes, and gemini takes 4000000");
    let error = refused(&CallSpec { prompt: "x".repeat(12_000_000), ..gemini() });
    assert_eq!(error.to_string(), "the prompt has 12000000 bytes, and gemini takes 4000000");
}

#[test]
fn options_unsupported_by_gemini_are_rejected() {
    for bad in [
        CallSpec { mcp_servers: vec![server("a")], ..gemini() },
        CallSpec { max_turns: Some(1), ..gemini() },
        CallSpec { effort: Some("high".parse().unwrap()), ..gemini() },
        CallSpec { live: true, ..gemini() },
        CallSpec { settings: SettingsChoice::Only(vec![]), ..gemini() },
        CallSpec { session: fork(), ..gemini() },
    ] {
        assert!(matches!(refused(&bad), LaunchError::Unsupported { .. }), "{bad:?}");
    }
}

#[test]
fn gemini_settings_prevent_observe_mode() {
    let workspace = WorkspaceFiles { has_settings: true, ..WorkspaceFiles::default() };
    let setup = LaunchSetup { workspace, ..setup() };
    assert!(launch(&gemini(), &setup).is_ok());
    let error = launch(&CallSpec { mode: Mode::Observe, ..gemini() }, &setup).unwrap_err();
    assert_eq!(
        error.to_string(),
        "gemini loads settings from `/w/.gemini`, so read-only mode cannot be enforced"
    );
}

#[test]
fn gemini_is_asked_for_the_schema_in_the_prompt() {
    let schema = r#"{"type":"object"}"#;
    let input = launched(&CallSpec { output_schema: Some(schema.into()), ..gemini() }).plan.input;
    let input = String::from_utf8(input).unwrap();
    assert!(input.starts_with("hi\n\n") && input.ends_with(schema), "{input}");
}
