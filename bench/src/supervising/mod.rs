//! The cost of the supervisor, compared with the same agent without one.

mod alone;
mod conversing;
mod copying;
mod crowd;
mod memory;
mod scene;

use std::path::Path;

use clap::ValueEnum;

use crate::executables::Executables;
use crate::interruption::Interruption;
use crate::report::Row;
use crate::{Failure, output};

use scene::Scene;

/// The amount of work.
#[derive(Debug)]
pub struct SupervisingScale {
    /// The number of rounds in which baseline and ours alternate.
    rounds: u32,
    /// Runs one after the other in a round.
    runs: u32,
    /// Runs at once.
    crowd: u32,
    /// Crowds one after the other in a round.
    crowds: u32,
    /// Millions of bytes that are copied.
    megabytes: u32,
}

impl SupervisingScale {
    /// For figures to be quoted.
    pub const FULL: Self = Self { rounds: 5, runs: 200, crowd: 64, crowds: 5, megabytes: 1000 };
    /// To see that everything still works.
    pub const QUICK: Self = Self { rounds: 1, runs: 10, crowd: 8, crowds: 1, megabytes: 100 };

    /// Describes the method for the reader of the table.
    pub fn method(&self) -> String {
        let Self { rounds, runs, crowd, crowds, megabytes } = self;
        format!(
            "- rounds: {rounds}, in each of which the baseline and ours alternate; median (min–max)\n\
             - a round: {runs} runs one after the other; {crowd} runs at once, {crowds}×; {megabytes} MB copied\n\
             - an open input: {megabytes} MB appended in steps of 1 MiB, until `cat` has returned them all\n\
             - the agent: `rehearsal --as plain`, answering a short prompt\n\
             - plain spawn: `Command::spawn` with the prompt as a file, stdout read to its end, then awaited\n\
             - ours: a run started in a new spool, awaited, its output read from the spool\n\
             - CPU time: of the bench and of every process below it; 1 MB is 10⁶ bytes"
        )
    }
}

/// A group of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SupervisingFigure {
    /// One run after the other
    Alone,
    /// Many runs at once
    Crowd,
    /// The supervisor's memory while it copies
    Memory,
    /// The throughput of copying
    Copying,
    /// Memory and throughput with an open input
    Conversing,
}

/// Takes all figures, or only one.
pub async fn measure(
    executables: &Executables,
    work: &Path,
    scale: &SupervisingScale,
    only: Option<SupervisingFigure>,
    mut interruption: Interruption,
) -> Result<Vec<Row>, Failure> {
    let scene = Scene::set(executables, work)?;
    let mut rows = Vec::new();
    for &figure in SupervisingFigure::value_variants() {
        if only.is_some_and(|only| only != figure) {
            continue;
        }
        output::progress(&format!("measuring: {figure:?}"));
        rows.extend(match figure {
            SupervisingFigure::Alone => alone::measure(&scene, scale, &mut interruption).await?,
            SupervisingFigure::Crowd => crowd::measure(&scene, scale, &mut interruption).await?,
            SupervisingFigure::Memory => memory::measure(&scene, scale, &mut interruption).await?,
            SupervisingFigure::Copying => copying::measure(&scene, scale, &mut interruption).await?,
            SupervisingFigure::Conversing => conversing::measure(&scene, scale, &mut interruption).await?,
        });
    }
    Ok(rows)
}
