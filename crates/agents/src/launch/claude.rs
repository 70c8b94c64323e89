//! Launches Claude Code (tested with 2.1.197 and 2.1.325).
//!
//! Owns its flags and the order of the permission branches.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::{
    CallSpec, ExpectedSession, McpServer, Mode, PermissionMode, Preset, SessionChoice, SessionId,
    SettingSource, SettingsChoice, ToolChoice,
};
use serde_json::{Map, Value, json};

use super::{Draft, LaunchError, path_text};
use crate::driver::DriverSpec;
use crate::{Capability, WorkspaceFiles};

/// The built-in tools without side effects and network access.
const READ_ONLY: [&str; 3] = ["Read", "Grep", "Glob"];

pub(super) fn write(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    draft.arg("-p");
    draft.flag("--output-format", "stream-json")?;
    // Images are blocks of a message, which plain text on stdin cannot have.
    let is_live = draft.spec.live || !draft.setup.images.is_empty();
    if is_live {
        draft.flag("--input-format", "stream-json")?;
    }
    if let Some(effort) = draft.spec.effort.clone() {
        draft.flag("--effort", effort.as_str())?;
    }
    draft.arg("--verbose"); // stream-json exits with 1 without it
    if streams_deltas(draft)? {
        draft.arg("--include-partial-messages");
    }
    if let Some(model) = draft.model.clone() {
        draft.flag("--model", &model)?;
        draft.variable("ANTHROPIC_MODEL", model);
    }
    session(draft)?;
    prompts_and_directories(draft)?;
    limits(draft)?;
    background_wait(draft);
    settings(draft)?;
    permissions(draft)?;
    mcp_config(draft)?;
    draft.escape_slash();
    if is_live {
        converse(draft);
    }
    Ok(())
}

/// Makes the prompt the first message of a conversation.
fn converse(draft: &mut Draft<'_>) {
    let images = draft.setup.images.iter().map(|image| {
        let data = STANDARD.encode(&image.bytes);
        json!({ "type": "image", "source": { "type": "base64", "media_type": image.mime_type, "data": data } })
    });
    let text = String::from_utf8_lossy(&draft.plan.input);
    let content: Vec<Value> = images.chain([json!({ "type": "text", "text": text })]).collect();
    let message = json!({ "type": "user", "message": { "role": "user", "content": content } });
    draft.converse(&DriverSpec::ClaudeLive);
    draft.plan.input = format!("{message}\n").into_bytes();
}

/// Returns whether texts are streamed as deltas. An unsupported `partial_messages` is rejected; an unsupported `watched` is not.
fn streams_deltas(draft: &Draft<'_>) -> Result<bool, LaunchError> {
    let can = draft.require(Capability::PartialMessages, "partial_messages");
    if draft.spec.partial_messages { can.map(|()| true) } else { Ok(draft.spec.watched && can.is_ok()) }
}

fn session(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    if draft.spec.agent_name.is_some() && draft.spec.session != SessionChoice::New {
        return Err(LaunchError::Contradiction { one: "agent_name", other: "session" });
    }
    match &draft.spec.session {
        SessionChoice::New => {
            let assigned = assign(draft)?;
            draft.session = assigned.map_or(ExpectedSession::Any, ExpectedSession::Assigned);
        }
        SessionChoice::Resume(id) => {
            let uuid = draft.checked_uuid(id)?;
            draft.flag("--resume", uuid)?;
            draft.session = ExpectedSession::Resumed(id.clone());
        }
        SessionChoice::Fork(id) => {
            draft.require(Capability::ForkSession, "session fork")?;
            let uuid = draft.checked_uuid(id)?;
            draft.flag("--resume", uuid)?;
            draft.arg("--fork-session");
            draft.session = ExpectedSession::Forked { from: id.clone(), into: assign(draft)? };
        }
        SessionChoice::ContinueLatest => {
            draft.arg("--continue");
            draft.session = ExpectedSession::Latest;
        }
    }
    Ok(())
}

