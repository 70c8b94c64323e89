//! Finds commands that a run has planted for git: in new repositories, and in the steps and options of an unfinished rebase.
//!
//! Git also runs commands of repositories below the current one: `git status` queries each submodule, and a commit is enough to turn a
//! directory into a submodule.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::change_time::ChangeTime;
use crate::inert_repository::{is_inert, is_inert_link};
use crate::rebase::{RebaseCommand, find_rebase_commands};
use crate::repository_walk::{FoundRepository, RepositoryKind, RepositoryWalk, SearchExtent};

/// The tolerance for the clock of a file server that is behind.
const CLOCK_SLACK: Duration = Duration::from_mins(1);

/// The repositories in the workspaces of a run when it started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct RepositoryWatch {
    #[serde(with = "model::exact_path")]
    workspaces: Vec<PathBuf>,
    /// The `modules` of a repository around a workspace.
    #[serde(with = "model::exact_path")]
    modules: Vec<PathBuf>,
    known: Vec<KnownRepository>,
    /// A time shortly before the run started.
    started: ChangeTime,
}

/// A repository that was protected when the run started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KnownRepository {
    #[serde(with = "model::exact_path")]
    path: PathBuf,
    /// Its inode and creation time: another run may have moved it to quarantine and created another one in its place.
    identity: (u64, u64),
    /// The commands of its unfinished rebase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    commands: Vec<String>,
}

/// The paths to move to quarantine.
#[derive(Debug, Default)]
pub(crate) struct PlantedPaths {
    pub paths: Vec<PathBuf>,
    /// Workspaces that could not be searched completely.
    pub unexamined: BTreeSet<PathBuf>,
    /// Keeps directories unlocked until the paths are moved.
    walks: Vec<RepositoryWalk>,
}

