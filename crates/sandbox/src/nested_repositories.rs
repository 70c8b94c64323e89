//! Protects the git repositories inside of workspaces in the same way as the repository of a workspace itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::{Confinement, RootAccess, protected_in};

use crate::beneath::read_regular_file;
use crate::git_commands::ConfiguredRepository;
use crate::layout::Layout;
use crate::mount_plan::Mount;
use crate::repository_walk::{FoundRepository, RepositoryKind, RepositoryWalk, SearchExtent};
use crate::repository_watch::RepositoryWatch;
use crate::worktree::{
    Repository, has_repository, protected_in_bare, protected_in_directory, resolve_named_path,
};

/// The maximum number of repositories that are protected by mounts, about six each. Changes in further ones are quarantined.
const MAX_PROTECTED: usize = 200;

/// The maximum size of a submodule's configuration.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The repositories in the workspaces of a run.
#[derive(Debug)]
pub struct NestedRepositories {
    workspaces: Vec<PathBuf>,
    found: Vec<FoundRepository>,
    /// The workspaces that could not be searched completely.
    pub(crate) unexamined: Vec<PathBuf>,
}

impl NestedRepositories {
    #[cfg(test)]
    pub(crate) const NONE: Self = Self { workspaces: Vec::new(), found: Vec::new(), unexamined: Vec::new() };

    /// Searches the workspaces, which takes time in a large one. Other runs need not wait for it: a run whose agent has created one of
    /// these repositories published its list before.
    pub fn find(confinement: &Confinement) -> Self {
        let writable = writable_workspaces(confinement);
        // A workspace inside of another one is searched with that one.
        let is_outermost =
            |root: &&PathBuf| !writable.iter().any(|other| other != *root && root.starts_with(other));
        let workspaces: Vec<PathBuf> = writable.iter().filter(is_outermost).cloned().collect();
        let (mut found, mut unexamined) = (Vec::new(), Vec::new());
        for root in &workspaces {
            let mut walk = RepositoryWalk::below(root, SearchExtent::Sources);
            found.append(&mut walk.repositories);
            unexamined.extend(walk.is_incomplete.then(|| root.clone()));
        }
        Self { workspaces, found, unexamined }
    }
}

fn writable_workspaces(confinement: &Confinement) -> Vec<PathBuf> {
    let writable = confinement.roots.iter().filter(|root| root.access == RootAccess::Write);
    writable.map(|root| root.path.clone()).collect()
}

/// Protects the repositories in the workspaces, and those in the `modules` of a repository around one. Commits to all of them stay
/// possible. Returns the repositories whose configuration applies in the workspaces.
///
/// `copies` is a directory of the run for changed copies of configuration files.
pub(crate) fn protect_repositories(
    layout: &mut Layout,
    confinement: &Confinement,
    repositories: &NestedRepositories,
    home: Option<&Path>,
    copies: Option<&Path>,
) -> io::Result<Vec<ConfiguredRepository>> {
    let writable = writable_workspaces(confinement);
    let NestedRepositories { workspaces, found, .. } = repositories;
    let (mut watch, mut found) = (RepositoryWatch::new(workspaces.clone()), found.clone());
    let around = layout.writable.iter().filter(|path| !writable.iter().any(|root| path.starts_with(root)));
    let around = around.filter(|path| path.join("HEAD").exists());
    for git in around {
        watch.add_known(git.clone());
        let modules = git.join("modules");
        found.extend(RepositoryWalk::below_modules(&modules, SearchExtent::Sources).repositories);
        watch.add_modules(modules);
    }
    // A mount would expose a repository that is hidden, or make one writable that is read-only as a whole.
    found.retain(|found| layout.is_writable(&found.path) && !layout.untrusted.covers(&found.path));
    let around = writable.iter().filter_map(|root| Repository::around(root, home).ok()?);
    let around = around.map(|around| ConfiguredRepository { git: around.common, worktree: around.worktree });
    let mut configured: Vec<ConfiguredRepository> = around.collect();
    for FoundRepository { path, kind } in found.into_iter().take(MAX_PROTECTED) {
        match kind {
            RepositoryKind::Entry => configured.extend(protect_nested(layout, &path, &mut watch)),
            RepositoryKind::Bare => {
                protect_bare(layout, &path);
                configured.push(ConfiguredRepository { git: path.clone(), worktree: path.clone() });
            }
            RepositoryKind::Module => {
                protect_bare(layout, &path);
                mount_config_without_worktree(layout, &path.join("config"), copies)?;
            }
        }
        watch.add_known(path);
    }
    layout.quarantine.repositories = watch;
    Ok(configured)
}

