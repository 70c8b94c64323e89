//! The one who types: what stands after a `$` in a transcript comes here, and goes to the real program from here.
//!
//! - `switchboard …`: `%1` is the first job that was placed, `%2` the second; `\n` is the end of a line.
//! - `until JOB WORD`: waits until the agent of a job has said a word.
//! - `write FILE TEXT`: writes a file of the scene.

use std::fs::File;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::{redaction, scene};

/// The variable that says where the scene is.
pub const SCENE: &str = "SWITCHBOARD_TEST_SCENE";
/// What can be typed.
pub const COMMANDS: [&str; 3] = ["switchboard", "until", "write"];
/// Less than a transcript has.
const PATIENCE: Duration = Duration::from_secs(50);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Types, when this process was started for that.
pub fn type_if_asked() -> Option<ExitCode> {
    let folder = PathBuf::from(env::var_os(SCENE)?);
    let mut words = env::args();
    let typed = PathBuf::from(words.next()?);
    let words: Vec<String> = words.map(|word| meant(&folder, &word)).collect();
    Some(match (typed.file_name()?.to_str()?, words.as_slice()) {
        ("switchboard", words) => switchboard(&folder, words),
        ("until", [job, word]) => until(&folder, job, word),
        ("write", [file, text]) => {
            fs::write(folder.join(file), text).unwrap();
            ExitCode::SUCCESS
        }
        other => panic!("this cannot be typed: {other:?}"),
    })
}

/// The jobs of the scene, the oldest first. Their ids begin with the time.
pub fn jobs(folder: &Path) -> Vec<String> {
    let Ok(found) = folder.join("switchboard/state/jobs").read_dir() else { return Vec::new() };
    let mut jobs: Vec<String> =
        found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    jobs.sort();
    jobs
}

fn meant(folder: &Path, word: &str) -> String {
    let jobs = jobs(folder);
    let job = |number: &str| jobs.get(number.parse::<usize>().ok()?.checked_sub(1)?);
    match word.strip_prefix('%').and_then(job) {
        Some(job) => job.clone(),
        None => word.replace("\\n", "\n"),
    }
}

fn switchboard(folder: &Path, words: &[String]) -> ExitCode {
    let mut command = scene::program(folder);
    command.args(words).envs(env::vars().filter(|(name, _)| name == "NO_COLOR"));
    let streams = ["stdout", "stderr"].map(|name| folder.join(name));
    let [out, aside] = streams.each_ref().map(|path| File::create(path).unwrap());
    let mut child = command.stdout(out).stderr(aside).spawn().unwrap();
    let code = patiently(&mut child);
    let [out, aside] = streams
        .each_ref()
        .map(|path| redaction::of(folder, words, &String::from_utf8_lossy(&fs::read(path).unwrap())));
    let aside: String = aside.lines().map(|line| format!("2> {line}").trim_end().to_owned() + "\n").collect();
    stdout().write_all(format!("{out}{aside}").as_bytes()).unwrap();
    code
}

/// The exit code of a program. One that does not end is ended: it would call the next daemon when the scene is over.
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

fn until(folder: &Path, job: &str, word: &str) -> ExitCode {
    let output = folder.join("switchboard/state/jobs").join(job).join("output");
    // Whoever waits in vain is ended by the patience of the transcript.
    while !fs::read_to_string(&output).unwrap_or_default().contains(word) {
        thread::sleep(LOOK_AGAIN);
    }
    ExitCode::SUCCESS
}
