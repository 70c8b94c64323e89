//! What a run came to: the one typed answer to "how did it go".
//!
//! Owns the kinds of ends and what to do about each. How they are told apart is `agents::outcome`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{AgentKind, Deadline, Exit, NotStartedReason, SessionId};

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Whose run it was.
    pub agent: AgentKind,
    /// How it went.
    pub verdict: Verdict,
    /// The agent's last words: the answer, or as far as it came. Never reasoning, never the output of a tool.
    pub text: String,
    /// How many bytes of the text were left out of [`Outcome::text`], from its middle, because it was over the limit.
    pub text_cut: u64,
    /// The answer as JSON text, when a schema was given: what the agent says is the answer to it. It is JSON, and is not
    /// validated against the schema.
    pub structured_output: Option<String>,
    /// The conversation, with which the work can be taken up again.
    pub session: Option<SessionId>,
    /// Set when the agent went on in another conversation than the one asked for.
    pub session_mismatch: Option<SessionMismatch>,
    /// The model that answered.
    pub model: Option<String>,
    /// The tokens of this run.
    pub usage: Option<Usage>,
    /// The cost of this run, where the agent tells it.
    pub cost_usd: Option<f64>,
    /// What the agent counts for the whole session so far: give it to the next run of the session as its starting point.
    pub session_totals: Option<Totals>,
    /// How many turns the model took.
    pub turns: Option<u32>,
    /// How long the process ran.
    pub duration_ms: u64,
    /// The tools that the agent wanted and was not allowed to use.
    pub permission_denials: Vec<PermissionDenial>,
    /// Background tasks that did not complete; see [`FailureKind::Incomplete`] for what they mean for the verdict.
    #[serde(default)]
    pub background: Vec<BackgroundTask>,
    /// Tools, writes and hosts that were refused, the same for every agent. A refusal alone is not a failure: the agent
    /// was told, and its own verdict decides.
    #[serde(default)]
    pub refusals: Vec<RefusedAction>,
    /// Figures that the agent reported and that cannot be true. They are left out of [`Outcome::usage`] and [`Outcome::cost_usd`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub implausible: Vec<String>,
    /// How often it had to try again to reach its model.
    pub retries: u32,
    /// How the process exited. None when it was stopped from outside after it had answered: that exit status is not the
    /// agent's.
    pub exit: Option<Exit>,
}

impl Outcome {
    /// Whether the agent did what it was asked, as far as it says.
    pub fn is_success(&self) -> bool {
        self.verdict == Verdict::Success
    }

    /// Whether the model answered, if only in part: the conversation then exists, and can be resumed. An agent that was refused
    /// by its vendor, or died before its first output, names a session that it never kept. Tokens prove nothing: gemini counts those
    /// of the model that routes a request, too.
    pub fn has_answer(&self) -> bool {
        self.is_success() || !self.text.is_empty() || self.structured_output.is_some()
    }

    /// What went wrong, if anything.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.verdict {
            Verdict::Success => None,
            Verdict::Failed(failure) => Some(failure),
        }
    }

    /// Returns what else to know about the run: background tasks that did not complete, and refusals. One line each.
    pub fn notes(&self) -> Vec<String> {
        let tasks = list(&self.background).map(|tasks| {
            let count = self.background.len();
            format!("{count} background task{} did not complete: {tasks}", if count == 1 { "" } else { "s" })
        });
        let refused = list(&self.refusals).map(|refused| format!("refused: {refused}"));
        let is_hidden = |refusal: &RefusedAction| refusal.kind == RefusedKind::Read && !refusal.by_agent;
        let expose = self.refusals.iter().any(is_hidden).then(|| EXPOSE.to_owned());
        let is_outside = |refusal: &RefusedAction| refusal.kind != RefusedKind::Tool && refusal.by_agent;
        let outside = self.refusals.iter().any(is_outside).then(|| OUTSIDE.to_owned());
        let implausible = list(&self.implausible).map(|figures| {
            format!("the agent reported figures that cannot be true and are not counted: {figures}")
        });
        tasks.into_iter().chain(refused).chain(expose).chain(outside).chain(implausible).collect()
    }

    /// What to do about a failure.
    pub fn hint(&self) -> Option<&'static str> {
        self.failure().map(|failure| failure.kind.hint(self.agent))
    }
}

