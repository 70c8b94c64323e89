//! Arguments, JSON, stdin, help and schema; and the choice of the workspace.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::desk::{Desk, Told};

crate::tests![
    words_and_json_get_the_same_answer,
    a_request_can_come_from_stdin,
    content_can_come_from_stdin_and_be_any_bytes,
    help_names_every_verb,
    the_schema_is_json_and_has_every_verb_and_code,
    the_version_says_what_holds,
    a_mistake_in_the_request_is_invalid_input,
    the_set_workspace_is_the_only_one,
    a_workspace_that_is_none_is_refused,
    an_answer_nobody_reads_is_no_success,
];

fn words_and_json_get_the_same_answer() {
    let desk = Desk::new();
    let words = desk.run(["read", "a.txt", "--offset", "2", "--limit", "1"]).answer();
    let object = desk.json(&json!({"verb": "read", "path": "a.txt", "offset": 2, "limit": 1})).answer();
    assert_eq!(words, object);
    assert_eq!(
        (&words["content"], &words["total_lines"], &words["truncated"]),
        (&json!("2\ttwo\n"), &json!(3), &json!(true))
    );
}

fn a_request_can_come_from_stdin() {
    let desk = Desk::new();
    let told = desk.feed(&["-"], br#"{"verb": "write", "path": "b.txt", "content": "from stdin"}"#);
    assert_eq!(told.answer()["created"], true);
    assert_eq!(desk.text("b.txt"), "from stdin");
    let told = desk.feed(&["patch", "b.txt"], br#"[{"find": "from", "replace": "by"}]"#);
    assert_eq!(told.answer()["lines"], json!([1]));
    assert_eq!(desk.text("b.txt"), "by stdin");
}

fn content_can_come_from_stdin_and_be_any_bytes() {
    let desk = Desk::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    desk.feed(&["write", "bytes"], &bytes).answer();
    assert_eq!(fs::read(desk.at("bytes")).unwrap(), bytes);
    desk.feed(&[r#"{"verb": "create", "path": "more"}"#], &bytes).answer();
    assert_eq!(fs::read(desk.at("more")).unwrap(), bytes);
}

const VERBS: [&str; 9] = ["read", "write", "create", "patch", "delete", "move", "list", "search", "stat"];

fn help_names_every_verb() {
    let output = Desk::program().arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for verb in VERBS {
        assert!(text.contains(&format!("\n  {verb} ")), "{verb} in {text}");
    }
}

fn the_schema_is_json_and_has_every_verb_and_code() {
    let schema = Told { output: Desk::program().arg("--schema").output().unwrap() }.answer();
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

fn the_version_says_what_holds() {
    let output = Desk::program().arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("confined here by: openat2 beneath the workspace, "), "{text}");
}

fn a_mistake_in_the_request_is_invalid_input() {
    let desk = Desk::new();
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
        assert_eq!(desk.run([request]).refused(), "invalid_input", "{request}");
    }
    assert_eq!(desk.run(["read"]).refused(), "invalid_input");
    assert_eq!(desk.run(["read", "a.txt", "--offset", "x"]).refused(), "invalid_input");
    assert_eq!(desk.feed(&["-"], b"no JSON").refused(), "invalid_input");
}

fn the_set_workspace_is_the_only_one() {
    let desk = Desk::new();
    let run = |workspace: &std::path::Path, path: &str| {
        let mut command = Desk::program();
        command.arg(workspace).args(["read", path]).env("FILE_TOOLS_ROOT", desk.workspace());
        Told { output: command.output().unwrap() }
    };
    assert_eq!(run(&desk.workspace(), "a.txt").answer()["total_lines"], 3);
    assert_eq!(run(&desk.workspace().join("."), "a.txt").answer()["total_lines"], 3);
    symlink("/", desk.at("root")).unwrap();
    for other in
        [desk.outside(), "/".into(), desk.workspace().join(".."), desk.at("root"), desk.at("nowhere")]
    {
        assert_eq!(run(&other, "secret.txt").refused(), "path_outside_workspace", "{}", other.display());
    }
    let mut relative = Desk::program();
    relative
        .arg("ws")
        .args(["read", "a.txt"])
        .env("FILE_TOOLS_ROOT", "ws")
        .current_dir(desk.workspace().parent().unwrap());
    assert_eq!(Told { output: relative.output().unwrap() }.refused(), "invalid_input");
    let mut empty = desk.command(["read", "a.txt"]);
    assert_eq!(
        Told { output: empty.env("FILE_TOOLS_ROOT", "").output().unwrap() }.refused(),
        "invalid_input"
    );
}

fn a_workspace_that_is_none_is_refused() {
    let desk = Desk::new();
    let run = |workspace: &str| {
        let mut command = Desk::program();
        Told { output: command.arg(workspace).args(["read", "a.txt"]).output().unwrap() }.refused()
    };
    assert_eq!(run(desk.at("nowhere").to_str().unwrap()), "file_not_found");
    assert_eq!(run(desk.at("a.txt").to_str().unwrap()), "not_a_directory");
}

fn an_answer_nobody_reads_is_no_success() {
    let desk = Desk::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = desk.command(["read", "a.txt"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let refusal: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(refusal["error"]["code"], "write_failed");
}
