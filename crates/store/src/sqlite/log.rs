//! The log beside the file: brought to the disk, and grown in steps.
//!
//! A file system that keeps a journal has to write there that a file has grown, which costs more than the bytes themselves; one that
//! is overwritten costs nothing of the kind. `SQLite` begins its log anew after each checkpoint and overwrites it then, but until it
//! has been filled once, every transaction makes it longer. So it is made longer by a good piece at a time. What is added are zeros,
//! which no transaction begins with: whoever recovers the log stops there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::sqlite::file::beside;

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
    path: PathBuf,
    open: OnceLock<File>,
    /// How long it was when it was synced last.
    length: AtomicU64,
    has_grown: AtomicBool,
}

impl LogFile {
    pub fn of(file: &Path) -> Self {
        let (length, has_grown) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { path: beside(file, "-wal"), open: OnceLock::new(), length, has_grown }
    }

    /// It stays the same file for as long as the database is open. Nobody locks it, so another handle on it breaks no lock.
    fn open(&self) -> io::Result<&File> {
        if let Some(open) = self.open.get() {
            return Ok(open);
        }
        let open = OpenOptions::new().read(true).write(true).open(&self.path)?;
        Ok(self.open.get_or_init(|| open))
    }

    fn grow(&self) -> io::Result<()> {
        let file = self.open()?;
        let end = file.metadata()?.len();
        file.write_all_at(&vec![0; STEP], end)?;
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
        let file = self.open()?;
        file.sync_data()?;
        let length = file.metadata()?.len();
        if length > self.length.swap(length, Relaxed) {
            self.has_grown.store(true, Relaxed);
        }
        Ok(())
    }
}

/// In memory, there is no disk to bring it to.
#[derive(Debug)]
pub struct NoLog;

impl Log for NoLog {
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
