//! The mounts of a sandbox in the order in which they are made.
//!
//! A plan names each mount point once, parents before children, and leaves out mounts that change nothing. It is made outside, where the
//! policy is known, and carried out inside ([`crate::mounts`]).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::PRIVATE_DIRECTORIES as PRIVATE;
use serde::{Deserialize, Serialize};

use crate::layout::Mount;
use crate::real::Real;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlannedMount {
    /// The mount point.
    #[serde(with = "model::exact_path")]
    pub at: PathBuf,
    /// The contents, where those are the machine's.
    #[serde(with = "model::exact_path")]
    pub source: PathBuf,
    pub mount: Mount,
    /// The mount of this plan that the mount point lies on; none for the machine's own.
    pub around: Option<usize>,
}

impl PlannedMount {
    /// Whether a mount point below it may be missing and is made there: it shows something else than the machine does.
    pub fn is_own(&self) -> bool {
        matches!(self.mount, Mount::Private | Mount::HideFolder | Mount::Home) || self.source != self.at
    }

    /// Whether it can be read and not written.
    pub fn is_read_only(&self) -> bool {
        !matches!(self.mount, Mount::Private | Mount::Write | Mount::WriteFrom(_))
    }
}

/// Plans the mounts of a layout.
pub(crate) fn plan_mounts(layout: &[(PathBuf, Mount)]) -> io::Result<Vec<PlannedMount>> {
    let private = PRIVATE.map(PathBuf::from).into_iter().filter(|path| is_real_directory(path));
    // The devices stay writable, the directory itself included, as bubblewrap makes it.
    let own = [(PathBuf::from("/dev"), Mount::Write)];
    let own = own.into_iter().chain(private.map(|path| (path, Mount::Private)));
    let run = needed_of_run().into_iter().map(|path| (path, Mount::Read));
    let mut mounts: Vec<(PathBuf, Mount)> = own.chain(run).chain(layout.iter().cloned()).collect();
    mounts.sort_by_cached_key(|(path, mount)| (path.components().count(), path.clone(), mount.clone()));
    let mut plan: Vec<PlannedMount> = Vec::with_capacity(mounts.len());
    let mut places: HashMap<PathBuf, usize> = HashMap::with_capacity(mounts.len());
    for (index, (at, mount)) in mounts.iter().enumerate() {
        let is_outdone = mounts.get(index + 1).is_some_and(|(next, _)| next == at);
        let around = at.ancestors().skip(1).find_map(|above| places.get(above)).copied();
        if is_outdone || changes_nothing(at, mount, around.map(|around| &plan[around])) {
            continue;
        }
        if at.parent().is_none() {
            return Err(io::Error::other("`/` cannot be given as a whole"));
        }
        let source = match mount {
            Mount::WriteFrom(source) | Mount::ReadFrom(source) => source.clone(),
            // Not resolved again: another run may have exchanged it since it was checked.
            _ => at.clone(),
        };
        places.insert(at.clone(), plan.len());
        plan.push(PlannedMount { at: at.clone(), source, mount: mount.clone(), around });
    }
    Ok(plan)
}

/// Whether a mount point looks the same without the mount: the machine is read-only, and a missing path need not be hidden.
fn changes_nothing(at: &Path, mount: &Mount, around: Option<&PlannedMount>) -> bool {
    let kind = around.map(|around| &around.mount);
    match mount {
        Mount::Read => matches!(kind, None | Some(Mount::Read)),
        Mount::HideFile | Mount::HideFolder => match (kind, around) {
            (Some(Mount::HideFolder | Mount::Private | Mount::Home), _) => true,
            (Some(_), Some(around)) => {
                let below = at.strip_prefix(&around.at).unwrap_or(at);
                around.source != around.at && around.source.join(below).symlink_metadata().is_err()
            }
            _ => false,
        },
        Mount::Write | Mount::WriteFrom(_) | Mount::ReadFrom(_) | Mount::Private | Mount::Home => false,
    }
}

fn is_real_directory(path: &Path) -> bool {
    Real::of(path).is_ok_and(|real| real.is_folder && real.path == path)
}

/// Returns the paths of `/run` that programs need, where the sockets of the system are: how names are looked up, and on some systems the
/// programs themselves.
fn needed_of_run() -> Vec<PathBuf> {
    let resolver = fs::canonicalize("/etc/resolv.conf").ok().filter(|path| path.starts_with("/run"));
    let programs = Some(PathBuf::from("/run/current-system")).filter(|path| path.exists());
    resolver.into_iter().chain(programs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(layout: &[(&str, Mount)]) -> Vec<(PathBuf, Mount)> {
        let layout: Vec<_> =
            layout.iter().map(|(path, mount)| (PathBuf::from(path), mount.clone())).collect();
        let own = |path: &Path| path == Path::new("/dev") || PRIVATE.iter().any(|own| path.starts_with(own));
        let plan = plan_mounts(&layout).unwrap();
        plan.into_iter()
            .filter(|planned| !own(&planned.at))
            .map(|planned| (planned.at, planned.mount))
            .collect()
    }

    #[test]
    fn mount_that_changes_nothing_is_left_out() {
        let layout = [
            ("/etc", Mount::Read),
            ("/usr", Mount::HideFolder),
            ("/usr/share", Mount::HideFolder),
            ("/usr/bin", Mount::Read),
            ("/usr/bin/env", Mount::Read),
            ("/var", Mount::Write),
            ("/var", Mount::Read),
            ("/var/lib", Mount::Write),
        ];
        let expected = [("/usr", Mount::HideFolder), ("/usr/bin", Mount::Read), ("/var/lib", Mount::Write)];
        assert_eq!(planned(&layout), expected.map(|(path, mount)| (PathBuf::from(path), mount)));
    }

    #[test]
    fn root_directory_cannot_be_given_to_be_written() {
        assert!(plan_mounts(&[(PathBuf::from("/"), Mount::Write)]).is_err());
        assert!(plan_mounts(&[(PathBuf::from("/"), Mount::Read)]).is_ok());
    }
}
