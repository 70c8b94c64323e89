//! The value and the source of each key. Options override variables, variables override the file, and the file overrides the defaults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agents::{BadModelName, ModelTable};

use super::error::{ConfigError, Source};
use super::file;
use super::keys::{self, KEYS};
use super::value::Value;
use protocol::{ProcessEnvironment, SwitchboardHome};

/// A key of the table, and the user-defined part of an open key. Ordered like the table, with the keys of a section together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SettingName {
    /// The first key of the section if its name has the user-defined part, else the key itself.
    group: usize,
    pub word: Option<String>,
    pub index: usize,
}

impl SettingName {
    /// Creates a name. Model aliases are case-insensitive.
    pub fn new(index: usize, word: Option<&str>) -> Self {
        let models = KEYS[index].name.starts_with("models.");
        let word = word.map(|word| if models { word.to_lowercase() } else { word.to_owned() });
        let section = KEYS[index].section();
        let first = KEYS.iter().position(|key| section.contains('<') && key.section() == section);
        Self { group: first.unwrap_or(index), word, index }
    }

    /// Returns the section and the name within it, each quoted like in TOML.
    pub fn parts(&self) -> (String, String) {
        let word = |part| match &self.word {
            Some(word) if str::starts_with(part, '<') => keys::quote_part(word),
            _ => str::to_owned(part),
        };
        let mut parts: Vec<String> = KEYS[self.index].name.split('.').map(word).collect();
        let own = parts.pop().unwrap_or_default();
        (parts.join("."), own)
    }
}

/// A value and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveSetting {
    pub value: Value,
    pub source: Source,
}

/// A command-line option that sets a key.
#[derive(Debug, Clone)]
pub struct OptionOverride {
    /// The option.
    pub option: &'static str,
    /// The key.
    pub key: &'static str,
    /// The value.
    pub text: String,
}

/// Every key that has a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EffectiveSettings {
    /// Is true if the configuration file exists.
    pub has_file: bool,
    /// The directory that `~` stands for.
    pub user_home: Option<PathBuf>,
    pub all: BTreeMap<SettingName, EffectiveSetting>,
}

impl EffectiveSettings {
    /// Reads all sources in the order of their precedence.
    pub fn read(
        home: Option<&SwitchboardHome>,
        environment: &ProcessEnvironment,
        overrides: &[OptionOverride],
    ) -> Result<Self, ConfigError> {
        let user_home = environment.directory("HOME");
        let mut settings = Self { user_home: user_home.clone(), ..Self::defaults() };
        if let Some(path) = home.map(SwitchboardHome::config_file) {
            let text = file::read(path)?;
            settings.has_file = text.is_some();
            settings.all.extend(file::parse(path, &text.unwrap_or_default(), user_home.as_deref())?);
        }
        for (index, key) in KEYS.iter().enumerate() {
            let variable = key.variable().and_then(|name| Some((environment.get(&name)?, name)));
            if let Some((value, name)) = variable {
                let text = value.to_string_lossy();
                settings.set_text(index, &text, Source::Variable { name }, user_home.as_deref())?;
            }
        }
        for OptionOverride { option, key, text } in overrides {
            let path: Vec<&str> = key.split('.').collect();
            if let Some((index, _)) = keys::find(&path) {
                settings.set_text(index, text, Source::Option { name: option }, user_home.as_deref())?;
            }
        }
        settings.validate()?;
        Ok(settings)
    }

