//! Recorded streams of the real programs with their events and outcomes, as snapshots.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use agents::{Driver, DriverSpec, FinishedRun, ParseLimits, Summary, judge};
use model::{
    AgentEvent, AgentKind, Deadline, End, Exit, ExpectedSession, Outcome, RunReport, TreeEnd, TreeUsage,
};

fn recordings() -> Vec<PathBuf> {
    let directories = |path: &Path| -> Vec<PathBuf> {
        let mut found: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect();
        found.sort();
        found
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts");
    directories(&root).iter().flat_map(|version| directories(version)).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The options in the arguments of a recording.
struct Asked {
    session: ExpectedSession,
    schema: Option<String>,
    model: Option<String>,
}

fn asked(directory: &Path) -> Asked {
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(directory.join("argv.json")).unwrap()).unwrap();
    let argv: Vec<&str> = json["argv"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    let after = |flags: &[&str]| {
        let value = argv.iter().position(|arg| flags.contains(arg)).and_then(|at| argv.get(at + 1)).copied();
        value.filter(|value| !value.starts_with('-'))
    };
    let resumed = after(&["--resume", "resume"]).filter(|id| *id != "latest").and_then(|id| id.parse().ok());
    let session = match (resumed, after(&["--session-id"]).and_then(|id| id.parse().ok())) {
        (Some(from), into) if argv.contains(&"--fork-session") => ExpectedSession::Forked { from, into },
        (_, Some(id)) => ExpectedSession::Assigned(id),
        (Some(id), None) => ExpectedSession::Resumed(id),
        (None, None) if argv.iter().any(|arg| ["-c", "--last", "latest"].contains(arg)) => {
            ExpectedSession::Latest
        }
        (None, None) => ExpectedSession::Any,
    };
    Asked {
        session,
        // The recordings name a file for codex, which is not recorded.
        schema: after(&["--json-schema"])
            .map(str::to_owned)
            .or_else(|| after(&["--output-schema"]).map(|_| "{}".to_owned())),
        model: after(&["--model", "-m"]).map(str::to_owned),
    }
}

fn report(directory: &Path, output_bytes: u64) -> RunReport {
    let code = fs::read_to_string(directory.join("exit")).unwrap().trim().parse().unwrap();
    let end = match name(directory) {
        // The recorder killed a hanging agent, as a supervisor does after the idle timeout.
        name if name.starts_with("hang") => End::Deadline { which: Deadline::Idle },
        "background-terminated" => End::Stopped,
        _ => End::Exited,
    };
    RunReport {
        end,
        exit: Some(Exit::Code(code)),
        ended_at_ms: 1_767_225_600_000,
        duration_ms: 1000,
        output_bytes,
        error_bytes: 0,
        usage: TreeUsage::default(),
        // Gemini leaves its background command running and does not report its exit.
        descendants_ended: u32::from(name(directory) == "background-shell"),
        was_suspended: false,
        tree: TreeEnd::ProvenEmpty,
        sandbox: None,
    }
}

fn line_of(event: &AgentEvent<'_>) -> String {
    let json = serde_json::to_string(event).unwrap();
    let short: String = json.chars().take(300).collect();
    if short.len() < json.len() { format!("{short}…") } else { short }
}

fn judged(agent: AgentKind, summary: &Summary, report: &RunReport, stderr: &str, asked: &Asked) -> Outcome {
    judge(&FinishedRun {
        agent,
        summary,
        report,
        stderr_tail: stderr,
        session: &asked.session,
        model: asked.model.as_deref(),
        schema: asked.schema.as_deref(),
        totals_before: None,
        limits: None,
        early_stop: None,
    })
}

#[test]
fn recorded_streams_match_snapshots() {
    let recordings = recordings();
    assert!(recordings.len() > 100, "{} recordings", recordings.len());
    for directory in recordings {
        let version = name(directory.parent().unwrap()).to_owned();
        let agent: AgentKind = version.split('-').next().unwrap().parse().unwrap();
        let stdout = fs::read(directory.join("stdout")).unwrap();
        let stderr = String::from_utf8_lossy(&fs::read(directory.join("stderr")).unwrap()).into_owned();

        let mut shown = String::new();
        let mut show = |event: AgentEvent<'_>| writeln!(shown, "{}", line_of(&event)).unwrap();
        let mut driver = Driver::new(&DriverSpec::one_shot(agent).unwrap(), ParseLimits::default());
        driver.feed(&stdout, &mut show);
        let summary = driver.finish(&mut show);

        let asked = asked(&directory);
        let report = report(&directory, stdout.len() as u64);
        let outcome = judged(agent, &summary, &report, &stderr, &asked);
        writeln!(shown, "\n{}", serde_json::to_string_pretty(&outcome).unwrap()).unwrap();
        if let Some(hint) = outcome.hint() {
            writeln!(shown, "hint: {hint}").unwrap();
        }
        let settings = insta::Settings::clone_current();
        settings.bind(|| insta::assert_snapshot!(format!("{version}__{}", name(&directory)), shown));
    }
}

/// Returns whether a line explicitly reports success, with another driver than the one under test.
fn says_success(agent: AgentKind, line: &[u8]) -> bool {
    let Ok(line) = serde_json::from_str::<serde_json::Value>(&String::from_utf8_lossy(line)) else {
        return false;
    };
    match agent {
        AgentKind::Claude | AgentKind::Rehearsal => {
            line["type"] == "result" && line["subtype"] == "success" && line["is_error"] == false
        }
        AgentKind::Codex => line["type"] == "turn.completed",
        AgentKind::Gemini => line["type"] == "result" && line["status"] == "success",
        AgentKind::Profiled(_) => line["result"]["stopReason"] == "end_turn",
    }
}

/// Returns copies of a recording with one damage each. In the last line every `step`th byte is damaged.
fn damaged(stdout: &[u8], step: usize) -> Vec<Vec<u8>> {
    let lines: Vec<&[u8]> = stdout.split_inclusive(|byte| *byte == b'\n').collect();
    let mut streams = Vec::new();
    for at in 0..lines.len() {
        let (before, line, after) = (lines[..at].concat(), lines[at], lines[at + 1..].concat());
        let mut with = |changed: &[u8]| streams.push([before.as_slice(), changed, &after].concat());
        with(b"");
        with(&[line, line].concat());
        with(&line[line.len() / 2..]);
        for part in [1, 2, 3] {
            let cut = &line[..line.len() * part / 4];
            with(cut);
            with(&[cut, b"\n"].concat());
        }
    }
    let Some((last, before)) = lines.split_last() else { return streams };
    let before = before.concat();
    for at in (0..last.len()).step_by(step) {
        let mut with =
            |middle: &[u8]| streams.push([before.as_slice(), &last[..at], middle, &last[at + 1..]].concat());
        with(b"");
        for bit in [0x01, 0x02, 0x20, 0x80] {
            with(&[last[at] ^ bit]);
        }
        for byte in [b'"', b'{', b'}', b'\\', b'\t', b'\n', 0] {
            with(&[byte]);
        }
        with(&[last[at], last[at]]);
        streams.push([before.as_slice(), &last[..at]].concat());
    }
    streams
}

/// A success needs an explicit line: no damage to the stream of a failed run makes it a success without such a line.
#[test]
fn damaged_stream_never_turns_failure_into_success() {
    let (mut failures, mut tried) = (0, 0);
    for directory in recordings() {
        let agent: AgentKind = name(directory.parent().unwrap()).split('-').next().unwrap().parse().unwrap();
        let stdout = fs::read(directory.join("stdout")).unwrap();
        let stderr = String::from_utf8_lossy(&fs::read(directory.join("stderr")).unwrap()).into_owned();
        let asked = asked(&directory);
        let outcome = |stream: &[u8]| {
            let mut driver = Driver::new(&DriverSpec::one_shot(agent).unwrap(), ParseLimits::default());
            driver.feed(stream, &mut |_| {});
            let summary = driver.finish(&mut |_| {});
            judged(agent, &summary, &report(&directory, stream.len() as u64), &stderr, &asked)
        };
        // Damage successful runs, too: nothing may panic, and the rest may not be a success without an explicit line.
        let failed = !outcome(&stdout).is_success();
        failures += usize::from(failed);
        for stream in damaged(&stdout, if failed { 31 } else { 211 }) {
            tried += 1;
            let outcome = outcome(&stream);
            let says_so = || stream.split(|byte| *byte == b'\n').any(|line| says_success(agent, line));
            assert!(
                !outcome.is_success() || says_so(),
                "{}: {}",
                directory.display(),
                String::from_utf8_lossy(&stream)
            );
        }
    }
    assert!(failures > 40 && tried > 10_000, "{failures} failures, {tried} streams");
}
