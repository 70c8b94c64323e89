//! Compares random histories with a simple model.
//!
//! The model does not use `model::Progress`: it states the expected behavior independently.

use std::collections::HashMap;
use std::time::Duration;

use model::{Attempt, Claim, JobId, NewJob, Owner, StateName, TerminalState, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use store::{RescueRequest, Store};

use crate::fixtures::{LEASE, new_job, request, rescue_by, success};
use crate::harness::{EngineKind, Harness, block_on};

pub const CONFORMANCE: &[crate::Conformance] =
    &[("random_histories_match_the_model", |harness| histories(harness.engine))];

const OWNERS: [&str; 3] = ["a", "b", "c"];
const MAX_ATTEMPTS: u32 = 2;

/// One operation. A job is named by its index in the order of submission, a claim by its owner and attempt.
#[derive(Debug, Clone)]
enum Operation {
    Submit,
    Claim { owner: usize },
    Renew { owner: usize },
    Finish { job: usize, owner: usize, attempt: u32 },
    Pause { job: usize, owner: usize, attempt: u32, seconds: u64 },
    Interrupt { job: usize, owner: usize, attempt: u32 },
    Requeue { job: usize, owner: usize, attempt: u32 },
    Adopt { job: usize, owner: usize, attempt: u32, by: usize },
    Cancel { job: usize },
    Rescue { owner: usize },
    Wait { seconds: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let owner = || 0..OWNERS.len();
    let claim = || (0..6_usize, owner(), 1..4_u32);
    prop_oneof![
        3 => Just(Operation::Submit),
        6 => owner().prop_map(|owner| Operation::Claim { owner }),
        2 => owner().prop_map(|owner| Operation::Renew { owner }),
        4 => claim().prop_map(|(job, owner, attempt)| Operation::Finish { job, owner, attempt }),
        3 => (claim(), 0..60_u64)
            .prop_map(|((job, owner, attempt), seconds)| Operation::Pause { job, owner, attempt, seconds }),
        4 => claim().prop_map(|(job, owner, attempt)| Operation::Interrupt { job, owner, attempt }),
        4 => claim().prop_map(|(job, owner, attempt)| Operation::Requeue { job, owner, attempt }),
        2 => (claim(), owner()).prop_map(|((job, owner, attempt), by)| Operation::Adopt { job, owner, attempt, by }),
        2 => (0..6_usize).prop_map(|job| Operation::Cancel { job }),
        2 => owner().prop_map(|owner| Operation::Rescue { owner }),
        3 => (0..50_u64).prop_map(|seconds| Operation::Wait { seconds }),
    ]
}

/// A job of the model.
#[derive(Debug, Clone, PartialEq)]
struct ModelJob {
    state: StateName,
    owner: Option<usize>,
    attempt: u32,
    interruptions: u32,
    cancel: bool,
    until: u64,
}

#[derive(Debug, Default)]
struct ModelStore {
    jobs: Vec<ModelJob>,
    leases: HashMap<usize, u64>,
    now: u64,
}

impl ModelStore {
    fn held(&mut self, job: usize, owner: usize, attempt: u32, running_only: bool) -> Option<&mut ModelJob> {
        self.jobs.get_mut(job).filter(|job| {
            let state_fits =
                job.state == StateName::Running || (!running_only && job.state == StateName::Interrupted);
            state_fits && job.owner == Some(owner) && job.attempt == attempt
        })
    }

    fn claim(&mut self, owner: usize) -> Option<usize> {
        self.leases.insert(owner, self.now + LEASE.as_secs());
        for job in &mut self.jobs {
            if job.state == StateName::Paused && job.until <= self.now {
                job.state = StateName::Queued;
            }
        }
        let found = self.jobs.iter().position(|job| job.state == StateName::Queued)?;
        let job = &mut self.jobs[found];
        (job.state, job.owner, job.attempt) = (StateName::Running, Some(owner), job.attempt + 1);
        Some(found)
    }

    /// Applies an operation and returns whether it succeeded.
    fn apply(&mut self, operation: &Operation) -> bool {
        let now = self.now;
        let done = match *operation {
            Operation::Submit => {
                let state = StateName::Queued;
                self.jobs.push(ModelJob {
                    state,
                    owner: None,
                    attempt: 0,
                    interruptions: 0,
                    cancel: false,
                    until: 0,
                });
                return true;
            }
            Operation::Claim { owner } => return self.claim(owner).is_some(),
            Operation::Renew { owner } => {
                self.leases.insert(owner, now + LEASE.as_secs());
                return true;
            }
            Operation::Wait { seconds } => {
                self.now += seconds;
                return true;
            }
            Operation::Rescue { owner } => return self.rescue(owner),
            Operation::Finish { job, owner, attempt } => {
                self.held(job, owner, attempt, false).map(|job| job.state = StateName::Completed)
            }
            Operation::Pause { job, owner, attempt, seconds } => {
                self.held(job, owner, attempt, true).map(|job| {
                    job.state = if job.cancel { StateName::Cancelled } else { StateName::Paused };
                    job.until = now + seconds;
                })
            }
            Operation::Interrupt { job, owner, attempt } => {
                self.held(job, owner, attempt, true).map(|job| job.state = StateName::Interrupted)
            }
            Operation::Requeue { job, owner, attempt } => self
                .held(job, owner, attempt, false)
                .filter(|job| job.state == StateName::Interrupted)
                .filter(|job| job.cancel || job.interruptions + 1 < MAX_ATTEMPTS)
                .map(|job| {
                    job.interruptions += 1;
                    job.state = if job.cancel { StateName::Cancelled } else { StateName::Queued };
                }),
            Operation::Adopt { job, owner, attempt, by } => {
                // The new owner's lease is renewed even if the adoption fails.
                self.leases.insert(by, now + LEASE.as_secs());
                self.held(job, owner, attempt, false).map(|job| {
                    (job.state, job.owner) = (StateName::Running, Some(by));
                })
            }
            Operation::Cancel { job } => self.jobs.get_mut(job).map(|job| match job.state {
                StateName::Queued | StateName::Paused => {
                    (job.state, job.cancel) = (StateName::Cancelled, true);
                }
                StateName::Running | StateName::Interrupted => job.cancel = true,
                _ => {}
            }),
        };
        done.is_some()
    }

    fn rescue(&mut self, rescuer: usize) -> bool {
        self.leases.insert(rescuer, self.now + LEASE.as_secs());
        let (leases, now) = (&self.leases, self.now);
        let mut has_rescued = false;
        for job in &mut self.jobs {
            let held = matches!(job.state, StateName::Running | StateName::Interrupted);
            let is_expired = |owner: usize| leases.get(&owner).is_none_or(|expires| *expires <= now);
            if held && job.owner.is_some_and(is_expired) {
                (job.state, job.owner) = (StateName::Interrupted, Some(rescuer));
                has_rescued = true;
            }
        }
        has_rescued
    }
}

/// The store, addressed by the indexes of the model.
struct RealStore {
    store: Store,
    harness: Harness,
    ids: Vec<JobId>,
}

impl RealStore {
    async fn apply(&mut self, operation: &Operation) -> bool {
        let store = &self.store;
        let named_owner = |owner: usize| Owner::new(OWNERS[owner]);
        let claim = |job: usize, owner: usize, attempt| {
            let job = *self.ids.get(job)?;
            Some(Claim { job, attempt: Attempt::new(attempt), owner: named_owner(owner) })
        };
        match *operation {
            Operation::Submit => {
                let new = NewJob { max_attempts: MAX_ATTEMPTS, ..new_job("x") };
                self.ids.push(store.submit(new).await.unwrap().job.id);
                true
            }
            Operation::Claim { owner } => store.claim(request(OWNERS[owner])).await.unwrap().is_some(),
            Operation::Renew { owner } => store.renew(&named_owner(owner), LEASE).await.is_ok(),
            Operation::Wait { seconds } => {
                self.harness.clock.advance(Duration::from_secs(seconds));
                true
            }
            Operation::Rescue { owner } => {
                let request = RescueRequest { ..rescue_by(OWNERS[owner]) };
                !store.rescue(request).await.unwrap().is_empty()
            }
            Operation::Finish { job, owner, attempt } => match claim(job, owner, attempt) {
                Some(claim) => store.finish(&claim, success("x")).await.is_ok(),
                None => false,
            },
            Operation::Pause { job, owner, attempt, seconds } => match claim(job, owner, attempt) {
                Some(claim) => {
                    let until = store.now().plus(Duration::from_secs(seconds));
                    store.pause_until(&claim, until).await.is_ok()
                }
                None => false,
            },
            Operation::Interrupt { job, owner, attempt } => match claim(job, owner, attempt) {
                Some(claim) => store.interrupt(&claim).await.is_ok(),
                None => false,
            },
            Operation::Requeue { job, owner, attempt } => match claim(job, owner, attempt) {
                Some(claim) => store.requeue(&claim).await.is_ok(),
                None => false,
            },
            Operation::Adopt { job, owner, attempt, by } => match claim(job, owner, attempt) {
                Some(claim) => store.adopt(&claim, &named_owner(by), LEASE).await.is_ok(),
                None => store.renew(&named_owner(by), LEASE).await.is_err(),
            },
            Operation::Cancel { job } => match self.ids.get(job) {
                Some(id) => store.request_cancel(*id).await.is_ok(),
                None => false,
            },
        }
    }

    /// Returns a job in the form of the model.
    async fn model_job(&self, job: usize, start: Timestamp) -> ModelJob {
        let job = self.store.get(self.ids[job]).await.unwrap().unwrap();
        let progress = job.progress;
        let until = match progress.state {
            model::JobState::Paused { until } => until.since(start).as_secs(),
            _ => 0,
        };
        ModelJob {
            state: progress.state.name(),
            owner: progress
                .state
                .holder()
                .and_then(|(_, owner)| OWNERS.iter().position(|name| *name == owner.as_str())),
            attempt: progress.attempt.number(),
            interruptions: progress.requeues,
            cancel: progress.cancel_requested_at.is_some(),
            until,
        }
    }
}

fn histories(engine: EngineKind) {
    let (cases, longest) = match engine {
        EngineKind::SqliteMemory => (200, 80),
        EngineKind::SqliteFile => (40, 60),
        EngineKind::Surreal => (6, 40),
        #[cfg(feature = "surreal-embedded")]
        EngineKind::Embedded => (6, 40),
    };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&prop::collection::vec(operation(), 1..longest), |history| {
        block_on(follow(engine, &history));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

async fn follow(engine: EngineKind, history: &[Operation]) {
    let harness = Harness::new(engine);
    let start = harness.clock.now();
    let mut real = RealStore { store: harness.open().await, harness, ids: Vec::new() };
    let mut model = ModelStore::default();
    for (step, operation) in history.iter().enumerate() {
        let (expected, done) = (model.apply(operation), real.apply(operation).await);
        assert_eq!(done, expected, "step {step}: {operation:?}\n{model:?}");
        for (number, expected) in model.jobs.iter().enumerate() {
            let mut expected = expected.clone();
            // The store keeps no owner of a job that is not claimed.
            if !matches!(expected.state, StateName::Running | StateName::Interrupted) {
                expected.owner = None;
            }
            if expected.state != StateName::Paused {
                expected.until = 0;
            }
            assert_eq!(
                real.model_job(number, start).await,
                expected,
                "step {step}: {operation:?}, job {number}"
            );
        }
    }
    let ended = model.jobs.iter().filter(|job| job.state == TerminalState::Completed.name()).count();
    let filter = store::JobFilter { states: vec![StateName::Completed], ..Default::default() };
    assert_eq!(real.store.count(&filter).await.unwrap(), ended as u64);
}
