//! Sequential runs, compared with a plain spawn.

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
    // Both executables into the page cache.
    plainly(scene, 1)?;
    supervised(scene, 1, interruption).await?;
    let mut turns = Turns::default();
    for _ in 0..scale.rounds {
        turns.baseline.push(plainly(scene, scale.runs)?);
        turns.ours.push(supervised(scene, scale.runs, interruption).await?);
    }
    Ok(turns.rows("one run", "plain spawn").into())
}

fn plainly(scene: &Scene, runs: u32) -> Result<Cost, Failure> {
    let meter = Meter::start()?;
    for _ in 0..runs {
        finish_plainly(scene.spawn_plainly()?)?;
    }
    Ok(meter.stop()? / runs)
}

async fn supervised(scene: &Scene, runs: u32, interruption: &mut Interruption) -> Result<Cost, Failure> {
    let directory = scene.lasting_directory()?;
    let meter = Meter::start()?;
    for run in 0..runs {
        interruption.check()?;
        scene.run_supervised(&directory.join(run.to_string())).await?;
    }
    Ok(meter.stop()? / runs)
}