/// Assigns the id of a new session, if the version supports it.
fn assign(draft: &mut Draft<'_>) -> Result<Option<SessionId>, LaunchError> {
    if !draft.setup.capabilities.has(Capability::AssignSession) {
        return Ok(None);
    }
    let id = draft.setup.new_session.clone();
    let uuid = draft.checked_uuid(&id)?;
    draft.flag("--session-id", uuid)?;
    Ok(Some(id))
}

fn prompts_and_directories(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    if let Some(name) = &draft.spec.agent_name {
        draft.flag("--agent", name.as_str())?;
    }
    if let Some(prompt) = &draft.spec.system_prompt {
        draft.flag("--system-prompt", prompt)?;
    }
    if let Some(prompt) = draft.appended_prompt() {
        draft.flag("--append-system-prompt", &prompt)?;
    }
    for dir in &draft.spec.add_dirs {
        draft.flag("--add-dir", path_text(dir)?)?;
    }
    if let Some(schema) = &draft.spec.output_schema {
        draft.require(Capability::OutputSchema, "output_schema")?;
        draft.flag("--json-schema", schema)?;
    }
    Ok(())
}

fn limits(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    if let Some(turns) = draft.spec.max_turns {
        draft.flag("--max-turns", &turns.to_string())?;
    }
    if let Some(usd) = draft.spec.max_budget_usd {
        draft.require(Capability::Budget, "max_budget_usd")?;
        draft.flag("--max-budget-usd", &usd.to_string())?;
    }
    if let Some(timeout) = draft.spec.tool_timeout.or(draft.setup.tool_timeout) {
        draft.variable("MCP_TOOL_TIMEOUT", timeout.as_millis().max(1).to_string());
    }
    // Without a limit of the call, claude's own limits on commands apply (2 to 10 minutes).
    if let Some(timeout) = draft.spec.tool_timeout {
        let millis = timeout.as_millis().max(1).to_string();
        draft.variable("BASH_DEFAULT_TIMEOUT_MS", millis.clone());
        draft.variable("BASH_MAX_TIMEOUT_MS", millis);
        // Otherwise claude moves a command that times out to the background.
        draft.variable("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1");
    }
    Ok(())
}

/// Sets the time that claude waits for its background tasks to the limit of the call; its default is 600 s.
fn background_wait(draft: &mut Draft<'_>) {
    let wait = draft.spec.limits.wall.unwrap_or(Duration::from_hours(24));
    draft.variable("CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS", wait.as_millis().to_string());
}

fn settings(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let observe = draft.spec.mode == Mode::Observe;
    let sources = match (&draft.spec.settings, draft.spec.mode) {
        (SettingsChoice::Only(sources), Mode::Observe)
            if sources.iter().any(|source| *source != SettingSource::User) =>
        {
            return Err(LaunchError::Contradiction {
                one: "mode observe",
                other: "settings of the workspace",
            });
        }
        (SettingsChoice::Only(sources), _) => Some(sources.clone()),
        // Hooks of a workspace run commands, which read-only mode must prevent.
        (SettingsChoice::AgentDefault, Mode::Observe) => Some(vec![SettingSource::User]),
        (SettingsChoice::AgentDefault, Mode::Execute) => None,
    };
    if let Some(sources) = &sources {
        draft.require(Capability::SettingSources, requested_option(draft.spec))?;
        let names: Vec<_> = sources.iter().map(|source| source.name()).collect();
        draft.flag("--setting-sources", &names.join(","))?;
    }
    if draft.passes_instructions() {
        instructions(draft)?;
    }
    // Claude loads the workspace's `.mcp.json` even if no settings of the workspace are loaded.
    let without_workspace = sources.is_some_and(|sources| !sources.contains(&SettingSource::Project));
    if observe || without_workspace || !draft.spec.mcp_servers.is_empty() {
        let option =
            if draft.spec.mcp_servers.is_empty() { requested_option(draft.spec) } else { "mcp_servers" };
        draft.require(Capability::StrictMcp, option)?;
        draft.arg("--strict-mcp-config");
    }
    Ok(())
}

