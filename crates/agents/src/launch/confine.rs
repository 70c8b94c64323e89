//! The policy of a call, with the agent's own directories filled in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{
    AgentKind, Caches, CallPolicy, CallSpec, McpServer, Mode, Network, PolicyContext, PolicyError, Preset,
    SafeguardName, SettingSource, SettingsChoice, ToolChoice,
};

use super::error::NO_SHELL;
use super::{Draft, LaunchError, gemini, path_text};
use crate::LaunchSetup;
use crate::hosts::own_hosts;
use crate::state::StateDirectory;

/// The call as its policy lets it be placed.
pub(super) fn within_policy(spec: &CallSpec, setup: &LaunchSetup) -> Result<CallSpec, LaunchError> {
    let policy = spec.policy.within(&setup.host.ceiling);
    let mut spec = CallSpec { policy, ..spec.clone() };
    spec.policy.preset = spec.asked_preset();
    // A sandbox is for a workspace that is not trusted: its hooks, servers and variables would run before any tool does, and
    // take the agent's key along. A call that trusts it names the sources. Gemini has no flag for it, see `distrusted`.
    if !spec.policy.is_off()
        && spec.settings == SettingsChoice::AgentDefault
        && spec.agent != AgentKind::Gemini
    {
        spec.settings = SettingsChoice::Only(vec![SettingSource::User]);
    }
    if spec.policy.preset.has_shell() || has_no_tool_of_its_own(&spec) {
        return Ok(spec);
    }
    without_shell(spec, setup)
}

/// Whether the call itself leaves the agent no built-in tool and names each tool of its servers that it may use.
fn has_no_tool_of_its_own(spec: &CallSpec) -> bool {
    let by_servers = |tools: &[String]| tools.iter().all(|tool| tool.starts_with("mcp__"));
    matches!(spec.agent, AgentKind::Claude | AgentKind::Rehearsal)
        && spec.agent_name.is_none()
        && spec.available_tools.as_ref().is_some_and(Vec::is_empty)
        && spec.settings == SettingsChoice::Only(Vec::new())
        && matches!(&spec.tools, ToolChoice::Only(tools) if by_servers(tools))
}

/// File tools on the workspace, and nothing else.
fn without_shell(spec: CallSpec, setup: &LaunchSetup) -> Result<CallSpec, LaunchError> {
    if !matches!(spec.tools, ToolChoice::Full | ToolChoice::None) || spec.available_tools.is_some() {
        return Err(LaunchError::Contradiction { one: "policy without a shell", other: "tools" });
    }
    if spec.agent_name.is_some() {
        return Err(LaunchError::Contradiction { one: "policy without a shell", other: "agent_name" });
    }
    match spec.agent {
        // Which tools it has depends on the model, and a shell is always among them.
        AgentKind::Codex => Err(LaunchError::CannotDo { agent: spec.agent, option: NO_SHELL }),
        AgentKind::Gemini if setup.workspace.has_settings => {
            Err(LaunchError::WorkspaceSettings { agent: spec.agent, folder: spec.cwd.join(".gemini") })
        }
        AgentKind::Gemini => {
            let tools = gemini::file_tools(spec.policy.preset.writes());
            Ok(CallSpec { tools: ToolChoice::Only(tools), ..spec })
        }
        AgentKind::Claude | AgentKind::Rehearsal => {
            let program = setup.host.file_tools.as_ref().ok_or(LaunchError::NoFileTools)?;
            let root = path_text(&spec.cwd)?.to_owned();
            let files = McpServer {
                name: "files".to_owned(),
                command: path_text(program)?.to_owned(),
                args: vec!["mcp".to_owned()],
                env: BTreeMap::from([("FILE_TOOLS_ROOT".to_owned(), root)]),
            };
            let mcp_servers = spec.mcp_servers.iter().cloned().chain([files]).collect();
            let settings = SettingsChoice::Only(Vec::new());
            Ok(CallSpec { mode: Mode::Execute, tools: ToolChoice::None, settings, mcp_servers, ..spec })
        }
    }
}

