//! Applies the policy of a call, with the agent's own directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{
    AgentKind, Caches, CallPolicy, CallSpec, McpServer, Mode, Network, PolicyContext, PolicyError, Preset,
    SafeguardName, SettingSource, SettingsChoice, ToolChoice,
};

use super::error::NO_SHELL;
use super::{Draft, GIT_CONFIG, LaunchError, gemini, path_text};
use crate::hosts::required_hosts;
use crate::state::StateDirectory;
use crate::{AgentProfiles, LaunchRules, LaunchSetup};

/// Returns the call within its policy.
pub(super) fn within_policy(spec: &CallSpec, setup: &LaunchSetup) -> Result<CallSpec, LaunchError> {
    let mut spec = spec.within(&setup.host.ceiling).into_owned();
    spec.policy.preset = spec.requested_preset();
    // A sandboxed workspace is untrusted: its hooks, servers and variables would run before any tool, with access to the agent's
    // key. A call that trusts it lists the sources. Agents without a flag for this have their settings hidden, see `untrusted_paths`.
    if !spec.policy.is_off()
        && spec.settings == SettingsChoice::AgentDefault
        && setup.profile.workspace_settings.is_empty()
    {
        spec.settings = SettingsChoice::Only(vec![SettingSource::User]);
    }
    if spec.policy.preset.has_shell() || has_no_builtin_tools(&spec) {
        return Ok(spec);
    }
    without_shell(spec, setup)
}

/// Returns whether the call disables all built-in tools and lists each tool of its servers.
fn has_no_builtin_tools(spec: &CallSpec) -> bool {
    let by_servers = |tools: &[String]| tools.iter().all(|tool| tool.starts_with("mcp__"));
    matches!(spec.agent, AgentKind::Claude | AgentKind::Rehearsal)
        && spec.agent_name.is_none()
        && spec.available_tools.as_ref().is_some_and(Vec::is_empty)
        && spec.settings == SettingsChoice::Only(Vec::new())
        && matches!(&spec.tools, ToolChoice::Only(tools) if by_servers(tools))
}

