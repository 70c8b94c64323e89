//! Publishes the result of a checkout as a branch in the repository of the user.
//!
//! New objects are verified by git and written to the objects of the user; everything else is computed in the private git directory. Only
//! the creation of the branch uses the git directory of the user, with hooks off. No other ref, no index and no configuration changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::entry::Entry;
use crate::error::ChangesError;
use crate::files::copy_index;
use crate::git::{Git, GitSession};
use crate::head::read_commit;
use crate::layout::RecordLayout;
use crate::private_git;
use crate::repository::GitRepository;
use crate::state::{BeforeSnapshot, FileState, RecordedChanges};

/// The author of commits in a repository without an identity of its user.
const NAME: &str = "Switchboard";
const EMAIL: &str = "switchboard@localhost";

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
    /// Fails if the branch exists.
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
    let git = private_git::open(&layout.git_dir(), &checkout, before.id_length, session);
    let objects = request.repository.common_dir().join("objects");
    let scratch = layout.scratch("publish");
    regular_file::create_private_directory(&scratch).map_err(ChangesError::file("create", &scratch))?;
    let publisher = Publisher { git: &git, objects: &objects, index: scratch.join("index"), request };
    let commit = publisher.publish(layout, before, changes, &checkout);
    layout.remove_scratch();
    commit
}

