//! Plans the mounts of a sandbox in the order of their creation.
//!
//! A plan names each mount point once, parents before children, and omits mounts without an effect. It is computed outside, where the policy
//! is known, and executed inside ([`crate::mounts`]).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::PRIVATE_DIRECTORIES as PRIVATE;
use serde::{Deserialize, Serialize};

use crate::real_path::RealPath;

/// The kind of a mount. For the same path, a later variant of this list wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Mount {
    /// A private empty directory, writable.
    Private,
    /// The path itself, writable. This also pins a directory: a mount point cannot be renamed.
    Write,
    /// The path itself, read-only.
    Read,
    /// Another path in its place, writable.
    WriteFrom(#[serde(with = "model::exact_path")] PathBuf),
    /// Another path in its place, read-only.
    ReadFrom(#[serde(with = "model::exact_path")] PathBuf),
    /// An empty file in place of a socket, unless the socket is gone by then.
    HideSocket,
    /// An empty file in place of a file.
    HideFile,
    /// An empty directory in its place.
    #[serde(rename = "HideFolder")]
    HideDirectory,
    /// An empty home directory, even if the machine has none there.
    Home,
}

impl Mount {
    /// Returns whether the mount hides the machine's files.
    pub fn is_mask(&self) -> bool {
        matches!(self, Self::HideSocket | Self::HideFile | Self::HideDirectory | Self::Home)
    }
}

/// A planned mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlannedMount {
    /// The mount point.
    #[serde(with = "model::exact_path")]
    pub at: PathBuf,
    /// The path of the contents, if those are the machine's.
    #[serde(with = "model::exact_path")]
    pub source: PathBuf,
    pub mount: Mount,
    /// The index of the planned mount that contains the mount point; `None` for the machine's own.
    pub around: Option<usize>,
}

impl PlannedMount {
    /// Returns whether it shows other contents than the machine, so that mount points below it have to be created.
    pub fn differs_from_machine(&self) -> bool {
        matches!(self.mount, Mount::Private | Mount::HideDirectory | Mount::Home) || self.source != self.at
    }

    /// Returns whether it is read-only.
    pub fn is_read_only(&self) -> bool {
        !matches!(self.mount, Mount::Private | Mount::Write | Mount::WriteFrom(_))
    }
}

/// Plans the mounts of a layout.
pub(crate) fn plan_mounts(layout: &[(PathBuf, Mount)]) -> io::Result<Vec<PlannedMount>> {
    let private = PRIVATE.map(PathBuf::from).into_iter().filter(|path| is_real_directory(path));
    // Devices and `/dev` itself stay writable, as bubblewrap creates them.
    let own = [(PathBuf::from("/dev"), Mount::Write)];
    let own = own.into_iter().chain(private.map(|path| (path, Mount::Private)));
    let run = find_needed_in_run().into_iter().map(|path| (path, Mount::Read));
    let mut mounts: Vec<(PathBuf, Mount)> = own.chain(run).chain(layout.iter().cloned()).collect();
    mounts.sort_by_cached_key(|(path, mount)| (path.components().count(), path.clone(), mount.clone()));
    let mut plan: Vec<PlannedMount> = Vec::with_capacity(mounts.len());
    let mut indices: HashMap<PathBuf, usize> = HashMap::with_capacity(mounts.len());
    for (index, (at, mount)) in mounts.iter().enumerate() {
        let is_overridden = mounts.get(index + 1).is_some_and(|(next, _)| next == at);
        let around = at.ancestors().skip(1).find_map(|above| indices.get(above)).copied();
        if is_overridden || has_no_effect(at, mount, around.map(|around| &plan[around])) {
            continue;
        }
        if at.parent().is_none() {
            return Err(io::Error::other("`/` cannot be writable as a whole"));
        }
        let source = match mount {
            Mount::WriteFrom(source) | Mount::ReadFrom(source) => source.clone(),
            // Not resolved again: another run may have replaced it since the check.
            _ => at.clone(),
        };
        indices.insert(at.clone(), plan.len());
        plan.push(PlannedMount { at: at.clone(), source, mount: mount.clone(), around });
    }
    Ok(plan)
}

/// Returns whether a mount has no effect: the machine is read-only anyway, and a missing path need not be hidden.
fn has_no_effect(at: &Path, mount: &Mount, around: Option<&PlannedMount>) -> bool {
    let kind = around.map(|around| &around.mount);
    match mount {
        Mount::Read => matches!(kind, None | Some(Mount::Read)),
        Mount::HideSocket | Mount::HideFile | Mount::HideDirectory => match (kind, around) {
            (Some(Mount::HideDirectory | Mount::Private | Mount::Home), _) => true,
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
    RealPath::resolve(path).is_ok_and(|real| real.is_directory && real.path == path)
}

/// Returns the paths that programs need in `/run`, which is private because of its sockets: the resolver's configuration, and on NixOS the
/// programs themselves.
fn find_needed_in_run() -> Vec<PathBuf> {
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
    fn mount_without_effect_is_omitted() {
        let layout = [
            ("/etc", Mount::Read),
            ("/usr", Mount::HideDirectory),
            ("/usr/share", Mount::HideDirectory),
            ("/usr/bin", Mount::Read),
            ("/usr/bin/env", Mount::Read),
            ("/var", Mount::Write),
            ("/var", Mount::Read),
            ("/var/lib", Mount::Write),
        ];
        let expected =
            [("/usr", Mount::HideDirectory), ("/usr/bin", Mount::Read), ("/var/lib", Mount::Write)];
        assert_eq!(planned(&layout), expected.map(|(path, mount)| (PathBuf::from(path), mount)));
    }

    #[test]
    fn root_directory_cannot_be_writable() {
        assert!(plan_mounts(&[(PathBuf::from("/"), Mount::Write)]).is_err());
        assert!(plan_mounts(&[(PathBuf::from("/"), Mount::Read)]).is_ok());
    }
}
