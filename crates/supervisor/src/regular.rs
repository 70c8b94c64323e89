//! Opens files that another program may have replaced.
//!
//! Opening a FIFO would block, a device may never reach its end, and a symbolic link leads anywhere. Anything but a
//! regular file is rejected without blocking.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, openat};
use rustix::io::Errno;

const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Opens a regular file for reading. Anything else is an error, including a symbolic link.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_at(CWD, path, OFlags::RDONLY)
}

/// Creates or truncates a regular file with mode 0600. Anything else at that path is an error.
pub fn create_regular(path: &Path) -> io::Result<File> {
    open_regular_at(CWD, path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
}

/// Reads a regular file. Anything else is an error, including a symbolic link.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn open_regular_at(directory: impl AsFd, path: &Path, flags: OFlags) -> io::Result<File> {
    // Truncated only after the type check: O_TRUNC could destroy a device or the target of a link.
    let truncate = flags.contains(OFlags::TRUNC);
    let flags = flags.difference(OFlags::TRUNC) | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let file = match openat(directory, path, flags | OFlags::NONBLOCK, MODE) {
        // ELOOP: a link. ENXIO, ENODEV: a FIFO without a reader, a socket, a device without a driver. EISDIR: a
        // directory.
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV | Errno::ISDIR) => return Err(not_regular()),
        file => file?,
    };
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(not_regular());
    }
    // O_NONBLOCK belongs to the open file description, so every process that inherits the file would get it.
    fcntl_setfl(&file, fcntl_getfl(&file)?.difference(OFlags::NONBLOCK))?;
    let file = File::from(file);
    if truncate {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens the directory of a run. Anything but a directory is rejected, including a symbolic link.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::mknodat;

    use super::*;

    #[test]
    fn non_regular_file_is_rejected_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mknodat(CWD, at("fifo"), FileType::Fifo, MODE, 0).unwrap();
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("file"), "kept").unwrap();
        symlink(at("file"), at("link")).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        for name in ["fifo", "directory", "link", "socket", "/dev/null", "/dev/tty"] {
            for opened in [open_regular(&at(name)), create_regular(&at(name))] {
                assert!(opened.is_err(), "{name}: {opened:?}");
            }
        }
        assert_eq!(read_regular(&at("file")).unwrap(), b"kept");
    }

    #[test]
    fn created_file_is_truncated_and_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "old text").unwrap();
        let file = create_regular(&path).unwrap();
        assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
}
