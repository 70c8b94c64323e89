//! Sequential calls, compared with a plain spawn.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Failure;
use crate::client::BenchHost;
use crate::cost::Meter;
use crate::installation::check;
use crate::process;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;

use super::{Bench, millis};

/// The program of the default sandbox.
const BUBBLEWRAP: &str = "/usr/bin/bwrap";

/// The durations of the calls in one round, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// Half of them took no longer.
    pub median: f64,
    /// One in twenty took longer.
    pub p95: f64,
}

impl Round {
    /// Returns `None` without calls.
    pub fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let p95 = *times.get((times.len() * 95).div_ceil(100).checked_sub(1)?)?;
        Some(Self { median: Spread::of(times)?.median, p95 })
    }
}

/// Takes the figures.
pub async fn measure(bench: &mut Bench<'_>) -> Result<Vec<Row>, Failure> {
    let mut host = bench.installation.host()?;
    let hello = bench.installation.hello();
    // Everything into the page cache, and the agent's program looked at.
    bench.plain.run()?;
    call(&mut host, &hello, 3, check)?;
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    let (mut plain_cpu, mut ours_cpu) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        bench.check().await?;
        let meter = Meter::start()?;
        plain.push(spawn(bench)?);
        plain_cpu.push(millis(meter.stop()?.cpu / bench.scale.calls));
        let before = cpu(bench, &host)?;
        ours.push(call(&mut host, &hello, bench.scale.calls, check)?);
        ours_cpu.push(millis(cpu(bench, &host)?.saturating_sub(before) / bench.scale.calls));
    }
    let pick = |rounds: &[Round], of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<_>>();
    let row = |what: &str, of: fn(&Round) -> f64, target| {
        compared(what, &pick(&plain, of), &pick(&ours, of), target)
    };
    let mut rows = vec![
        row("one call: p50", |round| round.median, Some(Target::RatioBelow(3.0))),
        row("one call: p95", |round| round.p95, None),
        compared("one call: CPU time, all processes", &plain_cpu, &ours_cpu, None),
    ];
    let one_shot = pick(&ours, |round| round.median);
    let hello_over_acp = bench.installation.hello_over_acp();
    let over_acp = with_params(bench, &mut host, &hello_over_acp).await?;
    rows.push(Row {
        what: "one call over ACP: p50".to_owned(),
        unit: Unit::Milliseconds,
        baseline: Some(Baseline::of("one prompt on stdin", &one_shot, &over_acp)),
        ours: Spread::of(over_acp),
        target: None,
    });
    if Path::new(BUBBLEWRAP).exists() {
        let confined = in_the_sandbox(bench, &mut host).await?;
        let plain = pick(&plain, |round| round.median);
        rows.push(compared("one call in the default sandbox: p50", &plain, &confined, None));
    }
    Ok(rows)
}

/// Measures the same call in the default sandbox. The first runs the self-test and is not counted.
async fn in_the_sandbox(bench: &mut Bench<'_>, host: &mut BenchHost) -> Result<Vec<f64>, Failure> {
    let mut hello = bench.installation.hello();
    hello["arguments"]["policy"] = "workspace".into();
    with_params(bench, host, &hello).await
}

/// Measures other calls. The first ones are not counted.
async fn with_params(
    bench: &mut Bench<'_>,
    host: &mut BenchHost,
    params: &Value,
) -> Result<Vec<f64>, Failure> {
    call(host, params, 3, check)?;
    let mut rounds = Vec::new();
    for _ in 0..bench.scale.rounds {
        bench.check().await?;
        rounds.push(call(host, params, bench.scale.calls, check)?.median);
    }
    Ok(rounds)
}

fn compared(what: &str, plain: &[f64], ours: &[f64], target: Option<Target>) -> Row {
    Row {
        what: what.to_owned(),
        unit: Unit::Milliseconds,
        baseline: Some(Baseline::of("plain spawn", plain, ours)),
        ours: Spread::of(ours.iter().copied()),
        target,
    }
}

fn spawn(bench: &Bench<'_>) -> Result<Round, Failure> {
    let mut times = Vec::new();
    for _ in 0..bench.scale.calls {
        let began = Instant::now();
        bench.plain.run()?;
        times.push(millis(began.elapsed()));
    }
    Round::of(times).ok_or_else(|| "no spawn was measured".into())
}

/// Calls a tool so many times, one after the other.
pub fn call(
    host: &mut BenchHost,
    params: &Value,
    calls: u32,
    check: fn(&Value) -> Result<(), Failure>,
) -> Result<Round, Failure> {
    let mut times = Vec::new();
    for _ in 0..calls {
        let began = Instant::now();
        let id = host.send("tools/call", params)?;
        let result = host.answer_to(id)?;
        times.push(millis(began.elapsed()));
        check(&result)?;
    }
    Round::of(times).ok_or_else(|| "no call was measured".into())
}

/// Returns the CPU time of the bridge, the daemon, its fork server, and all finished supervisors and agents.
fn cpu(bench: &Bench<'_>, host: &BenchHost) -> Result<Duration, Failure> {
    let both = process::cpu(host.pid()).zip(process::cpu_with_children(bench.installation.daemon()?));
    both.map(|(bridge, daemon)| bridge + daemon).ok_or_else(|| "the daemon is gone".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p95_ignores_one_slow_call_in_twenty() {
        let times = |slow: usize| (0..20).map(|number| if number < slow { 9.0 } else { 1.0 }).collect();
        assert!(Round::of(times(1)).unwrap().p95 < 2.0);
        assert!(Round::of(times(2)).unwrap().p95 > 2.0);
        assert!(Round::of(Vec::new()).is_none());
    }
}
