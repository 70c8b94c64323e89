//! The known agents. Each built-in one has a file.

mod amp;
mod antigravity;
mod auggie;
mod claude;
mod claude_agent_acp;
mod cline;
mod codex;
mod codex_acp;
mod copilot;
mod cursor;
mod gemini;
mod goose;
mod kimi;
mod opencode;
mod qwen;
mod rehearsal;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use model::AgentKind;

use crate::profile::AgentProfile;

/// The known agents: the built-in ones and the operator's own. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentProfiles(Arc<BTreeMap<AgentKind, Arc<AgentProfile>>>);

impl Default for AgentProfiles {
    /// Returns the built-in agents.
    fn default() -> Self {
        static BUILT_IN: LazyLock<AgentProfiles> = LazyLock::new(|| AgentProfiles::new(built_in()));
        BUILT_IN.clone()
    }
}

impl AgentProfiles {
    fn new(profiles: impl IntoIterator<Item = AgentProfile>) -> Self {
        Self(Arc::new(profiles.into_iter().map(|profile| (profile.agent, Arc::new(profile))).collect()))
    }

    /// Adds agents, or replaces those of the same name.
    #[must_use]
    pub fn with(&self, profiles: impl IntoIterator<Item = AgentProfile>) -> Self {
        let mut all = (*self.0).clone();
        all.extend(profiles.into_iter().map(|profile| (profile.agent, Arc::new(profile))));
        Self(Arc::new(all))
    }

    /// Returns the profile of an agent.
    pub fn get(&self, agent: AgentKind) -> Option<&Arc<AgentProfile>> {
        self.0.get(&agent)
    }

    /// Returns the profile of an agent that a caller names.
    pub fn require(&self, agent: AgentKind) -> Result<&Arc<AgentProfile>, UnknownAgent> {
        self.get(agent).ok_or_else(|| UnknownAgent {
            agent,
            similar: self.find_similar(agent.name()).and_then(|name| name.parse().ok()),
        })
    }

    /// Returns the known name that is most similar to an unknown one.
    pub fn find_similar(&self, unknown: &str) -> Option<&str> {
        let distance =
            |profile: &Arc<AgentProfile>| strsim::damerau_levenshtein(unknown, profile.agent.name());
        let nearest = self.iter().min_by_key(|profile| distance(profile))?;
        (distance(nearest) <= (unknown.len() / 3).clamp(1, 3)).then(|| nearest.agent.name())
    }

    /// Returns all profiles, the agents of the large vendors first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<AgentProfile>> {
        self.0.values()
    }
}

/// A name of an agent without a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no agent `{agent}`")]
pub struct UnknownAgent {
    /// The name.
    pub agent: AgentKind,
    /// The most similar known agent.
    pub similar: Option<AgentKind>,
}

impl UnknownAgent {
    /// Returns the remedy for a user of the command line.
    pub fn hint(&self) -> String {
        match self.similar {
            Some(similar) => format!("did you mean `{similar}`? `switchboard agents` lists all agents"),
            None => format!(
                "`switchboard agents` lists all agents; define your own as `[agents.{}]` in the configuration",
                self.agent
            ),
        }
    }
}

/// Returns the built-in agents.
fn built_in() -> Vec<AgentProfile> {
    vec![
        claude::profile(),
        codex::profile(),
        gemini::profile(),
        rehearsal::profile(),
        opencode::profile(),
        qwen::profile(),
        copilot::profile(),
        kimi::profile(),
        claude_agent_acp::profile(),
        codex_acp::profile(),
        amp::profile(),
        antigravity::profile(),
        auggie::profile(),
        cline::profile(),
        cursor::profile(),
        goose::profile(),
    ]
}

/// Owns a list of texts.
fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}
