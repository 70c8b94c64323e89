//! What the machine says about processes, whatever a supervisor or an agent says of itself.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Long enough for a slow machine, short enough for a test that fails.
const LONG: Duration = Duration::from_secs(30);

/// The processes that belong to a folder: they stand in it, name it in a variable (as `HOME` does) or in an argument.
pub fn processes_of(folder: &Path) -> Vec<i32> {
    processes().filter(|&pid| pid.cast_unsigned() != std::process::id() && belongs_to(pid, folder)).collect()
}

fn belongs_to(pid: i32, folder: &Path) -> bool {
    let needle = folder.as_os_str().as_encoded_bytes();
    let names_it = |file: &str| {
        fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
    };
    let stands_in_it = || fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
    is_running(pid) && (stands_in_it() || names_it("cmdline") || names_it("environ"))
}

/// The processes of a program that was given this argument.
pub fn processes_with(program: &str, argument: &str) -> Vec<i32> {
    processes()
        .filter(|pid| {
            let arguments = arguments(*pid);
            arguments.first().is_some_and(|first| first.rsplit('/').next() == Some(program))
                && arguments.iter().skip(1).any(|given| given == argument)
        })
        .collect()
}

/// The arguments of a process that has just been started, its program first. In the middle of an `exec` it has none.
pub async fn arguments_of_new(pid: i32) -> Vec<String> {
    eventually("a process without arguments", || Some(arguments(pid)).filter(|words| !words.is_empty())).await
}

/// The environment of a process that has just been started. In the middle of an `exec` it has none.
pub async fn environment_of_new(pid: i32) -> Vec<String> {
    eventually("a process without variables", || Some(environment(pid)).filter(|words| !words.is_empty()))
        .await
}

fn arguments(pid: i32) -> Vec<String> {
    words(pid, "cmdline")
}

/// The environment that a process was started with.
pub fn environment(pid: i32) -> Vec<String> {
    words(pid, "environ")
}

fn words(pid: i32, file: &str) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The session that a process belongs to.
pub fn session_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// Whether a process runs; a zombie does not.
pub fn is_running(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        !matches!(state, Some('Z' | 'X'))
    })
}

fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Waits for a thing that must come true soon, and hands it over.
pub async fn eventually<T>(otherwise: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let patience = Instant::now() + LONG;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < patience, "{otherwise}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