/// Restricts a call to file tools on the workspaces.
fn without_shell(spec: CallSpec, setup: &LaunchSetup) -> Result<CallSpec, LaunchError> {
    if !matches!(spec.tools, ToolChoice::Full | ToolChoice::None) || spec.available_tools.is_some() {
        return Err(LaunchError::Contradiction { one: "policy without a shell", other: "tools" });
    }
    if spec.agent_name.is_some() {
        return Err(LaunchError::Contradiction { one: "policy without a shell", other: "agent_name" });
    }
    match spec.agent {
        // Its tools depend on the model and always include a shell. The tools of other agents cannot be chosen.
        AgentKind::Codex | AgentKind::Profiled(_) => {
            Err(LaunchError::Unsupported { agent: spec.agent, option: NO_SHELL })
        }
        AgentKind::Gemini if setup.workspace.has_settings => {
            Err(LaunchError::WorkspaceSettings { agent: spec.agent, directory: spec.cwd.join(".gemini") })
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

/// Adds the policy to the plan, and configures the agent for it.
pub(super) fn confine(draft: &mut Draft<'_>) -> Result<(), LaunchError> {
    let policy = &draft.spec.policy;
    if policy.is_off() {
        return Ok(());
    }
    let setup = draft.setup;
    let private = private_state(policy, setup)?;
    let states = setup.profile.states.iter().enumerate().filter_map(|(number, rule)| {
        let private = private.as_deref().filter(|_| number == 0);
        StateDirectory::find(rule, private, &setup.inherited)
    });
    let mut agent_states = Vec::new();
    for state in states {
        agent_states.push(state.profile(draft.spec, &draft.session)?);
        if let Some((name, value)) = &state.variable {
            draft.variable(name, path_text(value)?);
        }
    }
    let git_config = PathBuf::from(draft.private_file(GIT_CONFIG, draft.setup.workspace.git.to_config())?);
    let home = draft.plan.env.get("HOME").map(PathBuf::from);
    let foreign = home.iter().flat_map(|home| foreign_states().map(|name| home.join(name)));
    let host = &draft.setup.host;
    let added = draft.spec.add_dirs.iter().filter(|dir| **dir != draft.spec.cwd);
    let workspaces: Vec<PathBuf> = std::iter::once(&draft.spec.cwd).chain(added).cloned().collect();
    let hosted_program = (draft.plan.program != setup.program).then(|| setup.program.clone());
    let terminal_host = hosted_program.as_ref().and(host.terminal_host.as_ref());
    // The sandbox has private temporary directories, and these programs may be in one of the machine's. Inside of a workspace they
    // are visible anyway, and may be the subject of the task.
    let is_in_workspace =
        |program: &PathBuf| workspaces.iter().any(|directory| program.starts_with(directory));
    let own_programs =
        host.file_tools.iter().chain(terminal_host).filter(|program| !is_in_workspace(program));
    let checkout = draft.setup.checkout.iter();
    let borrowed = checkout.clone().flat_map(|checkout| &checkout.borrowed_objects);
    // A call in a subdirectory needs the repository around it.
    let around = checkout.clone().map(|checkout| &checkout.source.checkout);
    let around = around.filter(|directory| !workspaces.contains(directory));
    let context = PolicyContext {
        states: agent_states,
        foreign_state: foreign.collect(),
        own: host.state.clone(),
        guarded: host.guarded.clone(),
        checkouts: host.checkouts.clone(),
        // Another list of borrowed objects would be followed outside of the sandbox.
        fixed: checkout
            .clone()
            .map(|checkout| checkout.source.checkout.join(".git/objects/info/alternates"))
            .collect(),
        checkout: checkout.map(|checkout| checkout.source.clone()).next(),
        visible: visible(draft)
            .into_iter()
            .chain(own_programs.chain(borrowed).chain(around).cloned())
            .collect(),
        workspaces,
        // Its own sandbox is off inside of ours, so it has no other means for read-only mode.
        must_hold: match draft.spec.mode {
            Mode::Observe if relies_on_sandbox(draft.spec.agent) => vec![SafeguardName::Writes],
            Mode::Observe | Mode::Execute => Vec::new(),
        },
        proofs: host.proofs.clone(),
        // As root, claude skips its permission prompts only if this variable is set.
        env_if_held: match draft.spec.agent {
            AgentKind::Claude => BTreeMap::from([("IS_SANDBOX".to_owned(), "1".to_owned())]),
            _ => BTreeMap::new(),
        },
        caches: caches(draft, home.as_deref()),
        hosted_program,
        exposed: exposed(draft, home.as_deref()),
        programs: draft.setup.workspace.user_programs.clone(),
        settings_programs: draft.setup.workspace.settings_programs.clone(),
        // For programs that drop the variable.
        copies: home.iter().map(|home| (home.join(".gitconfig"), git_config.clone())).collect(),
        home,
    };
    let hide = policy.hide.iter().cloned().chain(untrusted_paths(draft, &context)).collect();
    let policy_here = CallPolicy { network: network(draft)?, hide, ..policy.clone() }.confine(&context);
    draft.plan.policy = policy_here
        .map_err(|error| LaunchError::Policy { option: requested_option(draft.spec, &error), error })?;
    // The sandbox has private temporary directories.
    draft.variable("TMPDIR", "/tmp");
    if draft.spec.agent == AgentKind::Claude {
        draft.variable("CLAUDE_CODE_TMPDIR", "/tmp");
    }
    let root = path_text(&draft.spec.cwd)?.to_owned();
    draft.variable("FILE_TOOLS_ROOT", root);
    disable_git_commands(draft);
    draft.variable("GIT_CONFIG_GLOBAL", path_text(&git_config)?);
    Ok(())
}

/// Returns whether only the sandbox makes an agent read-only.
fn relies_on_sandbox(agent: AgentKind) -> bool {
    matches!(agent, AgentKind::Codex | AgentKind::Profiled(_))
}

/// Returns the state directories of all built-in agents, below the home directory.
fn foreign_states() -> impl Iterator<Item = String> {
    let profiles = AgentProfiles::default();
    let states: Vec<String> =
        profiles.iter().flat_map(|profile| profile.states.iter().map(|state| state.path.clone())).collect();
    states.into_iter().chain([".claude.json".to_owned()])
}

/// Returns the readable paths of the home directory: those of the operator, and the user's skills and logins for this agent
/// outside of its state directory.
fn exposed(draft: &Draft<'_>, home: Option<&Path>) -> Vec<PathBuf> {
    let own = &draft.setup.profile.exposed;
    let own = home.into_iter().flat_map(|home| own.iter().map(|name| home.join(name)));
    let ignored = draft.setup.workspace.git.excludes_file();
    draft.setup.host.expose.iter().cloned().chain(own).chain(ignored).collect()
}

/// Returns the package-manager caches: shared by runs of the policy, or private to the run in a read-only policy. Without a shell
/// nothing uses them.
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

/// Returns the option of the call that conflicts with the policy.
fn requested_option(spec: &CallSpec, error: &PolicyError) -> &'static str {
    match error {
        PolicyError::Host(_) => "network",
        PolicyError::HiddenWorkspace { directory, .. }
        | PolicyError::TooMuch { directory, .. }
        | PolicyError::AboveOwnFiles { directory, .. }
            if *directory == spec.cwd =>
        {
            "cwd"
        }
        PolicyError::HiddenWorkspace { .. }
        | PolicyError::TooMuch { .. }
        | PolicyError::AboveOwnFiles { .. } => "add_dirs",
    }
}

/// Returns paths in a workspace that the agent would obey. No flag disables this, so they are hidden.
fn untrusted_paths(draft: &Draft<'_>, context: &PolicyContext) -> Vec<PathBuf> {
    let settings = &draft.setup.profile.workspace_settings;
    if draft.spec.settings != SettingsChoice::AgentDefault {
        return Vec::new();
    }
    let above = draft.setup.workspace.directories.iter().filter(|dir| !context.workspaces.contains(dir));
    let names = context
        .workspaces
        .iter()
        .chain(above)
        .flat_map(|directory| settings.iter().map(|name| directory.join(name)));
    names.filter(|path| !context.states.iter().any(|state| state.directory.starts_with(path))).collect()
}

/// Returns the network of the policy. The agent's own hosts are added to listed hosts. An agent cannot work without network, even
/// with a local model: the namespace has its own loopback.
fn network(draft: &Draft<'_>) -> Result<Network, LaunchError> {
    let agent = draft.spec.agent;
    match &draft.spec.policy.network {
        Network::Full => Ok(Network::Full),
        Network::None if agent == AgentKind::Rehearsal || is_command(draft) => Ok(Network::None),
        Network::None => Err(LaunchError::NoNetwork { agent }),
        Network::Hosts(_) if needs_loopback(draft) => Err(LaunchError::NoHostList { agent }),
        Network::Hosts(hosts) => {
            let own = required_hosts(&draft.setup.profile, &draft.plan.env);
            let own = own.iter().filter(|host| !hosts.contains(host));
            Ok(Network::Hosts(hosts.iter().chain(own).cloned().collect()))
        }
    }
}

/// Returns whether the agent is a command without a protocol, which may need no model.
fn is_command(draft: &Draft<'_>) -> bool {
    matches!(draft.setup.profile.launch, LaunchRules::Plain(_))
}

/// Returns whether the agent connects to a server of its own on loopback, which a list of hosts does not cover.
fn needs_loopback(draft: &Draft<'_>) -> bool {
    matches!(&draft.setup.profile.launch, LaunchRules::Acp(rules) if rules.needs_loopback)
}

/// Variables that point to files an agent needs: certificates and logins.
const NAMED_FILES: &[&str] = &[
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "CODEX_CA_CERTIFICATE",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// Returns paths that must be visible: private files, programs of the servers, and files that variables point to.
fn visible(draft: &Draft<'_>) -> Vec<PathBuf> {
    let named = NAMED_FILES.iter().filter_map(|name| draft.plan.env.get(*name)).map(PathBuf::from);
    // A server command must not expose a hidden path of the home directory or of Switchboard.
    let hidden = draft.plan.env.get("HOME").map(PathBuf::from).into_iter();
    let hidden: Vec<PathBuf> = hidden.chain(draft.setup.host.state.iter().cloned()).collect();
    let servers = draft.spec.mcp_servers.iter().map(|server| PathBuf::from(&server.command));
    let servers = servers.filter(|path| !hidden.iter().any(|hidden| path.starts_with(hidden)));
    let given = named.chain(servers).filter(|path| path.is_absolute());
    std::iter::once(draft.setup.private_directory.clone()).chain(given).collect()
}

/// Prevents git from running commands of an untrusted repository's configuration: agents run git in a workspace before anything
/// else. Variables override the configuration.
fn disable_git_commands(draft: &mut Draft<'_>) {
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
    // `npm install` would fail if one of these installs hooks: git's configuration is read-only.
    for (variable, value) in [("HUSKY", "0"), ("LEFTHOOK", "0"), ("SKIP_INSTALL_SIMPLE_GIT_HOOKS", "1")] {
        draft.variable(variable, value);
    }
}

/// Returns the private state directory of the policy, if the call requests one.
pub(super) fn private_state(
    policy: &CallPolicy,
    setup: &LaunchSetup,
) -> Result<Option<PathBuf>, LaunchError> {
    let agent = setup.profile.agent;
    let states = &setup.profile.states;
    if !policy.private_state || states.is_empty() {
        return Ok(None);
    }
    if states.len() > 1 || states[0].variable.is_none() {
        return Err(LaunchError::Unsupported { agent, option: "private_state" });
    }
    let base = setup.host.private_state.as_ref().ok_or(LaunchError::NoPrivateState)?;
    Ok(Some(base.join(format!("{agent}-{}", policy.preset))))
}
