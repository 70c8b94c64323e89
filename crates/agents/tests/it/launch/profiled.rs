//! Agents without code of their own: those that speak the Agent Client Protocol, and plain commands.

use agents::{
    AcpRules, AcpSession, AcpSpec, AgentFeature, AgentProfile, AnswerRule, DriverSpec, HostConfig,
    LaunchRules, PermissionRule, PlainRules, PlainSpec, ProfileSupport,
};
use model::{CallPolicy, InputMode, Preset, ProfileName, SettingSource, SettingsChoice};
use std::path::Path;

use super::*;

const MINE: AgentKind = AgentKind::Profiled(ProfileName::built_in("mine"));

fn acp() -> AgentProfile {
    let rules = AcpRules {
        args: vec!["acp".to_owned()],
        unattended_mode: Some("yolo".to_owned()),
        ..AcpRules::default()
    };
    AgentProfile { features: AgentFeature::ALL.into(), ..AgentProfile::acp(MINE, "Mine", "mine", rules) }
}

fn plain(args: &[&str]) -> AgentProfile {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let rules = PlainRules {
        args: texts(args),
        model: texts(&["--model", "{model}"]),
        resume: texts(&["--resume={session}"]),
        ..PlainRules::default()
    };
    AgentProfile { launch: LaunchRules::Plain(rules), ..acp() }
}

fn launch_as(profile: AgentProfile, spec: &CallSpec) -> Result<Launch, LaunchError> {
    agents::launch(spec, &LaunchSetup { profile: Arc::new(profile), ..setup() })
}

fn driver(launch: &Launch) -> DriverSpec {
    serde_json::from_slice(&launch.plan.driver).unwrap()
}

fn conversation(spec: &CallSpec) -> (Launch, AcpSpec) {
    let launch = launch_as(acp(), spec).unwrap_or_else(|error| panic!("{error}"));
    let DriverSpec::Acp(acp) = driver(&launch) else { panic!("{launch:?}") };
    (launch, acp)
}

#[test]
fn acp_agent_starts_with_the_first_request() {
    let (launch, acp) = conversation(&spec(MINE));
    assert_eq!(launch.plan.args, ["acp"]);
    assert_eq!(launch.plan.input_mode, InputMode::Open);
    let first: serde_json::Value = serde_json::from_slice(&launch.plan.input).unwrap();
    assert_eq!((&first["id"], &first["method"]), (&1.into(), &"initialize".into()));
    assert_eq!((acp.cwd.as_str(), acp.prompt.as_str(), acp.mode.as_deref()), ("/w", "hi", Some("yolo")));
    assert_eq!((acp.session, acp.permissions), (AcpSession::New, PermissionRule::Allow));
}

fn with_terminals() -> AgentProfile {
    let rules = AcpRules { args: vec!["acp".to_owned()], needs_terminals: true, ..AcpRules::default() };
    AgentProfile { launch: LaunchRules::Acp(rules), ..acp() }
}

fn hosted(spec: &CallSpec) -> Launch {
    let host = HostConfig { terminal_host: Some("/opt/terminal-host".into()), ..HostConfig::default() };
    let setup = LaunchSetup { profile: Arc::new(with_terminals()), host, ..setup() };
    agents::launch(spec, &setup).unwrap()
}

#[test]
fn agent_without_a_shell_is_started_by_terminal_host() {
    let launch = hosted(&spec(MINE));
    assert_eq!(launch.plan.program, Path::new("/opt/terminal-host"));
    assert_eq!(launch.plan.args, ["/bin/agent", "acp"]);
    let first: serde_json::Value = serde_json::from_slice(&launch.plan.input).unwrap();
    assert_eq!(first["params"]["clientCapabilities"]["terminal"], true);
}

#[test]
fn sandbox_shows_terminal_host_and_the_agent() {
    let call = CallSpec { policy: CallPolicy::from(Preset::Workspace), ..spec(MINE) };
    let model::Policy::Confined(confinement) = hosted(&call).plan.policy else { panic!("not confined") };
    assert_eq!(confinement.hosted_program.as_deref(), Some(Path::new("/bin/agent")));
    let mut roots = confinement.roots.iter().map(|root| root.path.as_path());
    assert!(roots.any(|root| root == Path::new("/opt/terminal-host")), "{:?}", confinement.roots);
}

#[test]
fn missing_terminal_host_is_an_error_with_a_hint() {
    let error = launch_as(with_terminals(), &spec(MINE)).unwrap_err();
    assert_eq!(error.to_string(), "`terminal-host` is not installed, and mine needs it to run commands");
    assert!(error.hint().contains("cargo install"), "{}", error.hint());
}

