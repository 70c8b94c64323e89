//! The vendor's own libraries, with the same stub: the cost for a program that starts the agent through them.
//!
//! `scripts/peers-install` installs them; `bench/sdk` contains the code that uses them. They store and supervise nothing, so
//! they are between a plain spawn and ours.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::installation::{PROMPT, check};
use crate::peers::installed;
use crate::report::{Baseline, Row, Unit};
use crate::spread::Spread;
use crate::{Failure, output};

use super::Bench;
use super::calling::{Round, call};
use super::peers::Samples;

/// A library.
struct Sdk {
    /// The directory of its installation.
    directory: &'static str,
    /// Its name in the table.
    name: &'static str,
    /// The interpreter there. Python knows its libraries by the place that it was started from, so no link to it would do.
    interpreter: &'static str,
    /// The program that uses it.
    program: &'static str,
}

const SDKS: [Sdk; 2] = [
    Sdk {
        directory: "agent-sdk-python",
        name: "claude-agent-sdk (Python)",
        interpreter: "bin/python",
        program: "query.py",
    },
    Sdk {
        directory: "agent-sdk-node",
        name: "claude-agent-sdk (npm)",
        interpreter: "program",
        program: "query.mjs",
    },
];

/// The first calls load and compile.
const WARM_UP: usize = 3;

/// Takes the figures of each that is there, in turn with ours.
pub async fn measure(bench: &mut Bench<'_>, stub: &Path) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for sdk in &SDKS {
        bench.check().await?;
        output::progress(&format!("measuring: {}", sdk.name));
        if !installed().join(sdk.directory).join("program").exists() {
            output::progress(&format!("skipped: {} is not installed; run `scripts/peers-install`", sdk.name));
            continue;
        }
        match in_turn(bench, sdk, stub).await {
            Ok(taken) => rows.extend(taken),
            Err(failure) => output::progress(&format!("skipped: {}: {failure}", sdk.name)),
        }
    }
    Ok(rows)
}

async fn in_turn(bench: &mut Bench<'_>, sdk: &Sdk, stub: &Path) -> Result<Vec<Row>, Failure> {
    let name = sdk.name;
    let mut host = bench.installation.host()?;
    let hello = bench.installation.hello();
    call(&mut host, &hello, 2, check)?;
    let (mut theirs, mut ours, mut through) = (Vec::new(), Vec::new(), Samples::default());
    for _ in 0..bench.scale.rounds {
        bench.check().await?;
        let used = sdk.call(bench, stub, bench.scale.calls as usize + WARM_UP, PROMPT)?;
        theirs.extend(Round::of(used.times[WARM_UP..].to_vec()));
        ours.push(call(&mut host, &hello, bench.scale.calls, check)?);
    }
    let flood = format!("@flood {}", bench.scale.megabytes);
    let used = sdk.call(bench, stub, 1, &flood)?;
    through.flood(
        bench.installation.bridge(),
        &bench.installation.call(&flood, None),
        bench.installation.daemon().ok(),
    )?;
    let row = |what: &str, of: fn(&Round) -> f64| {
        let pick = |rounds: &[Round]| rounds.iter().map(of).collect::<Vec<_>>();
        Row {
            what: what.to_owned(),
            unit: Unit::Milliseconds,
            baseline: Some(Baseline::of(name, &pick(&theirs), &pick(&ours))),
            ours: Spread::of(pick(&ours)),
            target: None,
        }
    };
    let once = |what: String, unit, theirs: &[f64], ours: &[f64]| Row {
        what,
        unit,
        baseline: Some(Baseline::of(name, theirs, ours)),
        ours: Spread::of(ours.iter().copied()),
        target: None,
    };
    let megabytes = bench.scale.megabytes;
    Ok(vec![
        row("one call: p50", |round| round.median),
        row("one call: p95", |round| round.p95),
        once(
            format!("a transcript of {megabytes} MB, end to end"),
            Unit::Milliseconds,
            &used.times,
            &through.transcript,
        ),
        once(
            "its peak memory (ours: bridge and daemon)".to_owned(),
            Unit::Megabytes,
            &[used.memory],
            &through.peak,
        ),
    ])
}

struct Used {
    times: Vec<f64>,
    memory: f64,
}

impl Sdk {
    fn call(&self, bench: &Bench<'_>, stub: &Path, times: usize, prompt: &str) -> Result<Used, Failure> {
        let directory = installed().join(self.directory);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk").join(self.program);
        let output = Command::new(directory.join(self.interpreter))
            .arg(script)
            .arg(stub)
            .args([&times.to_string(), prompt])
            .env_clear()
            .env("HOME", bench.installation.workspace())
            .env("PATH", "/usr/bin:/bin")
            .env("SDK_FOLDER", directory)
            .current_dir(bench.installation.workspace())
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let end: Vec<&str> = complaint.lines().rev().take(3).collect();
            return Err(format!("it exited with {}: {}", output.status, end.join(" / ")).into());
        }
        let said: Value = serde_json::from_slice(&output.stdout)?;
        if said["answer"] != "Hello." {
            return Err(format!("it answered {}", said["answer"]).into());
        }
        let times = said["ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let memory = said["peak_kb"].as_f64().ok_or("it did not report its memory")? * 1.024 / 1000.0;
        Ok(Used { times, memory })
    }
}
