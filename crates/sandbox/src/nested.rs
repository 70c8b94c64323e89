//! Protects the repositories in a workspace as its own is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::{Confinement, RootAccess, protected_in};

use crate::beneath::read_ordinary_file;
use crate::git_commands::ConfiguredRepository;
use crate::layout::{Layout, Mount};
use crate::repositories::{Extent, FoundRepository, RepositoryKind, RepositoryWalk};
use crate::repository_watch::RepositoryWatch;
use crate::worktree::{Repository, has_repository, named, protected_of_bare, protected_of_directory};

/// How many repositories are protected by mounts; each costs about six. What is changed in another one is quarantined.
const MAX_PROTECTED: usize = 200;

/// The configuration of a submodule is not longer.
const LONGEST_CONFIG: u64 = 1 << 20;

/// The repositories in the workspaces of a run.
#[derive(Debug)]
pub struct NestedRepositories {
    workspaces: Vec<PathBuf>,
    found: Vec<FoundRepository>,
    /// The workspaces that could not be searched as a whole.
    pub(crate) unexamined: Vec<PathBuf>,
}

impl NestedRepositories {
    #[cfg(test)]
    pub(crate) const NONE: Self = Self { workspaces: Vec::new(), found: Vec::new(), unexamined: Vec::new() };

    /// Looks for them, which takes its time in a large workspace. No other run has to wait for it: a run whose agent has created one of
    /// them has published its list before.
    pub fn find(confinement: &Confinement) -> Self {
        let written = written_by(confinement);
        // What lies in another workspace is searched with that one.
        let is_outermost =
            |root: &&PathBuf| !written.iter().any(|other| other != *root && root.starts_with(other));
        let workspaces: Vec<PathBuf> = written.iter().filter(is_outermost).cloned().collect();
        let (mut found, mut unexamined) = (Vec::new(), Vec::new());
        for root in &workspaces {
            let mut walk = RepositoryWalk::below(root, Extent::Sources);
            found.append(&mut walk.repositories);
            unexamined.extend(walk.is_incomplete.then(|| root.clone()));
        }
        Self { workspaces, found, unexamined }
    }
}

fn written_by(confinement: &Confinement) -> Vec<PathBuf> {
    let written = confinement.roots.iter().filter(|root| root.access == RootAccess::Write);
    written.map(|root| root.path.clone()).collect()
}

impl Layout {
    /// Protects the repositories in the workspaces, and those in the `modules` of a repository around one. All of them can be committed
    /// to. Returns those whose configuration counts in the workspaces.
    pub fn protect_repositories(
        &mut self,
        confinement: &Confinement,
        repositories: &NestedRepositories,
        home: Option<&Path>,
        copies: Option<&Path>,
    ) -> io::Result<Vec<ConfiguredRepository>> {
        let written = written_by(confinement);
        let NestedRepositories { workspaces, found, .. } = repositories;
        let (mut watch, mut found) = (RepositoryWatch::new(workspaces.clone()), found.clone());
        let around = self.write.iter().filter(|path| !written.iter().any(|root| path.starts_with(root)));
        let around = around.filter(|path| path.join("HEAD").exists());
        for git in around.cloned().collect::<Vec<_>>() {
            watch.add_known(git.clone());
            let modules = git.join("modules");
            found.extend(RepositoryWalk::of_modules(&modules, Extent::Sources).repositories);
            watch.add_modules(modules);
        }
        // No mount for one that is hidden or read-only as a whole, or it would not be any more.
        found.retain(|found| self.can_be_written(&found.path) && !self.untrusted.hold(&found.path));
        let around = written.iter().filter_map(|root| Repository::around(root, home).ok()?);
        let around =
            around.map(|around| ConfiguredRepository { git: around.common, worktree: around.worktree });
        let mut configured: Vec<ConfiguredRepository> = around.collect();
        for FoundRepository { path, kind } in found.into_iter().take(MAX_PROTECTED) {
            match kind {
                RepositoryKind::Entry => configured.extend(self.protect_nested(&path, &mut watch)),
                RepositoryKind::Bare => {
                    self.protect_bare(&path);
                    configured.push(ConfiguredRepository { git: path.clone(), worktree: path.clone() });
                }
                RepositoryKind::Module => {
                    self.protect_bare(&path);
                    self.forget_worktree(&path.join("config"), copies)?;
                }
            }
            watch.add_known(path);
        }
        self.quarantine.repositories = watch;
        Ok(configured)
    }

