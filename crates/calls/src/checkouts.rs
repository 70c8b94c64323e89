//! The private checkouts in which jobs work.
//!
//! A checkout is `checkouts/JOB/NAME` in the state directory, named by the job that created it and by the worktree of the user. A job that
//! resumes a session continues in the checkout of that session, and recreates it at the same path if it is gone: agents find a session
//! only in its directory. A checkout belongs to the last of these jobs, whose changes include those of the others.
//!
//! Both the job's directory and `checkouts/JOB` contain the description, so that each can be removed without the other.

mod prepare;
mod publish;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agents::CheckoutAccess;
use changes::{ChangesError, GitProgram, GitRepository};
use model::{CallSpec, CheckoutSource, JobId, exact_path};
use regular_file::{create_private_directory, create_regular, read_regular};
use serde::{Deserialize, Serialize};

use crate::files::JobFiles;
use crate::job_changes::{ChangesState, find_git, record};
use crate::settings::Settings;

pub use prepare::PrepareError;
pub(crate) use prepare::{begin_record, find_session_checkout, find_source, prepare, prepare_others};
pub(crate) use publish::{commit_message, publish};

/// The description of a checkout.
const DESCRIPTION: &str = "checkout.json";
/// The time for a step with many files.
const LIMIT: Duration = Duration::from_mins(1);

/// The private checkout of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobCheckout {
    /// The job.
    pub job: JobId,
    /// The job whose checkout and changes it continues.
    pub earlier: Option<JobId>,
    /// The root of the checkout.
    #[serde(with = "exact_path")]
    pub directory: PathBuf,
    /// The repository of the user.
    pub source: GitRepository,
    /// Submodules and nested repositories of the user, which the checkout does not contain.
    #[serde(with = "exact_path")]
    pub without_content: Vec<PathBuf>,
    /// The branch with the changes, in the repository of the user.
    pub branch: Option<Branch>,
    /// The state of the changes.
    pub state: ChangesState,
}

/// A published branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Branch {
    /// The name without `refs/heads/`.
    pub name: String,
    /// The commit. `None` while it is created.
    pub commit: Option<String>,
}

impl JobCheckout {
    /// Returns the access that an agent in the checkout needs.
    pub fn access(&self) -> CheckoutAccess {
        CheckoutAccess { source: self.link(), borrowed_objects: self.source.object_directories() }
    }

    /// Returns the checkout with the repository to which its files are applied.
    fn link(&self) -> CheckoutSource {
        let git = vec![self.source.git_dir().to_owned(), self.source.common_dir().to_owned()];
        let (checkout, worktree) = (self.directory.clone(), self.source.worktree().to_owned());
        CheckoutSource { checkout, worktree, git }
    }

    /// Returns the path in the checkout for one in the worktree of the user. Other paths stay as they are.
    pub fn relocate(&self, path: &Path) -> PathBuf {
        self.link().relocate(path)
    }

    /// Returns the call with the checkout in place of the worktree.
    pub fn relocate_call(&self, call: &CallSpec) -> CallSpec {
        let add_dirs = call.add_dirs.iter().map(|directory| self.relocate(directory)).collect();
        CallSpec { cwd: self.relocate(&call.cwd), add_dirs, ..call.clone() }
    }

    /// Reads the checkout of a job; none if it has none.
    pub fn read(files: &JobFiles) -> Option<Self> {
        let mut checkout = files.read::<Self>(DESCRIPTION)?;
        if checkout.state == ChangesState::Open && checkout.successor().is_some() {
            checkout.state = ChangesState::Continued;
        }
        Some(checkout)
    }

    /// Returns the job to which the checkout belongs by now, if it is another one.
    pub fn successor(&self) -> Option<JobId> {
        let owner = read_description(self.place())?.job;
        (owner != self.job).then_some(owner)
    }

    /// Returns whether a branch with the changes was created.
    pub fn is_published(&self) -> bool {
        self.branch.as_ref().is_some_and(|branch| branch.commit.is_some())
    }

    /// Returns whether the job owns the checkout, and not only looks at that of another one.
    pub fn belongs_to(&self, job: JobId) -> bool {
        self.job == job
    }

