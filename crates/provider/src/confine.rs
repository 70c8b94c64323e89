//! The restricted executor: an agent that can only use `file-tools` on its workspace.
//!
//! Converts an [`AgentSpec`] to a call. The confinement has four parts: no built-in tool exists (`--tools ""`), the only MCP
//! server is `file-tools` with the workspace fixed in its environment and the verbs in its arguments, only those verbs are
//! allowed, and no settings file is loaded, so that neither user nor workspace can add tools.
//!
//! In its second form there is one tool, the shell, with a rule that allows only `file-tools`. The agent enforces that rule
//! itself, so it is not trusted: the OS sandbox is the boundary, and without it nothing runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agents::LaunchError;
use agents::doctor::find_in_path;
use model::{AgentKind, CallPolicy, CallSpec, McpServer, Preset, Requirement, SettingsChoice, ToolChoice};

use crate::agent_spec::{Access, AgentSpec, FileVerb};
use crate::config::own_directory;
use crate::error::ProviderError;

/// The name of the MCP server, which is part of the tool names: `mcp__files__read`.
const SERVER: &str = "files";
/// The variable that fixes the workspace of `file-tools`, whatever the model requests.
const ROOT: &str = "FILE_TOOLS_ROOT";
/// The executable.
const FILE_TOOLS: &str = "file-tools";
const TERMINAL_HOST: &str = "terminal-host";
/// Claude's name of its shell tool.
const SHELL: &str = "Bash";

/// Rejects an access that this agent cannot enforce.
pub(crate) fn check(kind: AgentKind, access: &Access) -> Result<(), ProviderError> {
    match (access, kind) {
        (
            Access::Files(_) | Access::FilesByShell(_),
            AgentKind::Codex | AgentKind::Gemini | AgentKind::Profiled(_),
        ) => Err(ProviderError::Unsupported {
            what: format!("{kind} CLI cannot be restricted to the file tools"),
            instead: "use claude, or grant `Access::Full`",
        }),
        (Access::Tools(_), AgentKind::Codex | AgentKind::Profiled(_)) => Err(ProviderError::Unsupported {
            what: format!("{kind} CLI does not support a choice of tools"),
            instead: "use claude or gemini, or grant `Access::Full`",
        }),
        _ => Ok(()),
    }
}

/// Returns the policy of an agent with that access. A shell restricted to `file-tools` always has a required policy.
pub(crate) fn policy(access: &Access, asked: &CallPolicy) -> Result<CallPolicy, ProviderError> {
    let Access::FilesByShell(verbs) = access else { return Ok(asked.clone()) };
    if !asked.preset.has_shell() {
        return Err(ProviderError::Unsupported {
            what: format!("policy `{}` gives the agent no shell to run `file-tools`", asked.preset),
            instead: "use `Access::Files` with it, or policy `workspace` or `observe`",
        });
    }
    let widest = if verbs.iter().all(|verb| verb.only_reads()) { Preset::Observe } else { Preset::Workspace };
    Ok(CallPolicy { preset: asked.preset.within(widest), requirement: Requirement::Require, ..asked.clone() })
}