#[test]
fn variables_for_an_untrusted_workspace_need_a_sandbox() {
    let LaunchRules::Acp(rules) = acp().launch else { panic!("no rules") };
    let set_untrusted = [("NO_PROJECT".to_owned(), "1".to_owned())].into();
    let profile = AgentProfile { launch: LaunchRules::Acp(AcpRules { set_untrusted, ..rules }), ..acp() };
    let sandboxed = CallSpec { policy: CallPolicy::default(), ..spec(MINE) };
    let trusted = SettingsChoice::Only(vec![SettingSource::User, SettingSource::Project]);
    for (call, is_set) in
        [(spec(MINE), false), (sandboxed.clone(), true), (CallSpec { settings: trusted, ..sandboxed }, false)]
    {
        let launch = launch_as(profile.clone(), &call).unwrap();
        assert_eq!(launch.plan.env.contains_key("NO_PROJECT"), is_set, "{call:?}");
    }
}

#[test]
fn options_of_a_call_reach_the_conversation() {
    let call = CallSpec {
        model: Some("large".into()),
        effort: Some("HIGH".parse().unwrap()),
        session: SessionChoice::Resume("ses_1".parse().unwrap()),
        add_dirs: vec!["/docs".into()],
        prompt: "/help".into(),
        output_schema: Some("{}".into()),
        ..spec(MINE)
    };
    let (launch, acp) = conversation(&call);
    assert_eq!((acp.model.as_deref(), acp.effort.as_deref()), (Some("large"), Some("high")));
    assert_eq!(acp.session, AcpSession::Resume("ses_1".to_owned()));
    assert_eq!(launch.session, ExpectedSession::Resumed("ses_1".parse().unwrap()));
    assert_eq!(acp.add_dirs, ["/docs"]);
    assert_eq!(acp.prompt, "\n/help", "a slash at the start would be a command");
}

