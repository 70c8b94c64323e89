//! Launches the Gemini CLI (tested with 0.61.0).
//!
//! Owns its flags. A policy file of the run selects the tools: the model can leave the planning mode on its own, but not a
//! policy. Gemini reads MCP servers only from settings files, and a file passed by a call would have to be owned by root, so
//! calls with servers are rejected.

use model::{
    ExpectedSession, Mode, PermissionMode, SessionChoice, SettingSource, SettingsChoice, ToolChoice,
};

use super::{Draft, LaunchError, path_text};
use crate::Capability;

/// The built-in tools without side effects and network access.
const READ_ONLY: [&str; 5] = ["list_directory", "read_file", "read_many_files", "grep_search", "glob"];
/// The tools that change files but run no commands.
const EDITING: [&str; 2] = ["write_file", "replace"];

/// Returns the file tools, which the sandbox confines to the workspaces.
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
        draft.arg("--skip-trust");
    }
    draft.variable("GEMINI_CLI_TRUST_WORKSPACE", "true");
    // The relaunched process would ignore signals for 20 s.
    draft.variable("GEMINI_CLI_NO_RELAUNCH", "true");
    if draft.spec.mode == Mode::Observe || draft.spec.tools == ToolChoice::None {
        // Disables the user's servers: none has this name.
        draft.flag("--allowed-mcp-server-names", "switchboard-none")?;
    }
    session(draft)?;
    for dir in &draft.spec.add_dirs {
        let text = path_text(dir)?;
        // Directories are passed as one comma-separated value.
        if text.contains(',') {
            return Err(LaunchError::CommaInDirectory { directory: dir.clone() });
        }
        draft.flag("--include-directories", text)?;
    }
    if let Some(prompt) = draft.spec.system_prompt.clone() {
        let path = draft.private_file("system-prompt.md", prompt)?;
        draft.variable("GEMINI_SYSTEM_MD", path);
    }
    draft.plan.input = draft.setup.workspace.references.escape(&draft.text_of_prompt()).into_bytes();
    Ok(())
}

fn check(draft: &Draft<'_>) -> Result<(), LaunchError> {
    let spec = draft.spec;
    // Its hooks, servers and discovery commands run regardless of the policy, and only root can override them.
    if spec.mode == Mode::Observe && draft.setup.workspace.has_settings {
        return Err(LaunchError::WorkspaceSettings {
            agent: spec.agent,
            directory: spec.cwd.join(".gemini"),
        });
    }
    draft.reject_if(spec.max_turns.is_some(), "max_turns")?;
    draft.reject_if(spec.max_budget_usd.is_some(), "max_budget_usd")?;
    draft.reject_if(spec.agent_name.is_some(), "agent_name")?;
    draft.reject_if(spec.available_tools.is_some(), "available_tools")?;
    draft.reject_if(!spec.mcp_servers.is_empty(), "mcp_servers")?;
    draft.reject_if(spec.append_system_prompt.is_some(), "append_system_prompt")?;
    draft.reject_if(spec.effort.is_some(), "effort")?;
    draft.reject_if(!spec.images.is_empty(), "images")?;
    draft.reject_if(spec.live, "live")?;
    draft.reject_if(spec.tool_timeout.is_some(), "tool_timeout")?;
    // No flag selects settings: only the sandbox can hide those of an untrusted workspace.
    let is_possible = match &spec.settings {
        SettingsChoice::AgentDefault => true,
        SettingsChoice::Only(sources) => {
            let all = [SettingSource::User, SettingSource::Project, SettingSource::Local];
            all.iter().all(|source| sources.contains(source))
        }
    };
    draft.reject_if(!is_possible, "settings")
}

/// Returns the allowed tools. `None`: all.
///
/// Every mode except for `yolo` becomes a policy, because the model can leave those modes through planning.
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

/// Writes a policy that allows the tools of the call and denies all others.
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
                let uuid = draft.checked_uuid(&id)?;
                draft.flag("--session-id", uuid)?;
                draft.session = ExpectedSession::Assigned(id);
            }
        }
        SessionChoice::Resume(id) => {
            let uuid = draft.checked_uuid(id)?;
            draft.flag("--resume", uuid)?;
            draft.session = ExpectedSession::Resumed(id.clone());
        }
        SessionChoice::Fork(_) => return draft.reject_if(true, "session fork"),
        SessionChoice::ContinueLatest => {
            draft.flag("--resume", "latest")?;
            draft.session = ExpectedSession::Latest;
        }
    }
    Ok(())
}
