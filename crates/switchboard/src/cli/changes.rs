//! The commands about the changes of jobs.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "Prints a colored patch on a terminal, and one for `git apply` in a pipe (run that in the top directory of the worktree).\n\
                        A running job shows its changes so far. Ignored files are not recorded.\n\
                        Paths are relative to the current directory if it is in the worktree, else to the top of the worktree.\n\
                        Exit codes: 0 the changes were printed, 2 no such job, changes not recorded, or no change of a path."
)]
pub struct ShowDiff {
    /// Job id or unique prefix
    pub id: String,
    /// Only these files and directories
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// List the changed files with the numbers of added and removed lines
    #[arg(long)]
    pub stat: bool,
    /// Print the list of changed files as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Merges with later edits. If one file conflicts, no file is changed, and the conflicts are listed. A file that another call \
                        changed at the same time is restored only if you name it. Commits, branches and the index stay as they are.\n\
                        Exit codes: 0 the files are restored, 1 there are conflicts, 2 no such job, changes not recorded, no change of a path, \
                        or a job is working there."
)]
pub struct UndoChanges {
    /// Job id or unique prefix
    pub id: String,
    /// Only these files and directories
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Apply the changes of the job again after an undo
    #[arg(long)]
    pub redo: bool,
    /// Print the restored files as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Merges with your edits. If one file conflicts, no file is changed, and the conflicts are listed. Without PATH, the private \
                        checkout and its branch are removed afterwards. Without --index or --commit, commits, branches and the index stay as they are.\n\
                        Exit codes: 0 the changes are applied, 1 there are conflicts (with --conflicts in the files) or files that were not applied, 2 no such job, no \
                        private checkout, changes already applied or discarded, no change of a path, or a job is working there."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct ApplyChanges {
    /// Job id or unique prefix
    pub id: String,
    /// Only these files and directories
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Write conflicting lines into the files, between markers like those of git merge
    #[arg(long)]
    pub conflicts: bool,
    /// Also stage the applied files
    #[arg(long, conflicts_with_all = ["commit", "conflicts"])]
    pub index: bool,
    /// Also commit the applied files on the current branch, without hooks and signature
    #[arg(long, conflicts_with = "conflicts")]
    pub commit: bool,
    /// Print the result without changing anything
    #[arg(long)]
    pub dry_run: bool,
    /// Print the applied files as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Removes the private checkout and its branch; for a group, those of all its jobs. `switchboard diff ID` shows the changes until the \
                        job is removed.\n\
                        Exit codes: 0 the changes are discarded, 2 no such job, no private checkout, changes already applied or \
                        discarded, or the job has not finished."
)]
pub struct DiscardChanges {
    /// Ids of jobs or groups, or unique prefixes
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Print the result for each job as a line of JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Applies the changes like `switchboard apply`. Then it asks whether to cancel the other agents that still run and to discard the \
                        changes of the others; if stdin or stderr is not a terminal, it does so only with --yes.\n\
                        Exit codes: 0 the changes are applied, 1 there are conflicts, 2 no such job, not part of a race, not finished, or \
                        changes already discarded."
)]
pub struct KeepChanges {
    /// Job id or unique prefix
    pub id: String,
    /// Cancel and discard the others without asking
    #[arg(long, short)]
    pub yes: bool,
    /// Also stage the applied files
    #[arg(long, conflicts_with = "commit")]
    pub index: bool,
    /// Also commit the applied files on the current branch, without hooks and signature
    #[arg(long)]
    pub commit: bool,
}