/// Mounts a copy of a submodule's configuration without its `core.worktree`. `git submodule update` rewrites an existing key each time,
/// which fails on a read-only mount. Git finds the worktree without it.
fn mount_config_without_worktree(
    layout: &mut Layout,
    config: &Path,
    copies: Option<&Path>,
) -> io::Result<()> {
    let is_mounted = layout.mounts.contains(&(config.to_owned(), Mount::Read));
    let Some(directory) = copies.filter(|_| is_mounted).map(|copies| copies.join("modules")) else {
        return Ok(());
    };
    let text = read_regular_file(config, MAX_CONFIG_BYTES).and_then(|text| String::from_utf8(text).ok());
    let Some(text) = text.filter(|text| !text.contains("\\\n")) else { return Ok(()) };
    let is_kept = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default();
        !key.trim().eq_ignore_ascii_case("worktree")
    };
    let without: String = text.split_inclusive('\n').filter(is_kept).collect();
    fs::create_dir_all(&directory)?;
    let copy = directory.join(layout.mounts.len().to_string());
    fs::write(&copy, without)?;
    layout.mounts.push((config.to_owned(), Mount::ReadFrom(copy)));
    Ok(())
}

/// Protects a repository by its `.git` and returns the repositories whose configuration applies in the directory.
fn protect_nested(layout: &mut Layout, git: &Path, watch: &mut RepositoryWatch) -> Vec<ConfiguredRepository> {
    let Some(worktree) = git.parent() else { return Vec::new() };
    for protected in protected_in(worktree) {
        layout.protect(&protected);
    }
    let configured = |git: &Path| ConfiguredRepository { git: git.to_owned(), worktree: worktree.to_owned() };
    if !git.is_file() {
        return vec![configured(git)];
    }
    if let Some(linked) = Repository::from_linked_worktree(worktree) {
        protect_linked_worktree(layout, &linked, watch);
        return vec![configured(&linked.common), configured(&linked.own)];
    }
    let Some(git) = resolve_named_path(git, Some("gitdir: "), worktree) else { return Vec::new() };
    if layout.is_writable(&git) {
        protect_bare(layout, &git);
        watch.add_known(git.clone());
    }
    vec![configured(&git)]
}

/// Makes the directory of a linked worktree writable, so that commits work: it lies in `worktrees`, which is read-only.
fn protect_linked_worktree(layout: &mut Layout, linked: &Repository, watch: &mut RepositoryWatch) {
    if !layout.writable.iter().any(|root| linked.own.starts_with(root)) {
        return;
    }
    layout.mounts.push((linked.own.clone(), Mount::Write));
    for protected in linked.protected_in_worktree() {
        layout.protect(&protected);
    }
    watch.add_known(linked.own.clone());
}

fn protect_bare(layout: &mut Layout, git: &Path) {
    for protected in protected_in_bare(git) {
        layout.protect(&protected);
    }
}

/// Prevents a workspace without a repository from becoming one itself: git treats a directory with the right names in it as a
/// repository and obeys the configuration beside them. In a workspace that already is one, the paths that make git run commands are
/// protected.
pub(crate) fn protect_workspaces_as_repositories(layout: &mut Layout, confinement: &Confinement) {
    let workspaces = confinement.roots.iter().filter(|root| root.access == RootAccess::Write);
    for root in workspaces.filter(|root| !has_repository(&root.path)) {
        for protected in protected_in_directory(&root.path) {
            layout.protect(&protected);
        }
    }
}
