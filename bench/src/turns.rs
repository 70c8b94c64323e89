//! Two ways to do the same thing, one after the other, over and over.

use crate::cost::Cost;
use crate::report::{Baseline, Row, Unit};
use crate::spread::Spread;

/// The cost of both sides of a comparison, round by round.
#[derive(Debug, Default)]
pub struct Turns {
    /// The baseline's.
    pub baseline: Vec<Cost>,
    /// Ours.
    pub ours: Vec<Cost>,
}

impl Turns {
    /// The rows for wall time and CPU time.
    pub fn rows(&self, what: &str, baseline: &'static str) -> [Row; 2] {
        let row = |kind, pick: fn(&Cost) -> f64| {
            let ours: Vec<f64> = self.ours.iter().map(pick).collect();
            let theirs: Vec<f64> = self.baseline.iter().map(pick).collect();
            Row {
                what: format!("{what}: {kind}"),
                unit: Unit::Milliseconds,
                baseline: Some(Baseline::of(baseline, &theirs, &ours)),
                ours: Spread::of(ours),
                target: None,
            }
        };
        [
            row("wall time", |cost| cost.wall.as_secs_f64() * 1e3),
            row("CPU time", |cost| cost.cpu.as_secs_f64() * 1e3),
        ]
    }
}
