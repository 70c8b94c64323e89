//! The measurements and their alternation.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::baseline::RusqliteBaseline;
use crate::filled_store::FilledStore;
use crate::report::{Baseline, Row, Target, Unit};
use crate::server;
use crate::spread::Spread;
use crate::subject::Subject;

/// The extent of a run.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    rounds: usize,
    /// The number of jobs per sample, with one worker and with many.
    alone: usize,
    together: usize,
    /// The numbers of stored jobs.
    few: usize,
    many: usize,
}

pub const FULL: Scale = Scale { rounds: 15, alone: 100, together: 640, few: 100, many: 100_000 };
pub const QUICK: Scale = Scale { rounds: 2, alone: 10, together: 64, few: 10, many: 200 };

/// The number of concurrent workers.
const WORKERS: usize = 32;

const BY_HAND: &str = "rusqlite by hand";

impl Scale {
    /// Describes the method as a Markdown list.
    pub fn method(&self) -> String {
        let Self { rounds, alone, together, few, many } = self;
        format!(
            "- rounds: {rounds} after one that is not counted; in each, ours and the baseline take turns on {few} and on {many} stored \
             jobs, each time another one first; shown are median (least–greatest), ratios are those of a round\n\
             - a sample: {alone} pieces of work by one worker, {together} by {WORKERS}; what it has added is taken away \
             before the next, and the log is emptied\n\
             - the baseline: the same statements on the same tables with one rusqlite connection, a transaction and a sync for \
             each; the store shares syncs among those who wait together, and lets a claim go without one\n\
             - growth: the time for the same work on {many} stored jobs ÷ that on {few}, in the same round"
        )
    }

    fn count(&self, workers: usize) -> usize {
        if workers == 1 { self.alone } else { self.together }
    }
}

/// The measured operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Submit a job.
    Submit,
    /// Claim a job and finish it.
    ClaimAndFinish,
}

const WORKLOADS: [(&str, Workload, usize); 4] = [
    ("place, 1 worker", Workload::Submit, 1),
    ("place, 32 workers", Workload::Submit, WORKERS),
    ("claim + finish, 1 worker", Workload::ClaimAndFinish, 1),
    ("claim + finish, 32 workers", Workload::ClaimAndFinish, WORKERS),
];

/// The measured implementation.
#[derive(Debug, Clone, Copy)]
enum Side {
    Subject,
    Baseline,
}

/// Two stores of the same size: one for the subject, one for the baseline.
struct StorePair {
    jobs: usize,
    subject: (FilledStore, Subject),
    baseline: (FilledStore, RusqliteBaseline),
}

impl StorePair {
    async fn create(jobs: usize, directory: &Path) -> Self {
        eprintln!("filling: {jobs} jobs, twice");
        let subject = FilledStore::create(jobs, &directory.join(format!("ours-{jobs}"))).await;
        let baseline = FilledStore::create(jobs, &directory.join(format!("hand-{jobs}"))).await;
        let (store, connection) =
            (Subject::open(&subject.path).await, RusqliteBaseline::open(&baseline.path));
        Self { jobs, subject: (subject, store), baseline: (baseline, connection) }
    }

    /// Returns the number of jobs per second.
    async fn rate(&self, side: Side, work: Workload, workers: usize, count: usize) -> f64 {
        let (filled, took) = match side {
            Side::Subject => (&self.subject.0, self.subject.1.run(work, workers, count).await),
            Side::Baseline => (&self.baseline.0, self.baseline.1.run(work, workers, count)),
        };
        filled.restore();
        per_second(count, took)
    }
}

fn per_second(count: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap()) / took.as_secs_f64()
}

fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Alternating samples of both implementations.
#[derive(Debug, Default)]
struct Samples {
    subject: Vec<f64>,
    baseline: Vec<f64>,
}

impl Samples {
    fn side_mut(&mut self, side: Side) -> &mut Vec<f64> {
        match side {
            Side::Subject => &mut self.subject,
            Side::Baseline => &mut self.baseline,
        }
    }

    fn row(&self, what: String, unit: Unit, baseline: &'static str, target: Option<Target>) -> Row {
        Row {
            what,
            unit,
            baseline: Some(Baseline::of(baseline, &self.baseline, &self.subject)),
            ours: Spread::of(self.subject.iter().copied()),
            target,
        }
    }
}

