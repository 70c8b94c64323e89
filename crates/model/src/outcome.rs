//! The outcome of a run, and the kinds of failures with their hints.
//!
//! `agents::outcome` derives it from the output, the exit status and stderr.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{AgentKind, Deadline, Exit, NotStartedReason, SessionId};

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The agent.
    pub agent: AgentKind,
    /// Success or failure.
    pub verdict: Verdict,
    /// The last message of the agent: the answer, or the part of it that arrived. Never reasoning or the output of a tool.
    pub text: String,
    /// The number of bytes cut from the middle of [`Outcome::text`] because it was over the limit.
    pub text_cut: u64,
    /// The agent's answer to an output schema. Valid JSON, but not validated against the schema.
    pub structured_output: Option<String>,
    /// The session, which can be resumed.
    pub session: Option<SessionId>,
    /// The agent used another session than the requested one.
    pub session_mismatch: Option<SessionMismatch>,
    /// The model that answered.
    pub model: Option<String>,
    /// The tokens of this run.
    pub usage: Option<Usage>,
    /// The cost of this run, if the agent reports it.
    pub cost_usd: Option<f64>,
    /// The agent's totals of the session so far: the baseline for the next run of the session.
    pub session_totals: Option<Totals>,
    /// The number of turns of the model.
    pub turns: Option<u32>,
    /// The duration of the process.
    pub duration_ms: u64,
    /// Tools that the agent requested and was denied.
    pub permission_denials: Vec<PermissionDenial>,
    /// Background tasks that did not complete. [`FailureKind::Incomplete`] explains their effect on the verdict.
    #[serde(default)]
    pub background: Vec<BackgroundTask>,
    /// Rejected tools, paths and hosts, in the same form for every agent. A refusal alone is not a failure: the agent saw the
    /// error, and its own result decides.
    #[serde(default)]
    pub refusals: Vec<RefusedAction>,
    /// Figures of the agent that cannot be true. [`Outcome::usage`] and [`Outcome::cost_usd`] exclude them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub implausible: Vec<String>,
    /// The number of retried requests to the model.
    pub retries: u32,
    /// The exit status. `None` if the process was stopped after it had answered: that status is not the agent's.
    pub exit: Option<Exit>,
}

impl Outcome {
    /// Returns whether the agent reported success and nothing contradicts it.
    pub fn is_success(&self) -> bool {
        self.verdict == Verdict::Success
    }

    /// Returns whether the model answered, at least in part: only then does the session exist and can be resumed. An agent that
    /// its vendor rejected, or that died before its first output, reports a session that it never stored. Tokens prove nothing:
    /// gemini counts those of its routing model, too.
    pub fn has_answer(&self) -> bool {
        self.is_success() || !self.text.is_empty() || self.structured_output.is_some()
    }

    /// Returns the failure, if any.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.verdict {
            Verdict::Success => None,
            Verdict::Failed(failure) => Some(failure),
        }
    }

    /// Returns further remarks, one line each: unfinished background tasks, refusals, implausible figures.
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

    /// Returns the remedy of the failure.
    pub fn hint(&self) -> Option<&'static str> {
        self.failure().map(|failure| failure.kind.hint(self.agent, self.session.is_some()))
    }
}

/// The remedy for a path of the home directory that cannot be read.
const EXPOSE: &str =
    "most of your home directory is hidden from the agent; add paths that it needs to `sandbox.expose`";

/// The remedy for a path outside of the agent's workspaces.
const OUTSIDE: &str =
    "the agent's file tools open only its working directory: add other directories to the call";

/// Formats the first few items. Returns `None` for an empty list.
fn list<T: fmt::Display>(items: &[T]) -> Option<String> {
    const SHOWN: usize = 5;
    let shown: Vec<_> = items.iter().take(SHOWN).map(T::to_string).collect();
    let more = items.len().saturating_sub(SHOWN);
    let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!shown.is_empty()).then(|| format!("{}{rest}", shown.join(", ")))
}

