//! Finds the git repository of a workspace that lies outside of it, which commits need: that of a linked worktree, of a submodule, or of a
//! parent directory.
//!
//! A `.git` file only names a repository, and an agent may have written it. It is trusted if the repository names the worktree in return,
//! in a file that an agent in the workspace cannot write.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::{OnCreate, Protected};

use crate::beneath::read_regular_file;

/// The maximum size of a git file that names a directory.
const MAX_BYTES: u64 = 8192;

/// A repository outside of the workspace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repository {
    /// The directory that contains `.git`.
    pub worktree: PathBuf,
    /// The part that all worktrees share.
    pub common: PathBuf,
    /// The part of this worktree alone; the same as `common` for a single worktree.
    pub own: PathBuf,
}

impl Repository {
    /// Finds the repository that git uses in a workspace and that lies outside of it. The error is the reason why it must stay read-only.
    pub fn around(workspace: &Path, home: Option<&Path>) -> Result<Option<Self>, String> {
        match Self::find(workspace)? {
            Some(repository) if !repository.common.starts_with(workspace) => {
                repository.check_writable(home).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Finds the repository that git uses in a directory. The error is the reason why the named one is not trusted.
    pub fn find(workspace: &Path) -> Result<Option<Self>, String> {
        let device = |path: &Path| path.symlink_metadata().ok().map(|found| found.dev());
        // Git does not search across file system boundaries.
        let above = workspace.ancestors().take_while(|directory| device(directory) == device(workspace));
        for worktree in above {
            let git = worktree.join(".git");
            let Ok(found) = git.symlink_metadata() else { continue };
            let repository = if found.is_dir() {
                if !is_repository(&git) {
                    continue;
                }
                Some(Self { worktree: worktree.to_owned(), common: git.clone(), own: git.clone() })
            } else {
                Self::from_linked_worktree(worktree).or_else(|| Self::from_submodule(worktree))
            };
            let untrusted =
                || format!("the repository that `{}` names does not name it in return", git.display());
            return repository.ok_or_else(untrusted).map(Some);
        }
        Ok(None)
    }

    /// Returns the repository of a linked worktree.
    pub fn from_linked_worktree(worktree: &Path) -> Option<Self> {
        let link = worktree.join(".git");
        let own = resolve_named_path(&link, Some("gitdir: "), worktree)?;
        let common = resolve_named_path(&own.join("commondir"), None, &own)?;
        let registered = resolve_named_path(&own.join("gitdir"), None, &own)?;
        let matches =
            own.parent() == Some(&common.join("worktrees")) && registered == link.canonicalize().ok()?;
        matches.then_some(Self { worktree: worktree.to_owned(), common, own })
    }

    fn from_submodule(worktree: &Path) -> Option<Self> {
        let own = resolve_named_path(&worktree.join(".git"), Some("gitdir: "), worktree)?;
        let config = read_text(&own.join("config"))?;
        let mut lines = config.lines().map(str::trim).skip_while(|line| *line != "[core]").skip(1);
        let registered = lines
            .by_ref()
            .take_while(|line| !line.starts_with('['))
            .find_map(|line| line.strip_prefix("worktree = "))?;
        let matches = is_repository(&own) && own.join(registered).canonicalize().ok()? == worktree;
        matches.then_some(Self { worktree: worktree.to_owned(), common: own.clone(), own })
    }

    fn check_writable(self, home: Option<&Path>) -> Result<Self, String> {
        let common = self.common.display();
        // A repository of the whole home directory is more than one project.
        if home.is_some_and(|home| home.starts_with(&self.worktree)) {
            return Err(format!("the repository `{common}` contains the home directory"));
        }
        let user = rustix::process::geteuid().as_raw();
        let is_owned = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.uid() == user);
        if !is_owned(&self.common) || !is_owned(&self.own) {
            return Err(format!("the repository `{common}` belongs to another user"));
        }
        Ok(self)
    }

    /// Returns the paths that make git run commands, lead it to another repository, or belong to other worktrees.
    pub fn protected_paths(&self) -> Vec<Protected> {
        use OnCreate::{Keep, QuarantineAtOnce};
        let shared = [
            ("hooks", QuarantineAtOnce),
            ("config", QuarantineAtOnce),
            ("config.worktree", QuarantineAtOnce),
            ("commondir", QuarantineAtOnce),
            ("worktrees", Keep),
        ];
        let below = |directory: &Path, (name, on_create): (&str, OnCreate)| Protected {
            path: directory.join(name),
            on_create,
        };
        shared
            .map(|entry| below(&self.common, entry))
            .into_iter()
            .chain(self.protected_in_worktree())
            .collect()
    }

    /// Returns the paths that lead the worktree to another repository or configuration.
    pub fn protected_in_worktree(&self) -> impl Iterator<Item = Protected> {
        let on_create = OnCreate::QuarantineAtOnce;
        let names = ["config.worktree", "commondir", "gitdir"];
        names.into_iter().map(move |name| Protected { path: self.own.join(name), on_create })
    }
}

/// Returns whether git finds a repository at `.git` of a workspace and stops its search there.
pub(crate) fn has_repository(workspace: &Path) -> bool {
    let git = workspace.join(".git");
    git.is_file() || is_repository(&git)
}

/// Returns the protected paths of a directory without `.git`, which git may treat as a bare repository.
pub(crate) fn protected_in_directory(workspace: &Path) -> Vec<Protected> {
    if is_repository(workspace) {
        return protected_in_bare(workspace);
    }
    vec![Protected { path: workspace.join("HEAD"), on_create: OnCreate::QuarantineAtEnd }]
}

/// Returns the protected paths of a bare repository.
pub(crate) fn protected_in_bare(git: &Path) -> Vec<Protected> {
    let protected = |name| Protected { path: git.join(name), on_create: OnCreate::QuarantineAtOnce };
    ["hooks", "config", "config.worktree", "commondir"].map(protected).to_vec()
}

/// Returns whether git treats a directory as a repository.
fn is_repository(directory: &Path) -> bool {
    directory.join("HEAD").symlink_metadata().is_ok()
        && (directory.join("commondir").is_file()
            || ["objects", "refs"].iter().all(|name| directory.join(name).is_dir()))
}

/// Returns the real path that a git file names, relative to `base`.
pub(crate) fn resolve_named_path(file: &Path, prefix: Option<&str>, base: &Path) -> Option<PathBuf> {
    let text = read_text(file)?;
    let path = prefix.map_or(Some(text.as_str()), |prefix| text.strip_prefix(prefix))?.trim_end_matches('\n');
    base.join(path).canonicalize().ok()
}

fn read_text(file: &Path) -> Option<String> {
    String::from_utf8(read_regular_file(file, MAX_BYTES)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn create_worktree() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("main/.git/worktrees/fix")).unwrap();
        fs::create_dir(root.join("fix")).unwrap();
        let own = root.join("main/.git/worktrees/fix");
        fs::write(root.join("fix/.git"), format!("gitdir: {}\n", own.display())).unwrap();
        fs::write(own.join("commondir"), "../..\n").unwrap();
        fs::write(own.join("gitdir"), format!("{}\n", root.join("fix/.git").display())).unwrap();
        (directory, root)
    }

    fn around(workspace: &Path) -> Option<PathBuf> {
        Repository::around(workspace, None).unwrap().map(|repository| repository.own)
    }

    #[test]
    fn linked_worktree_finds_repository_from_subdirectory() {
        let (_directory, root) = create_worktree();
        fs::create_dir_all(root.join("fix/src/deep")).unwrap();
        let common = root.join("main/.git");
        let own = common.join("worktrees/fix");
        let worktree = root.join("fix");
        let expected = Ok(Some(Repository { worktree, common, own }));
        for workspace in ["fix", "fix/src/deep"] {
            assert_eq!(Repository::around(&root.join(workspace), None), expected, "{workspace}");
        }
    }

    #[test]
    fn subdirectory_finds_repository_above() {
        let (_directory, root) = create_worktree();
        create_repository(&root.join("shop/.git"));
        fs::create_dir_all(root.join("shop/web/src")).unwrap();
        assert_eq!(around(&root.join("shop/web/src")), Some(root.join("shop/.git")));
        assert_eq!(around(&root.join("shop")), None, "it lies in the workspace");
        // An empty directory of that name is not a repository, and git continues its search.
        fs::create_dir(root.join("shop/web/.git")).unwrap();
        assert_eq!(around(&root.join("shop/web/src")), Some(root.join("shop/.git")));
        for home in ["shop", "shop/web", "shop/home/ana"] {
            let error = Repository::around(&root.join("shop/web"), Some(&root.join(home))).unwrap_err();
            assert!(error.contains("contains the home directory"), "{error}");
        }
    }

    #[test]
    fn submodule_must_be_named_by_its_repository() {
        let (_directory, root) = create_worktree();
        let own = root.join("shop/.git/modules/lib");
        create_repository(&own);
        fs::create_dir_all(root.join("shop/lib/src")).unwrap();
        fs::write(root.join("shop/lib/.git"), "gitdir: ../.git/modules/lib\n").unwrap();
        fs::write(own.join("config"), "[core]\n\tbare = false\n\tworktree = ../../../lib\n").unwrap();
        assert_eq!(around(&root.join("shop/lib/src")), Some(own.clone()));
        fs::write(own.join("config"), "[core]\n\tbare = false\n[x]\n\tworktree = ../../../lib\n").unwrap();
        assert!(Repository::around(&root.join("shop/lib"), None).is_err());
    }

    fn create_repository(git: &Path) {
        for name in ["objects", "refs"] {
            fs::create_dir_all(git.join(name)).unwrap();
        }
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    #[test]
    fn repository_must_name_its_linked_worktree() {
        let (_directory, root) = create_worktree();
        fs::create_dir(root.join("evil")).unwrap();
        fs::copy(root.join("fix/.git"), root.join("evil/.git")).unwrap();
        assert!(Repository::around(&root.join("evil"), None).is_err());
        // The repository itself, or any other directory, instead of the worktree's own.
        for other in ["main/.git", "main", "/"] {
            fs::write(root.join("evil/.git"), format!("gitdir: {}\n", root.join(other).display())).unwrap();
            assert!(Repository::around(&root.join("evil"), None).is_err(), "{other}");
        }
        // A `commondir` that leads to another directory.
        fs::write(root.join("main/.git/worktrees/fix/commondir"), "/\n").unwrap();
        assert!(Repository::around(&root.join("fix"), None).is_err());
    }
}
