//! System calls, counted by `strace`: fsyncs of a call, and all calls of a printed line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;
use crate::{Failure, output, process};

use super::Bench;
use super::calling::call;
use super::plain::finish as read_to_the_end;
use crate::client::BenchHost;
use crate::installation::check;

const SYNCS: &str = "fsync,fdatasync";
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two lines, in milliseconds: long enough that each is a line of its own for everybody.
const GAP: u32 = 20;

/// Takes the figures; none where processes cannot be traced.
pub async fn measure(bench: &mut Bench<'_>) -> Result<Vec<Row>, Failure> {
    let mut host = bench.installation.host()?;
    // The second one comes from where all later ones do.
    call(&mut host, &bench.installation.hello(), 2, check)?;
    let (mut syncs, mut alone, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        bench.check().await?;
        let counted = (syncs_of_a_call(bench, &mut host)?, calls_of_a_line(bench, &mut host)?);
        let (Some(of_a_call), Some((of_the_agent, of_a_line))) = counted else {
            output::progress("skipped: system calls (strace is missing or may not attach)");
            return Ok(Vec::new());
        };
        syncs.push(of_a_call);
        alone.push(of_the_agent);
        lines.push(of_a_line);
    }
    Ok(vec![
        Row {
            what: "one call: fsync and fdatasync".to_owned(),
            unit: Unit::Count,
            baseline: None,
            ours: Spread::of(syncs),
            target: Some(Target::AtMost(2.0)),
        },
        Row {
            what: "one printed line: system calls, the agent's with them".to_owned(),
            unit: Unit::Count,
            baseline: Some(Baseline::of("the agent alone", &alone, &lines)),
            ours: Spread::of(lines),
            target: None,
        },
    ])
}

fn syncs_of_a_call(bench: &Bench<'_>, host: &mut BenchHost) -> Result<Option<f64>, Failure> {
    let counts = counts(bench);
    let Some(tracer) = trace(&ours(bench)?, SYNCS, &counts)? else { return Ok(None) };
    let called = call(host, &bench.installation.hello(), bench.scale.traced, check);
    finish(tracer)?;
    called?;
    Ok(Some(f64::from(counted(&fs::read_to_string(&counts)?)) / f64::from(bench.scale.traced)))
}

/// Returns the system calls of a line, of the agent alone and of all processes.
fn calls_of_a_line(bench: &Bench<'_>, host: &mut BenchHost) -> Result<Option<(f64, f64)>, Failure> {
    let (Some(none), Some(all)) = (in_all(bench, host, 0)?, in_all(bench, host, bench.scale.traced)?) else {
        return Ok(None);
    };
    let of_a_line = |none: u32, all: u32| f64::from(all.saturating_sub(none)) / f64::from(bench.scale.traced);
    Ok(Some((of_a_line(none.0, all.0), of_a_line(none.1, all.1))))
}

/// Counts the system calls of a run that prints that many lines: of the agent alone, and of all our processes.
fn in_all(bench: &Bench<'_>, host: &mut BenchHost, lines: u32) -> Result<Option<(u32, u32)>, Failure> {
    let (counts, prompt) = (counts(bench), format!("@lines {lines} {GAP}"));
    let Ok(child) = bench.plain.spawn_under(&["strace", "-f", "-c", "-o"], &counts, &prompt) else {
        return Ok(None);
    };
    read_to_the_end(child)?;
    let alone = counted(&fs::read_to_string(&counts)?);
    let Some(tracer) = trace(&ours(bench)?, "all", &counts)? else { return Ok(None) };
    let called = call(host, &bench.installation.call(&prompt, None), 1, check);
    finish(tracer)?;
    called?;
    Ok(Some((alone, counted(&fs::read_to_string(&counts)?))))
}

fn counts(bench: &Bench<'_>) -> PathBuf {
    bench.installation.workspace().join("counts")
}

/// The daemon and where its supervisors come from.
fn ours(bench: &Bench<'_>) -> Result<Vec<u32>, Failure> {
    let daemon = bench.installation.daemon()?;
    Ok([daemon].into_iter().chain(process::children(daemon)).collect())
}

/// Follows the processes and all that they start; none when that is not possible here.
fn trace(pids: &[u32], what: &str, counts: &Path) -> Result<Option<Child>, Failure> {
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-e"]).arg(format!("trace={what}")).arg("-o").arg(counts);
    for pid in pids {
        command.args(["-p", &pid.to_string()]);
    }
    let Ok(mut tracer) = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn() else { return Ok(None) };
    let give_up_at = Instant::now() + PATIENCE;
    while !pids.iter().all(|pid| is_traced(*pid)) {
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
        fields.last().filter(|name| **name != "total")?;
        fields.get(3)?.parse::<u32>().ok()
    };
    summary.lines().filter_map(calls).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_are_counted_with_errors() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
                       ------ ----------- ----------- --------- --------- ----------------\n\
                        90.00    0.001000          10       100           fdatasync\n\
                        10.00    0.000100          10         7         2 fsync\n\
                       100.00    0.001100                   107         2 total\n";
        assert_eq!(counted(summary), 107);
    }
}
