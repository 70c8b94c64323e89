//! Launches an agent that speaks the Agent Client Protocol.
//!
//! Owns the translation of a call to the parameters of the conversation. Options that the agent lacks by its profile are rejected here;
//! the offers of its handshake are known only to the driver.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::{
    CallSpec, ExpectedSession, McpServer, Mode, PermissionMode, PlanError, SessionChoice, SettingSource,
    SettingsChoice, ToolChoice,
};

use super::{Draft, LaunchError, path_text};
use crate::driver::{AcpImage, AcpServer, AcpSession, AcpSpec, DriverSpec, PermissionRule};
use crate::profile::{AcpRules, AgentFeature};

pub(super) fn write(draft: &mut Draft<'_>, rules: &AcpRules) -> Result<(), LaunchError> {
    check(draft)?;
    for arg in &rules.args {
        draft.arg(arg);
    }
    for (name, value) in &rules.set {
        draft.variable(name, value.clone());
    }
    if rules.needs_terminals {
        start_by_terminal_host(draft)?;
    }
    if is_untrusted(draft.spec) {
        for (name, value) in &rules.set_untrusted {
            draft.variable(name, value.clone());
        }
    }
    let session = session(draft)?;
    let add_dirs = draft.spec.add_dirs.iter().map(|dir| path_text(dir).map(str::to_owned));
    let add_dirs = add_dirs.collect::<Result<_, _>>()?;
    let mut mcp_servers = Vec::new();
    for server in &draft.spec.mcp_servers {
        mcp_servers.push(mcp_server(draft, server)?);
    }
    let images = draft
        .setup
        .images
        .iter()
        .map(|image| AcpImage { mime_type: image.mime_type.to_owned(), data: STANDARD.encode(&image.bytes) });
    let is_read_only = draft.spec.mode == Mode::Observe;
    let spec = AcpSpec {
        cwd: path_text(&draft.spec.cwd)?.to_owned(),
        add_dirs,
        session,
        prompt: prompt(draft, rules),
        images: images.collect(),
        mcp_servers,
        model: draft.model.clone(),
        effort: draft.spec.effort.as_ref().map(|effort| effort.as_str().to_owned()),
        mode: rules.unattended_mode.clone().filter(|_| !is_read_only),
        permissions: if is_read_only { PermissionRule::ReadOnly } else { PermissionRule::Allow },
        has_terminals: rules.needs_terminals,
        usage: rules.usage,
        errors: rules.errors,
    };
    draft.converse(&DriverSpec::Acp(spec));
    Ok(())
}

/// Returns the prompt, with an invisible character before a slash that the agent would take for a command.
fn prompt(draft: &Draft<'_>, rules: &AcpRules) -> String {
    let text = draft.text_of_prompt();
    if rules.trims_prompts && text.trim_start().starts_with('/') { format!("\u{200b}{text}") } else { text }
}

/// Starts the agent by `terminal-host`, which runs the commands that it requests from its client.
fn start_by_terminal_host(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let agent = draft.spec.agent;
    let host = draft.setup.host.terminal_host.as_ref().ok_or(LaunchError::NoTerminalHost { agent })?;
    let path = draft.setup.program.clone();
    let Some(program) = path.to_str().map(str::to_owned) else {
        return Err(PlanError::NotUnicode { what: "program", path }.into());
    };
    draft.plan.program.clone_from(host);
    draft.plan.args.insert(0, program);
    Ok(())
}

/// Returns whether the settings of the workspace would run code in a sandboxed agent, with access to its key.
fn is_untrusted(spec: &CallSpec) -> bool {
    let is_trusted =
        matches!(&spec.settings, SettingsChoice::Only(sources) if sources.contains(&SettingSource::Project));
    !spec.policy.is_off() && !is_trusted
}

fn check(draft: &Draft<'_>) -> Result<(), LaunchError> {
    let spec = draft.spec;
    draft.reject_if(spec.max_turns.is_some(), "max_turns")?;
    draft.reject_if(spec.max_budget_usd.is_some(), "max_budget_usd")?;
    draft.reject_if(spec.agent_name.is_some(), "agent_name")?;
    draft.reject_if(spec.tool_timeout.is_some(), "tool_timeout")?;
    draft.reject_if(spec.tools != ToolChoice::Full, "tools")?;
    draft.reject_if(spec.available_tools.is_some(), "available_tools")?;
    draft.reject_if(spec.system_prompt.is_some(), "system_prompt")?;
    draft.reject_if(spec.append_system_prompt.is_some(), "append_system_prompt")?;
    let asks = !matches!(spec.permission_mode, None | Some(PermissionMode::Bypass));
    draft.reject_if(asks, "permission_mode")?;
    // Nothing but the sandbox keeps it from writing.
    draft.reject_if(spec.mode == Mode::Observe && spec.policy.is_off(), super::UNCONFINED_OBSERVE)?;
    draft.need(draft.model.is_some(), AgentFeature::Model, "model")?;
    draft.need(spec.effort.is_some(), AgentFeature::Effort, "effort")?;
    draft.need(!spec.images.is_empty(), AgentFeature::Images, "images")?;
    draft.need(!spec.add_dirs.is_empty(), AgentFeature::AddDirs, "add_dirs")?;
    draft.need(!spec.mcp_servers.is_empty(), AgentFeature::McpServers, "mcp_servers")
}

fn session(draft: &mut Draft<'_>) -> Result<AcpSession, LaunchError> {
    Ok(match &draft.spec.session {
        SessionChoice::New => AcpSession::New,
        SessionChoice::Resume(id) => {
            draft.need(true, AgentFeature::Resume, "session")?;
            draft.session = ExpectedSession::Resumed(id.clone());
            AcpSession::Resume(id.to_string())
        }
        SessionChoice::Fork(id) => {
            draft.need(true, AgentFeature::Fork, "session fork")?;
            draft.session = ExpectedSession::Forked { from: id.clone(), into: None };
            AcpSession::Fork(id.to_string())
        }
        // The id is needed to open it.
        SessionChoice::ContinueLatest => return Err(draft.unsupported("the latest session")),
    })
}

/// Translates a server. Its variables are often secret, and the conversation is kept: a shell reads them from a private file of the run.
fn mcp_server(draft: &mut Draft<'_>, server: &McpServer) -> Result<AcpServer, LaunchError> {
    let McpServer { name, command, args, env } = server;
    if env.is_empty() {
        return Ok(AcpServer { name: name.clone(), command: command.clone(), args: args.clone() });
    }
    let lines: Vec<String> =
        env.iter().map(|(name, value)| format!("{name}='{}'\n", value.replace('\'', r"'\''"))).collect();
    if let Some(bad) = env.keys().find(|name| !is_shell_name(name)) {
        return Err(LaunchError::BadVariable { server: name.clone(), variable: bad.clone() });
    }
    let file = draft.private_file(&format!("mcp-{name}.env"), lines.concat())?;
    let start = ["-c", r#"set -a; . "$0"; set +a; exec "$@""#, file.as_str(), command.as_str()];
    let args = start.into_iter().map(str::to_owned).chain(args.iter().cloned()).collect();
    Ok(AcpServer { name: name.clone(), command: super::SHELL.to_owned(), args })
}

fn is_shell_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