impl RepositoryWatch {
    /// Starts a watch now.
    pub fn new(workspaces: Vec<PathBuf>) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = since_epoch.saturating_sub(CLOCK_SLACK);
        let started = (started.as_secs().cast_signed(), started.subsec_nanos().into());
        Self { workspaces, started, ..Self::default() }
    }

    /// Returns whether there is nothing to search.
    pub fn is_empty(&self) -> bool {
        self.workspaces.is_empty() && self.modules.is_empty()
    }

    /// Returns whether a path lies in a workspace.
    pub fn covers(&self, path: &Path) -> bool {
        self.workspaces.iter().any(|workspace| path.starts_with(workspace))
    }

    /// Adds a workspace, unless it lies in another one.
    pub fn add_workspace(&mut self, path: &Path) {
        if !self.covers(path) {
            self.workspaces.push(path.to_owned());
        }
    }

    /// Adds the `modules` of a repository outside of the workspaces.
    pub fn add_modules(&mut self, modules: PathBuf) {
        self.modules.push(modules);
    }

    /// Adds a repository that is protected during the run.
    pub fn add_known(&mut self, path: PathBuf) {
        let Some(identity) = identity(&path) else { return };
        if !self.is_known(&path) {
            let commands = find_rebase_commands(&path).into_iter().map(|command| command.text).collect();
            self.known.push(KnownRepository { path, identity, commands });
        }
    }

    /// Distrusts paths that another active run may have created before this one started: changes count from the start of the other run, and
    /// rebase steps that were missing at that time count as new.
    pub fn distrust(&mut self, other: &Self) {
        let shares = |root: &PathBuf| {
            let mut roots = other.workspaces.iter().chain(&other.modules);
            roots.any(|other| root.starts_with(other) || other.starts_with(root))
        };
        if self.workspaces.iter().chain(&self.modules).any(shares) {
            self.started = self.started.min(other.started);
        }
        for known in &mut self.known {
            // The other run may use another mount of the same repository.
            let is_same =
                |earlier: &&KnownRepository| earlier.path == known.path || earlier.identity == known.identity;
            if let Some(earlier) = other.known.iter().find(is_same) {
                known.commands.retain(|step| earlier.commands.contains(step));
            }
        }
    }

    /// Returns the watch with the present paths. Paths that cannot be located are omitted.
    pub fn relocate(&self, locate: impl Fn(&Path) -> Option<PathBuf>) -> Self {
        let locate_all = |paths: &[PathBuf]| paths.iter().filter_map(|path| locate(path)).collect();
        let known = self.known.iter();
        let known =
            known.filter_map(|known| Some(KnownRepository { path: locate(&known.path)?, ..known.clone() }));
        Self {
            workspaces: locate_all(&self.workspaces),
            modules: locate_all(&self.modules),
            known: known.collect(),
            started: self.started,
        }
    }

    /// Finds the paths to move. Must be called after the last process of the run has exited.
    pub fn find_planted(&self) -> PlantedPaths {
        let mut planted = PlantedPaths::default();
        let below = |root: &PathBuf| (root.clone(), RepositoryWalk::below(root, SearchExtent::Everything));
        let modules =
            |root: &PathBuf| (root.clone(), RepositoryWalk::below_modules(root, SearchExtent::Everything));
        for (root, walk) in self.workspaces.iter().map(below).chain(self.modules.iter().map(modules)) {
            planted
                .paths
                .extend(walk.repositories.iter().filter_map(|found| self.planted_path(found, &walk)));
            planted.unexamined.extend(walk.is_incomplete.then_some(root));
            planted.walks.push(walk);
        }
        for known in &self.known {
            let is_new = |command: &RebaseCommand| !known.commands.contains(&command.text);
            let new = find_rebase_commands(&known.path).into_iter().filter(is_new);
            let paths: BTreeSet<PathBuf> = new.map(|command| command.path).collect();
            // A directory is moved with its contents.
            let is_outermost = |path: &&PathBuf| !path.parent().is_some_and(|above| paths.contains(above));
            planted.paths.extend(paths.iter().filter(is_outermost).cloned());
        }
        planted
    }

    /// Returns the path to move if a repository runs commands that the agent may have planted.
    fn planted_path(&self, found: &FoundRepository, walk: &RepositoryWalk) -> Option<PathBuf> {
        let FoundRepository { path, kind } = found;
        if self.is_known(path) || !self.has_changed(path, walk) {
            return None;
        }
        let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        let is_inert = if *kind == RepositoryKind::Entry && is_file {
            let roots = [self.workspaces.as_slice(), &self.modules].concat();
            is_inert_link(path, &roots, |git| self.is_known(git))
        } else {
            is_inert(path, &self.workspaces)
        };
        let path = match kind {
            // Without `HEAD` it is not a repository for git; the rest of the directory may be the user's.
            RepositoryKind::Bare => path.join("HEAD"),
            RepositoryKind::Entry | RepositoryKind::Module => path.clone(),
        };
        (!is_inert).then_some(path)
    }

    fn is_known(&self, path: &Path) -> bool {
        let known = self.known.iter().find(|known| known.path == path);
        known.is_some_and(|known| identity(path) == Some(known.identity))
    }

    /// Returns whether the run may have changed files that make git run commands. An agent can set the mtime of a file, but not its ctime.
    fn has_changed(&self, git: &Path, walk: &RepositoryWalk) -> bool {
        let is_new = |path: &Path| {
            fs::symlink_metadata(path).is_ok_and(|found| walk.change_time(&found) >= self.started)
        };
        let names = ["config", "config.worktree", "commondir", "hooks"].map(|name| git.join(name));
        let hooks = fs::read_dir(git.join("hooks")).into_iter().flatten().flatten().map(|hook| hook.path());
        is_new(git) || names.iter().any(|path| is_new(path)) || hooks.into_iter().any(|hook| is_new(&hook))
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok()?;
    let born = found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let born = born.and_then(|born| u64::try_from(born.as_nanos()).ok());
    Some((found.ino(), born.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::change_time::change_time;

    #[test]
    fn repository_changed_since_the_start_is_planted() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let git = root.join("node_modules/lib/.git");
        fs::create_dir_all(git.join("hooks")).unwrap();
        fs::write(git.join("hooks/pre-commit"), "").unwrap();
        let watch = RepositoryWatch::new(vec![root]);
        assert_eq!(watch.find_planted().paths, [git]);
        let later = watch.started.0 + 3600;
        assert!(RepositoryWatch { started: (later, 0), ..watch }.find_planted().paths.is_empty());
    }

    #[test]
    fn changes_since_the_start_of_another_run_count() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let git = root.join("node_modules/lib/.git");
        fs::create_dir_all(git.join("hooks")).unwrap();
        fs::write(git.join("hooks/pre-commit"), "").unwrap();
        let first = RepositoryWatch::new(vec![root.clone()]);
        let later = (first.started.0 + 3600, 0);
        for (workspace, count) in [(root.join("node_modules"), 1), ("/elsewhere".into(), 0)] {
            let mut second = RepositoryWatch { started: later, ..RepositoryWatch::new(vec![root.clone()]) };
            second.distrust(&RepositoryWatch { workspaces: vec![workspace], ..first.clone() });
            assert_eq!(second.find_planted().paths.len(), count);
        }
    }

    /// Unlocking a directory changes its ctime. Root reads it without unlocking.
    #[test]
    fn unchanged_locked_repository_stays() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let git = root.join("lib/.git");
        fs::create_dir_all(&git).unwrap();
        fs::write(git.join("config"), "[core]\nfsmonitor = x\n").unwrap();
        fs::set_permissions(&git, fs::Permissions::from_mode(0o000)).unwrap();
        let created = change_time(&fs::metadata(&git).unwrap());
        let watch =
            RepositoryWatch { started: (created.0, created.1 + 1), ..RepositoryWatch::new(vec![root]) };
        assert!(watch.find_planted().paths.is_empty());
        fs::set_permissions(&git, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(watch.find_planted().paths, [git]);
    }

    #[test]
    fn git_file_that_leads_out_of_the_workspace_is_planted() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let workspace = root.join("ws");
        fs::create_dir_all(workspace.join("lib")).unwrap();
        for name in ["cache/lib", "ws/own"] {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("config"), "[core]\nbare = false\n").unwrap();
        }
        let link = workspace.join("lib/.git");
        let watch = RepositoryWatch::new(vec![workspace]);
        fs::write(&link, "gitdir: ../own\n").unwrap();
        assert!(watch.find_planted().paths.is_empty());
        fs::write(&link, "gitdir: ../../cache/lib\n").unwrap();
        assert_eq!(watch.find_planted().paths, [link]);
    }

    #[test]
    fn replaced_known_repository_is_planted() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let git = root.join(".git");
        let create = || {
            fs::create_dir(&git).unwrap();
            fs::write(git.join("config"), "[core]\nfsmonitor = x\n").unwrap();
        };
        create();
        let mut watch = RepositoryWatch::new(vec![root.clone()]);
        watch.add_known(git.clone());
        assert!(watch.find_planted().paths.is_empty());
        // While the first exists, the second has another inode.
        fs::rename(&git, root.join("moved")).unwrap();
        create();
        assert_eq!(watch.find_planted().paths, [git]);
    }
}