/// Success or failure of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The agent reported success and nothing contradicts it.
    Success,
    /// Anything else.
    Failed(Failure),
}

/// A failure: its kind and a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Failure {
    /// The kind.
    #[serde(flatten)]
    pub kind: FailureKind,
    /// The agent's message, or the supervisor's if the agent printed none.
    pub message: String,
}

/// The kinds of failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FailureKind {
    /// The turn limit was reached; the session can be resumed.
    MaxTurns,
    /// The budget was used up; the session can be resumed.
    MaxBudget,
    /// The agent is not logged in, or its key was rejected.
    Auth,
    /// The account's rate limit or quota was reached.
    RateLimit {
        /// The time to wait, if the agent reports it.
        #[serde(rename = "retry_after_ms", with = "crate::event::opt_millis")]
        retry_after: Option<Duration>,
    },
    /// The vendor's servers are overloaded.
    Overloaded,
    /// A tool was denied. Only in records of earlier versions: see [`Outcome::refusals`].
    PermissionDenied,
    /// The agent answered, but a background task or a further turn was killed before it completed. The answer is stored, and the
    /// session can be resumed.
    Incomplete,
    /// The session does not exist.
    SessionNotFound,
    /// Another process uses the session.
    SessionInUse,
    /// The stream ended without a result, or with one that cannot be parsed.
    InvalidOutput,
    /// The answer does not match the output schema.
    SchemaMismatch,
    /// The agent violated its protocol, or did not reply during the handshake.
    ProtocolError,
    /// The installed agent does not offer an option of the call, such as its model.
    UnsupportedOption,
    /// A signal from outside killed the agent before its result; the session can be resumed.
    Killed {
        /// The signal number.
        signal: i32,
    },
    /// Nothing on stdout.
    EmptyOutput,
    /// The model's API could not be reached.
    Network,
    /// Any other failure that the agent reports in its message.
    AgentError,
    /// A deadline has passed.
    Deadline {
        /// The deadline.
        which: Deadline,
    },
    /// The output limit was exceeded.
    OutputLimit,
    /// Stopped by a user or a client.
    Stopped,
    /// The process could not be spawned.
    NotStarted {
        /// The reason.
        reason: NotStartedReason,
    },
    /// The output could not be written to the spool.
    SpoolFailed,
    /// The supervisor was killed.
    SupervisorLost,
    /// A bug in Switchboard.
    Internal,
    /// The agent kept creating a protected path and was stopped; or the policy is required, and a new path could not be scanned
    /// or moved to quarantine.
    PolicyViolation,
    /// The private checkout for the call could not be created.
    CheckoutFailed,
    /// The command that prepares a private checkout failed. The agent was not started.
    SetupFailed,
    /// The agent reported success, but the verification of the caller failed or could not run.
    VerificationFailed,
    /// The agent reported success, but changed no file although the caller expects changes.
    NoChanges,
    /// A review of several calls has fewer than two results to compare. The agent was not started.
    NothingToReview,
}

