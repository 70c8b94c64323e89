//! The sockets of this machine that have a name in the file system.
//!
//! A read-only mount does not keep anybody from connecting, so each is covered by its own.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use crate::real::Real;

/// Every socket in the file system that somebody has bound, as the kernel lists them for this network namespace.
pub(crate) fn bound() -> Vec<PathBuf> {
    let Ok(list) = fs::read("/proc/net/unix") else { return Vec::new() };
    let list = String::from_utf8_lossy(&list);
    let mut paths: Vec<PathBuf> = list
        .lines()
        .skip(1)
        // Seven columns, then the name, which may hold spaces.
        .filter_map(|line| line.split_once(" /").map(|(_, path)| PathBuf::from(format!("/{path}"))))
        .filter(|path| path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket()))
        .filter_map(|path| Real::path(&path).ok())
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_somebody_listens_on_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("a socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(bound().contains(&path));
        drop(listener);
        assert!(!bound().contains(&path));
    }
}
