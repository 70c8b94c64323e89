//! The restricted executor: an agent that can do nothing but use `file-tools` on its workspace.
//!
//! Owns how an [`AgentSpec`] becomes a call. The confinement is made of four things at once: no built-in tool exists
//! (`--tools ""`), the one MCP server is `file-tools` with the workspace fixed in its environment and the verbs in its
//! arguments, only those verbs are allowed, and no settings file is obeyed, so that neither user nor workspace can add anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agents::LaunchError;
use agents::doctor::find_in_path;
use model::{AgentKind, CallSpec, McpServer, Settings, ToolChoice};

use crate::agent_spec::{Access, AgentSpec, FileVerb};
use crate::config::own_folder;
use crate::error::ProviderError;

/// The name of the MCP server, which is part of the names of its tools: `mcp__files__read`.
const SERVER: &str = "files";
/// The variable that fixes the workspace of `file-tools`, whatever the model asks for.
const ROOT: &str = "FILE_TOOLS_ROOT";
/// The executable.
const FILE_TOOLS: &str = "file-tools";

/// Refuses an access that this agent cannot be kept to.
pub(crate) fn check(kind: AgentKind, access: &Access) -> Result<(), ProviderError> {
    match (access, kind) {
        (Access::FilesByShell(_), _) => Err(ProviderError::NeedsSandbox),
        (Access::Files(_), AgentKind::Codex | AgentKind::Gemini) => Err(ProviderError::Unsupported {
            what: format!("{kind} CLI cannot be kept to the file tools alone"),
            instead: "use claude for it, or give the agent more: `Access::Full`",
        }),
        (Access::Tools(_), AgentKind::Codex) => Err(ProviderError::Unsupported {
            what: format!("{kind} CLI cannot be told which tools it has"),
            instead: "use claude or gemini for it, or give the agent more: `Access::Full`",
        }),
        _ => Ok(()),
    }
}

/// Puts what the agent is, and may touch, into a call in its workspace.
pub(crate) fn apply(
    spec: &AgentSpec,
    surroundings: &BTreeMap<String, String>,
    call: &mut CallSpec,
) -> Result<(), ProviderError> {
    let prompt = spec.system_prompt.trim();
    call.system_prompt = (!prompt.is_empty()).then(|| prompt.to_owned());
    match &spec.access {
        Access::Full => call.tools = ToolChoice::Full,
        Access::Tools(tools) if tools.is_empty() => call.tools = ToolChoice::None,
        Access::Tools(tools) => call.tools = ToolChoice::Only(tools.clone()),
        Access::FilesByShell(_) => return Err(ProviderError::NeedsSandbox),
        Access::Files(verbs) => {
            let file_tools = find(spec, surroundings)?;
            let root = text(&call.cwd)?.to_owned();
            call.tools = ToolChoice::Only(verbs.iter().map(|verb| tool(*verb)).collect());
            call.available_tools = Some(Vec::new());
            call.settings = Settings::Only(Vec::new());
            call.mcp_servers = vec![McpServer {
                name: SERVER.to_owned(),
                command: text(&file_tools)?.to_owned(),
                args: vec!["mcp".to_owned(), format!("--verbs={}", names(verbs))],
                env: BTreeMap::from([(ROOT.to_owned(), root)]),
            }];
            if verbs.is_empty() {
                call.tools = ToolChoice::None;
                call.mcp_servers.clear();
            }
        }
    }
    Ok(())
}

/// Where `file-tools` is: where the spec says, beside this program, or in `PATH`.
pub(crate) fn find(
    spec: &AgentSpec,
    surroundings: &BTreeMap<String, String>,
) -> Result<PathBuf, ProviderError> {
    let named = spec.file_tools.clone();
    let beside = || own_folder().map(|folder| folder.join(FILE_TOOLS)).filter(|program| program.is_file());
    let in_path = || find_in_path(FILE_TOOLS, surroundings.get("PATH").map_or("", String::as_str));
    let found = named.or_else(beside).or_else(in_path).filter(|program| program.is_file());
    // The agent starts it in the workspace, which must not be able to put another in its place.
    found.and_then(|program| std::path::absolute(program).ok()).ok_or_else(|| {
        let place = match &spec.file_tools {
            Some(program) => format!("at `{}`", program.display()),
            None => "beside this program or in PATH".to_owned(),
        };
        ProviderError::environment(
            format!("`file-tools` not found {place}"),
            "install all of Switchboard, or name the program in `AgentSpec::file_tools`",
        )
    })
}

