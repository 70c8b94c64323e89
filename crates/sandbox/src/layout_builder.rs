//! Builds the file system view of an agent from its policy: the mount of each path.
//!
//! Paths are resolved (links followed) at this moment. The mounts are sorted by depth, since a deeper mount overrides those above it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::{Confinement, OnCreate, PRIVATE_DIRECTORIES as PRIVATE, Protected, RootAccess};
use regular_file::{create_private_directory, name_culprit};

use crate::aliases::MountTable;
use crate::git_commands::protect_configured;
use crate::git_index::protect_index;
use crate::home::AbsentHome;
use crate::layout::Layout;
use crate::mechanisms::Tier;
use crate::mount_plan::Mount;
use crate::nested_repositories::{
    NestedRepositories, protect_repositories, protect_workspaces_as_repositories,
};
use crate::quarantine::Quarantine;
use crate::real_path::{RealPath, real_path};
use crate::root_secrets::find_root_secrets;
use crate::sockets;
use crate::state_view::StateView;
use crate::untrusted_paths::UntrustedPaths;
use crate::worktree::Repository;

/// The inputs of a layout besides its policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayoutInputs<'a> {
    /// The hidden paths of the policy that exist. Resolved once for all parts of a sandbox.
    pub hidden: &'a [HiddenPath],
    /// Paths below private directories that must be visible, such as the program itself.
    pub needed: &'a [PathBuf],
    /// Switchboard's own programs.
    pub own_programs: &'a [PathBuf],
    /// The user's home directory.
    pub home: Option<&'a Path>,
    /// The user's `XDG_CONFIG_HOME`.
    pub xdg_config: Option<&'a Path>,
    /// The agent's own state.
    pub states: &'a [StateView],
    /// The home directory without the parts that are not exposed.
    pub absent: Option<&'a AbsentHome>,
    /// The missing paths of other active runs.
    pub others: &'a [Quarantine],
    pub tier: Tier,
    /// The repositories in the workspaces.
    pub repositories: &'a NestedRepositories,
    /// A directory of the run for changed copies of files. `None` without mounts: the run sees the files themselves.
    pub copies: Option<&'a Path>,
}

/// An existing path that the agent must not see.
#[derive(Debug, Clone)]
pub(crate) struct HiddenPath {
    /// Its name in the policy.
    pub name: PathBuf,
    pub real: RealPath,
}

/// Builds the view.
pub(crate) fn build_layout(confinement: &Confinement, inputs: LayoutInputs<'_>) -> io::Result<Layout> {
    let LayoutInputs { needed, home, states, absent, others, tier, repositories, copies, .. } = inputs;
    let mounts = MountTable::read();
    let mut layout = Layout { untrusted: UntrustedPaths::find(others, &mounts), ..Layout::default() };
    let mut hidden = inputs.hidden.to_vec();
    hidden.extend(resolve_hidden(&find_root_secrets())?);
    for root in &confinement.roots {
        layout.add_root(&root.path, root.access, &hidden)?;
    }
    layout.show_needed(needed, &hidden);
    if let Some(absent) = absent {
        layout.mount_home(absent);
    }
    for state in states {
        layout.mounts.extend(state.mounts.iter().cloned());
        layout.unprotected.extend(state.unprotected.iter().cloned());
    }
    layout.hidden = hidden.iter().map(|hidden| hidden.real.path.clone()).collect();
    layout.add_outer_repositories(confinement, home, absent, tier);
    layout.held_roots = layout.quarantine.add_roots(&layout.writable)?;
    for home in absent.iter().flat_map(|absent| &absent.directories) {
        for alias in mounts.aliases(home).into_iter().filter(|alias| !is_policy_root(confinement, alias)) {
            layout.has_aliases = true;
            layout.hide(alias.clone(), alias.is_dir());
        }
    }
    for HiddenPath { real: RealPath { path, is_directory }, .. } in hidden {
        let aliases = mounts.aliases_outside(&path);
        for alias in aliases.into_iter().filter(|alias| !is_policy_root(confinement, alias)) {
            layout.has_aliases = true;
            layout.hide(alias.clone(), alias.is_dir());
        }
        let is_exposed = layout.exposed.contains(&path);
        // Most hidden paths lie in the absent home directory, and each mount costs time.
        if layout.is_visible(&path) && !is_exposed {
            let mount = if is_directory { Mount::HideDirectory } else { Mount::HideFile };
            layout.mounts.push((path, mount));
        }
    }
    protect_workspaces_as_repositories(&mut layout, confinement);
    for protected in &confinement.protected {
        layout.protect(protected);
    }
    for path in inputs.own_programs {
        layout.protect(&Protected { path: path.clone(), on_create: OnCreate::QuarantineAtEnd });
    }
    let repositories = protect_repositories(&mut layout, confinement, repositories, home, copies)?;
    for other in others {
        layout.quarantine.repositories.distrust(&other.repositories);
    }
    layout.pin_parents_of_hidden();
    let checkout = confinement.checkout.as_ref();
    protect_configured(&mut layout, &repositories, checkout, home, inputs.xdg_config);
    protect_index(&mut layout, tier);
    for (path, time) in layout.untrusted.below(&layout.writable) {
        layout.quarantine.add(path, time);
    }
    if tier == Tier::Namespaces && confinement.unix_sockets {
        layout.mask_sockets(confinement, &mounts);
    }
    layout
        .mounts
        .sort_by_cached_key(|(path, mount)| (path.components().count(), path.clone(), mount.clone()));
    layout.mounts.dedup();
    layout.unprotected.sort();
    layout.unprotected.dedup();
    Ok(layout)
}