impl FailureKind {
    /// Returns the serialized name.
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
            Self::SchemaMismatch => "schema_mismatch",
            Self::ProtocolError => "protocol_error",
            Self::UnsupportedOption => "unsupported_option",
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
            Self::CheckoutFailed => "checkout_failed",
            Self::SetupFailed => "setup_failed",
            Self::VerificationFailed => "verification_failed",
            Self::NoChanges => "no_changes",
            Self::NothingToReview => "nothing_to_review",
        }
    }

    /// Returns the remedy, in one line. It speaks of resuming only if `has_session` is true.
    pub fn hint(&self, agent: AgentKind, has_session: bool) -> &'static str {
        match self {
            Self::MaxTurns if has_session => "resume the session to continue, or allow more turns",
            Self::MaxTurns => "allow more turns",
            Self::MaxBudget if has_session => "resume the session with a larger budget",
            Self::MaxBudget => "raise the budget",
            Self::Auth => login_hint(agent),
            Self::RateLimit { .. } if has_session => "wait until the limit is reset, then resume the session",
            Self::RateLimit { .. } => "wait until the limit is reset, then try again",
            Self::Overloaded => "try again in a few minutes, or use another model",
            Self::PermissionDenied => "allow the tool, or ask for something that does not need it",
            Self::Incomplete if has_session => {
                "read the answer, then resume the session to finish the work that was stopped"
            }
            Self::Incomplete => "read the answer, then call the agent again to finish the work",
            Self::SessionNotFound => "check the session id and its working directory, or start a new session",
            Self::SessionInUse => "wait for the other run of the session to finish, or start a new session",
            Self::InvalidOutput => {
                "see the raw output of the run; `switchboard doctor` checks the agent's version"
            }
            Self::SchemaMismatch if has_session => {
                "read the answer, then resume the session and ask for the missing part, or relax the schema"
            }
            Self::SchemaMismatch => "read the answer, then try again or relax the schema",
            Self::ProtocolError => {
                "see the raw output and stderr of the run; `switchboard doctor` checks the agent's version"
            }
            Self::UnsupportedOption => "omit the option or choose one of the offered values",
            Self::Killed { .. } if has_session => {
                "find the cause (`journalctl -k` lists OOM kills), then resume the session"
            }
            Self::Killed { .. } => "find the cause (`journalctl -k` lists OOM kills), then try again",
            Self::EmptyOutput => "see the agent's stderr; `switchboard doctor` checks its setup",
            Self::Network => "check the connection, the proxy variables and the agent's base URL",
            Self::AgentError => "the message comes from the agent; see the raw output for details",
            Self::Deadline { which: Deadline::Start } => {
                "the agent produced no output; check its login and network, or raise the start timeout"
            }
            Self::Deadline { which: Deadline::Idle } if has_session => {
                "the agent stopped producing output; resume its session, or raise the idle timeout"
            }
            Self::Deadline { which: Deadline::Idle } => {
                "the agent stopped producing output; try again, or raise the idle timeout"
            }
            Self::Deadline { which: Deadline::Wall } if has_session => {
                "raise the time limit, or resume the session"
            }
            Self::Deadline { which: Deadline::Wall } => "raise the time limit",
            Self::OutputLimit => "ask for less output, or raise the output limit",
            Self::Stopped if has_session => "resume the session to continue",
            Self::Stopped => "call the agent again to start over",
            Self::NotStarted { reason } => reason.hint(),
            Self::SpoolFailed => {
                "check that the state directory is still in its place and has free space, then retry"
            }
            Self::SupervisorLost if has_session => {
                "resume the session to continue; all processes of the run are gone"
            }
            Self::SupervisorLost => "try again; all processes of the run are gone",
            Self::Internal => {
                "see the daemon's log and report the bug; `switchboard retry` runs the job again"
            }
            Self::PolicyViolation => "inspect the paths in the result: they could run commands later",
            Self::CheckoutFailed => "fix the cause in the repository, or call the agent without a checkout",
            Self::SetupFailed => {
                "fix `worktree_setup` of the repository in the configuration, then call again"
            }
            Self::VerificationFailed if has_session => {
                "read the end of the command's output in the result, then resume the session to fix the cause"
            }
            Self::VerificationFailed => "read the end of the command's output in the result",
            Self::NoChanges if has_session => "read the answer, then resume the session with a clearer task",
            Self::NoChanges => "read the answer, then call the agent again with a clearer task",
            Self::NothingToReview => "read the results of the calls in the group",
        }
    }
}

fn login_hint(agent: AgentKind) -> &'static str {
    match agent {
        AgentKind::Claude => "log in with `claude` and then `/login`, or set ANTHROPIC_API_KEY",
        AgentKind::Codex => "log in with `codex login`, or set OPENAI_API_KEY",
        AgentKind::Gemini => "set GEMINI_API_KEY, or log in by starting `gemini` once",
        AgentKind::Rehearsal => "the script plays a failed login; nothing is wrong",
        AgentKind::Profiled(_) => "log in with the agent's own command, or set the variable with its key",
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

/// Token counts, in the same units for every agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read by the model, cached or not.
    pub input: u64,
    /// Tokens written by the model, reasoning included.
    pub output: u64,
    /// The part of `input` that came from a cache.
    pub cached: u64,
    /// The part of `output` that was reasoning, if the agent reports it.
    pub reasoning: u64,
}

