//! The MCP hosts: the location of their configuration and the necessary changes.

use std::path::{Path, PathBuf};

use serde_json::Value;
use toml_edit::DocumentMut;

use super::{HostInstaller, NAME, SetupError, json};
use crate::cli::{HostChoice, Scope};

/// The tool timeout for hosts that support one: well beyond the wait of any call.
const TOOL_TIMEOUT_SEC: i64 = 660;

/// A program that can start MCP servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpHost {
    Claude,
    Codex,
    Gemini,
    Cursor,
    Vscode,
    ClaudeDesktop,
}

/// The way to register a server with a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationMethod {
    /// Runs `HOST mcp add`.
    OwnCommand,
    /// Edits its configuration file.
    File,
}

/// A change of a host's configuration.
#[derive(Debug, PartialEq, Eq)]
pub enum HostChange {
    /// Nothing to do.
    None,
    /// Run the host's command with each of these arguments.
    Run(Vec<Vec<String>>),
    /// Write this content to its file.
    Write(String),
}

impl McpHost {
    pub const ALL: [Self; 6] =
        [Self::Claude, Self::Codex, Self::Gemini, Self::Cursor, Self::Vscode, Self::ClaudeDesktop];

    /// Returns the chosen host; `None` for all.
    pub fn from_choice(choice: HostChoice) -> Option<Self> {
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

    pub fn method(self) -> RegistrationMethod {
        match self {
            Self::Claude | Self::Codex | Self::Gemini => RegistrationMethod::OwnCommand,
            Self::Cursor | Self::Vscode | Self::ClaudeDesktop => RegistrationMethod::File,
        }
    }

    /// Returns the configuration directory of the host.
    pub fn config_directory(self, installer: &HostInstaller) -> PathBuf {
        let config = || {
            desktop_config_directory(
                &installer.home,
                installer.environment.directory("XDG_CONFIG_HOME"),
                cfg!(target_os = "macos"),
            )
        };
        match self {
            Self::Claude => {
                installer.environment.directory("CLAUDE_CONFIG_DIR").unwrap_or_else(|| installer.home.clone())
            }
            Self::Codex => {
                installer.environment.directory("CODEX_HOME").unwrap_or_else(|| installer.home.join(".codex"))
            }
            Self::Gemini => installer.home.join(".gemini"),
            Self::Cursor => installer.home.join(".cursor"),
            Self::Vscode => config().join("Code/User"),
            Self::ClaudeDesktop => config().join("Claude"),
        }
    }

    /// Returns the file with the host's servers; `None` if it has no such scope.
    pub fn file(self, installer: &HostInstaller) -> Option<PathBuf> {
        let own = self.config_directory(installer);
        Some(match (self, installer.scope) {
            (Self::Claude, Scope::User) => own.join(".claude.json"),
            (Self::Claude, Scope::Project) => installer.directory.join(".mcp.json"),
            (Self::Codex, Scope::User) => own.join("config.toml"),
            (Self::Gemini, Scope::User) => own.join("settings.json"),
            (Self::Gemini, Scope::Project) => installer.directory.join(".gemini/settings.json"),
            (Self::Cursor | Self::Vscode, Scope::User) => own.join("mcp.json"),
            (Self::Cursor, Scope::Project) => installer.directory.join(".cursor/mcp.json"),
            (Self::Vscode, Scope::Project) => installer.directory.join(".vscode/mcp.json"),
            (Self::ClaudeDesktop, Scope::User) => own.join("claude_desktop_config.json"),
            (Self::Codex | Self::ClaudeDesktop, Scope::Project) => return None,
        })
    }

    /// Returns the key that contains the servers.
    fn servers_key(self) -> &'static str {
        if self == Self::Vscode { "servers" } else { "mcpServers" }
    }

    /// Determines the change to a file with the content `text`.
    pub fn plan_change(
        self,
        installer: &HostInstaller,
        file: &Path,
        text: &str,
    ) -> Result<HostChange, SetupError> {
        let unparsable = |why| SetupError::NotUnderstood { file: file.to_owned(), why };
        let program = installer.program.to_string_lossy().into_owned();
        let current = match self {
            Self::Codex => codex_entry(text),
            _ => json::get_entry(text, self.servers_key(), NAME),
        };
        let current = current.map_err(unparsable)?;
        if installer.remove {
            return Ok(match (current, self.method()) {
                (None, _) => HostChange::None,
                (Some(_), RegistrationMethod::OwnCommand) => {
                    HostChange::Run(vec![self.removal_args(installer)])
                }
                (Some(_), RegistrationMethod::File) => {
                    HostChange::Write(json::remove_entry(text, self.servers_key(), NAME).map_err(unparsable)?)
                }
            });
        }
        if current.as_ref().is_some_and(|entry| self.is_up_to_date(entry, &program)) {
            return Ok(HostChange::None);
        }
        if self.method() == RegistrationMethod::File {
            let written = json::set_entry(text, self.servers_key(), NAME, &self.entry(&program));
            return written.map(HostChange::Write).map_err(unparsable);
        }
        let mut commands = Vec::new();
        // Claude rejects an existing name.
        if current.is_some() && self == Self::Claude {
            commands.push(self.removal_args(installer));
        }
        commands.push(self.registration_args(installer, &program));
        Ok(HostChange::Run(commands))
    }

