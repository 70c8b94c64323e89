//! The cost of a private checkout, compared with `git worktree add` of the same tree.

use std::fs;
use std::path::Path;

use changes::{GitRepository, create_checkout};

use crate::report::{Baseline, Row, Target, Unit};
use crate::snapshotting::{LIMIT, create_repository, find_git, run_git, time};
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
    pub const FULL: Self =
        Self { repositories: &[(1_000, 20), (10_000, 6), (100_000, 4)], histories: &[20, 5_000], rounds: 20 };
    /// To see that everything still works.
    pub const QUICK: Self = Self { repositories: &[(200, 1)], histories: &[20], rounds: 1 };

    /// Describes how the figures come about.
    pub fn method(&self) -> String {
        let rounds: Vec<String> =
            self.repositories.iter().map(|(files, rounds)| format!("{rounds} with {files} files")).collect();
        format!(
            "- private checkouts: rounds: {}, {} with a history of {FILES} files, after one that does not count. `git worktree add --detach` and \
             the checkout take turns, and so does the first of them. Nothing is deleted before the end: after many deletions, ext4 creates \
             files slowly for minutes",
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
        output::progress(&format!("creating checkouts of {files} files"));
        let directory = work.join(format!("checkout-{files}"));
        create_repository(&directory.join("worktree"), *files, 1)?;
        rows.push(measure_one(&directory, format!("{files} files: private checkout"), *rounds)?);
    }
    for commits in scale.histories {
        output::progress(&format!("creating checkouts with {commits} commits"));
        let directory = work.join(format!("history-{commits}"));
        create_repository(&directory.join("worktree"), FILES, *commits)?;
        rows.push(measure_one(&directory, format!("… with {commits} commits, {FILES} files"), scale.rounds)?);
    }
    Ok(rows)
}

fn measure_one(directory: &Path, what: String, rounds: u32) -> Result<Row, Failure> {
    let worktree = directory.join("worktree");
    let source = GitRepository::find(&worktree)?.ok_or("there is no repository")?;
    let (mut baseline, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (theirs, checkout) =
            (directory.join(format!("theirs{round}")), directory.join(format!("ours{round}")));
        let theirs = theirs.to_str().ok_or("the work directory is not UTF-8")?;
        let add = || time(|| run_git(&worktree, &["worktree", "add", "-q", "--detach", theirs]));
        let create = || time(|| Ok(create_checkout(&source, &checkout, find_git()?, LIMIT).map(drop)?));
        let (added, created) = if round % 2 == 0 {
            let added = add()?;
            (added, create()?)
        } else {
            let created = create()?;
            (add()?, created)
        };
        // The next one is added to a repository without others.
        fs::remove_dir_all(worktree.join(".git/worktrees"))?;
        if round > 0 {
            baseline.push(added);
            ours.push(created);
        }
    }
    let baseline = Some(Baseline::of(BASELINE, &baseline, &ours));
    Ok(Row { what, unit: Unit::Milliseconds, baseline, ours: Spread::of(ours), target: Some(TARGET) })
}
