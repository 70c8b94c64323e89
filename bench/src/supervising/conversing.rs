//! An open input: the memory of its supervisor, and the throughput from the input through an agent to the output,
//! compared with `cat FILE | cat > FILE` on the same file system.
//!
//! The agent is `cat`. On our side every byte is written twice, to the input and to the output.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use model::{InputMode, Limits, RunPlan};
use supervisor::Run;
use tokio::time::sleep;

use crate::Failure;
use crate::cost::{Cost, Meter};
use crate::interruption::Interruption;
use crate::process::megabytes;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;

use super::SupervisingScale;
use super::copying::{CAT, Original};
use super::memory::{Footprint, POLL_INTERVAL, footprint_rows};
use super::scene::{Scene, check_report};

/// The size of one append.
const BLOCK: usize = 1 << 20;

/// Takes the figures.
pub async fn measure(
    scene: &Scene,
    scale: &SupervisingScale,
    interruption: &mut Interruption,
) -> Result<Vec<Row>, Failure> {
    let original = Original::prepare(scene.work(), scale.megabytes)?;
    let (mut complete, mut open) = (Vec::new(), Vec::new());
    let (mut theirs, mut ours, mut footprints) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        interruption.check()?;
        complete.push(waiting_memory(scene, InputMode::Complete).await?);
        open.push(waiting_memory(scene, InputMode::Open).await?);
        theirs.push(original.speed(copy_by_cat(scene, &original)?));
        let (cost, footprint) = converse(scene, &original).await?;
        ours.push(original.speed(cost));
        footprints.push(footprint);
    }
    fs::remove_file(original.file())?;
    let memory = Row {
        what: "memory of a supervisor that waits for an open input".to_owned(),
        unit: Unit::Megabytes,
        baseline: Some(Baseline::of("a complete input", &complete, &open)),
        ours: Spread::of(open),
        target: Some(Target::RatioBelow(1.05)),
    };
    let throughput = Row {
        what: format!("throughput, {} MB through an open input and back", scale.megabytes),
        unit: Unit::MegabytesPerSecond,
        baseline: Some(Baseline::of("`cat \\| cat`", &theirs, &ours)),
        ours: Spread::of(ours),
        target: None,
    };
    let name = format!("memory of the supervisor, {} MB in both directions", scale.megabytes);
    Ok([memory, throughput].into_iter().chain(footprint_rows(&name, &footprints)).collect())
}

/// Returns the memory of a supervisor whose agent has printed something and waits.
async fn waiting_memory(scene: &Scene, input_mode: InputMode) -> Result<f64, Failure> {
    let directory = scene.fresh_directory()?;
    let plan = RunPlan {
        args: vec!["-c".to_owned(), "echo up; exec /bin/sleep 600".to_owned()],
        input: b"hello\n".to_vec(),
        input_mode,
        ..RunPlan::new("/bin/sh", scene.work())
    };
    let run = scene.start(&directory.path().join("spool"), &plan).await?.stop_on_drop();
    if let Some(mut input) = run.input()? {
        input.write_all(b"hello again\n")?;
    }
    while fs::metadata(run.spool().output())?.len() == 0 {
        sleep(POLL_INTERVAL).await;
    }
    // The supervisor has copied the output, and sleeps again a moment later.
    sleep(Duration::from_millis(20)).await;
    let status = fs::read_to_string(format!("/proc/{}/status", supervisor_pid(&run)?))?;
    run.stop()?;
    run.wait().await?;
    directory.close()?;
    megabytes(&status, "VmRSS:").ok_or_else(|| "a running supervisor has no memory".into())
}

fn supervisor_pid(run: &Run) -> Result<i32, Failure> {
    Ok(run.supervisor().ok_or("a started run has no supervisor")?.pid)
}

fn copy_by_cat(scene: &Scene, original: &Original) -> Result<Cost, Failure> {
    let directory = scene.fresh_directory()?;
    let copy = directory.path().join("copy");
    let output = File::create_new(&copy)?;
    let meter = Meter::start()?;
    let mut first = Command::new(CAT).arg(original.file()).env_clear().stdout(Stdio::piped()).spawn()?;
    let pipe = first.stdout.take().ok_or("cat has no stdout")?;
    let second = Command::new(CAT).env_clear().stdin(pipe).stdout(output).status();
    let (first, second) = (first.wait()?, second?);
    let cost = meter.stop()?;
    if !first.success() || !second.success() || fs::metadata(&copy)?.len() != original.bytes() {
        return Err(format!("`cat | cat` did not copy everything: {first}, {second}").into());
    }
    directory.close()?;
    Ok(cost)
}

/// Appends a file to the input of `cat` and waits until all of it has come back.
async fn converse(scene: &Scene, original: &Original) -> Result<(Cost, Footprint), Failure> {
    let directory = scene.fresh_directory()?;
    let plan = RunPlan {
        input_mode: InputMode::Open,
        limits: Limits { output_bytes: Some(2 * original.bytes()), ..Limits::default() },
        ..RunPlan::new(CAT, scene.work())
    };
    let meter = Meter::start()?;
    let run = scene.start(&directory.path().join("spool"), &plan).await?.stop_on_drop();
    let (output, pid) = (run.spool().output(), supervisor_pid(&run)?);
    let mut footprint = Footprint::default();
    let mut look = || -> Result<(), Failure> {
        footprint.look(pid, fs::metadata(&output)?.len() * 100 / original.bytes());
        Ok(())
    };
    let mut input = run.input()?.ok_or("an open input is complete")?;
    let (mut source, mut block) = (File::open(original.file())?, vec![0; BLOCK]);
    loop {
        let count = source.read(&mut block)?;
        if count == 0 {
            break;
        }
        input.write_all(&block[..count])?;
        look()?;
    }
    input.close()?;
    let report = loop {
        tokio::select! {
            biased;
            report = run.wait() => break report?,
            () = sleep(POLL_INTERVAL) => look()?,
        }
    };
    let cost = meter.stop()?;
    check_report(&report)?;
    if report.output_bytes != original.bytes() {
        return Err(format!("only {} of {} bytes came back", report.output_bytes, original.bytes()).into());
    }
    directory.close()?;
    Ok((cost, footprint))
}
