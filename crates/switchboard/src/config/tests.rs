//! The keys of the configuration and the precedence of their sources.

use std::fs;
use std::path::Path;

use ::agents::{AgentProfile, AnswerRule, LaunchRules, ProfileSupport};

use super::keys::{ConfigKey, KEYS, KeyDefault};
use super::value::ValueKind;
use super::*;

fn home(root: &Path) -> SwitchboardHome {
    SwitchboardHome::from_environment(&[("SWITCHBOARD_HOME", root.to_str().unwrap())].into()).unwrap()
}

fn read(text: &str, environment: &ProcessEnvironment) -> Result<EffectiveSettings, ConfigError> {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("config.toml"), text).unwrap();
    EffectiveSettings::read(Some(&home(root.path())), environment, &[])
}

fn config(text: &str) -> Config {
    Config::from_settings(&read(text, &ProcessEnvironment::default()).unwrap())
}

fn refusal(text: &str) -> ConfigError {
    read(text, &ProcessEnvironment::default()).unwrap_err()
}

/// A value that is not the default, as TOML and as the text of a variable.
fn another(key: &ConfigKey) -> (String, String) {
    let text = match key.kind {
        _ if key.name == "agents.<agent>.answer" => "last-line",
        _ if key.name == "agents.<agent>.session" => "json:/other",
        _ if key.name == "agents.<agent>.model" => return (r#"["{model}"]"#.into(), "{model}".into()),
        _ if key.name == "agents.<agent>.resume" => return (r#"["{session}"]"#.into(), "{session}".into()),
        ValueKind::Text => "sonnet-9",
        ValueKind::Path => "/opt/thing",
        ValueKind::Address => "127.0.0.1:7878",
        ValueKind::Choice(words) => words
            .iter()
            .find(|word| !matches!(key.default, KeyDefault::Text(usual) if usual == **word))
            .unwrap(),
        ValueKind::Flag => {
            let flag = !matches!(key.default, KeyDefault::Flag(true));
            return (flag.to_string(), flag.to_string());
        }
        ValueKind::Time { .. } => "7m",
        ValueKind::Count { .. } => {
            let number = if key.name == "log.max_bytes" {
                "20000"
            } else if matches!(key.name, "sandbox.memory_bytes" | "sandbox.cache_bytes") {
                "20000000"
            } else if key.name == "limits.max_response_chars" {
                "2000"
            } else {
                "2"
            };
            return (number.into(), number.into());
        }
        ValueKind::Texts => return (r#"["one", "two"]"#.into(), "one, two".into()),
        ValueKind::Paths => return (r#"["/opt/one", "/opt/two"]"#.into(), "/opt/one, /opt/two".into()),
    };
    (format!("\"{text}\""), text.into())
}

#[test]
fn every_key_in_the_file_is_applied() {
    let before = config("");
    for key in KEYS {
        let own = key.name.replace("<alias>", "mine").replace("<name>", "mine").replace("<path>", "\"/srv\"");
        let own = own.replace("<agent>", "qwen");
        // Keys that are read only where another key says so.
        let with = match key.name {
            "sandbox.hosts" => "sandbox.network = \"hosts\"\n",
            "agents.<agent>.session" => "agents.qwen.command = [\"x\"]\n",
            "agents.<agent>.answer" | "agents.<agent>.model" | "agents.<agent>.resume" => {
                "agents.qwen.command = [\"x\"]\nagents.qwen.session = \"json:/id\"\n"
            }
            _ => "",
        };
        let before = if with.is_empty() { before.clone() } else { config(with) };
        let after = config(&format!("{with}{own} = {}", another(key).0));
        assert_ne!(before, after, "{} has no effect", key.name);
    }
}

#[test]
fn variable_and_file_set_the_same_value() {
    for key in KEYS {
        let Some(variable) = key.variable() else { continue };
        let (toml, text) = another(key);
        let by_variable = read("", &[(variable.as_str(), text.as_str())].into()).unwrap();
        assert_eq!(
            Config::from_settings(&by_variable),
            config(&format!("{} = {toml}", key.name)),
            "{variable}"
        );
    }
}

#[test]
fn option_overrides_variable_overrides_file() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("config.toml"), "[http]\naddress = \"127.0.0.1:1\"\n").unwrap();
    let home = home(root.path());
    let address = |environment: &ProcessEnvironment, overrides: &[OptionOverride]| {
        Config::read(Some(&home), environment, overrides).unwrap().http.address.unwrap().port()
    };
    let variable: ProcessEnvironment = [("SWITCHBOARD_HTTP_ADDRESS", "127.0.0.1:2")].into();
    let option = OptionOverride { option: "--http", key: "http.address", text: "127.0.0.1:3".into() };
    assert_eq!(address(&ProcessEnvironment::default(), &[]), 1);
    assert_eq!(address(&variable, &[]), 2);
    assert_eq!(address(&variable, &[option]), 3);
}

#[test]
fn unknown_key_error_names_line_and_nearest_key() {
    let error = refusal("store = \"sqlite:\"\n\n[limits]\nat_onec = 3\n");
    assert!(error.to_string().ends_with("config.toml line 4: unknown key `limits.at_onec`"), "{error}");
    assert!(error.hint().starts_with("did you mean `limits.at_once`?"), "{}", error.hint());
    let error = refusal("[limit]\nat_once = 3\n");
    assert!(error.to_string().ends_with("line 1: unknown key `limit`"), "{error}");
    assert!(refusal("[programs]\nclaud = \"/x\"").hint().contains("`claude`"));
    assert!(
        refusal("[cwd_aliases.shop]\nx = \"/y\"").to_string().contains("must be a path"),
        "a word is no table"
    );
}

#[test]
fn type_error_names_expected_and_found() {
    for (text, expected) in [
        (
            "\nlimits.at_once = \"four\"",
            "line 2: `limits.at_once` must be a number from 1 to 1000, not the string `four`",
        ),
        ("limits.at_once = 0", "line 1: `limits.at_once` must be a number from 1 to 1000, not `0`"),
        ("limits.at_once = -1", "not `-1`"),
        ("limits = 3", "`limits` must be a table, not a single value"),
        ("store = 3", "`store` must be a string, not the number `3`"),
        ("limits.wait = 50", "`limits.wait` must be a duration such as `\"90s\"`, not the number `50`"),
        ("limits.wait = \"off\"", "not `off`"),
        ("labels = [1]", "`labels` must be a list of strings, not the number `1`"),
        ("one_writer_per_directory = 1", "must be `true` or `false`, not the number `1`"),
        ("programs.claude = \"bin/claude\"", "must be a path that starts with `/` or `~/`, not `bin/claude`"),
        ("http.address = \"localhost\"", "must be an IP address with a port"),
        ("log.level = \"loud\"", "must be one of `\"error\"`"),
    ] {
        let error = refusal(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = read("", &[("SWITCHBOARD_LIMITS_AT_ONCE", "many")].into()).unwrap_err().to_string();
    assert_eq!(
        error,
        "variable SWITCHBOARD_LIMITS_AT_ONCE: `limits.at_once` must be a number from 1 to 1000, not `many`"
    );
}

#[test]
fn invalid_toml_error_names_line() {
    let error = refusal("store = \"sqlite:\"\nlabels = [\n");
    assert!(matches!(error, ConfigError::NotToml { .. }), "{error}");
    assert!(error.to_string().contains("config.toml line "), "{error}");
    assert!(matches!(refusal("store = \"a\"\nstore = \"b\"\n"), ConfigError::NotToml { line: 2, .. }));
}

#[test]
fn config_file_writable_by_others_is_rejected() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("config.toml");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let error =
        EffectiveSettings::read(Some(&home(root.path())), &ProcessEnvironment::default(), &[]).unwrap_err();
    assert!(matches!(error, ConfigError::NotYours { mode: 0o666, .. }), "{error}");
}

#[test]
fn forbidden_pass_env_variable_is_rejected() {
    let error = refusal("pass_env = [\"GH_TOKEN\", \"LD_PRELOAD\"]");
    assert!(matches!(error, ConfigError::ForbiddenVariable { .. }), "{error}");
    assert!(error.to_string().contains("must not contain `LD_PRELOAD`: it would run code"), "{error}");
    assert!(config("pass_env = [\"GH_TOKEN\"]").pass_env.contains("GH_TOKEN"));
}

#[test]
fn model_aliases_are_configurable() {
    let models =
        config("[models.claude]\nHaiku = \"claude-haiku-9\"\ndefault = \"opus\"\nbest = \"claude-opus-9\"")
            .models;
    assert_eq!(
        models.for_agent(AgentKind::Claude).resolve(Some("haiku")).unwrap().as_deref(),
        Some("claude-haiku-9")
    );
    assert_eq!(
        models.for_agent(AgentKind::Claude).resolve(Some("best")).unwrap().as_deref(),
        Some("claude-opus-9")
    );
    assert_eq!(models.for_agent(AgentKind::Claude).default.as_deref(), Some("opus"));
    assert_eq!(
        models.for_agent(AgentKind::Claude).resolve(Some("sonnet")).unwrap().as_deref(),
        Some("sonnet")
    );
    assert_eq!(config("").models, ModelTables::default());
}

#[test]
fn paths_may_start_with_tilde() {
    let settings = read("[cwd_aliases]\nshop = \"~/shop\"", &[("HOME", "/home/ana")].into()).unwrap();
    assert_eq!(Config::from_settings(&settings).cwd_aliases["shop"], Path::new("/home/ana/shop"));
    assert!(
        refusal("[cwd_aliases]\nshop = \"~/shop\"").to_string().contains("must be a path"),
        "no HOME, no ~"
    );
}

#[test]
fn repositories_are_configured_by_path() {
    let text = "[repositories.\"~/my.shop\"]\nworktree = true\nworktree_setup = \"npm ci\"\n\
                [repositories]\n\"/srv/b/\".worktree_setup = \"make\"\n";
    let settings = read(text, &[("HOME", "/home/ana")].into()).unwrap();
    let options = |path: &str, worktree, setup: &str| RepositoryOptions {
        path: path.into(),
        worktree,
        worktree_setup: Some(setup.to_owned()),
    };
    assert_eq!(
        Config::from_settings(&settings).repositories,
        [options("/home/ana/my.shop", true, "npm ci"), options("/srv/b", false, "make")]
    );
}

#[test]
fn bad_repository_is_reported_with_its_line() {
    for (text, expected) in [
        (
            "\n[repositories.shop]\nworktree = true",
            "line 2: `repositories.<path>` must be a path that starts with `/` or `~/`, not `shop`",
        ),
        (
            "[repositories.\"/srv/a.b\"]\nworktre = true",
            "line 2: unknown key `repositories.\"/srv/a.b\".worktre`",
        ),
        (
            "[repositories.\"/srv/a\"]\nworktree = 1",
            "line 2: `repositories.\"/srv/a\".worktree` must be `true` or `false`, not the number `1`",
        ),
        ("repositories.\"/srv/a\" = true", "`repositories.\"/srv/a\"` must be a table, not a single value"),
        (
            "[repositories.\"/srv/a\"]\nworktree = true\n[repositories.\"/srv/a/\"]\nworktree = false",
            "line 4: `repositories.\"/srv/a/\".worktree` is set twice",
        ),
    ] {
        let error = refusal(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = refusal("[repositories.\"/srv/a.b\"]\nworktre = true");
    assert!(error.hint().starts_with("did you mean `repositories.<path>.worktree`?"), "{}", error.hint());
}

#[test]
fn per_agent_limit_is_capped_by_total() {
    let limits = config("[limits]\nat_once = 3\nper_agent.claude = 2\nper_agent.codex = 9").limits;
    let of = |agent| limits.per_agent[&agent];
    assert_eq!((of(AgentKind::Claude), of(AgentKind::Codex), of(AgentKind::Gemini)), (2, 3, 3));
}

#[test]
fn default_policy_is_workspace_best_effort_without_ceiling() {
    let SandboxConfig { policy, ceiling, expose, trust_workspaces, cache_bytes } = config("").sandbox;
    assert_eq!(cache_bytes, Some(calls::Settings::CACHE_BYTES));
    assert!(!trust_workspaces && expose.is_empty());
    assert_eq!(policy, CallPolicy::default());
    assert_eq!(policy.within(&ceiling), policy);
    assert!(CallPolicy::from(Preset::Off).within(&ceiling).is_off());
}

#[test]
fn whole_home_directory_cannot_be_exposed() {
    let environment: ProcessEnvironment = [("HOME", "/home/ana")].into();
    let exposed = |paths: &str| {
        let settings = read(&format!("[sandbox]\nexpose = [{paths}]"), &environment)?;
        Ok::<_, ConfigError>(Config::from_settings(&settings).sandbox.expose)
    };
    assert_eq!(exposed("\"~/.m2\", \"/srv/tools\"").unwrap(), ["/home/ana/.m2", "/srv/tools"].map(Path::new));
    for refused in ["/", "/home", "/home/ana", "~/", "~/..", "~/a/../..", "relative", ""] {
        assert!(exposed(&format!("\"{refused}\"")).is_err(), "{refused}");
    }
}

fn profile(text: &str, agent: &str) -> std::sync::Arc<AgentProfile> {
    std::sync::Arc::clone(config(text).profiles.get(agent.parse().unwrap()).unwrap())
}

#[test]
fn own_agent_needs_three_lines() {
    let mine = profile("[agents.mine]\nacp = [\"my-agent\", \"acp\"]\nterminals = true\n", "mine");
    assert_eq!((mine.program.as_str(), mine.support), ("my-agent", ProfileSupport::Custom));
    let LaunchRules::Acp(rules) = &mine.launch else { panic!("{mine:?}") };
    assert_eq!((&rules.args[..], rules.needs_terminals), (&["acp".to_owned()][..], true));
    let text = "[agents.aider]\ncommand = [\"~/bin/aider\", \"--message-file\", \"{prompt_file}\"]\nanswer = \"last-line\"\n\
                model = [\"--model\", \"{model}\"]\ndefault_model = \"gpt-9\"\nenv = [\"OPENAI_API_KEY\"]\nhosts = [\"api.openai.com\"]\n\
                state_dirs = [\"~/.aider\"]\ndescription = \"small edits\"\n";
    let environment = [("HOME", "/home/ana")].into();
    let config = Config::from_settings(&read(text, &environment).unwrap());
    let agent = "aider".parse().unwrap();
    let aider = config.profiles.get(agent).unwrap();
    assert_eq!(
        (aider.program.as_str(), aider.description.as_deref()),
        ("/home/ana/bin/aider", Some("small edits"))
    );
    let LaunchRules::Plain(rules) = &aider.launch else { panic!("{aider:?}") };
    assert_eq!(rules.answer, AnswerRule::LastLine);
    assert_eq!(
        (&aider.variables.names[..], &aider.hosts[..]),
        (&["OPENAI_API_KEY".to_owned()][..], &["api.openai.com".to_owned()][..])
    );
    assert_eq!(aider.states[0].path, "/home/ana/.aider");
    assert_eq!(config.models.for_agent(agent).default.as_deref(), Some("gpt-9"));
}

#[test]
fn built_in_agent_can_be_described_and_moved() {
    let text = "[agents.claude]\ndescription = \"hard problems\"\n[agents.opencode]\nacp = [\"/opt/oc\", \"acp\", \"-v\"]\n\
                [programs]\nqwen = \"/opt/qwen\"\n[limits.per_agent]\nkimi = 1\n";
    assert_eq!(profile(text, "claude").description.as_deref(), Some("hard problems"));
    let opencode = profile(text, "opencode");
    let LaunchRules::Acp(rules) = &opencode.launch else { panic!() };
    assert_eq!(
        (opencode.program.as_str(), rules.args.as_slice()),
        ("/opt/oc", ["acp".to_owned(), "-v".to_owned()].as_slice())
    );
    assert_ne!(opencode.support, ProfileSupport::Custom);
    let config = config(text);
    assert_eq!(config.programs[&"qwen".parse().unwrap()], Path::new("/opt/qwen"));
    assert_eq!(config.limits.per_agent[&"kimi".parse().unwrap()], 1);
}

#[test]
fn invalid_agent_is_reported_with_its_line() {
    for (text, line, message) in [
        (
            "[agents.a]\nacp = [\"x\"]\ncommand = [\"x\"]\n",
            3,
            "`agents.a.command` cannot be set beside `acp`",
        ),
        ("[agents.a]\nacp = []\n", 2, "`agents.a.acp` must be a list of a program"),
        ("[agents.a]\nacp = [\"./x\"]\n", 2, "`agents.a.acp` must be a list of a program"),
        ("[agents.a]\ndescription = \"x\"\n", 2, "`agents.a.description` needs `acp` or `command` beside it"),
        (
            "[agents.a]\nacp = [\"x\"]\nanswer = \"stdout\"\n",
            3,
            "`agents.a.answer` is only for an agent with `command`",
        ),
        (
            "[agents.a]\ncommand = [\"x\"]\nanswer = \"json:x\"\n",
            3,
            "`agents.a.answer` must be `stdout`, `last-line`",
        ),
        (
            "[agents.a]\ncommand = [\"x\"]\nmodel = [\"-m\"]\n",
            3,
            "`agents.a.model` must be a list of arguments with `{model}`",
        ),
        (
            "[agents.a]\ncommand = [\"x\"]\nresume = [\"{session}\"]\n",
            3,
            "`agents.a.resume` needs `session` beside it",
        ),
        (
            "[agents.a]\nacp = [\"x\"]\nenv = [\"LD_PRELOAD\"]\n",
            3,
            "`agents.a.env` must be without `LD_PRELOAD`",
        ),
        (
            "[agents.a]\nacp = [\"x\"]\nhosts = [\"https://x\"]\n",
            3,
            "`agents.a.hosts` must be a list of hosts",
        ),
        (
            "[agents.a]\ncommand = [\"x\"]\nterminals = true\n",
            3,
            "`agents.a.terminals` is only for an agent that speaks ACP",
        ),
        (
            "[agents.a]\ncommand = [\"x\", \"{promt}\"]\n",
            2,
            "`agents.a.command` has the unknown placeholder `{promt}`; known: {prompt}, {prompt_file}, {cwd}",
        ),
        ("[agents.codex]\ncommand = [\"x\"]\n", 2, "`agents.codex.command` cannot be set: codex is built in"),
        (
            "[agents.\"My Agent\"]\nacp = [\"x\"]\n",
            2,
            "`agents` must be a table of agents whose names are a letter",
        ),
        ("[programs]\ncluade = \"/x\"\n", 2, "`programs.cluade` names no known agent"),
    ] {
        let error = refusal(text);
        let printed = error.to_string();
        assert!(printed.contains(&format!("line {line}: ")) && printed.contains(message), "{printed}");
    }
    assert!(refusal("[programs]\ncluade = \"/x\"\n").hint().contains("`claude`"));
}
