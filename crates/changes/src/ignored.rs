//! Finds files that were ignored when the job started. The job may have changed a `.gitignore`, and an ignored file that
//! existed before must not appear as a new one: undo would delete it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::entry::{join_nul, split_nul, to_path};
use crate::error::ChangesError;
use crate::files::remove_directory;
use crate::git::Git;
use crate::objects::read_blobs;
use crate::state::Sides;

/// Returns the untracked paths that the `.gitignore` files from before the job match.
pub(crate) fn find_ignored_before(
    git: &Git,
    scratch: &Path,
    untracked: &BTreeSet<PathBuf>,
    changed: &BTreeMap<PathBuf, Sides>,
) -> Result<BTreeSet<PathBuf>, ChangesError> {
    let rules: BTreeSet<PathBuf> = untracked
        .iter()
        .flat_map(|path| path.ancestors().skip(1))
        .map(|directory| directory.join(".gitignore"))
        .collect();
    if untracked.is_empty() || !rules.iter().any(|rule| changed.contains_key(rule)) {
        return Ok(BTreeSet::new());
    }
    remove_directory(scratch)?;
    let recorded = |rule: &PathBuf| Some(changed.get(rule)?.before.entry()?.oid.as_str());
    let blobs = read_blobs(
        git.command("cat-file").with_user_objects(),
        &rules.iter().filter_map(recorded).collect(),
    )?;
    for rule in &rules {
        let content = match changed.get(rule) {
            Some(_) => recorded(rule).and_then(|id| blobs.get(id)).cloned(),
            None => regular_file::read_regular(&git.worktree.join(rule)).ok(),
        };
        let path = scratch.join(rule);
        let directory = path.parent().unwrap_or(scratch);
        regular_file::create_private_directory(directory).map_err(ChangesError::file("create", directory))?;
        if let Some(content) = content {
            fs::write(&path, content).map_err(ChangesError::file("write", &path))?;
        }
    }
    let there = Git { worktree: scratch.to_owned(), ..git.clone() };
    let command = there.command("check-ignore").args(["--no-index", "-z", "--stdin"]);
    // The command reads pathspecs: a colon at the start would be the magic of one.
    let paths: Vec<PathBuf> = untracked.iter().map(|path| Path::new(".").join(path)).collect();
    // 1 means that none is ignored.
    let (_, output) =
        command.input(join_nul(paths.iter().map(PathBuf::as_path))).run_accepting(|code| code <= 1)?;
    remove_directory(scratch)?;
    Ok(split_nul(&output).map(|path| to_path(path.strip_prefix(b"./").unwrap_or(path))).collect())
}