/// Applies the agent's prompt, access and policy to a call.
pub(crate) fn apply(
    spec: &AgentSpec,
    environment: &BTreeMap<String, String>,
    call: &mut CallSpec,
) -> Result<(), ProviderError> {
    let prompt = spec.system_prompt.trim();
    call.system_prompt = (!prompt.is_empty()).then(|| prompt.to_owned());
    match &spec.access {
        Access::Full => call.tools = ToolChoice::Full,
        Access::Tools(tools) if tools.is_empty() => call.tools = ToolChoice::None,
        Access::Tools(tools) => call.tools = ToolChoice::Only(tools.clone()),
        Access::FilesByShell(verbs) => {
            call.settings = SettingsChoice::Only(Vec::new());
            call.add_dirs = vec![call.cwd.clone()];
            if verbs.is_empty() {
                call.tools = ToolChoice::None;
            } else {
                call.tools = ToolChoice::Only(rules(verbs));
                call.available_tools = Some(vec![SHELL.to_owned()]);
                call.append_system_prompt = Some(manual(verbs));
            }
        }
        Access::Files(verbs) => {
            let file_tools = find(spec, environment)?;
            let root = text(&call.cwd)?.to_owned();
            call.tools = ToolChoice::Only(verbs.iter().map(|verb| tool(*verb)).collect());
            call.available_tools = Some(Vec::new());
            call.settings = SettingsChoice::Only(Vec::new());
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

/// Prepends the directory of `file-tools` to the agent's `PATH`, before other programs of that name.
pub(crate) fn prepend_to_path(
    file_tools: &Path,
    workspace: &Path,
    inherited: &mut BTreeMap<String, String>,
) -> Result<(), ProviderError> {
    let refused = |why: &str, remedy: &str| {
        Err(ProviderError::environment(format!("`{}` {why}", file_tools.display()), remedy))
    };
    if file_tools.file_name().is_none_or(|name| name != FILE_TOOLS) {
        return refused("is not called `file-tools`", "rename or copy it: a shell finds it by that name");
    }
    if file_tools.starts_with(workspace) {
        return refused("lies in the workspace", "install it where the agent cannot replace it");
    }
    let directory = file_tools.parent().unwrap_or(Path::new("/"));
    let rest = inherited.get("PATH").map(|path| format!(":{path}")).unwrap_or_default();
    inherited.insert("PATH".to_owned(), format!("{}{rest}", text(directory)?));
    Ok(())
}

/// Returns the allowed shell commands. The agent applies this rule itself, so it is not a boundary.
fn rules(verbs: &[FileVerb]) -> Vec<String> {
    if FileVerb::ALL.iter().all(|verb| verbs.contains(verb)) {
        return vec![format!("{SHELL}({FILE_TOOLS} *)")];
    }
    let help = format!("{SHELL}({FILE_TOOLS} --help)");
    verbs.iter().map(|verb| format!("{SHELL}({FILE_TOOLS} . {verb} *)")).chain([help]).collect()
}

/// Returns the prompt section about `file-tools`. The agent's own prompt cannot know it.
fn manual(verbs: &[FileVerb]) -> String {
    format!(
        "In your shell you can run one program and nothing else: `{FILE_TOOLS} . <verb> ...`, where the verb is one of {}. \
         `{FILE_TOOLS} --help` says how each is used. Its `.` is your workspace.",
        names(verbs)
    )
}

/// Finds `terminal-host`: beside this program, or in `PATH`.
pub(crate) fn find_terminal_host(environment: &BTreeMap<String, String>) -> Option<PathBuf> {
    let beside = own_directory().map(|directory| directory.join(TERMINAL_HOST));
    let beside = beside.filter(|program| program.is_file());
    let in_path = || find_in_path(TERMINAL_HOST, environment.get("PATH").map_or("", String::as_str));
    beside.or_else(in_path)?.canonicalize().ok()
}

/// Finds `file-tools`: at the path in the spec, beside this program, or in `PATH`.
pub(crate) fn find(
    spec: &AgentSpec,
    environment: &BTreeMap<String, String>,
) -> Result<PathBuf, ProviderError> {
    let named = spec.file_tools.clone();
    let beside =
        || own_directory().map(|directory| directory.join(FILE_TOOLS)).filter(|program| program.is_file());
    let in_path = || find_in_path(FILE_TOOLS, environment.get("PATH").map_or("", String::as_str));
    let found = named.or_else(beside).or_else(in_path).filter(|program| program.is_file());
    // The real path: the agent starts it in the workspace, which must not replace it, and in a sandbox a link could point to a
    // hidden path.
    found.and_then(|program| program.canonicalize().ok()).ok_or_else(|| {
        let place = match &spec.file_tools {
            Some(program) => format!("at `{}`", program.display()),
            None => "beside this program or in PATH".to_owned(),
        };
        ProviderError::environment(
            format!("`file-tools` not found {place}"),
            "install all of Switchboard, or set `AgentSpec::file_tools`",
        )
    })
}

/// Joins the names of verbs. Both sides get them: a read-only server confines itself accordingly.
fn names(verbs: &[FileVerb]) -> String {
    verbs.iter().map(|verb| verb.name()).collect::<Vec<_>>().join(",")
}

/// Returns the name of a verb's tool, as the agent sees it.
fn tool(verb: FileVerb) -> String {
    format!("mcp__{SERVER}__{verb}")
}

fn text(path: &Path) -> Result<&str, ProviderError> {
    path.to_str().ok_or_else(|| LaunchError::NotUnicode { directory: path.to_owned() }.into())
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
    fn files_access_has_one_mcp_server_and_its_verbs() {
        let call = applied(&with(Access::Files(vec![FileVerb::Read, FileVerb::List]))).unwrap();
        let expected = CallSpec {
            system_prompt: Some("Be brief.".to_owned()),
            tools: ToolChoice::Only(vec!["mcp__files__read".to_owned(), "mcp__files__list".to_owned()]),
            available_tools: Some(Vec::new()),
            settings: SettingsChoice::Only(Vec::new()),
            mcp_servers: vec![McpServer {
                name: "files".to_owned(),
                command: Path::new("/bin/true").canonicalize().unwrap().to_str().unwrap().to_owned(),
                args: vec!["mcp".to_owned(), "--verbs=read,list".to_owned()],
                env: BTreeMap::from([("FILE_TOOLS_ROOT".to_owned(), "/ws".to_owned())]),
            }],
            ..CallSpec::new(AgentKind::Claude, "Go.", "/ws")
        };
        assert_eq!(call, expected);
    }

    #[test]
    fn files_access_without_verbs_has_no_tool() {
        let call = applied(&with(Access::Files(Vec::new()))).unwrap();
        assert_eq!((call.tools, call.mcp_servers), (ToolChoice::None, Vec::new()));
    }

    #[test]
    fn shell_access_has_one_tool_restricted_to_file_tools() {
        let call = applied(&with(Access::FilesByShell(FileVerb::ALL.to_vec()))).unwrap();
        assert_eq!(call.tools, ToolChoice::Only(vec!["Bash(file-tools *)".to_owned()]));
        assert_eq!(call.available_tools, Some(vec!["Bash".to_owned()]));
        assert_eq!((call.settings, call.add_dirs), (SettingsChoice::Only(Vec::new()), vec!["/ws".into()]));
        let some = applied(&with(Access::FilesByShell(vec![FileVerb::Read, FileVerb::Stat]))).unwrap();
        let rules = ["Bash(file-tools . read *)", "Bash(file-tools . stat *)", "Bash(file-tools --help)"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!(some.tools, ToolChoice::Only(rules));
        assert!(some.append_system_prompt.unwrap().contains("one of read,stat."));
        assert_eq!(applied(&with(Access::FilesByShell(Vec::new()))).unwrap().tools, ToolChoice::None);
    }

    #[test]
    fn shell_access_requires_an_enforceable_policy() {
        let (all, reading) = (FileVerb::ALL.to_vec(), FileVerb::READING.to_vec());
        let policy_for =
            |verbs: &[FileVerb], asked: CallPolicy| policy(&Access::FilesByShell(verbs.to_vec()), &asked);
        let hopeful = CallPolicy { requirement: Requirement::BestEffort, ..CallPolicy::off() };
        assert_eq!(policy_for(&all, hopeful).unwrap(), Preset::Workspace.into());
        assert_eq!(policy_for(&reading, Preset::Workspace.into()).unwrap(), Preset::Observe.into());
        assert_eq!(policy_for(&all, Preset::Observe.into()).unwrap(), Preset::Observe.into());
        let error = policy_for(&all, Preset::Restricted.into()).unwrap_err();
        assert!(
            error.to_string().contains("`restricted`") && error.hint().contains("Access::Files"),
            "{error}"
        );
        // Any other access keeps the requested policy.
        assert_eq!(policy(&Access::Full, &CallPolicy::off()).unwrap(), CallPolicy::off());
    }

    #[test]
    fn shell_finds_file_tools_first_and_outside_the_workspace() {
        let mut inherited = BTreeMap::from([("PATH".to_owned(), "/usr/bin".to_owned())]);
        prepend_to_path(Path::new("/opt/bin/file-tools"), Path::new("/ws"), &mut inherited).unwrap();
        assert_eq!(inherited["PATH"], "/opt/bin:/usr/bin");
        for bad in ["/ws/bin/file-tools", "/opt/bin/ft"] {
            let error = prepend_to_path(Path::new(bad), Path::new("/ws"), &mut inherited).unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
        assert_eq!(inherited["PATH"], "/opt/bin:/usr/bin");
    }

    #[test]
    fn unenforceable_access_is_rejected() {
        for kind in [AgentKind::Codex, AgentKind::Gemini] {
            for access in [Access::default(), Access::FilesByShell(FileVerb::ALL.to_vec())] {
                let error = check(kind, &access).unwrap_err();
                assert!(matches!(error, ProviderError::Unsupported { .. }), "{error:?}");
            }
        }
        assert!(check(AgentKind::Codex, &Access::Tools(vec![])).is_err());
        assert!(check(AgentKind::Codex, &Access::Full).is_ok());
        assert!(check(AgentKind::Claude, &Access::default()).is_ok());
    }

    #[test]
    fn workspace_cannot_replace_file_tools() {
        let spec = AgentSpec { file_tools: Some("Cargo.toml".into()), ..AgentSpec::default() };
        let command = applied(&spec).unwrap().mcp_servers.remove(0).command;
        assert!(Path::new(&command).is_absolute(), "{command}");
    }

    #[test]
    fn missing_file_tools_is_reported_with_path_and_hint() {
        let spec = AgentSpec { file_tools: Some("/nowhere/file-tools".into()), ..AgentSpec::default() };
        let error = applied(&spec).unwrap_err();
        assert_eq!(error.to_string(), "`file-tools` not found at `/nowhere/file-tools`");
        assert!(error.hint().contains("AgentSpec::file_tools"));
    }
}
