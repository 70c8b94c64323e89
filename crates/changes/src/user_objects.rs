//! Writes objects into the repository of the user, verified by git, and the indexes and trees that refer to them.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::entry::{Entry, is_object_id};
use crate::error::ChangesError;
use crate::git::Git;
use crate::objects::join_lines;
use crate::private_git;
use crate::repository::GitRepository;

/// The author of commits in a repository without an identity of its user.
const NAME: &str = "Switchboard";
const EMAIL: &str = "switchboard@localhost";

/// The objects of the user, as the target of commands in a private git directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserObjects<'a> {
    pub(crate) git: &'a Git,
    /// The object directory of the user.
    pub(crate) directory: &'a Path,
}

impl UserObjects<'_> {
    /// Copies recorded contents. The objects of the record are named by their contents.
    pub(crate) fn copy_blobs<'e>(
        &self,
        entries: impl IntoIterator<Item = &'e Entry>,
    ) -> Result<(), ChangesError> {
        let entries = entries.into_iter().filter(|entry| !entry.is_submodule());
        let ids: BTreeSet<&str> = entries.map(|entry| entry.oid.as_str()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let command = self.git.command("pack-objects").args(["-q", "--stdout", "--window=0", "--threads=1"]);
        self.unpack(command.input(join_lines(&ids)).run()?)
    }

    /// Writes the objects of a pack.
    pub(crate) fn unpack(&self, pack: Vec<u8>) -> Result<(), ChangesError> {
        let command = self.git.command("unpack-objects").args(["-q", "--strict"]);
        command.writing_to(self.directory).input(pack).run().map(drop)
    }

    /// Sets entries in an index, or removes them. Other entries stay as they are.
    pub(crate) fn update_index<'e>(
        &self,
        index: &Path,
        entries: impl IntoIterator<Item = (&'e Path, Option<&'e Entry>)>,
    ) -> Result<(), ChangesError> {
        let mut input = Vec::new();
        let none = "0".repeat(self.git.id_length);
        for (path, entry) in entries {
            let line = match entry {
                Some(Entry { mode, oid }) => format!("{mode:o} {oid}\t"),
                None => format!("0 {none}\t"),
            };
            input.extend(line.into_bytes());
            input.extend(path.as_os_str().as_bytes());
            input.push(0);
        }
        if input.is_empty() {
            return Ok(());
        }
        let command = self.git.command("update-index").args(["-z", "--index-info"]);
        command.index(index).writing_to(self.directory).input(input).run().map(drop)
    }

    /// Writes the tree of an index.
    pub(crate) fn write_tree(&self, index: &Path) -> Result<String, ChangesError> {
        parse_id(&self.git.command("write-tree").index(index).writing_to(self.directory).run()?)
    }

    /// Returns the tree of a commit. `None` for no commit.
    pub(crate) fn read_tree(&self, commit: Option<&str>) -> Result<Option<String>, ChangesError> {
        let Some(commit) = commit else { return Ok(None) };
        let command = self.git.command("rev-parse").args(["--verify", "-q", &format!("{commit}^{{tree}}")]);
        parse_id(&command.writing_to(self.directory).run()?).map(Some)
    }

    /// Writes a commit by the user of a repository. It is not signed.
    pub(crate) fn commit(
        &self,
        repository: &GitRepository,
        tree: &str,
        parent: Option<&str>,
        message: &str,
    ) -> Result<String, ChangesError> {
        let (name, email) = read_identity(repository);
        let mut command = self.git.command("commit-tree").args([tree]);
        if let Some(parent) = parent {
            command = command.args(["-p", parent]);
        }
        let command = command.author(&name, &email).writing_to(self.directory);
        parse_id(&command.input(message.as_bytes().to_owned()).run()?)
    }
}

/// Returns the name and the email address of the user of a repository.
pub(crate) fn read_identity(repository: &GitRepository) -> (String, String) {
    let settings = private_git::read_settings(repository);
    let value = |key: &str, default: &str| {
        let value = settings.get(key).filter(|value| !value.trim().is_empty()).unwrap_or(default);
        value.to_owned()
    };
    (value("user.name", NAME), value("user.email", EMAIL))
}

fn parse_id(output: &[u8]) -> Result<String, ChangesError> {
    let id = String::from_utf8_lossy(output).trim().to_owned();
    if is_object_id(&id) { Ok(id) } else { Err(ChangesError::UnexpectedOutput { command: "write-tree" }) }
}
