//! The names of models: short aliases, and what each agent is told for them.
//!
//! Owns the default tables, which configuration may change and extend. What an alias means is said here and not left to
//! the CLI, because the targets of its own aliases move with its version.

use std::collections::BTreeMap;

use model::AgentKind;
use serde::{Deserialize, Serialize};

/// The models of one agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelTable {
    /// What is used when nothing is asked for: an alias or a full name. None leaves the choice to the agent.
    pub default: Option<String>,
    /// Aliases, in lower case, and the full names they stand for.
    pub aliases: BTreeMap<String, String>,
}

impl ModelTable {
    fn new(default: Option<&str>, aliases: &[(&str, &str)]) -> Self {
        Self {
            default: default.map(str::to_owned),
            aliases: aliases.iter().map(|&(alias, full)| (alias.to_owned(), full.to_owned())).collect(),
        }
    }

    /// The full name of the model that is asked for; none when the agent is to choose.
    ///
    /// An alias counts in any case. What is no alias passes through when it has a digit in it, as the full name of every
    /// vendor's model has (`claude-opus-4-5`, `gpt-5.2-codex`), so that a model of tomorrow needs no new table; anything
    /// else is taken for a misspelt alias.
    pub fn resolve(&self, asked: Option<&str>) -> Result<Option<String>, UnknownModel> {
        let asked = asked.map(str::trim).filter(|name| !name.is_empty());
        let Some(name) = asked.or(self.default.as_deref()) else { return Ok(None) };
        match self.aliases.get(&name.to_lowercase()) {
            Some(full) => Ok(Some(full.clone())),
            None if is_full_name(name) => Ok(Some(name.to_owned())),
            None => Err(UnknownModel {
                asked: name.chars().take(100).collect(),
                known: self.aliases.keys().cloned().collect(),
            }),
        }
    }
}

fn is_full_name(name: &str) -> bool {
    name.len() <= 200
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.contains(|c: char| c.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/@[]".contains(&byte))
}

/// A model that is neither an alias nor a full name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown model `{}`", asked.escape_debug())]
pub struct UnknownModel {
    /// What was asked for.
    pub asked: String,
    /// The aliases there are.
    pub known: Vec<String>,
}

impl UnknownModel {
    /// What to do about it.
    pub fn hint(&self) -> String {
        if self.known.is_empty() {
            return "give the full name of a model".to_owned();
        }
        format!("use one of {}, or the full name of a model", self.known.join(", "))
    }
}

/// The models of every agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelTables {
    /// Claude Code's.
    pub claude: ModelTable,
    /// Codex's.
    pub codex: ModelTable,
    /// Gemini's.
    pub gemini: ModelTable,
}

impl Default for ModelTables {
    fn default() -> Self {
        let claude =
            [("haiku", "claude-haiku-4-5"), ("sonnet", "claude-sonnet-4-5"), ("opus", "claude-opus-4-5")];
        // Gemini's own aliases are kept: what stands behind them depends on the account.
        let gemini = [("auto", "auto"), ("pro", "pro"), ("flash", "flash"), ("flash-lite", "flash-lite")];
        Self {
            claude: ModelTable::new(Some("haiku"), &claude),
            codex: ModelTable::new(Some("gpt-5.2-codex"), &[("codex", "gpt-5.2-codex")]),
            gemini: ModelTable::new(None, &gemini),
        }
    }
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
    fn aliases_count_in_any_case_and_the_default_is_one() {
        let claude = ModelTables::default().claude;
        for (asked, full) in [
            (None, "claude-haiku-4-5"),
            (Some(" "), "claude-haiku-4-5"),
            (Some("Opus"), "claude-opus-4-5"),
            (Some("SONNET"), "claude-sonnet-4-5"),
            (Some("claude-opus-4-6[1m]"), "claude-opus-4-6[1m]"),
        ] {
            assert_eq!(claude.resolve(asked).unwrap().as_deref(), Some(full), "{asked:?}");
        }
        assert_eq!(ModelTables::default().gemini.resolve(None), Ok(None));
    }

    #[test]
    fn an_unknown_alias_names_the_known_ones() {
        for bad in ["opuss", "--model", "-4", "a b4", "x\n4"] {
            let error = ModelTables::default().claude.resolve(Some(bad)).unwrap_err();
            assert_eq!(error.hint(), "use one of haiku, opus, sonnet, or the full name of a model");
        }
    }
}
