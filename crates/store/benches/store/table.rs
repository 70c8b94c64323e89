//! The result, as Markdown.

use std::fmt;

/// One line of the table.
#[derive(Debug)]
pub struct Row {
    what: String,
    ours: String,
    by_hand: String,
    ratio: String,
}

impl Row {
    /// Operations per second, taken in turn: more is better.
    pub fn rates(what: String, ours: &[f64], by_hand: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(by_hand).map(|(ours, hand)| ours / hand).collect();
        let shown = |samples: &[f64]| format!("{:.0}/s", median(samples));
        Self { what, ours: shown(ours), by_hand: shown(by_hand), ratio: format!("{:.2}", median(&ratios)) }
    }

    /// Milliseconds, taken in turn: less is better. The ratio is turned round, so that more is better there, too.
    pub fn times(what: String, ours: &[f64], by_hand: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(by_hand).map(|(ours, hand)| hand / ours).collect();
        let shown = |samples: &[f64]| format!("{:.2} ms", median(samples));
        Self { what, ours: shown(ours), by_hand: shown(by_hand), ratio: format!("{:.2}", median(&ratios)) }
    }

    /// Operations per second that are compared with nothing.
    pub fn alone(what: String, ours: &[f64]) -> Self {
        Self { what, ours: format!("{:.0}/s", median(ours)), by_hand: "–".into(), ratio: "–".into() }
    }
}

/// The whole table.
#[derive(Debug, Default)]
pub struct Table {
    pub rows: Vec<Row>,
    /// What was measured, and how much longer it takes among many stored jobs than among few.
    pub growth: Vec<(String, f64)>,
    pub notes: Vec<String>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | store | rusqlite by hand | ratio (target ≥ 0.7) |\n| --- | --- | --- | --- |")?;
        for Row { what, ours, by_hand, ratio } in &self.rows {
            writeln!(f, "| {what} | {ours} | {by_hand} | {ratio} |")?;
        }
        writeln!(
            f,
            "\n| what | growth of the time from few to many stored jobs (target < 1.5) |\n| --- | --- |"
        )?;
        for (what, growth) in &self.growth {
            writeln!(f, "| {what} | {growth:.2} |")?;
        }
        for note in &self.notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}

/// Half of the samples are not above it.
pub fn median(samples: &[f64]) -> f64 {
    let mut samples = samples.to_vec();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
