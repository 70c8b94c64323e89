//! The hosts: where each keeps its configuration, and what has to change in it.

use std::path::{Path, PathBuf};

use serde_json::Value;
use toml_edit::DocumentMut;

use super::{Bench, NAME, SetupError, json};
use crate::cli::{HostChoice, Scope};

/// How long a host may wait for one call of a tool, where it can be told: well beyond what any call blocks.
const TOOL_TIMEOUT_SEC: i64 = 660;

/// A program that can start MCP servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    Claude,
    Codex,
    Gemini,
    Cursor,
    Vscode,
    ClaudeDesktop,
}

/// How a host is told of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// By `HOST mcp add`.
    OwnCommand,
    /// By its file.
    File,
}

/// What has to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// It is so already.
    None,
    /// The host is asked, with these arguments.
    Run(Vec<Vec<String>>),
    /// Its file becomes this.
    Write(String),
}

impl Host {
    pub const ALL: [Self; 6] =
        [Self::Claude, Self::Codex, Self::Gemini, Self::Cursor, Self::Vscode, Self::ClaudeDesktop];

    /// The one that is meant; none for all of them.
    pub fn of(choice: HostChoice) -> Option<Self> {
        Some(match choice {
            HostChoice::Claude => Self::Claude,
            HostChoice::Codex => Self::Codex,
            HostChoice::Gemini => Self::Gemini,
            HostChoice::Cursor => Self::Cursor,
            HostChoice::Vscode => Self::Vscode,
            HostChoice::ClaudeDesktop => Self::ClaudeDesktop,
            HostChoice::All => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Cursor => "cursor",
            Self::Vscode => "vscode",
            Self::ClaudeDesktop => "claude-desktop",
        }
    }

    pub fn means(self) -> Means {
        match self {
            Self::Claude | Self::Codex | Self::Gemini => Means::OwnCommand,
            Self::Cursor | Self::Vscode | Self::ClaudeDesktop => Means::File,
        }
    }

    /// The host's own folder in the user's home.
    pub fn folder(self, bench: &Bench) -> PathBuf {
        let config = || {
            desktop_config(
                &bench.home,
                bench.environment.directory("XDG_CONFIG_HOME"),
                cfg!(target_os = "macos"),
            )
        };
        match self {
            Self::Claude => {
                bench.environment.directory("CLAUDE_CONFIG_DIR").unwrap_or_else(|| bench.home.clone())
            }
            Self::Codex => {
                bench.environment.directory("CODEX_HOME").unwrap_or_else(|| bench.home.join(".codex"))
            }
            Self::Gemini => bench.home.join(".gemini"),
            Self::Cursor => bench.home.join(".cursor"),
            Self::Vscode => config().join("Code/User"),
            Self::ClaudeDesktop => config().join("Claude"),
        }
    }

    /// Where it keeps its servers; none where it has no such scope.
    pub fn file(self, bench: &Bench) -> Option<PathBuf> {
        let own = self.folder(bench);
        Some(match (self, bench.scope) {
            (Self::Claude, Scope::User) => own.join(".claude.json"),
            (Self::Claude, Scope::Project) => bench.folder.join(".mcp.json"),
            (Self::Codex, Scope::User) => own.join("config.toml"),
            (Self::Gemini, Scope::User) => own.join("settings.json"),
            (Self::Gemini, Scope::Project) => bench.folder.join(".gemini/settings.json"),
            (Self::Cursor | Self::Vscode, Scope::User) => own.join("mcp.json"),
            (Self::Cursor, Scope::Project) => bench.folder.join(".cursor/mcp.json"),
            (Self::Vscode, Scope::Project) => bench.folder.join(".vscode/mcp.json"),
            (Self::ClaudeDesktop, Scope::User) => own.join("claude_desktop_config.json"),
            (Self::Codex | Self::ClaudeDesktop, Scope::Project) => return None,
        })
    }

    /// The key below which the file has the servers.
    fn servers(self) -> &'static str {
        if self == Self::Vscode { "servers" } else { "mcpServers" }
    }

    /// What has to change in the file that says this.
    pub fn change(self, bench: &Bench, file: &Path, text: &str) -> Result<Change, SetupError> {
        let not_understood = |why| SetupError::NotUnderstood { file: file.to_owned(), why };
        let program = bench.program.to_string_lossy().into_owned();
        let now = match self {
            Self::Codex => codex_entry(text),
            _ => json::get(text, self.servers(), NAME),
        };
        let now = now.map_err(not_understood)?;
        if bench.remove {
            return Ok(match (now, self.means()) {
                (None, _) => Change::None,
                (Some(_), Means::OwnCommand) => Change::Run(vec![self.removal(bench)]),
                (Some(_), Means::File) => {
                    Change::Write(json::without(text, self.servers(), NAME).map_err(not_understood)?)
                }
            });
        }
        if now.as_ref().is_some_and(|now| self.is_right(now, &program)) {
            return Ok(Change::None);
        }
        if self.means() == Means::File {
            let written = json::with(text, self.servers(), NAME, &self.entry(&program));
            return written.map(Change::Write).map_err(not_understood);
        }
        let mut commands = Vec::new();
        // Claude refuses a name that it has.
        if now.is_some() && self == Self::Claude {
            commands.push(self.removal(bench));
        }
        commands.push(self.registration(bench, &program));
        Ok(Change::Run(commands))
    }