/// What to do about a path of the home directory that could not be read.
const EXPOSE: &str = "the home directory is absent in the sandbox: list a path that agents need in `sandbox.expose` of the configuration";

/// What to do about a path that a file tool of the agent does not open.
const OUTSIDE: &str =
    "the agent's file tools open only its working directory: add other directories to the call";

/// Lists the first few items; none when there is none.
fn list<T: fmt::Display>(items: &[T]) -> Option<String> {
    const SHOWN: usize = 5;
    let shown: Vec<_> = items.iter().take(SHOWN).map(T::to_string).collect();
    let more = items.len().saturating_sub(SHOWN);
    let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!shown.is_empty()).then(|| format!("{}{rest}", shown.join(", ")))
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The agent says it is done, and nothing speaks against it.
    Success,
    /// It is not.
    Failed(Failure),
}

/// A failure: its kind, and the agent's own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Failure {
    /// What kind.
    #[serde(flatten)]
    pub kind: FailureKind,
    /// What the agent said about it, or the supervisor when the agent said nothing.
    pub message: String,
}

/// The kinds of failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FailureKind {
    /// The turns were used up; the session can be resumed.
    MaxTurns,
    /// The budget was used up; the session can be resumed.
    MaxBudget,
    /// The agent is not logged in, or its key is refused.
    Auth,
    /// The account's limit is reached.
    RateLimit {
        /// How long to wait, when the agent says so.
        #[serde(rename = "retry_after_ms", with = "crate::event::opt_millis")]
        retry_after: Option<Duration>,
    },
    /// The vendor's servers have too much to do.
    Overloaded,
    /// A tool that the agent wanted was denied. Only in records of earlier versions: see [`Outcome::refusals`].
    PermissionDenied,
    /// The agent answered, but work that it had started was stopped before it was done: a background task, or a further
    /// turn. The answer is kept, and the session can be resumed.
    Incomplete,
    /// There is no such conversation.
    SessionNotFound,
    /// Another process has the conversation.
    SessionInUse,
    /// The stream ended without a result, or with one that cannot be read or does not fit the schema.
    InvalidOutput,
    /// A signal from elsewhere ended the agent before its result; the session can be resumed.
    Killed {
        /// Its number.
        signal: i32,
    },
    /// Nothing came on stdout.
    EmptyOutput,
    /// The model's API could not be reached.
    Network,
    /// The agent failed in another way that it tells in words.
    AgentError,
    /// A wait was over.
    Deadline {
        /// Which one.
        which: Deadline,
    },
    /// It printed too much.
    OutputLimit,
    /// Somebody stopped it.
    Stopped,
    /// Its process could not be started.
    NotStarted {
        /// Why.
        reason: NotStartedReason,
    },
    /// Its output could not be written down.
    SpoolFailed,
    /// The process that watched over it was killed.
    SupervisorLost,
    /// Switchboard itself failed: a bug.
    Internal,
    /// It kept creating a path that its policy protects, so it was stopped; or its policy was required, and what it created could not be
    /// examined or moved away.
    PolicyViolation,
}

