//! Compares the states before and after a job: the list of changed files and the patch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use model::{ChangeExtent, ChangeKind, FileChange};

use crate::entry::{Entry, RawChange, parse_raw_change, to_path};
use crate::error::ChangesError;
use crate::git::Git;
use crate::objects::read_sizes;
use crate::pack::ObjectPack;
use crate::state::{FileState, Sides};
use crate::tree::write_tree;

const UNEXPECTED: ChangesError = ChangesError::UnexpectedOutput { command: "diff-tree" };

/// The changed files with their parts of the patch, sorted by path.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    pub(crate) files: Vec<(FileChange, (usize, usize))>,
    pub(crate) patch: Vec<u8>,
}

/// Compares the recorded states with git, and lists the others.
pub(crate) fn compare(git: &Git, sides: &BTreeMap<PathBuf, Sides>) -> Result<Difference, ChangesError> {
    let mut difference = Difference::default();
    let mut recorded = BTreeMap::new();
    for (path, states) in sides {
        match states.before.not_recorded().or(states.after.not_recorded()) {
            Some(reason) => {
                let kind = match (&states.before, &states.after) {
                    (FileState::Absent, _) => ChangeKind::Added,
                    (_, FileState::Absent) => ChangeKind::Deleted,
                    _ => ChangeKind::Modified,
                };
                let extent = ChangeExtent::NotRecorded { reason };
                difference
                    .files
                    .push((FileChange { path: path.clone(), kind, extent, shared: false }, (0, 0)));
            }
            None => drop(recorded.insert(path.as_path(), states)),
        }
    }
    if !recorded.is_empty() {
        compare_recorded(git, &recorded, &mut difference)?;
    }
    difference.files.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
    Ok(difference)
}

fn compare_recorded(
    git: &Git,
    recorded: &BTreeMap<&Path, &Sides>,
    difference: &mut Difference,
) -> Result<(), ChangesError> {
    let mut pack = ObjectPack::new(git);
    let mut write_side = |side: fn(&Sides) -> &FileState| {
        let entries = recorded.iter().filter_map(|(path, sides)| Some((*path, side(sides).entry()?)));
        write_tree(&mut pack, entries)
    };
    let (before, after) = (write_side(|sides| &sides.before)?, write_side(|sides| &sides.after)?);
    pack.finish()?;
    let args = [
        "-r",
        "-M",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "-z",
        "--raw",
        "--numstat",
        "--no-abbrev",
    ];
    let command = git.command("diff-tree").args(args);
    let args = ["-p", "--binary", "--full-index", "--src-prefix=a/", "--dst-prefix=b/"];
    let mut output = command.args(args).args([&*before, &after, "--"]).run()?;
    let (changes, lines, patch_start) = parse_listing(&output).ok_or(UNEXPECTED)?;
    let patch = output.split_off(patch_start);
    let is_binary = |change: &&RawChange| matches!(lines.get(&change.path), Some(None));
    let entries = changes.iter().filter(is_binary).flat_map(|change| [&change.before, &change.after]);
    let ids =
        entries.flatten().filter(|entry| !entry.is_submodule()).map(|entry| entry.oid.as_str()).collect();
    let sizes = read_sizes(git.command("cat-file"), &ids)?;
    let mut sections = split_patch(&patch).into_iter();
    for change in changes {
        // A change of the type is a deletion and an addition in the patch.
        let (start, mut end) = sections.next().ok_or(UNEXPECTED)?;
        if change.status == b'T' {
            end = sections.next().ok_or(UNEXPECTED)?.1;
        }
        let extent = find_extent(&change, lines.get(&change.path).copied().flatten(), &sizes);
        let file = FileChange { kind: find_kind(&change), path: change.path, extent, shared: false };
        difference.files.push((file, (start, end)));
    }
    difference.patch = patch;
    if sections.next().is_some() { Err(UNEXPECTED) } else { Ok(()) }
}

/// The numbers of added and removed lines, by path. `None` for a binary file.
type Lines = HashMap<PathBuf, Option<(u64, u64)>>;

/// Parses the changes and their lines. Returns them with the start of the patch.
fn parse_listing(output: &[u8]) -> Option<(Vec<RawChange>, Lines, usize)> {
    let (mut changes, mut lines) = (Vec::new(), Lines::new());
    let mut fields = Fields { rest: output };
    while let Some(field) = fields.next() {
        if field.is_empty() {
            break;
        }
        if field.starts_with(b":") {
            changes.push(parse_raw_change(field, &mut fields)?);
            continue;
        }
        let mut parts = field.splitn(3, |byte| *byte == b'\t');
        let (added, removed, path) = (parts.next()?, parts.next()?, parts.next()?);
        // A renamed file has an empty path here, and both paths in further fields.
        let path = if path.is_empty() { fields.nth(1)? } else { path };
        let number = |text| str::from_utf8(text).ok()?.parse().ok();
        lines.insert(to_path(path), number(added).zip(number(removed)));
    }
    Some((changes, lines, output.len() - fields.rest.len()))
}

/// The fields before the patch, which ends the listing and has no terminating NUL. An empty field precedes it.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|byte| *byte == 0)?;
        let field = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(field)
    }
}

fn find_kind(change: &RawChange) -> ChangeKind {
    let oid = |entry: &Option<Entry>| entry.as_ref().map(|entry| entry.oid.clone());
    match (change.status, &change.from) {
        (b'A', _) => ChangeKind::Added,
        (b'D', _) => ChangeKind::Deleted,
        (b'T', _) => ChangeKind::TypeChanged,
        (_, Some(from)) => ChangeKind::Renamed { from: from.clone() },
        _ if oid(&change.before) == oid(&change.after) => ChangeKind::ModeChanged,
        _ => ChangeKind::Modified,
    }
}

fn find_extent(change: &RawChange, lines: Option<(u64, u64)>, sizes: &HashMap<String, u64>) -> ChangeExtent {
    let commit = |entry: &Option<Entry>| {
        entry.as_ref().filter(|entry| entry.is_submodule()).map(|entry| entry.oid.clone())
    };
    let (before, after) = (commit(&change.before), commit(&change.after));
    if before.is_some() || after.is_some() {
        return ChangeExtent::Submodule { before, after };
    }
    let size = |entry: &Option<Entry>| sizes.get(&entry.as_ref()?.oid).copied();
    match lines {
        Some((added, removed)) => ChangeExtent::Text { added, removed },
        None => ChangeExtent::Binary { before: size(&change.before), after: size(&change.after) },
    }
}

/// Returns the ranges of the files in a patch. No line of a hunk or of binary data starts like a header.
fn split_patch(patch: &[u8]) -> Vec<(usize, usize)> {
    const HEADER: &[u8] = b"diff --git ";
    let mut starts = BTreeSet::new();
    let mut position = 0;
    for line in patch.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(HEADER) {
            starts.insert(position);
        }
        position += line.len();
    }
    let ends = starts.iter().copied().skip(1).chain([patch.len()]);
    starts.iter().copied().zip(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_is_split_at_headers_only() {
        let patch = b"diff --git a/x b/x\n-diff --git \n+y\ndiff --git a/z b/z\n";
        assert_eq!(split_patch(patch), [(0, 35), (35, 54)]);
        assert_eq!(split_patch(b""), []);
    }
}
