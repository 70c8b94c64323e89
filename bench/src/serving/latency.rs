//! The latency from a printed line to the host's notification.
//!
//! The server limits the rate of notifications, so each line follows a pause.

use std::io::{BufRead, BufReader};
use std::time::{Duration, SystemTime};

use crate::Failure;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;

use super::calling::Round;
use crate::client::BenchHost;
use crate::installation::check;

use super::{Bench, millis};

/// Between two lines, in milliseconds: longer than the server keeps two notifications apart.
const SILENCE: u32 = 400;

/// Takes the figures.
pub async fn measure(bench: &mut Bench<'_>) -> Result<Vec<Row>, Failure> {
    let mut host = bench.installation.host()?;
    let prompt = format!("@lines {} {SILENCE}", bench.scale.lines);
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for round in 0..bench.scale.rounds {
        bench.check().await?;
        plain.extend(Round::of(read_plainly(bench, &prompt)?));
        ours.extend(Round::of(be_notified(bench, &mut host, &prompt, round.into())?));
    }
    let row = |what: &str, of: fn(&Round) -> f64, target| {
        let (plain, ours): (Vec<_>, Vec<_>) = (plain.iter().map(of).collect(), ours.iter().map(of).collect());
        Row {
            what: what.to_owned(),
            unit: Unit::Milliseconds,
            baseline: Some(Baseline::of("a pipe", &plain, &ours)),
            ours: Spread::of(ours),
            target,
        }
    };
    Ok(vec![
        row("a printed line → progress: p50", |round| round.median, None),
        row("a printed line → progress: p95", |round| round.p95, Some(Target::Below(50.0))),
    ])
}

fn read_plainly(bench: &Bench<'_>, prompt: &str) -> Result<Vec<f64>, Failure> {
    let mut child = bench.plain.spawn(prompt)?;
    let mut ages = Vec::new();
    for line in BufReader::new(child.stdout.take().ok_or("the agent has no stdout")?).lines() {
        ages.extend(age(&line?));
    }
    child.wait()?;
    Ok(ages)
}

fn be_notified(
    bench: &Bench<'_>,
    host: &mut BenchHost,
    prompt: &str,
    token: u64,
) -> Result<Vec<f64>, Failure> {
    let id = host.send("tools/call", &bench.installation.call(prompt, Some(token)))?;
    let mut ages = Vec::new();
    loop {
        let message = host.hear()?;
        if message["id"] == id {
            check(&message["result"])?;
            return Ok(ages);
        }
        ages.extend(message["params"]["message"].as_str().and_then(age));
    }
}

/// Returns the age of a line that contains its time.
fn age(line: &str) -> Option<f64> {
    let digits: String = line.split_once("@printed ")?.1.chars().take_while(char::is_ascii_digit).collect();
    let printed = SystemTime::UNIX_EPOCH + Duration::from_nanos(digits.parse().ok()?);
    Some(millis(printed.elapsed().ok()?))
}
