//! System files that only root can read, such as `/etc/shadow`.
//!
//! A confined agent of root has no capabilities, but it owns these files. Below `/etc`, secrets are identified by their modes; elsewhere only
//! known paths are hidden, since a whole system cannot be searched at each start.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Known paths outside of `/etc`.
const KNOWN: [&str; 6] = [
    "/var/backups",
    "/var/cache/debconf/passwords.dat",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/private",
    "/var/spool/cron",
];

/// The depth of the search below `/etc`.
const MAX_DEPTH: usize = 4;

/// Returns the system's secrets if this process runs as root, else nothing.
pub(crate) fn find_root_secrets() -> Vec<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let mut secrets: Vec<PathBuf> = KNOWN.iter().map(PathBuf::from).filter(|path| path.exists()).collect();
    find_unreadable_by_others(Path::new("/etc"), MAX_DEPTH, &mut secrets);
    secrets
}

/// Finds the files and directories that other users cannot read.
fn find_unreadable_by_others(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (Ok(kind), path) = (entry.file_type(), entry.path()) else { continue };
        if kind.is_symlink() {
            continue;
        }
        let needed = if kind.is_dir() { 0o005 } else { 0o004 };
        match entry.metadata() {
            Ok(metadata) if metadata.mode() & needed != needed => found.push(path),
            Ok(_) if kind.is_dir() && depth > 1 => find_unreadable_by_others(&path, depth - 1, found),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secrets_are_found_by_mode() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, mode) in [("ssl/private/key", 0o644), ("hosts", 0o644), ("shadow", 0o640)] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), "").unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        for (name, mode) in [("ssl/private", 0o710), ("ssl", 0o755)] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink(at("shadow"), at("link")).unwrap();
        let mut found = Vec::new();
        find_unreadable_by_others(directory.path(), MAX_DEPTH, &mut found);
        found.sort();
        assert_eq!(found, [at("shadow"), at("ssl/private")]);
    }
}
