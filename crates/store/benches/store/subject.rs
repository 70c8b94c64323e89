//! The workloads on the store.

use std::path::Path;
use std::time::{Duration, Instant};

use model::{AgentKind, CallSpec, JobEnd, NewJob, Outcome, Owner, Placement, Usage, Verdict};
use store::{
    Capacity, ClaimRequest, Credentials, JobFilter, PageRequest, Redactor, Store, StoreOptions, StoreSetting,
};
use tokio::task::JoinSet;

use crate::measure::Workload;

pub const PROMPT: &str =
    "Look at the failing test in the shop and say in two sentences what is wrong with it.";
pub const ANSWER: &str =
    "The test expects a price in cents. The function has answered euros since last week.";

/// The measured store.
pub struct Subject {
    store: Store,
}

fn new_job(home: &str) -> NewJob {
    NewJob::new(
        CallSpec::new(AgentKind::Claude, PROMPT, "/home/ana/shop"),
        "call_cc",
        Placement::Host(home.into()),
    )
}

pub fn outcome() -> Outcome {
    Outcome {
        agent: AgentKind::Claude,
        verdict: Verdict::Success,
        text: ANSWER.into(),
        text_cut: 0,
        structured_output: None,
        session: "5f6d0c3e-6b5e-4a7e-9a39-0d5d7f6f8a11".parse().ok(),
        session_mismatch: None,
        model: Some("claude-haiku-4-5".into()),
        usage: Some(Usage { input: 1_000, output: 50, cached: 900, reasoning: 0 }),
        cost_usd: Some(0.01),
        session_totals: None,
        turns: Some(2),
        duration_ms: 4_000,
        permission_denials: Vec::new(),
        background: Vec::new(),
        refusals: Vec::new(),
        implausible: Vec::new(),
        retries: 0,
        exit: None,
    }
}

fn request(owner: usize) -> ClaimRequest {
    ClaimRequest {
        owner: Owner::new(format!("worker {owner}")),
        homes: vec![Placement::Host("here".into())],
        agents: vec![Capacity { agent: AgentKind::Claude, at_once: 100 }],
        lease: Duration::from_secs(30),
    }
}

impl Subject {
    pub async fn open(path: &Path) -> Self {
        Self::open_setting(StoreSetting::Sqlite { path: Some(path.to_owned()) }, None).await
    }

    pub async fn open_setting(setting: StoreSetting, credentials: Option<Credentials>) -> Self {
        let options = StoreOptions::new(setting, "unused");
        let store =
            Store::open(StoreOptions { credentials, redactor: Redactor::none(), ..options }).await.unwrap();
        Self { store }
    }

    /// Stores a number of jobs: every tenth is queued for a machine that does not exist, the others are cancelled.
    pub async fn fill(&self, jobs: usize) {
        let mut tasks = JoinSet::new();
        for worker in 0..64 {
            let store = self.store.clone();
            tasks.spawn(async move {
                for number in (worker..jobs).step_by(64) {
                    let submitted = store.submit(new_job("elsewhere")).await.unwrap().job;
                    if number % 10 != 0 {
                        store.request_cancel(submitted.id).await.unwrap();
                    }
                }
            });
        }
        tasks.join_all().await;
    }

    /// Runs a workload with a number of concurrent workers and returns its duration.
    pub async fn run(&self, workload: Workload, workers: usize, count: usize) -> Duration {
        if workload == Workload::ClaimAndFinish {
            self.submit_jobs(workers, count, "here").await;
        }
        let start = Instant::now();
        match workload {
            Workload::Submit => self.submit_jobs(workers, count, "elsewhere").await,
            Workload::ClaimAndFinish => self.claim_and_finish(workers).await,
        }
        start.elapsed()
    }

    async fn submit_jobs(&self, workers: usize, count: usize, home: &'static str) {
        let mut tasks = JoinSet::new();
        for worker in 0..workers {
            let store = self.store.clone();
            tasks.spawn(async move {
                for _ in (worker..count).step_by(workers) {
                    store.submit(new_job(home)).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
    }

    async fn claim_and_finish(&self, workers: usize) {
        let mut tasks = JoinSet::new();
        for worker in 0..workers {
            let store = self.store.clone();
            tasks.spawn(async move {
                while let Some(job) = store.claim(request(worker)).await.unwrap() {
                    let end = JobEnd::from(outcome()).with_exchange(PROMPT, ANSWER);
                    store.finish(&job.claim().unwrap(), end).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
    }

    pub async fn list_newest(&self) {
        let page = self.store.list(&JobFilter::default(), PageRequest::default()).await.unwrap();
        assert!(!page.jobs.is_empty());
    }
}
