//! The git repository of a workspace that lies outside of the workspace, without which nothing can be committed: that of a linked
//! worktree, of a submodule, or of a directory above.
//!
//! A `.git` file only names a repository, and anybody may have written it. It is believed when the repository names the worktree from
//! its side, where nobody writes who works in the workspace.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::{OnCreate, Protected};

use crate::beneath::read_ordinary_file;

/// No file of git that names a directory is longer.
const MOST_BYTES: u64 = 8192;

/// A repository outside of the workspace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repository {
    /// The directory that holds `.git`.
    pub worktree: PathBuf,
    /// The part that all worktrees share.
    pub common: PathBuf,
    /// The part of this worktree alone; `common` itself where there is only one.
    pub own: PathBuf,
}

impl Repository {
    /// Finds the repository that git uses in a workspace; none when it lies in the workspace or there is none. The error says why it
    /// must stay read-only.
    pub fn around(workspace: &Path, home: Option<&Path>) -> Result<Option<Self>, String> {
        match Self::find(workspace)? {
            Some(repository) if !repository.common.starts_with(workspace) => {
                repository.may_be_written(home).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Finds the repository that git uses in a directory. The error says why the one that is named there is not believed.
    pub fn find(workspace: &Path) -> Result<Option<Self>, String> {
        let device = |path: &Path| path.symlink_metadata().ok().map(|found| found.dev());
        // Git itself does not look beyond a file system.
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
                Self::linked(worktree).or_else(|| Self::submodule(worktree))
            };
            let named = || format!("`{}` names a repository that does not name it back", git.display());
            return repository.ok_or_else(named).map(Some);
        }
        Ok(None)
    }

    /// The repository of a linked worktree.
    pub fn linked(worktree: &Path) -> Option<Self> {
        let link = worktree.join(".git");
        let own = named(&link, Some("gitdir: "), worktree)?;
        let common = named(&own.join("commondir"), None, &own)?;
        let known = named(&own.join("gitdir"), None, &own)?;
        let fits = own.parent() == Some(&common.join("worktrees")) && known == link.canonicalize().ok()?;
        fits.then_some(Self { worktree: worktree.to_owned(), common, own })
    }

    fn submodule(worktree: &Path) -> Option<Self> {
        let own = named(&worktree.join(".git"), Some("gitdir: "), worktree)?;
        let config = read(&own.join("config"))?;
        let mut lines = config.lines().map(str::trim).skip_while(|line| *line != "[core]").skip(1);
        let known = lines
            .by_ref()
            .take_while(|line| !line.starts_with('['))
            .find_map(|line| line.strip_prefix("worktree = "))?;
        let fits = is_repository(&own) && own.join(known).canonicalize().ok()? == worktree;
        fits.then_some(Self { worktree: worktree.to_owned(), common: own.clone(), own })
    }

    fn may_be_written(self, home: Option<&Path>) -> Result<Self, String> {
        let common = self.common.display();
        // A repository of the whole home is more than the project at hand.
        if home.is_some_and(|home| home.starts_with(&self.worktree)) {
            return Err(format!("the repository `{common}` contains the home directory"));
        }
        let user = rustix::process::geteuid().as_raw();
        let is_ours = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.uid() == user);
        if !is_ours(&self.common) || !is_ours(&self.own) {
            return Err(format!("the repository `{common}` belongs to another user"));
        }
        Ok(self)
    }

    /// What in it makes git run commands, or leads it to another repository; and what belongs to other worktrees.
    pub fn protected(&self) -> Vec<Protected> {
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
            .map(|thing| below(&self.common, thing))
            .into_iter()
            .chain(self.protected_of_worktree())
            .collect()
    }

    /// What leads the worktree to another repository or configuration.
    pub fn protected_of_worktree(&self) -> impl Iterator<Item = Protected> {
        let on_create = OnCreate::QuarantineAtOnce;
        let names = ["config.worktree", "commondir", "gitdir"];
        names.into_iter().map(move |name| Protected { path: self.own.join(name), on_create })
    }
}

/// Whether git finds a repository at `.git`, and so looks no further.
pub(crate) fn has_repository(workspace: &Path) -> bool {
    let git = workspace.join(".git");
    git.is_file() || is_repository(&git)
}

