//! The agents of the configuration: the operator's own, and changes to the built-in ones.

use std::collections::BTreeMap;

use agents::{
    AcpRules, AgentFeature, AgentProfile, AgentProfiles, AnswerRule, KeptRule, LaunchRules, PlainRules,
    ProfileSupport, StateRule,
};
use model::{AgentKind, BadName, HostRule};

use super::error::{ConfigError, Source};
use super::settings::EffectiveSettings;
use super::value::{self, Value};

/// The section of the agents.
const SECTION: &str = "agents";
/// The keys that only a command without a protocol has.
const COMMAND_KEYS: [&str; 4] = ["answer", "model", "resume", "session"];

/// The values that a command can contain.
const PLACEHOLDERS: [&str; 3] = ["{prompt}", "{prompt_file}", "{cwd}"];

/// Returns the built-in agents with the changes of the configuration, and the operator's own.
pub fn read_profiles(settings: &EffectiveSettings) -> Result<AgentProfiles, ConfigError> {
    let built_in = AgentProfiles::default();
    let tables = settings.open_tables("agents.");
    let tables = tables.into_iter().map(|(name, keys)| AgentTable { settings, name, keys });
    let profiles = tables.map(|table| table.profile(&built_in)).collect::<Result<Vec<_>, _>>()?;
    let profiles = built_in.with(profiles);
    for section in ["limits.per_agent", "programs"] {
        check_names(settings, section, &profiles)?;
    }
    Ok(profiles)
}

/// Rejects a key that is named for an agent that does not exist.
fn check_names(
    settings: &EffectiveSettings,
    section: &str,
    profiles: &AgentProfiles,
) -> Result<(), ConfigError> {
    for (word, _) in settings.open_keys(section) {
        let agent = word.parse::<AgentKind>().ok();
        if agent.is_none_or(|agent| profiles.get(agent).is_none()) {
            let path: Vec<&str> = section.split('.').chain([word]).collect();
            let similar = profiles.find_similar(word).map(str::to_owned);
            let (place, key) = (settings.source_at(&path), path.join("."));
            return Err(ConfigError::UnknownAgent { place, key, similar });
        }
    }
    Ok(())
}

/// The keys of one agent.
struct AgentTable<'a> {
    settings: &'a EffectiveSettings,
    name: &'a str,
    keys: BTreeMap<&'static str, &'a Value>,
}