impl Layout {
    /// Replaces the home directory by an empty one with the exposed parts in it.
    fn mount_home(&mut self, absent: &AbsentHome) {
        self.mounts.extend(absent.directories.iter().map(|home| (home.clone(), Mount::Home)));
        for (name, real) in &absent.exposed {
            // A root of the policy, such as a workspace, keeps its own mount.
            if !self.mounts.iter().any(|(at, mount)| at == name && *mount != Mount::Home) {
                self.mounts.push((name.clone(), Mount::ReadFrom(real.clone())));
            }
            self.exposed.push(real.clone());
        }
        self.mounts.extend(absent.files.iter().map(|(at, copy)| (at.clone(), Mount::ReadFrom(copy.clone()))));
    }

    /// Makes needed paths in private directories visible. Roots of the policy keep their own mounts.
    fn show_needed(&mut self, needed: &[PathBuf], hidden: &[HiddenPath]) {
        let roots: Vec<PathBuf> = self.mounts.iter().map(|(root, _)| root.clone()).collect();
        for path in needed.iter().filter(|path| !self.writable.iter().any(|root| path.starts_with(root))) {
            let Ok(real) = real_path(path) else { continue };
            let leads_into = |hidden: &HiddenPath| {
                let HiddenPath { name, real: target } = hidden;
                real.starts_with(&target.path) && !path.starts_with(name) && !path.starts_with(&target.path)
            };
            if hidden.iter().any(leads_into) {
                continue;
            }
            // If a parent directory is a link, the path must be visible under both names.
            for name in [path, &real] {
                if !roots.iter().any(|root| name.starts_with(root)) {
                    let mount = if *name == real { Mount::Read } else { Mount::ReadFrom(real.clone()) };
                    self.mounts.push((name.clone(), mount));
                }
            }
        }
    }