/// Puts the policy into the plan, and tells the agent what it has to know of it.
pub(super) fn confine(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let policy = &draft.spec.policy;
    if policy.is_off() {
        return Ok(());
    }
    let private = private_state(draft.spec.agent, policy, draft.setup)?;
    let state = StateDirectory::find(draft.spec.agent, private, &draft.setup.inherited);
    let agent_state = state.as_ref().map(|state| state.profile(draft.spec, &draft.session)).transpose()?;
    if let Some(state) = &state {
        draft.variable(state.variable, path_text(&state.variable_value)?);
    }
    let git_config = PathBuf::from(draft.private_file("gitconfig", draft.setup.workspace.git.to_config())?);
    let home = draft.plan.env.get("HOME").map(PathBuf::from);
    let foreign = home
        .iter()
        .flat_map(|home| [".claude", ".claude.json", ".codex", ".gemini"].map(|name| home.join(name)));
    let host = &draft.setup.host;
    let added = draft.spec.add_dirs.iter().filter(|dir| **dir != draft.spec.cwd);
    let workspaces: Vec<PathBuf> = std::iter::once(&draft.spec.cwd).chain(added).cloned().collect();
    // The sandbox has temporary folders of its own, and `file-tools` may stand in one of the machine's. In a workspace it is seen
    // anyhow, and may be what is worked on.
    let is_worked_on = |program: &PathBuf| workspaces.iter().any(|folder| program.starts_with(folder));
    let file_tools = host.file_tools.iter().filter(|program| !is_worked_on(program));
    let ground = PolicyContext {
        state: agent_state,
        foreign_state: foreign.collect(),
        own: host.state.clone(),
        guarded: host.guarded.clone(),
        visible: visible(draft).into_iter().chain(file_tools.cloned()).collect(),
        workspaces,
        // Its sandbox is off within ours, and it has no other means of only looking.
        must_hold: match (draft.spec.agent, draft.spec.mode) {
            (AgentKind::Codex, Mode::Observe) => vec![SafeguardName::Writes],
            _ => Vec::new(),
        },
        proofs: host.proofs.clone(),
        // Claude runs as root without its own questions only when it is told so.
        env_if_held: match draft.spec.agent {
            AgentKind::Claude => BTreeMap::from([("IS_SANDBOX".to_owned(), "1".to_owned())]),
            _ => BTreeMap::new(),
        },
        caches: caches(draft, home.as_deref()),
        exposed: exposed(draft, home.as_deref()),
        programs: draft.setup.workspace.user_programs.clone(),
        settings_programs: draft.setup.workspace.settings_programs.clone(),
        // For programs that do not pass the variable on.
        copies: home.iter().map(|home| (home.join(".gitconfig"), git_config.clone())).collect(),
        home,
    };
    let hide = policy.hide.iter().cloned().chain(distrusted(draft, &ground)).collect();
    let policy_here = CallPolicy { network: network(draft)?, hide, ..policy.clone() }.confine(&ground);
    draft.plan.policy =
        policy_here.map_err(|error| LaunchError::Policy { option: asked_by(draft.spec, &error), error })?;
    // A sandbox has temporary folders of its own, and only those.
    draft.variable("TMPDIR", "/tmp");
    if draft.spec.agent == AgentKind::Claude {
        draft.variable("CLAUDE_CODE_TMPDIR", "/tmp");
    }
    let root = path_text(&draft.spec.cwd)?.to_owned();
    draft.variable("FILE_TOOLS_ROOT", root);
    quiet_git(draft);
    draft.variable("GIT_CONFIG_GLOBAL", path_text(&git_config)?);
    Ok(())
}

/// The paths of the home directory that the agent reads: those of the operator, and the user's skills and logins for this agent that lie
/// outside of its state directory.
fn exposed(draft: &Draft<'_>, home: Option<&Path>) -> Vec<PathBuf> {
    let own: &[&str] = match draft.spec.agent {
        AgentKind::Claude => &[".config/anthropic"],
        AgentKind::Codex | AgentKind::Gemini => &[".agents"],
        AgentKind::Rehearsal => &[],
    };
    let own = home.into_iter().flat_map(|home| own.iter().map(|name| home.join(name)));
    let ignored = draft.setup.workspace.git.excludes_file();
    draft.setup.host.expose.iter().cloned().chain(own).chain(ignored).collect()
}

/// The caches for package managers: those of the policy, or under one that only looks its own for each run. Without a shell there is
/// nothing that would use them.
fn caches(draft: &Draft<'_>, home: Option<&Path>) -> Option<Caches> {
    let LaunchSetup { host, inherited, pass_on, .. } = draft.setup;
    let preset = draft.spec.policy.preset;
    let directory = match preset {
        Preset::Workspace => host.caches.as_ref().map(|caches| caches.join(preset.name())),
        Preset::Observe => None,
        Preset::Off | Preset::Restricted | Preset::Sealed => return None,
    };
    let cargo_home = inherited.get("CARGO_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cargo_home = cargo_home.or_else(|| home.map(|home| home.join(".cargo")));
    let is_passed_on = |name: &str| pass_on.contains(name) && inherited.contains_key(name);
    Some(Caches::new(directory, cargo_home.as_deref(), is_passed_on))
}

/// The part of a call that a policy has no place for.
fn asked_by(spec: &CallSpec, error: &PolicyError) -> &'static str {
    match error {
        PolicyError::Host(_) => "network",
        PolicyError::HiddenWorkspace { folder, .. }
        | PolicyError::TooMuch { folder }
        | PolicyError::AboveOwnFiles { folder, .. }
            if *folder == spec.cwd =>
        {
            "cwd"
        }
        PolicyError::HiddenWorkspace { .. }
        | PolicyError::TooMuch { .. }
        | PolicyError::AboveOwnFiles { .. } => "add_dirs",
    }
}

