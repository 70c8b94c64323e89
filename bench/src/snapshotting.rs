//! The cost of the snapshots before and after a job, compared with `git status` on the same files.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
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
    pub const FULL: Self = Self { repositories: &[(1_000, 60), (10_000, 40), (100_000, 10)] };
    /// To see that everything still works.
    pub const QUICK: Self = Self { repositories: &[(200, 1)] };

    /// Describes how the figures come about.
    pub fn method(&self) -> String {
        let rounds: Vec<String> =
            self.repositories.iter().map(|(files, rounds)| format!("{rounds} with {files} files")).collect();
        format!(
            "- packed repositories of small text files with one commit and a clean worktree; warm cache\n\
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
        let paths = create_repository(&directory.join("worktree"), *files, 1)?;
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
    let record = ChangeRecord::new(directory.join("record")).with_git(find_git()?);
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

/// Creates a packed repository, and returns its files. Each commit after the first changes one file.
pub fn create_repository(worktree: &Path, files: usize, commits: usize) -> Result<Vec<PathBuf>, Failure> {
    let path = |file: usize| PathBuf::from(format!("src{}/module{}/file{file}.rs", file / 1_000, file / 20));
    fs::create_dir_all(worktree)?;
    run_git(worktree, &["init", "-q", "-b", "main"])?;
    let mut import = Command::new(find_git()?.program)
        .args(["fast-import", "--quiet"])
        .current_dir(worktree)
        .stdin(Stdio::piped())
        .spawn()?;
    let mut stream = std::io::BufWriter::new(import.stdin.take().ok_or("there is no pipe")?);
    for commit in 0..commits {
        let time = 1_700_000_000 + commit;
        write!(
            stream,
            "commit refs/heads/main\ncommitter bench <bench@localhost> {time} +0000\ndata 1\nc\n"
        )?;
        for file in if commit == 0 { 0..files } else { commit % files..commit % files + 1 } {
            let content = format!("// Line of file {file} and commit {commit}.\n").repeat(40);
            write!(stream, "M 644 inline {}\ndata {}\n{content}\n", path(file).display(), content.len())?;
        }
    }
    stream.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    if !import.wait()?.success() {
        return Err("git fast-import failed".into());
    }
    run_git(worktree, &["repack", "-a", "-d", "-q"])?;
    run_git(worktree, &["reset", "-q", "--hard"])?;
    // Writes the times of the files into the index.
    run_git(worktree, &["status"])?;
    Ok((0..files).map(|file| worktree.join(path(file))).collect())
}

/// Finds the git of the machine. Switchboard runs it by its absolute path, too.
pub fn find_git() -> Result<GitProgram, Failure> {
    static GIT: LazyLock<Option<GitProgram>> = LazyLock::new(|| {
        let path = env::var_os("PATH").unwrap_or_default();
        let program =
            env::split_paths(&path).map(|directory| directory.join("git")).find(|git| git.is_file());
        program.map(|program| GitProgram { program, path })
    });
    Ok(GIT.clone().ok_or("there is no git on the PATH")?)
}

/// Runs git in a worktree.
pub fn run_git(worktree: &Path, args: &[&str]) -> Result<(), Failure> {
    let output = Command::new(find_git()?.program).args(args).current_dir(worktree).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("git {args:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}
