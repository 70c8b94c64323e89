//! From a policy to the view of the file system that an agent gets: which path is mounted how, in which order.
//!
//! Paths are taken as they really are (links followed) at this moment. A deeper path comes later, so it counts: something
//! that must be seen shows in something hidden, and something hidden stays hidden in something that can be written.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use model::{Confinement, OnCreate, PRIVATE_DIRECTORIES as PRIVATE, Protected, RootAccess};
use serde::{Deserialize, Serialize};

use crate::aliases::Mounts;
use crate::home::AbsentHome;
use crate::machine::Tier;
use crate::nested::NestedRepositories;
use crate::overlap::UntrustedPaths;
use crate::quarantine::{HeldRoots, Quarantine, QuarantineTime};
use crate::real::Real;
use crate::root_secrets::root_secrets;
use crate::sockets;
use crate::state::StateView;
use crate::worktree::Repository;

/// One mount. For the same path, later ones of this list win.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Mount {
    /// An empty directory of the run's own, to be written.
    Private,
    /// As it is, to be written; also a folder that is pinned to its place by being a mount of its own.
    Write,
    /// As it is, to be read.
    Read,
    /// Another path in its place, to be written.
    WriteFrom(#[serde(with = "model::exact_path")] PathBuf),
    /// Another path in its place, to be read.
    ReadFrom(#[serde(with = "model::exact_path")] PathBuf),
    /// Nothing, in place of a file or a socket.
    HideFile,
    /// An empty folder in its place.
    HideFolder,
    /// An empty home directory, also where there is none.
    Home,
}

impl Mount {
    /// Returns whether nothing of the machine is seen there.
    fn hides(&self) -> bool {
        matches!(self, Self::HideFile | Self::HideFolder | Self::Home)
    }
}

/// The view of an agent.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Sorted: parents before children.
    pub mounts: Vec<(PathBuf, Mount)>,
    /// What can be written.
    pub write: Vec<PathBuf>,
    /// What is hidden.
    pub hidden: Vec<PathBuf>,
    /// Whether something that is hidden had another name, by which it is hidden too.
    pub aliased: bool,
    /// What is to be protected and cannot be: a link is no folder that could be pinned.
    pub unprotected: Vec<PathBuf>,
    /// Protected paths that do not exist.
    pub quarantine: Quarantine,
    /// What can be written, open.
    pub held_roots: HeldRoots,
    /// Why the repository around a workspace cannot be written.
    pub git_read_only: Option<String>,
    /// What lies in the absent home directory and is shown: parts of it, and the repository around a workspace.
    pub exposed: Vec<PathBuf>,
    /// What other active runs may have created.
    pub untrusted: UntrustedPaths,
}

/// What a layout is made for, besides its policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around<'a> {
    /// What must be seen besides, such as the program itself.
    pub needed: &'a [PathBuf],
    /// Switchboard's own programs.
    pub own_programs: &'a [PathBuf],
    /// The user's home.
    pub home: Option<&'a Path>,
    /// The user's `XDG_CONFIG_HOME`.
    pub xdg_config: Option<&'a Path>,
    /// The agent's own state.
    pub state: Option<&'a StateView>,
    /// The home directory without the parts that are not exposed.
    pub absent: Option<&'a AbsentHome>,
    /// The missing paths of other active runs.
    pub others: &'a [Quarantine],
    pub tier: Tier,
    /// The repositories in the workspaces, found before.
    pub repositories: &'a NestedRepositories,
    /// A directory of the run for copies of files that it must see changed; none where it sees the files themselves.
    pub copies: Option<&'a Path>,
}