impl AgentTable<'_> {
    fn profile(&self, built_in: &AgentProfiles) -> Result<AgentProfile, ConfigError> {
        let first = self.keys.keys().next().copied().unwrap_or_default();
        let agent: AgentKind = self.name.parse().map_err(|error: BadName| ConfigError::BadValue {
            place: self.place(first),
            key: SECTION.to_owned(),
            expected: format!(
                "a table of agents whose names are {}",
                error.hint().trim_start_matches("use ")
            ),
            found: format!("`{}`", self.name),
        })?;
        let known = built_in.get(agent).map(|profile| (**profile).clone());
        let mut profile = match (self.texts("acp"), self.texts("command"), known) {
            (Some(_), Some(_), _) => return Err(self.misplaced("command", "cannot be set beside `acp`")),
            (Some(acp), None, known) => self.acp(agent, known, acp)?,
            (None, Some(command), known) => self.plain(agent, known, command)?,
            (None, None, Some(known)) => known,
            (None, None, None) => {
                return Err(
                    self.misplaced(first, "needs `acp` or `command` beside it, which start the agent")
                );
            }
        };
        if !matches!(profile.launch, LaunchRules::Plain(_))
            && let Some(key) = COMMAND_KEYS.into_iter().find(|key| self.keys.contains_key(key))
        {
            return Err(self.misplaced(key, "is only for an agent with `command`"));
        }
        if let Some(Value::Flag(terminals)) = self.keys.get("terminals") {
            let LaunchRules::Acp(rules) = &mut profile.launch else {
                return Err(self.misplaced("terminals", "is only for an agent that speaks ACP"));
            };
            rules.needs_terminals = *terminals;
        }
        self.add_options(&mut profile)?;
        Ok(profile)
    }

    /// Adds the options that every agent can have.
    fn add_options(&self, profile: &mut AgentProfile) -> Result<(), ConfigError> {
        profile.description = self.text("description").or(profile.description.take());
        if let Some(arguments) = self.texts("version") {
            profile.version_args = arguments;
        }
        for name in self.texts("env").unwrap_or_default() {
            let is_name =
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if !is_name {
                return Err(self.bad("env", "a list of names of variables", quote(&name)));
            }
            if let Some(reason) = agents::forbidden_variable(&name) {
                return Err(self.bad("env", format!("without `{name}` ({reason})"), "a list with it"));
            }
            profile.variables.names.push(name);
        }
        for host in self.texts("hosts").unwrap_or_default() {
            if host.parse::<HostRule>().is_err() {
                return Err(self.bad("hosts", "a list of hosts such as `api.example.com`", quote(&host)));
            }
            profile.hosts.push(host);
        }
        let states = self.texts("state_dirs").unwrap_or_default().into_iter();
        profile.states.extend(states.map(|path| StateRule {
            path,
            variable: None,
            kept: KeptRule::All,
            discarded: Vec::new(),
        }));
        Ok(())
    }

    fn acp(
        &self,
        agent: AgentKind,
        known: Option<AgentProfile>,
        command: Vec<String>,
    ) -> Result<AgentProfile, ConfigError> {
        self.reject_native(agent, "acp")?;
        let (program, args) = self.split("acp", command)?;
        if let Some(mut known) = known
            && let LaunchRules::Acp(rules) = &mut known.launch
        {
            rules.args = args;
            return Ok(AgentProfile { program, ..known });
        }
        let rules = AcpRules { args, ..AcpRules::default() };
        Ok(AgentProfile {
            support: ProfileSupport::Custom,
            install: remedy(agent, "acp"),
            version_args: Vec::new(),
            // It tells in its handshake which of them it has.
            features: AgentFeature::NEGOTIATED.into(),
            ..AgentProfile::acp(agent, agent.name(), &program, rules)
        })
    }

    fn plain(
        &self,
        agent: AgentKind,
        known: Option<AgentProfile>,
        command: Vec<String>,
    ) -> Result<AgentProfile, ConfigError> {
        self.reject_native(agent, "command")?;
        let (program, args) = self.split("command", command)?;
        if PLACEHOLDERS.iter().any(|placeholder| program.contains(placeholder)) {
            return Err(self.misplaced("command", "must start with a program, not with a placeholder"));
        }
        let answer = self.text("answer").map(|text| {
            let expected = "`stdout`, `last-line` or a field such as `json:/result/text`";
            parse_answer(&text).ok_or_else(|| self.bad("answer", expected, quote(&text)))
        });
        let session = self.text("session").map(|text| {
            let expected = "a field such as `json:/session_id`";
            parse_pointer(&text).ok_or_else(|| self.bad("session", expected, quote(&text)))
        });
        if let Some(unknown) = args.iter().find_map(|arg| unknown_placeholder(arg, &PLACEHOLDERS)) {
            let problem =
                format!("has the unknown placeholder `{unknown}`; known: {}", PLACEHOLDERS.join(", "));
            return Err(self.misplaced("command", problem));
        }
        let rules = PlainRules {
            args,
            model: self.template("model", "{model}")?,
            resume: self.template("resume", "{session}")?,
            answer: answer.transpose()?.unwrap_or_default(),
            session: session.transpose()?,
        };
        if !rules.resume.is_empty() && rules.session.is_none() {
            return Err(
                self.misplaced("resume", "needs `session` beside it, the field with the id of a session")
            );
        }
        let features = [
            (!rules.model.is_empty()).then_some(AgentFeature::Model),
            (!rules.resume.is_empty()).then_some(AgentFeature::Resume),
        ];
        let base =
            known.unwrap_or_else(|| AgentProfile::acp(agent, agent.name(), &program, AcpRules::default()));
        Ok(AgentProfile {
            program,
            support: ProfileSupport::Custom,
            install: remedy(agent, "command"),
            version_args: Vec::new(),
            features: features.into_iter().flatten().collect(),
            launch: LaunchRules::Plain(rules),
            ..base
        })
    }

    /// Rejects another protocol for an agent with code of its own.
    fn reject_native(&self, agent: AgentKind, key: &'static str) -> Result<(), ConfigError> {
        if AgentKind::NATIVE.contains(&agent) {
            let problem = format!("cannot be set: {agent} is built in, so choose another name for yours");
            return Err(self.misplaced(key, problem));
        }
        Ok(())
    }

    /// Splits a command into its program and the arguments.
    fn split(&self, key: &'static str, command: Vec<String>) -> Result<(String, Vec<String>), ConfigError> {
        let mut parts = command.into_iter();
        let expected = "a list of a program, by its name in `PATH` or its absolute path, and its arguments";
        let Some(program) = parts.next().filter(|program| !program.trim().is_empty()) else {
            return Err(self.bad(key, expected, "an empty list"));
        };
        let path = value::parse_path(&program, self.settings.user_home.as_deref());
        match path.and_then(|path| path.into_os_string().into_string().ok()) {
            Some(path) => Ok((path, parts.collect())),
            None if program.contains('/') => Err(self.bad(key, expected, quote(&program))),
            None => Ok((program, parts.collect())),
        }
    }

    /// Returns arguments with a placeholder.
    fn template(&self, key: &'static str, placeholder: &str) -> Result<Vec<String>, ConfigError> {
        let Some(args) = self.texts(key) else { return Ok(Vec::new()) };
        if args.iter().any(|arg| arg.contains(placeholder)) {
            return Ok(args);
        }
        Err(self.bad(key, format!("a list of arguments with `{placeholder}`"), "a list without it"))
    }

    fn text(&self, key: &str) -> Option<String> {
        if let Some(Value::Text(text)) = self.keys.get(key) { Some(text.clone()) } else { None }
    }

    fn texts(&self, key: &str) -> Option<Vec<String>> {
        if let Some(Value::Texts(texts)) = self.keys.get(key) { Some(texts.clone()) } else { None }
    }

    fn bad(&self, key: &str, expected: impl Into<String>, found: impl Into<String>) -> ConfigError {
        ConfigError::BadValue {
            place: self.place(key),
            key: format!("{SECTION}.{}.{key}", self.name),
            expected: expected.into(),
            found: found.into(),
        }
    }

    fn misplaced(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::Misplaced {
            place: self.place(key),
            key: format!("{SECTION}.{}.{key}", self.name),
            problem: problem.into(),
        }
    }

    fn place(&self, key: &str) -> Source {
        self.settings.source_at(&[SECTION, self.name, key])
    }
}

/// Returns the first word in braces that is no placeholder, such as a misspelled one.
fn unknown_placeholder<'a>(argument: &'a str, known: &[&str]) -> Option<&'a str> {
    let starts = argument.match_indices('{').map(|(start, _)| &argument[start..]);
    let words = starts.filter_map(|text| Some(&text[..=text.find('}')?]));
    let is_word = |text: &str| {
        text.len() > 2
            && text[1..text.len() - 1].bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    words.into_iter().find(|word| is_word(word) && !known.contains(word))
}

fn quote(text: &str) -> String {
    format!("`{}`", text.escape_debug())
}

fn remedy(agent: AgentKind, key: &str) -> String {
    format!("install it, or correct `agents.{agent}.{key}` in the configuration")
}

fn parse_answer(text: &str) -> Option<AnswerRule> {
    match text {
        "stdout" => Some(AnswerRule::Stdout),
        "last-line" => Some(AnswerRule::LastLine),
        text => parse_pointer(text).map(AnswerRule::Json),
    }
}

/// Parses `json:/path/to/field`.
fn parse_pointer(text: &str) -> Option<String> {
    text.strip_prefix("json:").filter(|pointer| pointer.starts_with('/')).map(str::to_owned)
}
