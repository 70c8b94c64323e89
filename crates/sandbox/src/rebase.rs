//! Commands in the state of an unfinished rebase, which `git rebase --continue` runs.

use std::io;
use std::path::Path;

use crate::beneath::read_ordinary_file;

/// The state of a rebase, an `am` and a cherry-pick, and the list of steps in it.
pub(crate) const REBASE_STATES: [(&str, &str); 3] =
    [("rebase-merge", "git-rebase-todo"), ("rebase-apply", "git-rebase-todo"), ("sequencer", "todo")];

/// A list of some thousand commits is not longer.
const LONGEST_LIST: u64 = 1 << 20;

/// Steps that run nothing but git's own commands.
const INERT_STEPS: [&str; 24] = [
    "pick",
    "p",
    "revert",
    "reword",
    "r",
    "edit",
    "e",
    "squash",
    "s",
    "fixup",
    "f",
    "break",
    "b",
    "drop",
    "d",
    "label",
    "l",
    "reset",
    "t",
    "merge",
    "m",
    "update-ref",
    "u",
    "noop",
];

/// Returns the steps in the state of a rebase that run commands. A list that cannot be read counts as one.
pub(crate) fn commands_in(state: &Path, list: &str) -> Vec<String> {
    let list = state.join(list);
    // One that is locked is there all the same.
    if list.symlink_metadata().is_err_and(|error| error.kind() != io::ErrorKind::PermissionDenied) {
        return Vec::new();
    }
    let Some(text) = read_ordinary_file(&list, LONGEST_LIST) else { return vec![list.display().to_string()] };
    let text = String::from_utf8_lossy(&text).into_owned();
    let is_command = |line: &&str| {
        let step = line.split_ascii_whitespace().next().unwrap_or("#");
        !step.starts_with('#') && !INERT_STEPS.contains(&step)
    };
    text.lines().map(str::trim).filter(is_command).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_steps_that_run_commands_are_returned() {
        let state = tempfile::tempdir().unwrap();
        let list = "pick 1a2b first\n  exec make\n# exec in a comment\n\nx\ttouch evil\nfixup -C 3c4d second\nupdate-ref refs/heads/x\n";
        fs::write(state.path().join("todo"), list).unwrap();
        assert_eq!(commands_in(state.path(), "todo"), ["exec make", "x\ttouch evil"]);
        assert!(commands_in(state.path(), "missing").is_empty());
        std::os::unix::fs::symlink("todo", state.path().join("link")).unwrap();
        assert_eq!(commands_in(state.path(), "link").len(), 1);
    }
}
