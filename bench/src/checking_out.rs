//! The cost of a private checkout, compared with `git worktree add` of the same tree.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use changes::{GitProgram, GitRepository, create_checkout, remove_checkout};

use crate::report::{Baseline, Row, Target, Unit};
use crate::snapshotting::{LIMIT, create_repository, run_git, time};
use crate::spread::Spread;
use crate::{Failure, output};

const BASELINE: &str = "`git worktree add`";
const TARGET: Target = Target::RatioAtMost(1.3);

/// The amount of work.
#[derive(Debug)]
pub struct CheckingOutScale {
    /// The numbers of files, with the rounds for each.
    repositories: &'static [(usize, u32)],
    /// The numbers of commits of a repository with `FILES` files.
    histories: &'static [usize],
    /// The rounds for each of the histories.
    rounds: u32,
}

/// The number of files of a repository with a history.
const FILES: usize = 1_000;

impl CheckingOutScale {
    /// For figures to be quoted.
    pub const FULL: Self = Self {
        repositories: &[(1_000, 20), (10_000, 10), (100_000, 5)],
        histories: &[20, 5_000],
        rounds: 20,
    };
    /// To see that everything still works.
    pub const QUICK: Self = Self { repositories: &[(200, 1)], histories: &[20], rounds: 1 };

    /// Describes how the figures come about.
    pub fn method(&self) -> String {
        let rounds: Vec<String> =
            self.repositories.iter().map(|(files, rounds)| format!("{rounds} with {files} files")).collect();
        format!(
            "- private checkouts: of packed repositories; rounds: {}, {} with a history of {FILES} files, after one that does not count. \
             `git worktree add --detach` and the checkout take turns, and both are removed after each round",
            rounds.join(", "),
            self.rounds
        )
    }
}

/// Takes all figures.
pub fn measure(work: &Path, scale: &CheckingOutScale) -> Result<Vec<Row>, Failure> {
    let work = work.canonicalize()?;
    let mut rows = Vec::new();
    for (files, rounds) in scale.repositories {
        output::progress(&format!("creating a packed repository of {files} files"));
        let directory = work.join(format!("checkout-{files}"));
        create_repository(&directory.join("worktree"), *files)?;
        rows.push(measure_one(&directory, format!("{files} files: private checkout"), *rounds)?);
    }
    for commits in scale.histories {
        output::progress(&format!("creating a repository of {commits} commits"));
        let directory = work.join(format!("history-{commits}"));
        create_history(&directory.join("worktree"), *commits)?;
        rows.push(measure_one(&directory, format!("… with {commits} commits, {FILES} files"), scale.rounds)?);
    }
    Ok(rows)
}

fn measure_one(directory: &Path, what: String, rounds: u32) -> Result<Row, Failure> {
    let worktree = directory.join("worktree");
    run_git(&worktree, &["repack", "-a", "-d", "-q"])?;
    run_git(&worktree, &["status"])?;
    let source = GitRepository::find(&worktree)?.ok_or("there is no repository")?;
    let (mut baseline, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (theirs, checkout) = (directory.join("theirs"), directory.join("ours"));
        let theirs = theirs.to_str().ok_or("the work directory is not UTF-8")?;
        let added = time(|| run_git(&worktree, &["worktree", "add", "-q", "--detach", theirs]))?;
        let git = GitProgram { program: "git".into(), path: env::var_os("PATH").unwrap_or_default() };
        let created = time(|| Ok(create_checkout(&source, &checkout, git, LIMIT).map(drop)?))?;
        run_git(&worktree, &["worktree", "remove", "--force", theirs])?;
        remove_checkout(&checkout)?;
        if round > 0 {
            baseline.push(added);
            ours.push(created);
        }
    }
    fs::remove_dir_all(directory)?;
    let baseline = Some(Baseline::of(BASELINE, &baseline, &ours));
    Ok(Row { what, unit: Unit::Milliseconds, baseline, ours: Spread::of(ours), target: Some(TARGET) })
}

/// Creates a repository in which each commit changes one file.
#[expect(clippy::disallowed_methods, reason = "the repository is created with the git of the machine")]
fn create_history(worktree: &Path, commits: usize) -> Result<(), Failure> {
    fs::create_dir_all(worktree)?;
    run_git(worktree, &["init", "-q", "-b", "main"])?;
    let mut child = Command::new("git")
        .args(["fast-import", "--quiet"])
        .current_dir(worktree)
        .stdin(Stdio::piped())
        .spawn()?;
    let mut stream = std::io::BufWriter::new(child.stdin.take().ok_or("there is no pipe")?);
    for commit in 0..commits {
        let time = 1_700_000_000 + commit;
        write!(
            stream,
            "commit refs/heads/main\ncommitter bench <bench@localhost> {time} +0000\ndata 1\nc\n"
        )?;
        let files: Vec<usize> = if commit == 0 { (0..FILES).collect() } else { vec![commit % FILES] };
        for file in files {
            let path = PathBuf::from(format!("src/module{}/file{file}.rs", file / 20));
            let content = format!("// Line of commit {commit}.\n").repeat(40);
            write!(stream, "M 644 inline {}\ndata {}\n{content}\n", path.display(), content.len())?;
        }
    }
    stream.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    if !child.wait()?.success() {
        return Err("git fast-import failed".into());
    }
    run_git(worktree, &["reset", "-q", "--hard"])
}
