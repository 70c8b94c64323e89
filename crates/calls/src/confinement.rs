//! What confined the agent of a call, in short: for whoever reads the answer. The whole of it stands in the job's record.

use model::{Hold, Preset, Proof, Safeguard, SandboxReport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What confined the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sandbox {
    /// The policy; `off` says that nothing confined it.
    pub policy: String,
    /// What did not hold in full on this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
    /// How many ways out a probe had tried in the same sandbox, and found closed.
    #[serde(default)]
    pub ways_out_stopped: usize,
    /// Whom it asked for in vain, in a network of named hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_hosts: Vec<String>,
}

/// A safeguard that did not hold in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// Which one.
    pub safeguard: String,
    /// Whether nothing of it held, or some.
    pub open: bool,
    /// Why.
    pub why: String,
}

impl Sandbox {
    /// From the report in a job's record; none when there is none, or one that this version cannot read.
    pub(crate) fn read(report: &Value) -> Option<Self> {
        Some(Self::from(&SandboxReport::deserialize(report).ok()?))
    }

    /// As one line for a person; that nothing confined it is said every time.
    pub fn told(&self) -> String {
        if self.policy == Preset::Off.name() {
            return "policy: OFF (no sandbox: the agent had all of your permissions)".to_owned();
        }
        let open: Vec<&str> =
            self.gaps.iter().filter(|gap| gap.open).map(|gap| gap.safeguard.as_str()).collect();
        let enforced = if open.is_empty() {
            "fully enforced".to_owned()
        } else {
            format!("NOT enforced: {}", open.join(", "))
        };
        let Self { policy, ways_out_stopped, .. } = self;
        format!("policy: {policy} ({enforced}; {ways_out_stopped} escape attempts blocked)")
    }
}

impl From<&SandboxReport> for Sandbox {
    fn from(report: &SandboxReport) -> Self {
        let SandboxReport::Confined(confined) = report else {
            let policy = Preset::Off.to_string();
            return Self { policy, gaps: Vec::new(), ways_out_stopped: 0, refused_hosts: Vec::new() };
        };
        let gap = |gap: &Safeguard| Gap {
            safeguard: gap.name.to_string(),
            open: gap.hold == Hold::Open,
            why: gap.why.clone(),
        };
        let stopped = |proof: &Proof| proof.escapes.iter().filter(|way| way.stopped).count();
        Self {
            policy: confined.policy.preset.to_string(),
            gaps: confined.gaps().map(gap).collect(),
            ways_out_stopped: confined.proof.as_ref().map(stopped).unwrap_or_default(),
            refused_hosts: confined.refused_hosts.clone(),
        }
    }
}
