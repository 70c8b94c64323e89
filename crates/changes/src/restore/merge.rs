//! Merges contents, and produces the files to write with the line endings of a checkout.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use crate::entry::{Entry, join_nul};
use crate::error::ChangesError;
use crate::git::Git;
use crate::index_file::PrivateIndex;
use crate::objects::read_blobs;
use crate::pack::{ObjectKind, ObjectPack};

/// The exit statuses of `merge-file`: the number of conflicts up to 127, or an error such as a binary file.
const MERGE_ERROR: i32 = 255;

/// The number of files whose contents are read by one process and kept in memory.
const FILES_IN_MEMORY: usize = 8;

/// The result of a merge.
#[derive(Debug)]
pub(super) enum Merged {
    /// The object of the merged content.
    Clean(String),
    /// The object of the content with conflict markers.
    WithMarkers(String),
    /// A binary file cannot be merged.
    Binary,
}

/// Merges the contents "ours", "base" and "theirs" of files.
pub(super) fn merge_contents(
    git: &Git,
    scratch: &Path,
    files: &[[Entry; 3]],
) -> Result<Vec<Merged>, ChangesError> {
    let (mut merged, mut pack) = (Vec::new(), ObjectPack::new(git));
    for files in files.chunks(FILES_IN_MEMORY) {
        let ids = files.iter().flatten().map(|entry| entry.oid.as_str()).collect();
        let blobs = read_blobs(git.command("cat-file"), &ids)?;
        for contents in files {
            merged.push(merge_file(git, scratch, contents, &blobs, &mut pack)?);
        }
    }
    pack.finish()?;
    Ok(merged)
}

fn merge_file(
    git: &Git,
    scratch: &Path,
    contents: &[Entry; 3],
    blobs: &HashMap<String, Vec<u8>>,
    pack: &mut ObjectPack,
) -> Result<Merged, ChangesError> {
    let mut args: Vec<OsString> = ["-p", "-q"].map(OsString::from).into();
    for label in ["current", "base", "job"] {
        args.extend(["-L", label].map(OsString::from));
    }
    for (name, entry) in ["ours", "base", "theirs"].into_iter().zip(contents) {
        let path = scratch.join(name);
        let blob = blobs.get(&entry.oid).ok_or(ChangesError::UnexpectedOutput { command: "cat-file" })?;
        // Git decides by the first bytes; the merge of a binary file would be garbage.
        if blob.contains(&0) {
            return Ok(Merged::Binary);
        }
        fs::write(&path, blob).map_err(ChangesError::file("write", &path))?;
        args.push(path.into_os_string());
    }
    let (code, merged) =
        git.command("merge-file").args(args).run_accepting(|code| (0..=255).contains(&code))?;
    if code == MERGE_ERROR {
        return Ok(Merged::Binary);
    }
    let oid = pack.add(ObjectKind::Blob, &merged)?;
    let oid = oid.ok_or(ChangesError::UnexpectedOutput { command: "merge-file" })?;
    Ok(if code == 0 { Merged::Clean(oid) } else { Merged::WithMarkers(oid) })
}

/// Writes the files below `staged` in the scratch directory.
pub(super) fn stage_files(
    git: &Git,
    scratch: &Path,
    files: &BTreeMap<&Path, Entry>,
) -> Result<(), ChangesError> {
    if files.is_empty() {
        return Ok(());
    }
    let index = scratch.join("staged.index");
    let mut entries = PrivateIndex::default();
    for (path, entry) in files {
        entries.insert(path, entry);
    }
    entries.write(&index, git.id_length)?;
    let mut prefix = OsString::from("--prefix=");
    prefix.push(scratch.join("staged/"));
    let command = git.command("checkout-index").args(["-f", "-q", "-z", "--stdin"]).args([prefix]);
    command.index(&index).input(join_nul(files.keys().copied())).run().map(|_| ())
}
