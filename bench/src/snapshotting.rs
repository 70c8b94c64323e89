//! The cost of the snapshots before and after a job, compared with `git status` on the same files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use changes::{ChangeRecord, Direction, GitProgram, GitRepository, Restoration};

use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;
use crate::{Failure, output};

/// The number of files that a job changes.
const CHANGED: usize = 3;
/// The time for one step.
pub const LIMIT: Duration = Duration::from_mins(1);
const BASELINE: &str = "`git status`";

/// The amount of work.
#[derive(Debug)]
pub struct SnapshottingScale {
    /// The numbers of files, with the rounds for each.
    repositories: &'static [(usize, u32)],
}

impl SnapshottingScale {
    /// For figures to be quoted.
    pub const FULL: Self = Self { repositories: &[(1_000, 60), (10_000, 40), (100_000, 20)] };
    /// To see that everything still works.
    pub const QUICK: Self = Self { repositories: &[(200, 1)] };

    /// Describes how the figures come about.
    pub fn method(&self) -> String {
        let rounds: Vec<String> =
            self.repositories.iter().map(|(files, rounds)| format!("{rounds} with {files} files")).collect();
        format!(
            "- repositories of small text files with one commit and a clean worktree; warm cache\n\
             - rounds: {}; in each, `git status --porcelain` and the two snapshots take turns; median (min–max)\n\
             - changed: the job has modified {CHANGED} files\n\
             - baseline: one `git status`. The sum of both snapshots has two as its baseline",
            rounds.join(", ")
        )
    }
}

/// The times of one round, in milliseconds.
struct Round {
    status: f64,
    before: f64,
    after: f64,
}

/// Takes all figures.
pub fn measure(work: &Path, scale: &SnapshottingScale) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (files, rounds) in scale.repositories {
        output::progress(&format!("creating a repository of {files} files"));
        let directory = work.canonicalize()?.join(files.to_string());
        let paths = create_repository(&directory.join("worktree"), *files)?;
        // The first one writes the times into the index.
        run_git(&directory.join("worktree"), &["status"])?;
        let mut clean = Vec::new();
        let mut changed = Vec::new();
        for round in 0..*rounds {
            clean.push(take_round(&directory, &[], round)?);
            changed.push(take_round(&directory, &paths[..CHANGED], round)?);
        }
        let target = Some(Target::RatioBelow(1.5));
        rows.push(row(format!("{files} files: snapshot before"), &clean, 1.0, target, |round| round.before));
        rows.push(row("… after, unchanged".to_owned(), &clean, 1.0, target, |round| round.after));
        rows.push(row("… after, changed".to_owned(), &changed, 1.0, None, |round| round.after));
        let added = (*files == 1_000).then_some(Target::AtMost(15.0));
        let sum = |round: &Round| round.before + round.after;
        rows.push(row("… added to a call, unchanged".to_owned(), &clean, 2.0, added, sum));
        rows.push(row("… added to a call, changed".to_owned(), &changed, 2.0, added, sum));
    }
    Ok(rows)
}

fn row(
    what: String,
    rounds: &[Round],
    statuses: f64,
    target: Option<Target>,
    pick: impl Fn(&Round) -> f64,
) -> Row {
    let baseline: Vec<f64> = rounds.iter().map(|round| round.status * statuses).collect();
    let ours: Vec<f64> = rounds.iter().map(pick).collect();
    let baseline = Some(Baseline::of(BASELINE, &baseline, &ours));
    Row { what, unit: Unit::Milliseconds, baseline, ours: Spread::of(ours), target }
}

/// Records a job that modifies some files, and undoes it.
fn take_round(directory: &Path, changed: &[PathBuf], round: u32) -> Result<Round, Failure> {
    let worktree = directory.join("worktree");
    let status = time(|| run_git(&worktree, &["status", "--porcelain"]))?;
    let git = GitProgram { program: "git".into(), path: env::var_os("PATH").unwrap_or_default() };
    let record = ChangeRecord::new(directory.join("record")).with_git(git);
    let before = time(|| {
        let repository = GitRepository::find(&worktree)?.ok_or("there is no repository")?;
        Ok(record.begin(&repository, LIMIT)?)
    })?;
    for path in changed {
        fs::write(path, format!("changed in round {round}\n"))?;
    }
    let after = time(|| match record.finish(LIMIT, &[])?.files.len() {
        files if files == changed.len() => Ok(()),
        files => Err(format!("{files} changed files were found").into()),
    })?;
    record.restore(&Restoration::new(Direction::Undo, &[]))?;
    fs::remove_dir_all(directory.join("record"))?;
    // Git compares the contents of the restored files once, and writes their times into the index.
    run_git(&worktree, &["status"])?;
    Ok(Round { status, before, after })
}

/// Returns the duration of a step, in milliseconds.
pub fn time(step: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let started = Instant::now();
    step()?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

/// Creates a repository with one commit, and returns its files.
pub fn create_repository(worktree: &Path, files: usize) -> Result<Vec<PathBuf>, Failure> {
    let path =
        |number: usize| worktree.join(format!("src{}/module{}/file{number}.rs", number / 1_000, number / 20));
    let paths: Vec<PathBuf> = (0..files).map(path).collect();
    for (number, path) in paths.iter().enumerate() {
        fs::create_dir_all(path.parent().ok_or("a file has no directory")?)?;
        fs::write(path, format!("// Line of file {number}.\n").repeat(40))?;
    }
    run_git(worktree, &["init", "-q"])?;
    run_git(worktree, &["add", "-A"])?;
    run_git(
        worktree,
        &["-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "files"],
    )?;
    Ok(paths)
}

/// Runs git in a worktree.
pub fn run_git(worktree: &Path, args: &[&str]) -> Result<(), Failure> {
    let output = Command::new("git").args(args).current_dir(worktree).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("git {args:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}
