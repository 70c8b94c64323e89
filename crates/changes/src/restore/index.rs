//! Puts restored files into the index of the user, and into a commit on the current branch.
//!
//! The index is locked like by git itself. Everything that can be refused is refused, and everything but the index and the branch is
//! written, before the first file changes. Afterwards the index is replaced and then the branch is moved, so that a crash in between
//! leaves staged changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, FileTimes};
use std::io::{ErrorKind, Seek, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::after::find_filtered;
use crate::entry::{Entry, join_nul, split_nul, to_path};
use crate::error::ChangesError;
use crate::files::{copy_index, read_dated};
use crate::git::Git;
use crate::head::read_commit;
use crate::index_file::PrivateIndex;
use crate::listing::{list_tracked, read_flags, refresh_index};
use crate::private_git::copy_user_index;
use crate::repository::GitRepository;
use crate::restore::{Conflict, ConflictReason, Destination, RestoreError};
use crate::user_objects::{UserObjects, read_identity};

/// The files by which git recognizes that a commit belongs to an operation.
const OPERATIONS: [(&str, &str); 6] = [
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("sequencer", "cherry-pick or revert"),
];

/// A restored path.
#[derive(Debug)]
pub(super) struct AppliedEntry {
    pub(super) path: PathBuf,
    /// The entry afterwards. `None` for a deleted file.
    pub(super) entry: Option<Entry>,
    /// Is true if there is a file before.
    pub(super) exists: bool,
}

type Entries = BTreeMap<PathBuf, Entry>;

/// An index, and a commit, to be written after the files.
pub(super) struct IndexUpdate<'a> {
    git: &'a Git,
    repository: &'a GitRepository,
    /// The new index, in the scratch directory.
    index: PathBuf,
    lock: IndexLock,
    entries: &'a [AppliedEntry],
    commit: Option<NewCommit>,
}

/// A commit that no ref names yet.
struct NewCommit {
    id: String,
    parent: Option<String>,
    /// The message for the reflog.
    reason: String,
}

/// Refuses an update, or prepares it. A dry run only refuses.
pub(super) fn prepare<'a>(
    git: &'a Git,
    repository: &'a GitRepository,
    scratch: &Path,
    entries: &'a [AppliedEntry],
    destination: Destination<'_>,
    is_dry_run: bool,
) -> Result<Option<IndexUpdate<'a>>, RestoreError> {
    if destination == Destination::Worktree {
        return Ok(None);
    }
    if let Destination::Commit { .. } = destination {
        refuse_operation(repository)?;
    }
    let lock = if is_dry_run { None } else { Some(IndexLock::acquire(repository.git_dir())?) };
    let index = scratch.join("user.index");
    copy_user_index(git, repository, &index)?;
    let head = match destination {
        Destination::Commit { .. } => Some(read_head(git, repository)?),
        _ => None,
    };
    let conflicts = find_conflicts(git, scratch, &index, head.as_ref().map(|head| &head.files), entries)?;
    if !conflicts.is_empty() {
        return Err(RestoreError::Conflicts(conflicts));
    }
    let objects = UserObjects { git, directory: &git.user_objects };
    objects.update_index(&index, entries.iter().map(|new| (new.path.as_path(), new.entry.as_ref())))?;
    refuse_filtered(git, &index, entries)?;
    let Some(lock) = lock else { return Ok(None) };
    objects.copy_blobs(entries.iter().filter_map(|restored| restored.entry.as_ref()))?;
    let mut update = IndexUpdate { git, repository, index, lock, entries, commit: None };
    if let (Destination::Commit { message }, Some(head)) = (destination, head) {
        let tree_index = scratch.join("commit.index");
        update.commit = create_commit(objects, repository, &tree_index, head, entries, message)?;
        update.update_ref(true)?;
    }
    update.lock.write(&update.index)?;
    Ok(Some(update))
}

impl IndexUpdate<'_> {
    /// Replaces the index, and moves the branch to the commit, which is returned.
    pub(super) fn finish(mut self) -> Result<Option<String>, ChangesError> {
        let present = self.entries.iter().filter(|restored| restored.entry.is_some());
        let pathspecs: Vec<PathBuf> = present.map(|restored| match_exactly(&restored.path)).collect();
        // Without the times of the files, the next `git status` compares the contents.
        if !pathspecs.is_empty() {
            let args = ["--refresh", "--pathspec-from-file=-", "--pathspec-file-nul"];
            let command = self.git.command("add").args(args).index(&self.index);
            let command = command.writing_to(&self.git.user_objects);
            let _ = command.input(join_nul(pathspecs.iter().map(PathBuf::as_path))).run();
        }
        self.lock.write(&self.index)?;
        self.lock.commit()?;
        self.update_ref(false)?;
        Ok(self.commit.map(|commit| commit.id))
    }

    /// Moves the current branch, or a detached HEAD. A rehearsal only finds out whether that is possible.
    fn update_ref(&self, is_rehearsal: bool) -> Result<(), ChangesError> {
        let Some(NewCommit { id, parent, reason }) = &self.commit else { return Ok(()) };
        let none = "0".repeat(self.git.id_length);
        let parent = parent.as_ref().unwrap_or(&none);
        let git = Git { git_dir: self.repository.git_dir().to_owned(), ..self.git.clone() };
        let end = if is_rehearsal { "abort" } else { "commit" };
        let input = format!("start\nupdate HEAD {id} {parent}\nprepare\n{end}\n");
        let (name, email) = read_identity(self.repository);
        let command = git.command("update-ref").args(["-m", reason, "--stdin"]).author(&name, &email);
        command.input(input.into_bytes()).run().map(drop)
    }
}

