//! All errors of a request, each with a hint.
//!
//! `answer.rs` converts a failed run to one of them.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, SystemTime};

use agents::LaunchError;
use agents::doctor::NotReady;
use model::{AgentKind, BadName, Deadline, Exit, FailureKind, PermissionDenial, SessionId};
use supervisor::{StartError, WaitError};

use crate::message::OutgoingMessage;

/// An error of a request.
///
/// [`ProviderError::hint`] returns the remedy, and [`ProviderError::so_far`] the partial result: text, session to resume,
/// usage.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The agent is not logged in, or its login is rejected.
    #[error("{agent} CLI is not logged in: {message}")]
    Authentication {
        /// The agent.
        agent: AgentKind,
        /// The agent's message.
        message: String,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The account's rate limit is reached.
    #[error("{agent} CLI has reached its rate limit: {message}")]
    RateLimit {
        /// The agent.
        agent: AgentKind,
        /// The agent's message.
        message: String,
        /// The time of the reset, if the agent reports it.
        resets_at: Option<SystemTime>,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The vendor's servers are overloaded.
    #[error("{agent}'s servers are overloaded: {message}")]
    Overloaded {
        /// The agent.
        agent: AgentKind,
        /// The agent's message.
        message: String,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The model's API is unreachable.
    #[error("{agent} CLI cannot reach its model: {message}")]
    Network {
        /// The agent.
        agent: AgentKind,
        /// The agent's message.
        message: String,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The agent's output cannot be parsed.
    #[error("{agent} CLI returned output that cannot be parsed: {message}")]
    InvalidResponse {
        /// The agent.
        agent: AgentKind,
        /// The reason.
        message: String,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The agent exited without a result.
    #[error("{agent} CLI exited with {exit}: {stderr}")]
    Exited {
        /// The agent.
        agent: AgentKind,
        /// The exit status of its process.
        exit: Exit,
        /// The tail of stderr.
        stderr: String,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The agent failed with an error in prose, after some output.
    #[error("{agent} CLI failed: {message}")]
    Agent {
        /// The agent.
        agent: AgentKind,
        /// The agent's message.
        message: String,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// This machine lacks something, for example a program or a usable directory.
    #[error("{problem}")]
    Environment {
        /// The problem.
        problem: String,
        /// The remedy.
        remedy: String,
        /// The cause, if any.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The agent was denied tools. Its text is in `so_far`.
    #[error("{agent} CLI was not allowed to use a tool: {message}")]
    ToolPermission {
        /// The agent.
        agent: AgentKind,
        /// The first denial.
        message: String,
        /// All denials.
        denials: Vec<PermissionDenial>,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The agent answered, but some of its work was stopped early. The answer is in `so_far`, and its metadata lists the
    /// background tasks.
    #[error("{agent} CLI did not finish: {message}")]
    Incomplete {
        /// The agent.
        agent: AgentKind,
        /// The stopped work.
        message: String,
        /// The answer.
        so_far: Box<OutgoingMessage>,
    },
    /// A deadline expired.
    #[error("{agent} CLI timed out after {}{}", seconds(*after), which(*deadline))]
    Timeout {
        /// The agent.
        agent: AgentKind,
        /// The deadline.
        deadline: Deadline,
        /// Its duration.
        after: Duration,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The agent was stopped from outside. (A request whose future or stream is dropped returns nothing.)
    #[error("{agent} CLI was stopped")]
    Cancelled {
        /// The agent.
        agent: AgentKind,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The session does not exist.
    #[error("{agent} CLI has no such session: {message}")]
    SessionNotFound {
        /// The agent.
        agent: AgentKind,
        /// The agent's message.
        message: String,
    },
    /// Another process uses the session.
    #[error("{agent} CLI is already using the session: {message}")]
    SessionInUse {
        /// The agent.
        agent: AgentKind,
        /// The agent's message.
        message: String,
    },
    /// The turn limit is used up: the caller's, or that of all resumes.
    #[error("{agent} CLI used up its turns ({})", after_resumes(so_far))]
    MaxTurns {
        /// The agent.
        agent: AgentKind,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The cost limit is used up.
    #[error("{agent} CLI used up its budget: {message}")]
    Budget {
        /// The agent.
        agent: AgentKind,
        /// The agent's message.
        message: String,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The output limit is exceeded.
    #[error("{agent} CLI exceeded its output limit")]
    OutputLimit {
        /// The agent.
        agent: AgentKind,
        /// The partial result.
        so_far: Box<OutgoingMessage>,
    },
    /// The request is invalid.
    #[error(transparent)]
    Request(#[from] LaunchError),
    /// The provider does not support an option.
    #[error("{what}")]
    Unsupported {
        /// The option and the provider.
        what: String,
        /// An alternative.
        instead: &'static str,
    },
    /// The policy cannot be enforced on this machine, so the agent was not started.
    #[error("{agent} CLI cannot be confined here: {missing}")]
    NeedsSandbox {
        /// The agent.
        agent: AgentKind,
        /// The missing mechanism.
        missing: String,
    },
}

impl ProviderError {
    /// Returns the remedy in one line.
    pub fn hint(&self) -> String {
        let has_session = self.session_id().is_some();
        let of_kind = |kind: FailureKind, agent: &AgentKind| kind.hint(*agent, has_session).to_owned();
        match self {
            Self::Authentication { agent, .. } => of_kind(FailureKind::Auth, agent),
            Self::RateLimit { agent, .. } => of_kind(FailureKind::RateLimit { retry_after: None }, agent),
            Self::Overloaded { agent, .. } => of_kind(FailureKind::Overloaded, agent),
            Self::Network { agent, .. } => of_kind(FailureKind::Network, agent),
            Self::InvalidResponse { agent, .. } => of_kind(FailureKind::InvalidOutput, agent),
            Self::Exited { agent, .. } => of_kind(FailureKind::EmptyOutput, agent),
            Self::Agent { agent, .. } => of_kind(FailureKind::AgentError, agent),
            Self::Environment { remedy, .. } => remedy.clone(),
            Self::ToolPermission { agent, .. } => of_kind(FailureKind::PermissionDenied, agent),
            Self::Incomplete { agent, .. } => of_kind(FailureKind::Incomplete, agent),
            Self::Timeout { agent, deadline, .. } => {
                of_kind(FailureKind::Deadline { which: *deadline }, agent)
            }
            Self::Cancelled { agent, .. } => of_kind(FailureKind::Stopped, agent),
            Self::SessionNotFound { agent, .. } => of_kind(FailureKind::SessionNotFound, agent),
            Self::SessionInUse { agent, .. } => of_kind(FailureKind::SessionInUse, agent),
            Self::MaxTurns { agent, .. } => of_kind(FailureKind::MaxTurns, agent),
            Self::Budget { agent, .. } => of_kind(FailureKind::MaxBudget, agent),
            Self::OutputLimit { agent, .. } => of_kind(FailureKind::OutputLimit, agent),
            Self::Request(error) => error.hint(),
            Self::Unsupported { instead, .. } => (*instead).to_owned(),
            Self::NeedsSandbox { .. } => {
                "install the missing mechanism (`switchboard doctor` checks it), or use `Access::Files`, which needs no sandbox"
                    .to_owned()
            }
        }
    }

    /// Returns the partial result; `None` if the agent did not start or produced nothing.
    pub fn so_far(&self) -> Option<&OutgoingMessage> {
        match self {
            Self::Authentication { so_far, .. }
            | Self::RateLimit { so_far, .. }
            | Self::Overloaded { so_far, .. }
            | Self::Network { so_far, .. }
            | Self::InvalidResponse { so_far, .. }
            | Self::Exited { so_far, .. }
            | Self::Agent { so_far, .. }
            | Self::ToolPermission { so_far, .. }
            | Self::Incomplete { so_far, .. }
            | Self::Timeout { so_far, .. }
            | Self::Cancelled { so_far, .. }
            | Self::MaxTurns { so_far, .. }
            | Self::Budget { so_far, .. }
            | Self::OutputLimit { so_far, .. } => Some(so_far),
            Self::Environment { .. }
            | Self::SessionNotFound { .. }
            | Self::SessionInUse { .. }
            | Self::Request(_)
            | Self::Unsupported { .. }
            | Self::NeedsSandbox { .. } => None,
        }
    }

    /// Returns the session to resume, if one was started.
    pub fn session_id(&self) -> Option<&SessionId> {
        self.so_far()?.metadata.session_id.as_ref()
    }

    pub(crate) fn environment(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Environment { problem: problem.into(), remedy: remedy.into(), source: None }
    }

    /// Creates an error about a directory.
    pub(crate) fn directory(what: &str, directory: &Path, source: std::io::Error) -> Self {
        let problem = format!("{what} `{}`", directory.display());
        let remedy = "check that the directory exists and belongs to you".to_owned();
        Self::Environment { problem, remedy, source: Some(source.into()) }
    }
}

impl From<NotReady> for ProviderError {
    fn from(error: NotReady) -> Self {
        Self::environment(error.to_string(), error.hint())
    }
}

impl From<StartError> for ProviderError {
    fn from(error: StartError) -> Self {
        if let StartError::NoSupervisor { .. } = error {
            return Self::environment(
                error.to_string(),
                "call `provider::run_if_asked()` first in `main`, or install `switchboard-supervisor` beside the program or in `PATH`: `cargo install --locked --path crates/switchboard`",
            );
        }
        let remedy = error.hint().to_owned();
        Self::Environment { problem: "cannot start a run".to_owned(), remedy, source: Some(error.into()) }
    }
}

impl From<WaitError> for ProviderError {
    fn from(error: WaitError) -> Self {
        let remedy = error.hint().to_owned();
        Self::Environment { problem: "lost track of the run".to_owned(), remedy, source: Some(error.into()) }
    }
}

impl From<BadName> for ProviderError {
    fn from(error: BadName) -> Self {
        Self::Request(error.into())
    }
}

/// Formats a duration.
fn seconds(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{}s", time.as_secs()) } else { format!("{}ms", time.as_millis()) }
}

fn which(deadline: Deadline) -> &'static str {
    match deadline {
        Deadline::Wall => "",
        Deadline::Idle => " of silence",
        Deadline::Start => " without output",
    }
}

fn after_resumes(so_far: &OutgoingMessage) -> String {
    let turns =
        so_far.metadata.turns.map_or_else(|| "an unknown number".to_owned(), |turns| turns.to_string());
    match so_far.metadata.resumes {
        0 => format!("{turns} turns"),
        1 => format!("{turns} turns, resumed once"),
        resumes => format!("{turns} turns, resumed {resumes} times"),
    }
}
