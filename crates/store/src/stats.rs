//! What the jobs came to, added up.

use model::{AgentKind, StateName, TerminalState, Timestamp, Usage};

/// Which jobs are added up, by when they were placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatsRange {
    /// At that moment or later.
    pub since: Option<Timestamp>,
    /// Before that moment.
    pub until: Option<Timestamp>,
}

/// The sums.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    /// How many jobs are in each state; a state without jobs is left out.
    pub states: Vec<(StateName, u64)>,
    /// What the ended ones came to, by agent, model and day.
    pub ended: Vec<StatsRow>,
}

impl Stats {
    /// How many jobs are in that state.
    pub fn in_state(&self, state: StateName) -> u64 {
        self.states.iter().find(|(name, _)| *name == state).map_or(0, |(_, count)| *count)
    }
}

/// What the ended jobs of one agent, model and day came to.
#[derive(Debug, Clone, PartialEq)]
pub struct StatsRow {
    /// Which agent.
    pub agent: AgentKind,
    /// Which model; none for jobs of which nobody told it.
    pub model: Option<String>,
    /// The first moment (UTC) of the day on which they were placed.
    pub day: Timestamp,
    /// How they ended.
    pub how: TerminalState,
    /// How many.
    pub jobs: u64,
    /// How long they took in all, from their first claim.
    pub duration_ms: u64,
    /// Their tokens.
    pub usage: Usage,
    /// Their cost.
    pub cost_usd: f64,
}

pub(crate) const DAY_MS: u64 = 24 * 60 * 60 * 1000;