impl Layout {
    /// Lays the view out.
    pub fn of(confinement: &Confinement, around: Around<'_>) -> io::Result<Self> {
        let Around { needed, home, state, absent, others, tier, repositories, copies, .. } = around;
        let mounts = Mounts::look();
        let mut layout = Self { untrusted: UntrustedPaths::find(others, &mounts), ..Self::default() };
        let secrets = root_secrets();
        let hidden = hidden(confinement.hidden.iter().chain(&secrets))?;
        for root in &confinement.roots {
            layout.root(&root.path, root.access, &hidden)?;
        }
        layout.show(needed, &hidden);
        if let Some(absent) = absent {
            layout.leave_out_home(absent);
        }
        if let Some(state) = state {
            layout.mounts.extend(state.mounts.iter().cloned());
            layout.unprotected.extend(state.unprotected.iter().cloned());
        }
        layout.hidden = hidden.iter().map(|(_, real)| real.path.clone()).collect();
        layout.repositories(confinement, home, absent, tier);
        layout.held_roots = layout.quarantine.add_roots(&layout.write)?;
        for home in absent.iter().flat_map(|absent| &absent.directories) {
            for other in mounts.aliases(home).into_iter().filter(|other| !is_root(confinement, other)) {
                layout.aliased = true;
                layout.hide(other.clone(), other.is_dir());
            }
        }
        for (_, Real { path, is_folder }) in hidden {
            for other in mounts.others(&path).into_iter().filter(|other| !is_root(confinement, other)) {
                layout.aliased = true;
                layout.hide(other.clone(), other.is_dir());
            }
            let is_listed = layout.exposed.contains(&path);
            // Each mount takes time, and most hidden paths lie in a home directory that is absent.
            if layout.is_seen(&path) && !is_listed {
                let mount = if is_folder { Mount::HideFolder } else { Mount::HideFile };
                layout.mounts.push((path, mount));
            }
        }
        layout.directories_as_repositories(confinement);
        for protected in &confinement.protected {
            layout.protect(protected);
        }
        for path in around.own_programs {
            layout.protect(&Protected { path: path.clone(), on_create: OnCreate::QuarantineAtEnd });
        }
        let repositories = layout.protect_repositories(confinement, repositories, home, copies)?;
        for other in others {
            layout.quarantine.repositories.distrust(&other.repositories);
        }
        layout.pin_hidden();
        layout.protect_configured(&repositories, home, around.xdg_config);
        layout.hold_index(tier);
        for (path, time) in layout.untrusted.below(&layout.write) {
            layout.quarantine.add(path, time);
        }
        if tier == Tier::Namespaces && confinement.unix_sockets {
            layout.cover_sockets(confinement, &mounts);
        }
        layout
            .mounts
            .sort_by_cached_key(|(path, mount)| (path.components().count(), path.clone(), mount.clone()));
        layout.mounts.dedup();
        layout.unprotected.sort();
        layout.unprotected.dedup();
        Ok(layout)
    }

    /// Shows only the exposed paths of the home directory.
    fn leave_out_home(&mut self, absent: &AbsentHome) {
        self.mounts.extend(absent.directories.iter().map(|home| (home.clone(), Mount::Home)));
        for (name, real) in &absent.exposed {
            // Something that the policy gives, such as a workspace, stays as it is.
            if !self.mounts.iter().any(|(at, mount)| at == name && *mount != Mount::Home) {
                self.mounts.push((name.clone(), Mount::ReadFrom(real.clone())));
            }
            self.exposed.push(real.clone());
        }
        self.mounts.extend(absent.files.iter().map(|(at, copy)| (at.clone(), Mount::ReadFrom(copy.clone()))));
    }

    /// Shows what lies in a private directory and must be seen. What the policy gives anyhow stays as it gives it.
    fn show(&mut self, needed: &[PathBuf], hidden: &[(&Path, Real)]) {
        let roots: Vec<PathBuf> = self.mounts.iter().map(|(root, _)| root.clone()).collect();
        for path in needed.iter().filter(|path| !self.write.iter().any(|root| path.starts_with(root))) {
            let Ok(real) = Real::path(path) else { continue };
            let leads_into = |(name, hidden): &(&Path, Real)| {
                real.starts_with(&hidden.path) && !path.starts_with(name) && !path.starts_with(&hidden.path)
            };
            if hidden.iter().any(leads_into) {
                continue;
            }
            // By the name that is used, too, where a directory above it is a link.
            for name in [path, &real] {
                if !roots.iter().any(|root| name.starts_with(root)) {
                    let mount = if *name == real { Mount::Read } else { Mount::ReadFrom(real.clone()) };
                    self.mounts.push((name.clone(), mount));
                }
            }
        }
    }

