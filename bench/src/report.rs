//! The result of a bench as a Markdown page.

use std::fmt;

use crate::machine::BenchMachine;
use crate::spread::Spread;

/// A whole page.
#[derive(Debug)]
pub struct Report {
    /// The title.
    pub title: &'static str,
    /// The command that prints it again.
    pub command: String,
    /// The machine.
    pub machine: BenchMachine,
    /// The method.
    pub method: String,
    /// The table.
    pub table: String,
}

/// One figure.
#[derive(Debug)]
pub struct Row {
    /// The figure.
    pub what: String,
    /// Its unit.
    pub unit: Unit,
    /// Its baseline, if any.
    pub baseline: Option<Baseline>,
    /// Our value; `None` without samples.
    pub ours: Option<Spread>,
    /// Its target.
    pub target: Option<Target>,
}

/// The baseline of a figure.
#[derive(Debug)]
pub struct Baseline {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: Option<Spread>,
    /// Ours against it, round by round.
    pub ratio: Option<Spread>,
}

impl Baseline {
    /// Compares samples that were taken in turn.
    pub fn of(name: &'static str, baseline: &[f64], ours: &[f64]) -> Self {
        let ratios = ours.iter().zip(baseline).map(|(ours, baseline)| ours / baseline);
        Self { name, value: Spread::of(baseline.iter().copied()), ratio: Spread::of(ratios) }
    }
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy)]
pub enum Unit {
    /// Milliseconds: less is better.
    Milliseconds,
    /// Millions of bytes: less is better.
    Megabytes,
    /// Millions of bytes in a second: more is better.
    MegabytesPerSecond,
    /// Per second: more is better.
    PerSecond,
    /// A count: less is better.
    Count,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Megabytes => "MB",
            Self::MegabytesPerSecond => "MB/s",
            Self::PerSecond => "/s",
            Self::Count => "×",
        }
    }

    fn write(self, spread: Option<Spread>) -> String {
        let Some(spread) = spread else { return "no sample".to_owned() };
        match self {
            Self::Milliseconds | Self::Megabytes | Self::Count => format!("{spread:.2} {}", self.name()),
            Self::MegabytesPerSecond | Self::PerSecond => format!("{spread:.0} {}", self.name()),
        }
    }
}

/// A target, compared with the median.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// Ours stays below this.
    Below(f64),
    /// Ours is this at most.
    AtMost(f64),
    /// Ours against the baseline stays below this.
    RatioBelow(f64),
    /// Ours against the baseline is this at most.
    RatioAtMost(f64),
    /// Ours against the baseline is this at least.
    RatioAtLeast(f64),
}

impl Target {
    fn judge(self, row: &Row) -> String {
        let ratio = row.baseline.as_ref().and_then(|baseline| baseline.ratio);
        let (promise, judged, met): (_, _, fn(f64, f64) -> bool) = match self {
            Self::Below(bound) => {
                (format!("< {bound} {}", row.unit.name()), row.ours, |value, bound| value < bound)
            }
            Self::AtMost(bound) => {
                (format!("≤ {bound} {}", row.unit.name()), row.ours, |value, bound| value <= bound)
            }
            Self::RatioBelow(bound) => (format!("< {bound} ×"), ratio, |value, bound| value < bound),
            Self::RatioAtMost(bound) => (format!("≤ {bound} ×"), ratio, |value, bound| value <= bound),
            Self::RatioAtLeast(bound) => (format!("≥ {bound} ×"), ratio, |value, bound| value >= bound),
        };
        let (Self::Below(bound)
        | Self::AtMost(bound)
        | Self::RatioBelow(bound)
        | Self::RatioAtMost(bound)
        | Self::RatioAtLeast(bound)) = self;
        let verdict = match judged {
            None => "not measured",
            Some(spread) if met(spread.median, bound) => "met",
            Some(_) => "missed",
        };
        format!("{promise}: {verdict}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { title, command, machine, method, table } = self;
        write!(f, "# {title}\n\n```console\n$ {command}\n```\n\n{machine}{method}\n\n{table}")
    }
}

/// Figures as a table.
pub fn table(rows: &[Row]) -> String {
    let head = "| figure | baseline | its figure | ours | ours ÷ baseline | target |\n\
                | --- | --- | --- | --- | --- | --- |\n";
    rows.iter().fold(head.to_owned(), |table, row| format!("{table}{row}\n"))
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "–".to_owned();
        let (name, value, ratio) = match &self.baseline {
            None => (none(), none(), none()),
            Some(Baseline { name, value, ratio }) => (
                (*name).to_owned(),
                self.unit.write(*value),
                ratio.map_or_else(none, |ratio| format!("{ratio:.2} ×")),
            ),
        };
        let ours = self.unit.write(self.ours);
        let target = self.target.map_or_else(none, |target| target.judge(self));
        write!(f, "| {} | {name} | {value} | {ours} | {ratio} | {target} |", self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(baseline: &[f64], ours: &[f64], target: Target) -> Row {
        Row {
            what: "copying".to_owned(),
            unit: Unit::MegabytesPerSecond,
            baseline: Some(Baseline::of("dd", baseline, ours)),
            ours: Spread::of(ours.iter().copied()),
            target: Some(target),
        }
    }

    #[test]
    fn ratio_compares_round_by_round() {
        let row = row(&[100.0, 200.0, 400.0], &[90.0, 100.0, 400.0], Target::RatioAtLeast(0.8));
        assert_eq!(
            row.to_string(),
            "| copying | dd | 200 (100–400) MB/s | 100 (90–400) MB/s | 0.90 (0.50–1.00) × | ≥ 0.8 ×: met |"
        );
    }

    #[test]
    fn missed_target_is_marked() {
        let row = row(&[100.0], &[50.0], Target::RatioAtLeast(0.8));
        assert!(row.to_string().ends_with("≥ 0.8 ×: missed |"), "{row}");
    }

    #[test]
    fn metric_without_samples_meets_no_target() {
        let row = row(&[], &[], Target::Below(6.0));
        assert!(row.to_string().ends_with("| no sample | – | < 6 MB/s: not measured |"), "{row}");
    }
}