/// Returns the protected paths of a directory without `.git`, which git may take for a bare repository.
pub(crate) fn protected_of_directory(workspace: &Path) -> Vec<Protected> {
    if is_repository(workspace) {
        return protected_of_bare(workspace);
    }
    vec![Protected { path: workspace.join("HEAD"), on_create: OnCreate::QuarantineAtEnd }]
}

/// Returns the protected paths of a repository without a worktree of its own.
pub(crate) fn protected_of_bare(git: &Path) -> Vec<Protected> {
    let protected = |name| Protected { path: git.join(name), on_create: OnCreate::QuarantineAtOnce };
    ["hooks", "config", "config.worktree", "commondir"].map(protected).to_vec()
}

/// As git tells a repository from another folder.
fn is_repository(folder: &Path) -> bool {
    folder.join("HEAD").symlink_metadata().is_ok()
        && (folder.join("commondir").is_file()
            || ["objects", "refs"].iter().all(|name| folder.join(name).is_dir()))
}

/// The path that a file of git names, as it really is.
pub(crate) fn named(file: &Path, before: Option<&str>, from: &Path) -> Option<PathBuf> {
    let text = read(file)?;
    let path = before.map_or(Some(text.as_str()), |before| text.strip_prefix(before))?.trim_end_matches('\n');
    from.join(path).canonicalize().ok()
}

fn read(file: &Path) -> Option<String> {
    String::from_utf8(read_ordinary_file(file, MOST_BYTES)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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

    fn around(workspace: &Path) -> Option<PathBuf> {
        Repository::around(workspace, None).unwrap().map(|repository| repository.own)
    }

    #[test]
    fn linked_worktree_finds_its_repository_from_below() {
        let (_folder, root) = stage();
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
        let (_folder, root) = stage();
        make_repository(&root.join("shop/.git"));
        fs::create_dir_all(root.join("shop/web/src")).unwrap();
        assert_eq!(around(&root.join("shop/web/src")), Some(root.join("shop/.git")));
        assert_eq!(around(&root.join("shop")), None, "it lies in the workspace");
        // A directory of that name is no repository, and git looks further.
        fs::create_dir(root.join("shop/web/.git")).unwrap();
        assert_eq!(around(&root.join("shop/web/src")), Some(root.join("shop/.git")));
        for home in ["shop", "shop/web", "shop/home/ana"] {
            let refused = Repository::around(&root.join("shop/web"), Some(&root.join(home))).unwrap_err();
            assert!(refused.contains("contains the home directory"), "{refused}");
        }
    }

    #[test]
    fn submodule_finds_its_repository_when_it_names_it_back() {
        let (_folder, root) = stage();
        let own = root.join("shop/.git/modules/lib");
        make_repository(&own);
        fs::create_dir_all(root.join("shop/lib/src")).unwrap();
        fs::write(root.join("shop/lib/.git"), "gitdir: ../.git/modules/lib\n").unwrap();
        fs::write(own.join("config"), "[core]\n\tbare = false\n\tworktree = ../../../lib\n").unwrap();
        assert_eq!(around(&root.join("shop/lib/src")), Some(own.clone()));
        fs::write(own.join("config"), "[core]\n\tbare = false\n[x]\n\tworktree = ../../../lib\n").unwrap();
        assert!(Repository::around(&root.join("shop/lib"), None).is_err());
    }

    fn make_repository(git: &Path) {
        for name in ["objects", "refs"] {
            fs::create_dir_all(git.join(name)).unwrap();
        }
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    #[test]
    fn repository_that_does_not_name_its_worktree_is_refused() {
        let (_folder, root) = stage();
        fs::create_dir(root.join("evil")).unwrap();
        fs::copy(root.join("fix/.git"), root.join("evil/.git")).unwrap();
        assert!(Repository::around(&root.join("evil"), None).is_err());
        // The repository itself, or any other directory, in the place of the worktree's own.
        for other in ["main/.git", "main", "/"] {
            fs::write(root.join("evil/.git"), format!("gitdir: {}\n", root.join(other).display())).unwrap();
            assert!(Repository::around(&root.join("evil"), None).is_err(), "{other}");
        }
        // One that leads on to another.
        fs::write(root.join("main/.git/worktrees/fix/commondir"), "/\n").unwrap();
        assert!(Repository::around(&root.join("fix"), None).is_err());
    }
}
