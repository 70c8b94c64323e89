//! Effects of a policy on a launch.

use agents::{HostConfig, LaunchError, LaunchSetup};
use model::{
    AgentKind, CallPolicy, CallSpec, Confinement, Mode, Network, Policy, Preset, Requirement, RootAccess,
    RunPlan, SettingsChoice, ToolChoice,
};

use super::{launch, setup, spec};

fn at_home() -> LaunchSetup {
    let mut setup = setup();
    setup.inherited.insert("HOME".to_owned(), "/home/ana".to_owned());
    let host = HostConfig {
        state: vec!["/state".into()],
        proofs: Some("/state/proofs".into()),
        private_state: Some("/state/agents".into()),
        caches: Some("/state/caches".into()),
        file_tools: Some("/bin/file-tools".into()),
        terminal_host: Some("/bin/terminal-host".into()),
        ceiling: CallPolicy::off(),
        expose: vec!["/home/ana/exposed".into()],
        guarded: vec!["/state".into()],
        checkouts: Some("/state/checkouts".into()),
    };
    LaunchSetup { host, ..setup }
}

fn with(agent: AgentKind, preset: Preset) -> CallSpec {
    CallSpec { policy: preset.into(), ..spec(agent) }
}

fn plan(spec: &CallSpec, setup: &LaunchSetup) -> RunPlan {
    launch(spec, setup).unwrap().plan
}

fn confinement(plan: &RunPlan) -> &Confinement {
    match &plan.policy {
        Policy::Confined(confinement) => confinement,
        Policy::Off => panic!("not confined: {plan:?}"),
    }
}

#[test]
fn call_without_policy_is_unchanged() {
    for agent in AgentKind::NATIVE {
        let plan = plan(&spec(agent), &at_home());
        assert_eq!(plan.policy, Policy::Off);
        assert!(
            !plan.env.contains_key("FILE_TOOLS_ROOT") && !plan.env.contains_key("GIT_CONFIG_COUNT"),
            "{agent}"
        );
    }
}

#[test]
fn git_hooks_run_only_in_trusted_workspace() {
    for agent in AgentKind::NATIVE {
        let spec = CallSpec { policy: Preset::Workspace.into(), ..spec(agent) };
        let hooks = |spec: &CallSpec| plan(spec, &at_home()).env.contains_key("GIT_CONFIG_COUNT");
        assert!(hooks(&spec), "{agent}");
        assert!(!hooks(&spec.with_trusted_workspace()), "{agent}");
    }
}

#[test]
fn agent_writes_only_workspace_and_own_state() {
    let cases = [
        (AgentKind::Claude, "/home/ana/.claude", "CLAUDE_CONFIG_DIR", "/home/ana/.codex"),
        (AgentKind::Codex, "/home/ana/.codex", "CODEX_HOME", "/home/ana/.claude"),
        (AgentKind::Gemini, "/home/ana/.gemini", "GEMINI_CLI_HOME", "/home/ana/.codex"),
    ];
    for (agent, state, variable, foreign) in cases {
        let plan = plan(&with(agent, Preset::Workspace), &at_home());
        let policy = confinement(&plan);
        let may = |path: &str, access| {
            policy.roots.iter().any(|root| root.path == std::path::Path::new(path) && root.access == access)
        };
        assert!(may("/w", RootAccess::Write), "{agent}: {policy:?}");
        assert!(may("/spool/private", RootAccess::Read), "{agent}");
        assert!(
            policy.hidden.contains(&foreign.into()) && policy.hidden.contains(&"/state".into()),
            "{agent}"
        );
        assert!(!policy.hidden.contains(&state.into()), "{agent}");
        assert!(plan.env[variable].starts_with("/home/ana"), "{agent}");
        assert_eq!(plan.env["TMPDIR"], "/tmp");
        let kept = policy.states.first().unwrap();
        assert_eq!((kept.directory.as_path(), kept.variable.as_deref()), (state.as_ref(), Some(variable)));
    }
}

#[test]
fn package_caches_depend_on_policy() {
    let mut setup = at_home();
    setup.inherited.insert("GOPATH".to_owned(), "/srv/go".to_owned());
    setup.pass_on.insert("GOPATH".to_owned());
    let caches = |preset| confinement(&plan(&with(AgentKind::Claude, preset), &setup)).caches.clone();
    let shared = caches(Preset::Workspace).unwrap();
    assert_eq!(shared.directory, Some("/state/caches/workspace".into()));
    assert_eq!(shared.cargo_config, Some("/home/ana/.cargo/config.toml".into()));
    assert!(shared.variables.contains_key("CARGO_HOME") && !shared.variables.contains_key("GOPATH"));
    let workspace = plan(&with(AgentKind::Claude, Preset::Workspace), &setup);
    assert_eq!(workspace.env["GOPATH"], "/srv/go");
    let root = confinement(&workspace).roots.iter().find(|root| root.path.starts_with("/state/caches"));
    assert_eq!(root.unwrap().access, RootAccess::Create);
    assert_eq!(caches(Preset::Observe).unwrap().directory, None);
    assert_eq!(caches(Preset::Restricted), None);
}

