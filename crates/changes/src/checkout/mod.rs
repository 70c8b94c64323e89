//! Creates a private checkout of a worktree: a repository of its own that borrows the objects of the user's.
//!
//! It contains exactly what the user sees: HEAD, the index with staged changes, and the files with uncommitted and untracked ones. The
//! files are copied rather than checked out, so that the content of filters and uncommitted edits are the same, and the entries of the
//! copied index get the times of the copies, so that git compares times instead of contents (a git without nanoseconds only
//! once it has written the index again). Nothing is registered in the repository of
//! the user, in which neither `git worktree` nor `git gc` finds a trace of the checkout.

mod copy;
mod git_dir;
mod own_objects;
mod stat;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::beneath::Root;
use crate::checkout::copy::{CopiedFiles, copy_files};
use crate::checkout::stat::update_index;
use crate::entry::{split_nul, to_path};
use crate::error::ChangesError;
use crate::files::{read_index, read_unlinked, remove_directory, write_index};
use crate::git::{Git, GitProgram, GitSession};
use crate::index_file::visit_entries;
use crate::parallel::run_both;
use crate::private_git::{copy_user_index, is_shared_index};
use crate::repository::GitRepository;
use crate::worktree_files::is_inside_git_dir;

pub(crate) use own_objects::copy_own_objects;

/// The file with patterns of ignored files that a checkout needs.
const INCLUDE: &str = ".worktreeinclude";
const INCLUDE_LIMIT: u64 = 1024 * 1024;
const SUBMODULE: u32 = 0o160_000;
const DIRECTORY: u32 = 0o040_000;

/// A private checkout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCheckout {
    /// The repository of the checkout.
    pub repository: GitRepository,
    /// Submodules and nested repositories of the user, which are empty or missing in the checkout.
    pub without_content: Vec<PathBuf>,
}

/// Creates a private checkout in a directory that does not exist, and replaces an incomplete one.
pub fn create_checkout(
    source: &GitRepository,
    directory: &Path,
    program: GitProgram,
    limit: Duration,
) -> Result<NewCheckout, ChangesError> {
    let session = GitSession::start(program, limit);
    remove_checkout(directory)?;
    regular_file::create_private_directory(directory).map_err(ChangesError::file("create", directory))?;
    let git = git_dir::create(source, &directory.join(".git"), session)?;
    let index = git.git_dir.join("index");
    copy_user_index(&git, source, &index)?;
    let (untracked, tracked) = run_both(|| list_untracked(&git, &index), || list_tracked(&git, &index))?;
    let Tracked { files, submodules } = tracked;
    let (mut without_content, mut paths) = (Vec::new(), files);
    for path in untracked {
        match path.to_str().and_then(|path| path.strip_suffix('/')) {
            Some(repository) => without_content.push(PathBuf::from(repository)),
            None => drop(paths.insert(path)),
        }
    }
    let root = Root::open(source.worktree()).map_err(ChangesError::file("open", source.worktree()))?;
    let target = Root::open(directory).map_err(ChangesError::file("open", directory))?;
    let copied = copy_files(&git, &root, &target, &paths)?;
    for path in submodules {
        let created = target.create_parents(&path.join("file"), |_| {});
        created.map_err(ChangesError::file("create", &directory.join(&path)))?;
        without_content.push(path);
    }
    refresh(&git, &index, &copied)?;
    let repository = GitRepository::find_checkout(directory)?;
    let repository = repository.ok_or(ChangesError::BrokenRepository { path: directory.join(".git") })?;
    Ok(NewCheckout { repository, without_content })
}

/// Removes a checkout. Succeeds if there is none.
pub fn remove_checkout(directory: &Path) -> Result<(), ChangesError> {
    // An agent can have removed the permissions of a directory.
    if remove_directory(directory).is_err() {
        git_dir::unlock(directory);
    }
    remove_directory(directory)
}

/// The tracked files and submodules.
#[derive(Debug, Default)]
struct Tracked {
    files: BTreeSet<PathBuf>,
    submodules: Vec<PathBuf>,
}

/// Lists the entries of the copied index, with those of its shared index.
fn list_tracked(git: &Git, index: &Path) -> Result<Tracked, ChangesError> {
    let entries = fs::read_dir(&git.git_dir).map_err(ChangesError::file("read", &git.git_dir))?;
    let shared = entries.flatten().filter(|entry| is_shared_index(&entry.file_name().to_string_lossy()));
    let mut tracked = Tracked::default();
    for path in shared.map(|entry| entry.path()).chain([index.to_owned()]) {
        let bytes = read_index(&path)?;
        let visited = visit_entries(&bytes, git.id_length, |entry| match entry.mode {
            // A directory of a sparse checkout.
            DIRECTORY => {}
            _ if entry.name.is_empty() || is_inside_git_dir(&to_path(entry.name)) => {}
            SUBMODULE => tracked.submodules.push(to_path(entry.name)),
            _ => drop(tracked.files.insert(to_path(entry.name))),
        });
        if visited.is_none() && !bytes.is_empty() {
            return Err(ChangesError::UnexpectedOutput { command: "status" });
        }
    }
    Ok(tracked)
}

/// Lists the untracked files of the user, and the ignored ones that `.worktreeinclude` names. A nested repository ends with a slash.
fn list_untracked(git: &Git, index: &Path) -> Result<BTreeSet<PathBuf>, ChangesError> {
    let list = |args: &[&Path]| {
        let command = git.command("ls-files").args(["-z", "--others"]).args(args);
        command.index(index).with_user_objects().run()
    };
    let mut output = list(&[Path::new("--exclude-standard")])?;
    // Not through a link: the agent can read the copy.
    if let Some(patterns) = read_unlinked(&git.worktree.join(INCLUDE), INCLUDE_LIMIT) {
        let file = git.git_dir.join("info/include");
        fs::write(&file, patterns).map_err(ChangesError::file("write", &file))?;
        output.extend(list(&[Path::new("--ignored"), Path::new("--exclude-from"), &file])?);
    }
    Ok(split_nul(&output).map(to_path).filter(|path| !is_inside_git_dir(path)).collect())
}

/// Stores the times of the copies for the files that are unmodified in the index.
fn refresh(git: &Git, index: &Path, copied: &CopiedFiles) -> Result<(), ChangesError> {
    let mut bytes = read_index(index)?;
    if bytes.is_empty() {
        return Ok(());
    }
    let modified = fs::metadata(index).and_then(|file| file.modified());
    let modified = modified.map_err(ChangesError::file("read", index))?;
    // Without times, git compares the contents.
    if update_index(&mut bytes, git.id_length, modified, copied).is_none() {
        return Ok(());
    }
    fs::remove_file(index).map_err(ChangesError::file("write", index))?;
    write_index(index, &bytes)
}
