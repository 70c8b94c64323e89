//! Calls, claims and outcomes for tests.

use std::time::Duration;

use model::{
    AgentKind, CallSpec, Claim, Exit, Job, JobEnd, NewJob, Outcome, Owner, Placement, SessionId, Usage,
    Verdict,
};
use store::{Capacity, ClaimRequest, RescueRequest, Store};

pub const LEASE: Duration = Duration::from_secs(30);

pub fn here() -> Placement {
    Placement::Host("here".into())
}

pub fn new_job(prompt: &str) -> NewJob {
    NewJob::new(CallSpec::new(AgentKind::Claude, prompt, "/home/ana/shop"), "call_cc", here())
}

pub fn new_job_for(agent: AgentKind, home: Placement) -> NewJob {
    NewJob::new(CallSpec::new(agent, "do it", "/home/ana/shop"), "call", home)
}

/// Returns the claim request of an owner that runs every agent on this host.
pub fn request(owner: &str) -> ClaimRequest {
    let agents = AgentKind::NATIVE.map(|agent| Capacity { agent, at_once: 1_000 });
    ClaimRequest { owner: Owner::new(owner), homes: vec![here()], agents: agents.to_vec(), lease: LEASE }
}

pub fn rescue_by(rescuer: &str) -> RescueRequest {
    RescueRequest { rescuer: Owner::new(rescuer), homes: vec![here()], dead: Vec::new(), lease: LEASE }
}

pub async fn claimed(store: &Store, owner: &str) -> (Job, Claim) {
    let job = store.claim(request(owner)).await.unwrap().expect("a job to claim");
    let claim = job.claim().unwrap();
    (job, claim)
}

pub fn session(text: &str) -> SessionId {
    text.parse().unwrap()
}

pub fn outcome(text: &str) -> Outcome {
    Outcome {
        agent: AgentKind::Claude,
        verdict: Verdict::Success,
        text: text.to_owned(),
        text_cut: 0,
        structured_output: None,
        session: Some(session("5f6d0c3e-6b5e-4a7e-9a39-0d5d7f6f8a11")),
        session_mismatch: None,
        model: Some("claude-haiku-4-5".into()),
        usage: Some(Usage { input: 100, output: 20, cached: 60, reasoning: 5 }),
        cost_usd: Some(0.25),
        session_totals: None,
        turns: Some(2),
        duration_ms: 1_200,
        permission_denials: Vec::new(),
        background: Vec::new(),
        refusals: Vec::new(),
        implausible: Vec::new(),
        retries: 0,
        exit: Some(Exit::Code(0)),
    }
}

pub fn success(text: &str) -> JobEnd {
    JobEnd::from(outcome(text)).with_exchange("do it", text)
}
