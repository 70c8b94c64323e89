//! Lists the tracked files that differ from an index without a git process, which takes more than 2 ms for 1,000 files.
//!
//! As in git, a file with the stat data of its entry is unmodified. If it was modified in the second in which the index was written, it can
//! have changed since without other stat data, and its content is compared. Git itself lists the files of an index with other entries:
//! conflicts, submodules, flags, sparse directories, or a part in a shared index.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, statat};

use crate::beneath::{LastDirectory, Root};
use crate::entry::Entry;
use crate::error::ChangesError;
use crate::files::read_dated;
use crate::git::Git;
use crate::index_file::{StoredEntry, has_extension, visit_entries};
use crate::private_git::read_own_settings;
use crate::raw_files::{are_raw, find_entry, find_mode};
use crate::stat_data::{ModificationTime, is_same};

/// The length of a name. The other bits are flags and the stage of a conflict.
const NAME_LENGTH: u16 = 0x0FFF;

/// The result of a comparison of the stat data.
enum Comparison {
    Same,
    /// The content can differ.
    Racy,
    Different,
}

/// Lists the files that differ, or may differ, with their entries. Returns `None` if there are more of them, or if only git can list them.
pub(crate) fn list_modified(
    git: &Git,
    index: &Path,
    size_limit: u64,
    limit: usize,
) -> Result<Option<BTreeMap<PathBuf, Entry>>, ChangesError> {
    let Some((bytes, written)) = read_dated(index)? else { return Ok(Some(BTreeMap::new())) };
    let (Some(written), Ok(root)) = (ModificationTime::new(written), Root::open(&git.worktree)) else {
        return Ok(None);
    };
    if !is_plain(git, &bytes) {
        return Ok(None);
    }
    let mut directory = LastDirectory::new(&root);
    let (mut modified, mut racy, mut is_complete) = (BTreeMap::new(), BTreeMap::new(), true);
    visit_entries(&bytes, git.id_length, |entry| {
        if !is_complete {
            return;
        }
        let path = Path::new(OsStr::from_bytes(entry.name));
        match compare(&mut directory, path, &entry, written) {
            Ok(Comparison::Same) => {}
            Ok(Comparison::Racy) => drop(racy.insert(path.to_owned(), entry.to_entry())),
            Ok(Comparison::Different) => drop(modified.insert(path.to_owned(), entry.to_entry())),
            Err(_) => is_complete = false,
        }
        is_complete &= modified.len() + racy.len() <= limit && git.check_time().is_ok();
    });
    if !is_complete || (!racy.is_empty() && !are_raw(git, racy.keys().map(PathBuf::as_path))) {
        return Ok(None);
    }
    modified.extend(
        racy.into_iter().filter(|(path, entry)| {
            find_entry(git, &mut directory, path, size_limit).as_ref() != Some(entry)
        }),
    );
    Ok(Some(modified))
}

/// Returns whether the stat data of the files decide for all entries.
fn is_plain(git: &Git, index: &[u8]) -> bool {
    let settings = read_own_settings(git);
    let is_off = |key| settings.get_bool(key) == Some(false);
    let mut has_plain_entries = true;
    let extensions = visit_entries(index, git.id_length, |entry| {
        let is_file = entry.mode & 0o170_000 == 0o100_000 || entry.mode == Entry::LINK;
        has_plain_entries &= is_file && entry.flags & !NAME_LENGTH == 0;
    });
    has_plain_entries
        && !is_off("core.filemode")
        && !is_off("core.symlinks")
        && extensions.is_some_and(|extensions| !has_extension(extensions, *b"link"))
}

fn compare(
    directory: &mut LastDirectory<'_>,
    path: &Path,
    entry: &StoredEntry<'_>,
    written: ModificationTime,
) -> io::Result<Comparison> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let found = directory.open(path, false);
    let found = found.and_then(|directory| Ok(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?));
    let file = match found {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Comparison::Different),
        found => found?,
    };
    if !is_same(entry.stat, &file) || find_mode(&file) != Some(entry.mode) {
        return Ok(Comparison::Different);
    }
    // Git compares seconds: the times of another file system can be less precise than that of the index.
    let is_racy = ModificationTime::read(entry.stat).seconds >= written.seconds;
    Ok(if is_racy { Comparison::Racy } else { Comparison::Same })
}
