//! The growth of a call's cost with the number of concurrent calls and of stored jobs.

use std::path::Path;
use std::time::Duration;

use model::{AgentKind, CallSpec, JobEnd, NewJob, Owner, Placement};
use store::{Capacity, ClaimRequest, Store, StoreOptions};
use tokio::task::JoinSet;

use crate::installation::check;
use crate::plot::{Plot, Series};
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;
use crate::{Failure, output};

use super::Bench;
use super::calling::call;
use super::crowd::{rate, spawn};

/// The numbers of concurrent calls.
pub const GROWTH: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The number of concurrent writers of generated jobs, which share their fsyncs.
const WRITERS: u32 = 32;

/// Calls per second, plainly spawned and through ours, by how many there are at once.
pub async fn at_once(bench: &mut Bench<'_>) -> Result<Vec<Series>, Failure> {
    let mut host = bench.installation.host()?;
    let hello = bench.installation.hello();
    call(&mut host, &hello, 2, check)?;
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for most in GROWTH {
        let (mut plainly, mut through) = (Vec::new(), Vec::new());
        for _ in 0..bench.scale.rounds {
            bench.check().await?;
            plainly.push(spawn(bench, most)?);
            through.push(rate(&mut host, &hello, bench.scale.crowd_calls, most, check)?);
        }
        #[expect(clippy::cast_precision_loss, reason = "there are few at once")]
        let x = most as f64;
        plain.extend(Spread::of(plainly).map(|spread| (x, spread.median)));
        ours.extend(Spread::of(through).map(|spread| (x, spread.median)));
    }
    Ok(vec![
        Series { name: "switchboard".to_owned(), points: ours },
        Series { name: "plain spawns".to_owned(), points: plain },
    ])
}

/// The chart of that, with the others in it.
pub fn plot(series: Vec<Series>) -> String {
    let plot =
        Plot { title: "Calls per second", x: "calls at once", y: "calls per second", log_y: true, series };
    plot.svg()
}

/// One call by number of stored jobs already: against the fewest of them.
pub async fn stored(bench: &mut Bench<'_>) -> Result<(Vec<Row>, String), Failure> {
    let database = bench.installation.state().join("switchboard.db");
    let hello = bench.installation.hello();
    let (mut rows, mut points, mut kept, mut first) = (Vec::new(), Vec::new(), 0, Vec::new());
    for &stored in bench.scale.stored {
        // The daemon creates the file, and must exit before another process writes to it.
        drop(bench.installation.host()?);
        bench.installation.stop()?;
        output::progress(&format!("creating {} jobs", stored - kept));
        fill(&database, stored - kept).await?;
        kept = stored;
        let mut host = bench.installation.host()?;
        call(&mut host, &hello, 3, check)?;
        let mut samples = Vec::new();
        for _ in 0..bench.scale.rounds {
            bench.check().await?;
            samples.push(call(&mut host, &hello, bench.scale.calls, check)?.median);
        }
        if first.is_empty() {
            first.clone_from(&samples);
        }
        points.extend(Spread::of(samples.iter().copied()).map(|spread| (f64::from(stored), spread.median)));
        rows.push(Row {
            what: format!("one call with {stored} stored jobs: p50"),
            unit: Unit::Milliseconds,
            baseline: Some(Baseline::of("with the fewest", &first, &samples)),
            ours: Spread::of(samples),
            target: Some(Target::RatioBelow(1.5)),
        });
    }
    let series = vec![Series { name: "switchboard".to_owned(), points }];
    let plot = Plot {
        title: "One call by number of stored jobs",
        x: "stored jobs",
        y: "ms, p50",
        log_y: false,
        series,
    };
    Ok((rows, plot.svg()))
}

/// Keeps so many jobs that have ended, as if another machine had run them.
async fn fill(database: &Path, jobs: u32) -> Result<(), Failure> {
    let setting = format!("sqlite:{}", database.display()).parse()?;
    let store = Store::open(StoreOptions::new(setting, database)).await?;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS.min(jobs) {
        let store = store.clone();
        let jobs = jobs / WRITERS.min(jobs) + u32::from(writer < jobs % WRITERS.min(jobs));
        writers.spawn(async move {
            for _ in 0..jobs {
                keep(&store).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(written) = writers.join_next().await {
        written??;
    }
    Ok(())
}

async fn keep(store: &Store) -> Result<(), Failure> {
    let elsewhere = Placement::Host("elsewhere".into());
    let call = CallSpec::new(AgentKind::Rehearsal, "What is 2 + 2?", "/tmp");
    store.submit(NewJob::new(call, "call", elsewhere.clone())).await?;
    let request = ClaimRequest {
        owner: Owner::new("elsewhere"),
        homes: vec![elsewhere],
        agents: vec![Capacity { agent: AgentKind::Rehearsal, at_once: 10_000 }],
        lease: Duration::from_mins(10),
    };
    // Another writer may have taken the one that was just placed; then this one takes another's.
    if let Some(claim) = store.claim(request).await?.and_then(|job| job.claim()) {
        store.finish(&claim, JobEnd::cancelled()).await?;
    }
    Ok(())
}