/// Passes the instructions of a workspace whose settings are not loaded.
///
/// With this variable set, claude reads from an added directory its instructions, but no settings, hooks, servers, agents or
/// skills (verified with both tested versions).
fn instructions(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let WorkspaceFiles { instruction_dirs, agent, .. } = &draft.setup.workspace;
    for dir in instruction_dirs.iter().filter(|dir| !draft.spec.add_dirs.contains(dir)) {
        draft.flag("--add-dir", path_text(dir)?)?;
    }
    if !instruction_dirs.is_empty() {
        draft.variable("CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD", "1");
    }
    if let (Some(name), Some(definition)) = (&draft.spec.agent_name, agent) {
        let agents = json!({ name.as_str(): definition });
        draft.flag("--agents", &agents.to_string())?;
    }
    Ok(())
}

/// Returns the option of the call that excludes the settings of the workspace.
fn requested_option(spec: &CallSpec) -> &'static str {
    if spec.mode == Mode::Observe {
        "mode observe"
    } else if spec.policy.preset == Preset::Off {
        "settings"
    } else {
        "policy without the settings of the workspace"
    }
}

fn permissions(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    if draft.spec.mode == Mode::Observe {
        return observe(draft);
    }
    let named_agent = draft.spec.agent_name.is_some();
    match &draft.spec.tools {
        _ if named_agent => skip_permissions(draft)?,
        ToolChoice::None => return no_tools(draft),
        ToolChoice::Full => skip_permissions(draft)?,
        ToolChoice::Only(tools) => {
            for tool in tools {
                draft.flag("--allowedTools", checked(tool)?)?;
            }
            permission_mode(draft, draft.spec.permission_mode.unwrap_or(PermissionMode::Default))?;
        }
    }
    available_tools(draft)?;
    allow_servers(draft)
}

/// Limits the agent to read-only tools, without any flag that grants a permission.
fn observe(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    if !draft.spec.mcp_servers.is_empty() {
        return Err(LaunchError::Contradiction { one: "mode observe", other: "mcp_servers" });
    }
    if draft.spec.available_tools.is_some() {
        return Err(LaunchError::Contradiction { one: "mode observe", other: "available_tools" });
    }
    if draft.spec.permission_mode == Some(PermissionMode::Bypass) {
        return Err(LaunchError::Contradiction { one: "mode observe", other: "permission_mode bypass" });
    }
    draft.require(Capability::ChooseTools, "mode observe")?;
    permission_mode(draft, draft.spec.permission_mode.unwrap_or(PermissionMode::Default))?;
    let wanted: Vec<&str> = match &draft.spec.tools {
        ToolChoice::None => return draft.flag("--tools", ""),
        ToolChoice::Full => READ_ONLY.to_vec(),
        ToolChoice::Only(tools) => tools.iter().map(String::as_str).collect(),
    };
    if let Some(tool) = wanted.iter().find(|tool| !READ_ONLY.contains(tool)) {
        return Err(LaunchError::NotReadOnly { tool: (*tool).to_owned() });
    }
    draft.flag("--tools", &wanted.join(","))
}

/// Removes all tools. `--allowedTools ""` would keep all of them; with `--tools ""` the model gets none.
fn no_tools(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    draft.require(Capability::ChooseTools, "tools none")?;
    no_built_in_tools(draft)?;
    allow_servers(draft)
}

fn no_built_in_tools(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let strict = draft.spec.settings == SettingsChoice::Only(Vec::new());
    if strict && draft.setup.capabilities.has(Capability::Restricted) {
        draft.arg("--restricted");
    }
    draft.flag("--tools", "")
}