#[test]
fn sandboxed_agent_ignores_workspace_settings() {
    let args = |spec: &CallSpec| plan(spec, &at_home()).args.join(" ");
    let claude = with(AgentKind::Claude, Preset::Workspace);
    assert!(args(&claude).contains("--setting-sources=user --strict-mcp-config"), "{}", args(&claude));
    let trusting = CallSpec { settings: SettingsChoice::Only(vec![model::SettingSource::Project]), ..claude };
    assert!(args(&trusting).contains("--setting-sources=project"));
    let codex = args(&with(AgentKind::Codex, Preset::Workspace));
    assert!(
        codex.contains("trust_level=\"untrusted\"") && codex.contains("--sandbox=danger-full-access"),
        "{codex}"
    );
}

#[test]
fn observe_mode_never_writes() {
    let spec = CallSpec { mode: Mode::Observe, ..with(AgentKind::Codex, Preset::Workspace) };
    let plan = plan(&spec, &at_home());
    assert_eq!(confinement(&plan).preset, Preset::Observe);
    assert!(!confinement(&plan).roots.iter().any(|root| root.access == RootAccess::Write));
}

#[test]
fn call_cannot_exceed_ceiling() {
    let mut setup = at_home();
    setup.host.ceiling = Preset::Observe.into();
    for preset in Preset::ALL {
        let asked = CallSpec {
            policy: CallPolicy { requirement: Requirement::BestEffort, ..preset.into() },
            ..spec(AgentKind::Claude)
        };
        let plan = plan(&asked, &setup);
        assert!(!confinement(&plan).preset.writes(), "{preset}");
        assert_eq!(confinement(&plan).requirement, Requirement::Require, "{preset}");
    }
}

#[test]
fn agent_without_shell_has_only_file_tools() {
    let claude = plan(&with(AgentKind::Claude, Preset::Restricted), &at_home());
    let words = claude.args.join(" ");
    assert!(words.contains("--tools= ") || words.ends_with("--tools="), "{words}");
    assert!(
        words.contains("--allowedTools=mcp__files__*") && words.contains("--setting-sources= "),
        "{words}"
    );
    assert!(!words.contains("dangerously"), "{words}");
    let servers = String::from_utf8(claude.private_files["mcp.json"].clone()).unwrap();
    assert!(
        servers.contains("/bin/file-tools") && servers.contains(r#""FILE_TOOLS_ROOT":"/w""#),
        "{servers}"
    );

    let gemini = plan(&with(AgentKind::Gemini, Preset::Sealed), &at_home());
    let rules = String::from_utf8(gemini.private_files["policy.toml"].clone()).unwrap();
    assert!(
        rules.contains("read_file") && !rules.contains("write_file") && !rules.contains("shell"),
        "{rules}"
    );

    let refused = |spec: CallSpec, setup: &LaunchSetup| launch(&spec, setup).unwrap_err();
    let error = refused(with(AgentKind::Codex, Preset::Restricted), &at_home());
    assert!(matches!(error, LaunchError::Unsupported { .. }), "{error}");
    let only = ToolChoice::Only(vec!["Bash".into()]);
    let error = refused(CallSpec { tools: only, ..with(AgentKind::Claude, Preset::Restricted) }, &at_home());
    assert!(matches!(error, LaunchError::Contradiction { .. }), "{error}");
    let mut without = at_home();
    without.host.file_tools = None;
    let error = refused(with(AgentKind::Claude, Preset::Restricted), &without);
    assert!(matches!(error, LaunchError::NoFileTools), "{error}");
}

#[test]
fn policy_can_have_private_state() {
    let private = |agent| CallSpec {
        policy: CallPolicy { private_state: true, ..Preset::Workspace.into() },
        ..spec(agent)
    };
    let claude = plan(&private(AgentKind::Claude), &at_home());
    assert_eq!(claude.env["CLAUDE_CONFIG_DIR"], "/state/agents/claude-workspace");
    // The user's own state is then hidden like that of other agents.
    assert!(confinement(&claude).hidden.contains(&"/home/ana/.claude".into()));
    let mut without = at_home();
    without.host.private_state = None;
    let error = launch(&private(AgentKind::Codex), &without).unwrap_err();
    assert!(matches!(error, LaunchError::NoPrivateState), "{error}");
}

#[test]
fn private_state_contains_only_the_login() {
    let directory = tempfile::tempdir().unwrap();
    let (home, base) = (directory.path().join("home"), directory.path().join("agents"));
    std::fs::create_dir_all(home.join(".claude")).unwrap();
    for name in [".credentials.json", "settings.json"] {
        std::fs::write(home.join(".claude").join(name), name).unwrap();
    }
    let mut setup = at_home();
    setup.inherited.insert("HOME".to_owned(), home.to_str().unwrap().to_owned());
    setup.host.private_state = Some(base.clone());
    let policy = CallPolicy { private_state: true, ..Preset::Observe.into() };
    agents::seed_private_state(&CallSpec { policy, ..spec(AgentKind::Claude) }, &setup).unwrap();
    let made = base.join("claude-observe");
    let names: Vec<_> = std::fs::read_dir(&made).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".credentials.json"]);
    let rights = std::os::unix::fs::PermissionsExt::mode(
        &made.join(".credentials.json").metadata().unwrap().permissions(),
    );
    assert_eq!(rights & 0o777, 0o600);
}

