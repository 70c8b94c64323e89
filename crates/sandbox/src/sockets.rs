//! The Unix sockets of this machine that have a path in the file system.
//!
//! A read-only mount does not prevent a connection, so each socket is masked by its own mount.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::real_path::real_path;

/// The size of `sun_path` without its NUL.
const MAX_PATH_BYTES: usize = 107;

/// A path for bind and connect that fits into `sun_path`.
///
/// A path that is too long is replaced by one through the open directory in `/proc/self/fd`. The kernel lists a socket by the path that
/// it was bound to, so [`find_bound_sockets`] finds such a socket only in the process that bound it, while this value lives.
#[derive(Debug)]
pub(crate) struct SocketPath {
    pub path: PathBuf,
    _directory: Option<File>,
}

impl SocketPath {
    /// Returns a path of at most 107 bytes.
    pub fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= MAX_PATH_BYTES {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let directory =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_PATH).open(directory)?;
        let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _directory: Some(directory) })
    }
}

/// Returns the bound sockets of this network namespace, as the kernel lists them. Sockets that are not reachable in a sandbox are
/// omitted: they need no mask, and nothing can be mounted on them.
pub(crate) fn find_bound_sockets() -> Vec<PathBuf> {
    let Ok(list) = fs::read("/proc/net/unix") else { return Vec::new() };
    let list = String::from_utf8_lossy(&list);
    let mut paths: Vec<PathBuf> = list
        .lines()
        .skip(1)
        // Seven columns, then the path, which may contain spaces.
        .filter_map(|line| line.split_once(" /").map(|(_, path)| PathBuf::from(format!("/{path}"))))
        .filter(|path| path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket()))
        .filter_map(|path| real_path(&path).ok())
        .filter(|path| is_reachable(path))
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Returns whether a path can be reached without capabilities, which root has outside of a sandbox but not inside.
fn is_reachable(path: &Path) -> bool {
    if !rustix::process::geteuid().is_root() {
        // The list was resolved with the same permissions.
        return true;
    }
    let groups = rustix::process::getgroups().unwrap_or_default();
    let groups: Vec<u32> =
        groups.into_iter().chain([rustix::process::getegid()]).map(rustix::process::Gid::as_raw).collect();
    let is_open = |directory: &Path| {
        directory.metadata().is_ok_and(|found| {
            let bit = match found.uid() {
                0 => 0o100,
                _ if groups.contains(&found.gid()) => 0o010,
                _ => 0o001,
            };
            found.mode() & bit != 0
        })
    };
    path.ancestors().skip(1).all(is_open)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn socket_in_another_users_private_directory_is_not_reachable() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let private = directory.path().join("private");
        fs::create_dir(&private).unwrap();
        let path = private.join("s");
        assert!(is_reachable(&path));
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&private, Some(65534), Some(65534)).unwrap();
        assert!(!is_reachable(&path));
    }

    #[test]
    fn only_listening_socket_is_listed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("a socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(find_bound_sockets().contains(&path));
        drop(listener);
        assert!(!find_bound_sockets().contains(&path));
    }

    #[test]
    fn socket_with_a_long_path_is_usable_and_listed() {
        use std::os::unix::net::{UnixListener, UnixStream};
        let scratch = tempfile::tempdir().unwrap();
        let short = scratch.path().canonicalize().unwrap();
        for directory in
            [short.clone(), short.join("x".repeat(200)), short.join("y".repeat(200)).join("z".repeat(200))]
        {
            fs::create_dir_all(&directory).unwrap();
            let path = directory.join("s");
            let address = SocketPath::new(&path).unwrap();
            let listener = UnixListener::bind(&address.path).unwrap();
            assert!(find_bound_sockets().contains(&path), "{}", path.display());
            UnixStream::connect(&SocketPath::new(&path).unwrap().path).unwrap();
            assert!(listener.accept().is_ok());
        }
    }
}