    /// Pins every directory between a writable root and a hidden path by a mount: renaming one would move the hidden path along, and
    /// the next run would hide its old name.
    fn pin_parents_of_hidden(&mut self) {
        for hidden in self.hidden.clone() {
            let Some((mut path, rest)) = self.split_at_root(&hidden) else { continue };
            for part in rest.parent().into_iter().flat_map(Path::components) {
                path.push(part);
                let is_pinned = self.mounts.iter().any(|(at, mount)| *at == path && *mount != Mount::Write);
                if is_pinned || !path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                    break;
                }
                self.mounts.push((path.clone(), Mount::Write));
            }
        }
    }

    /// Mounts a root of the policy. Fails if the root leads into a hidden path through a link. `hidden` are the names and the real
    /// paths.
    fn add_root(&mut self, path: &Path, access: RootAccess, hidden: &[HiddenPath]) -> io::Result<()> {
        if access == RootAccess::Create {
            create_private_directory(path)?;
        }
        let given = path;
        let path = match real_path(given) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            path => path.map_err(|error| name_culprit(given, error))?,
        };
        // The checked path must be the mounted one: an earlier agent may have created a link in the workspace.
        let leads_into =
            |hidden: &HiddenPath| path.starts_with(&hidden.real.path) && !given.starts_with(&hidden.name);
        if (access == RootAccess::Write && path != given) || hidden.iter().any(leads_into) {
            let (given, path) = (given.display(), path.display());
            return Err(io::Error::other(format!(
                "`{given}` leads to `{path}`: the policy must name the real path"
            )));
        }
        if access == RootAccess::Read {
            self.mounts.push((path, Mount::Read));
        } else {
            self.writable.push(path.clone());
            self.mounts.push((path, Mount::Write));
        }
        Ok(())
    }

    /// Makes the repository around a workspace writable, except for its protected paths. This needs mounts: Landlock cannot revoke access
    /// below an allowed directory.
    fn add_outer_repositories(
        &mut self,
        confinement: &Confinement,
        home: Option<&Path>,
        absent: Option<&AbsentHome>,
        tier: Tier,
    ) {
        let is_absent = |path: &Path| absent.is_some_and(|home| home.contains(path));
        let is_read_only = !confinement.preset.writes();
        for root in confinement.roots.iter().filter(|root| is_read_only && root.access == RootAccess::Read) {
            if let Ok(Some(repository)) = Repository::around(&root.path, home) {
                self.show_repository(&repository, is_absent);
            }
        }
        for root in confinement.roots.iter().filter(|root| root.access == RootAccess::Write) {
            let repository = match Repository::around(&root.path, home) {
                Ok(Some(Repository { worktree, .. })) if self.untrusted.contains(&worktree.join(".git")) => {
                    let git = worktree.join(".git");
                    self.git_read_only = Some(format!("another run may have created `{}`", git.display()));
                    continue;
                }
                Ok(Some(repository)) => repository,
                Ok(None) => continue,
                Err(why) => {
                    self.git_read_only = Some(why);
                    continue;
                }
            };
            self.show_repository(&repository, is_absent);
            let common = &repository.common;
            if tier == Tier::Rules {
                self.git_read_only =
                    Some(format!("to write the repository `{}` needs bubblewrap", common.display()));
                continue;
            }
            let is_given = |hidden: &PathBuf| {
                let inside = confinement.roots.iter().filter(|root| root.path.starts_with(hidden));
                inside.map(|root| &root.path).any(|path| common.starts_with(path))
            };
            if self.hidden.iter().any(|hidden| common.starts_with(hidden) && !is_given(hidden)) {
                self.git_read_only = Some(format!("the repository `{}` is hidden", common.display()));
                continue;
            }
            if PRIVATE.iter().any(|private| repository.worktree.starts_with(private)) {
                // Git would treat all files beside the workspace as deleted.
                self.mounts.push((repository.worktree.clone(), Mount::Read));
            }
            for directory in [common, &repository.own] {
                self.mounts.retain(|mount| *mount != (directory.clone(), Mount::Read));
                self.writable.push(directory.clone());
                self.mounts.push((directory.clone(), Mount::Write));
            }
            for protected in repository.protected_paths() {
                self.protect(&protected);
            }
        }
    }

    /// Makes a repository in the absent home directory visible to git.
    fn show_repository(&mut self, repository: &Repository, is_absent: impl Fn(&Path) -> bool) {
        for path in [&repository.worktree, &repository.common, &repository.own] {
            let is_hidden = self.hidden.iter().any(|hidden| path.starts_with(hidden));
            let is_given = self.mounts.iter().any(|(at, mount)| path.starts_with(at) && !mount.is_mask());
            if is_absent(path) && !is_hidden && !is_given {
                self.mounts.push((path.clone(), Mount::Read));
                self.exposed.push(path.clone());
            }
        }
    }

    /// Masks the Unix sockets of other programs, except for those in the workspaces of the call.
    fn mask_sockets(&mut self, confinement: &Confinement, mounts: &MountTable) {
        let roots = confinement.roots.iter();
        let roots: Vec<(PathBuf, RootAccess)> =
            roots.filter_map(|root| Some((real_path(&root.path).ok()?, root.access))).collect();
        // The innermost root decides: a read-only root may lie in a workspace.
        let is_in_workspace = |path: &Path| {
            let around = roots.iter().filter(|(root, _)| path.starts_with(root));
            let innermost = around.max_by_key(|(root, _)| root.components().count());
            innermost.is_some_and(|(_, access)| *access == RootAccess::Write)
        };
        let bound = sockets::find_bound_sockets().into_iter().flat_map(|path| {
            let mut names = mounts.aliases_outside(&path);
            names.push(path);
            names
        });
        let others =
            bound.filter(|path| self.is_visible(path) && !is_in_workspace(path) && is_reachable(path));
        let masked: Vec<_> = others.map(|path| (path, Mount::HideSocket)).collect();
        self.mounts.extend(masked);
    }
}

/// Returns whether this user can reach a path without root's capabilities. A socket in another user's private directory needs no mask,
/// and the mount point could not be reached either.
fn is_reachable(path: &Path) -> bool {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    path.ancestors().skip(1).all(|directory| {
        directory.metadata().is_ok_and(|found| {
            let search = match (found.uid() == user, found.gid() == group) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            found.mode() & search != 0
        })
    })
}

/// Returns whether a path is a root of the policy, which is not hidden as an alias.
fn is_policy_root(confinement: &Confinement, path: &Path) -> bool {
    confinement.roots.iter().any(|root| root.path == path)
}

/// Resolves the hidden paths that exist.
pub(crate) fn resolve_hidden(paths: &[PathBuf]) -> io::Result<Vec<HiddenPath>> {
    let mut hidden = Vec::new();
    for path in paths {
        match RealPath::resolve(path) {
            Ok(real) => hidden.push(HiddenPath { name: path.clone(), real }),
            // A path that this user cannot see is hidden already.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
                    || error.raw_os_error() == Some(libc::ENOTDIR) => {}
            Err(error) => return Err(name_culprit(path, error)),
        }
    }
    Ok(hidden)
}

#[cfg(test)]
mod tests;
