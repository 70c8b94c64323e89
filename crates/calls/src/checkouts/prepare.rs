//! Prepares the private checkout of a job.

use std::io;
use std::path::{Path, PathBuf};

use changes::{ChangesError, GitRepository, create_checkout};
use model::exact_path::show_path;
use model::{CallSpec, JobId, SessionId, error_chain};
use store::{JobFilter, PageRequest, Store};

use super::{JobCheckout, LIMIT, new_directory, remove_place};
use crate::files::JobFiles;
use crate::job_changes::{ChangesState, RECORD, find_git, find_repository, protected_paths, record};
use crate::settings::Settings;

/// The maximum number of jobs of a session that are searched for a checkout, the newest first.
const MAX_SEARCHED: u32 = 20;

/// A failure to prepare a private checkout.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The directory is not in the worktree of a git repository.
    #[error("`{}` is not in the worktree of a git repository", show_path(directory))]
    NoRepository {
        /// The directory.
        directory: PathBuf,
    },
    /// The repository cannot have a checkout.
    #[error("{reason}")]
    Unsuitable {
        /// The reason.
        reason: String,
    },
    /// The session has worked in another directory than a checkout, where its agent alone finds it.
    #[error("session {session} has not worked in a private checkout of this repository")]
    SessionOutside {
        /// The session.
        session: SessionId,
    },
    /// The session has worked in a private checkout of another worktree than that of the call.
    #[error("session {session} works in a private checkout of `{}`", show_path(worktree))]
    SessionElsewhere {
        /// The session.
        session: SessionId,
        /// The worktree.
        worktree: PathBuf,
    },
    /// The call may not write.
    #[error("a read-only call has no private checkout")]
    ReadOnly,
    /// Git or a file operation failed.
    #[error("cannot create a private checkout")]
    Changes(#[from] ChangesError),
    /// A file could not be written.
    #[error("cannot create a private checkout")]
    Files(#[from] io::Error),
}

impl PrepareError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        let general = "fix the cause, or call the agent without a private checkout";
        match self {
            Self::NoRepository { directory } => {
                format!(
                    "run `git init` in `{}`, or call the agent without a private checkout",
                    show_path(directory)
                )
            }
            Self::SessionElsewhere { worktree, .. } => {
                format!("use `{}` as the working directory, or start a new session", show_path(worktree))
            }
            Self::SessionOutside { .. } => {
                "start a new session, or call the agent without a private checkout".to_owned()
            }
            Self::Unsuitable { .. } | Self::ReadOnly => {
                "call the agent without a private checkout".to_owned()
            }
            Self::Changes(error) => error.hint().unwrap_or_else(|| general.to_owned()),
            Self::Files(error) => regular_file::path_hint(error).unwrap_or_else(|| general.to_owned()),
        }
    }
}

/// Finds the repository of which a call can have a private checkout.
pub(crate) fn find_source(settings: &Settings, cwd: &Path) -> Result<GitRepository, PrepareError> {
    match find_repository(cwd, &protected_paths(settings)) {
        Ok(Some(source)) => Ok(source),
        Ok(None) => Err(PrepareError::NoRepository { directory: cwd.to_owned() }),
        Err(reason) => Err(PrepareError::Unsuitable { reason }),
    }
}

/// Finds the checkout in which a session has worked, with the files of its job. Fails if it is that of another worktree.
pub(crate) async fn find_session_checkout(
    store: &Store,
    session: &SessionId,
    cwd: &Path,
    files_of: impl Fn(JobId) -> JobFiles,
) -> Result<Option<(JobCheckout, JobFiles)>, PrepareError> {
    let filter = JobFilter { session: Some(session.clone()), ..JobFilter::default() };
    let page = PageRequest { limit: MAX_SEARCHED, before: None };
    let Ok(found) = store.list(&filter, page).await else { return Ok(None) };
    let mut checkouts = found.jobs.iter().filter_map(|job| JobCheckout::read(&files_of(job.id)));
    let Some(checkout) = checkouts.next() else { return Ok(None) };
    let worktree = checkout.source.worktree();
    if !cwd.starts_with(worktree) {
        return Err(PrepareError::SessionElsewhere {
            session: session.clone(),
            worktree: worktree.to_owned(),
        });
    }
    // A job that only looked at the checkout has no record of the changes in it.
    let files = files_of(checkout.job);
    Ok(Some((checkout, files)))
}

/// Creates the checkout of a job, or continues in the checkout of an earlier job. The description is written last: a checkout without one
/// is incomplete, and is replaced.
pub(crate) fn prepare(
    settings: &Settings,
    files: &JobFiles,
    job: JobId,
    call: &CallSpec,
    earlier: Option<(JobCheckout, JobFiles)>,
) -> Result<JobCheckout, PrepareError> {
    let writes = call.requested_preset().writes();
    if let Some((earlier, earlier_files)) = &earlier
        && earlier.directory.join(".git").exists()
    {
        if !writes {
            earlier.store_for(files)?;
            return Ok(earlier.clone());
        }
        record(files).continue_from(&record(earlier_files))?;
        let continued = JobCheckout { job, earlier: Some(earlier.job), branch: None, ..earlier.clone() };
        continued.store(files)?;
        return Ok(continued);
    }
    let source = match &earlier {
        Some((earlier, _)) => earlier.source.clone(),
        None => find_source(settings, &call.cwd)?,
    };
    let directory = match earlier {
        Some((earlier, _)) => earlier.directory,
        None => new_directory(settings, job, source.worktree())?,
    };
    let git = find_git(&settings.lookup, source.worktree())?;
    let created = create_checkout(&source, &directory, git, LIMIT);
    let created = created.inspect_err(|_| {
        // The disk can be full.
        let _ = directory.parent().map(remove_place);
    })?;
    let without_content = created.without_content;
    let (earlier, branch, state) = (None, None, ChangesState::Open);
    let checkout = JobCheckout { job, earlier, directory, source, without_content, branch, state };
    // A snapshot of an incomplete checkout that was replaced.
    let _ = std::fs::remove_dir_all(files.directory().join(RECORD));
    checkout.store(files)?;
    Ok(checkout)
}

/// Creates the checkouts of other contenders of a group. One that fails is created again when its job starts, which reports the error.
pub(crate) fn prepare_others(settings: &Settings, files: &JobFiles, call: &CallSpec, others: &[JobId]) {
    for &other in others {
        if let Err(error) = prepare(settings, &files.of_job(other), other, call, None) {
            tracing::info!(job = %other, error = error_chain(&error), "cannot create its checkout together with the others of the group");
        }
    }
}

/// Takes the snapshot before the agent, unless there is one.
pub(crate) fn begin_record(
    settings: &Settings,
    files: &JobFiles,
    checkout: &JobCheckout,
) -> Result<(), PrepareError> {
    files.create()?;
    let repository = GitRepository::find_checkout(&checkout.directory)?;
    let repository =
        repository.ok_or_else(|| PrepareError::NoRepository { directory: checkout.directory.clone() })?;
    let git = find_git(&settings.lookup, checkout.source.worktree())?;
    let record = record(files).with_git(git);
    record.begin(&repository, LIMIT)?;
    Ok(record.keep_objects(&checkout.source)?)
}

impl From<PrepareError> for model::Failure {
    fn from(error: PrepareError) -> Self {
        let kind = model::FailureKind::CheckoutFailed;
        Self { kind, message: format!("{}; {}", error_chain(&error), error.hint()) }
    }
}
