//! Distinguishes paths of the user from paths that another active run may have created.
//!
//! A protected path that was missing when a run started may be created by its agent, and is moved to quarantine when that run is over. A
//! second run that starts in between must not treat the path as the user's: its read-only mount would move along with the path, and a
//! file that the second agent creates in its place would stay. The second run therefore treats the path as missing and quarantines it at
//! its own end.

use std::path::{Path, PathBuf};

use crate::aliases::MountTable;
use crate::quarantine::{Quarantine, QuarantineTime};

/// The protected paths that were missing when other active runs started, with their aliases.
#[derive(Debug, Default)]
pub(crate) struct UntrustedPaths(Vec<(PathBuf, QuarantineTime)>);

impl UntrustedPaths {
    /// Collects the paths of other runs, which may use the same directory through another mount.
    pub fn find(others: &[Quarantine], mounts: &MountTable) -> Self {
        let mut paths = Vec::new();
        for (path, time) in others.iter().flat_map(Quarantine::missing) {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let names = mounts.directory_aliases(parent).into_iter().map(|parent| parent.join(name));
            paths.extend(names.chain([path.clone()]).map(|path| (path, *time)));
        }
        paths.sort();
        paths.dedup_by(|later, earlier| later.0 == earlier.0);
        Self(paths)
    }

    /// Returns whether the path itself is untrusted.
    pub fn contains(&self, path: &Path) -> bool {
        self.0.binary_search_by(|(known, _)| known.as_path().cmp(path)).is_ok()
    }

    /// Returns whether the path or one of its parents is untrusted.
    pub fn covers(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.contains(above))
    }

    /// Returns the untrusted paths in one of the directories.
    pub fn below(&self, directories: &[PathBuf]) -> Vec<(PathBuf, QuarantineTime)> {
        let is_below = |path: &Path| directories.iter().any(|root| path != root && path.starts_with(root));
        self.0.iter().filter(|(path, _)| is_below(path)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn untrusted(lists: &[&[(&str, QuarantineTime)]]) -> UntrustedPaths {
        let list = |paths: &&[(&str, QuarantineTime)]| {
            let mut quarantine = Quarantine::default();
            paths.iter().for_each(|(path, time)| quarantine.add(path.into(), *time));
            quarantine
        };
        let lists: Vec<Quarantine> = lists.iter().map(list).collect();
        UntrustedPaths::find(&lists, &MountTable::default())
    }

    #[test]
    fn path_of_two_runs_has_the_stricter_time() {
        use QuarantineTime::{AtEnd, AtEndUnlessInert, AtOnce};
        let paths = untrusted(&[&[("/ws/.git", AtEndUnlessInert), ("/ws/x", AtEnd)], &[("/ws/x", AtOnce)]]);
        assert!(paths.contains(Path::new("/ws/x")) && !paths.contains(Path::new("/ws/.git/hooks")));
        assert!(paths.covers(Path::new("/ws/.git/hooks")) && !paths.covers(Path::new("/ws/.gitignore")));
        assert_eq!(
            paths.below(&["/ws".into()]),
            [("/ws/.git".into(), AtEndUnlessInert), ("/ws/x".into(), AtOnce)]
        );
    }

    #[test]
    fn only_paths_below_a_writable_directory_are_returned() {
        let paths = untrusted(&[&[("/ws/.envrc", QuarantineTime::AtEnd)]]);
        for (root, count) in [("/", 1), ("/ws", 1), ("/ws/.envrc", 0), ("/ws/sub", 0), ("/w", 0)] {
            assert_eq!(paths.below(&[root.into()]).len(), count, "{root}");
        }
    }
}
