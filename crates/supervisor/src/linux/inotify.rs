//! Inotify watches on files and directories.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::io::{Errno, read};

/// The size of an event with the longest possible file name.
const MAX_EVENT_BYTES: usize = 16 + 256;

/// A descriptor that becomes readable when one of its files grows, or a name appears in one of its directories.
#[derive(Debug)]
pub struct InotifyWatch(OwnedFd);

impl InotifyWatch {
    /// Watches files instead of their directory, to which the supervisor writes as well. Missing files are skipped:
    /// they will not grow. Returns `None` if the user has no watch left; the caller then has to poll.
    pub fn files(paths: &[&Path]) -> io::Result<Option<Self>> {
        Self::new(paths, WatchFlags::MODIFY)
    }

    /// Watches open files, wherever they were moved. Returns `None` if the user has no watch left.
    pub fn open_files(files: &[BorrowedFd<'_>]) -> io::Result<Option<Self>> {
        let path = |file: &BorrowedFd<'_>| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let paths: Vec<PathBuf> = files.iter().map(path).collect();
        Self::files(&paths.iter().map(PathBuf::as_path).collect::<Vec<_>>())
    }

    /// Watches directories for new names. Returns `None` if the user has no watch left.
    pub fn directories(paths: &[&Path]) -> io::Result<Option<Self>> {
        let new_names = WatchFlags::CREATE | WatchFlags::MOVED_TO;
        Self::new(paths, new_names | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW)
    }

    fn new(paths: &[&Path], flags: WatchFlags) -> io::Result<Option<Self>> {
        let fd = match init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(Errno::MFILE) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        for path in paths {
            match add_watch(&fd, *path, flags) {
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(Errno::NOSPC) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Self(fd)))
    }

    /// Discards the queued events. Their content does not matter: the caller checks all of its files.
    pub fn drain(&self) -> io::Result<()> {
        let mut events = [0; 4096];
        loop {
            match read(&self.0, &mut events) {
                // A read with room for another event has emptied the queue.
                Ok(count) if count < events.len() - MAX_EVENT_BYTES => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for InotifyWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for InotifyWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
