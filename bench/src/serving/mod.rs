//! The cost of a call through the MCP server, compared with a plain start of the same agent and with other servers.
//!
//! The same host drives every server over stdio, and every agent is the same stub. Ours is the real setup: `switchboard mcp`,
//! the daemon that it starts, a supervisor for each call, and durable results.

mod calling;
mod crowd;
mod growth;
mod latency;
mod peers;
mod plain;
mod sdk;
mod starting;
mod syscalls;
mod transcript;

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;

use crate::executables::Executables;
use crate::installation::{AT_ONCE, Installation};
use crate::interruption::Interruption;
use crate::report::Row;
use crate::{Failure, output};

use plain::PlainSpawn;

/// The amount of work.
#[derive(Debug)]
pub struct ServingScale {
    /// The number of rounds in which baseline and ours alternate.
    rounds: u32,
    /// Starts in a round.
    starts: u32,
    /// Calls one after the other in a round.
    calls: u32,
    /// Calls in a round, as many at once as there may be.
    crowd_calls: u32,
    /// Lines in a round, each after a silence.
    lines: u32,
    /// Millions of bytes of the long transcript.
    megabytes: u32,
    /// Calls in a round while their syscalls are counted.
    traced: u32,
    /// The numbers of stored jobs.
    stored: &'static [u32],
}

impl ServingScale {
    /// For figures to be quoted.
    pub const FULL: Self = Self {
        rounds: 5,
        starts: 5,
        calls: 100,
        crowd_calls: 320,
        lines: 20,
        megabytes: 200,
        traced: 50,
        stored: &[100, 1_000, 10_000, 100_000],
    };
    /// To see that everything still works.
    pub const QUICK: Self = Self {
        rounds: 1,
        starts: 1,
        calls: 10,
        crowd_calls: 32,
        lines: 3,
        megabytes: 20,
        traced: 5,
        stored: &[10, 100],
    };

    /// Describes the method for the reader of the table.
    pub fn method(&self) -> String {
        let Self { rounds, starts, calls, crowd_calls, lines, megabytes, traced, .. } = self;
        format!(
            "- rounds: {rounds}, in each of which the baseline and ours alternate; median (min–max) of the rounds\n\
             - a round: {starts} starts; {calls} calls one after the other; {crowd_calls} calls, {AT_ONCE} at once; {lines} lines, each after\n  \
             a silence; a transcript of {megabytes} MB; {traced} calls and {traced} lines under `strace`\n\
             - the agent: a stub that reads its prompt and prints three lines\n\
             - plain spawn: `Command::spawn` of the stub with the prompt as a file, stdout read to its end, then awaited\n\
             - ours: `call_cc` through `switchboard mcp` and its daemon, each call durable and supervised; with policy `off` except in\n  \
             the sandbox row, since the others confine nothing\n\
             - CPU time: of the bench and its stubs; of bridge, daemon, supervisors and stubs; 1 MB is 10⁶ bytes"
        )
    }
}

/// A group of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServingFigure {
    /// Time from the start of the process to the reply to `initialize`, and idle memory
    Starting,
    /// One call after the other
    Calling,
    /// Many calls at once
    Crowd,
    /// Latency from a printed line to its notification
    Latency,
    /// A very long transcript
    Transcript,
    /// Number of system calls
    Syscalls,
    /// From 1 to 64 concurrent calls
    Growth,
    /// From few to very many stored jobs
    Stored,
}

/// The measured figures.
#[derive(Debug, Default)]
pub struct Measured {
    /// The figures.
    pub rows: Vec<Row>,
    /// Charts, by the names of their files.
    pub plots: Vec<(&'static str, String)>,
}

/// Everything that the figures are taken with.
struct Bench<'a> {
    scale: &'a ServingScale,
    installation: Installation,
    plain: PlainSpawn,
    interruption: Interruption,
}

impl Bench<'_> {
    /// Fails after a signal.
    async fn check(&mut self) -> Result<(), Failure> {
        // A signal is noticed by a runtime that waits.
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.interruption.check()
    }
}

/// Takes all figures, or only one; with the peers beside it when they are wanted.
pub async fn measure(
    executables: &Executables,
    work: &Path,
    scale: &ServingScale,
    only: Option<ServingFigure>,
    with_peers: bool,
    interruption: Interruption,
) -> Result<Measured, Failure> {
    let installation = Installation::with_stub(executables, work)?;
    let plain = PlainSpawn::new(&executables.stub, installation.workspace());
    let mut bench = Bench { scale, installation, plain, interruption };
    let (mut rows, mut at_once, mut plots) = (Vec::new(), Vec::new(), Vec::new());
    for &figure in ServingFigure::value_variants() {
        if only.is_some_and(|only| only != figure) {
            continue;
        }
        output::progress(&format!("measuring: {figure:?}"));
        rows.extend(match figure {
            ServingFigure::Starting => starting::measure(&mut bench).await?,
            ServingFigure::Calling => calling::measure(&mut bench).await?,
            ServingFigure::Crowd => crowd::measure(&mut bench).await?,
            ServingFigure::Latency => latency::measure(&mut bench).await?,
            ServingFigure::Transcript => transcript::measure(&mut bench).await?,
            ServingFigure::Syscalls => syscalls::measure(&mut bench).await?,
            ServingFigure::Growth => {
                at_once = growth::at_once(&mut bench).await?;
                Vec::new()
            }
            ServingFigure::Stored => {
                let (rows, plot) = growth::stored(&mut bench).await?;
                plots.push(("serving-stored.svg", plot));
                rows
            }
        });
    }
    if with_peers {
        let (theirs, series) = peers::measure(&mut bench, &executables.stub).await?;
        rows.extend(theirs);
        at_once.extend(series);
        rows.extend(sdk::measure(&mut bench, &executables.stub).await?);
    }
    if !at_once.is_empty() {
        plots.push(("serving-at-once.svg", growth::plot(at_once)));
    }
    Ok(Measured { rows, plots })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
