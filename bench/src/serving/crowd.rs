//! Many calls at once through one host.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::Value;

use crate::Failure;
use crate::process;
use crate::report::{Baseline, Row, Unit};
use crate::spread::Spread;

use super::Bench;
use crate::client::BenchHost;
use crate::installation::{AT_ONCE, PROMPT, check};

use super::plain::finish;

/// Prints a line and is then silent for long enough to be looked at.
const LONGER: &str = "@lines 2 1000";

/// Takes the figures.
pub async fn measure(bench: &mut Bench<'_>) -> Result<Vec<Row>, Failure> {
    let mut host = bench.installation.host()?;
    let hello = bench.installation.hello();
    let (mut plain, mut ours, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    rate(&mut host, &hello, 2, AT_ONCE, check)?;
    for _ in 0..bench.scale.rounds {
        bench.check().await?;
        plain.push(spawn(bench, AT_ONCE)?);
        ours.push(rate(&mut host, &hello, bench.scale.crowd_calls, AT_ONCE, check)?);
        memory.extend(with_all_running(bench, &mut host)?);
    }
    Ok(vec![
        Row {
            what: format!("calls per second, {AT_ONCE} at once"),
            unit: Unit::PerSecond,
            baseline: Some(Baseline::of("plain spawns", &plain, &ours)),
            ours: Spread::of(ours.iter().copied()),
            target: None,
        },
        Row {
            what: format!("memory of the daemon while {AT_ONCE} calls run"),
            unit: Unit::Megabytes,
            baseline: None,
            ours: Spread::of(memory),
            target: None,
        },
    ])
}

/// Runs as many at once, in batches: the baseline has no scheduler that refills a free slot.
pub fn spawn(bench: &Bench<'_>, most: usize) -> Result<f64, Failure> {
    let began = Instant::now();
    let mut left = bench.scale.crowd_calls as usize;
    while left > 0 {
        let at_once = left.min(most);
        let children: Result<Vec<_>, _> = (0..at_once).map(|_| bench.plain.spawn(PROMPT)).collect();
        children?.into_iter().try_for_each(|child| finish(child).map(drop))?;
        left -= at_once;
    }
    Ok(f64::from(bench.scale.crowd_calls) / began.elapsed().as_secs_f64())
}

/// Calls a tool so many times, as many at once as there may be; how many were answered in a second.
pub fn rate(
    host: &mut BenchHost,
    params: &Value,
    calls: u32,
    at_once: usize,
    check: fn(&Value) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let began = Instant::now();
    let mut open = BTreeSet::new();
    let mut left = calls;
    while left > 0 || !open.is_empty() {
        while left > 0 && open.len() < at_once {
            open.insert(host.send("tools/call", params)?);
            left -= 1;
        }
        let message = host.hear()?;
        if message.get("method").is_none() && message["id"].as_u64().is_some_and(|id| open.remove(&id)) {
            check(&message["result"])?;
        }
    }
    Ok(f64::from(calls) / began.elapsed().as_secs_f64())
}

/// Returns the daemon's memory while all calls have printed and none has finished.
fn with_all_running(bench: &Bench<'_>, host: &mut BenchHost) -> Result<Option<f64>, Failure> {
    let mut silent = BTreeSet::new();
    let mut open = BTreeSet::new();
    for token in 0..AT_ONCE as u64 {
        open.insert(host.send("tools/call", &bench.installation.call(LONGER, Some(token)))?);
        silent.insert(token);
    }
    let mut memory = None;
    while !open.is_empty() {
        let message = host.hear()?;
        if message["method"] == "notifications/progress" {
            silent.retain(|token| message["params"]["progressToken"] != *token);
            if silent.is_empty() && memory.is_none() && open.len() == AT_ONCE {
                memory = process::memory(bench.installation.daemon()?);
            }
        } else if message["id"].as_u64().is_some_and(|id| open.remove(&id)) {
            check(&message["result"])?;
        }
    }
    Ok(memory)
}