    /// Shows the configuration of a submodule without its `core.worktree`. `git submodule update` writes that key each time when it is
    /// there, which fails, and git finds the worktree without.
    fn forget_worktree(&mut self, config: &Path, copies: Option<&Path>) -> io::Result<()> {
        let is_mounted = self.mounts.contains(&(config.to_owned(), Mount::Read));
        let Some(directory) = copies.filter(|_| is_mounted).map(|copies| copies.join("modules")) else {
            return Ok(());
        };
        let text = read_ordinary_file(config, LONGEST_CONFIG).and_then(|text| String::from_utf8(text).ok());
        let Some(text) = text.filter(|text| !text.contains("\\\n")) else { return Ok(()) };
        let is_kept = |line: &&str| {
            let key = line.split('=').next().unwrap_or_default();
            !key.trim().eq_ignore_ascii_case("worktree")
        };
        let without: String = text.split_inclusive('\n').filter(is_kept).collect();
        fs::create_dir_all(&directory)?;
        let copy = directory.join(self.mounts.len().to_string());
        fs::write(&copy, without)?;
        self.mounts.push((config.to_owned(), Mount::ReadFrom(copy)));
        Ok(())
    }

    /// Protects a repository by its `.git`, and returns those whose configuration counts in the directory.
    fn protect_nested(&mut self, git: &Path, watch: &mut RepositoryWatch) -> Vec<ConfiguredRepository> {
        let Some(worktree) = git.parent() else { return Vec::new() };
        for protected in protected_in(worktree) {
            self.protect(&protected);
        }
        let configured =
            |git: &Path| ConfiguredRepository { git: git.to_owned(), worktree: worktree.to_owned() };
        if !git.is_file() {
            return vec![configured(git)];
        }
        if let Some(linked) = Repository::linked(worktree) {
            self.protect_linked(&linked, watch);
            return vec![configured(&linked.common), configured(&linked.own)];
        }
        let Some(git) = named(git, Some("gitdir: "), worktree) else { return Vec::new() };
        if self.can_be_written(&git) {
            self.protect_bare(&git);
            watch.add_known(git.clone());
        }
        vec![configured(&git)]
    }

    /// Lets a linked worktree be committed to: its directory lies in `worktrees`, which is read-only.
    fn protect_linked(&mut self, linked: &Repository, watch: &mut RepositoryWatch) {
        if !self.write.iter().any(|root| linked.own.starts_with(root)) {
            return;
        }
        self.mounts.push((linked.own.clone(), Mount::Write));
        for protected in linked.protected_of_worktree() {
            self.protect(&protected);
        }
        watch.add_known(linked.own.clone());
    }

    fn protect_bare(&mut self, git: &Path) {
        for protected in protected_of_bare(git) {
            self.protect(&protected);
        }
    }

    pub fn can_be_written(&self, path: &Path) -> bool {
        let above = self.mounts.iter().filter(|(at, _)| path.starts_with(at));
        let innermost = above.max_by_key(|(at, mount)| (at.components().count(), mount));
        innermost.is_some_and(|(_, mount)| *mount == Mount::Write)
    }

    /// Keeps a workspace without a repository from becoming one itself: git takes a directory with the right names in it for one, and
    /// obeys the configuration beside them. One that is a repository already keeps what makes git run commands.
    pub fn directories_as_repositories(&mut self, confinement: &Confinement) {
        let workspaces = confinement.roots.iter().filter(|root| root.access == RootAccess::Write);
        for root in workspaces.filter(|root| !has_repository(&root.path)) {
            for protected in protected_of_directory(&root.path) {
                self.protect(&protected);
            }
        }
    }
}
