//! Writes to a stream that several threads share, without breaking a line.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A writer that owns the stream from the start of a line to its end, however many writes it takes.
#[derive(Debug)]
pub(crate) struct LineWriter<'a, W> {
    stream: &'a Mutex<W>,
    guard: Option<MutexGuard<'a, W>>,
}

impl<'a, W: Write> LineWriter<'a, W> {
    pub(crate) fn new(stream: &'a Mutex<W>) -> Self {
        Self { stream, guard: None }
    }

    /// Writes bytes. Unless they end with a line feed, no other writer can write before the next call.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut guard = self.lock();
        let written = guard.write_all(bytes);
        if !bytes.ends_with(b"\n") {
            self.guard = Some(guard);
        }
        written
    }

    /// Waits until no other writer is within a line.
    pub(crate) fn lock(&mut self) -> MutexGuard<'a, W> {
        // A panic of another writer does not invalidate the stream.
        self.guard.take().unwrap_or_else(|| self.stream.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
