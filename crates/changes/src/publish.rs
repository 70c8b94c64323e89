//! Publishes the result of a checkout as a branch in the repository of the user.
//!
//! New objects are verified by git and written to the objects of the user; everything else is computed in the private git directory. Only
//! the creation of the branch uses the git directory of the user, with hooks off. No other ref, no index and no configuration changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::checkout::copy_own_objects;
use crate::entry::{Entry, split_nul, to_path};
use crate::error::ChangesError;
use crate::files::{copy_index, read_small};
use crate::git::{Git, GitCommand, GitSession};
use crate::head::read_unlinked_commit;
use crate::index_file::PrivateIndex;
use crate::layout::RecordLayout;
use crate::objects::{join_lines, read_sizes};
use crate::private_git;
use crate::repository::GitRepository;
use crate::state::{BeforeSnapshot, FileState, RecordedChanges};
use crate::user_objects::UserObjects;

/// The limit for a `HEAD` file.
const HEAD_LIMIT: u64 = 64 * 1024;

/// The limit for the commits of an agent.
const COMMITS_LIMIT: u64 = 256 * 1024 * 1024;

/// A branch to create.
#[derive(Debug, Clone, Copy)]
pub struct BranchRequest<'a> {
    /// The repository of the user.
    pub repository: &'a GitRepository,
    /// The name without `refs/heads/`.
    pub name: &'a str,
    /// The message of the commit with the changes of the job.
    pub message: &'a str,
    /// The job, for the reflog of the branch.
    pub job: &'a str,
    /// Fails if the branch exists, unless its reflog names the same job: a process that was killed has created it.
    pub is_new: bool,
}

/// Creates or moves the branch, and returns its commit. `None` if nothing differs from the base.
pub(crate) fn publish_branch(
    layout: &RecordLayout,
    before: &BeforeSnapshot,
    changes: &RecordedChanges,
    request: BranchRequest<'_>,
    session: GitSession,
) -> Result<Option<String>, ChangesError> {
    let checkout =
        GitRepository::from_parts(before.worktree.clone(), before.git_dir.clone(), before.common_dir.clone());
    let git = private_git::open(&layout.git_dir(), request.repository, before.id_length, session);
    let objects = request.repository.common_dir().join("objects");
    let scratch = layout.scratch("publish");
    regular_file::create_private_directory(&scratch).map_err(ChangesError::file("create", &scratch))?;
    let objects = UserObjects { git: &git, directory: &objects };
    let publisher =
        Publisher { git: &git, objects, scratch: &scratch, index: scratch.join("index"), request };
    let commit = publisher.publish(layout, before, changes, &checkout);
    layout.remove_scratch();
    commit
}

struct Publisher<'a> {
    git: &'a Git,
    objects: UserObjects<'a>,
    scratch: &'a Path,
    index: PathBuf,
    request: BranchRequest<'a>,
}