fn skip_permissions(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    match draft.spec.permission_mode {
        None | Some(PermissionMode::Bypass) => draft.arg("--dangerously-skip-permissions"),
        Some(mode) => permission_mode(draft, mode)?,
    }
    Ok(())
}

fn permission_mode(draft: &mut Draft<'_>, mode: PermissionMode) -> Result<(), LaunchError> {
    let name = match mode {
        // Explicit, because the user's settings may have another default. The newest help calls it `manual`, but still accepts
        // this name, which the older versions know.
        PermissionMode::Default => "default",
        PermissionMode::AcceptEdits => "acceptEdits",
        PermissionMode::Bypass => "bypassPermissions",
        PermissionMode::Plan => "plan",
        PermissionMode::DontAsk => "dontAsk",
    };
    draft.flag("--permission-mode", name)
}

fn available_tools(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let Some(tools) = &draft.spec.available_tools else { return Ok(()) };
    draft.require(Capability::ChooseTools, "available_tools")?;
    if tools.is_empty() {
        return no_built_in_tools(draft);
    }
    for tool in tools {
        checked(tool)?;
        if tool.contains(['(', ',', ' ']) {
            return Err(LaunchError::BadTool { tool: tool.clone() });
        }
    }
    draft.flag("--tools", &tools.join(","))
}

fn allow_servers(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    for server in &draft.spec.mcp_servers {
        let prefix = format!("mcp__{}__", server.name);
        // A server with listed tools has only those.
        let is_named = |tools: &[String]| tools.iter().any(|tool| tool.starts_with(&prefix));
        if !matches!(&draft.spec.tools, ToolChoice::Only(tools) if is_named(tools)) {
            draft.flag("--allowedTools", &format!("{prefix}*"))?;
        }
    }
    Ok(())
}

/// Checks that a text is one tool with at most one rule in parentheses. Claude splits lists at commas and spaces outside of
/// parentheses, so a text that could be two tools is rejected.
fn checked(tool: &str) -> Result<&str, LaunchError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.*:".contains(c);
    let name = tool.split('(').next().unwrap_or_default();
    let rule = &tool[name.len()..];
    if !name.is_empty()
        && !name.starts_with('-')
        && name.chars().all(plain)
        && (rule.is_empty() || is_one_rule(rule))
    {
        Ok(tool)
    } else {
        Err(LaunchError::BadTool { tool: tool.chars().take(100).collect() })
    }
}

/// Returns whether the last character closes the first parenthesis.
fn is_one_rule(rule: &str) -> bool {
    let mut depth = 0_u32;
    for (position, character) in rule.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 1 => return position + 1 == rule.len() && rule.len() > 2,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Writes the MCP configuration to a private file: variables of a server are often secret, and arguments are public.
fn mcp_config(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let of_the_call = |McpServer { name, command, args, env }: &McpServer| {
        (name.clone(), json!({ "type": "stdio", "command": command, "args": args, "env": env }))
    };
    let servers: Map<String, Value> = if draft.spec.mcp_servers.is_empty() && loads_user_servers(draft.spec) {
        draft.setup.workspace.user_servers.clone()
    } else {
        draft.spec.mcp_servers.iter().map(of_the_call).collect()
    };
    if servers.is_empty() {
        return Ok(());
    }
    let path = draft.private_file("mcp.json", json!({ "mcpServers": servers }).to_string())?;
    draft.flag("--mcp-config", &path)
}

/// Returns whether the user's servers are passed explicitly. A sandboxed claude does not find them: their file is in the home
/// directory, and its configuration directory is set. Without a policy it finds them itself.
fn loads_user_servers(spec: &CallSpec) -> bool {
    let by_settings =
        matches!(&spec.settings, SettingsChoice::Only(sources) if sources.contains(&SettingSource::User));
    !spec.policy.is_off()
        && !spec.policy.private_state
        && by_settings
        && spec.mode == Mode::Execute
        && spec.tools != ToolChoice::None
}