impl FailureKind {
    /// Its name, as it is written.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MaxTurns => "max_turns",
            Self::MaxBudget => "max_budget",
            Self::Auth => "auth",
            Self::RateLimit { .. } => "rate_limit",
            Self::Overloaded => "overloaded",
            Self::PermissionDenied => "permission_denied",
            Self::Incomplete => "incomplete",
            Self::SessionNotFound => "session_not_found",
            Self::SessionInUse => "session_in_use",
            Self::InvalidOutput => "invalid_output",
            Self::Killed { .. } => "killed",
            Self::EmptyOutput => "empty_output",
            Self::Network => "network",
            Self::AgentError => "agent_error",
            Self::Deadline { .. } => "deadline",
            Self::OutputLimit => "output_limit",
            Self::Stopped => "stopped",
            Self::NotStarted { .. } => "not_started",
            Self::SpoolFailed => "spool_failed",
            Self::SupervisorLost => "supervisor_lost",
            Self::Internal => "internal",
            Self::PolicyViolation => "policy_violation",
        }
    }

    /// What to do about it, in one line.
    pub fn hint(&self, agent: AgentKind) -> &'static str {
        match self {
            Self::MaxTurns => "resume the session to go on, or allow more turns",
            Self::MaxBudget => "resume the session with a larger budget",
            Self::Auth => login_hint(agent),
            Self::RateLimit { .. } => "wait until the limit is reset, then resume the session",
            Self::Overloaded => "try again in a few minutes, or use another model",
            Self::PermissionDenied => "allow the tool, or ask for something that does not need it",
            Self::Incomplete => {
                "read the answer, then resume the session to finish the work that was stopped"
            }
            Self::SessionNotFound => "check the id and the folder it was made in, or begin a new session",
            Self::SessionInUse => {
                "wait until the other run of the session has ended, or call without the session"
            }
            Self::InvalidOutput => {
                "see the raw output of the run; `switchboard doctor` says whether the version is known"
            }
            Self::Killed { .. } => {
                "find out what kills it (`journalctl -k` lists kills for want of memory), then resume the session"
            }
            Self::EmptyOutput => "see what the agent wrote on stderr; `switchboard doctor` checks its setup",
            Self::Network => "check the connection, the proxy variables and the agent's base URL",
            Self::AgentError => "the message is the agent's own; the raw output holds the rest",
            Self::Deadline { which: Deadline::Start } => {
                "the agent never said a word: check its login and network, or allow a longer start"
            }
            Self::Deadline { which: Deadline::Idle } => {
                "the agent fell silent: resume its session, or allow longer silences"
            }
            Self::Deadline { which: Deadline::Wall } => {
                "allow more time, or resume the session if there is one"
            }
            Self::OutputLimit => "ask for less output, or raise the output limit",
            Self::Stopped => "resume the session to go on",
            Self::NotStarted { reason } => reason.hint(),
            Self::SpoolFailed => "make room on the disk of the state folder, then try again",
            Self::SupervisorLost => "resume the session to go on; nothing of the run was left alive",
            Self::Internal => {
                "see the daemon's log and report the bug; `switchboard retry` runs the job again"
            }
            Self::PolicyViolation => {
                "inspect what the result names: the agent created paths that could run commands later"
            }
        }
    }
}

fn login_hint(agent: AgentKind) -> &'static str {
    match agent {
        AgentKind::Claude => "log in with `claude` and then `/login`, or set ANTHROPIC_API_KEY",
        AgentKind::Codex => "log in with `codex login`, or set OPENAI_API_KEY",
        AgentKind::Gemini => "set GEMINI_API_KEY, or log in by starting `gemini` once",
        AgentKind::Rehearsal => "the script plays a failed login; nothing is wrong",
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline { which } => write!(f, "{which} deadline"),
            _ => f.pad(self.name()),
        }
    }
}

/// Tokens, counted the same way for every agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Everything the model read, from a cache or not.
    pub input: u64,
    /// Everything the model wrote, reasoning included.
    pub output: u64,
    /// The part of `input` that was read from a cache.
    pub cached: u64,
    /// The part of `output` that was reasoning, where the agent tells it apart.
    pub reasoning: u64,
}

impl Usage {
    /// Adds the tokens of further work.
    #[must_use]
    pub fn plus(self, further: Self) -> Self {
        Self {
            input: self.input.saturating_add(further.input),
            output: self.output.saturating_add(further.output),
            cached: self.cached.saturating_add(further.cached),
            reasoning: self.reasoning.saturating_add(further.reasoning),
        }
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            input: self.input.saturating_sub(earlier.input),
            output: self.output.saturating_sub(earlier.output),
            cached: self.cached.saturating_sub(earlier.cached),
            reasoning: self.reasoning.saturating_sub(earlier.reasoning),
        }
    }
}

/// The highest cost of one call, in dollars, that is believed: a single false figure would spoil every sum.
pub const MAX_COST_USD: f64 = 100_000.0;

/// The largest number of tokens of one call that is believed.
pub const MAX_TOKENS: u64 = 100_000_000_000;

/// What an agent counts over a whole session.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Tokens, for agents that count them over the session.
    pub usage: Option<Usage>,
    /// Cost, for agents that count it over the session.
    pub cost_usd: Option<f64>,
}

