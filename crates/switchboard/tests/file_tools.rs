//! The installed `file-tools` program has all interfaces of the library.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test may")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Output, Stdio};

fn file_tools() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_file-tools"));
    command.env_clear();
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn command_json_and_mcp_interfaces_work() {
    let workspace = tempfile::tempdir().unwrap();
    fs::write(workspace.path().join("a.txt"), "hello\n").unwrap();
    let words = file_tools().arg(workspace.path()).args(["read", "a.txt"]).output().unwrap();
    let json =
        file_tools().arg(workspace.path()).arg(r#"{"verb": "read", "path": "a.txt"}"#).output().unwrap();
    assert!(words.status.success(), "{words:?}");
    assert_eq!(words.stdout, json.stdout);
    assert!(text(&words.stdout).contains(r#""content":"1\thello\n""#), "{words:?}");

    let mut server = file_tools();
    server.arg("mcp").arg(workspace.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut stdin = server.stdin.take().unwrap();
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    writeln!(stdin, "{hello}").unwrap();
    let mut reply = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut reply).unwrap();
    drop(stdin);
    assert!(reply.contains(r#""name":"file-tools""#), "{reply}");
    assert!(server.wait().unwrap().success());
}

#[test]
fn error_is_json_on_stderr() {
    let workspace = tempfile::tempdir().unwrap();
    let Output { status, stdout, stderr } =
        file_tools().arg(workspace.path()).args(["read", "../x"]).output().unwrap();
    assert_eq!((status.code(), text(&stdout)), (Some(1), ""));
    assert!(text(&stderr).starts_with(r#"{"error":{"code":"path_outside_workspace","#), "{}", text(&stderr));
}
