//! What is said about jobs: the nouns of the requests and replies in `control`.

use std::path::PathBuf;

use model::{AgentEvent, AgentKind, CallSpec, StateName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The kind of the events of [`waiting`].
const WAITING: &str = "waiting";

/// An event as it is told. One that is nested too deeply to be taken apart must not end the telling.
pub fn said(event: &AgentEvent<'_>) -> Value {
    serde_json::to_value(event).unwrap_or_else(
        |error| json!({ "event": "warning", "message": format!("an event cannot be told: {error}") }),
    )
}

/// A call that is to be placed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// What is asked.
    pub call: CallSpec,
    /// What the caller calls the task.
    pub task: String,
    /// Asked twice with the same key, it is one job: a front-end asks again when the daemon dies over its request.
    pub key: String,
    /// Whether the caller goes away instead of waiting.
    pub background: bool,
}

/// A call that was placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The job.
    pub job_id: String,
    /// The folder of its files.
    pub folder: PathBuf,
    /// Says where the job stands.
    pub status_file: PathBuf,
    /// What the agent prints.
    pub output_file: PathBuf,
    /// What it writes to stderr.
    pub error_file: PathBuf,
    /// Where the answer will be.
    pub result_file: PathBuf,
    /// How many secrets were taken out of its texts.
    #[serde(default)]
    pub redactions: usize,
}

/// Which jobs are looked for. What is none leaves nothing out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Search {
    /// In one of these states; empty for all.
    #[serde(default)]
    pub states: Vec<StateName>,
    /// Of this agent.
    #[serde(default)]
    pub agent: Option<AgentKind>,
    /// Through this tool.
    #[serde(default)]
    pub tool: Option<String>,
    /// Of this task.
    #[serde(default)]
    pub task: Option<String>,
    /// How many at most.
    pub limit: u32,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobLine {
    /// Its id.
    pub job_id: String,
    /// Where it stands.
    pub status: StateName,
    /// Which agent.
    pub agent: AgentKind,
    /// The model that was asked for, or that answered.
    pub model: Option<String>,
    /// Through which tool it was placed.
    pub tool: String,
    /// The caller's name for the task.
    pub task: String,
    /// Its folder.
    pub cwd: String,
    /// The conversation.
    pub session_id: Option<String>,
    /// When it was placed, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// How long it has taken so far, or took.
    pub duration_ms: Option<u64>,
    /// The tokens, read and written.
    pub tokens: Option<u64>,
    /// The cost, where the agent tells it.
    pub cost_usd: Option<f64>,
    /// The kind of its failure.
    pub error: Option<String>,
    /// How its prompt begins.
    pub prompt: String,
}

/// What the jobs came to, added up.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sums {
    /// How many are in each state.
    pub states: Vec<(StateName, u64)>,
    /// The ended ones by agent, model and day, the newest day first.
    pub rows: Vec<StatsLine>,
    /// From how many of the newest jobs the quantiles are; the rest were too many to look at.
    pub quantiles_from: u64,
    /// How many of those took how long; a daemon of an earlier version tells none.
    #[serde(default)]
    pub durations: Vec<Taken>,
}

/// How many jobs took no longer than that, and longer than the row before says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// In milliseconds; none for the last row, which holds all the others.
    pub up_to_ms: Option<u64>,
    /// How many.
    pub calls: u64,
}

/// What the ended jobs of one agent, model and day came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatsLine {
    /// The day (UTC) on which they were placed, as 2026-01-31.
    pub day: String,
    /// Which agent.
    pub agent: AgentKind,
    /// Which model.
    pub model: Option<String>,
    /// How many ended.
    pub calls: u64,
    /// How many of them were completed.
    pub completed: u64,
    /// Half of them took no longer.
    pub p50_ms: Option<u64>,
    /// 95 of 100 took no longer.
    pub p95_ms: Option<u64>,
    /// How long they took in all.
    pub duration_ms: u64,
    /// What the models read.
    pub input_tokens: u64,
    /// What they wrote.
    pub output_tokens: u64,
    /// What it cost, where the agents tell it.
    pub cost_usd: f64,
}

/// Names what a job waits for, as an event among those of its agent. It is not repeated to a follower that comes back.
pub fn waiting(reason: &str) -> Value {
    json!({ "event": WAITING, "reason": reason })
}

/// Whether an event is one of [`waiting`].
pub fn is_waiting(said: &Value) -> bool {
    said["event"] == WAITING
}

/// Whose fault it is that something was refused, by which a program chooses its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// What was asked for cannot be asked for.
    Input,
    /// The agent is not here, or cannot be used.
    Agent,
    /// The working directory cannot be used.
    Directory,
    /// The state directory or the store cannot be written, such as on a full disk.
    Storage,
    /// Anything else, and what a newer daemon may say.
    #[serde(other)]
    Other,
}
