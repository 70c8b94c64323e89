//! The sockets of this machine that have a name in the file system.
//!
//! A read-only mount does not keep anybody from connecting, so each is covered by its own.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::real::Real;

/// `sun_path` without its closing NUL.
const LONGEST: usize = 107;

/// A path that a socket can be bound to and reached by, however long its own is.
///
/// A longer one leads through the open folder, by way of `/proc/self/fd`. The kernel lists a socket by the path that it was
/// bound to, so [`bound`] finds it only in the process that has bound it, and for as long as it keeps this.
#[derive(Debug)]
pub(crate) struct Address {
    pub path: PathBuf,
    _folder: Option<File>,
}

impl Address {
    pub fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= LONGEST {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let folder =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_PATH).open(folder)?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }
}

/// Every socket in the file system that somebody has bound, as the kernel lists them for this network namespace. Without those that
/// nobody reaches in a sandbox: they need no cover, and nothing can be mounted there.
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
        .filter(|path| is_reachable(path))
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Whether the way to a path is open without capabilities, which root has outside of a sandbox and not inside.
fn is_reachable(path: &Path) -> bool {
    if !rustix::process::geteuid().is_root() {
        // Seen by the same rights that it is looked for with.
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
        let folder = tempfile::tempdir().unwrap();
        let private = folder.path().join("private");
        fs::create_dir(&private).unwrap();
        let path = private.join("s");
        assert!(is_reachable(&path));
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&private, Some(65534), Some(65534)).unwrap();
        assert!(!is_reachable(&path));
    }

    #[test]
    fn a_socket_that_somebody_listens_on_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("a socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(bound().contains(&path));
        drop(listener);
        assert!(!bound().contains(&path));
    }

    #[test]
    fn a_socket_in_a_folder_of_any_depth_is_bound_reached_and_listed() {
        use std::os::unix::net::{UnixListener, UnixStream};
        let scratch = tempfile::tempdir().unwrap();
        let short = scratch.path().canonicalize().unwrap();
        for folder in
            [short.clone(), short.join("x".repeat(200)), short.join("y".repeat(200)).join("z".repeat(200))]
        {
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join("s");
            let address = Address::of(&path).unwrap();
            let listener = UnixListener::bind(&address.path).unwrap();
            assert!(bound().contains(&path), "{}", path.display());
            UnixStream::connect(&Address::of(&path).unwrap().path).unwrap();
            assert!(listener.accept().is_ok());
        }
    }
}
