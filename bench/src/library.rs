//! The cost of our libraries compared with plain ones: parsing a stream with `serde_json`, storing a job with `rusqlite`.
//!
//! `cargo bench -p agents` and `cargo bench -p store` have all figures; this is the short form, in one table with the rest.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use agents::{Driver, DriverSpec, ParseLimits};
use model::{AgentKind, CallSpec, JobEnd, NewJob, Owner, Placement};
use rusqlite::{Connection, params};
use serde_json::Value;
use store::{Capacity, ClaimRequest, Store, StoreOptions};

use crate::Failure;
use crate::interruption::Interruption;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;

/// The amount of work.
#[derive(Debug)]
pub struct LibraryScale {
    rounds: u32,
    megabytes: usize,
    jobs: u32,
}

/// Short sessions with a tool call, as they were recorded.
const SESSIONS: [(DriverSpec, &str, &[u8]); 3] = [
    (
        DriverSpec::Claude,
        "claude",
        include_bytes!("../../crates/agents/transcripts/claude-2.1.325/tool-call/stdout"),
    ),
    (
        DriverSpec::CodexExec,
        "codex",
        include_bytes!("../../crates/agents/transcripts/codex-0.166.0/tool-call/stdout"),
    ),
    (
        DriverSpec::Gemini,
        "gemini",
        include_bytes!("../../crates/agents/transcripts/gemini-0.61.0/tool-call/stdout"),
    ),
];
/// The size of a read from a pipe.
const PIECE: usize = 64 * 1024;

impl LibraryScale {
    /// For figures to be quoted.
    pub const FULL: Self = Self { rounds: 5, megabytes: 50, jobs: 1000 };
    /// To see that everything still works.
    pub const QUICK: Self = Self { rounds: 1, megabytes: 1, jobs: 50 };

    /// Describes the method for the reader of the table.
    pub fn method(&self) -> String {
        let Self { rounds, megabytes, jobs } = self;
        format!(
            "- rounds: {rounds}, in each of which plain and ours alternate; median (min–max)\n\
             - reading: {megabytes} MB of a recorded session, repeatedly, in chunks of 64 KiB; plain: each line as a `serde_json::Value`\n\
             - storing: {jobs} times submit, claim and finish, one after the other, in a file with write-ahead log and a sync for each commit;\n  \
             plain: an insert and two updates of a row with `rusqlite`, each a transaction. Our claim has no sync of its own"
        )
    }
}

/// Takes the figures.
pub async fn measure(
    work: &Path,
    scale: &LibraryScale,
    mut interruption: Interruption,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (driver, name, session) in SESSIONS {
        let stream = session.repeat((scale.megabytes * 1_000_000).div_ceil(session.len()));
        let (mut plain, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..scale.rounds {
            pause(&mut interruption).await?;
            plain.push(speed(&stream, read_plainly));
            ours.push(speed(&stream, |stream| read(&driver, stream)));
        }
        rows.push(Row {
            what: format!("reading a stream of {name}"),
            unit: Unit::MegabytesPerSecond,
            baseline: Some(Baseline::of("`serde_json`", &plain, &ours)),
            ours: Spread::of(ours),
            target: Some(Target::RatioAtLeast(1.0)),
        });
    }
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    let store = Store::open(StoreOptions::new("sqlite:".parse()?, work.join("ours.db"))).await?;
    let by_hand = ByHand::open(&work.join("plain.db"))?;
    for _ in 0..scale.rounds {
        pause(&mut interruption).await?;
        plain.push(by_hand.keep(scale.jobs)?);
        ours.push(keep(&store, scale.jobs).await?);
    }
    rows.push(Row {
        what: "submit, claim and finish a job".to_owned(),
        unit: Unit::Milliseconds,
        baseline: Some(Baseline::of("`rusqlite`", &plain, &ours)),
        ours: Spread::of(ours),
        target: None,
    });
    Ok(rows)
}

async fn pause(interruption: &mut Interruption) -> Result<(), Failure> {
    // A signal is noticed by a runtime that waits.
    tokio::time::sleep(Duration::from_millis(1)).await;
    interruption.check()
}

fn speed(stream: &[u8], read: impl FnOnce(&[u8])) -> f64 {
    let began = Instant::now();
    read(black_box(stream));
    #[expect(clippy::cast_precision_loss, reason = "no stream has so many bytes")]
    let megabytes = stream.len() as f64 / 1e6;
    megabytes / began.elapsed().as_secs_f64()
}

fn read(spec: &DriverSpec, stream: &[u8]) {
    let mut driver = Driver::new(spec, ParseLimits::default());
    let mut hear = |event: model::AgentEvent<'_>| {
        black_box(&event);
    };
    stream.chunks(PIECE).for_each(|piece| driver.feed(piece, &mut hear));
    black_box(driver.finish(&mut hear));
}

fn read_plainly(stream: &[u8]) {
    for line in stream.split(|byte| *byte == b'\n') {
        black_box(serde_json::from_slice::<Value>(line).ok());
    }
}

/// The milliseconds of one job.
async fn keep(store: &Store, jobs: u32) -> Result<f64, Failure> {
    let here = Placement::Host("here".into());
    let began = Instant::now();
    for _ in 0..jobs {
        let call = CallSpec::new(AgentKind::Rehearsal, "What is 2 + 2?", "/tmp");
        store.submit(NewJob::new(call, "call", here.clone())).await?;
        let request = ClaimRequest {
            owner: Owner::new("bench"),
            homes: vec![here.clone()],
            agents: vec![Capacity { agent: AgentKind::Rehearsal, at_once: 4 }],
            lease: Duration::from_secs(30),
        };
        let claim = store.claim(request).await?.and_then(|job| job.claim()).ok_or("no job to claim")?;
        store.finish(&claim, JobEnd::cancelled()).await?;
    }
    Ok(began.elapsed().as_secs_f64() * 1e3 / f64::from(jobs))
}

struct ByHand(Connection);

impl ByHand {
    fn open(file: &Path) -> Result<Self, Failure> {
        let connection = Connection::open(file)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute(
            "CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT NOT NULL, owner TEXT, call TEXT NOT NULL, result TEXT)",
            [],
        )?;
        Ok(Self(connection))
    }

    fn keep(&self, jobs: u32) -> Result<f64, Failure> {
        let began = Instant::now();
        for _ in 0..jobs {
            let mut insert =
                self.0.prepare_cached("INSERT INTO jobs (state, call) VALUES ('queued', ?1) RETURNING id")?;
            let id: i64 = insert.query_row(["What is 2 + 2?"], |row| row.get(0))?;
            let claim =
                "UPDATE jobs SET state = 'running', owner = 'bench' WHERE id = ?1 AND state = 'queued'";
            self.0.prepare_cached(claim)?.execute(params![id])?;
            let finish =
                "UPDATE jobs SET state = 'completed', result = ?2 WHERE id = ?1 AND state = 'running'";
            self.0.prepare_cached(finish)?.execute(params![id, "4"])?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e3 / f64::from(jobs))
    }
}
