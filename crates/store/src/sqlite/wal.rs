//! The write-ahead log: flushed by the writer and grown in large steps.
//!
//! A journaling file system must record each growth of a file, which costs more than the written bytes; overwriting
//! costs nothing extra. `SQLite` restarts its log after each checkpoint and then overwrites it, but until the log was
//! filled once, every transaction extends it. The log is therefore extended by a large block of zeros at a time. No
//! frame starts with zeros, so that recovery stops there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The size of a block: the transactions of about ten calls.
const GROWTH: usize = 1 << 20;

/// The operations on the write-ahead log that `SQLite` does not do itself.
pub trait WriteAheadLog: Send + Sync {
    /// Preallocates space. Called within a transaction, so that no other process writes to the log.
    fn preallocate(&self) {}
    /// Flushes the log with fsync.
    fn sync(&self) -> io::Result<()>;
}

/// The write-ahead log of a database file.
#[derive(Debug)]
pub struct WalFile {
    /// The same file while the database is open. It carries no locks, so that closing this descriptor releases none.
    file: File,
    /// The length at the last fsync.
    length: AtomicU64,
    has_grown: AtomicBool,
}

impl WalFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { file, length: AtomicU64::new(0), has_grown: AtomicBool::new(false) })
    }

    fn grow(&self) -> io::Result<()> {
        let end = self.file.metadata()?.len();
        self.file.write_all_at(&vec![0; GROWTH], end)?;
        // This growth must not trigger another one.
        self.length.fetch_max(end + GROWTH as u64, Relaxed);
        Ok(())
    }
}

impl WriteAheadLog for WalFile {
    fn preallocate(&self) {
        if self.has_grown.swap(false, Relaxed) {
            // Without space for zeros there may still be enough for the transaction, which reports ENOSPC itself.
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

/// The log of a database without one: there is nothing to flush.
#[derive(Debug)]
pub struct NoWal;

impl WriteAheadLog for NoWal {
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
