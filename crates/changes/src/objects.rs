//! Reads objects, and keeps those of the user in the private directory: a later `git gc` can remove them there.

use std::collections::{BTreeSet, HashMap};

use crate::error::ChangesError;
use crate::files::remove_file;
use crate::git::{Git, GitCommand};

/// Joins object ids to lines.
pub(crate) fn join_lines(ids: &BTreeSet<&str>) -> Vec<u8> {
    ids.iter().flat_map(|id| [id.as_bytes(), b"\n"]).flatten().copied().collect()
}

/// Returns the sizes of objects. Missing ones are left out.
pub(crate) fn read_sizes(
    command: GitCommand<'_>,
    ids: &BTreeSet<&str>,
) -> Result<HashMap<String, u64>, ChangesError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let output = command.args(["--batch-check", "--buffer"]).input(join_lines(ids)).run()?;
    let text = String::from_utf8_lossy(&output);
    let sizes = text.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (id, _, size) = (fields.next()?, fields.next()?, fields.next()?.parse().ok()?);
        Some((id.to_owned(), size))
    });
    Ok(sizes.collect())
}

/// Copies blobs of the user into the private directory. Returns those that are intact: an agent can replace the content of an
/// object, and git does not notice that when it reads one. The copies are named by their contents.
pub(crate) fn keep_blobs(git: &Git, ids: &BTreeSet<&str>) -> Result<BTreeSet<String>, ChangesError> {
    if ids.is_empty() {
        return Ok(BTreeSet::new());
    }
    let base = git.git_dir.join("objects/pack/pack");
    let command = git.command("pack-objects").args(["-q", "--window=0", "--threads=1"]).args([&base]);
    let name = command.with_user_objects().input(join_lines(ids)).run()?;
    let pack = base.with_file_name(format!("pack-{}.pack", String::from_utf8_lossy(&name).trim()));
    for index in ["idx", "rev"] {
        remove_file(&pack.with_extension(index))?;
    }
    git.command("index-pack").args(["--threads=1"]).args([&pack]).run()?;
    Ok(read_sizes(git.command("cat-file"), ids)?.into_keys().collect())
}

/// Reads blobs.
pub(crate) fn read_blobs(
    command: GitCommand<'_>,
    ids: &BTreeSet<&str>,
) -> Result<HashMap<String, Vec<u8>>, ChangesError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let output = command.args(["--batch", "--buffer"]).input(join_lines(ids)).run()?;
    let mut rest = output.as_slice();
    let mut blobs = HashMap::new();
    while !rest.is_empty() {
        let (id, blob) =
            split_blob(&mut rest).ok_or(ChangesError::UnexpectedOutput { command: "cat-file" })?;
        blobs.insert(id, blob);
    }
    Ok(blobs)
}

fn split_blob(rest: &mut &[u8]) -> Option<(String, Vec<u8>)> {
    let (header, content) = rest.split_at_checked(rest.iter().position(|byte| *byte == b'\n')? + 1)?;
    let mut fields = str::from_utf8(header).ok()?.trim_end().split(' ');
    let (id, _, size) = (fields.next()?, fields.next()?, fields.next()?.parse().ok()?);
    let (blob, after) = content.split_at_checked(size)?;
    *rest = after.strip_prefix(b"\n")?;
    Some((id.to_owned(), blob.to_vec()))
}