#[test]
fn call_with_only_server_tools_needs_no_file_tools() {
    let tools = ["mcp__files__read".to_owned()].to_vec();
    let own = CallSpec {
        tools: ToolChoice::Only(tools.clone()),
        available_tools: Some(Vec::new()),
        settings: SettingsChoice::Only(Vec::new()),
        ..with(AgentKind::Claude, Preset::Restricted)
    };
    let plan = plan(&own, &at_home());
    assert_eq!(confinement(&plan).preset, Preset::Restricted);
    let words = plan.args.join(" ");
    assert!(words.contains("--allowedTools=mcp__files__read") && !words.contains("mcp__files__*"), "{words}");
    for not_enough in [
        CallSpec { available_tools: Some(vec!["Bash".to_owned()]), ..own.clone() },
        CallSpec { available_tools: None, ..own.clone() },
        CallSpec { settings: SettingsChoice::AgentDefault, ..own.clone() },
        CallSpec { tools: ToolChoice::Only(vec!["Bash".to_owned()]), ..own.clone() },
    ] {
        let error = launch(&not_enough, &at_home()).unwrap_err();
        assert!(matches!(error, LaunchError::Contradiction { .. }), "{error:?}");
    }
}

#[test]
fn duplicate_workspace_is_listed_once() {
    let twice = CallSpec { add_dirs: vec!["/w".into()], ..with(AgentKind::Claude, Preset::Workspace) };
    let plan = plan(&twice, &at_home());
    let of = |path: &str| {
        confinement(&plan).roots.iter().filter(|root| root.path == std::path::Path::new(path)).count()
    };
    assert_eq!((of("/w"), of("/bin/file-tools")), (1, 1));
}

#[test]
fn listed_hosts_include_the_vendor() {
    let network = |network: Network, agent| {
        let policy = CallPolicy { network, ..Preset::Workspace.into() };
        confinement(&plan(&CallSpec { policy, ..spec(agent) }, &at_home())).network.clone()
    };
    let Network::Hosts(hosts) = network(Network::Hosts(vec!["github.com".into()]), AgentKind::Claude) else {
        panic!("no hosts")
    };
    for host in ["github.com", "api.anthropic.com"] {
        assert!(hosts.iter().any(|own| own == host), "{hosts:?}");
    }
    assert!(!hosts.iter().any(|host| host.contains("openai")), "{hosts:?}");
    assert_eq!(network(Network::None, AgentKind::Rehearsal), Network::None);
    for agent in [AgentKind::Claude, AgentKind::Codex, AgentKind::Gemini] {
        let policy = CallPolicy { network: Network::None, ..Preset::Workspace.into() };
        let error = launch(&CallSpec { policy, ..spec(agent) }, &at_home()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{agent} cannot work with network `none`: it must reach its vendor's API")
        );
        assert!(error.hint().contains("--network"), "{}", error.hint());
    }
}

#[test]
fn untrusted_gemini_settings_are_hidden() {
    let hidden = |agent| confinement(&plan(&with(agent, Preset::Workspace), &at_home())).hidden.clone();
    for name in ["/w/.gemini", "/w/.env"] {
        assert!(hidden(AgentKind::Gemini).contains(&name.into()), "{name}");
        assert!(!hidden(AgentKind::Claude).contains(&name.into()), "{name}");
    }
}

#[test]
fn trusted_workspace_hides_nothing_from_gemini() {
    let trusted = with(AgentKind::Gemini, Preset::Workspace).with_trusted_workspace();
    let plan = plan(&trusted, &at_home());
    assert!(!confinement(&plan).hidden.contains(&"/w/.gemini".into()), "{plan:?}");
}

#[test]
fn unenforceable_tool_timeout_is_rejected() {
    let tool_timeout = Some(std::time::Duration::from_secs(3));
    for agent in [AgentKind::Codex, AgentKind::Gemini] {
        let error = launch(&CallSpec { tool_timeout, ..spec(agent) }, &at_home()).unwrap_err();
        assert!(matches!(error, LaunchError::Unsupported { option: "tool_timeout", .. }), "{error}");
    }
}

#[test]
fn passed_variables_must_not_run_code() {
    let mut setup = at_home();
    setup.inherited.insert("GH_TOKEN".to_owned(), "t".to_owned());
    setup.pass_on.insert("GH_TOKEN".to_owned());
    for agent in AgentKind::NATIVE {
        assert_eq!(plan(&with(agent, Preset::Workspace), &setup).env["GH_TOKEN"], "t", "{agent}");
    }
    setup.pass_on.insert("LD_PRELOAD".to_owned());
    let error = launch(&spec(AgentKind::Claude), &setup).unwrap_err();
    assert!(
        error.to_string().starts_with("variable `LD_PRELOAD` cannot be passed on: it would run"),
        "{error}"
    );
}
