//! Usage statistics of jobs, as the command line and the dashboard show them.

use serde::{Deserialize, Serialize};

use crate::call::AgentKind;
use crate::job_state::StateName;

/// Aggregated statistics of jobs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct JobStats {
    /// The number of jobs in each state.
    pub states: Vec<(StateName, u64)>,
    /// The ended jobs by agent, model and day, newest day first.
    pub rows: Vec<DailyStats>,
    /// The number of newest jobs that the quantiles cover.
    pub quantiles_from: u64,
    /// A histogram of their durations; empty if the daemon is too old to report it.
    #[serde(default)]
    pub durations: Vec<DurationBucket>,
}

/// A bucket of a duration histogram: jobs that took at most `up_to_ms` and longer than the bucket before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationBucket {
    /// The upper bound in milliseconds; `None` for the last bucket.
    pub up_to_ms: Option<u64>,
    /// The number of jobs.
    pub calls: u64,
}

/// The ended jobs of one agent, model and day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DailyStats {
    /// The day (UTC) of submission, as 2026-01-31.
    pub day: String,
    /// The agent.
    pub agent: AgentKind,
    /// The model.
    pub model: Option<String>,
    /// The number of ended jobs.
    pub calls: u64,
    /// The number of completed jobs.
    pub completed: u64,
    /// The median duration.
    pub p50_ms: Option<u64>,
    /// The 95th percentile of the duration.
    pub p95_ms: Option<u64>,
    /// The sum of the durations.
    pub duration_ms: u64,
    /// The input tokens.
    pub input_tokens: u64,
    /// The output tokens.
    pub output_tokens: u64,
    /// The cost that the agents reported.
    pub cost_usd: f64,
}
