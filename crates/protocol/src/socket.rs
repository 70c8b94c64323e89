//! Unix sockets with paths of any length.
//!
//! `sun_path` holds 107 bytes. A longer path is addressed through a descriptor of its directory, as `/proc/self/fd/N/NAME`. It occurs below a
//! long home if there is no `XDG_RUNTIME_DIR` (cron, containers). A shorter path elsewhere is no substitute: `/tmp` is shared with other users
//! and with sandboxed agents, and `chdir` affects all threads. The detour adds 4 µs to a connection of 10 µs; a short path skips it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use regular_file::{FileKind, WrongFileType};
use rustix::fs::OFlags;

/// The size of `sun_path` without the terminating NUL.
const MAX_ADDRESS_BYTES: usize = 107;

/// The longest name of a socket: two 64-bit numbers.
const MAX_NAME_BYTES: usize = "ffffffffffffffff-ffffffffffffffff.sock".len();

/// Returns whether a socket in a directory can be bound by its own path.
pub fn fits(directory: &Path) -> bool {
    directory.as_os_str().as_bytes().len() + "/".len() + MAX_NAME_BYTES <= MAX_ADDRESS_BYTES
}

/// Returns the name of the socket of a state directory. It is unique: several state directories may share a runtime directory.
pub fn socket_name(state: &File) -> io::Result<OsString> {
    let metadata = state.metadata()?;
    Ok(format!("{:x}-{:x}.sock", metadata.dev(), metadata.ino()).into())
}

/// Binds a socket with mode 0600. Removes a stale one, so only the holder of the daemon's lock may call this.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = Address::new(path)?;
    match std::fs::remove_file(&address.path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            return Err(WrongFileType { path: path.to_owned(), expected: FileKind::Socket }.into());
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&address.path)?;
    // No other user could connect before this either: the directory is private.
    std::fs::set_permissions(&address.path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Connects to a socket.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(&Address::new(path)?.path)
}

/// A path that fits into `sun_path`, and the open directory that it may lead through.
struct Address {
    path: PathBuf,
    _directory: Option<File>,
}

impl Address {
    fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= MAX_ADDRESS_BYTES {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = i32::try_from((OFlags::DIRECTORY | OFlags::PATH).bits()).unwrap_or_default();
        let directory = OpenOptions::new().read(true).custom_flags(flags).open(directory)?;
        let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _directory: Some(directory) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn assert_connectable(path: &Path) {
        let listener = listen(path).unwrap();
        let mut client = connect(path).unwrap();
        client.write_all(b"hello").unwrap();
        drop(client);
        let mut received = String::new();
        listener.accept().unwrap().0.read_to_string(&mut received).unwrap();
        assert_eq!(received, "hello");
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn long_path_is_bound_and_connected() {
        let scratch = tempfile::tempdir().unwrap();
        let prefix = scratch.path().as_os_str().len() + 1;
        for length in [MAX_ADDRESS_BYTES - 1, MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES + 1, 200, 1000] {
            let mut directory = scratch.path().to_owned();
            // NAME_MAX is 255 bytes.
            let mut left = length - prefix - "/s.sock".len();
            while left > 0 {
                let length = left.min(100);
                directory = directory.join("x".repeat(length));
                left = left.saturating_sub(length + 1);
            }
            std::fs::create_dir_all(&directory).unwrap();
            assert_connectable(&directory.join("s.sock"));
            // Once more, over the stale socket of the first.
            assert_connectable(&directory.join("s.sock"));
        }
    }

    #[test]
    fn connection_to_dead_listener_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("s.sock");
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(listen(&path).unwrap());
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
