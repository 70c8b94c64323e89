//! Reads and writes the files of a record: atomically, locked, and never blocked by a FIFO.

use std::fs::{self, File, FileTimes};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ChangesError;

/// Reads at most `limit` bytes of a regular file. Returns `None` if there is none, or if it is larger.
pub(crate) fn read_small(path: &Path, limit: u64) -> Option<Vec<u8>> {
    read_limited(regular_file::open_linked(path), limit)
}

/// Reads at most `limit` bytes of a regular file that is no symbolic link. Returns `None` if there is none, or if it is larger.
pub(crate) fn read_unlinked(path: &Path, limit: u64) -> Option<Vec<u8>> {
    read_limited(regular_file::open_regular(path), limit)
}

fn read_limited(file: io::Result<File>, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    file.ok()?.take(limit + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= limit).then_some(bytes)
}

/// Replaces a file atomically. Nothing is fsynced, like the other files of a job: a record that a power cut has damaged is
/// reported, since JSON and objects can be checked.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), ChangesError> {
    let temporary = path.with_added_extension("new");
    let write = || {
        regular_file::create_regular(&temporary)?.write_all(bytes)?;
        fs::rename(&temporary, path)
    };
    write().map_err(ChangesError::file("write", path))
}

/// Writes a value as JSON, see [`replace_file`].
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ChangesError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|source| ChangesError::DamagedRecord { path: path.to_owned(), source })?;
    replace_file(path, &bytes)
}

/// Reads a value. Returns `None` if the file does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ChangesError> {
    let bytes = match regular_file::read_regular(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(ChangesError::file("read", path))?,
    };
    let damaged = |source| ChangesError::DamagedRecord { path: path.to_owned(), source };
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

/// Removes a file. Succeeds if there is none.
pub(crate) fn remove_file(path: &Path) -> Result<(), ChangesError> {
    ignore_missing(fs::remove_file(path)).map_err(ChangesError::file("remove", path))
}

/// Removes a directory with its content. Succeeds if there is none.
pub(crate) fn remove_directory(path: &Path) -> Result<(), ChangesError> {
    ignore_missing(fs::remove_dir_all(path)).map_err(ChangesError::file("remove", path))
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Copies an index, or removes the copy if there is no original. The copy keeps the modification time, see [`write_index`].
pub(crate) fn copy_index(from: &Path, to: &Path) -> Result<(), ChangesError> {
    let Some((bytes, modified)) = read_dated(from)? else { return remove_file(to) };
    write_dated(to, &bytes, Some(modified))
}

/// Reads an index. A missing one is empty.
pub(crate) fn read_index(path: &Path) -> Result<Vec<u8>, ChangesError> {
    Ok(read_dated(path)?.map(|(bytes, _)| bytes).unwrap_or_default())
}

/// Writes an index. A replaced one keeps its modification time: git compares it with the times of the entries to find files that
/// changed within the same tick of the clock.
pub(crate) fn write_index(path: &Path, bytes: &[u8]) -> Result<(), ChangesError> {
    let modified = fs::metadata(path).and_then(|file| file.modified()).ok();
    write_dated(path, bytes, modified)
}

/// Reads a file with its modification time. Returns `None` if there is none.
pub(crate) fn read_dated(path: &Path) -> Result<Option<(Vec<u8>, SystemTime)>, ChangesError> {
    let read = || {
        let mut file = regular_file::open_linked(path)?;
        let metadata = file.metadata()?;
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
        file.read_to_end(&mut bytes)?;
        Ok::<_, io::Error>((bytes, metadata.modified()?))
    };
    match read() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(ChangesError::file("read", path)),
    }
}

fn write_dated(path: &Path, bytes: &[u8], modified: Option<SystemTime>) -> Result<(), ChangesError> {
    let write = || {
        let mut file = regular_file::create_regular(path)?;
        file.write_all(bytes)?;
        modified.map_or(Ok(()), |modified| file.set_times(FileTimes::new().set_modified(modified)))
    };
    write().map_err(ChangesError::file("write", path))
}

/// Locks a record against other processes until the returned file is dropped.
pub(crate) fn lock(path: &Path) -> Result<File, ChangesError> {
    let open = || {
        let file = regular_file::open_lock_file(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok::<_, io::Error>(file)
    };
    open().map_err(ChangesError::file("lock", path))
}
