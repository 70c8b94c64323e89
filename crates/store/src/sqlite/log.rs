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

use crate::sqlite::file::beside;
use crate::sqlite::writer::Log;

/// How much it grows at a time: the transactions of about ten calls.
const STEP: usize = 1 << 20;

/// The log of a file.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    open: Option<File>,
    /// How long it was made, or found.
    length: u64,
    has_grown: bool,
}

impl LogFile {
    pub fn of(file: &Path) -> Self {
        Self { path: beside(file, "-wal"), open: None, length: 0, has_grown: false }
    }

    /// It stays the same file for as long as the database is open. Nobody locks it, so another handle on it breaks no lock.
    fn open(&mut self) -> io::Result<&File> {
        let open = match self.open.take() {
            Some(open) => open,
            None => OpenOptions::new().read(true).write(true).open(&self.path)?,
        };
        Ok(self.open.insert(open))
    }

    fn grow(&mut self) -> io::Result<()> {
        let file = self.open()?;
        let end = file.metadata()?.len();
        file.write_all_at(&vec![0; STEP], end)?;
        self.length = end + STEP as u64;
        Ok(())
    }
}

impl Log for LogFile {
    fn make_room(&mut self) {
        if std::mem::take(&mut self.has_grown) {
            // A disk that has no room for zeros may have some for the transaction, which says so by itself.
            let _ = self.grow();
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let file = self.open()?;
        file.sync_data()?;
        let length = file.metadata()?.len();
        self.has_grown = length > self.length;
        self.length = length;
        Ok(())
    }
}

/// In memory, there is no disk to bring it to.
#[derive(Debug)]
pub struct NoLog;

impl Log for NoLog {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}
