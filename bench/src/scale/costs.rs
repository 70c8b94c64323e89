//! The calibration of the simulation: `bench/scale.toml`.

use std::path::Path;

use serde::Deserialize;

use crate::Failure;

/// Everything that can be set.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The cost of each query for the server.
    pub costs: Costs,
    /// The server.
    pub server: ServerCosts,
    /// Every daemon.
    pub daemon: Daemon,
    /// The load.
    pub work: SimulatedLoad,
}

/// Milliseconds of the server's time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// A job is placed.
    pub place: f64,
    /// A daemon looks for work.
    pub look: f64,
    /// It takes a job.
    pub take: f64,
    /// Reads the claimed job.
    pub read: f64,
    /// Finishes the job.
    pub finish: f64,
    /// Renews the lease.
    pub renew: f64,
    /// It looks for those that are not.
    pub rescue: f64,
    /// Polls for changes.
    pub changes: f64,
}

/// The database.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerCosts {
    /// The number of concurrent queries.
    pub lanes: usize,
    /// The way there and back, in milliseconds.
    pub round_trip: f64,
}

/// A daemon; times in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    /// The number of concurrent jobs.
    pub at_once: usize,
    /// The duration of a lease; it is renewed three times in that.
    pub lease: f64,
    /// The poll interval for jobs without a notification.
    pub look_again: f64,
    /// The claim jitter for a job that others may claim, too.
    pub spread: f64,
    /// The number of queued jobs that one query returns.
    pub looked_at: usize,
    /// The number of claims, from a random job on, before the next query.
    pub tried: usize,
    /// The first backoff after a lost claim; it doubles each time.
    pub first_pause: f64,
    /// The most of that.
    pub longest_pause: f64,
}

/// The load; times in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedLoad {
    /// The mean duration of a job.
    pub job_seconds: f64,
    /// The share of all slots that the jobs would fill.
    pub load: f64,
    /// The warm-up time.
    pub warm_up: f64,
    /// The measured time.
    pub measured: f64,
}

impl Calibration {
    /// Reads the file in this repository.
    pub fn read() -> Result<Self, Failure> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scale.toml");
        Ok(toml::from_str(&std::fs::read_to_string(file)?)?)
    }
}
