//! What is measured, and in which turns.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::by_hand::ByHand;
use crate::filled::Filled;
use crate::ours::Ours;
use crate::report::{Baseline, Row, Target, Unit};
use crate::server;
use crate::spread::Spread;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    rounds: usize,
    /// Pieces of work in a sample, by one worker and by many.
    alone: usize,
    together: usize,
    /// The sizes of the stores.
    few: usize,
    many: usize,
}

pub const FULL: Scale = Scale { rounds: 15, alone: 100, together: 640, few: 100, many: 100_000 };
pub const QUICK: Scale = Scale { rounds: 2, alone: 10, together: 64, few: 10, many: 200 };

/// How many workers there are at once, where there are many.
const WORKERS: usize = 32;

const BY_HAND: &str = "rusqlite by hand";

impl Scale {
    /// How it was measured, as lines of a list.
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

/// What is done over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Keep a call.
    Place,
    /// Take a job, and bring it to its end.
    ClaimAndFinish,
}

const WORKS: [(&str, Work, usize); 4] = [
    ("place, 1 worker", Work::Place, 1),
    ("place, 32 workers", Work::Place, WORKERS),
    ("claim + finish, 1 worker", Work::ClaimAndFinish, 1),
    ("claim + finish, 32 workers", Work::ClaimAndFinish, WORKERS),
];

/// Who does the work.
#[derive(Debug, Clone, Copy)]
enum Side {
    Ours,
    ByHand,
}

/// A store of one size, once for us and once by hand.
struct Pair {
    jobs: usize,
    ours: (Filled, Ours),
    by_hand: (Filled, ByHand),
}

impl Pair {
    async fn with(jobs: usize, folder: &Path) -> Self {
        eprintln!("filling: {jobs} jobs, twice");
        let ours = Filled::with(jobs, &folder.join(format!("ours-{jobs}"))).await;
        let by_hand = Filled::with(jobs, &folder.join(format!("hand-{jobs}"))).await;
        let (store, connection) = (Ours::open(&ours.path).await, ByHand::open(&by_hand.path));
        Self { jobs, ours: (ours, store), by_hand: (by_hand, connection) }
    }

    /// Pieces of work in a second.
    async fn rate(&self, side: Side, work: Work, workers: usize, count: usize) -> f64 {
        let (filled, took) = match side {
            Side::Ours => (&self.ours.0, self.ours.1.work(work, workers, count).await),
            Side::ByHand => (&self.by_hand.0, self.by_hand.1.work(work, workers, count)),
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

/// Samples that were taken in turn.
#[derive(Debug, Default)]
struct Turns {
    ours: Vec<f64>,
    baseline: Vec<f64>,
}

impl Turns {
    fn of(&mut self, side: Side) -> &mut Vec<f64> {
        match side {
            Side::Ours => &mut self.ours,
            Side::ByHand => &mut self.baseline,
        }
    }

    fn row(&self, what: String, unit: Unit, baseline: &'static str, target: Option<Target>) -> Row {
        Row {
            what,
            unit,
            baseline: Some(Baseline::of(baseline, &self.baseline, &self.ours)),
            ours: Spread::of(self.ours.iter().copied()),
            target,
        }
    }
}

pub async fn on_sqlite(scale: Scale, folder: &Path) -> Vec<Row> {
    let pairs = [Pair::with(scale.few, folder).await, Pair::with(scale.many, folder).await];
    let (mut rows, mut growths) = (Vec::new(), Vec::new());
    for (what, work, workers) in WORKS {
        eprintln!("measuring: {what}");
        let sizes = in_turns(scale, &pairs, work, workers).await;
        for (pair, turns) in pairs.iter().zip(&sizes) {
            let what = format!("{what}, {} stored", pair.jobs);
            rows.push(turns.row(what, Unit::PerSecond, BY_HAND, Some(Target::RatioAtLeast(0.7))));
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

/// On the small store and on the large one, by us and by hand.
async fn in_turns(scale: Scale, pairs: &[Pair; 2], work: Work, workers: usize) -> [Turns; 2] {
    let mut sizes = [Turns::default(), Turns::default()];
    let mut order = [(0, Side::Ours), (0, Side::ByHand), (1, Side::Ours), (1, Side::ByHand)];
    let count = scale.count(workers);
    for round in 0..=scale.rounds {
        for (size, side) in order {
            let rate = pairs[size].rate(side, work, workers, count).await;
            if round > 0 {
                sizes[size].of(side).push(rate);
            }
        }
        // What was done just before leaves its traces in caches and queues: each comes after every other.
        order.rotate_left(1);
    }
    sizes
}

/// How much longer it takes on the large store, round by round.
fn growth([few, many]: &[Turns; 2]) -> Turns {
    let growth = |few: &[f64], many: &[f64]| few.iter().zip(many).map(|(few, many)| few / many).collect();
    Turns { ours: growth(&few.ours, &many.ours), baseline: growth(&few.baseline, &many.baseline) }
}

async fn list(scale: Scale, many: &Pair) -> Row {
    eprintln!("measuring: list");
    let mut turns = Turns::default();
    for _ in 0..scale.rounds * 3 {
        let start = Instant::now();
        many.ours.1.list_newest().await;
        turns.ours.push(millis(start));
        let start = Instant::now();
        many.by_hand.1.list_newest();
        turns.baseline.push(millis(start));
    }
    // 0.7 of the speed is 1.43 times the time.
    let what = format!("list the 100 newest of {}", many.jobs);
    turns.row(what, Unit::Milliseconds, BY_HAND, Some(Target::RatioBelow(1.43)))
}

async fn open(scale: Scale, many: Pair) -> Row {
    eprintln!("measuring: open");
    let Pair { jobs, ours: (ours, store), by_hand: (by_hand, connection) } = many;
    drop((store, connection));
    let mut turns = Turns::default();
    for _ in 0..scale.rounds * 3 {
        let start = Instant::now();
        let store = Ours::open(&ours.path).await;
        turns.ours.push(millis(start));
        drop(store);
        let start = Instant::now();
        let connection = ByHand::open(&by_hand.path);
        turns.baseline.push(millis(start));
        drop(connection);
    }
    turns.row(format!("open a store of {jobs}"), Unit::Milliseconds, BY_HAND, None)
}

/// In turn with the store on `SQLite`. For orientation only: the server is a debug build, and keeps its records in memory.
pub async fn on_a_server(scale: Scale, folder: &Path) -> Result<Vec<Row>, String> {
    if !cfg!(feature = "surreal") {
        return Err("built without the feature `surreal`".to_owned());
    }
    if let Some(reason) = server::missing() {
        return Err(reason);
    }
    let sqlite = Ours::open(&folder.join("beside-a-server")).await;
    let started = server::Server::start("memory");
    let remote = Ours::open_at(started.setting("bench"), Some(server::credentials())).await;
    sqlite.fill(scale.few).await;
    remote.fill(scale.few).await;
    let mut rows = Vec::new();
    for (what, work, workers) in WORKS {
        eprintln!("measuring: {what}, on a SurrealDB server");
        let (mut turns, count) = (Turns::default(), scale.alone);
        for round in 0..=scale.rounds.min(5) {
            let baseline = per_second(count, sqlite.work(work, workers, count).await);
            let ours = per_second(count, remote.work(work, workers, count).await);
            if round > 0 {
                turns.baseline.push(baseline);
                turns.ours.push(ours);
            }
        }
        let what = format!("{what}, SurrealDB server (debug build, in memory)");
        rows.push(turns.row(what, Unit::PerSecond, "the store on SQLite", None));
    }
    Ok(rows)
}
