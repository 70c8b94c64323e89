//! Model names: the operator's aliases, and the names that agents are given.
//!
//! No model is built in. A call that names none leaves the choice to the agent, and a name that is no alias of the operator
//! reaches the agent as it is: the vendor's own aliases (`opus`, `flash`) move with the version of the CLI, which knows them.

use std::collections::BTreeMap;

use model::AgentKind;
use serde::{Deserialize, Serialize};

/// The operator's model names for one agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelTable {
    /// The model of a call that names none: an alias or a name. None leaves the choice to the agent.
    pub default: Option<String>,
    /// Aliases, in lower case, and the names they stand for.
    pub aliases: BTreeMap<String, String>,
}

impl ModelTable {
    /// Returns the name to pass to the agent; none when the agent chooses.
    ///
    /// An alias matches in any case. Every other name passes through, so that neither a new model nor a new alias of the
    /// vendor needs a table.
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

/// A text that cannot be the name of a model.
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
        format!("give {}, or leave the model to the agent", Self::EXPECTED)
    }
}

/// The operator's model names for every agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelTables {
    /// Claude Code's.
    pub claude: ModelTable,
    /// Codex's.
    pub codex: ModelTable,
    /// Gemini's.
    pub gemini: ModelTable,
}

impl ModelTables {
    /// That of one agent. Our own agent plays claude.
    pub fn of(&self, kind: AgentKind) -> &ModelTable {
        match kind {
            AgentKind::Claude | AgentKind::Rehearsal => &self.claude,
            AgentKind::Codex => &self.codex,
            AgentKind::Gemini => &self.gemini,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_model_is_left_to_the_agent() {
        for kind in AgentKind::ALL {
            for asked in [None, Some(""), Some(" ")] {
                assert_eq!(ModelTables::default().of(kind).resolve(asked), Ok(None), "{kind} {asked:?}");
            }
        }
    }

    #[test]
    fn vendor_names_and_aliases_pass_through() {
        for name in ["opus", "opusplan", "claude-opus-4-6[1m]", "gpt-5.2-codex", "flash-lite", "us.x/y@1:2"] {
            let resolved = ModelTables::default().claude.resolve(Some(name)).unwrap();
            assert_eq!(resolved.as_deref(), Some(name));
        }
    }

    #[test]
    fn operator_alias_matches_in_any_case() {
        let aliases = BTreeMap::from([("fast".to_owned(), "claude-haiku-9".to_owned())]);
        let table = ModelTable { default: Some("Fast".to_owned()), aliases };
        for asked in [None, Some("FAST")] {
            assert_eq!(table.resolve(asked).unwrap().as_deref(), Some("claude-haiku-9"), "{asked:?}");
        }
    }

    #[test]
    fn flags_and_odd_characters_are_no_model_names() {
        for bad in ["--model", "-4", "a b4", "x\n4"] {
            assert!(ModelTables::default().claude.resolve(Some(bad)).is_err(), "{bad:?}");
        }
    }
}
