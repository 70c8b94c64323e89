//! The repository of a workspace that is a linked worktree of git: it lies elsewhere, and without it nothing can be committed.
//!
//! A workspace only says where its repository is, and anybody may have written that. It is believed when the repository says the same
//! from its side, where nobody writes who works in the workspace.

use std::fs;
use std::path::{Path, PathBuf};

use model::{Protected, ProtectedKind};

/// No file of git that names a folder is longer.
const MOST_BYTES: u64 = 8192;

/// A repository, and the part of it that is the worktree's own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repository {
    /// What all worktrees share.
    pub common: PathBuf,
    /// What is this one's.
    pub own: PathBuf,
}

impl Repository {
    /// The repository of a workspace, where it is a linked worktree of one that knows it.
    pub fn of(workspace: &Path) -> Option<Self> {
        let link = workspace.join(".git");
        let own = named(&link, Some("gitdir: "), workspace)?;
        let common = named(&own.join("commondir"), None, &own)?;
        let known = named(&own.join("gitdir"), None, &own)?;
        let fits = own.parent() == Some(&common.join("worktrees")) && known == link.canonicalize().ok()?;
        (fits && !common.starts_with(workspace)).then_some(Self { common, own })
    }

    /// What in it makes git run commands, or leads it to another; and what belongs to other worktrees.
    pub fn protected(&self) -> Vec<Protected> {
        use ProtectedKind::{File, Folder, IfPresent};
        let shared = [
            ("hooks", Folder),
            ("config", File),
            ("config.worktree", File),
            ("modules", IfPresent),
            ("worktrees", IfPresent),
        ];
        let own = [("config.worktree", File), ("commondir", File), ("gitdir", File)];
        let below =
            |folder: &Path, (name, kind): (&str, ProtectedKind)| Protected { path: folder.join(name), kind };
        shared
            .map(|thing| below(&self.common, thing))
            .into_iter()
            .chain(own.map(|thing| below(&self.own, thing)))
            .collect()
    }
}

/// Whether git finds a repository at `.git`, and so looks no further.
pub(crate) fn has_repository(workspace: &Path) -> bool {
    let git = workspace.join(".git");
    git.is_file() || is_repository(&git)
}

/// What is protected in a folder where git finds none at `.git`, and looks whether the folder itself is one.
pub(crate) fn protected_of_a_folder(workspace: &Path) -> Vec<Protected> {
    use ProtectedKind::{File, Folder};
    let names: &[(&str, ProtectedKind)] = if is_repository(workspace) {
        &[("hooks", Folder), ("config", File), ("config.worktree", File), ("commondir", File)]
    } else {
        &[("HEAD", File)]
    };
    names.iter().map(|(name, kind)| Protected { path: workspace.join(name), kind: *kind }).collect()
}

/// As git tells a repository from another folder.
fn is_repository(folder: &Path) -> bool {
    folder.join("HEAD").symlink_metadata().is_ok()
        && (folder.join("commondir").is_file()
            || ["objects", "refs"].iter().all(|name| folder.join(name).is_dir()))
}

/// The path that a file of git names, as it really is.
fn named(file: &Path, before: Option<&str>, from: &Path) -> Option<PathBuf> {
    let found = file.symlink_metadata().ok().filter(|found| found.is_file() && found.len() <= MOST_BYTES)?;
    let text = fs::read_to_string(file).ok().filter(|text| text.len() as u64 == found.len())?;
    let path = before.map_or(Some(text.as_str()), |before| text.strip_prefix(before))?.trim_end_matches('\n');
    from.join(path).canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("main/.git/worktrees/fix")).unwrap();
        fs::create_dir(root.join("fix")).unwrap();
        let own = root.join("main/.git/worktrees/fix");
        fs::write(root.join("fix/.git"), format!("gitdir: {}\n", own.display())).unwrap();
        fs::write(own.join("commondir"), "../..\n").unwrap();
        fs::write(own.join("gitdir"), format!("{}\n", root.join("fix/.git").display())).unwrap();
        (folder, root)
    }

    #[test]
    fn a_linked_worktree_has_the_repository_that_knows_it() {
        let (_folder, root) = stage();
        let common = root.join("main/.git");
        let own = common.join("worktrees/fix");
        assert_eq!(Repository::of(&root.join("fix")), Some(Repository { common, own }));
    }

    #[test]
    fn a_workspace_that_only_says_so_has_none() {
        let (_folder, root) = stage();
        fs::create_dir(root.join("evil")).unwrap();
        fs::copy(root.join("fix/.git"), root.join("evil/.git")).unwrap();
        assert_eq!(Repository::of(&root.join("evil")), None);
        // The repository itself, or any other folder, in the place of what is the worktree's own.
        for other in ["main/.git", "main", "/"] {
            fs::write(root.join("evil/.git"), format!("gitdir: {}\n", root.join(other).display())).unwrap();
            assert_eq!(Repository::of(&root.join("evil")), None, "{other}");
        }
        // One that leads on to another.
        fs::write(root.join("main/.git/worktrees/fix/commondir"), "/\n").unwrap();
        assert_eq!(Repository::of(&root.join("fix")), None);
    }
}