/// A tool that an agent wanted and was not allowed to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionDenial {
    /// The vendor's name of the tool.
    pub tool: String,
    /// The id of the use, when it has one.
    pub tool_use_id: Option<String>,
    /// What it would have been given, as JSON text, or why it was denied: what the agent says of it.
    pub detail: Option<String>,
}

/// Work that an agent started in the background and that did not complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundTask {
    /// The agent's own description of it.
    pub description: String,
    /// What became of it.
    pub status: BackgroundStatus,
}

/// What became of a background task that did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackgroundStatus {
    /// The agent reported that it was stopped or killed before it was done.
    Stopped,
    /// It was still running when the agent's process ended, and was killed with it.
    Killed,
    /// It ended by itself, with an error.
    Failed,
    /// The agent reported an end that this version does not know.
    Unknown,
}

impl BackgroundStatus {
    /// Returns its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Killed => "killed",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for BackgroundTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.description, self.status.name())
    }
}

/// Something that an agent tried and that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedAction {
    /// What it tried.
    pub kind: RefusedKind,
    /// The tool, the path or the host.
    pub subject: String,
    /// What the first refusal said, where it said something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How often it was refused.
    pub count: u32,
    /// Whether a rule that is built into the agent refused it: not the sandbox, and not the permissions of the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_agent: bool,
}

impl RefusedAction {
    /// Returns an action that was refused once, by the sandbox or for want of a permission.
    pub fn new(kind: RefusedKind, subject: &str, detail: Option<&str>) -> Self {
        let detail = detail.map(str::to_owned);
        Self { kind, subject: subject.to_owned(), detail, count: 1, by_agent: false }
    }
}

/// What an agent tried that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedKind {
    /// To use a tool, refused by the agent's own permissions.
    Tool,
    /// To write a file, refused by the sandbox.
    Write,
    /// To read a path of the home directory that the sandbox does not expose, or one that the agent's file tools do not open.
    Read,
    /// To connect to a host, refused by the sandbox.
    Host,
}

impl RefusedKind {
    /// Returns its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Write => "write",
            Self::Read => "read",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for RefusedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.subject)?;
        if self.by_agent {
            f.write_str(" (a rule of the agent)")?;
        }
        if self.count > 1 { write!(f, " ({} times)", self.count) } else { Ok(()) }
    }
}

/// A conversation that is not the one asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMismatch {
    /// The one asked for.
    pub asked: SessionId,
    /// The one that came back.
    pub got: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_written_flat_with_its_data() {
        let failure = Failure {
            kind: FailureKind::RateLimit { retry_after: Some(Duration::from_secs(30)) },
            message: "slow down".into(),
        };
        let verdict = Verdict::Failed(failure);
        let json = serde_json::to_string(&verdict).unwrap();
        assert_eq!(
            json,
            r#"{"verdict":"failed","kind":"rate_limit","retry_after_ms":30000,"message":"slow down"}"#
        );
        assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), verdict);
    }

    #[test]
    fn the_name_of_a_kind_is_how_it_is_written() {
        for kind in [
            FailureKind::MaxTurns,
            FailureKind::Incomplete,
            FailureKind::Deadline { which: Deadline::Idle },
            FailureKind::NotStarted { reason: NotStartedReason::Other },
            FailureKind::SupervisorLost,
            FailureKind::Killed { signal: 9 },
        ] {
            let json = serde_json::to_value(&kind).unwrap();
            assert_eq!(json["kind"], kind.name());
        }
    }

    #[test]
    fn names_of_statuses_and_refusals_match_the_wire() {
        use BackgroundStatus::{Failed, Killed, Stopped, Unknown};
        for status in [Stopped, Killed, Failed, Unknown] {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
        for kind in [RefusedKind::Tool, RefusedKind::Write, RefusedKind::Read, RefusedKind::Host] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn what_a_run_used_is_the_difference_and_never_negative() {
        let now = Usage { input: 30, output: 5, cached: 0, reasoning: 1 };
        let earlier = Usage { input: 10, output: 9, cached: 0, reasoning: 1 };
        assert_eq!(now.since(earlier), Usage { input: 20, ..Usage::default() });
    }
}
