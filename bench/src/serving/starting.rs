//! The time from the start of the process to the reply to `initialize`.

use std::time::Instant;

use crate::Failure;
use crate::client::BenchHost;
use crate::process;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;

use super::{Bench, millis};

/// Takes the figures: with a running daemon, without one, and the idle memory of bridge and daemon.
pub async fn measure(bench: &mut Bench<'_>) -> Result<Vec<Row>, Failure> {
    let (mut plain, mut with, mut without) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bridge, mut daemon) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        for _ in 0..bench.scale.starts {
            bench.check().await?;
            bench.installation.stop()?;
            plain.push(spawn(bench)?);
            without.push(start(bench)?.1);
            let (client, took) = start(bench)?;
            with.push(took);
            bridge.extend(process::memory(client.pid()));
            daemon.extend(process::memory(bench.installation.daemon()?));
        }
    }
    let row = |what: &str, ours: &[f64], target| Row {
        what: what.to_owned(),
        unit: Unit::Milliseconds,
        baseline: Some(Baseline::of("plain spawn", &plain, ours)),
        ours: Spread::of(ours.iter().copied()),
        target,
    };
    Ok(vec![
        row("start → `initialize`, with a running daemon", &with, Some(Target::Below(20.0))),
        row("start → `initialize`, the daemon started too", &without, None),
        memory("memory of the bridge", bridge, 6.0),
        memory("memory of the daemon, idle", daemon, 30.0),
    ])
}

fn spawn(bench: &Bench<'_>) -> Result<f64, Failure> {
    let began = Instant::now();
    bench.plain.run()?;
    Ok(millis(began.elapsed()))
}

fn start(bench: &Bench<'_>) -> Result<(BenchHost, f64), Failure> {
    let began = Instant::now();
    let mut client = BenchHost::start(bench.installation.bridge())?;
    client.initialize()?;
    Ok((client, millis(began.elapsed())))
}

fn memory(what: &str, samples: Vec<f64>, bound: f64) -> Row {
    Row {
        what: what.to_owned(),
        unit: Unit::Megabytes,
        baseline: None,
        ours: Spread::of(samples),
        target: Some(Target::Below(bound)),
    }
}