    /// Deletes the branch, unless it was moved since.
    pub fn delete_branch(&self, files: &JobFiles, git: GitProgram) -> Result<(), ChangesError> {
        let Some(Branch { name, commit: Some(commit) }) = &self.branch else { return Ok(()) };
        record(files).with_git(git).delete_branch(&self.source, name, commit, LIMIT)
    }

    /// Stores the description in the directory of the job, and in that of the checkout if the checkout exists.
    pub fn store(&self, files: &JobFiles) -> io::Result<()> {
        if self.directory.exists() {
            let temporary = self.place().join(format!(".{DESCRIPTION}"));
            serde_json::to_writer(create_regular(&temporary)?, self)?;
            fs::rename(temporary, self.place().join(DESCRIPTION))?;
        }
        self.store_for(files)
    }

    /// Stores the description only in the directory of another job, which works in the checkout without owning it.
    pub fn store_for(&self, other: &JobFiles) -> io::Result<()> {
        other.create()?;
        other.replace(DESCRIPTION, self)
    }

    /// Removes the checkout. Succeeds if there is none.
    pub fn remove(&self) -> io::Result<()> {
        remove_place(self.place())
    }

    /// Returns the disk space of the checkout in bytes. Borrowed objects are not part of it.
    pub fn disk_use(&self) -> u64 {
        disk_use(self.place())
    }

    /// Returns `checkouts/JOB`.
    fn place(&self) -> &Path {
        self.directory.parent().unwrap_or(&self.directory)
    }
}

/// Returns the directory for the checkout of a worktree that a job creates.
fn new_directory(settings: &Settings, job: JobId, worktree: &Path) -> io::Result<PathBuf> {
    let place = settings.checkouts().join(job.to_string());
    create_private_directory(&place)?;
    Ok(place.join(worktree.file_name().unwrap_or("worktree".as_ref())))
}

/// Lists the existing checkouts, the oldest first. One without a description is incomplete, and only its path is returned.
pub(crate) fn list(settings: &Settings) -> io::Result<Vec<Result<JobCheckout, PathBuf>>> {
    let entries = match fs::read_dir(settings.checkouts()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut places: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    places.sort();
    Ok(places.into_iter().map(|place| read_description(&place).ok_or(place)).collect())
}

/// Returns the root of an incomplete checkout in `checkouts/JOB`.
pub(crate) fn find_directory(place: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(place).ok()?.flatten();
    entries.find(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// Removes the checkout of a job that has not started an agent. One that continues another job's is given back to that job.
pub(crate) fn remove_unused(checkout: &JobCheckout, files: &JobFiles) -> io::Result<()> {
    if let Some(earlier) = checkout.earlier.map(|earlier| files.of_job(earlier)) {
        let Some(description) = earlier.read::<JobCheckout>(DESCRIPTION) else { return Ok(()) };
        files.remove(DESCRIPTION);
        return description.store(&earlier);
    }
    checkout.remove()?;
    let (branch, state) = (None, ChangesState::Unchanged);
    JobCheckout { branch, state, ..checkout.clone() }.store_for(files)
}

/// Deletes the branch of closed changes. It stays if it was moved or is checked out.
pub(crate) fn delete_branch(checkout: &JobCheckout, files: &JobFiles, settings: &Settings) {
    let git = find_git(&settings.lookup, checkout.source.worktree());
    if let Err(error) = git.and_then(|git| checkout.delete_branch(files, git)) {
        tracing::info!(job = %checkout.job, %error, "keeping the branch, which was moved, deleted or checked out");
    }
}

/// Removes `checkouts/JOB`. Succeeds if there is none.
pub(crate) fn remove_place(place: &Path) -> io::Result<()> {
    changes::remove_checkout(place).map_err(io::Error::other)
}

fn read_description(place: &Path) -> Option<JobCheckout> {
    serde_json::from_slice(&read_regular(&place.join(DESCRIPTION)).ok()?).ok()
}

fn disk_use(path: &Path) -> u64 {
    let Ok(found) = fs::symlink_metadata(path) else { return 0 };
    let below = if found.is_dir() { fs::read_dir(path).ok() } else { None };
    let entries = below.into_iter().flatten().flatten().map(|entry| disk_use(&entry.path()));
    found.blocks() * 512 + entries.sum::<u64>()
}