impl Publisher<'_> {
    fn publish(
        &self,
        layout: &RecordLayout,
        before: &BeforeSnapshot,
        changes: &RecordedChanges,
        checkout: &GitRepository,
    ) -> Result<Option<String>, ChangesError> {
        let head = read_unlinked_commit(checkout);
        let has_commits = head.is_some() && head != before.base;
        if changes.change_set.files.is_empty() && !has_commits {
            return Ok(None);
        }
        let dirty: BTreeMap<&Path, &FileState> =
            before.files.iter().map(|(path, state)| (path.as_path(), state)).collect();
        let after: BTreeMap<&Path, &FileState> =
            changes.sides.iter().map(|(path, sides)| (path.as_path(), &sides.after)).collect();
        if let Some(base) = &before.base {
            self.restore_base(base)?;
        }
        let states = dirty.values().chain(after.values());
        self.objects.copy_blobs(states.filter_map(|state| state.entry()))?;
        copy_index(&layout.user_index(), &self.index)?;
        self.update_index(&dirty)?;
        let tree_before = self.write_tree()?;
        self.update_index(&after)?;
        let tree = self.write_tree()?;
        let (mut tip, mut tree_of_user) = (before.base.clone(), tree_before);
        if let Some(head) = head.filter(|_| has_commits) {
            self.copy_commits(checkout, &head, before.base.as_deref())?;
            tree_of_user = self.write_tree_with(&head, &after)?;
            tip = Some(head);
        }
        if self.objects.read_tree(tip.as_deref())?.as_ref() != Some(&tree_of_user) {
            let message = "Uncommitted changes of the user before the job\n";
            tip = Some(self.commit(&tree_of_user, tip.as_deref(), message)?);
        }
        if self.objects.read_tree(tip.as_deref())?.as_ref() != Some(&tree) {
            tip = Some(self.commit(&tree, tip.as_deref(), self.request.message)?);
        }
        if let Some(tip) = &tip {
            self.set_branch(tip)?;
        }
        Ok(tip)
    }

    /// Returns the tree of the index with some files as in a commit.
    fn write_tree_with(
        &self,
        commit: &str,
        files: &BTreeMap<&Path, &FileState>,
    ) -> Result<String, ChangesError> {
        let list = self.git.command("ls-tree").args(["-r", "-z", "--full-tree", commit]);
        let listed = list.writing_to(self.objects.directory).run()?;
        let entries = split_nul(&listed).filter_map(|entry| {
            let tab = entry.iter().position(|byte| *byte == b'\t')?;
            Some((to_path(&entry[tab + 1..]), entry))
        });
        let entries: BTreeMap<PathBuf, &[u8]> =
            entries.filter(|(path, _)| files.contains_key(path.as_path())).collect();
        let none = "0".repeat(self.git.id_length);
        let mut input = Vec::new();
        for path in files.keys() {
            if let Some(entry) = entries.get(*path) {
                input.extend_from_slice(entry);
            } else {
                input.extend(format!("0 {none}\t").into_bytes());
                input.extend(path.as_os_str().as_bytes());
            }
            input.push(0);
        }
        let command = self.git.command("update-index").args(["-z", "--index-info"]).index(&self.index);
        command.writing_to(self.objects.directory).input(input).run()?;
        self.write_tree()
    }

    /// Copies the commits of the agent, after a check of all their objects.
    fn copy_commits(
        &self,
        checkout: &GitRepository,
        head: &str,
        base: Option<&str>,
    ) -> Result<(), ChangesError> {
        let own = self.scratch.join("objects");
        copy_own_objects(checkout.worktree(), &own, &[self.objects.directory])?;
        let git = Git { user_objects: own, ..self.git.clone() };
        let base = base.map(|base| format!("^{base}"));
        self.copy_range(&git, [head.to_owned()].into_iter().chain(base))
    }

    fn copy_range(&self, git: &Git, range: impl Iterator<Item = String>) -> Result<(), ChangesError> {
        let input = (range.collect::<Vec<_>>().join("\n") + "\n").into_bytes();
        let size = git.command("rev-list").args(["--objects", "--disk-usage", "--stdin"]);
        let size = size.with_user_objects().input(input.clone()).run()?;
        let size = String::from_utf8_lossy(&size).trim().parse().unwrap_or(u64::MAX);
        if size > COMMITS_LIMIT {
            return Err(ChangesError::CommitsTooLarge { bytes: size, limit: COMMITS_LIMIT });
        }
        let command = git.command("pack-objects").args(["-q", "--stdout", "--revs", "--threads=1"]);
        self.objects.unpack(command.with_user_objects().input(input).run()?)
    }

    /// Restores the commit on which the job worked if the user has rewritten and pruned the history. It becomes part of the branch.
    fn restore_base(&self, base: &str) -> Result<(), ChangesError> {
        let is_in = |command: GitCommand<'_>| {
            let command = command.args(["-e", &format!("{base}^{{tree}}")]);
            command.run_accepting(|code| code >= 0).map(|(code, _)| code == 0)
        };
        if is_in(self.git.command("cat-file").writing_to(self.objects.directory))? {
            return Ok(());
        }
        if !is_in(self.git.command("cat-file").with_user_objects())? {
            return Err(ChangesError::BaseMissing { commit: base.to_owned() });
        }
        let user = Git { git_dir: self.request.repository.common_dir().to_owned(), ..self.git.clone() };
        let refs = user.command("for-each-ref").args(["--format=^%(objectname)"]).run()?;
        let refs = String::from_utf8_lossy(&refs);
        self.copy_range(self.git, [base.to_owned()].into_iter().chain(refs.lines().map(str::to_owned)))
    }

    /// Writes the tree of the index. Contents that were only staged can have been pruned meanwhile, and are restored.
    fn write_tree(&self) -> Result<String, ChangesError> {
        let written = self.objects.write_tree(&self.index);
        let Err(ChangesError::GitFailed { .. }) = written else { return written };
        let index = PrivateIndex::read(&self.index, self.git.id_length)?;
        let entries: Vec<Entry> = index.entries().map(|(_, entry)| entry).collect();
        let ids = entries.iter().filter(|entry| !entry.is_submodule()).map(|entry| entry.oid.as_str());
        let mut ids: BTreeSet<&str> = ids.collect();
        let found = read_sizes(self.git.command("cat-file").writing_to(self.objects.directory), &ids)?;
        ids.retain(|id| !found.contains_key(*id));
        if ids.is_empty() {
            return written;
        }
        let command = self.git.command("pack-objects").args(["-q", "--stdout", "--threads=1"]);
        self.objects.unpack(command.with_user_objects().input(join_lines(&ids)).run()?)?;
        self.objects.write_tree(&self.index)
    }

    /// Sets the recorded files in the index. Others stay as they are in the index of the user.
    fn update_index(&self, files: &BTreeMap<&Path, &FileState>) -> Result<(), ChangesError> {
        let entries = files.iter().filter_map(|(path, state)| match state {
            FileState::Recorded(entry) => Some((*path, Some(entry))),
            FileState::Absent => Some((*path, None)),
            FileState::NotRecorded { .. } | FileState::Repository { .. } => None,
        });
        self.objects.update_index(&self.index, entries)
    }

    fn commit(&self, tree: &str, parent: Option<&str>, message: &str) -> Result<String, ChangesError> {
        self.objects.commit(self.request.repository, tree, parent, message)
    }

    fn set_branch(&self, commit: &str) -> Result<(), ChangesError> {
        let repository = self.request.repository;
        let directory = repository.common_dir().join("refs/heads").join(self.request.name);
        // A link that an agent has planted would lead the branch out of the repository.
        for above in directory.ancestors().skip(1).take_while(|path| *path != repository.common_dir()) {
            if fs::symlink_metadata(above).is_ok_and(|found| found.is_symlink()) {
                return Err(ChangesError::BrokenRepository { path: above.to_owned() });
            }
        }
        let git = Git { git_dir: repository.common_dir().to_owned(), ..self.git.clone() };
        let name = format!("refs/heads/{}", self.request.name);
        let reason = format!("switchboard: job {}", self.request.job);
        let mut args = vec!["--create-reflog", "-m", &reason, &name, commit];
        let old =
            if self.request.is_new { Some(self.replaceable_commit(&git, &name, &reason)?) } else { None };
        args.extend(old.as_deref());
        git.command("update-ref").args(args).run().map(drop)
    }

    /// Returns the commit that a new branch replaces: none, or that of a process that was killed before it could store the name.
    fn replaceable_commit(&self, git: &Git, name: &str, reason: &str) -> Result<String, ChangesError> {
        let existing = git.command("rev-parse").args(["--verify", "-q", name]);
        let (status, commit) = existing.run_accepting(|code| code < 128)?;
        if status != 0 {
            return Ok("0".repeat(self.git.id_length));
        }
        let last = git.command("reflog").args(["show", "-n1", "--format=%gs", name, "--"]).run()?;
        if last.trim_ascii() != reason.as_bytes() {
            return Err(ChangesError::BranchExists { name: self.request.name.to_owned() });
        }
        Ok(String::from_utf8_lossy(&commit).trim().to_owned())
    }
}

/// Returns whether a worktree of the user has a branch checked out. Git would leave that without a commit.
pub(crate) fn is_checked_out(repository: &GitRepository, name: &str) -> bool {
    let common = repository.common_dir();
    let linked = fs::read_dir(common.join("worktrees")).into_iter().flatten().flatten();
    let heads = linked.map(|worktree| worktree.path()).chain([common.to_owned()]);
    let branch = format!("ref: refs/heads/{name}");
    heads
        .filter_map(|directory| read_small(&directory.join("HEAD"), HEAD_LIMIT))
        .any(|head| head.trim_ascii() == branch.as_bytes())
}

/// Deletes a branch if it still is at a commit.
pub(crate) fn delete_branch(git: &Git, name: &str, commit: &str) -> Result<(), ChangesError> {
    git.command("update-ref").args(["-d", &format!("refs/heads/{name}"), commit]).run().map(drop)
}
