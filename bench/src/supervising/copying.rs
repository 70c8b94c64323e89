//! Throughput from an agent to the spool, compared with `cat FILE | dd of=FILE` on the same file system.
//!
//! Neither side fsyncs, and each copy is removed before the next, so the page cache is measured and not the disk.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use model::{Limits, RunPlan};

use crate::Failure;
use crate::cost::{Cost, Meter};
use crate::interruption::Interruption;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;

use super::SupervisingScale;
use super::scene::{Scene, check_report};

pub const CAT: &str = "/bin/cat";
const DD: &str = "/bin/dd";

/// The copied file.
#[derive(Debug)]
pub struct Original {
    file: PathBuf,
    megabytes: u32,
}

/// Takes the figures.
pub async fn measure(
    scene: &Scene,
    scale: &SupervisingScale,
    interruption: &mut Interruption,
) -> Result<Vec<Row>, Failure> {
    let original = Original::prepare(scene.work(), scale.megabytes)?;
    let (mut by_dd, mut by_large_dd, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        interruption.check()?;
        by_dd.push(original.copy_by_dd(scene, None)?);
        ours.push(original.copy_supervised(scene).await?);
        by_large_dd.push(original.copy_by_dd(scene, Some("bs=64K"))?);
    }
    fs::remove_file(&original.file)?;

    let row = |name, theirs: &[Cost], target| {
        let speeds = |costs: &[Cost]| costs.iter().map(|cost| original.speed(*cost)).collect::<Vec<_>>();
        Row {
            what: format!("throughput, copying {} MB", original.megabytes),
            unit: Unit::MegabytesPerSecond,
            baseline: Some(Baseline::of(name, &speeds(theirs), &speeds(&ours))),
            ours: Spread::of(speeds(&ours)),
            target,
        }
    };
    let cpu_row = |name, theirs: &[Cost]| {
        let times =
            |costs: &[Cost]| costs.iter().map(|cost| cost.cpu.as_secs_f64() * 1e3).collect::<Vec<_>>();
        Row {
            what: "its CPU time, the agent's with it".to_owned(),
            unit: Unit::Milliseconds,
            baseline: Some(Baseline::of(name, &times(theirs), &times(&ours))),
            ours: Spread::of(times(&ours)),
            target: None,
        }
    };
    let (small, large) = ("`cat \\| dd`", "`cat \\| dd bs=64K`");
    Ok(vec![
        row(small, &by_dd, Some(Target::RatioAtLeast(0.8))),
        row(large, &by_large_dd, None),
        cpu_row(small, &by_dd),
        cpu_row(large, &by_large_dd),
    ])
}

impl Original {
    /// Writes the file and waits until it is on the disk.
    pub fn prepare(work: &Path, megabytes: u32) -> Result<Self, Failure> {
        let file = work.join("original");
        let mut writer = File::create_new(&file)?;
        let block: Vec<u8> = (0..=u8::MAX).cycle().take(1_000_000).collect();
        for _ in 0..megabytes {
            writer.write_all(&block)?;
        }
        // Otherwise it would be written back while the copies are measured.
        writer.sync_all()?;
        Ok(Self { file, megabytes })
    }

    /// Returns its path.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns its length.
    pub fn bytes(&self) -> u64 {
        u64::from(self.megabytes) * 1_000_000
    }

    /// Returns the throughput of a copy, in millions of bytes in a second.
    pub fn speed(&self, cost: Cost) -> f64 {
        f64::from(self.megabytes) / cost.wall.as_secs_f64()
    }

    fn copy_by_dd(&self, scene: &Scene, block_size: Option<&str>) -> Result<Cost, Failure> {
        let directory = scene.fresh_directory()?;
        let copy = directory.path().join("copy");
        let meter = Meter::start()?;
        let mut cat = Command::new(CAT).arg(&self.file).env_clear().stdout(Stdio::piped()).spawn()?;
        let pipe = cat.stdout.take().ok_or("cat has no stdout")?;
        let dd = Command::new(DD)
            .arg(format!("of={}", copy.display()))
            .arg("status=none")
            .args(block_size)
            .env_clear()
            .stdin(pipe)
            .status();
        // It exits with dd: the pipe's other end is closed.
        let cat = cat.wait()?;
        let dd = dd?;
        let cost = meter.stop()?;
        if !cat.success() || !dd.success() || fs::metadata(&copy)?.len() != self.bytes() {
            return Err(format!("`cat | dd` did not copy everything: cat {cat}, dd {dd}").into());
        }
        directory.close()?;
        Ok(cost)
    }

    async fn copy_supervised(&self, scene: &Scene) -> Result<Cost, Failure> {
        let directory = scene.fresh_directory()?;
        let plan = RunPlan {
            args: vec![self.file.display().to_string()],
            limits: Limits { output_bytes: Some(2 * self.bytes()), ..Limits::default() },
            ..RunPlan::new(CAT, scene.work())
        };
        let meter = Meter::start()?;
        let report = scene.start(&directory.path().join("spool"), &plan).await?.wait().await?;
        let cost = meter.stop()?;
        check_report(&report)?;
        if report.output_bytes != self.bytes() {
            return Err(format!("only {} of {} bytes were copied", report.output_bytes, self.bytes()).into());
        }
        directory.close()?;
        Ok(cost)
    }
}
