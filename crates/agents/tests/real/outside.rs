//! Reads processes from `/proc`, independently of the supervisor and the agent. Shared with the tests of `provider`.

use std::fs;
use std::path::Path;

use testkit::{all_pids, eventually_some, is_running};

/// Returns the processes of a directory: it is their working directory, or a part of a variable (such as `HOME`) or argument.
pub fn processes_of(directory: &Path) -> Vec<i32> {
    all_pids()
        .filter(|&pid| pid.cast_unsigned() != std::process::id() && belongs_to(pid, directory))
        .collect()
}

fn belongs_to(pid: i32, directory: &Path) -> bool {
    let needle = directory.as_os_str().as_encoded_bytes();
    let contains_it = |file: &str| {
        fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
    };
    let works_in_it =
        || fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
    is_running(pid) && (works_in_it() || contains_it("cmdline") || contains_it("environ"))
}

/// Returns the processes of a program with this argument.
pub fn processes_with(program: &str, argument: &str) -> Vec<i32> {
    all_pids()
        .filter(|pid| {
            let arguments = arguments(*pid);
            arguments.first().is_some_and(|first| first.rsplit('/').next() == Some(program))
                && arguments.iter().skip(1).any(|given| given == argument)
        })
        .collect()
}

/// Returns the arguments of a new process. During `exec` it has none.
pub async fn arguments_of_new(pid: i32) -> Vec<String> {
    eventually_some("the arguments of a new process", || {
        Some(arguments(pid)).filter(|strings| !strings.is_empty())
    })
    .await
}

/// Returns the environment of a new process. During `exec` it has none.
pub async fn environment_of_new(pid: i32) -> Vec<String> {
    eventually_some("the environment of a new process", || {
        Some(environment(pid)).filter(|strings| !strings.is_empty())
    })
    .await
}

fn arguments(pid: i32) -> Vec<String> {
    strings(pid, "cmdline")
}

/// Returns the initial environment of a process.
pub fn environment(pid: i32) -> Vec<String> {
    strings(pid, "environ")
}

fn strings(pid: i32, file: &str) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let strings = bytes.split(|byte| *byte == 0).filter(|text| !text.is_empty());
    strings.map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}
