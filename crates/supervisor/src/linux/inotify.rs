//! Word of changes in files and directories.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::io::{Errno, read};

/// A report with the longest name of a file.
const MAX_EVENT_BYTES: usize = 16 + 256;

/// Becomes readable when one of its files grows, or a name appears in one of its directories.
#[derive(Debug)]
pub struct InotifyWatch(OwnedFd);

impl InotifyWatch {
    /// Watches files, and not their directory: the supervisor writes its own there, too. One that is missing will not grow. None: the
    /// user has no watch left to give, and the reader has to look by itself.
    pub fn files(paths: &[&Path]) -> io::Result<Option<Self>> {
        Self::new(paths, WatchFlags::MODIFY)
    }

    /// Watches directories for new names. None: as above.
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

    /// Forgets flags has been reported so far. What it was does not matter: the reader looks at all of its files.
    pub fn drain(&self) -> io::Result<()> {
        let mut events = [0; 4096];
        loop {
            match read(&self.0, &mut events) {
                // With room left for another there is none.
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