/// Returns a pathspec for exactly one path.
fn match_exactly(path: &Path) -> PathBuf {
    let mut pathspec = OsString::from(":(top,literal)");
    pathspec.push(path);
    pathspec.into()
}

fn refuse_operation(repository: &GitRepository) -> Result<(), ChangesError> {
    let exists = |name: &str| fs::symlink_metadata(repository.git_dir().join(name)).is_ok();
    match OPERATIONS.iter().find(|(file, _)| exists(file)) {
        Some((_, operation)) => {
            let worktree = repository.worktree().to_owned();
            Err(ChangesError::OperationInProgress { operation, worktree })
        }
        None => Ok(()),
    }
}

/// Refuses files whose content for the index a filter has to produce, by the attributes before or after.
fn refuse_filtered(git: &Git, index: &Path, entries: &[AppliedEntry]) -> Result<(), RestoreError> {
    let paths: Vec<&Path> = entries
        .iter()
        .filter(|restored| restored.entry.as_ref().is_some_and(Entry::is_regular))
        .map(|restored| restored.path.as_path())
        .collect();
    if paths.is_empty() {
        return Ok(());
    }
    let filtered = find_filtered(git, index, &paths)?;
    if filtered.is_empty() {
        return Ok(());
    }
    let conflicts = filtered.into_iter().map(|path| Conflict { path, reason: ConflictReason::NeedsFilter });
    Err(RestoreError::Conflicts(conflicts.collect()))
}

/// Finds files with edits of the user that the index, or the commit, would contain.
fn find_conflicts(
    git: &Git,
    scratch: &Path,
    index: &Path,
    head: Option<&Entries>,
    entries: &[AppliedEntry],
) -> Result<Vec<Conflict>, ChangesError> {
    let (staged, unmerged) = list_index(git, index)?;
    let flags = read_flags(git, index)?;
    let modified = list_modified(git, scratch, index, entries)?;
    let removed = entries.iter().filter(|restored| restored.entry.is_none());
    let removed: BTreeSet<&Path> = removed.map(|restored| restored.path.as_path()).collect();
    let edited = if head.is_some() { ConflictReason::Uncommitted } else { ConflictReason::Unstaged };
    let mut conflicts = Vec::new();
    for AppliedEntry { path, entry, exists } in entries {
        let is_modified = match staged.get(path) {
            Some(_) => modified.contains(path),
            None => *exists || unmerged.contains(path),
        };
        let is_staged = head.is_some_and(|head| head.get(path) != staged.get(path));
        let obstacle = || {
            entry.as_ref()?;
            [Some(&staged), head].into_iter().flatten().find_map(|files| find_other(files, path, &removed))
        };
        let reason = if flags.contains(path) {
            ConflictReason::NotCompared
        } else if is_modified || is_staged {
            edited.clone()
        } else if let Some(obstacle) = obstacle() {
            ConflictReason::InTheIndex { path: obstacle }
        } else {
            continue;
        };
        conflicts.push(Conflict { path: path.clone(), reason });
    }
    Ok(conflicts)
}

/// Returns a file in place of a directory above a path, or one below the path, unless it is removed.
fn find_other(files: &Entries, path: &Path, removed: &BTreeSet<&Path>) -> Option<PathBuf> {
    let stays = |path: &&Path| files.contains_key(*path) && !removed.contains(*path);
    let below = files.range(path.to_owned()..).map(|(path, _)| path.as_path());
    let below = below.take_while(|below| below.starts_with(path)).filter(|below| *below != path);
    path.ancestors().skip(1).chain(below).find(stays).map(Path::to_owned)
}

/// Lists the entries of an index, and its unmerged paths. A directory of a sparse index is one entry.
fn list_index(git: &Git, index: &Path) -> Result<(Entries, BTreeSet<PathBuf>), ChangesError> {
    let command = git.command("ls-files").args(["-z", "--stage", "--sparse"]);
    let output = command.index(index).with_user_objects().run()?;
    let (mut entries, mut unmerged) = (Entries::new(), BTreeSet::new());
    for line in split_nul(&output) {
        let (entry, stage, path) =
            parse_line(line, 1, 2).ok_or(ChangesError::UnexpectedOutput { command: "ls-files" })?;
        if stage == b"0" {
            entries.insert(path, entry);
        } else {
            unmerged.insert(path);
        }
    }
    Ok((entries, unmerged))
}

