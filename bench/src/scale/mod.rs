//! The scaling limits of many daemons on one database: a simulation, calibrated with the cost of single queries.
//!
//! Measures nothing. It is as good as `bench/scale.toml` and the model in `world`; docs/scale.md lists the omissions.

mod costs;
mod world;

use std::fmt::Write as _;

use crate::Failure;
use crate::plot::{Plot, Series};

use costs::Calibration;
use world::{ClaimStrategy, SimulationOutcome, World};

const DAEMONS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const STALLS: [f64; 8] = [1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 60.0];
/// The number of daemons in the stall scenario.
const STALLED: usize = 16;

const MANNERS: [(ClaimStrategy, &str); 3] = [
    (ClaimStrategy::Shared, "one queue"),
    (ClaimStrategy::Homes, "one queue per daemon"),
    (ClaimStrategy::Rush, "one queue, no claim jitter"),
];

/// The result.
pub struct Simulated {
    /// The tables.
    pub tables: String,
    /// Charts by the names of their files.
    pub plots: Vec<(&'static str, String)>,
}

/// Simulates everything by that seed.
pub fn simulate(seed: u64) -> Result<Simulated, Failure> {
    let calibration = Calibration::read()?;
    let mut tables = String::new();
    let (mut rates, mut waits, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    for (manner, name) in MANNERS {
        let outcomes = DAEMONS.map(|daemons| World::new(&calibration, manner, daemons, seed).run(0.0));
        write_growth(&mut tables, name, &outcomes)?;
        let line = |of: fn(&SimulationOutcome) -> f64| Series {
            name: name.to_owned(),
            #[expect(clippy::cast_precision_loss, reason = "there are few daemons")]
            points: DAEMONS.iter().map(|daemons| *daemons as f64).zip(outcomes.iter().map(of)).collect(),
        };
        rates.push(line(|outcome| outcome.ended));
        waits.push(line(|outcome| part(&outcome.waits, 0.5).max(1e-3)));
        busy.push(line(|outcome| outcome.busy * 100.0));
    }
    let stalls =
        STALLS.map(|stall| World::new(&calibration, ClaimStrategy::Shared, STALLED, seed).run(stall));
    write_stalls(&mut tables, &stalls)?;
    let plot = |title, y, log_y, series| Plot { title, x: "daemons", y, log_y, series }.svg();
    let plots = vec![
        ("scale-rate.svg", plot("Finished jobs", "jobs per second", true, rates)),
        ("scale-wait.svg", plot("Submission to start, p50", "seconds", true, waits)),
        ("scale-busy.svg", plot("Database utilization", "%", false, busy)),
    ];
    Ok(Simulated { tables, plots })
}

fn write_growth(table: &mut String, name: &str, outcomes: &[SimulationOutcome]) -> Result<(), Failure> {
    write!(
        table,
        "### {name}\n\n\
         | daemons | jobs/s asked | jobs/s ended | wait p50 | wait p95 | database busy | of that in vain | takes that came too late | slowest heartbeat | given up in error |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )?;
    for (daemons, outcome) in DAEMONS.iter().zip(outcomes) {
        let SimulationOutcome {
            placed,
            ended,
            waits,
            busy,
            idle_share,
            conflicts,
            slowest_renewal,
            given_up,
            ..
        } = outcome;
        writeln!(
            table,
            "| {daemons} | {placed:.2} | {ended:.2} | {} | {} | {:.0} % | {:.0} % | {:.0} % | {} | {given_up} |",
            seconds(part(waits, 0.5)),
            seconds(part(waits, 0.95)),
            busy * 100.0,
            (idle_share * 100.0).min(100.0),
            conflicts * 100.0,
            seconds(*slowest_renewal),
        )?;
    }
    table.push('\n');
    Ok(())
}

fn write_stalls(table: &mut String, outcomes: &[SimulationOutcome]) -> Result<(), Failure> {
    write!(
        table,
        "### The database stands still ({STALLED} daemons, one queue)\n\n\
         | for | slowest heartbeat | daemons given up in error | jobs begun a second time | wait p95 |\n\
         | --- | --- | --- | --- | --- |\n"
    )?;
    for (stall, outcome) in STALLS.iter().zip(outcomes) {
        let SimulationOutcome { slowest_renewal, given_up, begun_again, waits, .. } = outcome;
        writeln!(
            table,
            "| {stall} s | {} | {given_up} | {begun_again} | {} |",
            seconds(*slowest_renewal),
            seconds(part(waits, 0.95))
        )?;
    }
    Ok(())
}

/// The value below which that part of them lies.
fn part(sorted: &[f64], part: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a place in a list"
    )]
    let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0.0)
}

fn seconds(time: f64) -> String {
    if time < 1.0 { format!("{:.0} ms", time * 1e3) } else { format!("{time:.1} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(manner: ClaimStrategy, daemons: usize, seed: u64) -> SimulationOutcome {
        World::new(&Calibration::read().unwrap(), manner, daemons, seed).run(0.0)
    }

    #[test]
    fn simulation_is_deterministic_per_seed() {
        let [first, second] = [7, 7].map(|seed| ended(ClaimStrategy::Shared, 8, seed));
        assert_eq!((first.ended.to_bits(), first.waits), (second.ended.to_bits(), second.waits));
    }

    #[test]
    fn few_daemons_keep_up_with_the_load() {
        let outcome = ended(ClaimStrategy::Shared, 4, 1);
        assert!((outcome.ended / outcome.placed - 1.0).abs() < 0.2, "{outcome:?}");
        assert_eq!(outcome.given_up, 0);
    }

    #[test]
    fn home_queues_have_no_claim_conflicts() {
        assert!(ended(ClaimStrategy::Homes, 16, 1).conflicts < f64::EPSILON);
        assert!(ended(ClaimStrategy::Rush, 16, 1).conflicts > 0.0);
    }

    #[test]
    fn claim_jitter_reduces_conflicts_and_load() {
        let [calm, rush] = [ClaimStrategy::Shared, ClaimStrategy::Rush].map(|manner| ended(manner, 32, 1));
        assert!(calm.conflicts < rush.conflicts / 3.0, "{} of {}", calm.conflicts, rush.conflicts);
        assert!(calm.busy < rush.busy, "{} of {}", calm.busy, rush.busy);
    }

    #[test]
    fn stall_as_long_as_the_lease_loses_jobs() {
        let calibration = Calibration::read().unwrap();
        let given_up =
            |stall| World::new(&calibration, ClaimStrategy::Shared, STALLED, 1).run(stall).given_up;
        assert_eq!(given_up(5.0), 0);
        assert!(given_up(60.0) > 0);
    }
}
