//! The record of a run, which lets another daemon judge it.

use agents::RunSequence;
use model::{Attempt, Claim, ExpectedSession, Totals};
use serde::{Deserialize, Serialize};

/// The content of `runs/N.json`. Written before the run's directory exists, so a run without a record was never started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    #[serde(rename = "relay")]
    pub sequence: RunSequence,
    pub session: ExpectedSession,
    pub model: Option<String>,
    /// The vendor's totals of the session before this run.
    pub before: Option<Totals>,
    /// The claim that started the run; 0 in a record of an earlier version.
    #[serde(default)]
    attempt: u32,
}

impl RunRecord {
    pub fn new(
        sequence: RunSequence,
        session: ExpectedSession,
        model: Option<String>,
        before: Option<Totals>,
        claim: &Claim,
    ) -> Self {
        Self { sequence, session, model, before, attempt: claim.attempt.number() }
    }

    /// Returns the name of a run's record within the job's directory.
    pub fn file_name(run: u32) -> String {
        format!("runs/{run}.json")
    }

    /// Returns the attempt that started the run; 0 if an earlier version did not record it.
    pub fn attempt(&self) -> Attempt {
        Attempt::new(self.attempt)
    }

    /// Returns whether the run belongs to this claim. A run of an earlier claim has ended and was judged.
    pub fn belongs_to(&self, claim: &Claim) -> bool {
        self.attempt == 0 || self.attempt >= claim.attempt.number()
    }
}