    /// Holds every directory between a writable root and a hidden path in its place: one that is renamed takes the hidden path along,
    /// and the next run would look for it by its old name.
    fn pin_hidden(&mut self) {
        for hidden in self.hidden.clone() {
            let Some((mut path, rest)) = self.below_a_root(&hidden) else { continue };
            for part in rest.parent().into_iter().flat_map(Path::components) {
                path.push(part);
                let is_held = self.mounts.iter().any(|(at, mount)| *at == path && *mount != Mount::Write);
                if is_held || !path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                    break;
                }
                self.mounts.push((path.clone(), Mount::Write));
            }
        }
    }

    /// `hidden`: what is hidden, by its name and where that really is.
    fn root(&mut self, path: &Path, access: RootAccess, hidden: &[(&Path, Real)]) -> io::Result<()> {
        if access == RootAccess::Create {
            DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        }
        let given = path;
        let path = match Real::path(given) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            path => path?,
        };
        // What is checked by its name must be what is mounted: a link in a workspace is made by whoever worked there before.
        let leads_into =
            |(name, real): &(&Path, Real)| path.starts_with(&real.path) && !given.starts_with(name);
        if (access == RootAccess::Write && path != given) || hidden.iter().any(leads_into) {
            let (given, path) = (given.display(), path.display());
            return Err(io::Error::other(format!(
                "`{given}` leads to `{path}`: the policy must name the real path"
            )));
        }
        if access == RootAccess::Read {
            self.mounts.push((path, Mount::Read));
        } else {
            self.write.push(path.clone());
            self.mounts.push((path, Mount::Write));
        }
        Ok(())
    }

    fn hide(&mut self, path: PathBuf, is_folder: bool) {
        self.hidden.push(path.clone());
        self.mounts.push((path, if is_folder { Mount::HideFolder } else { Mount::HideFile }));
    }

    /// Makes the repository around a workspace writable, except for its protected paths. Only where there are mounts: the kernel's
    /// rules alone could not take anything away again.
    fn repositories(
        &mut self,
        confinement: &Confinement,
        home: Option<&Path>,
        absent: Option<&AbsentHome>,
        tier: Tier,
    ) {
        let is_absent = |path: &Path| absent.is_some_and(|home| home.contains(path));
        let only_looks = !confinement.preset.writes();
        for root in confinement.roots.iter().filter(|root| only_looks && root.access == RootAccess::Read) {
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
            if self.hidden.iter().any(|hidden| common.starts_with(hidden)) {
                self.git_read_only = Some(format!("the repository `{}` is hidden", common.display()));
                continue;
            }
            if PRIVATE.iter().any(|private| repository.worktree.starts_with(private)) {
                // Or git would take all files beside the workspace for deleted ones.
                self.mounts.push((repository.worktree.clone(), Mount::Read));
            }
            for directory in [common, &repository.own] {
                self.mounts.retain(|mount| *mount != (directory.clone(), Mount::Read));
                self.write.push(directory.clone());
                self.mounts.push((directory.clone(), Mount::Write));
            }
            for protected in repository.protected() {
                self.protect(&protected);
            }
        }
    }

    /// Shows a repository that lies in the absent home directory, as git needs it.
    fn show_repository(&mut self, repository: &Repository, is_absent: impl Fn(&Path) -> bool) {
        for path in [&repository.worktree, &repository.common, &repository.own] {
            let is_hidden = self.hidden.iter().any(|hidden| path.starts_with(hidden));
            let is_given = self.mounts.iter().any(|(at, mount)| path.starts_with(at) && !mount.hides());
            if is_absent(path) && !is_hidden && !is_given {
                self.mounts.push((path.clone(), Mount::Read));
                self.exposed.push(path.clone());
            }
        }
    }

    /// Holds a path, and every directory between it and the root that can be written: a directory that could be renamed would take
    /// its contents along, and another could be made in its place. A path that does not exist is left to the quarantine.
    pub fn protect(&mut self, protected: &Protected) {
        let Some((mut path, rest)) = self.below_a_root(&protected.path) else { return };
        let mut rest = rest.components().peekable();
        while let Some(Component::Normal(name)) = rest.next() {
            path.push(name);
            let is_last = rest.peek().is_none();
            let found = if self.untrusted.contains(&path) {
                Err(io::ErrorKind::NotFound.into())
            } else {
                path.symlink_metadata()
            };
            if found.as_ref().is_ok_and(fs::Metadata::is_symlink) {
                self.unprotected.push(path);
                return;
            }
            match found {
                Ok(found) if found.is_dir() && !is_last => self.mounts.push((path.clone(), Mount::Write)),
                // Also a file where a directory was meant: the `.git` of a linked worktree.
                Ok(_) => {
                    self.mounts.push((path, Mount::Read));
                    return;
                }
                Err(_) => {
                    let time = match protected.on_create {
                        OnCreate::Keep => return,
                        _ if !is_last && path.ends_with(".git") => QuarantineTime::AtEndUnlessInert,
                        // A directory on the way to a file that the configuration of git includes.
                        _ if !is_last => QuarantineTime::AtEnd,
                        OnCreate::QuarantineAtOnce => QuarantineTime::AtOnce,
                        OnCreate::QuarantineAtEnd => QuarantineTime::AtEnd,
                    };
                    self.quarantine.add(path, time);
                    return;
                }
            }
        }
    }

    /// The outermost root that can be written and holds the path, and the way from there.
    pub fn below_a_root(&self, path: &Path) -> Option<(PathBuf, PathBuf)> {
        // Within the workspace itself links are not followed, but seen and refused.
        let written = |root: &&PathBuf| path.starts_with(root);
        if let Some(root) = self.write.iter().filter(written).min_by_key(|root| root.components().count()) {
            return Some((root.clone(), path.strip_prefix(root).ok()?.to_owned()));
        }
        // The part that is there is taken as it really is; the rest has no links.
        let whole = path.ancestors().skip(1).find_map(|above| {
            let real = Real::path(above).ok()?;
            Some(real.join(path.strip_prefix(above).ok()?))
        })?;
        let root = self
            .write
            .iter()
            .filter(|root| whole.starts_with(root))
            .min_by_key(|root| root.components().count())?;
        Some((root.clone(), whole.strip_prefix(root).ok()?.to_owned()))
    }

    /// Covers the sockets of others: all but those in folders that the call was given to work in.
    fn cover_sockets(&mut self, confinement: &Confinement, mounts: &Mounts) {
        let roots = confinement.roots.iter();
        let roots: Vec<(PathBuf, RootAccess)> =
            roots.filter_map(|root| Some((Real::path(&root.path).ok()?, root.access))).collect();
        // The innermost root says what it is: something to be read may lie in a workspace.
        let is_given = |path: &Path| {
            let around = roots.iter().filter(|(root, _)| path.starts_with(root));
            let innermost = around.max_by_key(|(root, _)| root.components().count());
            innermost.is_some_and(|(_, access)| *access == RootAccess::Write)
        };
        let bound = sockets::bound().into_iter().flat_map(|path| {
            let mut names = mounts.others(&path);
            names.push(path);
            names
        });
        let others = bound.filter(|path| self.is_seen(path) && !is_given(path) && is_reachable(path));
        let covered: Vec<_> = others.map(|path| (path, Mount::HideFile)).collect();
        self.mounts.extend(covered);
    }
}

