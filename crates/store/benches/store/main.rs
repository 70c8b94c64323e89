//! Measures the store against rusqlite by hand, in turn and in one run, and prints a table.
//!
//! Refuses to judge: a missed target is printed and is no failure, so that no build depends on how busy the machine was.
//! `cargo bench -p store` takes a few minutes; `cargo bench -p store -- --quick` only shows that it works.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints its table, starts its server, and ends when something fails"
)]

mod by_hand;
mod ours;
#[path = "../../tests/store/server.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod server;
mod table;

use std::time::{Duration, Instant};

use crate::by_hand::ByHand;
use crate::ours::Ours;
use crate::table::{Row, Table, median};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Scale {
    rounds: usize,
    alone: usize,
    together: usize,
    few: usize,
    many: usize,
}

const FULL: Scale = Scale { rounds: 5, alone: 300, together: 1_600, few: 100, many: 100_000 };
const QUICK: Scale = Scale { rounds: 1, alone: 20, together: 64, few: 10, many: 200 };

/// How many workers there are at once, where there are many.
pub const WORKERS: usize = 32;

/// One figure of one round, in operations per second, at both sizes.
#[derive(Debug, Default)]
struct Figures {
    few: Vec<f64>,
    many: Vec<f64>,
}

fn main() {
    // `cargo test --benches` passes no `--bench`, and wants to see nothing measured.
    let arguments: Vec<String> = std::env::args().collect();
    let quick = arguments.iter().any(|argument| argument == "--quick" || argument == "--test");
    let scale = if quick { QUICK } else { FULL };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure(scale));
}

async fn measure(scale: Scale) {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::default();
    eprintln!("filling: {} and {} jobs, twice", scale.few, scale.many);
    let ours = [filled(&folder, "ours-few", scale.few).await, filled(&folder, "ours-many", scale.many).await];
    drop((filled(&folder, "hand-few", scale.few).await, filled(&folder, "hand-many", scale.many).await));
    let hand = ["hand-few", "hand-many"].map(|name| ByHand::open(&folder.path().join(name)));

    for (what, workers, work) in [
        ("place, 1 worker", 1, Work::Place),
        (&*format!("place, {WORKERS} workers"), WORKERS, Work::Place),
        ("claim + finish, 1 worker", 1, Work::ClaimAndFinish),
        (&*format!("claim + finish, {WORKERS} workers"), WORKERS, Work::ClaimAndFinish),
    ] {
        eprintln!("measuring: {what}");
        let count = if workers == 1 { scale.alone } else { scale.together };
        let (mut own, mut by_hand) = (Figures::default(), Figures::default());
        for _ in 0..scale.rounds {
            for (size, (own_store, hand_store)) in ours.iter().zip(&hand).enumerate() {
                let (of_own, of_hand) = if size == 0 {
                    (&mut own.few, &mut by_hand.few)
                } else {
                    (&mut own.many, &mut by_hand.many)
                };
                of_own.push(per_second(count, own_store.work(work, workers, count).await));
                of_hand.push(per_second(count, hand_store.work(work, workers, count)));
            }
        }
        table.rows.push(Row::rates(format!("{what}, {} stored", scale.few), &own.few, &by_hand.few));
        table.rows.push(Row::rates(format!("{what}, {} stored", scale.many), &own.many, &by_hand.many));
        table.growth.push((what.to_owned(), median(&own.few) / median(&own.many)));
    }
    table.rows.push(measure_list(scale, &ours[1], &hand[1]).await);
    drop((ours, hand));
    table.rows.push(measure_open(scale, &folder).await);
    measure_server(scale, &mut table).await;
    println!("{table}");
}

/// What is done over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Keep a call.
    Place,
    /// Take a job, and bring it to its end.
    ClaimAndFinish,
}

fn per_second(count: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap()) / took.as_secs_f64()
}

async fn filled(folder: &tempfile::TempDir, name: &str, jobs: usize) -> Ours {
    let store = Ours::open(&folder.path().join(name)).await;
    store.fill(jobs).await;
    store
}

async fn measure_list(scale: Scale, ours: &Ours, hand: &ByHand) -> Row {
    eprintln!("measuring: list");
    let (mut own, mut by_hand) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds.max(3) * 3 {
        let start = Instant::now();
        ours.list_newest().await;
        own.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        hand.list_newest();
        by_hand.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Row::times(format!("list the 100 newest of {}", scale.many), &own, &by_hand)
}

async fn measure_open(scale: Scale, folder: &tempfile::TempDir) -> Row {
    eprintln!("measuring: open");
    let (mut own, mut by_hand) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds.max(3) * 3 {
        let start = Instant::now();
        let ours = Ours::open(&folder.path().join("ours-many")).await;
        own.push(start.elapsed().as_secs_f64() * 1e3);
        drop(ours);
        let start = Instant::now();
        let hand = ByHand::open(&folder.path().join("hand-many"));
        by_hand.push(start.elapsed().as_secs_f64() * 1e3);
        drop(hand);
    }
    Row::times(format!("open a store of {}", scale.many), &own, &by_hand)
}

/// For orientation only: the server is a debug build.
async fn measure_server(scale: Scale, table: &mut Table) {
    if let Some(reason) = server::missing().filter(|_| cfg!(feature = "surreal")) {
        return table.notes.push(format!("SurrealDB was left out: {reason}."));
    }
    if !cfg!(feature = "surreal") {
        return table.notes.push("SurrealDB was left out: built without the feature `surreal`.".to_owned());
    }
    eprintln!("measuring: a SurrealDB server");
    let server = server::Server::start("memory");
    let store = Ours::open_at(server.setting("bench"), Some(server::credentials())).await;
    store.fill(scale.few).await;
    for (what, work) in [("place", Work::Place), ("claim + finish", Work::ClaimAndFinish)] {
        for workers in [1, WORKERS] {
            let count = scale.alone.min(100);
            let rates: Vec<f64> = {
                let mut rates = Vec::new();
                for _ in 0..scale.rounds.min(3) {
                    rates.push(per_second(count, store.work(work, workers, count).await));
                }
                rates
            };
            table.rows.push(Row::alone(
                format!("SurrealDB server (debug build): {what}, {workers} workers"),
                &rates,
            ));
        }
    }
}
