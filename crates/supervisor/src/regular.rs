//! Opening files that another program may have replaced.
//!
//! A FIFO in place of a file would block whoever opens it, a device may never end, and a link leads anywhere. Anything that is
//! not a regular file is refused, without waiting.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, openat};
use rustix::io::Errno;

const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Opens a regular file for reading; anything else is an error, and so is a symbolic link.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_at(CWD, path, OFlags::RDONLY)
}

/// Creates or truncates a regular file for writing, with mode 0600; anything else in its place is an error.
pub fn create_regular(path: &Path) -> io::Result<File> {
    open_regular_at(CWD, path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
}

/// Reads a regular file; anything else is an error, and so is a symbolic link.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn open_regular_at(directory: impl AsFd, path: &Path, flags: OFlags) -> io::Result<File> {
    // Not truncated by the open: a device or a file behind a link must not lose anything.
    let truncate = flags.contains(OFlags::TRUNC);
    let flags = flags.difference(OFlags::TRUNC) | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let file = match openat(directory, path, flags | OFlags::NONBLOCK, MODE) {
        // A link; a FIFO without a reader, a socket or a device without a driver; a directory that was to be written.
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV | Errno::ISDIR) => return Err(not_regular()),
        file => file?,
    };
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(not_regular());
    }
    // The flag is shared with every process that the file is handed to.
    fcntl_setfl(&file, fcntl_getfl(&file)?.difference(OFlags::NONBLOCK))?;
    let file = File::from(file);
    if truncate {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens the directory of a run. A FIFO or a link in its place is refused.
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
    fn anything_but_a_regular_file_is_refused_at_once() {
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
    fn regular_file_is_opened_without_nonblock_and_truncated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "old text").unwrap();
        let file = create_regular(&path).unwrap();
        assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
}