/// Both ends are told: a server that is asked for reading only locks itself to it.
fn names(verbs: &[FileVerb]) -> String {
    verbs.iter().map(|verb| verb.name()).collect::<Vec<_>>().join(",")
}

/// The name of a verb's tool, as the agent knows it.
fn tool(verb: FileVerb) -> String {
    format!("mcp__{SERVER}__{verb}")
}

fn text(path: &Path) -> Result<&str, ProviderError> {
    path.to_str().ok_or_else(|| LaunchError::NotUnicode { folder: path.to_owned() }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(spec: &AgentSpec) -> Result<CallSpec, ProviderError> {
        let mut call = CallSpec::new(AgentKind::Claude, "Go.", "/ws");
        apply(spec, &BTreeMap::new(), &mut call)?;
        Ok(call)
    }

    fn with(access: Access) -> AgentSpec {
        AgentSpec { access, file_tools: Some("/bin/true".into()), ..AgentSpec::new("Be brief.") }
    }

    #[test]
    fn a_restricted_agent_has_one_server_its_verbs_and_nothing_else() {
        let call = applied(&with(Access::Files(vec![FileVerb::Read, FileVerb::List]))).unwrap();
        let expected = CallSpec {
            system_prompt: Some("Be brief.".to_owned()),
            tools: ToolChoice::Only(vec!["mcp__files__read".to_owned(), "mcp__files__list".to_owned()]),
            available_tools: Some(Vec::new()),
            settings: Settings::Only(Vec::new()),
            mcp_servers: vec![McpServer {
                name: "files".to_owned(),
                command: "/bin/true".to_owned(),
                args: vec!["mcp".to_owned(), "--verbs=read,list".to_owned()],
                env: BTreeMap::from([("FILE_TOOLS_ROOT".to_owned(), "/ws".to_owned())]),
            }],
            ..CallSpec::new(AgentKind::Claude, "Go.", "/ws")
        };
        assert_eq!(call, expected);
    }

    #[test]
    fn without_a_verb_there_is_no_tool_at_all() {
        let call = applied(&with(Access::Files(Vec::new()))).unwrap();
        assert_eq!((call.tools, call.mcp_servers), (ToolChoice::None, Vec::new()));
    }

    #[test]
    fn a_shell_rule_is_refused_as_long_as_there_is_no_sandbox() {
        let access = Access::FilesByShell(FileVerb::ALL.to_vec());
        for error in [check(AgentKind::Claude, &access), applied(&with(access.clone())).map(drop)] {
            let error = error.unwrap_err();
            assert!(matches!(error, ProviderError::NeedsSandbox), "{error:?}");
            assert!(error.to_string().contains("OS sandbox") && error.hint().contains("Access::Files"));
        }
    }

    #[test]
    fn an_agent_that_cannot_be_kept_to_it_is_refused() {
        for kind in [AgentKind::Codex, AgentKind::Gemini] {
            let error = check(kind, &Access::default()).unwrap_err();
            assert!(matches!(error, ProviderError::Unsupported { .. }), "{error:?}");
        }
        assert!(check(AgentKind::Codex, &Access::Tools(vec![])).is_err());
        assert!(check(AgentKind::Codex, &Access::Full).is_ok());
        assert!(check(AgentKind::Claude, &Access::default()).is_ok());
    }

    #[test]
    fn a_workspace_cannot_put_another_program_in_the_place_of_file_tools() {
        let spec = AgentSpec { file_tools: Some("Cargo.toml".into()), ..AgentSpec::default() };
        let command = applied(&spec).unwrap().mcp_servers.remove(0).command;
        assert!(Path::new(&command).is_absolute(), "{command}");
    }

    #[test]
    fn a_missing_file_tools_is_told_with_its_place_and_a_remedy() {
        let spec = AgentSpec { file_tools: Some("/nowhere/file-tools".into()), ..AgentSpec::default() };
        let error = applied(&spec).unwrap_err();
        assert_eq!(error.to_string(), "`file-tools` not found at `/nowhere/file-tools`");
        assert!(error.hint().contains("AgentSpec::file_tools"));
    }
}
