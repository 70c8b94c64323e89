//! Arguments, JSON, stdin, help and schema; and the choice of the workspace.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::harness::{CommandResult, Harness};

crate::tests![
    arguments_and_json_return_the_same_result,
    request_is_read_from_stdin,
    stdin_content_may_be_any_bytes,
    help_lists_every_verb,
    schema_lists_every_verb_and_error_code,
    version_reports_the_confinement,
    malformed_request_is_invalid_input,
    root_variable_fixes_the_workspace,
    unusable_workspace_is_rejected,
    unwritable_stdout_is_a_failure,
];

fn arguments_and_json_return_the_same_result() {
    let harness = Harness::new();
    let words = harness.run(["read", "a.txt", "--offset", "2", "--limit", "1"]).answer();
    let object = harness.json(&json!({"verb": "read", "path": "a.txt", "offset": 2, "limit": 1})).answer();
    assert_eq!(words, object);
    assert_eq!(
        (&words["content"], &words["total_lines"], &words["truncated"]),
        (&json!("2\ttwo\n"), &json!(3), &json!(true))
    );
}

fn request_is_read_from_stdin() {
    let harness = Harness::new();
    let told = harness.feed(&["-"], br#"{"verb": "write", "path": "b.txt", "content": "from stdin"}"#);
    assert_eq!(told.answer()["created"], true);
    assert_eq!(harness.text("b.txt"), "from stdin");
    let told = harness.feed(&["patch", "b.txt"], br#"[{"find": "from", "replace": "by"}]"#);
    assert_eq!(told.answer()["lines"], json!([1]));
    assert_eq!(harness.text("b.txt"), "by stdin");
}

fn stdin_content_may_be_any_bytes() {
    let harness = Harness::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    harness.feed(&["write", "bytes"], &bytes).answer();
    assert_eq!(fs::read(harness.at("bytes")).unwrap(), bytes);
    harness.feed(&[r#"{"verb": "create", "path": "more"}"#], &bytes).answer();
    assert_eq!(fs::read(harness.at("more")).unwrap(), bytes);
}

const VERBS: [&str; 9] = ["read", "write", "create", "patch", "delete", "move", "list", "search", "stat"];

fn help_lists_every_verb() {
    let output = Harness::program().arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for verb in VERBS {
        assert!(text.contains(&format!("\n  {verb} ")), "{verb} in {text}");
    }
}

fn schema_lists_every_verb_and_error_code() {
    let schema = CommandResult { output: Harness::program().arg("--schema").output().unwrap() }.answer();
    let verbs: Vec<_> =
        schema["verbs"].as_array().unwrap().iter().map(|verb| verb["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, VERBS);
    for verb in schema["verbs"].as_array().unwrap() {
        assert_eq!(verb["parameters"]["type"], "object");
    }
    let codes = schema["error"]["error"]["code"].as_array().unwrap();
    for code in [
        "file_not_found",
        "path_outside_workspace",
        "is_directory",
        "not_a_directory",
        "not_a_regular_file",
        "find_not_found",
        "find_not_unique",
        "invalid_pattern",
        "too_large",
        "protected_path",
        "already_exists",
        "write_failed",
        "invalid_input",
    ] {
        assert!(codes.contains(&json!(code)), "{code}");
    }
}

fn version_reports_the_confinement() {
    let output = Harness::program().arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("confined here by: openat2 beneath the workspace, "), "{text}");
}

fn malformed_request_is_invalid_input() {
    let harness = Harness::new();
    for request in [
        r#"{"verb": "read"}"#,
        r#"{"verb": "read", "path": 1}"#,
        r#"{"verb": "read", "path": "a.txt", "offset": -1}"#,
        r#"{"verb": "read", "path": "a.txt", "colour": "red"}"#,
        r#"{"verb": "explode", "path": "a.txt"}"#,
        r#"{"path": "a.txt"}"#,
        r#"{"verb": "patch", "path": "a.txt", "edits": []}"#,
        r#"{"verb": "patch", "path": "a.txt", "edits": [{"find": "one"}]}"#,
        r#"{"verb": "read", "path": "a"#,
    ] {
        assert_eq!(harness.run([request]).refused(), "invalid_input", "{request}");
    }
    assert_eq!(harness.run(["read"]).refused(), "invalid_input");
    assert_eq!(harness.run(["read", "a.txt", "--offset", "x"]).refused(), "invalid_input");
    assert_eq!(harness.feed(&["-"], b"no JSON").refused(), "invalid_input");
}

fn root_variable_fixes_the_workspace() {
    let harness = Harness::new();
    let run = |workspace: &std::path::Path, path: &str| {
        let mut command = Harness::program();
        command.arg(workspace).args(["read", path]).env("FILE_TOOLS_ROOT", harness.workspace());
        CommandResult { output: command.output().unwrap() }
    };
    assert_eq!(run(&harness.workspace(), "a.txt").answer()["total_lines"], 3);
    assert_eq!(run(&harness.workspace().join("."), "a.txt").answer()["total_lines"], 3);
    symlink("/", harness.at("root")).unwrap();
    for other in [
        harness.outside(),
        "/".into(),
        harness.workspace().join(".."),
        harness.at("root"),
        harness.at("nowhere"),
    ] {
        assert_eq!(run(&other, "secret.txt").refused(), "path_outside_workspace", "{}", other.display());
    }
    let mut relative = Harness::program();
    relative
        .arg("ws")
        .args(["read", "a.txt"])
        .env("FILE_TOOLS_ROOT", "ws")
        .current_dir(harness.workspace().parent().unwrap());
    assert_eq!(CommandResult { output: relative.output().unwrap() }.refused(), "invalid_input");
    let mut empty = harness.command(["read", "a.txt"]);
    assert_eq!(
        CommandResult { output: empty.env("FILE_TOOLS_ROOT", "").output().unwrap() }.refused(),
        "invalid_input"
    );
}

fn unusable_workspace_is_rejected() {
    let harness = Harness::new();
    let run = |workspace: &str| {
        let mut command = Harness::program();
        CommandResult { output: command.arg(workspace).args(["read", "a.txt"]).output().unwrap() }.refused()
    };
    assert_eq!(run(harness.at("nowhere").to_str().unwrap()), "file_not_found");
    assert_eq!(run(harness.at("a.txt").to_str().unwrap()), "not_a_directory");
}

fn unwritable_stdout_is_a_failure() {
    let harness = Harness::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = harness.command(["read", "a.txt"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let refusal: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(refusal["error"]["code"], "write_failed");
}
