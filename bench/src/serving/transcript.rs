//! A call whose agent prints a very long transcript, end to end.

use std::time::Instant;

use crate::Failure;
use crate::installation::check;
use crate::process;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;

use super::plain::finish;
use super::{Bench, millis};

/// Takes the figures.
pub async fn measure(bench: &mut Bench<'_>) -> Result<Vec<Row>, Failure> {
    let megabytes = bench.scale.megabytes;
    let prompt = format!("@flood {megabytes}");
    let mut host = bench.installation.host()?;
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    let (mut reply, mut growth) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        bench.check().await?;
        let began = Instant::now();
        finish(bench.plain.spawn(&prompt)?)?;
        plain.push(millis(began.elapsed()));

        let daemon = bench.installation.daemon()?;
        process::forget_peak(daemon);
        let before = process::memory(daemon);
        let began = Instant::now();
        let id = host.send("tools/call", &bench.installation.call(&prompt, None))?;
        let result = host.answer_to(id)?;
        ours.push(millis(began.elapsed()));
        check(&result)?;
        #[expect(clippy::cast_precision_loss, reason = "no reply has so many bytes")]
        reply.push(host.heard_bytes() as f64 / 1e6);
        growth.extend(process::peak_memory(daemon).zip(before).map(|(after, before)| after - before));
    }
    let alone = |what: &str, samples: Vec<f64>, target| Row {
        what: what.to_owned(),
        unit: Unit::Megabytes,
        baseline: None,
        ours: Spread::of(samples),
        target,
    };
    Ok(vec![
        Row {
            what: format!("a transcript of {megabytes} MB, end to end"),
            unit: Unit::Milliseconds,
            baseline: Some(Baseline::of("plain spawn", &plain, &ours)),
            ours: Spread::of(ours.iter().copied()),
            target: Some(Target::Below(1500.0)),
        },
        alone("its reply", reply, None),
        alone("growth of the daemon's memory over it", growth, Some(Target::Below(20.0))),
    ])
}
