//! The log beside the file: brought to the disk, and grown in steps.
//!
//! A file system that keeps a journal has to write there that a file has grown, which costs more than the bytes themselves; one that
//! is overwritten costs nothing of the kind. `SQLite` begins its log anew after each checkpoint and overwrites it then, but until it
//! has been filled once, every transaction makes it longer. So it is made longer by a good piece at a time. What is added are zeros,
//! which no transaction begins with: whoever recovers the log stops there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// How much it grows at a time: the transactions of about ten calls.
const STEP: usize = 1 << 20;

/// The log that `SQLite` writes ahead to, as far as it is not its own affair.
pub trait Log: Send + Sync {
    /// Makes room for what will be written to it. Asked within a transaction, so that nobody writes to it meanwhile.
    fn make_room(&self) {}
    /// Brings what was written to it to the disk.
    fn sync(&self) -> io::Result<()>;
}

/// The log of a file.
#[derive(Debug)]
pub struct LogFile {
    /// The same for as long as the database is open. Nobody locks it, so another handle on it breaks no lock.
    file: File,
    /// How long it was when it was synced last.
    length: AtomicU64,
    has_grown: AtomicBool,
}

impl LogFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { file, length: AtomicU64::new(0), has_grown: AtomicBool::new(false) })
    }

    fn grow(&self) -> io::Result<()> {
        let end = self.file.metadata()?.len();
        self.file.write_all_at(&vec![0; STEP], end)?;
        // That it has grown by this is no reason to make it grow.
        self.length.fetch_max(end + STEP as u64, Relaxed);
        Ok(())
    }
}

impl Log for LogFile {
    fn make_room(&self) {
        if self.has_grown.swap(false, Relaxed) {
            // A disk that has no room for zeros may have some for the transaction, which says so by itself.
            let _ = self.grow();
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        let length = self.file.metadata()?.len();
        if length > self.length.swap(length, Relaxed) {
            self.has_grown.store(true, Relaxed);
        }
        Ok(())
    }
}

/// Where there is no log, there is nothing to bring to the disk.
#[derive(Debug)]
pub struct NoLog;

impl Log for NoLog {
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
