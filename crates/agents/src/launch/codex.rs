//! How Codex is launched (seen with 0.166.0).
//!
//! Owns its flags and their order: everything that belongs to `exec` stands before `resume` or `fork`, which know fewer.
//! Which tools there are depends on the model and cannot be said for all of them (`--disable` leaves some models a patch
//! tool or a script tool), so a call that names its tools is refused; the sandbox is what holds.

use model::{
    ExpectedSession, McpServer, Mode, PermissionMode, SessionChoice, SettingSource, SettingsChoice,
    ToolChoice,
};

use super::{Draft, LaunchError, path_text};
use crate::{Capability, forbidden_variable};

pub(super) fn write(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    check(draft)?;
    draft.word("exec");
    draft.word("--json");
    draft.flag("--color", "never")?;
    if let Some(model) = draft.model.clone() {
        draft.flag("--model", &model)?;
    }
    draft.flag("--cd", path_text(&draft.spec.cwd)?)?;
    sandbox(draft)?;
    draft.word("--skip-git-repo-check");
    for dir in &draft.spec.add_dirs {
        draft.flag("--add-dir", path_text(dir)?)?;
    }
    prompts_and_schema(draft)?;
    for server in &draft.spec.mcp_servers {
        mcp_server(draft, server)?;
    }
    session(draft)?;
    draft.word("-"); // the prompt is on stdin
    Ok(())
}

fn check(draft: &Draft<'_>) -> Result<(), LaunchError> {
    let spec = draft.spec;
    draft.refuse(spec.max_turns.is_some(), "max_turns")?;
    draft.refuse(spec.max_budget_usd.is_some(), "max_budget_usd")?;
    draft.refuse(spec.agent_name.is_some(), "agent_name")?;
    // Only its MCP tools have a limit that can be set; a command runs for as long as the model lets it.
    draft.refuse(spec.tool_timeout.is_some(), "tool_timeout")?;
    draft.refuse(spec.tools != ToolChoice::Full, "tools")?;
    draft.refuse(spec.available_tools.is_some(), "available_tools")?;
    draft.refuse(spec.partial_messages, "partial_messages")
}

fn sandbox(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let spec = draft.spec;
    let plan = spec.permission_mode == Some(PermissionMode::Plan);
    if spec.mode == Mode::Observe || plan {
        if spec.permission_mode == Some(PermissionMode::Bypass) {
            return Err(LaunchError::Contradiction { one: "mode observe", other: "permission_mode bypass" });
        }
        // The sandbox holds the shell; the servers of a call run outside of it.
        if spec.mode == Mode::Observe && !spec.mcp_servers.is_empty() {
            return Err(LaunchError::Contradiction { one: "mode observe", other: "mcp_servers" });
        }
        if draft.spec.policy.is_off() {
            draft.flag("--sandbox", "read-only")?;
        } else {
            inside_ours(draft)?;
        }
    } else if !draft.spec.policy.is_off() {
        inside_ours(draft)?;
    } else {
        match spec.permission_mode {
            // Whoever asks for no policy gets all of the user's permissions, from every agent.
            None | Some(PermissionMode::Bypass) => draft.word("--dangerously-bypass-approvals-and-sandbox"),
            Some(_) => draft.flag("--sandbox", "workspace-write")?,
        }
    }
    settings(draft)
}

/// Its own sandbox needs namespaces, which ours refuses; then every command of it would fail. Ours holds instead, the whole
/// process and not its commands alone.
fn inside_ours(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let plan = draft.spec.permission_mode == Some(PermissionMode::Plan);
    if plan && draft.spec.policy.preset.writes() {
        return Err(LaunchError::Contradiction {
            one: "permission_mode plan",
            other: "a policy that writes",
        });
    }
    draft.flag("--sandbox", "danger-full-access")
}

/// A rule of the user or of a trusted workspace lets a command out of the sandbox, and a trusted workspace's own
/// configuration starts servers: who may only look must obey neither.
fn settings(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let observe = draft.spec.mode == Mode::Observe;
    let sources = match &draft.spec.settings {
        SettingsChoice::Only(sources) => Some(sources),
        SettingsChoice::AgentDefault => None,
    };
    if observe && sources.is_some_and(|sources| sources.iter().any(|source| *source != SettingSource::User)) {
        return Err(LaunchError::Contradiction { one: "mode observe", other: "settings of the workspace" });
    }
    if sources.is_some_and(|sources| !sources.contains(&SettingSource::User)) {
        draft.word("--ignore-user-config");
    }
    if observe || sources.is_some() {
        draft.word("--ignore-rules");
    }
    if observe || sources.is_some_and(|sources| !sources.contains(&SettingSource::Project)) {
        set_trust(draft, "untrusted")
    } else if sources.is_some() {
        set_trust(draft, "trusted")
    } else {
        Ok(())
    }
}