struct Publisher<'a> {
    git: &'a Git,
    /// The object directory of the user.
    objects: &'a Path,
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
        let head = read_commit(checkout, self.git);
        let has_commits = head.is_some() && head != before.base;
        if changes.change_set.files.is_empty() && !has_commits {
            return Ok(None);
        }
        let dirty: BTreeMap<&Path, &FileState> =
            before.files.iter().map(|(path, state)| (path.as_path(), state)).collect();
        let after: BTreeMap<&Path, &FileState> =
            changes.sides.iter().map(|(path, sides)| (path.as_path(), &sides.after)).collect();
        self.copy_blobs(dirty.values().chain(after.values()).copied())?;
        copy_index(&layout.user_index(), &self.index)?;
        self.update_index(&dirty)?;
        let tree_before = self.write_tree()?;
        self.update_index(&after)?;
        let tree = self.write_tree()?;
        let mut tip = before.base.clone();
        if let Some(head) = head.filter(|_| has_commits) {
            self.copy_commits(&head, before.base.as_deref())?;
            tip = Some(head);
        } else if self.read_tree(tip.as_deref())?.as_ref() != Some(&tree_before) {
            let message = "Uncommitted changes of the user before the job\n";
            tip = Some(self.commit(&tree_before, tip.as_deref(), message)?);
        }
        if self.read_tree(tip.as_deref())?.as_ref() != Some(&tree) {
            tip = Some(self.commit(&tree, tip.as_deref(), self.request.message)?);
        }
        if let Some(tip) = &tip {
            self.set_branch(tip)?;
        }
        Ok(tip)
    }

    /// Copies the recorded contents. The objects of the record are named by their contents.
    fn copy_blobs<'s>(&self, states: impl Iterator<Item = &'s FileState>) -> Result<(), ChangesError> {
        let entries = states.filter_map(FileState::entry).filter(|entry| !entry.is_submodule());
        let ids: BTreeSet<&str> = entries.map(|entry| entry.oid.as_str()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let input = ids.iter().flat_map(|id| [id.as_bytes(), b"\n"]).flatten().copied().collect();
        let command = self.git.command("pack-objects").args(["-q", "--stdout", "--window=0", "--threads=1"]);
        self.unpack(command.input(input).run()?)
    }

    /// Copies the commits of the agent, after a check of all their objects.
    fn copy_commits(&self, head: &str, base: Option<&str>) -> Result<(), ChangesError> {
        let range: Vec<String> =
            [head.to_owned()].into_iter().chain(base.map(|base| format!("^{base}"))).collect();
        let size = self.git.command("rev-list").args(["--objects", "--disk-usage"]).args(&range);
        let size =
            String::from_utf8_lossy(&size.with_user_objects().run()?).trim().parse().unwrap_or(u64::MAX);
        if size > COMMITS_LIMIT {
            return Err(ChangesError::CommitsTooLarge { bytes: size, limit: COMMITS_LIMIT });
        }
        let command = self.git.command("pack-objects").args(["-q", "--stdout", "--revs", "--threads=1"]);
        let pack = command.with_user_objects().input((range.join("\n") + "\n").into_bytes()).run()?;
        self.unpack(pack)
    }

    fn unpack(&self, pack: Vec<u8>) -> Result<(), ChangesError> {
        let command = self.git.command("unpack-objects").args(["-q", "--strict"]);
        command.writing_to(self.objects).input(pack).run().map(drop)
    }

    /// Sets the recorded files in the index. Others stay as they are in the index of the user.
    fn update_index(&self, files: &BTreeMap<&Path, &FileState>) -> Result<(), ChangesError> {
        let mut input = Vec::new();
        let none = "0".repeat(self.git.id_length);
        for (path, state) in files {
            let line = match state {
                FileState::Recorded(Entry { mode, oid }) => format!("{mode:o} {oid}\t"),
                FileState::Absent => format!("0 {none}\t"),
                FileState::NotRecorded { .. } | FileState::Repository { .. } => continue,
            };
            input.extend(line.into_bytes());
            input.extend(path.as_os_str().as_bytes());
            input.push(0);
        }
        if input.is_empty() {
            return Ok(());
        }
        let command = self.git.command("update-index").args(["-z", "--index-info"]);
        command.index(&self.index).writing_to(self.objects).input(input).run().map(drop)
    }

    fn write_tree(&self) -> Result<String, ChangesError> {
        let command = self.git.command("write-tree").index(&self.index).writing_to(self.objects);
        parse_id(&command.run()?)
    }

    /// Returns the tree of a commit. `None` for no commit.
    fn read_tree(&self, commit: Option<&str>) -> Result<Option<String>, ChangesError> {
        let Some(commit) = commit else { return Ok(None) };
        let command = self.git.command("rev-parse").args(["--verify", "-q", &format!("{commit}^{{tree}}")]);
        parse_id(&command.writing_to(self.objects).run()?).map(Some)
    }

    fn commit(&self, tree: &str, parent: Option<&str>, message: &str) -> Result<String, ChangesError> {
        let settings = private_git::read_settings(self.request.repository);
        let value = |key: &str, default: &str| {
            let value = settings.get(key).filter(|value| !value.trim().is_empty()).unwrap_or(default);
            value.to_owned()
        };
        let (name, email) = (value("user.name", NAME), value("user.email", EMAIL));
        let mut command = self.git.command("commit-tree").args([tree]);
        if let Some(parent) = parent {
            command = command.args(["-p", parent]);
        }
        let command = command.author(&name, &email).writing_to(self.objects);
        parse_id(&command.input(message.as_bytes().to_owned()).run()?)
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
        let mut args = vec!["--create-reflog", &name, commit];
        let none = "0".repeat(self.git.id_length);
        if self.request.is_new {
            let (status, _) =
                git.command("rev-parse").args(["--verify", "-q", &name]).run_accepting(|code| code < 128)?;
            if status == 0 {
                return Err(ChangesError::BranchExists { name: self.request.name.to_owned() });
            }
            args.push(&none);
        }
        git.command("update-ref").args(args).run().map(drop)
    }
}

/// Deletes a branch if it still is at a commit.
pub(crate) fn delete_branch(git: &Git, name: &str, commit: &str) -> Result<(), ChangesError> {
    git.command("update-ref").args(["-d", &format!("refs/heads/{name}"), commit]).run().map(drop)
}

fn parse_id(output: &[u8]) -> Result<String, ChangesError> {
    let id = String::from_utf8_lossy(output).trim().to_owned();
    if crate::entry::is_object_id(&id) {
        Ok(id)
    } else {
        Err(ChangesError::UnexpectedOutput { command: "write-tree" })
    }
}