/// What gemini would obey in a workspace. It has no flag against that, so it does not see it.
fn distrusted(draft: &Draft<'_>, ground: &PolicyContext) -> Vec<PathBuf> {
    if draft.spec.agent != AgentKind::Gemini || draft.spec.settings != SettingsChoice::AgentDefault {
        return Vec::new();
    }
    let above = draft.setup.workspace.directories.iter().filter(|dir| !ground.workspaces.contains(dir));
    let names = ground
        .workspaces
        .iter()
        .chain(above)
        .flat_map(|folder| [".gemini", ".env"].map(|name| folder.join(name)));
    names.filter(|path| !ground.state.iter().any(|state| state.directory.starts_with(path))).collect()
}

/// Returns the network of the policy. Named hosts are those of the task; those of the agent itself are added. An agent that
/// asks a model cannot work with none, not even with a model on this machine: the namespace has a loopback of its own.
fn network(draft: &Draft<'_>) -> Result<Network, LaunchError> {
    let agent = draft.spec.agent;
    match &draft.spec.policy.network {
        Network::Full => Ok(Network::Full),
        Network::None if agent == AgentKind::Rehearsal => Ok(Network::None),
        Network::None => Err(LaunchError::NoNetwork { agent }),
        Network::Hosts(hosts) => {
            let own = own_hosts(agent, &draft.plan.env);
            let own = own.iter().filter(|host| !hosts.contains(host));
            Ok(Network::Hosts(hosts.iter().chain(own).cloned().collect()))
        }
    }
}

/// Variables that name files which an agent cannot do without: certificates, and a login.
const NAMED_FILES: &[&str] = &[
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "CODEX_CA_CERTIFICATE",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// What the agent must see, wherever it is: its private files, the programs of its servers, and what its variables name.
fn visible(draft: &Draft<'_>) -> Vec<PathBuf> {
    let named = NAMED_FILES.iter().filter_map(|name| draft.plan.env.get(*name)).map(PathBuf::from);
    // What is hidden lies in the home or is ours, and naming it as a server must not bring it to light.
    let dark = draft.plan.env.get("HOME").map(PathBuf::from).into_iter();
    let dark: Vec<PathBuf> = dark.chain(draft.setup.host.state.iter().cloned()).collect();
    let servers = draft.spec.mcp_servers.iter().map(|server| PathBuf::from(&server.command));
    let servers = servers.filter(|path| !dark.iter().any(|dark| path.starts_with(dark)));
    let given = named.chain(servers).filter(|path| path.is_absolute());
    std::iter::once(draft.setup.private_folder.clone()).chain(given).collect()
}

/// Keeps git from running commands that the configuration of a repository names, unless the workspace is trusted: agents ask git about a
/// workspace before they do anything. Variables win over the configuration.
fn quiet_git(draft: &mut Draft<'_>) {
    let is_trusted = matches!(&draft.spec.settings, SettingsChoice::Only(sources) if sources.contains(&SettingSource::Project));
    if is_trusted {
        return;
    }
    let settings = [("core.fsmonitor", "false"), ("core.hooksPath", "/dev/null")];
    draft.variable("GIT_CONFIG_COUNT", settings.len().to_string());
    for (number, (key, value)) in settings.into_iter().enumerate() {
        draft.variable(&format!("GIT_CONFIG_KEY_{number}"), key);
        draft.variable(&format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    // `npm install` would fail where one of these sets hooks up: the configuration of git is read-only.
    for (variable, value) in [("HUSKY", "0"), ("LEFTHOOK", "0"), ("SKIP_INSTALL_SIMPLE_GIT_HOOKS", "1")] {
        draft.variable(variable, value);
    }
}

/// The folder of this policy alone, where the call wants one.
pub(super) fn private_state(
    agent: AgentKind,
    policy: &CallPolicy,
    setup: &LaunchSetup,
) -> Result<Option<PathBuf>, LaunchError> {
    if !policy.private_state || agent == AgentKind::Rehearsal {
        return Ok(None);
    }
    let base = setup.host.private_state.as_ref().ok_or(LaunchError::NoPrivateState)?;
    Ok(Some(base.join(format!("{agent}-{}", policy.preset))))
}
