//! Launches Codex (tested with 0.166.0).
//!
//! Owns its flags and their order: those of `exec` precede `resume` or `fork`, which accept fewer. The tools depend on the model
//! and cannot be restricted reliably (`--disable` leaves some models a patch or script tool), so a call that selects tools is
//! rejected; only the sandbox is enforced.

use model::{
    ExpectedSession, McpServer, Mode, PermissionMode, SessionChoice, SettingSource, SettingsChoice,
    ToolChoice,
};

use serde_json::{Map, json};

use super::{Draft, LaunchError, path_text};
use crate::driver::{AppServerSpec, AppServerThread, DriverSpec};
use crate::{Capability, forbidden_variable};

pub(super) fn write(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    check(draft)?;
    if draft.spec.live {
        return write_app_server(draft);
    }
    draft.arg("exec");
    draft.arg("--json");
    draft.flag("--color", "never")?;
    if let Some(model) = draft.model.clone() {
        draft.flag("--model", &model)?;
    }
    draft.flag("--cd", path_text(&draft.spec.cwd)?)?;
    sandbox(draft)?;
    draft.arg("--skip-git-repo-check");
    for dir in &draft.spec.add_dirs {
        draft.flag("--add-dir", path_text(dir)?)?;
    }
    if let Some(effort) = draft.spec.effort.clone() {
        config(draft, "model_reasoning_effort", &toml_text(effort.as_str()))?;
    }
    for path in image_files(draft)? {
        draft.flag("--image", &path)?;
    }
    prompts_and_schema(draft)?;
    for server in &draft.spec.mcp_servers {
        mcp_server(draft, server)?;
    }
    session(draft)?;
    draft.arg("-"); // the prompt is on stdin
    Ok(())
}

/// Launches the server of codex, whose protocol goes in both directions. Most options are parameters of the thread.
fn write_app_server(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let spec = draft.spec;
    // Without our sandbox, only flags of `exec` keep rules and settings of the user from making it write.
    let is_read_only = spec.mode == Mode::Observe || spec.permission_mode.is_some();
    draft.reject_if(is_read_only && spec.policy.is_off(), "live")?;
    draft.reject_if(spec.output_schema.is_some(), "output_schema")?;
    draft.arg("app-server");
    for server in &spec.mcp_servers {
        mcp_server(draft, server)?;
    }
    let mut options = json!({
        "cwd": path_text(&spec.cwd)?,
        "approvalPolicy": "never",
        "sandbox": "danger-full-access",
    });
    if !spec.policy.is_off() {
        trust(draft)?;
    }
    if let Some(model) = &draft.model {
        options["model"] = json!(model);
    }
    if let Some(prompt) = &spec.system_prompt {
        options["baseInstructions"] = json!(prompt);
    }
    if let Some(prompt) = draft.appended_prompt() {
        options["developerInstructions"] = json!(prompt);
    }
    let mut turn = Map::new();
    if let Some(effort) = &spec.effort {
        turn.insert("effort".to_owned(), json!(effort.as_str()));
    }
    let thread = match &spec.session {
        SessionChoice::New => AppServerThread::New,
        SessionChoice::Resume(id) => {
            draft.session = ExpectedSession::Resumed(id.clone());
            AppServerThread::Resume(draft.checked_uuid(id)?.to_owned())
        }
        SessionChoice::Fork(id) => {
            draft.session = ExpectedSession::Forked { from: id.clone(), into: None };
            AppServerThread::Fork(draft.checked_uuid(id)?.to_owned())
        }
        SessionChoice::ContinueLatest => return Err(draft.unsupported("the latest session")),
    };
    let images = image_files(draft)?;
    let options = options.as_object().cloned().unwrap_or_default();
    let prompt = spec.prompt.clone();
    draft.converse(&DriverSpec::CodexAppServer(AppServerSpec { thread, options, prompt, images, turn }));
    Ok(())
}

/// Copies the images to private files of the run, where a sandboxed codex can read them.
fn image_files(draft: &mut Draft<'_>) -> Result<Vec<String>, LaunchError> {
    let images = draft.setup.images.iter().enumerate();
    images
        .map(|(number, image)| {
            draft.private_file(&format!("image-{number}.{}", image.extension), image.bytes.clone())
        })
        .collect()
}

fn check(draft: &Draft<'_>) -> Result<(), LaunchError> {
    let spec = draft.spec;
    draft.reject_if(spec.max_turns.is_some(), "max_turns")?;
    draft.reject_if(spec.max_budget_usd.is_some(), "max_budget_usd")?;
    draft.reject_if(spec.agent_name.is_some(), "agent_name")?;
    // Only MCP tools have a configurable timeout; the model decides how long a command runs.
    draft.reject_if(spec.tool_timeout.is_some(), "tool_timeout")?;
    draft.reject_if(spec.tools != ToolChoice::Full, "tools")?;
    draft.reject_if(spec.available_tools.is_some(), "available_tools")?;
    draft.reject_if(spec.partial_messages, "partial_messages")
}

