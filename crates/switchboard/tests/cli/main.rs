//! Command-line transcripts: `trycmd` runs every `*.md` here with the real program, a
//! real daemon and the scripted agent, in its own home. `TRYCMD=overwrite` records the current output; review the difference.
//!
//! Varying parts are replaced by stable text (see `redaction`), and lines of stderr are marked. For that
//! this binary also runs the commands (see `person`), so it has its own `main`. The `--help` of every command is compared with
//! `docs/cli.md` by `e2e`.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test may")]

mod person;
mod redaction;
mod scene;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

use scene::Scene;

/// Bounds a transcript. Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    if let Some(code) = person::type_if_asked() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // Each transcript has a daemon of its own.
    arguments.test_threads.get_or_insert(2);
    libtest_mimic::run(&arguments, transcripts().into_iter().map(trial).collect()).exit_code()
}

fn transcripts() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    let mut found: Vec<PathBuf> = directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    found.sort();
    assert!(!found.is_empty(), "there is no transcript");
    found
}

fn trial(transcript: PathBuf) -> Trial {
    let name = transcript.file_stem().unwrap().to_str().unwrap().replace('-', "_");
    Trial::test(name, move || {
        let scene = Scene::new();
        let cases = trycmd::TestCases::new();
        cases.timeout(PATIENCE).env(person::SCENE, scene.directory().to_str().unwrap());
        cases.register_bins(scene.commands()).case(&transcript);
        cases.run();
        scene.end();
        Ok(())
    })
}
