//! Word of changes in a spool, for those who read along.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;

/// Becomes readable when one of its files grows.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Watches files, and not their folder: the supervisor writes its own there, too. One that is missing will not grow. None: the
    /// user has no watch left to give, and the reader has to look by itself.
    pub fn files(paths: &[&Path]) -> io::Result<Option<Self>> {
        let fd = match init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(Errno::MFILE) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        for path in paths {
            match add_watch(&fd, *path, WatchFlags::MODIFY) {
                Ok(_) | Err(Errno::NOENT) => {}
                Err(Errno::NOSPC) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Self(fd)))
    }

    /// Forgets what has been reported so far.
    pub fn drain(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.0, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => return Ok(()),
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
