//! Programs that the state of an unfinished rebase, cherry-pick or series of patches makes git run when it is continued.

use std::io;
use std::path::{Path, PathBuf};

use crate::beneath::read_ordinary_file;

/// The state of a rebase, an `am` and a cherry-pick, and the list of steps in it.
const STATES: [(&str, &str); 3] =
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

/// Merge strategies of git itself. For any other name git runs `git-merge-NAME`, which a name with slashes leads into the worktree.
const OWN_STRATEGIES: [&str; 6] = ["ort", "recursive", "resolve", "octopus", "ours", "subtree"];

/// Files that hold options for programs: for gpg or ssh-keygen, which sign, and for `git apply`, which writes to files that they name.
const PROGRAM_OPTIONS: [&str; 2] = ["gpg_sign_opt", "apply-opt"];

/// Options of a cherry-pick or revert that run nothing.
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

/// Something in an unfinished rebase that makes git run a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RebaseCommand {
    /// The smallest path without which git does not run it. Without a file of options git goes on; a list of steps it needs.
    pub place: PathBuf,
    /// What tells it from others.
    pub text: String,
}

/// Returns what makes git run programs in the unfinished rebases of a repository. A file that cannot be read counts.
pub(crate) fn rebase_commands(git: &Path) -> Vec<RebaseCommand> {
    let states = STATES.into_iter().flat_map(|(name, list)| {
        let state = git.join(name);
        let is_link = state.symlink_metadata().is_ok_and(|found| found.is_symlink());
        let steps = lines_of(&state, list, is_command).into_iter();
        let steps = steps.map(|text| RebaseCommand { place: state.clone(), text });
        let mut commands: Vec<RebaseCommand> = steps.chain(options_of(&state)).collect();
        if is_link {
            // Git makes none. The files in it are not its own, so it is moved itself.
            for command in &mut commands {
                command.place.clone_from(&state);
            }
        }
        commands
    });
    states.collect()
}

/// Returns the options in a state that make git run a program.
fn options_of(state: &Path) -> impl Iterator<Item = RebaseCommand> {
    let strategy = lines_of(state, "strategy", |text| !OWN_STRATEGIES.contains(&text));
    // Git's own strategies run no program for their options.
    let strategy_options =
        if strategy.is_empty() { Vec::new() } else { lines_of(state, "strategy_opts", |_| true) };
    let program_options = PROGRAM_OPTIONS.map(|name| (name, lines_of(state, name, |_| true)));
    let options = lines_of(state, "opts", |line| !is_inert_option(line));
    let files = [("strategy", strategy), ("strategy_opts", strategy_options), ("opts", options)];
    files.into_iter().chain(program_options).flat_map(|(name, lines)| {
        let place = state.join(name);
        // By its name, or a step could stand for an option.
        lines
            .into_iter()
            .map(move |line| RebaseCommand { place: place.clone(), text: format!("{name}: {line}") })
    })
}

/// Returns the lines of a file that count; none if it is missing. A file that cannot be read counts as one line.
fn lines_of(state: &Path, name: &str, counts: impl Fn(&str) -> bool) -> Vec<String> {
    let file = state.join(name);
    // One that is locked is there all the same.
    if file.symlink_metadata().is_err_and(|error| error.kind() != io::ErrorKind::PermissionDenied) {
        return Vec::new();
    }
    let Some(text) = read_ordinary_file(&file, LONGEST_LIST) else { return vec![file.display().to_string()] };
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().filter(|line| counts(line)).map(|line| line.trim().to_owned()).collect()
}

fn is_command(line: &str) -> bool {
    let step = line.split_ascii_whitespace().next().unwrap_or("#");
    !step.starts_with('#') && !INERT_STEPS.contains(&step)
}

/// Whether a line is one that git writes for an option that runs nothing.
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
        rebase_commands(git).into_iter().map(|command| command.text).collect()
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
