//! Finds the commands in an unfinished rebase, cherry-pick or `git am` that git runs when it continues.

use std::io;
use std::path::{Path, PathBuf};

use crate::beneath::read_regular_file;

/// The state directories of a rebase, a `git am` and a cherry-pick, each with its list of steps.
const STATES: [(&str, &str); 3] =
    [("rebase-merge", "git-rebase-todo"), ("rebase-apply", "git-rebase-todo"), ("sequencer", "todo")];

/// The maximum size of a list, sufficient for thousands of commits.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// Steps that run git's own commands only.
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

/// Built-in merge strategies. For any other name git runs `git-merge-NAME`, which may be a path into the worktree.
const OWN_STRATEGIES: [&str; 6] = ["ort", "recursive", "resolve", "octopus", "ours", "subtree"];

/// Files with options for other programs: for gpg or ssh-keygen, and for `git apply`, whose options name files to write.
const PROGRAM_OPTIONS: [&str; 2] = ["gpg_sign_opt", "apply-opt"];

/// Options of a cherry-pick or revert that run no command.
const INERT_OPTIONS: [&str; 12] = [
    "no-commit",
    "edit",
    "allow-empty",
    "allow-empty-message",
    "drop-redundant-commits",
    "keep-redundant-commits",
    "signoff",
    "record-origin",
    "allow-ff",
    "mainline",
    "allow-rerere-auto",
    "default-msg-cleanup",
];

/// A step or an option of an unfinished rebase that makes git run a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RebaseCommand {
    /// The smallest path whose removal prevents the command. Git continues without an options file, but not without its list of steps.
    pub path: PathBuf,
    /// The text that identifies it.
    pub text: String,
}

/// Finds the commands in the unfinished rebases of a repository. An unreadable file counts as a command.
pub(crate) fn find_rebase_commands(git: &Path) -> Vec<RebaseCommand> {
    let states = STATES.into_iter().flat_map(|(name, list)| {
        let state = git.join(name);
        let is_link = state.symlink_metadata().is_ok_and(|found| found.is_symlink());
        let steps = filter_lines(&state, list, is_command).into_iter();
        let steps = steps.map(|text| RebaseCommand { path: state.clone(), text });
        let mut commands: Vec<RebaseCommand> = steps.chain(find_options(&state)).collect();
        if is_link {
            // Git creates no such link, and its target may be the user's, so the link itself is moved.
            for command in &mut commands {
                command.path.clone_from(&state);
            }
        }
        commands
    });
    states.collect()
}

/// Returns the options in a state that make git run a program.
fn find_options(state: &Path) -> impl Iterator<Item = RebaseCommand> {
    let strategy = filter_lines(state, "strategy", |text| !OWN_STRATEGIES.contains(&text));
    // Git's own strategies run no program for their options.
    let strategy_options =
        if strategy.is_empty() { Vec::new() } else { filter_lines(state, "strategy_opts", |_| true) };
    let program_options = PROGRAM_OPTIONS.map(|name| (name, filter_lines(state, name, |_| true)));
    let options = filter_lines(state, "opts", |line| !is_inert_option(line));
    let files = [("strategy", strategy), ("strategy_opts", strategy_options), ("opts", options)];
    files.into_iter().chain(program_options).flat_map(|(name, lines)| {
        let path = state.join(name);
        // The file name distinguishes an option from a step.
        lines
            .into_iter()
            .map(move |line| RebaseCommand { path: path.clone(), text: format!("{name}: {line}") })
    })
}

/// Returns the matching lines of a file, which may be missing. An unreadable file counts as one line.
fn filter_lines(state: &Path, name: &str, matches: impl Fn(&str) -> bool) -> Vec<String> {
    let file = state.join(name);
    // A locked file exists nevertheless.
    if file.symlink_metadata().is_err_and(|error| error.kind() != io::ErrorKind::PermissionDenied) {
        return Vec::new();
    }
    let Some(text) = read_regular_file(&file, MAX_LIST_BYTES) else {
        return vec![file.display().to_string()];
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().filter(|line| matches(line)).map(|line| line.trim().to_owned()).collect()
}

fn is_command(line: &str) -> bool {
    let step = line.split_ascii_whitespace().next().unwrap_or("#");
    !step.starts_with('#') && !INERT_STEPS.contains(&step)
}

/// Returns whether git wrote a line for an option that runs no command.
fn is_inert_option(line: &str) -> bool {
    let line = line.trim();
    let key = line.split('=').next().unwrap_or_default().trim();
    matches!(line, "" | "[options]") || (INERT_OPTIONS.contains(&key) && !line.ends_with('\\'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn texts(git: &Path) -> Vec<String> {
        find_rebase_commands(git).into_iter().map(|command| command.text).collect()
    }

    #[test]
    fn only_steps_that_run_commands_are_returned() {
        let git = tempfile::tempdir().unwrap();
        let state = git.path().join("sequencer");
        fs::create_dir(&state).unwrap();
        assert_eq!(texts(git.path()), [""; 0]);
        let list = "pick 1a2b first\n  exec make\n# exec in a comment\n\nx\ttouch evil\nfixup -C 3c4d second\nupdate-ref refs/heads/x\n";
        fs::write(state.join("todo"), list).unwrap();
        assert_eq!(texts(git.path()), ["exec make", "x\ttouch evil"]);
        fs::rename(state.join("todo"), state.join("other")).unwrap();
        symlink("other", state.join("todo")).unwrap();
        assert_eq!(texts(git.path()).len(), 1);
    }

    #[test]
    fn options_that_run_programs_are_returned() {
        let git = tempfile::tempdir().unwrap();
        let cases: [(&str, &str, &[&str]); 9] = [
            ("rebase-merge/strategy", "ort\n", &[]),
            ("rebase-merge/strategy", "x/../evil\n", &["strategy: x/../evil"]),
            ("rebase-merge/strategy", "ort \n", &["strategy: ort"]),
            ("rebase-merge/strategy_opts", "--theirs\n", &[]),
            ("rebase-merge/gpg_sign_opt", "-Skey\n", &["gpg_sign_opt: -Skey"]),
            ("rebase-apply/apply-opt", "'--directory=x'", &["apply-opt: '--directory=x'"]),
            ("sequencer/opts", "[options]\n\tsignoff = true\n\tmainline = 1\n", &[]),
            ("sequencer/opts", "[options]\n\tstrategy = x\n", &["opts: strategy = x"]),
            ("sequencer/opts", "[options] strategy = x\n", &["opts: [options] strategy = x"]),
        ];
        for (name, text, expected) in cases {
            let file = git.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            assert_eq!(texts(git.path()), expected, "{name}: {text}");
            fs::remove_file(file).unwrap();
        }
    }
}
