//! Statistics about jobs.

use model::{AgentKind, StateName, TerminalState, Timestamp, Usage};

/// Selects jobs by the time of their submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatsRange {
    /// At or after this time.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
}

/// Job counts and the sums over finished jobs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    /// The number of jobs in each state; states without jobs are omitted.
    pub states: Vec<(StateName, u64)>,
    /// The sums over the finished jobs, by agent, model, day and end.
    pub ended: Vec<StatsRow>,
}

impl Stats {
    /// Returns the number of jobs in a state.
    pub fn in_state(&self, state: StateName) -> u64 {
        self.states.iter().find(|(name, _)| *name == state).map_or(0, |(_, count)| *count)
    }
}

/// The sums over the finished jobs of one agent, model, day and end.
#[derive(Debug, Clone, PartialEq)]
pub struct StatsRow {
    /// The agent.
    pub agent: AgentKind,
    /// The model; `None` if it is unknown.
    pub model: Option<String>,
    /// The start (UTC) of the day of the submit.
    pub day: Timestamp,
    /// The end of the jobs.
    pub how: TerminalState,
    /// The number of jobs.
    pub jobs: u64,
    /// Their total duration from the first claim, in milliseconds.
    pub duration_ms: u64,
    /// Their tokens.
    pub usage: Usage,
    /// Their cost.
    pub cost_usd: f64,
}

pub(crate) const DAY_MS: u64 = 24 * 60 * 60 * 1000;