/// Decides about the working directory and every one above it in the repository: codex loads the configuration of each, and
/// the user may have trusted one of them.
fn set_trust(draft: &mut Draft<'_>, level: &str) -> Result<(), LaunchError> {
    let above = draft.setup.workspace.directories.iter().filter(|dir| **dir != draft.spec.cwd);
    let projects: Vec<String> = above
        .chain([&draft.spec.cwd])
        .map(|dir| Ok(format!("{}={{trust_level=\"{level}\"}}", toml_text(path_text(dir)?))))
        .collect::<Result<_, LaunchError>>()?;
    config(draft, "projects", &format!("{{{}}}", projects.join(",")))
}

fn prompts_and_schema(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    if let Some(prompt) = draft.spec.system_prompt.clone() {
        let path = draft.private_file("system-prompt.md", prompt)?;
        config(draft, "model_instructions_file", &toml_text(&path))?;
    }
    if let Some(prompt) = draft.appended_prompt() {
        config(draft, "developer_instructions", &toml_text(&prompt))?;
    }
    if let Some(schema) = draft.spec.output_schema.clone() {
        draft.needs(Capability::OutputSchema, "output_schema")?;
        let path = draft.private_file("schema.json", schema)?;
        draft.flag("--output-schema", &path)?;
    }
    Ok(())
}

/// Approved in advance, or every tool that does not call itself read-only is refused; required, or a server that does not
/// start is passed over in silence. The values of a server's variables go through the environment of codex, and only their
/// names into the arguments, which every process of the machine can read.
fn mcp_server(draft: &mut Draft<'_>, server: &McpServer) -> Result<(), LaunchError> {
    let args: Vec<_> = server.args.iter().map(|arg| toml_text(arg)).collect();
    let names: Vec<_> = server.env.keys().map(|name| toml_text(name)).collect();
    let timeout = draft.setup.tool_timeout.map(|timeout| timeout.as_secs().max(1));
    let table = format!(
        "{{command={},args=[{}],env_vars=[{}],required=true,default_tools_approval_mode=\"approve\"{}}}",
        toml_text(&server.command),
        args.join(","),
        names.join(","),
        timeout.map(|seconds| format!(",tool_timeout_sec={seconds}")).unwrap_or_default(),
    );
    config(draft, &format!("mcp_servers.{}", server.name), &table)?;
    for (variable, value) in &server.env {
        let both = || (server.name.clone(), variable.clone());
        // Meant for the server, it would also run code in codex.
        if forbidden_variable(variable).is_some() {
            let (server, variable) = both();
            return Err(LaunchError::VariableForbidden { server, variable });
        }
        if draft.plan.env.get(variable).is_some_and(|other| other != value) {
            let (server, variable) = both();
            return Err(LaunchError::VariableClash { server, variable });
        }
        draft.variable(variable, value.clone());
    }
    Ok(())
}

fn session(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    match &draft.spec.session {
        SessionChoice::New => {}
        SessionChoice::Resume(id) => {
            let uuid = draft.uuid_of(id)?;
            draft.word("resume");
            draft.word(uuid);
            draft.session = ExpectedSession::Resumed(id.clone());
        }
        SessionChoice::Fork(id) => {
            draft.needs(Capability::ForkSession, "session fork")?;
            let uuid = draft.uuid_of(id)?;
            draft.word("fork");
            draft.word(uuid);
            draft.session = ExpectedSession::Forked { from: id.clone(), into: None };
        }
        SessionChoice::ContinueLatest => {
            draft.word("resume");
            draft.word("--last");
            draft.session = ExpectedSession::Latest;
        }
    }
    Ok(())
}

/// Codex reads the value as TOML.
fn config(draft: &mut Draft<'_>, key: &str, toml: &str) -> Result<(), LaunchError> {
    draft.flag("--config", &format!("{key}={toml}"))
}

/// A basic string of TOML.
fn toml_text(text: &str) -> String {
    let mut toml = String::with_capacity(text.len() + 2);
    toml.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => toml.extend(['\\', c]),
            '\n' => toml.push_str("\\n"),
            '\t' => toml.push_str("\\t"),
            c if c.is_control() => toml.extend(format!("\\u{:04X}", u32::from(c)).chars()),
            c => toml.push(c),
        }
    }
    toml.push('"');
    toml
}

#[cfg(test)]
mod tests {
    use super::toml_text;

    #[test]
    fn a_text_cannot_leave_its_toml_string() {
        assert_eq!(toml_text(r#"a"b\c"#), r#""a\"b\\c""#);
        assert_eq!(toml_text("a\nb\u{1}\u{7f}é"), "\"a\\nb\\u0001\\u007Fé\"");
    }
}
