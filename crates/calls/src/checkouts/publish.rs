//! Publishes the changes of an ended job as a branch, and finds the work that they collide with.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use changes::{BranchRequest, ChangesError, Direction, GitProgram, Restoration, RestoreAction, RestoreError};
use model::exact_path::show_path;
use model::{ChangeKind, ChangeSet, Job, error_chain};

use super::{Branch, JobCheckout, LIMIT, list};
use crate::files::JobFiles;
use crate::job_changes::{ChangesState, Collision, PrivateCheckout, find_git, record};
use crate::settings::Settings;

/// The lengths of the parts of a job id that name its branch. A longer one is used if another branch has the name.
const NAME_LENGTHS: [usize; 4] = [13, 18, 23, 36];
/// The maximum length of the subject of a commit.
const SUBJECT_CHARS: usize = 72;
/// The maximum number of reported collisions.
const MAX_COLLISIONS: usize = 100;

/// Publishes the changes of the job that owns a checkout. Removes the checkout if there are none. Can be repeated.
pub(crate) fn publish(
    checkout: &JobCheckout,
    settings: &Settings,
    files: &JobFiles,
    job: &Job,
    changes: &ChangeSet,
) -> PrivateCheckout {
    let mut checkout = checkout.clone();
    let (collisions, not_published) = match publish_branch(&mut checkout, settings, files, job) {
        Ok(true) => (find_collisions(&checkout, settings, files, job, changes), None),
        Ok(false) => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(error_chain(&error))),
    };
    PrivateCheckout {
        directory: show_path(&checkout.directory),
        source: show_path(checkout.source.worktree()),
        state: checkout.state,
        branch: checkout.branch.filter(|branch| branch.commit.is_some()).map(|branch| branch.name),
        not_published,
        collisions,
        without_content: checkout.without_content.iter().map(|path| show_path(path)).collect(),
    }
}

/// Creates the branch. Returns false if the job has changed nothing.
fn publish_branch(
    checkout: &mut JobCheckout,
    settings: &Settings,
    files: &JobFiles,
    job: &Job,
) -> Result<bool, ChangesError> {
    let git = find_git(&settings.lookup, checkout.source.worktree())?;
    let record = record(files).with_git(git.clone());
    let message = commit_message(job);
    let mut is_new = checkout.branch.is_none();
    let id = job.id.to_string();
    let mut names = NAME_LENGTHS.iter().map(|length| format!("switchboard/{}", &id[..*length]));
    let commit = loop {
        if is_new {
            let Some(name) = names.next() else { break None };
            checkout.branch = Some(Branch { name, commit: None });
        }
        let Some(Branch { name, .. }) = &checkout.branch else { break None };
        let request =
            BranchRequest { repository: &checkout.source, name, message: &message, job: &id, is_new };
        match record.publish(request, LIMIT) {
            Err(ChangesError::BranchExists { .. }) => is_new = true,
            Err(error) => {
                checkout.branch = None;
                return Err(error);
            }
            Ok(commit) => break commit,
        }
    };
    if commit.is_none() {
        (checkout.branch, checkout.state) = (None, ChangesState::Unchanged);
        record.seal()?;
        store(checkout, files);
        if let Err(error) = checkout.remove() {
            tracing::warn!(job = %job.id, %error, "cannot remove the private checkout");
        }
        return Ok(false);
    }
    if let Some(branch) = &mut checkout.branch {
        branch.commit = commit;
    }
    store(checkout, files);
    delete_earlier_branch(checkout, files, git);
    Ok(true)
}

/// Stores the description. Without it, the branch is not deleted with the checkout.
fn store(checkout: &JobCheckout, files: &JobFiles) {
    if let Err(error) = checkout.store(files) {
        tracing::warn!(job = %checkout.job, %error, "cannot store the description of the private checkout");
    }
}

/// Deletes the branch of the earlier job in the checkout: the new branch contains its changes.
fn delete_earlier_branch(checkout: &JobCheckout, files: &JobFiles, git: GitProgram) {
    let Some(earlier) = checkout.earlier.map(|earlier| files.of_job(earlier)) else { return };
    let Some(found) = JobCheckout::read(&earlier) else { return };
    if let Err(error) = found.delete_branch(&earlier, git) {
        tracing::debug!(job = %found.job, %error, "the branch was moved or deleted");
    }
}

/// Returns the message of the commit with the changes.
pub(crate) fn commit_message(job: &Job) -> String {
    let prompt = &job.order.call.prompt;
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let printable = line.chars().filter(|c| !c.is_control());
    let mut subject: String = printable.clone().take(SUBJECT_CHARS).collect();
    if printable.count() > SUBJECT_CHARS {
        subject.pop();
        subject.push('…');
    }
    format!("{subject}\n\nSwitchboard-Job: {}\n", job.id)
}

/// Finds the changes of other open jobs and of the user in the same files.
fn find_collisions(
    checkout: &JobCheckout,
    settings: &Settings,
    files: &JobFiles,
    job: &Job,
    changes: &ChangeSet,
) -> Vec<Collision> {
    let mut collisions = collide_with_user(checkout, settings, files);
    let own = changed_paths(changes);
    let others = list(settings).unwrap_or_default().into_iter().flatten();
    // Contenders of one group work on the same task: at most one of them is applied.
    let group = job.order.call.group.as_ref();
    let others = others.filter(|other| {
        other.job != checkout.job
            && group.is_none_or(|group| group.role(other.job).is_none())
            && other.state == ChangesState::Open
            && other.source.worktree() == checkout.source.worktree()
    });
    for other in others {
        let Ok(Some(theirs)) = record(&files.of_job(other.job)).read() else { continue };
        let theirs = changed_paths(&theirs);
        collisions.extend(own.intersection(&theirs).map(|path| Collision {
            path: show_path(path),
            job_id: Some(other.job.to_string()),
            conflict: None,
        }));
    }
    collisions.truncate(MAX_COLLISIONS);
    collisions
}

/// Finds the files that the user has changed since the base, by a merge that writes nothing.
fn collide_with_user(checkout: &JobCheckout, settings: &Settings, files: &JobFiles) -> Vec<Collision> {
    let restoration = Restoration {
        target: Some(&checkout.source),
        dry_run: true,
        ..Restoration::new(Direction::Redo, &[])
    };
    let merged = find_git(&settings.lookup, checkout.source.worktree())
        .map_err(RestoreError::from)
        .and_then(|git| record(files).with_git(git).restore(&restoration));
    let collision = |path: &Path, conflict| Collision { path: show_path(path), job_id: None, conflict };
    match merged {
        Ok(merged) => {
            let edited = merged.files.iter().filter(|file| file.what == RestoreAction::Merged);
            edited.map(|file| collision(&file.path, None)).collect()
        }
        Err(RestoreError::Conflicts(conflicts)) => conflicts
            .iter()
            .map(|conflict| collision(&conflict.path, Some(conflict.reason.to_string())))
            .collect(),
        Err(error) => {
            tracing::info!(job = %checkout.job, %error, "cannot compare the changes with those of the user");
            Vec::new()
        }
    }
}

fn changed_paths(changes: &ChangeSet) -> BTreeSet<&PathBuf> {
    let paths = changes.files.iter().flat_map(|file| match &file.kind {
        ChangeKind::Renamed { from } => vec![from, &file.path],
        _ => vec![&file.path],
    });
    paths.collect()
}