/// The current commit with its files. A repository without commits has neither.
#[derive(Default)]
struct Head {
    commit: Option<String>,
    files: Entries,
}

fn read_head(git: &Git, repository: &GitRepository) -> Result<Head, ChangesError> {
    let Some(commit) = read_commit(repository, git) else { return Ok(Head::default()) };
    let command = git.command("ls-tree").args(["-r", "-z", "--full-tree", &commit]);
    let output = command.with_user_objects().run()?;
    let entries = split_nul(&output).map(|line| parse_line(line, 2, 1).map(|(entry, _, path)| (path, entry)));
    let files = entries.collect::<Option<Entries>>();
    let files = files.ok_or(ChangesError::UnexpectedOutput { command: "ls-tree" })?;
    Ok(Head { commit: Some(commit), files })
}

/// Parses a mode, an object and another field at the given positions, and a path after a tab.
fn parse_line(line: &[u8], oid: usize, other: usize) -> Option<(Entry, &[u8], PathBuf)> {
    let (fields, path) = line.split_at_checked(line.iter().position(|byte| *byte == b'\t')?)?;
    let fields: Vec<&[u8]> = fields.split(|byte| *byte == b' ').collect();
    Some((Entry::parse(fields.first()?, fields.get(oid)?)?, fields.get(other)?, to_path(&path[1..])))
}

/// Returns the files that differ from an index. Compares contents only if the times of one of the paths differ.
fn list_modified(
    git: &Git,
    scratch: &Path,
    index: &Path,
    entries: &[AppliedEntry],
) -> Result<BTreeSet<PathBuf>, ChangesError> {
    let modified = list_tracked(git, index)?;
    if !entries.iter().any(|restored| modified.contains_key(&restored.path)) {
        return Ok(BTreeSet::new());
    }
    let refreshed = scratch.join("refreshed.index");
    copy_index(index, &refreshed)?;
    refresh_index(git, &refreshed)?;
    Ok(list_tracked(git, &refreshed)?.into_keys().collect())
}

/// Writes the commit. Returns `None` if nothing differs from the current one.
fn create_commit(
    objects: UserObjects<'_>,
    repository: &GitRepository,
    index: &Path,
    head: Head,
    entries: &[AppliedEntry],
    message: &str,
) -> Result<Option<NewCommit>, ChangesError> {
    let Head { commit: parent, files } = head;
    if entries.iter().all(|new| files.get(&new.path) == new.entry.as_ref()) {
        return Ok(None);
    }
    let mut private = PrivateIndex::default();
    for (path, entry) in &files {
        private.insert(path, entry);
    }
    for AppliedEntry { path, entry, .. } in entries {
        match entry {
            Some(entry) => private.insert(path, entry),
            None => private.remove(path),
        }
    }
    private.write(index, objects.git.id_length)?;
    let tree = objects.write_tree(index)?;
    let id = objects.commit(repository, &tree, parent.as_deref(), message)?;
    let kind = if parent.is_some() { "commit" } else { "commit (initial)" };
    let reason = format!("{kind}: {}", message.lines().next().unwrap_or_default());
    Ok(Some(NewCommit { id, parent, reason }))
}

/// The lock on the index of the user. Released on drop.
#[derive(Debug)]
struct IndexLock {
    index: PathBuf,
    path: PathBuf,
    file: File,
    is_released: bool,
}

impl IndexLock {
    fn acquire(git_dir: &Path) -> Result<Self, ChangesError> {
        let index = git_dir.join("index");
        // Git locks the target of a link.
        let index = index.canonicalize().unwrap_or(index);
        let path = index.with_added_extension("lock");
        match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => Ok(Self { index, path, file, is_released: false }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(ChangesError::IndexLocked { path }),
            Err(error) => Err(ChangesError::file("create", &path)(error)),
        }
    }

    /// Writes the content of an index to the lock, with its time, which git compares with those of the files.
    fn write(&mut self, index: &Path) -> Result<(), ChangesError> {
        let Some((bytes, modified)) = read_dated(index)? else { return Ok(()) };
        let mut write = || {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.set_len(0)?;
            self.file.write_all(&bytes)?;
            if let Ok(old) = fs::metadata(&self.index) {
                self.file.set_permissions(fs::Permissions::from_mode(old.permissions().mode() & 0o777))?;
            }
            self.file.set_times(FileTimes::new().set_modified(modified))
        };
        write().map_err(ChangesError::file("write", &self.path))
    }

    /// Replaces the index, unless there is none before and afterwards.
    fn commit(&mut self) -> Result<(), ChangesError> {
        if fs::metadata(&self.path).is_ok_and(|found| found.len() == 0) {
            return Ok(());
        }
        fs::rename(&self.path, &self.index).map_err(ChangesError::file("replace", &self.index))?;
        self.is_released = true;
        Ok(())
    }
}

impl Drop for IndexLock {
    fn drop(&mut self) {
        if !self.is_released {
            let _ = fs::remove_file(&self.path);
        }
    }
}
