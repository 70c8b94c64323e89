//! Model names and the operator's aliases.
//!
//! No model is built in. Without a name the agent chooses, and a name that is not an alias is passed unchanged: the vendor's
//! aliases (`opus`, `flash`) change with the version of the CLI, which resolves them.

use std::collections::BTreeMap;

use model::AgentKind;
use serde::{Deserialize, Serialize};

/// The operator's model names for one agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelTable {
    /// The default model, an alias or a name. `None`: the agent chooses.
    pub default: Option<String>,
    /// Lower-case aliases and the names they stand for.
    pub aliases: BTreeMap<String, String>,
}

impl ModelTable {
    /// Returns the name to pass to the agent. `None`: the agent chooses.
    ///
    /// Aliases are case-insensitive. Any other name passes through, so that new models and new aliases of the vendor need no
    /// table.
    pub fn resolve(&self, asked: Option<&str>) -> Result<Option<String>, BadModelName> {
        let asked = asked.map(str::trim).filter(|name| !name.is_empty());
        let Some(name) = asked.or(self.default.as_deref()) else { return Ok(None) };
        match self.aliases.get(&name.to_lowercase()) {
            Some(full) => Ok(Some(full.clone())),
            None if is_model_name(name) => Ok(Some(name.to_owned())),
            None => Err(BadModelName { asked: name.chars().take(100).collect() }),
        }
    }
}

fn is_model_name(name: &str) -> bool {
    name.len() <= 200
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/@[]".contains(&byte))
}

/// A malformed model name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a model name", asked.escape_debug())]
pub struct BadModelName {
    /// The text.
    pub asked: String,
}

impl BadModelName {
    /// The names that are accepted.
    pub const EXPECTED: &'static str = "an alias or the name of a model, such as `opus`";

    /// Returns the remedy.
    pub fn hint(&self) -> String {
        format!("use {}, or omit the model", Self::EXPECTED)
    }
}

/// The operator's model names, by agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelTables(BTreeMap<AgentKind, ModelTable>);

impl ModelTables {
    /// Sets the table of an agent.
    #[must_use]
    pub fn with(mut self, agent: AgentKind, table: ModelTable) -> Self {
        self.0.insert(agent, table);
        self
    }

    /// Returns the table of an agent, empty by default. The rehearsal agent uses claude's.
    pub fn for_agent(&self, agent: AgentKind) -> &ModelTable {
        static EMPTY: ModelTable = ModelTable { default: None, aliases: BTreeMap::new() };
        let agent = if agent == AgentKind::Rehearsal { AgentKind::Claude } else { agent };
        self.0.get(&agent).unwrap_or(&EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_model_is_left_to_the_agent() {
        for kind in AgentKind::NATIVE {
            for asked in [None, Some(""), Some(" ")] {
                assert_eq!(
                    ModelTables::default().for_agent(kind).resolve(asked),
                    Ok(None),
                    "{kind} {asked:?}"
                );
            }
        }
    }

    #[test]
    fn vendor_names_and_aliases_pass_through() {
        for name in ["opus", "opusplan", "claude-opus-4-6[1m]", "gpt-5.2-codex", "flash-lite", "us.x/y@1:2"] {
            let resolved = ModelTable::default().resolve(Some(name)).unwrap();
            assert_eq!(resolved.as_deref(), Some(name));
        }
    }

    #[test]
    fn operator_alias_is_case_insensitive() {
        let aliases = BTreeMap::from([("fast".to_owned(), "claude-haiku-9".to_owned())]);
        let table = ModelTable { default: Some("Fast".to_owned()), aliases };
        for asked in [None, Some("FAST")] {
            assert_eq!(table.resolve(asked).unwrap().as_deref(), Some("claude-haiku-9"), "{asked:?}");
        }
    }

    #[test]
    fn model_name_rejects_flags_and_odd_characters() {
        for bad in ["--model", "-4", "a b4", "x\n4"] {
            assert!(ModelTable::default().resolve(Some(bad)).is_err(), "{bad:?}");
        }
    }
}
