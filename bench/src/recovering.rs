//! The cost of `switchboard recover` with many jobs. The baseline reads the same records and does nothing with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use store::{JobFilter, PageRequest, Store, StoreOptions, StoreSetting};

use crate::executables::Executables;
use crate::report::{Baseline, Row, Unit};
use crate::spread::Spread;
use crate::{Failure, output, paging, process};

/// The size of the report that a confined run leaves in its record.
const REPORT_BYTES: usize = 7_000;

/// The amount of work.
#[derive(Debug)]
pub struct RecoveringScale {
    jobs: u64,
    rounds: u32,
}

impl RecoveringScale {
    /// For figures to be quoted.
    pub const FULL: Self = Self { jobs: 10_000, rounds: 5 };
    /// To see that everything still works.
    pub const QUICK: Self = Self { jobs: 300, rounds: 1 };

    /// Describes how the figures come about.
    pub fn method(&self) -> String {
        let Self { jobs, rounds } = self;
        format!(
            "- {jobs} job directories with records of about 9 kB, and no database; median (min–max) of {rounds} rounds, warm cache\n\
             - baseline: every `record.json` is read and not processed\n\
             - memory: the peak resident memory of `switchboard recover`"
        )
    }
}

/// Takes all figures.
pub async fn measure(
    executables: &Executables,
    work: &Path,
    scale: &RecoveringScale,
) -> Result<Vec<Row>, Failure> {
    let home = work.canonicalize()?.join("home");
    output::progress(&format!("creating {} job directories", scale.jobs));
    paging::fill(&home, scale.jobs, 30).await?;
    let records = write_records(&home.join("state")).await?;
    let (mut plain, mut ours, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        for ending in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(home.join(format!("state/switchboard.db{ending}")));
        }
        let began = Instant::now();
        for record in &records {
            fs::read(record)?;
        }
        plain.push(began.elapsed().as_secs_f64() * 1e3);
        let (took, peak) = recover(&executables.switchboard, &home, scale.jobs)?;
        ours.push(took.as_secs_f64() * 1e3);
        peaks.push(peak);
    }
    let baseline = Some(Baseline::of("reading the records", &plain, &ours));
    let time = format!("`switchboard recover` of {} jobs: time", scale.jobs);
    Ok(vec![
        Row { what: time, unit: Unit::Milliseconds, baseline, ours: Spread::of(ours), target: None },
        Row {
            what: "… memory".to_owned(),
            unit: Unit::Megabytes,
            baseline: None,
            ours: Spread::of(peaks),
            target: None,
        },
    ])
}

/// Writes the record of every job as the daemon does, and returns their paths.
async fn write_records(state: &Path) -> Result<Vec<PathBuf>, Failure> {
    let opening = StoreOptions::new(StoreSetting::Sqlite { path: None }, state.join("switchboard.db"));
    let store = Store::open(opening).await?;
    let mut records = Vec::new();
    let mut page = PageRequest { limit: PageRequest::MAX, before: None };
    loop {
        let listed = store.list(&JobFilter::default(), page).await?;
        for line in listed.jobs {
            let mut job = store.get(line.id).await?.ok_or("a listed job is missing")?;
            job.metadata = Some(serde_json::to_string(&"x".repeat(REPORT_BYTES))?);
            let directory = state.join("jobs").join(job.id.to_string());
            fs::create_dir_all(directory.join("runs"))?;
            records.push(directory.join("record.json"));
            fs::write(directory.join("record.json"), serde_json::to_vec(&job)?)?;
        }
        let Some(next) = listed.next else { return Ok(records) };
        page.before = Some(next);
    }
}

/// Recovers all jobs, and returns how long that took and how much memory.
fn recover(switchboard: &Path, home: &Path, jobs: u64) -> Result<(Duration, f64), Failure> {
    let began = Instant::now();
    let mut child = Command::new(switchboard)
        .args(["recover", "--json"])
        .env_clear()
        .env("SWITCHBOARD_HOME", home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut peak = 0.0_f64;
    while child.try_wait()?.is_none() {
        // A process that has just ended has no memory any more.
        peak = peak.max(process::peak_memory(child.id()).unwrap_or(0.0));
        thread::sleep(Duration::from_millis(1));
    }
    let took = began.elapsed();
    let report: serde_json::Value = serde_json::from_slice(&child.wait_with_output()?.stdout)?;
    if report["restored"] == jobs {
        Ok((took, peak))
    } else {
        Err(format!("not all were recovered: {report}").into())
    }
}
