//! Runs the commands of a transcript: the text after a `$` is passed on to the real program.
//!
//! - `switchboard …`: `%1` is the first submitted job, `%2` the second; `\n` is a line feed.
//! - `until JOB TEXT`: waits until the agent of a job has printed a text.
//! - `write FILE TEXT`: writes a file of the harness.

use std::fs::File;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::{redaction, scene};

/// The variable with the root directory of the harness.
pub const SCENE: &str = "SWITCHBOARD_TEST_SCENE";
/// The commands of a transcript.
pub const COMMANDS: [&str; 3] = ["switchboard", "until", "write"];
/// Less than the timeout of a transcript.
const PATIENCE: Duration = Duration::from_secs(50);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Runs a command if this process was started for that.
pub fn type_if_asked() -> Option<ExitCode> {
    let directory = PathBuf::from(env::var_os(SCENE)?);
    let mut words = env::args();
    let typed = PathBuf::from(words.next()?);
    let words: Vec<String> = words.map(|word| meant(&directory, &word)).collect();
    Some(match (typed.file_name()?.to_str()?, words.as_slice()) {
        ("switchboard", words) => switchboard(&directory, words),
        ("until", [job, word]) => until(&directory, job, word),
        ("write", [file, text]) => {
            fs::write(directory.join(file), text).unwrap();
            ExitCode::SUCCESS
        }
        other => panic!("this cannot be typed: {other:?}"),
    })
}

/// Returns the jobs of the harness, oldest first. Their ids start with a timestamp.
pub fn jobs(directory: &Path) -> Vec<String> {
    let Ok(found) = directory.join("switchboard/state/jobs").read_dir() else { return Vec::new() };
    let mut jobs: Vec<String> =
        found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    jobs.sort();
    jobs
}

fn meant(directory: &Path, word: &str) -> String {
    let jobs = jobs(directory);
    let job = |number: &str| jobs.get(number.parse::<usize>().ok()?.checked_sub(1)?);
    match word.strip_prefix('%').and_then(job) {
        Some(job) => job.clone(),
        None => word.replace("\\n", "\n"),
    }
}

fn switchboard(directory: &Path, words: &[String]) -> ExitCode {
    let mut command = scene::program(directory);
    command.args(words).envs(env::vars().filter(|(name, _)| name == "NO_COLOR"));
    let streams = ["stdout", "stderr"].map(|name| directory.join(name));
    let [out, aside] = streams.each_ref().map(|path| File::create(path).unwrap());
    let mut child = command.stdout(out).stderr(aside).spawn().unwrap();
    let code = patiently(&mut child);
    let [out, aside] = streams
        .each_ref()
        .map(|path| redaction::of(directory, words, &String::from_utf8_lossy(&fs::read(path).unwrap())));
    let aside: String = aside.lines().map(|line| format!("2> {line}").trim_end().to_owned() + "\n").collect();
    stdout().write_all(format!("{out}{aside}").as_bytes()).unwrap();
    code
}

/// Returns the exit code of a program. A program that hangs is killed: it would start the next daemon after the test.
fn patiently(child: &mut Child) -> ExitCode {
    let patience = Instant::now() + PATIENCE;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => {
                return ExitCode::from(status.code().and_then(|code| code.try_into().ok()).unwrap_or(255));
            }
            None if Instant::now() > patience => child.kill().unwrap(),
            None => thread::sleep(LOOK_AGAIN),
        }
    }
}

fn until(directory: &Path, job: &str, word: &str) -> ExitCode {
    let output = directory.join("switchboard/state/jobs").join(job).join("output");
    // Whoever waits in vain is ended by the patience of the transcript.
    while !fs::read_to_string(&output).unwrap_or_default().contains(word) {
        thread::sleep(LOOK_AGAIN);
    }
    ExitCode::SUCCESS
}
