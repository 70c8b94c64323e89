//! What the simulation is calibrated with: `bench/scale.toml`.

use std::path::Path;

use serde::Deserialize;

use crate::Failure;

/// Everything that can be set.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// What a question costs the server.
    pub costs: Costs,
    /// The server.
    pub server: Server,
    /// Every daemon.
    pub daemon: Daemon,
    /// What is asked of them.
    pub work: Work,
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
    /// It reads what it took.
    pub read: f64,
    /// It says how the job ended.
    pub finish: f64,
    /// It says that it is alive.
    pub renew: f64,
    /// It looks for those that are not.
    pub rescue: f64,
    /// It looks for what has changed.
    pub changes: f64,
}

/// The database.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// How many questions it answers at once.
    pub lanes: usize,
    /// The way there and back, in milliseconds.
    pub round_trip: f64,
}

/// A daemon; times in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    /// How many jobs it runs at once.
    pub at_once: usize,
    /// How long it counts as alive after it said so; it says so three times in that.
    pub lease: f64,
    /// How often it looks for work that nobody told it of.
    pub look_again: f64,
    /// Within how long after it is told of a job that others may take, too, it looks for it.
    pub spread: f64,
    /// How many jobs of a queue it sees at once.
    pub looked_at: usize,
    /// How many of them it tries to take, from one at random on, before it looks again.
    pub tried: usize,
    /// How long it waits when others were faster; twice as long each time.
    pub first_pause: f64,
    /// The most of that.
    pub longest_pause: f64,
}

/// What is asked; times in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// How long a job runs on average.
    pub job_seconds: f64,
    /// How much of all places the jobs would fill.
    pub load: f64,
    /// How long it runs before it is measured.
    pub warm_up: f64,
    /// How long it is measured.
    pub measured: f64,
}

impl Calibration {
    /// From the file in this repository.
    pub fn read() -> Result<Self, Failure> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scale.toml");
        Ok(toml::from_str(&std::fs::read_to_string(file)?)?)
    }
}
