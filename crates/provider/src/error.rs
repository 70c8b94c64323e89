//! Everything that can go wrong with a request, and what to do about each.
//!
//! Owns the kinds and their words. How a failed run becomes one of them is `answer.rs`.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, SystemTime};

use agents::LaunchError;
use agents::doctor::NotReady;
use model::{AgentKind, BadName, Deadline, Exit, FailureKind, PermissionDenial, SessionId};
use supervisor::{StartError, WaitError};

use crate::message::OutgoingMessage;

/// Why there is no answer.
///
/// The message says what happened, [`ProviderError::hint`] what to do about it, and [`ProviderError::so_far`] how far the
/// agent came: its text, its session to go on with, and what it took.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The agent is not logged in, or its login is refused.
    #[error("{agent} CLI is not logged in: {message}")]
    Authentication {
        /// Who was asked.
        agent: AgentKind,
        /// The agent's own words.
        message: String,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// The account's limit is reached.
    #[error("{agent} CLI has reached its rate limit: {message}")]
    RateLimit {
        /// Who was asked.
        agent: AgentKind,
        /// The agent's own words.
        message: String,
        /// When the limit is reset, if the agent says so.
        resets_at: Option<SystemTime>,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// The vendor's servers have too much to do.
    #[error("{agent}'s servers are overloaded: {message}")]
    Overloaded {
        /// Who was asked.
        agent: AgentKind,
        /// The agent's own words.
        message: String,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// The model's API could not be reached.
    #[error("{agent} CLI cannot reach its model: {message}")]
    Network {
        /// Who was asked.
        agent: AgentKind,
        /// The agent's own words.
        message: String,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// What the agent answered cannot be made sense of.
    #[error("{agent} CLI gave an answer that cannot be read: {message}")]
    InvalidResponse {
        /// Who was asked.
        agent: AgentKind,
        /// What is wrong with it.
        message: String,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// The agent ended without a word on how it went.
    #[error("{agent} CLI exited with {exit}: {stderr}")]
    Exited {
        /// Who was asked.
        agent: AgentKind,
        /// How its process ended.
        exit: Exit,
        /// The end of its stderr.
        stderr: String,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// The agent failed in a way that it tells in words only, after it had said something.
    #[error("{agent} CLI failed: {message}")]
    Agent {
        /// Who was asked.
        agent: AgentKind,
        /// The agent's own words.
        message: String,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// Something on this machine is not as it has to be: a program that is missing, a folder that cannot be used.
    #[error("{problem}")]
    Environment {
        /// What it is.
        problem: String,
        /// What to do about it.
        remedy: String,
        /// The error below it, if any.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The agent wanted tools that it may not use. What it said all the same is in `so_far`.
    #[error("{agent} CLI was not allowed to use a tool: {message}")]
    ToolPermission {
        /// Who was asked.
        agent: AgentKind,
        /// The first denial in words.
        message: String,
        /// All of them.
        denials: Vec<PermissionDenial>,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// The agent answered, but work that it had started was stopped before it was done. The answer is in `so_far`, and its
    /// metadata names the background tasks.
    #[error("{agent} CLI did not finish: {message}")]
    Incomplete {
        /// Who was asked.
        agent: AgentKind,
        /// What was stopped.
        message: String,
        /// The answer.
        so_far: Box<OutgoingMessage>,
    },
    /// A wait was over.
    #[error("{agent} CLI timed out after {}{}", seconds(*after), which(*deadline))]
    Timeout {
        /// Who was asked.
        agent: AgentKind,
        /// Which wait it was.
        deadline: Deadline,
        /// How long it was.
        after: Duration,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// Somebody stopped the agent from outside. (A request whose future or stream is dropped says nothing any more.)
    #[error("{agent} CLI was stopped")]
    Cancelled {
        /// Who was asked.
        agent: AgentKind,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// There is no such conversation.
    #[error("{agent} CLI has no such session: {message}")]
    SessionNotFound {
        /// Who was asked.
        agent: AgentKind,
        /// The agent's own words.
        message: String,
    },
    /// Another process has the conversation.
    #[error("{agent} CLI uses the session elsewhere: {message}")]
    SessionInUse {
        /// Who was asked.
        agent: AgentKind,
        /// The agent's own words.
        message: String,
    },
    /// The turns are used up: those of the caller's own limit, or those of every continuation.
    #[error("{agent} CLI used up its turns ({})", after_resumes(so_far))]
    MaxTurns {
        /// Who was asked.
        agent: AgentKind,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// The money is used up.
    #[error("{agent} CLI used up its budget: {message}")]
    Budget {
        /// Who was asked.
        agent: AgentKind,
        /// The agent's own words.
        message: String,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// The agent printed more than it may.
    #[error("{agent} CLI printed more than it may")]
    OutputLimit {
        /// Who was asked.
        agent: AgentKind,
        /// How far it came.
        so_far: Box<OutgoingMessage>,
    },
    /// The request cannot be carried out as it is.
    #[error(transparent)]
    Request(#[from] LaunchError),
    /// This provider has no means for what is asked.
    #[error("{what}")]
    Unsupported {
        /// What is asked for, and of whom.
        what: String,
        /// What to do instead.
        instead: &'static str,
    },
    /// The operating system cannot keep the agent to its policy here, so it was not started.
    #[error("{agent} CLI cannot be confined here: {missing}")]
    NeedsSandbox {
        /// Who was to be confined.
        agent: AgentKind,
        /// What is missing, or does not hold.
        missing: String,
    },
}

impl ProviderError {
    /// What to do about it, in one line.
    pub fn hint(&self) -> String {
        let of_kind = |kind: FailureKind, agent: &AgentKind| kind.hint(*agent).to_owned();
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
                "add what is missing (`switchboard doctor` looks again); an agent with `Access::Files` needs no sandbox"
                    .to_owned()
            }
        }
    }

    /// How far the agent came before it failed; none when it never began, or has nothing to show.
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

    /// The conversation to go on with, if one had begun.
    pub fn session_id(&self) -> Option<&SessionId> {
        self.so_far()?.metadata.session_id.as_ref()
    }

    pub(crate) fn environment(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Environment { problem: problem.into(), remedy: remedy.into(), source: None }
    }

    /// An error of the operating system about a folder.
    pub(crate) fn folder(what: &str, folder: &Path, source: std::io::Error) -> Self {
        let problem = format!("{what} `{}`", folder.display());
        let remedy = "check that the folder is there and belongs to you".to_owned();
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
        Self::Environment {
            problem: "the run was lost sight of".to_owned(),
            remedy,
            source: Some(error.into()),
        }
    }
}

impl From<BadName> for ProviderError {
    fn from(error: BadName) -> Self {
        Self::Request(error.into())
    }
}

/// A time as a person writes it.
fn seconds(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{}s", time.as_secs()) } else { format!("{}ms", time.as_millis()) }
}

fn which(deadline: Deadline) -> &'static str {
    match deadline {
        Deadline::Wall => "",
        Deadline::Idle => " of silence",
        Deadline::Start => " without a first word",
    }
}

fn after_resumes(so_far: &OutgoingMessage) -> String {
    let turns =
        so_far.metadata.turns.map_or_else(|| "an unknown number".to_owned(), |turns| turns.to_string());
    match so_far.metadata.resumes {
        0 => format!("{turns} turns"),
        1 => format!("{turns} turns, continued once"),
        resumes => format!("{turns} turns, continued {resumes} times"),
    }
}
