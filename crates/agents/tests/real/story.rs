//! A finished call with its details for a failed assertion.

use std::fmt;

use agents::Launch;
use model::{AgentEvent, Exit, FailureKind, Outcome, RunReport, SessionId};

/// The printed part of each stream.
const EXCERPT: usize = 6000;

pub struct Done {
    pub launch: Launch,
    pub outcome: Outcome,
    pub report: RunReport,
    pub events: Vec<AgentEvent<'static>>,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// Returns the outcome, which must be a success.
    pub fn succeeded(&self) -> &Outcome {
        assert!(self.outcome.is_success() && self.report.exit == Some(Exit::Code(0)), "{self}");
        assert_eq!(self.outcome.session_mismatch, None, "{self}");
        &self.outcome
    }

    /// Returns the kind of the failure, which must have a message and a hint.
    pub fn failed(&self) -> &FailureKind {
        let Some(failure) = self.outcome.failure() else { panic!("a success: {self}") };
        assert!(!failure.message.is_empty() && self.outcome.hint().is_some(), "{self}");
        &failure.kind
    }

    /// Returns the session, which must exist.
    pub fn session(&self) -> SessionId {
        self.outcome.session.clone().unwrap_or_else(|| panic!("no session: {self}"))
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:#?}\n{:?}\narguments: {:?}", self.outcome, self.report, self.launch.plan.args)?;
        for (name, text) in [("stderr", &self.stderr), ("stdout", &self.stdout)] {
            writeln!(f, "{name}:\n{}", text.chars().take(EXCERPT).collect::<String>())?;
        }
        Ok(())
    }
}
