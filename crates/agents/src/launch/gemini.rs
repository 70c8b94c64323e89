//! How the Gemini CLI is launched (seen with 0.61.0).
//!
//! Owns its flags. Which tools exist is said by a policy file of the run's own: its planning mode can be left by the model
//! without anybody's leave, a policy cannot. MCP servers it takes from settings files only, and one that a call could
//! bring along must belong to root; so calls that bring servers are refused.

use model::{
    ExpectedSession, Mode, PermissionMode, SessionChoice, SettingSource, SettingsChoice, ToolChoice,
};

use super::{Draft, LaunchError, path_text};
use crate::Capability;

/// The built-in tools that change nothing and reach nobody.
const READ_ONLY: [&str; 5] = ["list_directory", "read_file", "read_many_files", "grep_search", "glob"];
/// Those that change files and run nothing.
const EDITING: [&str; 2] = ["write_file", "replace"];

/// Its own tools for files, which the sandbox holds to the workspace.
pub(super) fn file_tools(writes: bool) -> Vec<String> {
    let editing: &[&str] = if writes { &EDITING } else { &[] };
    READ_ONLY.iter().chain(editing).map(|tool| (*tool).to_owned()).collect()
}

pub(super) fn write(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    check(draft)?;
    draft.flag("--output-format", "stream-json")?;
    if let Some(model) = draft.model.clone() {
        draft.flag("--model", &model)?;
    }
    policy(draft)?;
    if draft.setup.capabilities.has(Capability::SkipTrust) {
        draft.word("--skip-trust");
    }
    draft.variable("GEMINI_CLI_TRUST_WORKSPACE", "true");
    // The launcher in front of the real process would ignore signals for 20 s.
    draft.variable("GEMINI_CLI_NO_RELAUNCH", "true");
    if draft.spec.mode == Mode::Observe || draft.spec.tools == ToolChoice::None {
        // Starts none of the user's servers: no server has this name.
        draft.flag("--allowed-mcp-server-names", "switchboard-none")?;
    }
    session(draft)?;
    for dir in &draft.spec.add_dirs {
        let text = path_text(dir)?;
        // Several folders are one value with commas between them.
        if text.contains(',') {
            return Err(LaunchError::CommaInFolder { folder: dir.clone() });
        }
        draft.flag("--include-directories", text)?;
    }
    if let Some(prompt) = draft.spec.system_prompt.clone() {
        let path = draft.private_file("system-prompt.md", prompt)?;
        draft.variable("GEMINI_SYSTEM_MD", path);
    }
    draft.plan.stdin = draft.setup.workspace.references.escape(&draft.spec.prompt).into_bytes();
    draft.guard_slash();
    Ok(())
}

fn check(draft: &Draft<'_>) -> Result<(), LaunchError> {
    let spec = draft.spec;
    // Its hooks, servers and discovery commands run whatever the policy says, and only root can overrule them.
    if spec.mode == Mode::Observe && draft.setup.workspace.has_settings {
        return Err(LaunchError::WorkspaceSettings { agent: spec.agent, folder: spec.cwd.join(".gemini") });
    }
    draft.refuse(spec.max_turns.is_some(), "max_turns")?;
    draft.refuse(spec.max_budget_usd.is_some(), "max_budget_usd")?;
    draft.refuse(spec.agent_name.is_some(), "agent_name")?;
    draft.refuse(spec.available_tools.is_some(), "available_tools")?;
    draft.refuse(!spec.mcp_servers.is_empty(), "mcp_servers")?;
    draft.refuse(spec.append_system_prompt.is_some(), "append_system_prompt")?;
    draft.refuse(spec.output_schema.is_some(), "output_schema")?;
    draft.refuse(spec.tool_timeout.is_some(), "tool_timeout")?;
    // It has no flag for settings: those of an untrusted workspace are hidden by the sandbox, or not at all.
    let is_possible = match &spec.settings {
        SettingsChoice::AgentDefault => true,
        SettingsChoice::Only(sources) => {
            let all = [SettingSource::User, SettingSource::Project, SettingSource::Local];
            all.iter().all(|source| sources.contains(source))
        }
    };
    draft.refuse(!is_possible, "settings")
}

/// The tools that a call may use; none when it may use them all.
///
/// Every mode but `yolo` is written as a policy, because the model can leave those modes by way of planning.
fn allowed_tools<'a>(draft: &Draft<'a>) -> Result<Option<Vec<&'a str>>, LaunchError> {
    let spec = draft.spec;
    let allowed = match (&spec.tools, spec.mode, spec.permission_mode) {
        (_, Mode::Observe, Some(PermissionMode::Bypass)) => {
            return Err(LaunchError::Contradiction { one: "mode observe", other: "permission_mode bypass" });
        }
        (ToolChoice::Full, Mode::Execute, None | Some(PermissionMode::Bypass)) => return Ok(None),
        (ToolChoice::Full, Mode::Execute, Some(PermissionMode::AcceptEdits)) => {
            READ_ONLY.iter().chain(&EDITING).copied().collect()
        }
        (ToolChoice::Full, ..) => READ_ONLY.to_vec(),
        (ToolChoice::None, ..) => Vec::new(),
        (ToolChoice::Only(tools), ..) => tools.iter().map(String::as_str).collect(),
    };
    let is_plain = |tool: &str| {
        !tool.is_empty() && tool.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if let Some(tool) = allowed.iter().find(|tool| !is_plain(tool)) {
        return Err(LaunchError::BadTool { tool: tool.chars().take(100).collect() });
    }
    let changes = allowed.iter().find(|tool| !READ_ONLY.contains(tool));
    if let (Mode::Observe, Some(tool)) = (spec.mode, changes) {
        return Err(LaunchError::NotReadOnly { tool: (*tool).to_owned() });
    }
    Ok(Some(allowed))
}

/// Allows the tools of the call and denies every other.
fn policy(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let Some(allowed) = allowed_tools(draft)? else {
        return draft.flag("--approval-mode", "yolo");
    };
    let mut rules = String::new();
    if !allowed.is_empty() {
        let names = allowed.join("\", \"");
        rules = format!("[[rule]]\ntoolName = [\"{names}\"]\ndecision = \"allow\"\npriority = 999\n\n");
    }
    rules.push_str("[[rule]]\ntoolName = \"*\"\ndecision = \"deny\"\npriority = 998\n");
    let path = draft.private_file("policy.toml", rules)?;
    draft.flag("--approval-mode", "default")?;
    draft.flag("--policy", &path)
}

fn session(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    match &draft.spec.session {
        SessionChoice::New => {
            if draft.setup.capabilities.has(Capability::AssignSession) {
                let id = draft.setup.new_session.clone();
                let uuid = draft.uuid_of(&id)?;
                draft.flag("--session-id", uuid)?;
                draft.session = ExpectedSession::Assigned(id);
            }
        }
        SessionChoice::Resume(id) => {
            let uuid = draft.uuid_of(id)?;
            draft.flag("--resume", uuid)?;
            draft.session = ExpectedSession::Resumed(id.clone());
        }
        SessionChoice::Fork(_) => return draft.refuse(true, "session fork"),
        SessionChoice::ContinueLatest => {
            draft.flag("--resume", "latest")?;
            draft.session = ExpectedSession::Latest;
        }
    }
    Ok(())
}
