//! `switchboard setup` with the real hosts if they are installed (`scripts/agents-install`), each in its own home.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{stderr, stdout};

const PROGRAM: &str = env!("CARGO_BIN_EXE_switchboard");

/// A user's home with a directory in PATH.
struct User {
    home: TempDir,
}

impl User {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("bin")).unwrap();
        fs::create_dir_all(home.path().join("project")).unwrap();
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Output {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap_or_default());
        Command::new(program.as_ref())
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", path)
            .env("SWITCHBOARD_HOME", self.path("switchboard"))
            .env("DISABLE_AUTOUPDATER", "1")
            .current_dir(self.path("project"))
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn setup(&self, args: &[&str]) -> Output {
        self.command(PROGRAM, &[&["setup"], args].concat())
    }

    /// Adds a pinned host to PATH; `None` if it is not installed.
    fn install(&self, name: &str, directory: &str) -> Option<PathBuf> {
        let tools = std::env::var_os("SWITCHBOARD_TOOLS")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/switchboard-tools")))?;
        let program = fs::canonicalize(tools.join("agents").join(directory).join("program")).ok();
        let Some(program) = program else {
            println!("skipped: {directory} is not installed; scripts/agents-install does that");
            return None;
        };
        let link = self.path("bin").join(name);
        symlink(program, &link).unwrap();
        Some(link)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // `mcp list` of a host may have started the server, and with it a daemon.
        self.command(PROGRAM, &["stop", "--now"]);
    }
}

/// Registers the server, checks with the host itself, registers again, and removes it.
fn round_trip(host: &str, version: &str, file: &str, theirs: &str, kept: &[&str]) {
    let user = User::new();
    let Some(program) = user.install(host, version) else { return };
    user.write(file, theirs);
    let printed = user.setup(&[host, "--print"]);
    assert!(stdout(&printed).starts_with(&format!("{host} mcp add")), "{printed:?}");
    assert_eq!(user.read(file), theirs, "--print changes nothing");
    let output = user.setup(&[host]);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).starts_with(&format!("{host}: registered in ")), "{output:?}");
    let list = user.command(&program, &["mcp", "list"]);
    let said = stdout(&list) + &stderr(&list);
    assert!(said.contains("switchboard") && said.contains(PROGRAM), "{host} mcp list: {said}");
    for kept in kept {
        assert!(user.read(file).contains(kept), "{kept} is lost: {}", user.read(file));
    }
    assert_eq!(user.read(&format!("{file}.switchboard-backup")), theirs);
    let again = user.setup(&[host]);
    assert!(stdout(&again).contains("already registered"), "{again:?}");
    let output = user.setup(&[host, "--remove"]);
    assert!(output.status.success(), "{output:?}");
    let list = user.command(&program, &["mcp", "list"]);
    assert!(!(stdout(&list) + &stderr(&list)).contains(PROGRAM), "{list:?}");
    assert!(stdout(&user.setup(&[host, "--remove"])).contains("not registered"));
}

#[test]
fn claude_lists_registered_server() {
    let theirs = "{\n  \"numStartups\": 3,\n  \"mcpServers\": {\n    \"other\": { \"type\": \"stdio\", \"command\": \"true\", \"args\": [], \"env\": {} }\n  }\n}\n";
    round_trip("claude", "claude-2.1.325", ".claude.json", theirs, &["\"numStartups\"", "\"other\""]);
}

#[test]
fn codex_lists_registered_server_with_timeout() {
    let theirs = "# mine\nmodel = \"gpt-5\" # why\n\n[mcp_servers.other]\ncommand = \"true\"\n";
    let kept = ["# mine", "model = \"gpt-5\" # why", "[mcp_servers.other]", "tool_timeout_sec = 660"];
    round_trip("codex", "codex-0.166.0", ".codex/config.toml", theirs, &kept);
}

#[test]
fn gemini_lists_registered_server_with_timeout() {
    let theirs = "{\n  // mine\n  \"ui\": { \"theme\": \"Default\" },\n  \"mcpServers\": { \"other\": { \"command\": \"true\" } }\n}\n";
    let kept = ["// mine", "\"ui\"", "\"other\"", "660000"];
    round_trip("gemini", "gemini-0.61.0", ".gemini/settings.json", theirs, &kept);
}

#[test]
fn editor_file_keeps_comments_and_has_backup() {
    let theirs = "{\n  // by hand\n  \"inputs\": [],\n  \"servers\": {\n    \"other\": { \"command\": \"x\" }, // used\n  }\n}\n";
    let user = User::new();
    user.write(".config/Code/User/mcp.json", theirs);
    let output = user.setup(&["vscode"]);
    assert!(output.status.success(), "{output:?}");
    let text = user.read(".config/Code/User/mcp.json");
    assert!(text.contains("// by hand") && text.contains("// used") && text.contains(PROGRAM), "{text}");
    assert!(text.find("inputs") < text.find("servers") && text.contains("\"type\": \"stdio\""), "{text}");
    assert_eq!(user.read(".config/Code/User/mcp.json.switchboard-backup"), theirs);
    assert!(stdout(&user.setup(&["vscode"])).contains("already registered"));
    assert_eq!(user.read(".config/Code/User/mcp.json"), text);
    assert!(user.setup(&["vscode", "--remove"]).status.success());
    let text = user.read(".config/Code/User/mcp.json");
    assert!(text.contains("// by hand") && text.contains("// used") && !text.contains(PROGRAM), "{text}");
}

#[test]
fn project_scope_uses_project_file() {
    let user = User::new();
    assert!(user.setup(&["cursor", "--scope", "project"]).status.success());
    let file: Value = serde_json::from_str(&user.read("project/.cursor/mcp.json")).unwrap();
    assert_eq!(file["mcpServers"]["switchboard"]["command"], PROGRAM);
    assert_eq!(file["mcpServers"]["switchboard"]["args"][0], "mcp");
    let output = user.setup(&["claude-desktop", "--scope", "project"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("claude-desktop has no project configuration"), "{output:?}");
}

#[test]
fn unparsable_file_is_not_changed() {
    let user = User::new();
    user.write(".cursor/mcp.json", "{ \"mcpServers\": { oops");
    let output = user.setup(&["cursor"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("was not changed"), "{output:?}");
    assert_eq!(user.read(".cursor/mcp.json"), "{ \"mcpServers\": { oops");
    fs::remove_file(user.path(".cursor/mcp.json")).unwrap();
    let shown = stdout(&user.setup(&["cursor", "--print"]));
    assert!(shown.contains("mcpServers") && !user.path(".cursor/mcp.json").exists(), "{shown}");
}