    fn is_right(self, now: &Value, program: &str) -> bool {
        let timeout = match self {
            Self::Codex => now["tool_timeout_sec"].is_number(),
            Self::Gemini => now["timeout"].is_number(),
            _ => true,
        };
        now["command"] == program && now["args"] == serde_json::json!(["mcp"]) && timeout
    }

    fn entry(self, program: &str) -> Vec<(&'static str, Value)> {
        let mut entry = vec![("command", program.into()), ("args", serde_json::json!(["mcp"]))];
        if self == Self::Vscode {
            entry.insert(0, ("type", "stdio".into()));
        }
        entry
    }

    fn registration(self, bench: &Bench, program: &str) -> Vec<String> {
        let scope = scope(bench.scope);
        let timeout = (TOOL_TIMEOUT_SEC * 1000).to_string();
        let words: Vec<&str> = match self {
            Self::Codex => vec!["mcp", "add", NAME, "--", program, "mcp"],
            Self::Gemini => vec!["mcp", "add", "--scope", scope, "--timeout", &timeout, NAME, program, "mcp"],
            _ => vec!["mcp", "add", "--scope", scope, NAME, "--", program, "mcp"],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    fn removal(self, bench: &Bench) -> Vec<String> {
        let words: Vec<&str> = match self {
            Self::Codex => vec!["mcp", "remove", NAME],
            _ => vec!["mcp", "remove", "--scope", scope(bench.scope), NAME],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// What is done after the host's own command, in words.
    pub fn then(self, bench: &Bench) -> Option<String> {
        (self == Self::Codex && !bench.remove).then(|| format!("tool_timeout_sec = {TOOL_TIMEOUT_SEC}"))
    }

    /// The file with what the host's own command has no flag for; none when nothing is missing.
    pub fn finished(self, text: &str) -> Result<Option<String>, String> {
        if self != Self::Codex {
            return Ok(None);
        }
        let mut document: DocumentMut =
            text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
        let server = document.get_mut("mcp_servers").and_then(|servers| servers.get_mut(NAME));
        let Some(server) = server.and_then(|server| server.as_table_like_mut()) else {
            return Err(format!("it lacks mcp_servers.{NAME}, although the host has said that it is added"));
        };
        // What somebody has chosen stays.
        if server.contains_key("tool_timeout_sec") {
            return Ok(None);
        }
        server.insert("tool_timeout_sec", toml_edit::value(TOOL_TIMEOUT_SEC));
        Ok(Some(document.to_string()))
    }
}

/// Where programs with windows keep their configuration.
fn desktop_config(home: &Path, xdg: Option<PathBuf>, on_macos: bool) -> PathBuf {
    if on_macos {
        return home.join("Library/Application Support");
    }
    xdg.unwrap_or_else(|| home.join(".config"))
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::User => "user",
        Scope::Project => "project",
    }
}

/// What codex's file says of the server.
fn codex_entry(text: &str) -> Result<Option<Value>, String> {
    let document: toml::Value = toml::from_str(text).map_err(|error| error.to_string())?;
    let entry = document.get("mcp_servers").and_then(|servers| servers.get(NAME));
    entry.map(|entry| serde_json::to_value(entry).map_err(|error| error.to_string())).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn editors_are_found_where_the_system_has_them() {
        let home = Path::new("/home/ana");
        assert_eq!(desktop_config(home, None, false), Path::new("/home/ana/.config"));
        assert_eq!(desktop_config(home, Some("/xdg".into()), false), Path::new("/xdg"));
        let mac = desktop_config(home, Some("/xdg".into()), true);
        assert_eq!(mac, Path::new("/home/ana/Library/Application Support"));
    }

    #[test]
    fn the_time_out_is_added_to_codex_and_everything_else_stays() {
        let text =
            "# mine\nmodel = \"x\" # why\n\n[mcp_servers.switchboard]\ncommand = \"/s\"\nargs = [\"mcp\"]\n";
        let finished = Host::Codex.finished(text).unwrap().unwrap();
        assert_eq!(finished, format!("{text}tool_timeout_sec = 660\n"));
        assert_eq!(Host::Codex.finished(&finished).unwrap(), None);
        assert!(Host::Codex.finished("").is_err());
    }
}