/// Whether this user, without root's capabilities, gets to a path. What lies in another user's private directory is neither reached nor
/// covered: bubblewrap could not get there either.
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

/// Whether the policy itself gives what is at a path, which then counts more than another name of it.
fn is_root(confinement: &Confinement, path: &Path) -> bool {
    confinement.roots.iter().any(|root| root.path == path)
}

/// What is to be hidden and is there: by its name, and as it really is.
fn hidden<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> io::Result<Vec<(&'a Path, Real)>> {
    let mut hidden = Vec::new();
    for path in paths {
        match Real::of(path) {
            Ok(real) => hidden.push((path.as_path(), real)),
            // What this user cannot see is hidden already.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
                    || error.raw_os_error() == Some(libc::ENOTDIR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hidden)
}

impl Layout {
    /// Whether what is at a path now can be seen inside: the deepest mount above it says so.
    fn is_seen(&self, path: &Path) -> bool {
        let private = PRIVATE.iter().map(|folder| (Path::new(folder), false));
        let mounts = self.mounts.iter().map(|(at, mount)| (at.as_path(), !mount.hides()));
        let above = private.chain(mounts).filter(|(at, _)| path.starts_with(at));
        above.max_by_key(|(at, shows)| (at.components().count(), !shows)).is_none_or(|(_, shows)| shows)
    }
}

#[cfg(test)]
mod tests;
