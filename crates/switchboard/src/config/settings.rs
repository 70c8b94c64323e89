//! What was said for each key, and by whom: built in, then the file, then variables, then options; the later word counts.

use std::collections::BTreeMap;
use std::path::Path;

use agents::{BadModelName, ModelTable};

use super::error::{ConfigError, Source};
use super::file;
use super::keys::{self, KEYS};
use super::value::Value;
use protocol::{ProcessEnvironment, SwitchboardHome};

/// A key of the table, and the user's own word where it ends with one. In the order of the table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub index: usize,
    pub word: Option<String>,
}

impl Name {
    /// Aliases of models count in any case.
    pub fn new(index: usize, word: Option<&str>) -> Self {
        let models = KEYS[index].name.starts_with("models.");
        let word = word.map(|word| if models { word.to_lowercase() } else { word.to_owned() });
        Self { index, word }
    }

    /// Its section, and its own name in there.
    pub fn parts(&self) -> (&'static str, &str) {
        let key = &KEYS[self.index];
        let own = key.name.rsplit('.').next().unwrap_or_default();
        (key.section(), self.word.as_deref().unwrap_or(own))
    }
}

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub value: Value,
    pub source: Source,
}

/// An option of the command line that sets a key.
#[derive(Debug, Clone)]
pub struct Given {
    /// The option, as it is typed.
    pub option: &'static str,
    /// The key that it sets.
    pub key: &'static str,
    /// To what.
    pub text: String,
}

/// Every key that has a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Whether there is a file.
    pub has_file: bool,
    pub all: BTreeMap<Name, Setting>,
}

impl Settings {
    /// Puts the layers on top of each other.
    pub fn read(
        home: Option<&SwitchboardHome>,
        environment: &ProcessEnvironment,
        given: &[Given],
    ) -> Result<Self, ConfigError> {
        let user = environment.directory("HOME");
        let mut settings = Self::built_in();
        if let Some(path) = home.map(SwitchboardHome::config_file) {
            let text = file::text(path)?;
            settings.has_file = text.is_some();
            settings.all.extend(file::settings(path, &text.unwrap_or_default(), user.as_deref())?);
        }
        for (index, key) in KEYS.iter().enumerate() {
            let variable = key.variable().and_then(|name| Some((environment.get(&name)?, name)));
            if let Some((value, name)) = variable {
                let text = value.to_string_lossy();
                settings.say(index, &text, Source::Variable { name }, user.as_deref())?;
            }
        }
        for Given { option, key, text } in given {
            let path: Vec<&str> = key.split('.').collect();
            if let Some((index, _)) = keys::find(&path) {
                settings.say(index, text, Source::Option { name: option }, user.as_deref())?;
            }
        }
        settings.check()?;
        Ok(settings)
    }

    /// What only shows when everything is there, and what a type does not say.
    fn check(&self) -> Result<(), ConfigError> {
        for section in ["models.claude", "models.codex", "models.gemini"] {
            let name = format!("{section}.default");
            self.models(section)
                .resolve(None)
                .map_err(|bad| self.bad(&name, BadModelName::EXPECTED.to_owned(), &bad.asked))?;
        }
        let is_name = |name: &&String| {
            !name.is_empty() && !name.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control())
        };
        let Some(Value::Texts(names)) = self.get("pass_env") else { return Ok(()) };
        for name in names {
            if !is_name(&name) {
                return Err(self.bad("pass_env", "a list of variable names".to_owned(), name));
            }
            if let Some(reason) = agents::forbidden_variable(name) {
                let (place, variable) = (self.source("pass_env"), name.clone());
                return Err(ConfigError::ForbiddenVariable { place, variable, reason });
            }
        }
        Ok(())
    }

    /// Returns where the value of a key came from.
    fn source(&self, name: &str) -> Source {
        let path: Vec<&str> = name.split('.').collect();
        let setting = keys::find(&path).and_then(|(index, word)| self.all.get(&Name::new(index, word)));
        setting.map_or(Source::BuiltIn, |setting| setting.source.clone())
    }

    fn bad(&self, name: &str, expected: String, found: &str) -> ConfigError {
        let place = self.source(name);
        let found = format!("`{}`", found.escape_debug());
        ConfigError::BadValue { place, key: name.to_owned(), expected, found }
    }

    /// The names of the models of an agent.
    pub fn models(&self, section: &str) -> ModelTable {
        let mut table = ModelTable::default();
        for (word, value) in self.words(section) {
            match value {
                Value::Text(full) if word == "default" => table.default = Some(full.clone()),
                Value::Text(full) => drop(table.aliases.insert(word.to_owned(), full.clone())),
                _ => {}
            }
        }
        table
    }

    fn built_in() -> Self {
        let mut settings = Self::default();
        let mut put = |index, value| {
            settings.all.insert(Name::new(index, None), Setting { value, source: Source::BuiltIn });
        };
        for (index, key) in KEYS.iter().enumerate() {
            if let Some(value) = key.default.value() {
                put(index, value);
            }
        }
        settings
    }

    fn say(
        &mut self,
        index: usize,
        text: &str,
        source: Source,
        user: Option<&Path>,
    ) -> Result<(), ConfigError> {
        let key = &KEYS[index];
        let value = key.kind.read_text(text, user).map_err(|found| ConfigError::BadValue {
            place: source.clone(),
            key: key.name.to_owned(),
            expected: key.kind.to_string(),
            found,
        })?;
        self.all.insert(Name::new(index, None), Setting { value, source });
        Ok(())
    }

    /// Returns every setting by its name, as TOML; none for one that an option of the command line has set.
    pub fn to_toml_values(&self) -> BTreeMap<String, Option<String>> {
        let text = |(name, setting): (&Name, &Setting)| {
            let (section, own) = name.parts();
            let key = if section.is_empty() { own.to_owned() } else { format!("{section}.{own}") };
            let is_option = matches!(setting.source, Source::Option { .. });
            (key, (!is_option).then(|| setting.value.to_string()))
        };
        self.all.iter().map(text).collect()
    }

    /// The value of a key.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let path: Vec<&str> = name.split('.').collect();
        let (index, word) = keys::find(&path)?;
        self.all.get(&Name::new(index, word)).map(|setting| &setting.value)
    }

    /// The user's own words of an open table, and their values.
    pub fn words<'s>(&'s self, section: &'s str) -> impl Iterator<Item = (&'s str, &'s Value)> {
        self.all.iter().filter_map(move |(name, setting)| {
            let word = name.word.as_deref()?;
            (name.parts().0 == section).then_some((word, &setting.value))
        })
    }
}
