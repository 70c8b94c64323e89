//! Reads the state of processes from `/proc`.

use std::fs;
use std::path::Path;

/// Returns whether a process runs in any of its threads. A zombie does not run.
pub fn is_running(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    threads.filter_map(Result::ok).any(|thread| !matches!(state_of(&thread.path()), None | Some('Z' | 'X')))
}

/// Returns whether a process is stopped by a signal.
pub fn is_suspended(pid: i32) -> bool {
    state_of(Path::new(&format!("/proc/{pid}"))) == Some('T')
}

/// Returns the session id of a process.
pub fn session_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    fields(&stat)?.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// Returns the command line of a process, with a NUL byte after each argument. Empty for a process that has exited.
pub fn command_line(pid: i32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}

/// Lists the processes of this machine.
pub fn all_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Lists the children of a process, zombies included.
pub fn children_of(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok);
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Lists the children of a process, their children and so on.
pub fn descendants_of(pid: i32) -> Vec<i32> {
    let mut found = children_of(pid);
    let mut next = 0;
    while next < found.len() {
        found.extend(children_of(found[next]));
        next += 1;
    }
    found
}

/// Returns the state letter of a process or thread.
fn state_of(directory: &Path) -> Option<char> {
    fields(&fs::read_to_string(directory.join("stat")).ok()?)?.chars().next()
}

/// Returns the fields after the program name, which may itself contain spaces and parentheses.
fn fields(stat: &str) -> Option<&str> {
    Some(stat.rsplit_once(')')?.1.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_in_its_session() {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        assert!(is_running(own) && !is_suspended(own));
        assert!(all_pids().any(|pid| pid == own));
        assert!(session_of(own).is_some());
        assert!(!command_line(own).is_empty());
    }

    #[test]
    fn missing_process_does_not_run() {
        assert!(!is_running(i32::MAX) && !is_suspended(i32::MAX));
        assert_eq!(session_of(i32::MAX), None);
        assert_eq!(descendants_of(i32::MAX), Vec::<i32>::new());
    }

    #[test]
    fn program_name_with_parenthesis_is_skipped() {
        assert_eq!(fields("7 (a) b) R 1 2 3"), Some("R 1 2 3"));
    }
}