impl Usage {
    /// Returns the sum.
    #[must_use]
    pub fn plus(self, further: Self) -> Self {
        Self {
            input: self.input.saturating_add(further.input),
            output: self.output.saturating_add(further.output),
            cached: self.cached.saturating_add(further.cached),
            reasoning: self.reasoning.saturating_add(further.reasoning),
        }
    }

    /// Returns the difference to `earlier`.
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

/// The highest plausible cost of a call, in dollars. A single false figure would spoil every sum.
pub const MAX_COST_USD: f64 = 100_000.0;

/// The highest plausible number of tokens of a call.
pub const MAX_TOKENS: u64 = 100_000_000_000;

/// Figures that an agent accumulates over a session.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Tokens, for agents that count them per session.
    pub usage: Option<Usage>,
    /// Cost, for agents that count it per session.
    pub cost_usd: Option<f64>,
}

/// A tool that an agent requested and was denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionDenial {
    /// The vendor's name of the tool.
    pub tool: String,
    /// The id of the tool call, if it has one.
    pub tool_use_id: Option<String>,
    /// The arguments as JSON, or the reason for the denial, as the agent reports it.
    pub detail: Option<String>,
}

/// A background task that did not complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackgroundTask {
    /// The agent's description.
    pub description: String,
    /// The status.
    pub status: BackgroundStatus,
}

/// The status of a background task that did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackgroundStatus {
    /// The agent reported that it was stopped or killed.
    Stopped,
    /// Still running when the agent's process exited, and killed with it.
    Killed,
    /// Exited with an error.
    Failed,
    /// The agent reported a status that this version does not know.
    Unknown,
}

impl BackgroundStatus {
    /// Returns the serialized name.
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

/// A rejected action of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedAction {
    /// The kind of action.
    pub kind: RefusedKind,
    /// The tool, path or host.
    pub subject: String,
    /// The message of the first refusal, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The number of refusals.
    pub count: u32,
    /// Rejected by a built-in rule of the agent, not by the sandbox or the permissions of the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_agent: bool,
}

impl RefusedAction {
    /// Returns an action that the sandbox or a missing permission rejected once.
    pub fn new(kind: RefusedKind, subject: &str, detail: Option<&str>) -> Self {
        let detail = detail.map(str::to_owned);
        Self { kind, subject: subject.to_owned(), detail, count: 1, by_agent: false }
    }
}

/// The kinds of rejected actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedKind {
    /// Use of a tool, denied by the agent's permissions.
    Tool,
    /// A write to a file, denied by the sandbox.
    Write,
    /// A read of a path that the sandbox hides, or that the agent's file tools do not open.
    Read,
    /// A connection to a host, denied by the sandbox.
    Host,
}

impl RefusedKind {
    /// Returns the serialized name.
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

/// The requested session and the one that the agent used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMismatch {
    /// The requested session.
    pub asked: SessionId,
    /// The session that the agent reported.
    pub got: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_serializes_flat() {
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
    fn failure_kind_name_matches_serialized_form() {
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
    fn status_and_refusal_names_match_serialized_form() {
        use BackgroundStatus::{Failed, Killed, Stopped, Unknown};
        for status in [Stopped, Killed, Failed, Unknown] {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
        for kind in [RefusedKind::Tool, RefusedKind::Write, RefusedKind::Read, RefusedKind::Host] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn usage_difference_is_never_negative() {
        let now = Usage { input: 30, output: 5, cached: 0, reasoning: 1 };
        let earlier = Usage { input: 10, output: 9, cached: 0, reasoning: 1 };
        assert_eq!(now.since(earlier), Usage { input: 20, ..Usage::default() });
    }
}
