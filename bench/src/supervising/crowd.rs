//! Many runs at once, from one thread, until the last one has ended.

use std::path::Path;

use tokio::task::JoinSet;

use crate::Failure;
use crate::cost::{Cost, Meter};
use crate::interruption::Interruption;
use crate::report::Row;
use crate::turns::Turns;

use super::SupervisingScale;
use super::scene::{Scene, finish_plainly};

/// Takes the figures.
pub async fn measure(
    scene: &Scene,
    scale: &SupervisingScale,
    interruption: &mut Interruption,
) -> Result<Vec<Row>, Failure> {
    let mut turns = Turns::default();
    for _ in 0..scale.rounds {
        turns.baseline.push(plainly(scene, scale)?);
        turns.ours.push(supervised(scene, scale, interruption).await?);
    }
    Ok(turns.rows(&format!("{} runs at once", scale.crowd), "plain spawns").into())
}

fn plainly(scene: &Scene, scale: &SupervisingScale) -> Result<Cost, Failure> {
    let meter = Meter::start()?;
    for _ in 0..scale.crowds {
        let mut children = Vec::new();
        for _ in 0..scale.crowd {
            children.push(scene.spawn_plainly()?);
        }
        children.into_iter().try_for_each(finish_plainly)?;
    }
    Ok(meter.stop()? / scale.crowds)
}

async fn supervised(
    scene: &Scene,
    scale: &SupervisingScale,
    interruption: &mut Interruption,
) -> Result<Cost, Failure> {
    let directory = scene.lasting_directory()?;
    let meter = Meter::start()?;
    for crowd in 0..scale.crowds {
        interruption.check()?;
        supervise_crowd(scene, scale.crowd, &directory.join(crowd.to_string())).await?;
    }
    Ok(meter.stop()? / scale.crowds)
}

async fn supervise_crowd(scene: &Scene, crowd: u32, directory: &Path) -> Result<(), Failure> {
    let mut runs = JoinSet::new();
    for run in 0..crowd {
        let (scene, spool) = (scene.clone(), directory.join(run.to_string()));
        runs.spawn(async move { scene.run_supervised(&spool).await });
    }
    // Waits for all of them, even after a failure: none may be left in a directory that is about to be removed.
    let mut ended = Vec::new();
    while let Some(run) = runs.join_next().await {
        ended.push(run?);
    }
    ended.into_iter().collect()
}
