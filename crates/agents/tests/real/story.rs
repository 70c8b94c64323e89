//! A call that is over, with all that a failed assertion wants to tell about it.

use std::fmt;

use agents::Launch;
use model::{AgentEvent, Exit, FailureKind, Outcome, RunReport, SessionId};

/// How much of each stream is told.
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
    /// The outcome of a call that must have gone well.
    pub fn succeeded(&self) -> &Outcome {
        assert!(self.outcome.is_success() && self.report.exit == Some(Exit::Code(0)), "{self}");
        assert_eq!(self.outcome.session_mismatch, None, "{self}");
        &self.outcome
    }

    /// The kind of failure of a call that must have failed, in words and with a hint.
    pub fn failed(&self) -> &FailureKind {
        let Some(failure) = self.outcome.failure() else { panic!("a success: {self}") };
        assert!(!failure.message.is_empty() && self.outcome.hint().is_some(), "{self}");
        &failure.kind
    }

    /// The session of a call that must have one.
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