    fn is_up_to_date(self, entry: &Value, program: &str) -> bool {
        let timeout = match self {
            Self::Codex => entry["tool_timeout_sec"].is_number(),
            Self::Gemini => entry["timeout"].is_number(),
            _ => true,
        };
        entry["command"] == program && entry["args"] == serde_json::json!(["mcp"]) && timeout
    }

    fn entry(self, program: &str) -> Vec<(&'static str, Value)> {
        let mut entry = vec![("command", program.into()), ("args", serde_json::json!(["mcp"]))];
        if self == Self::Vscode {
            entry.insert(0, ("type", "stdio".into()));
        }
        entry
    }

    fn registration_args(self, installer: &HostInstaller, program: &str) -> Vec<String> {
        let scope = scope_name(installer.scope);
        let timeout = (TOOL_TIMEOUT_SEC * 1000).to_string();
        let words: Vec<&str> = match self {
            Self::Codex => vec!["mcp", "add", NAME, "--", program, "mcp"],
            Self::Gemini => vec!["mcp", "add", "--scope", scope, "--timeout", &timeout, NAME, program, "mcp"],
            _ => vec!["mcp", "add", "--scope", scope, NAME, "--", program, "mcp"],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    fn removal_args(self, installer: &HostInstaller) -> Vec<String> {
        let words: Vec<&str> = match self {
            Self::Codex => vec!["mcp", "remove", NAME],
            _ => vec!["mcp", "remove", "--scope", scope_name(installer.scope), NAME],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// Describes the change after the host's own command.
    pub fn describe_completion(self, installer: &HostInstaller) -> Option<String> {
        (self == Self::Codex && !installer.remove).then(|| format!("tool_timeout_sec = {TOOL_TIMEOUT_SEC}"))
    }

    /// Returns the file with the settings that the host's own command has no flag for; `None` if they are present.
    pub fn complete_file(self, text: &str) -> Result<Option<String>, String> {
        if self != Self::Codex {
            return Ok(None);
        }
        let mut document: DocumentMut =
            text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
        let server = document.get_mut("mcp_servers").and_then(|servers| servers.get_mut(NAME));
        let Some(server) = server.and_then(|server| server.as_table_like_mut()) else {
            return Err(format!("it lacks mcp_servers.{NAME}, although the host reported success"));
        };
        // A value of the user is kept.
        if server.contains_key("tool_timeout_sec") {
            return Ok(None);
        }
        server.insert("tool_timeout_sec", toml_edit::value(TOOL_TIMEOUT_SEC));
        Ok(Some(document.to_string()))
    }
}

/// Returns the configuration directory of desktop programs.
fn desktop_config_directory(home: &Path, xdg: Option<PathBuf>, on_macos: bool) -> PathBuf {
    if on_macos {
        return home.join("Library/Application Support");
    }
    xdg.unwrap_or_else(|| home.join(".config"))
}

fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::User => "user",
        Scope::Project => "project",
    }
}

/// Returns the server's entry in the file of codex.
fn codex_entry(text: &str) -> Result<Option<Value>, String> {
    let document: toml::Value = toml::from_str(text).map_err(|error| error.to_string())?;
    let entry = document.get("mcp_servers").and_then(|servers| servers.get(NAME));
    entry.map(|entry| serde_json::to_value(entry).map_err(|error| error.to_string())).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn desktop_config_directory_depends_on_system() {
        let home = Path::new("/home/ana");
        assert_eq!(desktop_config_directory(home, None, false), Path::new("/home/ana/.config"));
        assert_eq!(desktop_config_directory(home, Some("/xdg".into()), false), Path::new("/xdg"));
        let mac = desktop_config_directory(home, Some("/xdg".into()), true);
        assert_eq!(mac, Path::new("/home/ana/Library/Application Support"));
    }

    #[test]
    fn codex_timeout_is_added_without_other_changes() {
        let text =
            "# mine\nmodel = \"x\" # why\n\n[mcp_servers.switchboard]\ncommand = \"/s\"\nargs = [\"mcp\"]\n";
        let completed = McpHost::Codex.complete_file(text).unwrap().unwrap();
        assert_eq!(completed, format!("{text}tool_timeout_sec = 660\n"));
        assert_eq!(McpHost::Codex.complete_file(&completed).unwrap(), None);
        assert!(McpHost::Codex.complete_file("").is_err());
    }
}
