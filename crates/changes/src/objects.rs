//! Reads objects, and keeps those of the user in the private directory: a later `git gc` can remove them there.

use std::collections::{BTreeSet, HashMap};

use model::NotRecorded;

use crate::error::ChangesError;
use crate::git::{Git, GitCommand};
use crate::pack::{ObjectKind, ObjectPack};

const UNEXPECTED: ChangesError = ChangesError::UnexpectedOutput { command: "cat-file" };

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

/// Copies blobs of the user up to a size into the private directory. Returns those without a copy, with the reason. An agent can replace the content of an
/// object, and git does not notice that when it reads one, so the copies are named by their contents.
pub(crate) fn keep_blobs(
    git: &Git,
    ids: &BTreeSet<&str>,
    size_limit: u64,
) -> Result<HashMap<String, NotRecorded>, ChangesError> {
    let unread = ids.iter().map(|id| ((*id).to_owned(), NotRecorded::Unreadable));
    let (mut lost, mut pack): (HashMap<_, _>, _) = (unread.collect(), ObjectPack::new(git));
    visit_blobs(git.command("cat-file").with_user_objects(), ids, size_limit, |id, content| {
        match content {
            None => drop(lost.insert(id.to_owned(), NotRecorded::TooLarge)),
            Some(content) if pack.add(ObjectKind::Blob, content)?.as_deref() == Some(id) => {
                lost.remove(id);
            }
            Some(_) => {}
        }
        Ok(())
    })?;
    pack.finish()?;
    Ok(lost)
}

/// Reads blobs. A missing one is an error.
pub(crate) fn read_blobs(
    command: GitCommand<'_>,
    ids: &BTreeSet<&str>,
) -> Result<HashMap<String, Vec<u8>>, ChangesError> {
    let mut blobs = HashMap::new();
    visit_blobs(command, ids, u64::MAX, |id, content| {
        blobs.extend(content.map(|content| (id.to_owned(), content.to_owned())));
        Ok(())
    })?;
    if blobs.len() == ids.len() { Ok(blobs) } else { Err(UNEXPECTED) }
}

/// Calls a function for each blob: with its content, or without one if that is over the limit. Leaves out missing blobs.
fn visit_blobs(
    command: GitCommand<'_>,
    ids: &BTreeSet<&str>,
    size_limit: u64,
    mut visit: impl FnMut(&str, Option<&[u8]>) -> Result<(), ChangesError>,
) -> Result<(), ChangesError> {
    let command = command.args(["--batch", "--buffer"]);
    let mut unanswered = ids.clone();
    while !unanswered.is_empty() {
        let input = join_lines(&unanswered);
        let mut is_complete = Ok(true);
        let mut receive = |output: &mut Vec<u8>| {
            let mut rest = output.as_slice();
            is_complete = take_answers(&mut rest, &mut unanswered, size_limit, &mut visit);
            let taken = output.len() - rest.len();
            output.drain(..taken);
            matches!(is_complete, Ok(true))
        };
        command.clone().input(input).run_receiving(&mut receive)?;
        // A blob over the limit is not transferred: the others are read by another process.
        if is_complete? && !unanswered.is_empty() {
            return Err(UNEXPECTED);
        }
    }
    Ok(())
}

/// Takes the complete answers from the output. Returns false at a blob over the limit.
fn take_answers(
    output: &mut &[u8],
    unanswered: &mut BTreeSet<&str>,
    size_limit: u64,
    visit: &mut impl FnMut(&str, Option<&[u8]>) -> Result<(), ChangesError>,
) -> Result<bool, ChangesError> {
    while let Some(end) = output.iter().position(|byte| *byte == b'\n') {
        let mut fields = str::from_utf8(&output[..end]).map_err(|_| UNEXPECTED)?.split(' ');
        let (id, kind) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let mut rest = &output[end + 1..];
        // A missing object has no size.
        if let Some(size) = fields.next() {
            let size: u64 = size.parse().map_err(|_| UNEXPECTED)?;
            if size > size_limit {
                visit(id, None)?;
                unanswered.remove(id);
                return Ok(false);
            }
            let size = usize::try_from(size).map_err(|_| UNEXPECTED)?;
            let Some((content, after)) = rest.split_at_checked(size) else { break };
            let Some(after) = after.strip_prefix(b"\n") else { break };
            if kind == "blob" {
                visit(id, Some(content))?;
            }
            rest = after;
        }
        unanswered.remove(id);
        *output = rest;
    }
    Ok(true)
}
