//! Opens paths without following a symbolic link in any component.
//!
//! Another run may swap a directory for a link at any moment. A path that was checked before resolves to the same file, or fails to open.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2};

/// Opens an absolute path.
pub(crate) fn open_without_links(path: &Path) -> io::Result<OwnedFd> {
    resolve(CWD, path, OFlags::PATH, ResolveFlags::NO_SYMLINKS)
}

/// Opens a path relative to a directory and below it; an empty path opens the directory itself.
pub(crate) fn open_beneath(directory: impl AsFd, relative: &Path) -> io::Result<OwnedFd> {
    resolve(
        directory,
        dot_if_empty(relative),
        OFlags::PATH,
        ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH,
    )
}

/// Opens a directory in the same way for reading its entries.
pub(crate) fn open_directory_beneath(directory: impl AsFd, relative: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    resolve(directory, dot_if_empty(relative), flags, ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH)
}

fn dot_if_empty(relative: &Path) -> &Path {
    if relative.as_os_str().is_empty() { Path::new(".") } else { relative }
}

fn resolve(directory: impl AsFd, path: &Path, flags: OFlags, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    // No `O_NOFOLLOW`: with `O_PATH` the kernel would open a link in the last component instead of rejecting it.
    let flags = flags | OFlags::CLOEXEC;
    loop {
        match openat2(directory.as_fd(), path, flags, Mode::empty(), resolve) {
            // A concurrent rename may have led out of the directory; the kernel requests a retry.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
}

/// Reads a regular file of at most `max_bytes` that an agent may have replaced: does not follow a link and does not block on a FIFO.
pub(crate) fn read_regular_file(path: &Path, max_bytes: u64) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= max_bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn link_in_any_component_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("a", root.join("link")).unwrap();
        symlink("b", root.join("a/last")).unwrap();
        assert!(open_without_links(&root.join("a/b")).is_ok());
        let opened = open_without_links(&root).unwrap();
        assert!(open_beneath(&opened, Path::new("a/b")).is_ok());
        assert!(open_beneath(&opened, Path::new("")).is_ok());
        for name in ["link/b", "link", "a/last"] {
            let error = open_without_links(&root.join(name)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{name}");
            assert!(open_beneath(&opened, Path::new(name)).is_err(), "{name}");
        }
        assert!(open_beneath(&opened, Path::new("a/../..")).is_err());
    }

    #[test]
    fn fifo_or_link_in_place_of_a_file_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "text").unwrap();
        symlink("file", path("link")).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(CWD, path("fifo"), kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(read_regular_file(&path("file"), 4).unwrap(), b"text");
        for (name, max_bytes) in [("file", 3), ("link", 4), ("fifo", 4), (".", 4), ("missing", 4)] {
            assert_eq!(read_regular_file(&path(name), max_bytes), None, "{name}");
        }
    }
}
