//! A socket in a folder, however long the folder's path is.
//!
//! The kernel takes 107 bytes for the address of a socket. A longer one is reached through the open folder, by way of
//! `/proc/self/fd`, which is short whatever it stands for.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// `sun_path` without its closing NUL.
const LONGEST: usize = 107;

/// The longest name of a socket, of two numbers of 64 bits.
const LONGEST_NAME: usize = "ffffffffffffffff-ffffffffffffffff.sock".len();

/// Whether the address of any socket in a folder is its own path.
pub fn fits(folder: &Path) -> bool {
    folder.as_os_str().as_bytes().len() + "/".len() + LONGEST_NAME <= LONGEST
}

/// The name of the socket of a state folder, which is no other's: several may share one runtime folder.
pub fn name_for(state: &File) -> io::Result<OsString> {
    let metadata = state.metadata()?;
    Ok(format!("{:x}-{:x}.sock", metadata.dev(), metadata.ino()).into())
}

/// Listens there. What a dead daemon left in the place is removed: only the holder of the daemon's lock may call this.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = Address::of(path)?;
    match std::fs::remove_file(&address.path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&address.path)?;
    // Nobody else could come in before this either: the folder is closed to others.
    std::fs::set_permissions(&address.path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Connects to it.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(&Address::of(path)?.path)
}

/// A path that fits, and the open folder that it may lead through.
struct Address {
    path: PathBuf,
    _folder: Option<File>,
}

impl Address {
    fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= LONGEST {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = i32::try_from((OFlags::DIRECTORY | OFlags::PATH).bits()).unwrap_or_default();
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn talks(path: &Path) {
        let listener = listen(path).unwrap();
        let mut client = connect(path).unwrap();
        client.write_all(b"hello").unwrap();
        drop(client);
        let mut heard = String::new();
        listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hello");
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_path_of_any_length_is_listened_on_and_found() {
        let scratch = tempfile::tempdir().unwrap();
        let prefix = scratch.path().as_os_str().len() + 1;
        for length in [LONGEST - 1, LONGEST, LONGEST + 1, 200, 1000] {
            let mut folder = scratch.path().to_owned();
            // File names are at most 255 bytes long.
            let mut left = length - prefix - "/s.sock".len();
            while left > 0 {
                let piece = left.min(100);
                folder = folder.join("x".repeat(piece));
                left = left.saturating_sub(piece + 1);
            }
            std::fs::create_dir_all(&folder).unwrap();
            talks(&folder.join("s.sock"));
            // And again, in the place of what the first left behind.
            talks(&folder.join("s.sock"));
        }
    }

    #[test]
    fn where_nobody_listens_any_more_the_connection_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("s.sock");
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(listen(&path).unwrap());
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