#[test]
fn agent_without_schemas_is_asked_in_the_prompt() {
    let mut profile = acp();
    profile.features.remove(&AgentFeature::Schema);
    let call = CallSpec { output_schema: Some(r#"{"type":"object"}"#.into()), ..spec(MINE) };
    let launch = launch_as(profile, &call).unwrap();
    let DriverSpec::Acp(acp) = driver(&launch) else { panic!() };
    assert!(
        acp.prompt.starts_with("hi\n\n") && acp.prompt.ends_with(r#"{"type":"object"}"#),
        "{}",
        acp.prompt
    );
}

#[test]
fn secrets_of_servers_stay_out_of_the_conversation() {
    let (launch, acp) = conversation(&CallSpec { mcp_servers: vec![server("a")], ..spec(MINE) });
    assert!(!String::from_utf8_lossy(&launch.plan.driver).contains("sekret"));
    assert_eq!(launch.plan.private_files["mcp-a.env"], b"TOKEN='sekret'\n");
    assert_eq!(acp.mcp_servers[0].command, "/bin/sh");
    let args: Vec<&str> = acp.mcp_servers[0].args.iter().map(String::as_str).collect();
    assert_eq!(args[2..], ["/spool/private/mcp-a.env", "/bin/srv", "--root", "a \"b\""]);
}

#[test]
fn server_gets_its_variables_through_the_shell() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = server("a");
    server.command = "/bin/sh".into();
    server.args = vec!["-c".into(), "printf %s \"$TOKEN\"".into()];
    server.env.insert("TOKEN".into(), "it's $HOME `id`\n'".into());
    let setup =
        LaunchSetup { profile: Arc::new(acp()), private_directory: directory.path().to_owned(), ..setup() };
    let launch = agents::launch(&CallSpec { mcp_servers: vec![server], ..spec(MINE) }, &setup).unwrap();
    for (name, bytes) in &launch.plan.private_files {
        std::fs::write(directory.path().join(name), bytes).unwrap();
    }
    let DriverSpec::Acp(acp) = driver(&launch) else { panic!() };
    let server = &acp.mcp_servers[0];
    #[expect(clippy::disallowed_methods, reason = "a test may")]
    let output = std::process::Command::new(&server.command).args(&server.args).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "it's $HOME `id`\n'", "{output:?}");
}

#[test]
fn option_without_its_feature_is_rejected_by_name() {
    let bare = || AgentProfile { features: [].into(), support: ProfileSupport::Custom, ..acp() };
    for (call, option) in [
        (CallSpec { model: Some("m".into()), ..spec(MINE) }, "`model`"),
        (CallSpec { effort: Some("high".parse().unwrap()), ..spec(MINE) }, "`effort`"),
        (CallSpec { session: SessionChoice::Resume("s".parse().unwrap()), ..spec(MINE) }, "`session`"),
        (
            CallSpec { session: SessionChoice::Fork("s".parse().unwrap()), ..spec(MINE) },
            "`fork_session_id` (`--fork`)",
        ),
        (CallSpec { mcp_servers: vec![server("a")], ..spec(MINE) }, "`mcp_servers` (`--mcp-config`)"),
        (CallSpec { add_dirs: vec!["/d".into()], ..spec(MINE) }, "`add_dirs` (`--add-dir`)"),
        (CallSpec { max_turns: Some(1), ..spec(MINE) }, "`max_turns` (`--max-turns`)"),
        (CallSpec { max_budget_usd: Some(1.0), ..spec(MINE) }, "`max_budget_usd`"),
        (CallSpec { tools: ToolChoice::None, ..spec(MINE) }, "`tools`"),
        (CallSpec { system_prompt: Some("x".into()), ..spec(MINE) }, "`system_prompt`"),
    ] {
        let error = launch_as(bare(), &call).unwrap_err().to_string();
        assert_eq!(error, format!("mine does not support {option}"));
    }
}

#[test]
fn agent_that_was_not_measured_negotiates_its_options() {
    let unknown = AgentProfile { features: [].into(), support: ProfileSupport::Untested, ..acp() };
    let session = SessionChoice::Resume("s".parse().unwrap());
    let call = CallSpec { model: Some("m".into()), session, ..spec(MINE) };
    assert!(launch_as(unknown.clone(), &call).is_ok());
    assert!(launch_as(unknown, &CallSpec { max_turns: Some(1), ..call }).is_err());
}

#[test]
fn slash_of_a_prompt_starts_no_command() {
    let LaunchRules::Acp(rules) = acp().launch else { panic!("no rules") };
    let rules = AcpRules { trims_prompts: true, ..rules };
    let profile = AgentProfile { launch: LaunchRules::Acp(rules), ..acp() };
    for (prompt, expected) in
        [(" /init", "\u{200b} /init"), ("/init", "\u{200b}\n/init"), ("a /init", "a /init")]
    {
        let launch = launch_as(profile.clone(), &CallSpec { prompt: prompt.into(), ..spec(MINE) }).unwrap();
        let DriverSpec::Acp(acp) = driver(&launch) else { panic!() };
        assert_eq!(acp.prompt, expected);
    }
}

#[test]
fn agent_with_a_server_of_its_own_rejects_a_host_list() {
    let hosts = model::Network::Hosts(vec!["github.com".parse().unwrap()]);
    let policy = CallPolicy { network: hosts, ..CallPolicy::default() };
    let call = CallSpec { policy, ..spec(MINE) };
    assert!(launch_as(acp(), &call).is_ok());
    let LaunchRules::Acp(rules) = acp().launch else { panic!("no rules") };
    let rules = AcpRules { needs_loopback: true, ..rules };
    let error = launch_as(AgentProfile { launch: LaunchRules::Acp(rules), ..acp() }, &call).unwrap_err();
    assert!(error.to_string().contains("list of hosts"), "{error}");
}

#[test]
fn only_a_sandbox_makes_a_profiled_agent_read_only() {
    let observe = CallSpec { mode: Mode::Observe, ..spec(MINE) };
    let error = launch_as(acp(), &observe).unwrap_err().to_string();
    assert!(error.contains("without a sandbox"), "{error}");
    let confined = CallSpec { policy: CallPolicy::from(Preset::Observe), ..observe };
    let launch = launch_as(acp(), &confined).unwrap();
    let DriverSpec::Acp(acp) = driver(&launch) else { panic!() };
    assert_eq!((acp.permissions, acp.mode), (PermissionRule::ReadOnly, None));
    let model::Policy::Confined(policy) = &launch.plan.policy else { panic!() };
    assert_eq!(policy.must_hold, [model::SafeguardName::Writes]);
}

#[test]
fn plain_command_gets_the_prompt_where_its_arguments_ask_for_it() {
    let call = spec(MINE);
    let by_stdin = launch_as(plain(&["run"]), &call).unwrap().plan;
    assert_eq!(
        (by_stdin.args.as_slice(), by_stdin.input.as_slice()),
        (["run".to_owned()].as_slice(), &b"hi"[..])
    );
    let by_argument = launch_as(plain(&["--message={prompt}", "{cwd}"]), &call).unwrap().plan;
    assert_eq!((by_argument.args.join(" "), by_argument.input.len()), ("--message=hi /w".to_owned(), 0));
    let by_file = launch_as(plain(&["--message-file", "{prompt_file}"]), &call).unwrap().plan;
    assert_eq!(by_file.args, ["--message-file", "/spool/private/prompt.md"]);
    assert_eq!(by_file.private_files["prompt.md"], b"hi");
    assert_eq!(by_file.input_mode, InputMode::Complete);
}

#[test]
fn plain_command_gets_model_and_session() {
    let call = CallSpec {
        model: Some("m".into()),
        session: SessionChoice::Resume("s-1".parse().unwrap()),
        ..spec(MINE)
    };
    let launch = launch_as(plain(&["run"]), &call).unwrap();
    assert_eq!(launch.plan.args, ["run", "--model", "m", "--resume=s-1"]);
    let expected = DriverSpec::Plain(PlainSpec { answer: AnswerRule::Stdout, session: None });
    assert_eq!(driver(&launch), expected);
    let dash = CallSpec { prompt: "--yolo".into(), ..spec(MINE) };
    let error = launch_as(plain(&["{prompt}"]), &dash).unwrap_err().to_string();
    assert!(error.starts_with("the value of `{prompt}` starts with `-`"), "{error}");
}