    /// Checks the constraints that concern several keys or exceed the type of a key.
    fn validate(&self) -> Result<(), ConfigError> {
        for section in ["models.claude", "models.codex", "models.gemini"] {
            let name = format!("{section}.default");
            self.models(section)
                .resolve(None)
                .map_err(|bad| self.bad_value(&name, BadModelName::EXPECTED.to_owned(), &bad.asked))?;
        }
        super::agents::read_profiles(self)?;
        let is_name = |name: &&String| {
            !name.is_empty() && !name.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control())
        };
        let Some(Value::Texts(names)) = self.get("pass_env") else { return Ok(()) };
        for name in names {
            if !is_name(&name) {
                return Err(self.bad_value("pass_env", "a list of variable names".to_owned(), name));
            }
            if let Some(reason) = agents::forbidden_variable(name) {
                let (place, variable) = (self.source("pass_env"), name.clone());
                return Err(ConfigError::ForbiddenVariable { place, variable, reason });
            }
        }
        Ok(())
    }

    /// Returns the source of a key's value.
    fn source(&self, name: &str) -> Source {
        self.source_at(&name.split('.').collect::<Vec<_>>())
    }

    /// Returns the source of the value at a path.
    pub fn source_at(&self, path: &[&str]) -> Source {
        let setting = keys::find(path).and_then(|(index, word)| self.all.get(&SettingName::new(index, word)));
        setting.map_or(Source::BuiltIn, |setting| setting.source.clone())
    }

    fn bad_value(&self, name: &str, expected: String, found: &str) -> ConfigError {
        let place = self.source(name);
        let found = format!("`{}`", found.escape_debug());
        ConfigError::BadValue { place, key: name.to_owned(), expected, found }
    }

    /// Returns the default model and the aliases of an agent.
    pub fn models(&self, section: &str) -> ModelTable {
        let mut table = ModelTable::default();
        for (word, value) in self.open_keys(section) {
            match value {
                Value::Text(full) if word == "default" => table.default = Some(full.clone()),
                Value::Text(full) => drop(table.aliases.insert(word.to_owned(), full.clone())),
                _ => {}
            }
        }
        table
    }

    fn defaults() -> Self {
        let mut settings = Self::default();
        for (index, key) in KEYS.iter().enumerate() {
            if let Some(value) = key.default.value().filter(|_| !key.is_open()) {
                let setting = EffectiveSetting { value, source: Source::BuiltIn };
                settings.all.insert(SettingName::new(index, None), setting);
            }
        }
        settings
    }

    fn set_text(
        &mut self,
        index: usize,
        text: &str,
        source: Source,
        user_home: Option<&Path>,
    ) -> Result<(), ConfigError> {
        let key = &KEYS[index];
        let value = key.kind.parse_text(text, user_home).map_err(|found| ConfigError::BadValue {
            place: source.clone(),
            key: key.name.to_owned(),
            expected: key.kind.to_string(),
            found,
        })?;
        self.all.insert(SettingName::new(index, None), EffectiveSetting { value, source });
        Ok(())
    }

    /// Returns every setting by name, as TOML; `None` if a command-line option set it.
    pub fn to_toml_values(&self) -> BTreeMap<String, Option<String>> {
        let text = |(name, setting): (&SettingName, &EffectiveSetting)| {
            let (section, own) = name.parts();
            let key = if section.is_empty() { own } else { format!("{section}.{own}") };
            let is_option = matches!(setting.source, Source::Option { .. });
            (key, (!is_option).then(|| setting.value.to_string()))
        };
        self.all.iter().map(text).collect()
    }

    /// Returns the value of a key.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let path: Vec<&str> = name.split('.').collect();
        let (index, word) = keys::find(&path)?;
        self.all.get(&SettingName::new(index, word)).map(|setting| &setting.value)
    }

    /// Returns the user-defined keys of an open table with their values.
    pub fn open_keys<'s>(&'s self, section: &'s str) -> impl Iterator<Item = (&'s str, &'s Value)> {
        self.all.iter().filter_map(move |(name, setting)| {
            let word = name.word.as_deref()?;
            (KEYS[name.index].section() == section).then_some((word, &setting.value))
        })
    }

    /// Returns the tables with a user-defined name in a section, each with its keys.
    pub fn open_tables(&self, section: &str) -> BTreeMap<&str, BTreeMap<&'static str, &Value>> {
        let mut tables: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for (name, setting) in &self.all {
            let key = KEYS[name.index].name.strip_prefix(section).and_then(|rest| rest.rsplit_once(">."));
            if let (Some((_, own)), Some(word)) = (key, name.word.as_deref()) {
                tables.entry(word).or_default().insert(own, &setting.value);
            }
        }
        tables
    }
}