fn sandbox(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let spec = draft.spec;
    let plan = spec.permission_mode == Some(PermissionMode::Plan);
    if spec.mode == Mode::Observe || plan {
        if spec.permission_mode == Some(PermissionMode::Bypass) {
            return Err(LaunchError::Contradiction { one: "mode observe", other: "permission_mode bypass" });
        }
        // The sandbox covers the shell, but the servers of a call run outside of it.
        if spec.mode == Mode::Observe && !spec.mcp_servers.is_empty() {
            return Err(LaunchError::Contradiction { one: "mode observe", other: "mcp_servers" });
        }
        if draft.spec.policy.is_off() {
            draft.flag("--sandbox", "read-only")?;
        } else {
            disable_own_sandbox(draft)?;
        }
    } else if !draft.spec.policy.is_off() {
        disable_own_sandbox(draft)?;
    } else {
        match spec.permission_mode {
            // A call without a policy gets all of the user's permissions, as with every agent.
            None | Some(PermissionMode::Bypass) => draft.arg("--dangerously-bypass-approvals-and-sandbox"),
            Some(_) => draft.flag("--sandbox", "workspace-write")?,
        }
    }
    settings(draft)
}

/// Turns off codex's own sandbox inside of ours: it needs namespaces, which ours denies, so every command would fail. Ours covers
/// the whole process, not only its commands.
fn disable_own_sandbox(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let plan = draft.spec.permission_mode == Some(PermissionMode::Plan);
    if plan && draft.spec.policy.preset.writes() {
        return Err(LaunchError::Contradiction {
            one: "permission_mode plan",
            other: "a policy that writes",
        });
    }
    draft.flag("--sandbox", "danger-full-access")
}

/// Sets trust and rules. A rule of the user or of a trusted workspace lets a command escape the sandbox, and the configuration of
/// a trusted workspace starts servers; read-only mode must prevent both.
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
        draft.arg("--ignore-user-config");
    }
    if observe || sources.is_some() {
        draft.arg("--ignore-rules");
    }
    trust(draft)
}

/// Sets the trust in the workspace, unless the user's own choice applies.
fn trust(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let is_observed = draft.spec.mode == Mode::Observe;
    match &draft.spec.settings {
        SettingsChoice::Only(sources) if !sources.contains(&SettingSource::Project) => {
            set_trust(draft, "untrusted")
        }
        _ if is_observed => set_trust(draft, "untrusted"),
        SettingsChoice::Only(_) => set_trust(draft, "trusted"),
        SettingsChoice::AgentDefault => Ok(()),
    }
}

/// Sets the trust level of the working directory and of each parent in the repository: codex loads the configuration of all of
/// them, and the user may have trusted one.
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
        draft.require(Capability::OutputSchema, "output_schema")?;
        let path = draft.private_file("schema.json", schema)?;
        draft.flag("--output-schema", &path)?;
    }
    Ok(())
}

/// Adds an MCP server. It is approved, or codex would deny every tool that is not declared read-only; and required, or codex
/// would silently skip a server that does not start. The values of its variables go through codex's environment and only the
/// names into the arguments, which are public.
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
        // It would affect codex as well, and could run code there.
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
            let uuid = draft.checked_uuid(id)?;
            draft.arg("resume");
            draft.arg(uuid);
            draft.session = ExpectedSession::Resumed(id.clone());
        }
        SessionChoice::Fork(id) => {
            draft.require(Capability::ForkSession, "session fork")?;
            let uuid = draft.checked_uuid(id)?;
            draft.arg("fork");
            draft.arg(uuid);
            draft.session = ExpectedSession::Forked { from: id.clone(), into: None };
        }
        SessionChoice::ContinueLatest => {
            draft.arg("resume");
            draft.arg("--last");
            draft.session = ExpectedSession::Latest;
        }
    }
    Ok(())
}

/// Adds a configuration value in TOML.
fn config(draft: &mut Draft<'_>, key: &str, toml: &str) -> Result<(), LaunchError> {
    draft.flag("--config", &format!("{key}={toml}"))
}

/// Returns a basic TOML string.
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
    fn toml_string_escapes_its_text() {
        assert_eq!(toml_text(r#"a"b\c"#), r#""a\"b\\c""#);
        assert_eq!(toml_text("a\nb\u{1}\u{7f}é"), "\"a\\nb\\u0001\\u007Fé\"");
    }
}
