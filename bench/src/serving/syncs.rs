//! How often a call waits for the disk, counted by `strace`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::report::{Row, Target, Unit};
use crate::spread::Spread;
use crate::{Failure, output};

use super::Bench;
use super::calling::call;
use crate::house::check;

const CALLS: [&str; 2] = ["fsync", "fdatasync"];
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes the figure; none where processes cannot be traced.
pub async fn measure(bench: &mut Bench<'_>) -> Result<Vec<Row>, Failure> {
    let mut host = bench.house.host()?;
    let hello = bench.house.hello();
    call(&mut host, &hello, 1, check)?;
    let counts = bench.house.workspace().join("syncs");
    let mut samples = Vec::new();
    for _ in 0..bench.scale.rounds {
        bench.check().await?;
        let Some(tracer) = trace(bench.house.daemon()?, &counts)? else {
            output::progress(
                "left out: how often a call waits for the disk (strace is missing or may not attach)",
            );
            return Ok(Vec::new());
        };
        let called = call(&mut host, &hello, bench.scale.traced, check);
        finish(tracer)?;
        called?;
        samples.push(f64::from(counted(&fs::read_to_string(&counts)?)) / f64::from(bench.scale.traced));
    }
    Ok(vec![Row {
        what: "one call: fsync and fdatasync".to_owned(),
        unit: Unit::Count,
        baseline: None,
        ours: Spread::of(samples),
        target: Some(Target::AtMost(2.0)),
    }])
}

/// Follows the process and all that it starts; none when that is not possible here.
fn trace(pid: u32, counts: &Path) -> Result<Option<Child>, Failure> {
    let tracer = Command::new("strace")
        .args(["-f", "-c", "-e"])
        .arg(format!("trace={}", CALLS.join(",")))
        .arg("-o")
        .arg(counts)
        .args(["-p", &pid.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut tracer) = tracer else { return Ok(None) };
    let give_up_at = Instant::now() + PATIENCE;
    while !is_traced(pid) {
        if tracer.try_wait()?.is_some() {
            return Ok(None);
        }
        if Instant::now() > give_up_at {
            finish(tracer)?;
            return Ok(None);
        }
        sleep(Duration::from_millis(5));
    }
    Ok(Some(tracer))
}

/// Every thread of it.
fn is_traced(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let traced = |status: String| !status.contains("TracerPid:\t0\n");
    tasks.map(|task| fs::read_to_string(task.path().join("status"))).all(|status| status.is_ok_and(traced))
}

/// It prints its counts when it is interrupted.
fn finish(mut tracer: Child) -> Result<(), Failure> {
    kill(Pid::from_raw(i32::try_from(tracer.id())?), Signal::SIGINT)?;
    tracer.wait()?;
    Ok(())
}

/// The sum of a summary of strace: share, seconds, microseconds a call, calls, perhaps errors, name.
fn counted(summary: &str) -> u32 {
    let calls = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.last().filter(|name| CALLS.contains(name))?;
        fields.get(3)?.parse::<u32>().ok()
    };
    summary.lines().filter_map(calls).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_with_and_without_errors() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
                       ------ ----------- ----------- --------- --------- ----------------\n\
                        90.00    0.001000          10       100           fdatasync\n\
                        10.00    0.000100          10         7         2 fsync\n\
                       100.00    0.001100                   107         2 total\n";
        assert_eq!(counted(summary), 107);
    }
}
