//! Tells paths of the user from those that another active run may have created.
//!
//! A protected path that was missing when a run started may be created by its agent, and is moved when that run is over. A run that
//! starts meanwhile finds it and must not take it for the user's: its read-only mount would go with the path, and what the second
//! agent creates in its place would stay. So the second run treats such a path as missing, too, and moves it at its own end.

use std::path::{Path, PathBuf};

use crate::aliases::Mounts;
use crate::quarantine::{Quarantine, QuarantineTime};

/// The protected paths that were missing when other active runs started, by all their names.
#[derive(Debug, Default)]
pub(crate) struct UntrustedPaths(Vec<(PathBuf, QuarantineTime)>);

impl UntrustedPaths {
    /// Collects the paths of other runs. One of them may have come to the same directory by another mount.
    pub fn find(others: &[Quarantine], mounts: &Mounts) -> Self {
        let mut paths = Vec::new();
        for (path, time) in others.iter().flat_map(Quarantine::missing) {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let names = mounts.names(parent).into_iter().map(|parent| parent.join(name));
            paths.extend(names.chain([path.clone()]).map(|path| (path, *time)));
        }
        paths.sort();
        paths.dedup_by(|later, earlier| later.0 == earlier.0);
        Self(paths)
    }

    /// Whether this very path is one of them.
    pub fn contains(&self, path: &Path) -> bool {
        self.0.binary_search_by(|(known, _)| known.as_path().cmp(path)).is_ok()
    }

    /// Whether a path is one of them or lies in one.
    pub fn hold(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.contains(above))
    }

    /// Returns those that lie in one of the directories.
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
        UntrustedPaths::find(&lists, &Mounts::default())
    }

    #[test]
    fn paths_of_all_runs_are_known_with_the_stricter_time() {
        use QuarantineTime::{AtEnd, AtEndUnlessInert, AtOnce};
        let paths = untrusted(&[&[("/ws/.git", AtEndUnlessInert), ("/ws/x", AtEnd)], &[("/ws/x", AtOnce)]]);
        assert!(paths.contains(Path::new("/ws/x")) && !paths.contains(Path::new("/ws/.git/hooks")));
        assert!(paths.hold(Path::new("/ws/.git/hooks")) && !paths.hold(Path::new("/ws/.gitignore")));
        assert_eq!(
            paths.below(&["/ws".into()]),
            [("/ws/.git".into(), AtEndUnlessInert), ("/ws/x".into(), AtOnce)]
        );
    }

    #[test]
    fn only_paths_in_a_directory_that_is_written_are_returned() {
        let paths = untrusted(&[&[("/ws/.envrc", QuarantineTime::AtEnd)]]);
        for (root, count) in [("/", 1), ("/ws", 1), ("/ws/.envrc", 0), ("/ws/sub", 0), ("/w", 0)] {
            assert_eq!(paths.below(&[root.into()]).len(), count, "{root}");
        }
    }
}