pub async fn measure_sqlite(scale: Scale, directory: &Path) -> Vec<Row> {
    let pairs =
        [StorePair::create(scale.few, directory).await, StorePair::create(scale.many, directory).await];
    let (mut rows, mut growths) = (Vec::new(), Vec::new());
    for (what, work, workers) in WORKLOADS {
        eprintln!("measuring: {what}");
        let sizes = sample_all(scale, &pairs, work, workers).await;
        for (pair, samples) in pairs.iter().zip(&sizes) {
            let what = format!("{what}, {} stored", pair.jobs);
            rows.push(samples.row(what, Unit::PerSecond, BY_HAND, Some(Target::RatioAtLeast(0.7))));
        }
        let what = format!("growth: {what}");
        growths.push(growth(&sizes).row(what, Unit::Count, BY_HAND, Some(Target::Below(1.5))));
    }
    rows.append(&mut growths);
    let [_, many] = pairs;
    rows.push(list(scale, &many).await);
    rows.push(open(scale, many).await);
    rows
}

/// Measures both implementations on the small store and on the large one.
async fn sample_all(scale: Scale, pairs: &[StorePair; 2], work: Workload, workers: usize) -> [Samples; 2] {
    let mut sizes = [Samples::default(), Samples::default()];
    let mut order = [(0, Side::Subject), (0, Side::Baseline), (1, Side::Subject), (1, Side::Baseline)];
    let count = scale.count(workers);
    for round in 0..=scale.rounds {
        for (size, side) in order {
            let rate = pairs[size].rate(side, work, workers, count).await;
            if round > 0 {
                sizes[size].side_mut(side).push(rate);
            }
        }
        // The previous sample affects caches and queues, so the order rotates.
        order.rotate_left(1);
    }
    sizes
}

/// Returns the slowdown on the large store per round.
fn growth([few, many]: &[Samples; 2]) -> Samples {
    let growth = |few: &[f64], many: &[f64]| few.iter().zip(many).map(|(few, many)| few / many).collect();
    Samples { subject: growth(&few.subject, &many.subject), baseline: growth(&few.baseline, &many.baseline) }
}

async fn list(scale: Scale, many: &StorePair) -> Row {
    eprintln!("measuring: list");
    let mut samples = Samples::default();
    for _ in 0..scale.rounds * 3 {
        let start = Instant::now();
        many.subject.1.list_newest().await;
        samples.subject.push(millis(start));
        let start = Instant::now();
        many.baseline.1.list_newest();
        samples.baseline.push(millis(start));
    }
    // 70 % of the speed is 1.43 times the duration.
    let what = format!("list the 100 newest of {}", many.jobs);
    samples.row(what, Unit::Milliseconds, BY_HAND, Some(Target::RatioBelow(1.43)))
}

async fn open(scale: Scale, many: StorePair) -> Row {
    eprintln!("measuring: open");
    let StorePair { jobs, subject: (subject, store), baseline: (baseline, connection) } = many;
    drop((store, connection));
    let mut samples = Samples::default();
    for _ in 0..scale.rounds * 3 {
        let start = Instant::now();
        let store = Subject::open(&subject.path).await;
        samples.subject.push(millis(start));
        drop(store);
        let start = Instant::now();
        let connection = RusqliteBaseline::open(&baseline.path);
        samples.baseline.push(millis(start));
        drop(connection);
    }
    samples.row(format!("open a store of {jobs}"), Unit::Milliseconds, BY_HAND, None)
}

/// Compares a server with the store on `SQLite`. For orientation only: the server is a debug build with its records in memory.
pub async fn measure_server(scale: Scale, directory: &Path) -> Result<Vec<Row>, String> {
    if !cfg!(feature = "surreal") {
        return Err("built without the feature `surreal`".to_owned());
    }
    if let Some(reason) = server::missing() {
        return Err(reason);
    }
    let sqlite = Subject::open(&directory.join("beside-a-server")).await;
    let started = server::SurrealServer::start("memory");
    let remote = Subject::open_setting(started.setting("bench"), Some(server::credentials())).await;
    sqlite.fill(scale.few).await;
    remote.fill(scale.few).await;
    let mut rows = Vec::new();
    for (what, work, workers) in WORKLOADS {
        eprintln!("measuring: {what}, on a SurrealDB server");
        let (mut samples, count) = (Samples::default(), scale.alone);
        for round in 0..=scale.rounds.min(5) {
            let baseline = per_second(count, sqlite.run(work, workers, count).await);
            let subject = per_second(count, remote.run(work, workers, count).await);
            if round > 0 {
                samples.baseline.push(baseline);
                samples.subject.push(subject);
            }
        }
        let what = format!("{what}, SurrealDB server (debug build, in memory)");
        rows.push(samples.row(what, Unit::PerSecond, "the store on SQLite", None));
    }
    Ok(rows)
}
