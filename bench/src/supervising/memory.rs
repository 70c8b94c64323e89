//! The memory of the supervisor under high throughput.

use std::fs;
use std::time::Duration;

use model::{Limits, RunPlan};
use tokio::time::sleep;

use crate::Failure;
use crate::interruption::Interruption;
use crate::process::megabytes;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;

use super::SupervisingScale;
use super::scene::{Scene, check_report};

/// The interval at which the memory is read.
pub const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The sampling points, in percent of the bytes.
const MILESTONES: [u64; 3] = [10, 50, 90];
/// A look that comes later than this many per cent after its milestone belongs to no milestone.
const TOO_LATE: u64 = 10;

/// The memory of one supervisor on its way, in megabytes.
#[derive(Debug, Default)]
pub struct Footprint {
    peak: Option<f64>,
    at: [Option<f64>; MILESTONES.len()],
}

/// Takes the figures.
pub async fn measure(
    scene: &Scene,
    scale: &SupervisingScale,
    interruption: &mut Interruption,
) -> Result<Vec<Row>, Failure> {
    let mut rounds = Vec::new();
    for _ in 0..scale.rounds {
        interruption.check()?;
        rounds.push(flood(scene, scale.megabytes).await?);
    }
    let name = format!("memory of the supervisor, copying {} MB", scale.megabytes);
    Ok(footprint_rows(&name, &rounds).into())
}

/// Returns the rows for the peak, and for the growth on the way.
pub fn footprint_rows(name: &str, rounds: &[Footprint]) -> [Row; 3] {
    let peak = Row {
        what: format!("{name}: peak"),
        unit: Unit::Megabytes,
        baseline: None,
        ours: Spread::of(rounds.iter().filter_map(|round| round.peak)),
        target: Some(Target::Below(6.0)),
    };
    [peak, growth(rounds, 1, None), growth(rounds, 2, Some(Target::RatioBelow(1.05)))]
}

/// The memory at a milestone against that at the first.
fn growth(rounds: &[Footprint], milestone: usize, target: Option<Target>) -> Row {
    let both = rounds.iter().filter_map(|round| round.at[0].zip(round.at[milestone]));
    let (first, then): (Vec<f64>, Vec<f64>) = both.unzip();
    Row {
        what: format!("its memory at {} % of the bytes", MILESTONES[milestone]),
        unit: Unit::Megabytes,
        baseline: Some(Baseline::of("at 10 %", &first, &then)),
        ours: Spread::of(then),
        target,
    }
}

async fn flood(scene: &Scene, megabytes: u32) -> Result<Footprint, Failure> {
    let directory = scene.fresh_directory()?;
    let bytes = u64::from(megabytes) * 1_000_000;
    let plan = RunPlan {
        input: format!("@rehearse flood stdout {megabytes}MB\n").into_bytes(),
        limits: Limits { output_bytes: Some(2 * bytes), ..Limits::default() },
        ..scene.plan().clone()
    };
    let run = scene.start(&directory.path().join("spool"), &plan).await?;
    let output = run.spool().output();
    let pid = run.spool().status()?.ok_or("a started run has no status")?.supervisor.pid;
    let mut footprint = Footprint::default();
    let report = loop {
        tokio::select! {
            biased;
            report = run.wait() => break report?,
            () = sleep(POLL_INTERVAL) => footprint.look(pid, fs::metadata(&output)?.len() * 100 / bytes),
        }
    };
    check_report(&report)?;
    if report.output_bytes < bytes {
        return Err(format!("only {} of {bytes} bytes were copied", report.output_bytes).into());
    }
    directory.close()?;
    Ok(footprint)
}

impl Footprint {
    /// Reads the memory of a supervisor that has copied some percent of the bytes.
    pub fn look(&mut self, pid: i32, percent: u64) {
        // The pid is the supervisor's until this process reaps it. A zombie has no memory.
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return };
        self.peak = megabytes(&status, "VmHWM:").or(self.peak);
        for (milestone, seen) in MILESTONES.into_iter().zip(&mut self.at) {
            if (milestone..milestone + TOO_LATE).contains(&percent) && seen.is_none() {
                *seen = megabytes(&status, "VmRSS:");
            }
        }
    }
}
