//! Reads the files that options of a call name: a JSON Schema, MCP servers, images.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use model::McpServer;
use serde::Deserialize;
use serde_json::Value;

use crate::exit_status::ExitStatus;
use crate::failure::CommandError;

/// The largest file.
const MAX_BYTES: u64 = 1 << 20;

/// The file of an MCP host with its servers. Its other keys are for the host.
#[derive(Debug, Deserialize)]
struct HostFile {
    #[serde(rename = "mcpServers")]
    servers: BTreeMap<String, Value>,
}

/// A server over stdio, as MCP hosts write it.
#[derive(Debug, Deserialize)]
struct ServerEntry {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// Reads the JSON Schema of the answer.
pub fn read_schema(path: &Path) -> Result<String, CallFileError> {
    read("--schema", path)
}

/// Reads the MCP servers of several files.
pub fn read_servers(paths: &[PathBuf]) -> Result<Vec<McpServer>, CallFileError> {
    let mut servers = Vec::new();
    for path in paths {
        let bad = |problem: String| CallFileError::Servers { path: path.clone(), problem };
        let text = read("--mcp-config", path)?;
        let file: HostFile = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        for (name, entry) in file.servers {
            if entry.get("command").is_none() && entry.get("url").is_some() {
                return Err(bad(format!("`{name}` is a remote server, and an agent gets only local ones")));
            }
            let entry = ServerEntry::deserialize(entry).map_err(|error| bad(format!("`{name}`: {error}")))?;
            servers.push(McpServer { name, command: entry.command, args: entry.args, env: entry.env });
        }
    }
    Ok(servers)
}

/// Returns the absolute paths of images.
pub fn find_images(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CallFileError> {
    let find = |path: &PathBuf| {
        path.canonicalize().map_err(|source| CallFileError::Read {
            option: "--image",
            path: path.clone(),
            source,
        })
    };
    paths.iter().map(find).collect()
}

fn read(option: &'static str, path: &Path) -> Result<String, CallFileError> {
    let failed = |source: io::Error| CallFileError::Read { option, path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > MAX_BYTES {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB")));
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// A file of a call cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CallFileError {
    #[error("cannot read `{}`", path.display())]
    Read { option: &'static str, path: PathBuf, source: io::Error },
    #[error("`{}` does not list MCP servers: {problem}", path.display())]
    Servers { path: PathBuf, problem: String },
}

impl CommandError for CallFileError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Read { option, .. } => format!("pass an existing file with `{option}`"),
            Self::Servers { .. } => {
                r#"write it as MCP hosts do: {"mcpServers": {"NAME": {"command": "…", "args": [], "env": {"TOKEN": "${TOKEN}"}}}}"#
                    .to_owned()
            }
        })
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::BadInput
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(text: &str) -> Result<Vec<McpServer>, CallFileError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read_servers(&[file.path().to_owned()])
    }

    #[test]
    fn servers_are_read_as_mcp_hosts_write_them() {
        let text = r#"{"theme":"dark","mcpServers":{"a":{"type":"stdio","command":"server","args":["x"],"env":{"K":"${K}"}}}}"#;
        let found = servers(text).unwrap();
        assert_eq!(
            (found[0].name.as_str(), found[0].args.len(), found[0].env["K"].as_str()),
            ("a", 1, "${K}")
        );
    }

    #[test]
    fn other_files_are_rejected_by_name() {
        for (text, problem) in [
            ("{}", "mcpServers"),
            ("nothing", "expected"),
            (r#"{"mcpServers":{"far":{"url":"https://x"}}}"#, "`far` is a remote server"),
            (r#"{"mcpServers":{"a":{"args":[]}}}"#, "`a`: missing field `command`"),
        ] {
            let error = servers(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
