//! Every recorded stream of the real programs, to its events and its outcome, as snapshots.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use agents::{Ended, ParseLimits, Parser, judge};
use model::{AgentEvent, AgentKind, Deadline, End, Exit, ExpectedSession, RunReport, TreeEnd, TreeUsage};

fn recordings() -> Vec<PathBuf> {
    let folders = |path: &Path| -> Vec<PathBuf> {
        let mut found: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect();
        found.sort();
        found
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts");
    folders(&root).iter().flat_map(|version| folders(version)).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// What a recording's arguments asked for.
struct Asked {
    session: ExpectedSession,
    has_schema: bool,
    model: Option<String>,
}

fn asked(folder: &Path) -> Asked {
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("argv.json")).unwrap()).unwrap();
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
        has_schema: argv.contains(&"--json-schema") || argv.contains(&"--output-schema"),
        model: after(&["--model", "-m"]).map(str::to_owned),
    }
}

fn report(folder: &Path, output_bytes: u64) -> RunReport {
    let code = fs::read_to_string(folder.join("exit")).unwrap().trim().parse().unwrap();
    // The recorder ended what hung, as a supervisor does after a silence.
    let hung = name(folder).starts_with("hang");
    RunReport {
        end: if hung { End::Deadline { which: Deadline::Idle } } else { End::Exited },
        exit: Some(Exit::Code(code)),
        ended_at_ms: 1_767_225_600_000,
        duration_ms: 1000,
        output_bytes,
        error_bytes: 0,
        usage: TreeUsage::default(),
        descendants_ended: 0,
        tree: TreeEnd::ProvenEmpty,
    }
}

fn line_of(event: &AgentEvent<'_>) -> String {
    let json = serde_json::to_string(event).unwrap();
    let short: String = json.chars().take(300).collect();
    if short.len() < json.len() { format!("{short}…") } else { short }
}

#[test]
fn every_recording_reads_as_it_did() {
    let recordings = recordings();
    assert!(recordings.len() > 100, "{} recordings", recordings.len());
    for folder in recordings {
        let version = name(folder.parent().unwrap()).to_owned();
        let agent: AgentKind = version.split('-').next().unwrap().parse().unwrap();
        let stdout = fs::read(folder.join("stdout")).unwrap();
        let stderr = String::from_utf8_lossy(&fs::read(folder.join("stderr")).unwrap()).into_owned();

        let mut shown = String::new();
        let mut show = |event: AgentEvent<'_>| writeln!(shown, "{}", line_of(&event)).unwrap();
        let mut parser = Parser::new(agent, ParseLimits::default());
        parser.feed(&stdout, &mut show);
        let summary = parser.finish(&mut show);

        let asked = asked(&folder);
        let report = report(&folder, stdout.len() as u64);
        let outcome = judge(&Ended {
            agent,
            summary: &summary,
            report: &report,
            stderr_tail: &stderr,
            session: &asked.session,
            model: asked.model.as_deref(),
            has_schema: asked.has_schema,
            before: None,
        });
        writeln!(shown, "\n{}", serde_json::to_string_pretty(&outcome).unwrap()).unwrap();
        if let Some(hint) = outcome.hint() {
            writeln!(shown, "hint: {hint}").unwrap();
        }
        let settings = insta::Settings::clone_current();
        settings.bind(|| insta::assert_snapshot!(format!("{version}__{}", name(&folder)), shown));
    }
}
