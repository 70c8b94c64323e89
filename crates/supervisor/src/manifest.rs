//! The manifest of a run (`plan.json`): its plan, its id, and the process that it must not outlive.

use model::{ProcessIdentity, RunId, RunPlan, STATUS_VERSION};
use serde::{Deserialize, Serialize};

use crate::spool_files::Versioned;

/// The content of `plan.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunManifest {
    version: u32,
    pub run_id: RunId,
    pub plan: RunPlan,
    /// The process that the run must not outlive, if there is one.
    #[serde(default)]
    pub starter: Option<ProcessIdentity>,
}

impl RunManifest {
    pub fn new(run_id: RunId, plan: RunPlan, starter: Option<ProcessIdentity>) -> Self {
        Self { version: STATUS_VERSION, run_id, plan, starter }
    }

    /// Parses a dummy manifest, so that the code and data of the parser are in memory before a fork.
    pub fn warm_up_parser() {
        let manifest = Self::new(RunId::from_random([0; 16]), RunPlan::new("/", "/"), None);
        let _ = serde_json::to_vec(&manifest).map(|json| serde_json::from_slice::<Self>(&json).map(drop));
    }
}

impl Versioned for RunManifest {
    fn version(&self) -> u32 {
        self.version
    }
}
